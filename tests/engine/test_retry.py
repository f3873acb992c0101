"""Retries of failed attempts (``retry``): the work waits in the store between attempts."""

from __future__ import annotations

import asyncio
import copy
import functools
import logging
import pickle
import random
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import lro
from lro import (
    Cancelled,
    Code,
    InvalidArgument,
    Job,
    LroError,
    Retry,
    RetryLater,
    Service,
    StatusError,
)
from lro.adapters import AttemptOver, Observer, Store
from lro.errors import DeclarationError, LeaseLost, Unavailable
from lro.executors.asyncio import AsyncioExecutor
from lro.executors.inline import InlineExecutor
from lro.executors.threads import ThreadExecutor
from lro.stores.sqlite import SQLiteStore
from lro.testing import ManualClock
from tests.engine.engine_parts import EACH_STORE, LEASE, Held
from tests.service_fixtures import MakeService
from tests.service_steps import WORK, ended_in_time, reason
from tests.waiting import until
from tests.work_messages import WorkMetadata, WorkRequest, WorkResponse

EACH_EXECUTOR = pytest.mark.parametrize(
    "executor", [InlineExecutor, ThreadExecutor, AsyncioExecutor]
)
AWAY = StatusError(Code.UNAVAILABLE, "the bank is away")
FULL = StatusError(Code.RESOURCE_EXHAUSTED, "no money is left")
BAD = Retry(attempts=2, on=(OSError, InvalidArgument))
PLAIN: dict[str, Any] = {"first_pause": timedelta(seconds=10), "jitter": 0.0}


class Outcomes(Observer):
    """An observer that records how attempts have ended."""

    def __init__(self) -> None:
        self.found: list[tuple[int, str, str]] = []

    def attempt_over(self, event: AttemptOver) -> None:
        self.found.append((event.attempt, event.outcome, event.error_type))


def raising(
    service: Service, *errors: BaseException, is_async: bool = False, **options: Any
) -> tuple[Any, list[int]]:
    """Register a method that raises one error per attempt. Return the method and its attempts."""
    attempts: list[int] = []

    def body(request: WorkRequest, job: Job[WorkMetadata]) -> WorkResponse:
        attempts.append(job.attempt)
        if job.attempt <= len(errors):
            raise errors[job.attempt - 1]
        return WorkResponse(request.text)

    async def coroutine(request: WorkRequest, job: Job[WorkMetadata]) -> WorkResponse:
        await asyncio.sleep(0)
        return body(request, job)

    return service.method(WORK, **options)(coroutine if is_async else body), attempts


def waits(service: Service, name: str) -> lro.OperationDescription:
    """Wait until an operation waits for a retry, and return its description."""
    return until(
        lambda: service.get(name, view="FULL").description, lambda found: found.due_time is not None
    )


@EACH_EXECUTOR
@EACH_STORE
def test_a_failed_attempt_waits_and_is_tried_again(
    make_service: MakeService, store: Store, clock: ManualClock, executor: Any
) -> None:
    """Between attempts no worker has the operation. Pauses grow, and each failure is recorded."""
    seen = Outcomes()
    service = make_service(store, executor(), observers=[seen])
    errors = ConnectionError("away"), ConnectionError("still away\0")
    is_async = executor is AsyncioExecutor
    retry = Retry(on=OSError, **PLAIN)
    method, attempts = raising(service, *errors, is_async=is_async, retry=retry)
    began = clock()
    name = method.start(WorkRequest("x")).name
    found = waits(service, name)
    assert (found.due_time, found.failed_attempts) == (began + timedelta(seconds=10), 1)
    assert (found.state, store.get(name).owner) == ("IN_PROGRESS", "")
    clock.advance(9.9)
    service.run_maintenance()
    assert attempts == [1]
    done = ended_in_time(service, clock, name)
    assert done.response is not None
    assert attempts == [1, 2, 3]
    first, second = store.get(name).failed_attempts
    assert (first.attempt, first.error, first.text) == (1, "ConnectionError", "away")
    assert (second.attempt, second.text) == (2, "still away\ufffd")
    assert second.time - began == timedelta(seconds=10)
    record = store.get(name)
    assert record.end_time is not None
    assert record.end_time - began == timedelta(seconds=30)
    until(lambda: len(seen.found) == 3)
    again = [(1, "retried", "INTERNAL"), (2, "retried", "INTERNAL"), (3, "succeeded", "")]
    assert seen.found == again


def test_the_log_has_one_traceback_for_each_failed_attempt(
    make_service: MakeService, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    """Each failed attempt is logged with one traceback. The last failure is logged at ERROR."""
    caplog.set_level(logging.INFO, "lro")
    service = make_service(executor=InlineExecutor())
    retry = Retry(attempts=3, on=OSError, **PLAIN)
    method, _ = raising(service, *[ConnectionError("away")] * 3, retry=retry)
    assert ended_in_time(service, clock, method.start(WorkRequest("x")).name).error
    lines = [line for line in caplog.records if line.module == "attempt"]
    assert [(line.levelname, line.exc_info is not None) for line in lines] == [
        ("WARNING", True),
        ("INFO", False),
        ("WARNING", True),
        ("INFO", False),
        ("WARNING", True),
        ("ERROR", False),
    ]


@pytest.mark.parametrize(
    ("errors", "options", "attempts", "code"),
    [
        ([OSError()] * 3, {"retry": Retry(attempts=2, on=OSError)}, 2, Code.INTERNAL),
        ([OSError()] * 3, {"retry": Retry(attempts=1)}, 1, Code.INTERNAL),
        ([OSError()] * 9, {"retry": Retry(attempts=2), "max_attempts": 2}, 2, Code.INTERNAL),
        ([ValueError()], {"retry": Retry(on=OSError)}, 1, Code.INTERNAL),
        ([InvalidArgument("text", "is bad")], {"retry": Retry()}, 1, Code.INVALID_ARGUMENT),
        ([InvalidArgument("text", "is bad")] * 9, {"retry": BAD}, 2, Code.INVALID_ARGUMENT),
        ([Unavailable()] * 9, {"retry": Retry(attempts=2)}, 2, Code.UNAVAILABLE),
        ([AWAY] * 9, {"retry": Retry(attempts=2)}, 2, Code.UNAVAILABLE),
        ([AWAY] * 9, {"retry": Retry(attempts=2, on=OSError)}, 1, Code.UNAVAILABLE),
        ([Unavailable()] * 9, {"retry": Retry(on=OSError)}, 1, Code.UNAVAILABLE),
        ([FULL] * 9, {"retry": Retry()}, 1, Code.RESOURCE_EXHAUSTED),
        ([Cancelled()], {"retry": Retry(on=LroError)}, 1, Code.CANCELLED),
        ([SystemExit()], {"retry": Retry()}, 1, Code.INTERNAL),
        ([OSError()], {}, 1, Code.INTERNAL),
        ([RetryLater(timedelta(0))], {"at_most_once": True}, 1, Code.UNAVAILABLE),
        ([RetryLater(timedelta(0))] * 9, {"max_attempts": 4}, 4, Code.UNAVAILABLE),
        ([RetryLater(timedelta(0))] * 9, {"retry": Retry(attempts=3)}, 3, Code.UNAVAILABLE),
        (
            [OSError()] * 9,
            {"retry": Retry(**PLAIN, within=timedelta(seconds=29))},
            2,
            Code.INTERNAL,
        ),
    ],
)
def test_last_or_unretryable_or_late_attempt_is_not_retried(
    make_service: MakeService,
    clock: ManualClock,
    errors: list[BaseException],
    options: dict[str, Any],
    attempts: int,
    code: Code,
) -> None:
    """An attempt is not retried if it is the last one, its error is not listed, or time is up."""
    service = make_service()
    method, made = raising(service, *errors, **options)
    done = ended_in_time(service, clock, method.start(WorkRequest()).name)
    assert reason(done)[0] == code
    assert made == [*range(1, attempts + 1)]
    last = service.store.get(done.name).failed_attempts
    assert len(last) == (0 if code == Code.CANCELLED else attempts)


@EACH_STORE
def test_time_for_retries_counts_from_the_first_attempt(
    make_service: MakeService, store: Store, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    """``within`` leaves out the delay before the first attempt. The log says when it is over."""
    service = make_service(store, InlineExecutor())
    retry = Retry(on=OSError, **PLAIN, within=timedelta(seconds=29))
    method, attempts = raising(service, *[OSError()] * 9, retry=retry)
    name = method.start(WorkRequest(), delay=timedelta(hours=1)).name
    clock.advance(3600)
    service.run_maintenance()
    assert waits(service, name).due_time == clock() + timedelta(seconds=10)
    clock.advance(10)
    service.run_maintenance()  # the next pause would end 30 s after the first attempt began
    assert service.get(name).error is not None
    assert attempts == [1, 2]
    assert "no further attempt is allowed: the next one would begin" in caplog.text
    assert "within=0:00:29" in caplog.text


def test_time_for_retries_goes_on_after_a_lost_worker(
    make_service: MakeService, clock: ManualClock
) -> None:
    """``within`` counts from the first attempt, even if its worker was lost."""
    retry = Retry(on=OSError, **PLAIN, within=timedelta(seconds=40))
    dead = make_service(executor=Held())
    name = raising(dead, retry=retry)[0].start(WorkRequest()).name
    began = clock()
    service = make_service(dead.store, InlineExecutor())
    _, attempts = raising(service, *[OSError()] * 9, retry=retry)
    clock.advance(LEASE.total_seconds() + 1)
    service.run_maintenance()
    clock.advance(2)
    service.run_maintenance()
    assert attempts == [2]
    assert waits(service, name).due_time == began + timedelta(seconds=28)
    clock.advance(10)
    service.run_maintenance()
    assert attempts == [2, 3]
    assert service.get(name).error is not None


def test_retry_later_sets_the_next_attempt(make_service: MakeService, clock: ManualClock) -> None:
    """``RetryLater`` is retried with its own pause, even if ``retry`` does not list it."""
    service = make_service()
    later = RetryLater(timedelta(minutes=3), "the bank is closed")
    method, attempts = raising(service, later, retry=Retry(on=OSError, **PLAIN))
    began = clock()
    name = method.start(WorkRequest()).name
    assert waits(service, name).due_time == began + timedelta(minutes=3)
    assert ended_in_time(service, clock, name).response is not None
    assert attempts == [1, 2]


@EACH_STORE
@pytest.mark.parametrize("after", [timedelta(days=3_000_000), timedelta.max])
def test_the_longest_pause_is_a_hundred_years(
    make_service: MakeService, store: Store, clock: ManualClock, after: timedelta
) -> None:
    """A retry pause is cut to a hundred years, and a cancel ends the pause at once."""
    service = make_service(store)
    method, _ = raising(service, RetryLater(after))
    began = clock()
    name = method.start(WorkRequest()).name
    assert waits(service, name).due_time == began + timedelta(days=36_500)
    service.cancel(name)
    assert service.get(name).state == "CANCELLED"


def test_retry_pauses_have_a_maximum(make_service: MakeService, clock: ManualClock) -> None:
    longest = timedelta(days=36_500)
    service = make_service()
    retry = Retry(first_pause=longest, max_pause=longest, factor=100, jitter=0)
    method, _ = raising(service, OSError(), retry=retry)
    began = clock()
    assert waits(service, method.start(WorkRequest()).name).due_time == began + longest
    assert retry.pause(10**9) == longest


class _Unspeakable(Exception):
    def __str__(self) -> str:
        raise SystemExit(3)


class _Endless(RetryLater):
    """An error with a pause beyond any valid date, which its constructor would refuse."""

    def __init__(self) -> None:
        super().__init__(timedelta(0))
        self.retry_after = timedelta(days=3_000_000)


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("error", [_Unspeakable(), _Endless()])
def test_an_attempt_whose_end_fails_ends_the_operation(
    make_service: MakeService,
    clock: ManualClock,
    caplog: pytest.LogCaptureFixture,
    error: Exception,
    is_async: bool,
) -> None:
    """If an attempt's error cannot be handled, the operation ends and is not held for ever."""
    service = make_service(executor=AsyncioExecutor() if is_async else ThreadExecutor())
    method, attempts = raising(service, error, is_async=is_async)
    done = ended_in_time(service, clock, method.start(WorkRequest()).name)
    assert reason(done) == (Code.INTERNAL, "METHOD_FAILED")
    assert attempts == [1]
    assert service.store.get(done.name).owner == ""
    until(lambda: not service.edges.work.held())
    assert any(line.exc_info and line.levelname == "ERROR" for line in caplog.records)
    assert "outside the method" not in caplog.text


def test_lease_lost_is_not_a_failure(make_service: MakeService) -> None:
    """If another worker has the operation, LeaseLost is not recorded as a failed attempt."""
    service = make_service()
    method, attempts = raising(service, LeaseLost("n", 1, 2), retry=Retry())
    name = method.start(WorkRequest()).name
    until(lambda: not service.edges.work.held())
    assert (attempts, service.store.get(name).failed_attempts) == ([1], ())


@EACH_STORE
def test_a_cancel_ends_the_pause(make_service: MakeService, store: Store) -> None:
    """A cancel during a pause ends the operation at once, like all waiting work."""
    service = make_service(store)
    method, _ = raising(service, OSError(), retry=Retry(**PLAIN))
    name = method.start(WorkRequest()).name
    waits(service, name)
    service.cancel(name)
    assert service.get(name).state == "CANCELLED"
    assert len(store.get(name).failed_attempts) == 1


@EACH_STORE
def test_a_delete_ends_the_pause(
    make_service: MakeService, store: Store, clock: ManualClock
) -> None:
    """A delete during a retry pause removes the operation and frees the operation's target."""
    service = make_service(store)
    options: dict[str, Any] = {"retry": Retry(**PLAIN), "exclusive_target": lambda request: "t"}
    method, attempts = raising(service, OSError(), **options)
    name = method.start(WorkRequest()).name
    waits(service, name)
    service.delete(name)
    assert ended_in_time(service, clock, method.start(WorkRequest()).name).error is None
    assert attempts == [1, 1, 2]


@EACH_STORE
def test_work_deleted_while_it_runs_is_not_retried(
    make_service: MakeService, store: Store, clock: ManualClock
) -> None:
    """Deleted work that fails is not retried. The attempt counts as failed and frees the target."""
    seen = Outcomes()
    service = make_service(store, observers=[seen])
    attempts: list[int] = []

    def fail(request: WorkRequest, job: Job[WorkMetadata]) -> WorkResponse:
        attempts.append(job.attempt)
        if len(attempts) == 1:
            service.delete(job.name)
            raise OSError
        return WorkResponse()

    options: dict[str, Any] = {"retry": Retry(**PLAIN), "exclusive_target": lambda request: "t"}
    method = service.method(WORK, **options)(fail)
    method.start(WorkRequest())
    until(lambda: len(seen.found) == 1 and not service.edges.work.held())
    assert seen.found == [(1, "failed", "INTERNAL")]
    clock.advance(60)
    service.run_maintenance()
    assert ended_in_time(service, clock, method.start(WorkRequest()).name).error is None
    assert attempts == [1, 1]


def test_a_cancel_before_the_failure_ends_it(make_service: MakeService, clock: ManualClock) -> None:
    """A failed attempt is not retried if a caller has cancelled the operation."""
    service = make_service()

    def fail(request: WorkRequest, job: Job[WorkMetadata]) -> WorkResponse:
        service.cancel(job.name)
        raise OSError

    method = service.method(WORK, retry=Retry())(fail)
    done = ended_in_time(service, clock, method.start(WorkRequest()).name)
    assert done.state == "CANCELLED"


@pytest.fixture
def opened(make_service: MakeService, clock: ManualClock, tmp_path: Path) -> Callable[[], Service]:
    """A function that makes services with inline execution, each with its own connection."""

    def make() -> Service:
        store = SQLiteStore(tmp_path / "operations.db", clock=clock)
        return make_service(store, InlineExecutor())

    return make


def test_a_pause_survives_the_process(opened: Callable[[], Service], clock: ManualClock) -> None:
    """After a restart, another process continues with the next attempt number."""
    one = opened()
    retry = Retry(attempts=3, **PLAIN)
    method, _ = raising(one, OSError("one"), retry=retry)
    name = method.start(WorkRequest()).name
    one.close()
    two = opened()
    _, attempts = raising(two, *[OSError("two")] * 5, retry=retry)
    assert ended_in_time(two, clock, name).error is not None
    assert attempts == [2, 3]
    assert [one.text for one in two.store.get(name).failed_attempts] == ["one", "two", "two"]


def all_wait(service: Service, names: Sequence[str]) -> bool:
    """Return True if no worker has any of these operations, and none of them has ended."""
    records = [service.store.get(name) for name in names]
    return not any(record.done or record.owner for record in records)


def test_work_succeeds_after_a_ten_minute_outage_of_a_dependency(
    opened: Callable[[], Service], clock: ManualClock
) -> None:
    """Three processes come and go while twenty operations wait without a worker. All succeed."""
    back = clock() + timedelta(minutes=10)

    def call(request: WorkRequest, job: Job[WorkMetadata]) -> WorkResponse:
        if clock() < back:
            raise ConnectionError(f"attempt {job.attempt}")
        return WorkResponse(request.text)

    retry = Retry(attempts=15, on=ConnectionError, max_pause=timedelta(minutes=2))
    names: list[str] = []
    for turn in range(3):
        service = opened()
        method = service.method(WORK, retry=retry)(call)
        for number in range(20 if not turn else 0):
            names.append(method.start(WorkRequest(str(number))).name)
        for _ in range(180):
            service.run_maintenance()
            clock.advance(1)
        until(functools.partial(all_wait, service, names))  # a thread may still store a failure
        service.close()
    service = opened()
    service.method(WORK, retry=retry)(call)
    for name in names:
        assert ended_in_time(service, clock, name).response is not None
        failed = service.store.get(name).failed_attempts
        assert [one.attempt for one in failed] == [*range(1, len(failed) + 1)]
        assert len(failed) >= 8
        assert failed[0].text == "attempt 1"


@pytest.mark.parametrize(
    ("argument", "meant"),
    [
        ("tries", "attempts"),
        ("max_retries", "attempts"),
        ("attempt", "attempts"),
        ("backoff", "factor"),
        ("delay", "first_pause"),
        ("max_delay", "max_pause"),
        ("exceptions", "on"),
        ("timeout", "within"),
    ],
)
def test_argument_of_another_library_is_refused_with_the_name_here(
    argument: str, meant: str
) -> None:
    options: dict[str, Any] = {argument: 5}
    with pytest.raises(TypeError) as caught:
        Retry(**options)
    wanted = f"Retry takes no argument {argument!r}: did you mean {meant!r}?"
    assert str(caught.value) == wanted
    assert copy.copy(pickle.loads(pickle.dumps(Retry(attempts=7)))) == Retry(attempts=7)


def test_pauses_grow_up_to_the_longest(monkeypatch: pytest.MonkeyPatch) -> None:
    retry = Retry(
        first_pause=timedelta(seconds=1), factor=3, max_pause=timedelta(seconds=20), jitter=0.0
    )
    assert [retry.pause(n).total_seconds() for n in (1, 2, 3, 4, 5, 10_000)] == [
        1,
        3,
        9,
        20,
        20,
        20,
    ]
    monkeypatch.setattr(random, "random", lambda: 0.5)
    assert Retry(jitter=0.5).pause(1) == timedelta(seconds=0.75)
    same = Retry(factor=1, jitter=0.0)
    assert {same.pause(number) for number in (1, 2, 500)} == {timedelta(seconds=1)}


@pytest.mark.parametrize(
    ("name", "value", "wanted"),
    [
        ("attempts", 0, "a whole number from 1"),
        ("on", (), "an exception class, or a tuple of such"),
        ("on", (BaseException,), "an exception class, or a tuple of such"),
        ("on", "OSError", "an exception class, or a tuple of such"),
        ("first_pause", 1.0, "a timedelta above zero"),
        ("max_pause", timedelta(0), "a timedelta above zero"),
        ("factor", 0.5, "a number from 1 to 100"),
        ("jitter", 1.5, "a number from 0 to 1"),
        ("jitter", True, "a number from 0 to 1"),
        ("within", 60, "a timedelta above zero"),
    ],
)
def test_a_wrong_value_of_a_retry_is_refused(name: str, value: object, wanted: str) -> None:
    with pytest.raises(DeclarationError, match=rf"^{name}: must be {wanted}"):
        Retry(**{name: value})  # type: ignore[arg-type]


def test_retry_later_with_an_invalid_time_is_a_type_error() -> None:
    with pytest.raises(TypeError, match=r"^after: must be a timedelta, got 3$"):
        RetryLater(3)  # type: ignore[arg-type]
    assert RetryLater(timedelta(-1)).retry_after == timedelta(0)
