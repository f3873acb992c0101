"""Observers of a service: what happens to operations in this process, event by event."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from lro import Cancelled, Code, Job, Service, State, StatusError, WorkerLost
from lro._engine.flow import run
from lro.adapters import (
    AttemptBegan,
    AttemptOver,
    CancelRequested,
    CancelSupport,
    LeasesRenewed,
    MetadataReported,
    Observer,
    OperationEnded,
    OperationsExpired,
    OperationStarted,
    ServiceEvent,
    Store,
    WorkLost,
    WriteRefused,
)
from lro.errors import DeclarationError, LroError, RequestIdConflict
from lro.executors.asyncio import AsyncioExecutor
from lro.executors.inline import InlineExecutor
from lro.executors.processes import ProcessExecutor
from lro.executors.threads import ThreadExecutor
from lro.logging import OperationFilter, operation_facts
from lro.stores.sqlite import SQLiteStore
from lro.testing import ManualClock
from tests.engine.engine_parts import totals
from tests.executors import process_methods
from tests.service_fixtures import MakeService
from tests.service_steps import WORK, Step, ended, recovered, work
from tests.waiting import PATIENCE
from tests.work_messages import WorkMetadata, WorkRequest, WorkResponse

METHOD = WORK


class Recorder(Observer):
    """Keeps all events in order."""

    def __init__(self) -> None:
        self.events: list[ServiceEvent] = []
        self.started = self.attempt_began = self.reported = self.attempt_over = self.events.append
        self.ended = self.cancel_requested = self.lost = self.write_refused = self.events.append
        self.renewed = self.expired = self.events.append

    def kinds(self) -> list[str]:
        """The names of the events in order."""
        return [event.kind for event in self.events]

    def only(self, cls: type) -> Any:
        """The one event of a class."""
        (found,) = [event for event in self.events if isinstance(event, cls)]
        return found


@pytest.fixture
def recorder() -> Recorder:
    """An observer that keeps all."""
    return Recorder()


@pytest.fixture
def observed(make_service: MakeService, store: Store, recorder: Recorder) -> MakeService:
    """Makes services over the store that the recorder observes."""

    def make(executor: Any = None, **options: Any) -> Service:
        return make_service(store, executor, observers=[recorder], **options)

    return make


def test_life_of_an_operation_is_observed_in_order(
    observed: MakeService, recorder: Recorder, clock: ManualClock
) -> None:
    """Started, claimed, reported, over, ended, with names, times and the caller."""
    service = observed(InlineExecutor())

    def body(_: WorkRequest, job: Job[WorkMetadata]) -> None:
        job.report(WorkMetadata(50))
        clock.advance(2)

    name = work(service, body).start(WorkRequest(), caller="ann").name
    known = {"name": name, "method": METHOD}
    assert recorder.events == [
        OperationStarted(outcome="started", caller="ann", **known),
        AttemptBegan(attempt=1, queue_seconds=0.0, **known),
        MetadataReported(attempt=1, **known),
        AttemptOver(attempt=1, outcome="succeeded", seconds=2.0, **known),
        OperationEnded(attempt=1, state=State.SUCCEEDED, seconds=2.0, **known),
    ]


def test_repeated_and_refused_starts_are_observed(
    observed: MakeService, recorder: Recorder
) -> None:
    """A repeat names the first operation; a refusal has the code, and no name."""
    service = observed(InlineExecutor())
    method = work(service)
    one = "6a3a2b41-33c4-4ac8-9d0e-9b2f7a0e4d11"
    first = method.start(WorkRequest("a"), request_id=one)
    recorder.events.clear()
    assert method.start(WorkRequest("a"), request_id=one).name == first.name
    with pytest.raises(RequestIdConflict):
        method.start(WorkRequest("b"), request_id=one)
    with pytest.raises(LroError):
        method.start(WorkRequest("c"), target=5)
    with pytest.raises(LroError):  # a check starts nothing
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
    """An error of an application whose code cannot be read."""

    raised: type[BaseException] = ValueError

    @property
    def status_code(self) -> int:
        raise self.raised


@pytest.mark.parametrize("raised", [ValueError, SystemExit, KeyboardInterrupt])
def test_refusal_that_cannot_say_its_code_is_observed_as_internal(
    make_service: MakeService, recorder: Recorder, raised: type[BaseException]
) -> None:
    """Ctrl-C while it is asked passes."""
    error = Speechless()
    error.raised = raised

    def validate(_: WorkRequest) -> None:
        raise error

    service = make_service(None, InlineExecutor(), observers=[recorder])
    ctrl_c = raised is KeyboardInterrupt
    with pytest.raises(KeyboardInterrupt if ctrl_c else Speechless):
        work(service, validate=validate).start(WorkRequest())
    if not ctrl_c:
        assert recorder.only(OperationStarted).error_type == "INTERNAL"


@pytest.mark.parametrize(
    ("error", "state", "code"),
    [
        (StatusError(Code.NOT_FOUND, "no such picture"), State.FAILED, "NOT_FOUND"),
        (ValueError("secret"), State.FAILED, "INTERNAL"),
        (Cancelled(), State.CANCELLED, "CANCELLED"),
    ],
)
def test_failures_are_observed_by_code(
    make_service: MakeService,
    recorder: Recorder,
    error: Exception,
    state: State,
    code: str,
) -> None:
    """The name of the code, and no word of the message."""
    service = make_service(None, InlineExecutor(), observers=[recorder])

    def body(*_: object) -> None:
        raise error

    work(service, body).start(WorkRequest())
    over, end = recorder.events[-2:]
    assert isinstance(over, AttemptOver)
    assert isinstance(end, OperationEnded)
    assert (over.outcome, over.error_type) == (state.name.lower(), code)
    assert (end.state, end.error_type) == (state, code)
    assert "secret" not in repr(recorder.events)
    what = f"failed.{code}" if state is State.FAILED else "cancelled"  # which has no code
    counted = {"starts.started", f"ends.{what}", "queue.0", "queue.sum"}
    counted |= {f"{kind}.{what}.{n}" for kind in ("attempt", "operation") for n in ("0", "sum")}
    assert set(totals(service)) == counted


def test_result_that_cannot_be_encoded_is_observed_as_failure(
    observed: MakeService, recorder: Recorder
) -> None:
    """What is stored counts, not what the function gave."""
    service = observed(InlineExecutor())

    def final(*_: object) -> WorkMetadata:
        raise ValueError("no")

    def body(_: WorkRequest, job: Job[WorkMetadata]) -> None:
        job.report(WorkMetadata(1))

    work(service, body, final_metadata=final).start(WorkRequest())
    over = recorder.only(AttemptOver)
    assert (over.outcome, over.error_type) == ("failed", "INTERNAL")
    assert recorder.only(OperationEnded).error_type == "INTERNAL"


@pytest.mark.parametrize(
    ("support", "reach"),
    [
        (CancelSupport.NOT, "cooperative"),
        (CancelSupport.COOPERATIVE, "cooperative"),
        (CancelSupport.AT_AWAIT, "at_await"),
        (CancelSupport.FORCED, "forced"),
    ],
)
def test_cancellation_is_observed_with_its_time(
    observed: MakeService, recorder: Recorder, clock: ManualClock, support: Any, reach: str
) -> None:
    """Asked once, however often it is asked; how long the work took to stop.

    It is counted by the reach of the executor; what no worker has begun is withdrawn.
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
    assert service.describe(name).cancel_time == clock()
    asked = CancelRequested(name=name, method=METHOD, caller="bob")
    assert recorder.only(CancelRequested) == asked
    service.cancel(method.start(WorkRequest()).name)
    step.go.set()
    ended(service, name)
    service.workers.stop(timedelta(seconds=PATIENCE))
    ends = [event for event in recorder.events if isinstance(event, OperationEnded)]
    assert [(end.state, end.cancel_seconds) for end in ends] == [
        (State.CANCELLED, 0.0),
        (State.CANCELLED, 3.0),
    ]
    found = totals(service)
    assert (found[f"cancel.{reach}.5"], found[f"cancel.{reach}.sum"]) == (1, 3.0)
    assert (found["cancel.withdrawn.0"], found["ends.cancelled"]) == (1, 2)


@pytest.fixture
def unheld(make_service: MakeService, store: Store) -> Iterator[str]:
    """The name of an operation that waited in a process which has stopped."""
    first, step = make_service(store, ThreadExecutor(1)), Step()
    method = work(first, step)
    method.start(WorkRequest())
    step.reached()
    name: str = method.start(WorkRequest()).name
    first.workers.stop(timedelta(0))
    yield name
    step.go.set()


def test_work_that_no_process_has_is_observed_when_it_is_cancelled(
    observed: MakeService, recorder: Recorder, clock: ManualClock, unheld: str
) -> None:
    """The one that cancels it ends it."""
    second = observed(ThreadExecutor(1))
    work(second)
    clock.advance(1)
    second.cancel(unheld)
    assert recorder.kinds() == ["cancel_requested", "ended"]
    assert recorder.only(OperationEnded).cancel_seconds == 0.0


def test_end_of_a_deleted_operation_is_observed(
    observed: MakeService, recorder: Recorder, clock: ManualClock
) -> None:
    """So that what was started is counted as ended, although callers do not see it."""
    service = observed()
    step = Step()
    name = work(service, step).start(WorkRequest()).name
    step.reached()
    service.delete(name)
    clock.advance(4)
    step.go.set()
    service.close()
    end = recorder.only(OperationEnded)
    assert (end.state, end.seconds, end.error_type) == (State.SUCCEEDED, 4.0, "")


@pytest.mark.parametrize(
    ("policy", "decision"), [(WorkerLost.FAIL, "failed"), (WorkerLost.RETRY, "retried")]
)
def test_lost_work_is_observed(
    make_service: MakeService,
    recorder: Recorder,
    clock: ManualClock,
    tmp_path: Path,
    policy: WorkerLost,
    decision: str,
) -> None:
    """By the process that finds it, with its decision; late writes by the one that lost it."""
    path, late, step = tmp_path / "operations.db", Recorder(), Step()
    dead = make_service(SQLiteStore(path, clock=clock), observers=[late])
    name = work(dead, step, worker_lost=policy).start(WorkRequest()).name
    step.reached()
    other = make_service(SQLiteStore(path, clock=clock), InlineExecutor(), observers=[recorder])
    work(other, worker_lost=policy)
    clock.advance(20)
    recovered(other, clock)
    step.go.set()
    dead.close()
    assert recorder.only(WorkLost) == WorkLost(
        name=name, method=METHOD, attempt=1, decision=decision, lost_attempts=1
    )
    if policy is WorkerLost.FAIL:
        assert recorder.only(OperationEnded).error_type == "ABORTED"
    else:  # the second attempt has waited for no first claim
        began = recorder.only(AttemptBegan)
        assert (began.attempt, began.queue_seconds) == (2, None)
    assert late.only(WriteRefused) == WriteRefused(name=name, method=METHOD, attempt=1)
    assert late.only(AttemptOver).outcome == "superseded"
    found = totals(other)
    assert (found[f"lost.{decision}"], found["refused_writes"], found["queue.0"]) == (1, 1, 1)
    assert found["attempt.superseded.7"] == 1


def test_handed_back_work_is_observed_as_released(
    observed: MakeService, recorder: Recorder
) -> None:
    """By the close of the service, once."""
    service = observed()
    begun = threading.Event()

    def body(_: WorkRequest, job: Job[WorkMetadata]) -> None:
        begun.set()
        job.sleep(PATIENCE)

    work(service, body).start(WorkRequest())
    assert begun.wait(PATIENCE)
    service.close(0)
    assert recorder.only(AttemptOver).outcome == "released"
    assert "ended" not in recorder.kinds()


def test_renewals_and_expiry_are_observed(
    observed: MakeService, recorder: Recorder, clock: ManualClock
) -> None:
    """The first renewal of new work finds all of its lease; a late one has less left."""
    service = observed(lease=timedelta(seconds=15), keep_for=timedelta(days=1))
    step = Step()
    name = work(service, step).start(WorkRequest()).name
    step.reached()
    service.run_maintenance()
    clock.advance(6)
    service.run_maintenance()
    step.go.set()
    ended(service, name)
    renewed = [event for event in recorder.events if isinstance(event, LeasesRenewed)]
    assert renewed == [
        LeasesRenewed(count=1, margin_seconds=15.0),
        LeasesRenewed(count=1, margin_seconds=9.0),
    ]
    clock.advance(days=2)
    service.run_maintenance()
    assert recorder.only(OperationsExpired).methods == {METHOD: 1}
    assert totals(service)["expired"] == 1  # and leases are of no method
    assert totals(service, "") == {
        "lease_margin.6": 1,
        "lease_margin.7": 1,
        "lease_margin.sum": 24.0,
    }


def test_work_that_is_done_outside_is_observed(observed: MakeService, recorder: Recorder) -> None:
    """Its reports and its end, by the process that reports them."""
    service = observed()
    method = service.declare(
        METHOD, request=WorkRequest, response=WorkResponse, metadata=WorkMetadata
    )
    reporter = service.reporter(method.start(WorkRequest()).name)
    assert reporter.report(WorkMetadata(1))
    assert reporter.complete(WorkResponse())
    assert not reporter.report(WorkMetadata(2))
    assert recorder.kinds() == ["started", "reported", "ended"]


def test_starts_within_transactions_are_observed(
    make_service: MakeService, recorder: Recorder, tmp_path: Path, clock: ManualClock
) -> None:
    """When the statement has worked: no database says when the transaction commits."""
    import sqlite3

    path = tmp_path / "operations.db"
    service = make_service(SQLiteStore(path, clock=clock), observers=[recorder])
    method = work(service)
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("BEGIN IMMEDIATE")
    method.start(WorkRequest(), within=connection)
    connection.execute("ROLLBACK")
    connection.close()
    assert recorder.kinds() == ["started"]


# -- the log --------------------------------------------------------------------------------------


def test_life_of_an_operation_is_logged_at_info(
    make_service: MakeService, caplog: pytest.LogCaptureFixture
) -> None:
    """The name comes first; what is known is also there as attributes; no message is."""
    service = make_service(None, InlineExecutor())

    def body(_: WorkRequest, job: Job[WorkMetadata]) -> None:
        job.report(WorkMetadata(1))
        raise StatusError(Code.NOT_FOUND, "the secret picture")

    with caplog.at_level(logging.INFO, "lro"):
        name = work(service, body).start(WorkRequest("payload"), caller="ann").name
        with pytest.raises(LroError):
            service.start(METHOD, WorkRequest(), target=5)
    assert [record.getMessage() for record in caplog.records] == [
        f"{name}: started by {METHOD}",
        f"{name}: began after 0.000 s",
        f"{name}: FAILED with NOT_FOUND after 0.000 s",
        f"a start of {METHOD} was refused: INVALID_ARGUMENT",
    ]
    facts = {"lro.operation": name, "lro.method": METHOD}
    assert facts.items() <= caplog.records[0].__dict__.items()
    assert {**facts, "lro.attempt": 1}.items() <= caplog.records[2].__dict__.items()


def test_other_events_are_logged_at_info(
    make_service: MakeService,
    store: Store,
    clock: ManualClock,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A repeat, a request to cancel, work handed back and begun again, an expiry."""
    service = make_service(store, ThreadExecutor(1), keep_for=timedelta(seconds=1))
    step = Step()
    method = work(service, step)
    one = "6a3a2b41-33c4-4ac8-9d0e-9b2f7a0e4d11"
    with caplog.at_level(logging.INFO, "lro"):
        name = method.start(WorkRequest(), request_id=one).name
        step.reached()
        method.start(WorkRequest(), request_id=one)
        service.cancel(name, caller="bob")
        closing = threading.Thread(target=service.workers.stop, args=(timedelta(0),))
        closing.start()
        closing.join()
        other = make_service(store, InlineExecutor(), keep_for=timedelta(seconds=1))
        work(other)
        recovered(other, clock)
        step.go.set()
        clock.advance(100)
        other.run_maintenance()
    lines = caplog.text
    for line in (
        f"{name}: started before, and repeated by {METHOD}",
        f"{name}: asked to stop by bob",
        f"{name}: handed back after",
        f"{name}: attempt 2 began",
        f"{name}: CANCELLED after",
        "removed 1 expired operations",
    ):
        assert line in lines


def facts_logged(executor: Any, store: Store, make_service: MakeService) -> dict[str, object]:
    """What the function of an operation knows by :func:`operation_facts`, as it logs it."""
    service = make_service(store, executor)
    record = logging.LogRecord("app", logging.INFO, "", 0, "within", (), None)
    about_another = logging.makeLogRecord({"lro.operation": "operations/other"})

    def body(*_: object) -> None:
        OperationFilter().filter(record)
        OperationFilter().filter(about_another)

    async def coroutine(request: WorkRequest, job: Job[WorkMetadata]) -> WorkResponse:
        await asyncio.sleep(0)
        body()
        return WorkResponse()

    if isinstance(executor, AsyncioExecutor):
        method: Any = service.method(METHOD)(coroutine)
    else:
        method = work(service, body)
    name = method.start(WorkRequest()).name
    ended(service, name)
    facts = {key: value for key, value in record.__dict__.items() if key.startswith("lro.")}
    assert facts.pop("lro.operation") == name
    assert about_another.__dict__["lro.operation"] == "operations/other"
    return facts


@pytest.mark.parametrize("executor", [InlineExecutor, ThreadExecutor, AsyncioExecutor])
def test_records_within_a_function_get_the_facts_of_its_operation(
    make_service: MakeService, store: Store, executor: Any
) -> None:
    """In threads and tasks alike; outside there is nothing to add."""
    assert facts_logged(executor(), store, make_service) == {
        "lro.method": METHOD,
        "lro.attempt": 1,
    }
    assert operation_facts() == {}
    record = logging.LogRecord("app", logging.INFO, "", 0, "outside", (), None)
    assert OperationFilter().filter(record)
    assert not [key for key in record.__dict__ if key.startswith("lro.")]


# -- around ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("executor", [InlineExecutor, ThreadExecutor, AsyncioExecutor])
@pytest.mark.parametrize("attempts", [1, 2])
def test_functions_are_called_within_what_is_around_them(
    make_service: MakeService, executor: Any, attempts: int
) -> None:
    """Once for all calls of an attempt, with the job, in the thread or task of the function."""
    calls: list[str] = []

    @contextlib.contextmanager
    def around(job: Job[Any]) -> Iterator[None]:
        calls.append(f"enter {job.method} {job.attempt}")
        try:
            yield
        except ValueError:
            calls.append("failed")
            raise
        finally:
            calls.append("leave")

    service = make_service(None, executor(), around=around)
    raised = []

    def body(*_: object) -> None:
        calls.append("call")
        if attempts == 2 and not raised:
            raised.append(1)
            raise ValueError

    async def coroutine(request: WorkRequest, job: Job[WorkMetadata]) -> WorkResponse:
        body()
        return WorkResponse()

    options: dict[str, Any] = {"attempts": attempts, "retry_on": (ValueError,)}
    if attempts == 1:
        options = {}
    if executor is AsyncioExecutor:
        method: Any = service.method(METHOD, **options)(coroutine)
    else:
        method = work(service, body, **options)
    assert ended(service, method.start(WorkRequest()).name).response is not None
    assert calls == [f"enter {METHOD} 1", *["call"] * attempts, "leave"]


@pytest.mark.parametrize("executor", [InlineExecutor, AsyncioExecutor])
def test_error_that_is_swallowed_around_a_function_fails_the_operation(
    make_service: MakeService, executor: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """There is no response that could be stored."""
    service = make_service(None, executor(), around=lambda _: contextlib.suppress(ValueError))

    def body(*_: object) -> None:
        raise ValueError

    async def coroutine(request: WorkRequest, job: Job[WorkMetadata]) -> WorkResponse:
        raise ValueError

    is_async = executor is AsyncioExecutor
    method: Any = service.method(METHOD)(coroutine) if is_async else work(service, body)
    error = ended(service, method.start(WorkRequest()).name).error
    assert error is not None
    assert error.code == Code.INTERNAL
    assert "SwallowedError" in caplog.text


def test_what_is_around_must_be_importable_for_children(tmp_path: Path) -> None:
    """A function within a function is not: that is said at the declaration."""
    store = SQLiteStore(tmp_path / "operations.db")
    with (
        Service(store, ProcessExecutor(1), around=lambda _: contextlib.nullcontext()) as service,
        pytest.raises(DeclarationError, match="no other process can import"),
    ):
        service.method(METHOD)(process_methods.known)


@pytest.mark.parametrize("kind", ["started", "attempt_began", "attempt_over", "ended"])
@pytest.mark.parametrize("error", [ValueError(), SystemExit(3), asyncio.CancelledError()])
def test_observer_that_fails_is_logged_and_ends_nothing(
    make_service: MakeService, recorder: Recorder, kind: str, error: BaseException, caplog: Any
) -> None:
    """The operation is not left as one that a worker has and none works on."""

    def fail(_: ServiceEvent) -> None:
        raise error

    broken = Observer()
    setattr(broken, kind, fail)
    service = make_service(None, ThreadExecutor(1), observers=[broken, recorder])
    assert work(service).start(WorkRequest("done")).result(10) == WorkResponse("done")
    service.close()
    assert recorder.kinds() == ["started", "attempt_began", "attempt_over", "ended"]
    assert f"an observer has failed at '{kind}'" in caplog.text


def test_callers_who_cancel_at_once_are_one_request(
    observed: MakeService, recorder: Recorder, store: Store
) -> None:
    """The second has read the record before the first has changed it."""
    service = observed(ThreadExecutor(1))
    go = threading.Event()
    name = work(service, lambda *_: go.wait(PATIENCE)).start(WorkRequest()).name
    seen = store.get(name)
    for caller in ("ann", "bob"):
        run(service.workers.cancel(seen, caller))
    go.set()
    assert recorder.only(CancelRequested).caller == "ann"


def test_interrupt_within_an_observer_is_passed_on(make_service: MakeService) -> None:
    """Ctrl-C is for the main thread, whatever it is doing."""

    class Interrupted(Observer):
        def started(self, event: OperationStarted) -> None:
            raise KeyboardInterrupt

    service = make_service(None, InlineExecutor(), observers=[Interrupted()])
    with pytest.raises(KeyboardInterrupt):
        work(service).start(WorkRequest())


def test_name_of_a_caller_forges_no_line(
    make_service: MakeService, caplog: pytest.LogCaptureFixture
) -> None:
    """It does not run on, and turns no text around."""
    caplog.set_level(logging.INFO, "lro")
    service = make_service(None, ThreadExecutor(1))
    go = threading.Event()
    name = work(service, lambda *_: go.wait(PATIENCE)).start(WorkRequest()).name
    service.cancel(name, caller="ann\nINFO forged\u2028\u202e" + "x" * 1000)
    go.set()
    (line,) = [one for one in caplog.messages if "asked to stop" in one]
    assert line.startswith(f"{name}: asked to stop by 'ann\\nINFO forged\\u2028\\u202exxx")
    assert len(line) < 300


def test_value_that_cannot_be_encoded_stays_out_of_the_log(
    make_service: MakeService, caplog: pytest.LogCaptureFixture
) -> None:
    """What it should have been is there."""
    service = make_service(None, InlineExecutor())

    @service.method(METHOD)
    def do(request: WorkRequest, job: Job[WorkMetadata]) -> WorkResponse:
        return WorkResponse(b"s3cret")  # type: ignore[arg-type]

    assert do.start(WorkRequest()).done
    assert "must be a string" in caplog.text
    assert "s3cret" not in "".join(f"{one.getMessage()}{one.exc_text}" for one in caplog.records)
