"""What a service counts, when the store is given it, and what becomes of it in an outage."""

from __future__ import annotations

import logging
import os
import threading
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from lro._engine import statistics as module
from lro._engine.events import EventDispatch
from lro._engine.statistics import FLUSH_SECONDS, Statistics
from lro._engine.store_port import keeps_statistics
from lro.adapters import Store
from lro.errors import Unavailable
from lro.executors.inline import InlineExecutor
from lro.stores.memory import MemoryStore
from lro.stores.sqlite import SQLiteStore
from lro.telemetry import BUCKETS
from lro.testing import START, ManualClock
from lro.testing._samples import together
from tests.engine.engine_parts import totals
from tests.service_fixtures import MakeService
from tests.service_steps import WORK, Step, ended, work
from tests.work_messages import WorkRequest

METHOD = WORK


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
