"""The events that observers get, the log records, and the stored counts."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import sqlite3
import threading
from datetime import timedelta
from typing import Any

import pytest

from lro import Cancelled, Code, Job, Retry, Service, State, StatusError
from lro._engine import statistics as module
from lro._engine.flow import run
from lro._engine.metrics import LOST_ATTEMPTS, QUEUE_DURATION
from lro._engine.statistics import FLUSH_SECONDS, Statistics
from lro._engine.store_port import keeps_statistics
from lro.adapters import (
    AttemptBegan,
    AttemptOver,
    CancelRequested,
    CancelSupport,
    LeaseRenewed,
    MetadataReported,
    Observer,
    OperationEnded,
    OperationsExpired,
    OperationStarted,
    ServiceEvent,
    WorkLost,
    WriteRefused,
)
from lro.errors import DeclarationError, LroError, RequestIdConflict, Unavailable
from lro.executors.asyncio import AsyncioExecutor
from lro.executors.inline import InlineExecutor
from lro.executors.processes import ProcessExecutor
from lro.executors.threads import ThreadExecutor
from lro.logging import OperationFilter, operation_facts
from lro.stores.memory import MemoryStore
from lro.stores.sqlite import SQLiteStore
from lro.telemetry import BUCKETS
from lro.testing import START
from lro.testing._samples import together
from tests.engine.engine_parts import ID, Held, counted, once, raising, totals
from tests.executors import process_methods
from tests.service_steps import WORK, Step, ended, ended_in_time, recovered, work
from tests.waiting import PATIENCE, until
from tests.work_messages import WorkMetadata, WorkRequest, WorkResponse

METHOD = WORK


class Recorder(Observer):
    """An observer that records all events in order."""

    def __init__(self) -> None:
        self.events: list[ServiceEvent] = []
        self.started = self.attempt_began = self.reported = self.attempt_over = self.events.append
        self.ended = self.cancel_requested = self.lost = self.write_refused = self.events.append
        self.renewed = self.expired = self.events.append

    def kinds(self) -> list[str]:
        """Return the names of the events in order."""
        return [event.kind for event in self.events]

    def only(self, cls: type) -> Any:
        """Return the only event of this class."""
        (found,) = [event for event in self.events if isinstance(event, cls)]
        return found


@pytest.fixture
def recorder():
    """An observer that records all events."""
    return Recorder()


@pytest.fixture
def observed(make_service, store, recorder):
    """A function that makes services on the test's store, with the recorder as their observer."""

    def make(executor: Any = None, **options: Any) -> Service:
        return make_service(store, executor, observers=[recorder], **options)

    return make


def test_life_of_an_operation_is_observed_and_logged_in_order(observed, recorder, clock, caplog):
    """Each event has the operation's name, method and times. The first event has the caller, too.

    Log lines begin with the name and have the same facts as attributes. They contain no text of
    messages.
    """
    service = observed(InlineExecutor())

    def body(_: WorkRequest, job: Job[WorkMetadata]) -> None:
        job.report(WorkMetadata(50))
        clock.advance(2)
        raise StatusError(Code.NOT_FOUND, "the secret picture")

    with caplog.at_level(logging.INFO, "lro"):
        name = work(service, body).start(WorkRequest("payload"), caller="ann").name
    known = {"name": name, "method": METHOD}
    failed = {"attempt": 1, "seconds": 2.0, "error_type": "NOT_FOUND", **known}
    assert recorder.events == [
        OperationStarted(outcome="started", caller="ann", **known),
        AttemptBegan(attempt=1, queue_seconds=0.0, **known),
        MetadataReported(attempt=1, **known),
        AttemptOver(outcome="failed", **failed),
        OperationEnded(state=State.FAILED, **failed),
    ]
    assert [record.getMessage() for record in caplog.records] == [
        f"{name}: started by {METHOD}",
        f"{name}: began after 0.000 s",
        f"{name}: FAILED with NOT_FOUND after 2.000 s",
    ]
    facts = {"lro.operation": name, "lro.method": METHOD}
    assert facts.items() <= caplog.records[0].__dict__.items()
    assert {**facts, "lro.attempt": 1}.items() <= caplog.records[2].__dict__.items()


def test_repeated_and_refused_starts_are_observed(observed, recorder):
    """The event of a repeated start has the name of the first operation.

    The event of a refused start has an error code but no name.
    """
    service = observed(InlineExecutor())
    method = work(service)
    first = method.start(WorkRequest("a"), request_id=ID)
    recorder.events.clear()
    assert method.start(WorkRequest("a"), request_id=ID).name == first.name
    with pytest.raises(RequestIdConflict):
        method.start(WorkRequest("b"), request_id=ID)
    with pytest.raises(LroError):
        method.start(WorkRequest("c"), target=5)
    with pytest.raises(LroError):  # a validation is not a start
        method.start(WorkRequest("c"), target=5, validate_only=True)
    assert recorder.events == [
        OperationStarted(method=METHOD, outcome="repeated", name=first.name),
        OperationStarted(method=METHOD, outcome="refused", error_type="INVALID_ARGUMENT"),
        OperationStarted(method=METHOD, outcome="refused", error_type="INVALID_ARGUMENT"),
    ]
    starts = {name: number for name, number in totals(service).items() if "starts." in name}
    assert starts == {
        "starts.started": 1,
        "starts.repeated": 1,
        "starts.refused.INVALID_ARGUMENT": 2,
    }


class Speechless(LroError):
    """An application's error whose ``status_code`` raises."""

    raised: type[BaseException] = ValueError

    @property
    def status_code(self) -> int:
        raise self.raised


@pytest.mark.parametrize("raised", [ValueError, SystemExit, KeyboardInterrupt])
def test_refusal_that_cannot_say_its_code_is_observed_as_internal(make_service, recorder, raised):
    """If an error's code cannot be read, INTERNAL is observed. A KeyboardInterrupt is passed on."""
    error = Speechless()
    error.raised = raised
    service = make_service(None, InlineExecutor(), observers=[recorder])
    ctrl_c = raised is KeyboardInterrupt
    with pytest.raises(KeyboardInterrupt if ctrl_c else Speechless):
        work(service, validate=raising(error)).start(WorkRequest())
    if not ctrl_c:
        assert recorder.only(OperationStarted).error_type == "INTERNAL"


@pytest.mark.parametrize(
    ("error", "state", "code"),
    [
        (StatusError(Code.NOT_FOUND, "no such picture"), State.FAILED, "NOT_FOUND"),
        (ValueError("secret"), State.FAILED, "INTERNAL"),
        (Cancelled(), State.CANCELLED, "CANCELLED"),
        (None, State.FAILED, "INTERNAL"),
    ],
)
def test_failures_are_observed_by_code(make_service, recorder, error, state, code):
    """The event of a failure has the name of the error's code but not the error's text.

    The event describes the stored end. If the metadata hook fails after a successful function, the
    event is that of a failure.
    """
    service = make_service(None, InlineExecutor(), observers=[recorder])

    def body(*_: object) -> None:
        if error is not None:
            raise error

    hook = None if error is not None else raising(ValueError("secret"))
    work(service, body, final_metadata=hook).start(WorkRequest(), metadata=WorkMetadata(1))
    over, end = recorder.events[-2:]
    assert isinstance(over, AttemptOver)
    assert isinstance(end, OperationEnded)
    assert (over.outcome, over.error_type) == (state.name.lower(), code)
    assert (end.state, end.error_type) == (state, code)
    assert "secret" not in repr(recorder.events)
    what = f"failed.{code}" if state is State.FAILED else "cancelled"  # cancels have no code
    counted = {"starts.started", f"ends.{what}", "queue.0", "queue.sum"}
    counted |= {f"{kind}.{what}.{n}" for kind in ("attempt", "operation") for n in ("0", "sum")}
    assert set(totals(service)) == counted


@pytest.mark.parametrize(
    ("support", "reach"),
    [
        (CancelSupport.NOT, "cooperative"),
        (CancelSupport.COOPERATIVE, "cooperative"),
        (CancelSupport.AT_AWAIT, "at_await"),
        (CancelSupport.FORCED, "forced"),
    ],
)
def test_cancellation_is_observed_with_its_time(observed, recorder, clock, support, reach):
    """Several cancels cause one event. The end's event has the seconds until the function stopped.

    Cancels are counted per kind of executor. Cancels of unclaimed work are counted as withdrawn.
    """

    class Executor(ThreadExecutor):
        cancel_support = support

    service, step = observed(Executor(1)), Step()

    def body(_: WorkRequest, job: Job[WorkMetadata]) -> None:
        step()
        clock.advance(3)
        job.raise_if_cancelled()

    method = work(service, body)
    name = method.start(WorkRequest()).name
    step.reached()
    service.cancel(name, caller="bob")
    service.cancel(name, caller="eve")
    assert service.get(name, view="FULL").description.cancel_time == clock()
    asked = CancelRequested(name=name, method=METHOD, caller="bob")
    assert recorder.only(CancelRequested) == asked
    service.cancel(method.start(WorkRequest()).name)
    step.go.set()
    ended(service, name)
    service.edges.work.stop(timedelta(seconds=PATIENCE))
    ends = [event for event in recorder.events if isinstance(event, OperationEnded)]
    assert [(end.state, end.cancel_seconds) for end in ends] == [
        (State.CANCELLED, 0.0),
        (State.CANCELLED, 3.0),
    ]
    found = totals(service)
    assert (found[f"cancel.{reach}.5"], found[f"cancel.{reach}.sum"]) == (1, 3.0)
    assert (found["cancel.withdrawn.0"], found["ends.cancelled"]) == (1, 2)


def test_work_that_no_process_has_is_observed_when_it_is_cancelled(
    observed, make_service, recorder, store, step
):
    """The process that cancels unclaimed work also ends it, and its observers get both events."""
    first, second = make_service(store, ThreadExecutor(1)), observed(ThreadExecutor(1))
    method = work(first, step)
    method.start(WorkRequest())
    work(second)
    second.cancel(method.start(WorkRequest()).name)
    step.go.set()
    assert recorder.kinds() == ["cancel_requested", "ended"]
    assert recorder.only(OperationEnded).cancel_seconds == 0.0


def test_end_of_a_deleted_operation_is_observed(observed, recorder, clock, step):
    """The end of a deleted operation is observed, so that starts and ends agree in number."""
    service = observed()
    name = work(service, step).start(WorkRequest()).name
    step.reached()
    service.delete(name)
    clock.advance(4)
    step.go.set()
    service.close()
    end = recorder.only(OperationEnded)
    assert (end.state, end.seconds, end.error_type) == (State.SUCCEEDED, 4.0, "")


@pytest.mark.parametrize(("asked", "outcome"), [(True, "cancelled"), (False, "failed")])
def test_work_that_ends_as_it_is_stopped_is_observed(make_service, recorder, step, asked, outcome):
    """At a close, the end of work that was cancelled or must not run again is observed."""
    service = make_service(observers=[recorder])
    name = work(service, step, at_most_once=not asked).start(WorkRequest()).name
    step.reached()
    if asked:
        service.cancel(name)
    service.close(0)
    step.go.set()
    assert recorder.only(OperationEnded).state.name.lower() == outcome
    assert recorder.only(AttemptOver).outcome == outcome
    assert recorder.kinds()[2 + asked : 4 + asked] == ["attempt_over", "ended"]


@pytest.mark.parametrize("reading", [False, True])
def test_work_that_is_released_as_it_begins_is_not_entered(make_service, recorder, reading):
    """If a close comes before the function is called, the function is never called."""
    executor = Held(busy=reading)
    service, entered = make_service(None, executor, observers=[recorder]), []
    work(service, lambda *_: entered.append(1)).start(WorkRequest())
    executor.busy = False
    if reading:
        service.run_maintenance()
        recorder.events.clear()
        once(service.types, "unpack_request", lambda *_: service.close(0), after=True)
    else:
        service.close(0)
    executor.task.run()
    assert recorder.kinds() == (["attempt_began", "attempt_over"] if reading else ["started"])
    assert not entered


def test_attempt_whose_release_is_refused_is_over(make_service, store, clock, recorder):
    """If another process has recovered the work, the attempt is observed as superseded."""
    executor = Held(busy=True)
    service = make_service(store, executor, observers=[recorder])
    other = make_service(store, Held(busy=True))
    for one in (service, other):
        method = work(one)
    method.start(WorkRequest())
    executor.busy = False
    service.run_maintenance()

    def lose(*_: object) -> None:
        clock.advance(20)
        recovered(other, clock)
        executor.task.request_release()

    once(service.types, "unpack_request", lose, after=True)
    executor.task.run()
    assert recorder.only(AttemptOver).outcome == "superseded"


@pytest.mark.parametrize(("at_most_once", "decision"), [(True, "failed"), (False, "retried")])
def test_lost_work_is_observed(make_service, recorder, clock, tmp_path, at_most_once, decision):
    """The recovering process observes the loss. The old process observes its own late writes."""
    path, late, step = tmp_path / "operations.db", Recorder(), Step()
    dead = make_service(SQLiteStore(path, clock=clock), observers=[late])
    name = work(dead, step, at_most_once=at_most_once).start(WorkRequest()).name
    step.reached()
    other = make_service(SQLiteStore(path, clock=clock), InlineExecutor(), observers=[recorder])
    work(other, at_most_once=at_most_once)
    clock.advance(20)
    recovered(other, clock)
    step.go.set()
    dead.close()
    assert recorder.only(WorkLost) == WorkLost(
        name=name, method=METHOD, attempt=1, decision=decision, lost_attempts=1
    )
    if at_most_once:
        assert recorder.only(OperationEnded).error_type == "ABORTED"
    else:  # a second attempt has no queue time
        began = recorder.only(AttemptBegan)
        assert (began.attempt, began.queue_seconds) == (2, None)
    assert late.only(WriteRefused) == WriteRefused(name=name, method=METHOD, attempt=1)
    assert late.only(AttemptOver).outcome == "superseded"
    found = totals(other)
    assert (found[f"lost.{decision}"], found["refused_writes"], found["queue.0"]) == (1, 1, 1)
    assert found["attempt.superseded.7"] == 1


@pytest.mark.parametrize("verbs", [["cancel"], ["cancel", "delete"]])
def test_lost_work_that_does_not_wait_again_is_observed_as_failed(
    make_service, recorder, clock, tmp_path, verbs
):
    """If lost work was cancelled or deleted by a caller, its loss is observed as a failure."""
    path, step = tmp_path / "operations.db", Step()
    dead = make_service(SQLiteStore(path, clock=clock))
    name = work(dead, step).start(WorkRequest()).name
    step.reached()
    other = make_service(SQLiteStore(path, clock=clock), InlineExecutor(), observers=[recorder])
    work(other)
    for verb in verbs:
        getattr(other, verb)(name)
    clock.advance(20)
    recovered(other, clock)
    step.go.set()
    dead.close()
    assert recorder.only(WorkLost).decision == "failed"
    assert totals(other)["lost.failed"] == 1


def test_renewals_and_expiry_are_observed(observed, recorder, clock, step):
    """A renewal event has the lease's remaining seconds. An expiry event has counts by method."""
    service = observed(lease=timedelta(seconds=15), keep_for=timedelta(days=1))
    name = work(service, step).start(WorkRequest()).name
    step.reached()
    service.run_maintenance()
    clock.advance(6)
    service.run_maintenance()
    step.go.set()
    ended(service, name)
    renewed = [event for event in recorder.events if isinstance(event, LeaseRenewed)]
    assert renewed == [
        LeaseRenewed(count=1, margin_seconds=15.0),
        LeaseRenewed(count=1, margin_seconds=9.0),
    ]
    until(lambda: not service.edges.work.held())  # the worker clears its entry after the end
    clock.advance(days=2)
    service.run_maintenance()
    assert recorder.only(OperationsExpired).methods == {METHOD: 1}
    assert totals(service)["expired"] == 1  # leases belong to no method
    assert totals(service, "") == {
        "lease_margin.6": 1,
        "lease_margin.7": 1,
        "lease_margin.sum": 24.0,
    }


@pytest.mark.parametrize("finder", ["maintenance", "claim"])
def test_end_of_expired_work_is_flagged(observed, recorder, clock, finder):
    """The end of expired work is flagged, whether maintenance or a late claim ends the work."""
    service = observed(InlineExecutor())
    method = work(service, expires=timedelta(minutes=1), concurrency=1)  # the limit makes it wait
    name = method.start(WorkRequest()).name
    clock.advance(60)
    if finder == "claim":
        service.edges.work.run_operation(name)
    else:
        service.run_maintenance()
    assert service.get(name).error.code == Code.DEADLINE_EXCEEDED
    assert recorder.only(OperationEnded).expired
    other = work(service, raising(StatusError(Code.DEADLINE_EXCEEDED, "no")), "acme.v1.Works.Other")
    ended_in_time(service, clock, other.start(WorkRequest()).name)
    assert [e.expired for e in recorder.events if isinstance(e, OperationEnded)] == [True, False]
    assert totals(service)["expiries"] == 1
    assert "expiries" not in totals(service, "acme.v1.Works.Other")


def test_work_that_is_done_outside_is_observed(observed, recorder):
    """The process that calls a reporter observes the reports and the end."""
    service = observed()
    method = service.declare(
        METHOD, request=WorkRequest, response=WorkResponse, metadata=WorkMetadata
    )
    reporter = service.reporter(method.start(WorkRequest()).name)
    assert reporter.report(WorkMetadata(1))
    assert reporter.complete(WorkResponse())
    assert not reporter.report(WorkMetadata(2))
    assert recorder.kinds() == ["started", "reported", "ended"]


def test_starts_within_transactions_are_observed(make_service, recorder, tmp_path, clock):
    """A start in a transaction is observed after its statement: no database reports a commit."""
    path = tmp_path / "operations.db"
    service = make_service(SQLiteStore(path, clock=clock), observers=[recorder])
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        work(service).start(WorkRequest(), within=connection)
        connection.execute("ROLLBACK")
    assert recorder.kinds() == ["started"]


# -- the log --------------------------------------------------------------------------------------


def test_other_events_are_logged_at_info(make_service, store, clock, caplog, step):
    """Repeated starts, cancels, releases, new attempts and expiries are logged at INFO."""
    service = make_service(store, ThreadExecutor(1), keep_for=timedelta(seconds=1))
    method = work(service, step)
    with caplog.at_level(logging.INFO, "lro"):
        name = method.start(WorkRequest(), request_id=ID).name
        step.reached()
        method.start(WorkRequest(), request_id=ID)
        waiting = method.start(WorkRequest()).name
        service.cancel(waiting, caller="bob")
        service.edges.work.stop(timedelta(0))
        other = make_service(store, InlineExecutor(), keep_for=timedelta(seconds=1))
        again = work(other)
        recovered(other, clock)
        step.go.set()
        with pytest.raises(LroError):
            again.start(WorkRequest(), target=5)
        clock.advance(100)
        other.run_maintenance()
    lines = caplog.text
    for line in (
        f"{name}: started before, and repeated by {METHOD}",
        f"{waiting}: asked to stop by bob",
        f"{waiting}: CANCELLED after",
        f"{name}: released after",
        f"{name}: attempt 2 began",
        f"a start of {METHOD} was refused: INVALID_ARGUMENT",
        "removed 2 expired operations",
    ):
        assert line in lines


def in_colour(service, executor, body, **options):
    """Register a method that calls `body`. On an asyncio executor, the method is async."""

    async def coroutine(request: WorkRequest, job: Job[WorkMetadata]) -> WorkResponse:
        await asyncio.sleep(0)
        body()
        return WorkResponse()

    if executor is AsyncioExecutor:
        return service.method(METHOD, **options)(coroutine)
    return work(service, lambda *_: body(), **options)


EACH_EXECUTOR = pytest.mark.parametrize(
    "executor", [InlineExecutor, ThreadExecutor, AsyncioExecutor]
)


@EACH_EXECUTOR
def test_records_within_a_function_get_the_facts_of_its_operation(make_service, store, executor):
    """Only log records of a function's own thread or task get the facts of the operation."""
    service = make_service(store, executor())
    inside, outside = logging.makeLogRecord({}), logging.makeLogRecord({})
    about_another = logging.makeLogRecord({"lro.operation": "operations/other"})

    def body():
        OperationFilter().filter(inside)
        OperationFilter().filter(about_another)

    name = in_colour(service, executor, body).start(WorkRequest()).name
    ended(service, name)
    facts = {key: value for key, value in inside.__dict__.items() if key.startswith("lro.")}
    assert facts == {"lro.operation": name, "lro.method": METHOD, "lro.attempt": 1}
    assert about_another.__dict__["lro.operation"] == "operations/other"
    assert operation_facts() == {}
    assert OperationFilter().filter(outside)
    assert not [key for key in outside.__dict__ if key.startswith("lro.")]


# -- the around hook -------------------------------------------------------------------------------


@EACH_EXECUTOR
@pytest.mark.parametrize("attempts", [1, 2])
def test_around_hook_wraps_each_attempt(make_service, clock, executor, attempts):
    """Each attempt enters ``around`` with its job, in the thread or task of the function."""
    calls = []

    @contextlib.contextmanager
    def around(job):
        calls.append(f"enter {job.method} {job.attempt}")
        try:
            yield
        finally:
            calls.append("leave")

    def body():
        calls.append("call")
        if calls.count("call") < attempts:
            raise ValueError

    service = make_service(None, executor(), around=around)
    options = {"retry": Retry(on=ValueError)} if attempts == 2 else {}
    method = in_colour(service, executor, body, **options)
    found = ended_in_time(service, clock, method.start(WorkRequest()).name)
    assert found.response is not None
    each = [[f"enter {METHOD} {number + 1}", "call", "leave"] for number in range(attempts)]
    assert calls == [one for calls_of in each for one in calls_of]


@EACH_EXECUTOR
def test_error_swallowed_by_the_around_hook_fails_the_operation(make_service, executor, caplog):
    service = make_service(None, executor(), around=lambda _: contextlib.suppress(ValueError))
    method = in_colour(service, executor, lambda: int("x"))
    assert ended(service, method.start(WorkRequest()).name).error.code == Code.INTERNAL
    assert "SwallowedError" in caplog.text


def test_around_must_be_importable_for_child_processes(tmp_path):
    """A nested function as ``around``, which a child process could not import, is refused."""
    store = SQLiteStore(tmp_path / "operations.db")
    with (
        Service(store, ProcessExecutor(1), around=lambda _: contextlib.nullcontext()) as service,
        pytest.raises(DeclarationError, match="no other process can import"),
    ):
        service.method(METHOD)(process_methods.known)


@pytest.mark.parametrize("kind", ["started", "attempt_began", "attempt_over", "ended"])
@pytest.mark.parametrize("error", [ValueError(), SystemExit(3), asyncio.CancelledError()])
def test_failing_observer_is_logged_and_the_work_continues(
    make_service, recorder, kind, error, caplog
):
    """If an observer raises, the error is logged, and the work still runs to its end."""
    broken = Observer()
    setattr(broken, kind, raising(error))
    service = make_service(None, ThreadExecutor(1), observers=[broken, recorder])
    assert work(service).start(WorkRequest("done")).result(10) == WorkResponse("done")
    service.close()
    assert recorder.kinds() == ["started", "attempt_began", "attempt_over", "ended"]
    assert f"an observer has failed at '{kind}'" in caplog.text


def test_attempt_that_is_released_while_it_begins_is_over(observed, recorder):
    """If work is released just before its begin is reported, begin and release are reported."""
    executor, begins = Held(), []

    def seconds() -> float:
        if begins:
            run(begins.pop().release())
        return 0.0

    service = observed(executor, clock=seconds)
    work(service).start(WorkRequest())
    begins.append(executor.task)
    executor.task.run()
    assert recorder.kinds() == ["started", "attempt_began", "attempt_over"]
    assert recorder.only(AttemptOver).outcome == "released"


def test_callers_who_cancel_at_once_are_one_request(observed, recorder, store):
    """If two callers cancel after they have read the same record, only one request is observed."""
    service = observed(ThreadExecutor(1))
    go = threading.Event()
    name = work(service, lambda *_: go.wait(PATIENCE)).start(WorkRequest()).name
    seen = store.get(name)
    for caller in ("ann", "bob"):
        run(service.edges.work.cancel(seen, caller))
    go.set()
    assert recorder.only(CancelRequested).caller == "ann"


def test_interrupt_within_an_observer_is_passed_on(make_service):
    """A KeyboardInterrupt in an observer is passed on, as it is meant for the main thread."""
    observer = Observer()
    observer.started = raising(KeyboardInterrupt())
    service = make_service(None, InlineExecutor(), observers=[observer])
    with pytest.raises(KeyboardInterrupt):
        work(service).start(WorkRequest())


def test_name_of_a_caller_forges_no_line(make_service, caplog):
    """A caller's name is shortened in the log, with its line breaks and direction marks escaped."""
    caplog.set_level(logging.INFO, "lro")
    service = make_service(None, ThreadExecutor(1))
    go = threading.Event()
    start = work(service, lambda *_: go.wait(PATIENCE)).start
    name = start(WorkRequest(), parent="p/a\x85INFO forged\u2028\u202e").name
    service.cancel(name, caller="ann\nINFO forged\u2028\u202e" + "x" * 1000)
    go.set()
    (line,) = [one for one in caplog.messages if "asked to stop" in one]
    name = name.replace("\x85", r"\x85").replace("\u2028\u202e", r"\u2028\u202e")
    assert line.startswith(f"{name}: asked to stop by 'ann\\nINFO forged\\u2028\\u202exxx")
    assert len(line) < 350


# -- statistics -----------------------------------------------------------------------------------


def test_successes_are_counted_with_their_times(make_service, store, clock):
    """Durations are counted in numbered buckets, and summed up in seconds."""
    service = make_service(store, InlineExecutor())

    def body(request: WorkRequest, _: object) -> None:
        clock.advance(float(request.text))

    method = work(service, body)
    for seconds in ("0", "0.5", "0.6", "100000"):
        method.start(WorkRequest(seconds))
    assert totals(service) == {
        "starts.started": 4,
        "queue.0": 4,
        "queue.sum": 0,
        "attempt.succeeded.0": 1,
        "attempt.succeeded.3": 1,
        "attempt.succeeded.4": 1,
        "attempt.succeeded.16": 1,
        "attempt.succeeded.sum": 100001.1,
        "operation.succeeded.0": 1,
        "operation.succeeded.3": 1,
        "operation.succeeded.4": 1,
        "operation.succeeded.16": 1,
        "operation.succeeded.sum": 100001.1,
        "ends.succeeded": 4,
    }


def test_success_after_a_cancel_request_counts_as_success(make_service, store, step):
    service = make_service(store)
    name = work(service, step).start(WorkRequest()).name
    step.reached()
    service.cancel(name)
    step.go.set()
    ended(service, name)
    service.edges.work.stop(timedelta(seconds=9))
    assert not [one for one in totals(service) if one.startswith("cancel")]


def test_counts_are_given_every_15_seconds(make_service, store, clock):
    """Every 15 seconds, maintenance adds the new counts, if any, to the store's current minute."""
    assert keeps_statistics(store)
    service = make_service(store, InlineExecutor(), lease=timedelta(hours=1))
    method = work(service)
    service.run_maintenance()
    method.start(WorkRequest())
    clock.advance(FLUSH_SECONDS - 1)
    service.run_maintenance()
    assert counted(store) == {}
    clock.advance(1)
    service.run_maintenance()
    (found,) = store.read_counts(START)
    assert (found.minute, found.counts["starts.started"]) == (START, 1)
    clock.advance(60)
    service.run_maintenance()
    assert store.read_counts(START) == [found]


def test_counts_are_kept_during_an_outage_of_the_store(make_service, clock, caplog):
    """During an outage of the store, counts are kept. The outage is logged once."""
    store, away = MemoryStore(clock), raising(Unavailable("it is away"))
    service = make_service(store, InlineExecutor())
    method = work(service)
    assert service.statistics is not None
    for there in (True, False, False, False):
        if not there:
            once(store, "add_counts", away)
        method.start(WorkRequest())
        service.statistics.flush()
    method.start(WorkRequest())
    assert totals(service)["ends.succeeded"] == 5
    logged = [record.getMessage() for record in caplog.records]
    assert logged == ["what was counted is kept until it can be stored: it is away"]
    once(store, "add_counts", away)
    method.start(WorkRequest())
    service.close()
    assert "what was counted last cannot be stored, and is lost" in caplog.text


def test_service_may_keep_no_statistics(make_service, clock):
    """A service has no statistics if they are off or its store cannot keep them."""

    class Plain(MemoryStore):
        add_counts = property()

    for service in (make_service(statistics=False), make_service(Plain(clock))):
        assert service.statistics is None
        service.run_maintenance()


def test_concurrent_counts_are_not_lost(monkeypatch):
    """No count is lost while another thread flushes or when many values come at once."""
    monkeypatch.setattr(module, "_MOST_VALUES", 7)
    store, over = MemoryStore(), threading.Event()
    statistics = Statistics(store, lambda: 0.0)

    def flush() -> None:
        while not over.is_set():
            statistics.flush()

    flushing = threading.Thread(target=flush)
    flushing.start()

    def note(number: int) -> None:
        for place in range(160):
            seconds = BUCKETS[place % len(BUCKETS)]
            statistics.record(QUEUE_DURATION, seconds, f"M{number % 2}")
            statistics.record(LOST_ATTEMPTS, 2, "", "retried")

    assert together(4, note) == [None] * 4
    over.set()
    flushing.join()
    statistics.flush()
    found = counted(store)
    assert found[""] == {"lost.retried": 1280}
    for method in ("M0", "M1"):
        assert [found[method][f"queue.{n}"] for n in range(len(BUCKETS))] == [20] * len(BUCKETS)
        assert found[method]["queue.sum"] == pytest.approx(20 * sum(BUCKETS))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_fork_counts_only_its_own(make_service, clock, tmp_path):
    """A forked child does not store the counts that its parent had not flushed."""
    path = tmp_path / "operations.db"
    service = make_service(SQLiteStore(path, clock=clock), InlineExecutor())
    method = work(service)
    method.start(WorkRequest())
    child = os.fork()
    if child == 0:
        try:
            method.start(WorkRequest())
            service.close(0)
        finally:
            os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    store = service.store
    assert keeps_statistics(store)
    assert counted(store)[METHOD]["ends.succeeded"] == 1
    assert totals(service)["ends.succeeded"] == 2


@pytest.mark.parametrize("seconds", [-3.0, float("nan"), float("inf"), float("-inf")])
def test_negative_duration_counts_as_zero(seconds):
    """If a clock was set back or returned nonsense, a duration is zero, so that no sum falls."""
    store = MemoryStore()
    statistics = Statistics(store, lambda: 0.0)
    for each in (2.0, seconds):
        statistics.record(QUEUE_DURATION, each, "M")
    assert statistics.flush()
    assert counted(store)["M"] == {"queue.0": 1, "queue.5": 1, "queue.sum": 2}


def test_store_refuses_counts_that_it_could_not_read(tmp_path):
    store = SQLiteStore(tmp_path / "operations.db")
    with pytest.raises(ValueError, match="JSON compliant"):
        store.add_counts(START, {"M": {"queue.sum": float("nan")}})
    assert counted(store) == {}
    store.close()
