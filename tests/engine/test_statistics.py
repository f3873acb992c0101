"""What a service counts, when the store is given it, and what becomes of it in an outage."""

from __future__ import annotations

import logging
import os
import threading
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from lro import Cancelled, Code, Job, Service, StatusError, WorkerLost
from lro._engine import statistics as module
from lro._engine.events import EventDispatch
from lro._engine.statistics import FLUSH_SECONDS, Statistics
from lro._engine.store_port import keeps_statistics
from lro.adapters import CancelSupport, Store
from lro.errors import LroError, Unavailable
from lro.executors.inline import InlineExecutor
from lro.executors.threads import ThreadExecutor
from lro.stores.memory import MemoryStore
from lro.stores.sqlite import SQLiteStore
from lro.telemetry import BUCKETS
from lro.testing import START, ManualClock
from lro.testing._samples import together
from tests.service_fixtures import MakeService
from tests.service_steps import WORK, Step, ended, recovered, work
from tests.work_messages import WorkMetadata, WorkRequest

METHOD = WORK


def totals(service: Service, method: str = METHOD) -> dict[str, float]:
    """What the store has of a method, when it is given what this service has counted."""
    assert service.statistics is not None
    assert service.statistics.flush()
    store = service.store
    assert keeps_statistics(store)
    return dict(store.read_totals().get(method, {}))


def test_successes_are_counted_with_their_times(
    make_service: MakeService, store: Store, clock: ManualClock
) -> None:
    """By the bucket whose upper bound is not passed, and in seconds together."""
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


def test_failures_repeats_and_refusals_are_counted(make_service: MakeService, store: Store) -> None:
    """A name of a code and no word of a message; a cancellation has none."""
    service = make_service(store, InlineExecutor())
    errors = [StatusError(Code.NOT_FOUND, "no"), ValueError("no"), Cancelled()]

    def body(*_: object) -> None:
        raise errors.pop()

    method, one = work(service, body), "6a3a2b41-33c4-4ac8-9d0e-9b2f7a0e4d11"
    for request_id in (one, "", "", one):
        method.start(WorkRequest(), request_id=request_id)
    with pytest.raises(LroError):
        method.start(WorkRequest(), target=5)
    with pytest.raises(LroError):  # a check starts nothing
        method.start(WorkRequest(), target=5, validate_only=True)
    found = totals(service)
    named = {name: number for name, number in found.items() if not name.startswith("queue")}
    assert (named["starts.started"], named["starts.repeated"]) == (3, 1)
    assert {name for name in named if not name.endswith(".sum")} == {
        "starts.started",
        "starts.repeated",
        "starts.refused.INVALID_ARGUMENT",
        *(f"attempt.{what}.0" for what in ("failed.NOT_FOUND", "failed.INTERNAL", "cancelled")),
        *(f"operation.{what}.0" for what in ("failed.NOT_FOUND", "failed.INTERNAL", "cancelled")),
        *(f"ends.{what}" for what in ("failed.NOT_FOUND", "failed.INTERNAL", "cancelled")),
    }


@pytest.mark.parametrize(
    ("support", "reach"),
    [
        (CancelSupport.NOT, "cooperative"),
        (CancelSupport.COOPERATIVE, "cooperative"),
        (CancelSupport.AT_AWAIT, "at_await"),
        (CancelSupport.FORCED, "forced"),
    ],
)
def test_cancellations_are_counted_by_their_reach(
    make_service: MakeService,
    store: Store,
    clock: ManualClock,
    support: CancelSupport,
    reach: str,
) -> None:
    """That of the executor; what no worker has begun is withdrawn."""

    class Executor(ThreadExecutor):
        cancel_support = support

    service = make_service(store, Executor(1))
    step = Step()

    def body(_: WorkRequest, job: Job[WorkMetadata]) -> None:
        step()
        clock.advance(2)
        job.raise_if_cancelled()

    method = work(service, body)
    one = method.start(WorkRequest()).name
    step.reached()
    two = method.start(WorkRequest()).name
    for name in (one, two):
        service.cancel(name)
    step.go.set()
    ended(service, one)
    service.workers.stop(timedelta(seconds=9))
    found = totals(service)
    assert (found[f"cancel.{reach}.5"], found[f"cancel.{reach}.sum"]) == (1, 2.0)
    assert (found["cancel.withdrawn.0"], found["ends.cancelled"]) == (1, 2)


def test_success_after_a_request_to_cancel_is_no_cancellation(
    make_service: MakeService, store: Store
) -> None:
    """It has not stopped."""
    service = make_service(store)
    step = Step()
    name = work(service, step).start(WorkRequest()).name
    step.reached()
    service.cancel(name)
    step.go.set()
    ended(service, name)
    service.workers.stop(timedelta(seconds=9))
    assert not [one for one in totals(service) if one.startswith("cancel")]


def test_lost_work_and_late_writes_are_counted(
    make_service: MakeService, clock: ManualClock, tmp_path: Path
) -> None:
    """By the process that finds them, and in the totals of all."""
    path = tmp_path / "operations.db"
    dead = make_service(SQLiteStore(path, clock=clock))
    step = Step()
    work(dead, step, worker_lost=WorkerLost.RETRY).start(WorkRequest())
    step.reached()
    other = make_service(SQLiteStore(path, clock=clock), InlineExecutor())
    work(other, worker_lost=WorkerLost.RETRY)
    clock.advance(20)
    recovered(other, clock)
    step.go.set()
    dead.close()
    found = totals(other)
    assert (found["lost.retried"], found["refused_writes"]) == (1, 1)
    assert (found["attempt.superseded.7"], found["attempt.succeeded.0"]) == (1, 1)
    assert found["queue.0"] == 1  # of the first attempt alone


def test_renewals_and_expiry_are_counted(
    make_service: MakeService, store: Store, clock: ManualClock
) -> None:
    """Leases are of no method; what has expired is counted by method."""
    service = make_service(store, lease=timedelta(seconds=15), keep_for=timedelta(days=1))
    step = Step()
    method = work(service, step)
    name = method.start(WorkRequest()).name
    step.reached()
    service.run_maintenance()
    step.go.set()
    ended(service, name)
    clock.advance(days=2)
    service.run_maintenance()
    assert totals(service)["expired"] == 1
    assert totals(service, "") == {"lease_margin.7": 1, "lease_margin.sum": 15.0}


def test_counts_are_given_every_15_seconds(
    make_service: MakeService, store: Store, clock: ManualClock
) -> None:
    """By the maintenance, to the minute that it is then; nothing is written where nothing is."""
    assert keeps_statistics(store)
    service = make_service(store, InlineExecutor(), lease=timedelta(hours=1))
    method = work(service)
    assert service.run_maintenance() == FLUSH_SECONDS
    method.start(WorkRequest())
    clock.advance(FLUSH_SECONDS - 1)
    service.run_maintenance()
    assert store.read_totals() == {}
    clock.advance(1)
    assert service.run_maintenance() == FLUSH_SECONDS
    (counted,) = store.read_counts(START)
    assert (counted.minute, counted.counts["starts.started"]) == (START, 1)
    clock.advance(60)
    service.run_maintenance()
    assert store.read_counts(START) == [counted]


def test_rest_is_given_when_the_service_is_closed(
    make_service: MakeService, clock: ManualClock, tmp_path: Path
) -> None:
    """So that a process that stops loses nothing."""
    path = tmp_path / "operations.db"
    service = make_service(SQLiteStore(path, clock=clock), InlineExecutor())
    work(service).start(WorkRequest())
    service.close()
    later = make_service(SQLiteStore(path, clock=clock))
    assert totals(later)["ends.succeeded"] == 1


class Away(MemoryStore):
    """Takes no counts while it is away."""

    away = False

    def add_counts(self, *arguments: Any) -> None:
        """As the store's own, unless it is away."""
        if self.away:
            raise Unavailable("it is away")
        super().add_counts(*arguments)


def test_counts_are_kept_while_the_store_is_away(
    make_service: MakeService, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    """They are added when it is back; that is logged once, and leases are renewed all the time."""
    store = Away(clock)
    service = make_service(store, InlineExecutor())
    method = work(service)
    assert service.statistics is not None
    for away in (False, True, True, True):
        store.away = away
        method.start(WorkRequest())
        service.statistics.flush()
    method.start(WorkRequest())
    store.away = False
    assert totals(service)["ends.succeeded"] == 5
    logged = [record.getMessage() for record in caplog.records]
    assert logged == ["what was counted is kept until it can be stored: it is away"]
    store.away = True
    method.start(WorkRequest())
    service.close()
    assert "what was counted last cannot be stored, and is lost" in caplog.text


def test_service_may_count_nothing(make_service: MakeService, clock: ManualClock) -> None:
    """If that is switched off, or if the store keeps no statistics."""

    class Plain(MemoryStore):
        add_counts = property()

    for service in (
        make_service(statistics=False),
        make_service(Plain(clock)),
    ):
        assert service.statistics is None
        service.run_maintenance()


def test_no_event_is_made_for_statistics(
    make_service: MakeService, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not where neither the log nor an observer takes it: that would take longer than to count."""
    caplog.set_level(logging.WARNING, logger="lro")
    service = make_service(None, InlineExecutor())
    made: list[object] = []
    monkeypatch.setattr(EventDispatch, "emit", lambda _, event: made.append(event))
    work(service).start(WorkRequest())
    assert made == []
    assert totals(service)["ends.succeeded"] == 1


def test_many_threads_count_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also while the store is given what they have counted, and many facts are counted at once."""
    monkeypatch.setattr(module, "_FACTS", 7)
    store, over = MemoryStore(), threading.Event()
    statistics = Statistics(store, "forced", lambda: 0.0)

    def flush() -> None:
        while not over.is_set():
            statistics.flush()

    flushing = threading.Thread(target=flush)
    flushing.start()

    def note(number: int) -> None:
        for place in range(160):
            statistics.note(f"M{number % 2}", "queue", "", "", BUCKETS[place % len(BUCKETS)])
            statistics.note("", "lost", "retried", "", 2)

    assert together(4, note) == [None] * 4
    over.set()
    flushing.join()
    statistics.flush()
    found = store.read_totals()
    assert found[""] == {"lost.retried": 1280}
    for method in ("M0", "M1"):
        assert [found[method][f"queue.{n}"] for n in range(len(BUCKETS))] == [20] * len(BUCKETS)
        assert found[method]["queue.sum"] == pytest.approx(20 * sum(BUCKETS))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_fork_counts_only_its_own(
    make_service: MakeService, clock: ManualClock, tmp_path: Path
) -> None:
    """What the parent has not yet given to the store it gives itself."""
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
    assert store.read_totals()[METHOD]["ends.succeeded"] == 1
    assert totals(service)["ends.succeeded"] == 2


@pytest.mark.parametrize("seconds", [-3.0, float("nan"), float("inf"), float("-inf")])
def test_time_that_cannot_be_counts_as_none(seconds: float) -> None:
    """A clock was set back, or gives anything: sums never fall, and can be read again."""
    store = MemoryStore()
    statistics = Statistics(store, "forced", lambda: 0.0)
    for each in (2.0, seconds):
        statistics.note("M", "queue", "", "", each)
    assert statistics.flush()
    assert store.read_totals()["M"] == {"queue.0": 1, "queue.5": 1, "queue.sum": 2}


def test_store_refuses_what_it_could_not_read(tmp_path: Path) -> None:
    """One such number must not hide all others."""
    store = SQLiteStore(tmp_path / "operations.db")
    with pytest.raises(ValueError, match="JSON compliant"):
        store.add_counts(START, {"M": {"queue.sum": float("nan")}})
    assert store.read_totals() == {}
    store.close()
