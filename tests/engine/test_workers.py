"""``Service.workers``: which workers serve a store, and which of them are still alive."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import closing
from datetime import timedelta

import attrs
import pytest

import lro
from lro.adapters import Expired, Store, WaitingWork, Worker
from lro.errors import Unavailable
from lro.executors.threads import ThreadExecutor
from lro.stores.memory import MemoryStore
from lro.testing import ManualClock
from tests.engine.engine_parts import raising
from tests.service_fixtures import MakeService
from tests.stores.samples import insert, waiting

METHOD = "acme.v1.Works.Work"
LEASE = timedelta(seconds=15)


def owners(service: lro.Service, **options: bool) -> list[str]:
    """Return the owners of the listed workers."""
    return [worker.owner for worker in service.workers(**options)]


def said(clock: ManualClock, owner: str, **fields: object) -> Worker:
    """Create a worker row as a worker would write it now."""
    base = Worker(
        owner=owner,
        host="there",
        pid=7,
        version="0.1.0",
        methods=(METHOD,),
        capacity=3,
        start_time=clock(),
        seen_time=clock(),
        alive_until=clock() + LEASE,
    )
    return attrs.evolve(base, **fields)


@pytest.fixture
def service(make_service: MakeService, store: Store) -> lro.Service:
    """A service on each kind of store, without operations."""
    made = make_service(store, ThreadExecutor(3))

    @made.method(METHOD)
    def work(request: lro.Struct) -> lro.Struct:
        return request

    made.declare("acme.v1.Works.Outside", request=lro.Struct, response=lro.Struct)
    return made


def test_worker_is_listed_from_its_first_maintenance_on(
    service: lro.Service, clock: ManualClock
) -> None:
    """A worker is listed from its first maintenance on. Listing does not register a worker."""
    assert owners(service) == owners(service, all=True) == []
    began = clock()
    service.run_maintenance()
    clock.advance(60)
    service.run_maintenance()
    (found,) = service.workers()
    assert (found.pid, found.capacity, found.running) == (os.getpid(), 3, 0)
    assert tuple(found.methods) == (METHOD,)  # methods without a function are not listed
    assert (found.start_time, found.seen_time, found.alive_until) == (
        began,
        clock(),
        clock() + LEASE,
    )
    assert found.host
    assert not found.lost


def test_running_work_of_each_worker_is_counted(make_service: MakeService) -> None:
    """A worker's ``running`` is the store's count of the operations that it runs now."""
    at_work = make_service(MemoryStore())
    inside: list[int] = []

    @at_work.method(METHOD)
    def work(request: lro.Struct) -> lro.Struct:
        inside.extend(worker.running for worker in at_work.workers())
        return request

    at_work.run_maintenance()
    work.start(lro.Struct()).result(timeout=9)
    assert inside == [1]


def test_process_that_runs_no_work_is_listed_only_with_all(service: lro.Service) -> None:
    """A process without an executor is listed only with ``all``, but can list other workers."""
    front = lro.Service(service.store, None, maintenance=False)
    service.run_maintenance()
    with closing(front):
        front.run_maintenance()
        (worker,) = front.workers()
        assert worker.capacity == 3
        others = [one for one in front.workers(all=True) if one.owner != worker.owner]
        assert [(one.capacity, tuple(one.methods)) for one in others] == [(0, ())]


def test_lost_worker_is_listed_only_with_all(service: lro.Service, clock: ManualClock) -> None:
    """A worker that was declared lost is listed only with ``all``."""
    store = service.store
    for owner in ("a", "b"):
        store.renew(said(clock, owner))
    assert store.lose("a", clock() + LEASE)
    assert owners(service) == ["b"]
    assert {one.owner: one.lost for one in service.workers(all=True)} == {"a": True, "b": False}


@pytest.mark.parametrize("lease", [LEASE, timedelta(hours=1)])
def test_silent_worker_is_listed_for_a_minute_and_two_leases(
    service: lro.Service, clock: ManualClock, lease: timedelta
) -> None:
    """A silent worker is listed for a time that depends on its own lease, not on the lister's."""
    service.store.renew(said(clock, "a", alive_until=clock() + lease))
    clock.advance((timedelta(minutes=1) + 2 * lease).total_seconds())
    assert owners(service) == ["a"]
    clock.advance(0.000001)
    assert owners(service) == []
    assert owners(service, all=True) == ["a"]


def test_idle_worker_stays_listed(service: lro.Service, clock: ManualClock) -> None:
    """An idle worker renews its row often enough to stay listed."""
    service.run_maintenance()
    for _ in range(40):
        clock.advance(7)
        assert len(owners(service)) == 1
        service.run_maintenance()


@pytest.mark.anyio
async def test_async_form_lists_the_same_workers(service: lro.Service) -> None:
    """The async form returns the same workers, with and without ``all``."""
    service.run_maintenance()
    assert await service.workers_async() == service.workers()
    assert await service.workers_async(all=True) == service.workers(all=True)


def test_workers_of_an_unavailable_store_are_unavailable(
    service: lro.Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the store is unavailable, its error is raised unchanged."""

    def away() -> None:
        raise Unavailable("the store is away")

    monkeypatch.setattr(service.store, "workers", away)
    with pytest.raises(Unavailable, match="the store is away"):
        service.workers()


def test_work_that_no_live_worker_declares_is_stranded(
    service: lro.Service, store: Store, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    """Work that no live worker declares is listed at once (stranded) and logged after a minute."""
    insert(store, waiting(clock, method="acme.v1.Works.Old"))
    insert(store, waiting(clock, "later", seconds=9999, method="acme.v1.Works.Later"))
    service.run_maintenance()
    assert service.stranded() == [WaitingWork("acme.v1.Works.Old", 1, clock(), 1)]
    assert "no live worker" not in caplog.text
    for _ in range(3):
        clock.advance(60)
        service.run_maintenance()
    assert caplog.text.count("acme.v1.Works.Old: no live worker declares this method") == 1
    store.renew(said(clock, "new", methods=("acme.v1.Works.Old",)))
    assert service.stranded() == []
    clock.advance(1000)
    insert(store, waiting(clock, "known", method=METHOD))
    assert [work.method for work in service.stranded()] == ["acme.v1.Works.Old", METHOD]


def test_work_of_a_silent_workers_methods_is_stranded_at_once(
    service: lro.Service, store: Store, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    """If the only worker of a method is silent, waiting work is listed at once and logged later."""
    insert(store, waiting(clock, method="acme.v1.Works.Old"))
    store.renew(said(clock, "old", methods=("acme.v1.Works.Old",)))
    for _ in range(2):
        service.run_maintenance()
        clock.advance(60)
    assert "no live worker" not in caplog.text
    assert [work.method for work in service.stranded()] == ["acme.v1.Works.Old"]
    service.run_maintenance()
    assert "acme.v1.Works.Old: no live worker declares this method" in caplog.text


def test_waiting_work_is_counted_after_the_last_batch_of_an_expiry(
    service: lro.Service, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A long queue takes long to count, and is counted only after the last batch of an expiry."""
    more, waiting_work = [True, True, False], store.waiting
    calls: list[str] = []

    def expire(_: int) -> Expired:
        calls.append("expire")
        return Expired((), {}, more=more.pop(0))

    def counted() -> Sequence[WaitingWork]:
        calls.append("count")
        return waiting_work()

    monkeypatch.setattr(store, "expire", expire)
    monkeypatch.setattr(store, "waiting", counted)
    for _ in range(4):
        service.run_maintenance()
    assert calls == ["expire", "expire", "expire", "count"]


def test_maintenance_continues_if_waiting_work_cannot_be_counted(
    service: lro.Service,
    store: Store,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """If waiting work cannot be counted, the error is logged, and maintenance continues."""
    monkeypatch.setattr(store, "waiting", raising(Unavailable("it is busy")))
    service.run_maintenance()
    assert "maintenance: waiting work cannot be counted now: it is busy" in caplog.text


@pytest.mark.anyio
async def test_async_form_lists_stranded_work(
    service: lro.Service, store: Store, clock: ManualClock
) -> None:
    insert(store, waiting(clock))
    assert [work.method for work in await service.stranded_async()] == ["M"]
