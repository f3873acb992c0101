"""How methods with a function end, and how cancellation and time limits reach the function."""

from __future__ import annotations

import asyncio
import inspect
import itertools
import json
import logging
import math
import re
import threading
import time
from datetime import timedelta

import pytest

from lro import AnyMessage, Cancelled, Code, InvalidArgument, Job, Retry, StatusError, TypeRegistry
from lro._engine import attempt
from lro._engine.job import JobControl
from lro.errors import EncodingError, LeaseLost, PermissionDenied, Unavailable
from lro.executors.asyncio import AsyncioExecutor
from lro.executors.inline import InlineExecutor
from lro.executors.threads import ThreadExecutor
from lro.http import error_reply
from lro.stores.memory import MemoryStore
from lro.types import Help, HelpLink
from tests.engine.engine_parts import NAME, Held, once, raising
from tests.interleaving import interleaved
from tests.patching import patch_threads
from tests.service_fixtures import store_of
from tests.service_steps import Step, answer, ended, reason, recovered, unpacked
from tests.virtual_loop import run_virtual
from tests.waiting import PATIENCE
from tests.work_messages import WorkMetadata, WorkRequest, WorkResponse

EXECUTORS = {"threads": lambda: ThreadExecutor(2), "asyncio": AsyncioExecutor}
EACH = pytest.mark.parametrize("colour", ["sync", "async"])


@pytest.fixture(params=EXECUTORS)
def service(request, clock, tmp_path, make_service):
    """A service on each background executor, each time with a new store."""
    kind = "memory" if request.param == "threads" else "sqlite"
    with store_of(kind, clock, tmp_path) as store:
        yield make_service(store, EXECUTORS[request.param]())


@pytest.fixture
def quick(make_service):
    """A service with a memory store whose starts run the function before they return."""
    return make_service(executor=InlineExecutor())


def reports(found, result):
    """Yield a generator's reports, and append its return value (or else `found`) to `result`."""
    result.append((yield from found) if inspect.isgenerator(found) else found)


def method_of(service, colour, body, **options):
    """Register a sync or async method whose function returns ``body(request, job)``.

    If the body is a generator, the function reports each metadata message that the body yields.
    """

    def work(request: WorkRequest, job: Job[WorkMetadata]) -> WorkResponse:
        for metadata in reports(body(request, job), result := []):
            job.report(metadata)
        return result[0]

    async def awork(request: WorkRequest, job: Job[WorkMetadata]) -> WorkResponse:
        for metadata in reports(body(request, job), result := []):
            await job.report_async(metadata)
        return result[0]

    return service.method(NAME, **options)(work if colour == "sync" else awork)


# -- endings --------------------------------------------------------------------------------------


@EACH
def test_function_result_becomes_the_response(service, colour):
    """A function's return value becomes the response, and its last report becomes the metadata.

    The job has the operation's name.
    """
    jobs = []

    def body(request, job):
        jobs.append(job)
        assert job.metadata is None
        yield WorkMetadata(percent=50)
        assert job.metadata == WorkMetadata(percent=50)
        assert not job.cancel_requested
        return WorkResponse(request.text + "!")

    method = method_of(service, colour, body)
    operation = method.start(WorkRequest("hello"))
    assert not operation.done or service.store.get(operation.name).done
    found = ended(service, operation)
    assert answer(service, found) == "hello!"
    assert unpacked(service, found).percent == 50
    assert (jobs[0].name, jobs[0].attempt) == (operation.name, 1)
    assert method.full_name == NAME


class Odd(BaseException):
    """An exception that is not an `Exception`, so ``except Exception`` lets it pass."""


@EACH
@pytest.mark.parametrize(
    "error", [cls("hunter2") for cls in (ValueError, SystemExit, Odd, GeneratorExit)]
)
def test_function_that_raises_ends_with_internal(service, colour, error, caplog):
    """If a function raises, only its operation fails.

    The error is logged, but callers do not see it.
    """
    method = method_of(service, colour, raising(error))
    with caplog.at_level(logging.INFO, "lro"):
        operation = method.start(WorkRequest())
        found = ended(service, operation)
    assert reason(found) == (Code.INTERNAL, "METHOD_FAILED")
    assert "hunter2" not in str(found)
    (record,) = [one for one in caplog.records if one.exc_info]
    assert operation.name in record.getMessage()
    assert record.exc_info[1] is error
    assert ended(service, method.start(WorkRequest())).state == "FAILED"


LINK = Help((HelpLink("more", "https://example.test"),))


@EACH
@pytest.mark.parametrize(
    ("error", "wanted", "text"),
    [
        (
            StatusError(Code.NOT_FOUND, "no such picture", (LINK,), "PICTURE_MISSING"),
            (Code.NOT_FOUND, "PICTURE_MISSING"),
            "no such picture",
        ),
        (PermissionDenied("no"), (Code.PERMISSION_DENIED, "PERMISSION_DENIED"), "no"),
        (Unavailable("later"), (Code.UNAVAILABLE, "UNAVAILABLE"), "later"),
        (
            StatusError(Code.OK, "fine"),  # OK is not an error code
            (Code.INTERNAL, "METHOD_FAILED"),
            "the method failed with an internal error",
        ),
    ],
)
def test_lro_error_of_a_function_is_the_result(quick, colour, error, wanted, text):
    """A `StatusError` that a function raises reaches callers with its code, text and details."""
    found = method_of(quick, colour, raising(error)).start(WorkRequest()).operation
    assert (reason(found), found.error.message) == (wanted, text)
    assert (LINK in map(quick.types.unpack_any, found.error.details)) == ("picture" in text)


class Odder(StatusError):
    """An error whose ``details`` or ``status_code`` raises, or whose ``status_code`` is invalid."""

    def __init__(self, part, given):
        super().__init__(Code.ABORTED, "no")
        self.part, self.given = part, given

    def details(self, domain):
        if self.part == "details":
            raise self.given
        return super().details(domain)

    @property
    def status_code(self):
        if self.part != "code":
            return Code.ABORTED
        if isinstance(self.given, BaseException):
            raise self.given
        return self.given


@EACH
@pytest.mark.parametrize(
    ("part", "given"),
    [
        *(("details", error) for error in (SystemExit(), GeneratorExit(), ValueError())),
        *(("code", given) for given in (SystemExit(), ValueError(), "ABORTED", 99)),
    ],
)
def test_error_that_cannot_be_described_is_internal(make_service, colour, part, given, caplog):
    """If an error's methods raise, the operation still fails, and the worker keeps working."""
    service = make_service()
    method = method_of(service, colour, raising(Odder(part, given)))
    found = ended(service, method.start(WorkRequest()))
    assert reason(found) == (Code.INTERNAL, "METHOD_FAILED")
    assert f"{found.name}: attempt 1: its error cannot be described" in caplog.text
    assert ended(service, method.start(WorkRequest())).state == "FAILED"


def test_error_details_with_surrogates_are_escaped():
    """Surrogates in an error's text or field are escaped, and callers get INVALID_ARGUMENT."""
    description = "no file \\udcff.png"
    error = InvalidArgument("half\ud800", "no file \udcff.png")
    types = TypeRegistry()
    info, wrong = (detail.payload for detail in types.status_of(error, "d").details)
    assert info["metadata"] == {"field": "half\\ud800"}
    assert wrong["fieldViolations"] == [{"field": "half\\ud800", "description": description}]
    reply = error_reply(error, types, "d")
    assert reply.status == 400
    assert description in json.loads(reply.body)["error"]["message"]


@EACH
def test_error_detail_without_json_ends_operation_with_internal(service, colour):
    """If an error detail has no JSON form, the operation fails. Reporters refuse such an error."""
    odd = StatusError(
        Code.ABORTED, "odd", [AnyMessage("type.googleapis.com/acme.v1.Odd", {"a": {1}})]
    )
    method = method_of(service, colour, raising(odd))
    found = ended(service, method.start(WorkRequest()))
    assert reason(found) == (Code.INTERNAL, "ENCODING_FAILED")
    outside = service.declare(
        "acme.v1.Works.Outside", request=WorkRequest, response=WorkResponse, metadata=WorkMetadata
    )
    started = outside.start(WorkRequest())
    with pytest.raises(EncodingError, match=r"acme\.v1\.Odd: has no JSON form"):
        service.reporter(started.name).fail(odd)
    assert not service.get(started.name).done


@EACH
@pytest.mark.parametrize(
    "body",
    [
        lambda request, job: None,
        lambda request, job: "hunter2",
        lambda request, job: WorkResponse(b"hunter2"),
        lambda request, job: WorkResponse("\ud800 hunter2"),
        lambda request, job: (yield WorkMetadata(percent="hunter2")),
        lambda request, job: (yield "hunter2"),
        lambda request, job: (yield WorkMetadata(percent=2**40)),
    ],
    ids=["None", "str", "field", "surrogate", "metadata", "no metadata", "range"],
)
def test_result_that_cannot_be_encoded_ends_with_internal(service, colour, body, caplog):
    """If a result or report cannot be encoded, only its operation fails. No value is logged."""
    method = method_of(service, colour, body)
    with caplog.at_level(logging.ERROR, "lro"):
        operation = method.start(WorkRequest())
        found = ended(service, operation)
    assert reason(found) == (Code.INTERNAL, "ENCODING_FAILED")
    assert "hunter2" not in str(found)
    assert operation.name in caplog.text
    logged = "".join(f"{one.getMessage()}{one.exc_text}" for one in caplog.records)
    assert "hunter2" not in logged


@pytest.mark.parametrize("error", [ValueError("hunter2"), InvalidArgument("", "hunter2")])
def test_result_that_cannot_be_written_ends_with_internal(make_service, error, caplog):
    """If the store refuses a result, the operation still ends, with the code INTERNAL."""

    class Picky(MemoryStore):
        def update(self, name, change):
            def checked(record):
                changed = change(record)
                if changed is not None and changed.response is not None:
                    raise error
                return changed

            return super().update(name, checked)

    service = make_service(Picky(), InlineExecutor())
    method = method_of(service, "sync", lambda request, job: WorkResponse())
    with caplog.at_level(logging.ERROR, "lro"):
        operation = method.start(WorkRequest()).operation
    assert reason(operation) == (Code.INTERNAL, "ENCODING_FAILED")
    assert "hunter2" not in str(operation)


# -- reports after the end ------------------------------------------------------------------------


def test_reports_after_the_end_are_dropped(service):
    """A report after the operation's end is dropped without an error (spec §2.10)."""
    jobs = []

    def body(request, job):
        jobs.append(job)
        return WorkResponse()

    operation = method_of(service, "sync", body).start(WorkRequest(), metadata=WorkMetadata(1))
    found = ended(service, operation)
    jobs[0].report(WorkMetadata(99))
    assert service.get(operation.name) == found


# -- cancellation ---------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["report", "raise_if_cancelled", "sleep", "sleep for ever"])
def test_cancel_reaches_a_plain_function(service, way, step):
    """After a cancel, a plain function's next report, check or pause raises."""

    def body(request, job):
        if way.startswith("sleep"):
            step.begun.set()
            job.sleep(PATIENCE if way == "sleep" else math.inf)
        else:
            step()
            if way == "report":
                job.report(WorkMetadata(50))
            job.raise_if_cancelled()
        return WorkResponse("not reached")

    operation = method_of(service, "sync", body).start(WorkRequest(), metadata=WorkMetadata(1))
    step.reached()
    service.cancel(operation.name)
    step.go.set()
    found = ended(service, operation)
    assert reason(found) == (Code.CANCELLED, "CANCELLED")
    assert unpacked(service, found).cancel_requested
    assert unpacked(service, found).percent == 1


def test_cancel_reaches_a_coroutine_once(service):
    """A cancelled coroutine's ``await`` raises CancelledError once, even after more cancels."""
    begun, tidied = threading.Event(), []

    @service.method(NAME)
    async def work(request: WorkRequest, job: Job[WorkMetadata]) -> WorkResponse:
        begun.set()
        try:
            await asyncio.sleep(PATIENCE)
        except asyncio.CancelledError:
            await asyncio.to_thread(service.cancel, job.name)
            service.cancel(job.name)
            await asyncio.sleep(0)
            tidied.append(job.cancel_requested)
            raise
        return WorkResponse("not reached")

    operation = work.start(WorkRequest())
    assert begun.wait(PATIENCE)
    service.cancel(operation.name)
    assert ended(service, operation).state == "CANCELLED"
    assert tidied == [True]


@pytest.mark.parametrize("colour", ["sync", "async"])
@pytest.mark.parametrize("by", ["itself", "another"])
def test_cancelled_waiting_work_never_begins(make_service, store, colour, by):
    """A caller's cancel in any process ends an unclaimed operation at once."""
    service, step, calls = make_service(store, ThreadExecutor(1)), Step(), []

    def body(request, job):
        calls.append(request.text)
        step()
        return WorkResponse()

    method = method_of(service, colour, body)
    first = method.start(WorkRequest("first"))
    step.reached()
    second = method.start(WorkRequest("second"), metadata=WorkMetadata())
    other = make_service(store, InlineExecutor()) if by == "another" else service
    other.cancel(second.name)
    found = service.get(second.name)
    assert reason(found) == (Code.CANCELLED, "CANCELLED")
    assert unpacked(service, found).cancel_requested == (other is service)
    step.go.set()
    ended(service, first)
    service.run_maintenance()
    assert calls == ["first"]


# -- limits ---------------------------------------------------------------------------------------


def test_overrun_of_a_function_that_does_not_check_is_logged_once(quick, clock, caplog):
    """A thread cannot be stopped, so the log names the method, the limit and the cure."""
    lines = []

    def body(request, job):
        for seconds in (19, 6, 6, 6):  # the limit is over after 10 s, and 10 s later it is logged
            clock.advance(seconds)
            quick.run_maintenance()
            lines.append([one for one in caplog.messages if "time_limit" in one])

    method_of(quick, "sync", body, time_limit=timedelta(seconds=10)).start(WorkRequest())
    assert [len(found) for found in lines] == [0, 1, 1, 1]
    (line,) = lines[-1]
    assert re.fullmatch(
        rf"operations/\S+: {NAME} still runs, but its time_limit of 10 s is over: call "
        r"job\.raise_if_cancelled\(\) in the function, or use a ProcessExecutor, which can end it",
        line,
    )


@pytest.mark.parametrize("way", ["report", "sleep", "raise_if_cancelled"])
def test_plain_function_over_its_time_limit_is_stopped(quick, clock, way):
    """A plain function past its time limit is stopped at its next report, check or pause."""

    def body(request, job):
        clock.advance(9.999)
        job.raise_if_cancelled()
        job.sleep(0.0001)
        if way == "sleep":
            job.sleep(PATIENCE)
        clock.advance(1)
        if way == "report":
            job.report(WorkMetadata())
        job.raise_if_cancelled()

    method = method_of(quick, "sync", body, time_limit=timedelta(seconds=10))
    began = time.monotonic()
    found = method.start(WorkRequest()).operation
    assert time.monotonic() - began < PATIENCE
    assert reason(found) == (Code.DEADLINE_EXCEEDED, "DEADLINE_EXCEEDED")
    assert found.error.message == "the time limit of the method is over"


@pytest.mark.parametrize("way", ["stop", "return", "raise"])
def test_coroutine_over_its_time_limit_is_cancelled(make_service, way):
    """A coroutine past its time limit is cancelled. A late result is stored, but no late error."""
    service = make_service(executor=AsyncioExecutor(loop="running"))

    @service.method(NAME, time_limit=timedelta(seconds=2))
    async def work(request: WorkRequest, job: Job[WorkMetadata]) -> WorkResponse:
        try:
            await job.sleep_async(PATIENCE)
        except asyncio.CancelledError:
            if way == "raise":
                raise ValueError from None
            if way == "stop":
                raise
        return WorkResponse("late")

    async def main():
        started = await work.start_async(WorkRequest())
        return await service.wait_async(started.name, PATIENCE), asyncio.get_running_loop().time()

    found, seconds = run_virtual(main())
    assert seconds == pytest.approx(2, abs=0.1)
    if way == "return":
        assert answer(service, found) == "late"
    else:
        assert reason(found) == (Code.DEADLINE_EXCEEDED, "DEADLINE_EXCEEDED")


# -- metadata -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "state"),
    [
        (lambda request, job: WorkResponse(), "SUCCEEDED"),
        (raising(ValueError()), "FAILED"),
        (raising(Cancelled()), "CANCELLED"),
    ],
)
def test_final_metadata_is_stored_with_the_end(service, body, state):
    """``final_metadata`` gets the last metadata and the final state, and its result is stored."""

    def settle(metadata, coming):
        return WorkMetadata(percent=100, note=f"{metadata.percent} {coming.value}")

    def reporting(request, job):
        if request.text == "report":
            job.report(WorkMetadata(40))
        return body(request, job)

    method = method_of(service, "sync", reporting, final_metadata=settle)
    bare = ended(service, method.start(WorkRequest()))
    assert (bare.state, bare.metadata) == (state, None)
    found = ended(service, method.start(WorkRequest("report")))
    metadata = unpacked(service, found)
    assert (found.state, metadata.percent, metadata.note) == (state, 100, f"40 {state}")
    assert metadata.end_time is not None


def settled(metadata, state):
    """Return metadata whose note is the final state."""
    return WorkMetadata(percent=100, note=state.value)


@pytest.mark.parametrize("settle", [settled, raising(ValueError())], ids=["good", "fails"])
@pytest.mark.parametrize(
    ("between", "meanwhile"),
    [
        ("waiting", False),
        ("lost", False),
        *itertools.product(["released", "retried"], [False, True]),
    ],
)
def test_cancellation_that_no_function_sees_has_final_metadata(
    make_service, store, clock, between, settle, meanwhile
):
    """``final_metadata`` runs even if work is cancelled while queued, released, lost or retried."""
    executor = Held()
    service = make_service(store, executor)
    other = make_service(store, Held(busy=True))
    options = {"final_metadata": settle, "retry": Retry(on=(OSError,))}

    def body(request, job):
        if not meanwhile:
            other.cancel(job.name)
        raise OSError

    method_of(other, "sync", body, **options)
    method = method_of(service, "sync", body, **options)
    executor.busy = between == "waiting"
    name = method.start(WorkRequest(), metadata=WorkMetadata(1)).name
    if meanwhile:
        once(store, "update", lambda *_: other.cancel(name))
    elif between != "retried":
        other.cancel(name)
    if between == "released":
        executor.task.request_release()
        executor.task.run()
    elif between == "lost":
        clock.advance(20)
        recovered(other, clock)
    elif between == "retried":
        executor.task.run()
    found = other.get(name)
    assert (found.state, reason(found)) == ("CANCELLED", (Code.CANCELLED, "CANCELLED"))
    note = unpacked(other, found).note
    assert note == ("CANCELLED" if settle is settled else WorkMetadata().note)


@pytest.mark.parametrize(
    "settle",
    [
        lambda metadata, state: 1 / 0,
        lambda metadata, state: WorkMetadata(percent="x"),
        lambda metadata, state: WorkResponse("no metadata"),
        raising(Unavailable("hunter2")),
        raising(LeaseLost("hunter2", 1, 2)),
        raising(asyncio.CancelledError()),
        raising(SystemExit()),
        raising(KeyboardInterrupt()),
    ],
    ids=["raises", "unencodable", "class", "unavailable", "lease", "cancelled", "exit", "ctrl-c"],
)
def test_final_metadata_that_fails_ends_with_internal(service, settle, caplog):
    """If ``final_metadata`` raises, the error is logged, and the last reported metadata stay."""

    def body(request, job):
        job.report(WorkMetadata(40))
        return WorkResponse()

    method = method_of(service, "sync", body, final_metadata=settle)
    with caplog.at_level(logging.ERROR, "lro"):
        operation = method.start(WorkRequest())
        found = ended(service, operation)
    assert reason(found) == (Code.INTERNAL, "METHOD_FAILED")
    assert found.error.message == "the final metadata of the method cannot be made"
    assert unpacked(service, found).percent == 40
    assert operation.name in caplog.text


def test_final_metadata_is_computed_again_after_a_change(service):
    """If a cancel changes the metadata while ``final_metadata`` runs, the hook is called again."""
    calls, names, step = [], [], Step()

    def settle(metadata, state):
        calls.append(metadata.cancel_requested)
        if len(calls) == 1:
            service.cancel(names[0])
        return metadata

    def body(request, job):
        step()
        return WorkResponse("in time")

    method = method_of(service, "sync", body, final_metadata=settle)
    names.append(method.start(WorkRequest(), metadata=WorkMetadata(1)).name)
    step.go.set()
    found = ended(service, names[0])
    assert (calls, unpacked(service, found).cancel_requested) == ([False, True], True)
    assert answer(service, found) == "in time"


# -- the store is unavailable ----------------------------------------------------------------------


class Failing(MemoryStore):
    """A store whose next ``failures`` updates raise Unavailable."""

    failures = 0
    writes_block = True

    def update(self, name, change):
        if self.failures:
            type(self).failures -= 1
            raise Unavailable("gone for a moment")
        return super().update(name, change)


@pytest.fixture
def no_patience(monkeypatch):
    """Retry failed store writes without a pause, and let a close wait until workers give up."""
    monkeypatch.setattr(attempt, "_FIRST_PAUSE_SECONDS", 0.0)
    monkeypatch.setattr("lro._engine.local_work.LAST_SECONDS", PATIENCE)


@pytest.mark.parametrize("kind", EXECUTORS)
@EACH
def test_result_is_retried_until_the_store_is_available(
    make_service, kind, colour, no_patience, monkeypatch
):
    """While the store is unavailable, the writes of a claim, a report and a result are retried."""
    store = Failing()
    service = make_service(store, EXECUTORS[kind]())

    def body(request, job):
        monkeypatch.setattr(Failing, "failures", 50)
        yield WorkMetadata(50)
        monkeypatch.setattr(Failing, "failures", 50)
        return WorkResponse("kept")

    method = method_of(service, colour, body)
    monkeypatch.setattr(Failing, "failures", 50)
    found = ended(service, method.start(WorkRequest()))
    assert (answer(service, found), unpacked(service, found).percent) == ("kept", 50)
    assert Failing.failures == 0


@pytest.mark.parametrize("failing", ["claim", "report", "result"])
def test_work_is_left_to_others_if_the_store_is_unavailable_until_close(
    make_service, no_patience, monkeypatch, caplog, failing
):
    """If the store stays unavailable, a close stops the function. The work stays in progress."""
    store, step, raised = Failing(), Step(), []
    service = make_service(store, ThreadExecutor(1))

    def body(request, job):
        step()
        if failing == "report":
            with pytest.raises(Cancelled) as caught:
                job.report(WorkMetadata())
            raised.append(caught.value)
            raise caught.value
        return WorkResponse()

    # A start of a method with a concurrency limit stores the work unclaimed.
    method = method_of(service, "sync", body, concurrency=1 if failing == "claim" else None)
    if failing == "claim":
        monkeypatch.setattr(Failing, "failures", 10**9)
    operation = method.start(WorkRequest())
    if failing != "claim":
        step.reached()
        monkeypatch.setattr(Failing, "failures", 10**9)
    step.go.set()
    service.close(timedelta(milliseconds=10))
    record = store.get(operation.name)
    assert (record.state, record.attempt) == ("IN_PROGRESS", 0 if failing == "claim" else 1)
    assert len(raised) == (failing == "report")
    line = f"{operation.name}: its result could not be stored"
    assert (line in caplog.text) == (failing == "result")


# -- jobs -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("metadata", "wanted"),
    [(WorkMetadata(7), 7), (None, None), (AnyMessage("x/foreign.Type", {"percent": 1}), None)],
)
def test_job_metadata_begins_with_what_callers_see(quick, metadata, wanted):
    """``job.metadata`` begins as the start's metadata, or as None if they have another class."""
    seen = []

    def body(request, job):
        seen.append(job.metadata)
        return WorkResponse()

    method_of(quick, "sync", body).start(WorkRequest(), metadata=metadata)
    assert [found and found.percent for found in seen] == [wanted]


def test_async_work_is_dropped_if_no_loop_can_be_made(make_service, monkeypatch):
    """If no event loop can be created, the worker drops the work. Another process can run it."""
    tried = threading.Event()

    def no_loop(coroutine):
        coroutine.close()
        tried.set()
        raise OSError("too many open files")

    monkeypatch.setattr("asyncio.run", no_loop)
    executor = ThreadExecutor(1)
    service = make_service(executor=executor)
    method_of(service, "async", raising(AssertionError())).start(WorkRequest())
    assert tried.wait(PATIENCE)
    assert executor.join(PATIENCE)
    assert not service.edges.work.held()


def test_metadata_stay_those_of_the_last_report():
    """A thread that reads the metadata for the first time does not undo the report of another."""
    control = recalled = None

    def pair():
        nonlocal control
        control = JobControl(
            name="n",
            attempt=2,
            publish=lambda *_: iter(()),
            seen="packed",
            recall=lambda seen: f"un{seen}",
            clock=time.monotonic,
        )

        def read():
            nonlocal recalled
            recalled = control.metadata

        return read, lambda: control.report("new")

    for _ in interleaved(pair):
        assert recalled in ("unpacked", "new")
        assert control.metadata == "new"


def test_stop_listener_is_called_at_once(monkeypatch):
    """A stop calls each listener at once, even a listener that is added after the stop.

    Remote executors need this. A pause leaves no listener behind when it ends.
    """
    woken = []
    patch_threads(monkeypatch, threading.Event, "set", lambda _: woken.append("pause"))
    control = JobControl(
        name="n", attempt=1, publish=print, recall=lambda _: None, clock=lambda: 0.0
    )
    control.pause(0)
    control.on_stop(lambda: woken.append("watcher"))
    assert woken == []
    control.stop()
    control.on_stop(lambda: woken.append("late"))
    assert woken == ["watcher", "late"]
