"""Checks of stores: workers renew their leases, and lost work is found (spec §2.8)."""

from __future__ import annotations

import functools
from datetime import datetime, timedelta
from typing import Final

import attrs

from lro._engine.store_port import Claim, Orphans, Store, Worker
from lro._model.description import FailedAttempt
from lro._model.operation import delete, request_cancel, retry, with_failure
from lro.testing._samples import (
    METHODS,
    ManualClock,
    end_of,
    expect,
    held,
    ids,
    insert,
    record_of,
    same,
    together,
    worker_of,
)

_LEASE: Final = timedelta(seconds=15)


def workers_are_listed(store: Store, clock: ManualClock) -> None:
    """Workers are listed with all fields and the number of their operations, until they leave."""
    same(list(store.workers()), [], "the workers of a new store")
    first = worker_of(clock)
    store.renew(first)
    clock.advance(1)
    second = attrs.evolve(worker_of(clock, "them"), methods=(), capacity=3)
    store.renew(second)
    for unique_id in ("a", "hidden", "ended"):
        insert(store, held(clock, unique_id, target=unique_id))
    insert(store, held(clock, "waiting", owner=""))
    store.update("operations/hidden", delete(clock()))
    store.update("operations/ended", end_of(clock))
    until = clock() + _LEASE
    wanted = [attrs.evolve(first, running=2, held_until=until), second]
    same([attrs.evolve(w, methods=tuple(w.methods)) for w in store.workers()], wanted, "workers")
    clock.advance(1)
    store.renew(attrs.evolve(worker_of(clock), host="other", pid=1, methods=("N",), capacity=1))
    found = {w.owner: w for w in store.workers()}["us"]
    same((found.host, found.pid), (first.host, first.pid), "where it is")
    same((found.version, found.start_time), (first.version, first.start_time), "what it is")
    same((list(found.methods), found.capacity), (["N"], 1), "what it says later")
    same((found.seen_time, found.alive_until), (clock(), clock() + _LEASE), "and when")
    for _ in range(2):
        store.leave("us")
    same([w.owner for w in store.workers()], ["them"], "who is left")


def silent_workers_are_removed(store: Store, clock: ManualClock) -> None:
    """A worker without work is removed one day after its last renewal, when any worker renews."""
    for owner in ("idle", "busy"):
        store.renew(worker_of(clock, owner))
    insert(store, held(clock, owner="busy"))
    clock.advance(days=1, microseconds=-1)
    store.renew(worker_of(clock))
    same(sorted(w.owner for w in store.workers()), ["busy", "idle", "us"], "just before that")
    clock.advance(microseconds=1)
    store.renew(worker_of(clock))
    same(sorted(w.owner for w in store.workers()), ["busy", "us"], "a day later")
    clock.advance(days=2)
    store.renew(worker_of(clock))
    same(sorted(w.owner for w in store.workers()), ["busy", "us"], "whom a renewal keeps")
    expect(store.lose("us", clock() + _LEASE), "it counts as lost")
    clock.advance(days=2)
    same(store.renew(worker_of(clock)), None, "the renewal of one that was lost long ago")
    same(sorted(w.owner for w in store.workers()), ["busy", "us"], "whom that forgets")


def renewal_names_cancel_requests(store: Store, clock: ManualClock) -> None:
    """A renewal returns only cancel requests of the worker's own operations (spec §2.6)."""
    for unique_id, owner in (("a", "us"), ("b", "us"), ("c", "them"), ("d", "us"), ("w", "")):
        insert(store, held(clock, unique_id, owner=owner))
    for unique_id in "acdw":
        store.update(f"operations/{unique_id}", request_cancel(clock()))
    store.update("operations/d", end_of(clock))
    found = store.renew(worker_of(clock))
    assert found is not None  # the worker is not lost
    same(list(found.cancel_requested), ["operations/a"], "who is asked to stop")
    same(list(found.older), [], "what is older than its lease")


def renewal_names_older_work(store: Store, clock: ManualClock) -> None:
    """From the exact end of its first lease on, work is returned in ``older``, even hidden work."""
    insert(store, held(clock, "a", seconds=10))
    insert(store, held(clock, "hidden", seconds=10, target="t"))
    store.update("operations/hidden", delete(clock()))
    insert(store, held(clock, "later", seconds=20))
    insert(store, held(clock, "theirs", seconds=10, owner="them"))
    for micros, wanted in ((-1, []), (1, ["operations/a", "operations/hidden"])):
        clock.advance(seconds=10 if micros < 0 else 0, microseconds=micros)
        found = store.renew(worker_of(clock))
        assert found is not None  # the worker is not lost
        same(sorted(found.older), wanted, "what is older than its lease")


def workers_with_expired_leases_are_overdue(store: Store, clock: ManualClock) -> None:
    """An owner is overdue from the exact end of its last lease, even if no worker has that name."""
    store.renew(worker_of(clock, seconds=10))
    store.renew(worker_of(clock, "idle", seconds=1))
    insert(store, held(clock, "a", seconds=5))
    insert(store, held(clock, "hidden", seconds=20, owner="unknown", target="t"))
    store.update("operations/hidden", delete(clock()))
    insert(store, held(clock, "first", seconds=1, owner="unknown", method="N"))
    insert(store, held(clock, "ended", seconds=5, owner="gone"))
    store.update("operations/ended", end_of(clock))
    insert(store, record_of(clock, "unheld"))
    insert(store, held(clock, "waiting", seconds=5, owner=""))
    us, unknown = clock() + timedelta(seconds=10), clock() + timedelta(seconds=20)
    clock.advance(seconds=10, microseconds=-1)
    found = store.orphans(METHODS, 9)
    same(dict(found.overdue), {}, "who is overdue just before the first end")
    _looks_again(found, us)
    clock.advance(microseconds=1)
    found = store.orphans((), 9)
    same(dict(found.overdue), {"us": us}, "who is overdue at the first end")
    _looks_again(found, unknown)
    clock.advance(seconds=10)
    found = store.orphans(METHODS, 9)
    same(dict(found.overdue), {"us": us, "unknown": None}, "who is overdue later")
    same((list(found.records), list(found.dead)), ([], []), "what is lost already")
    store.renew(worker_of(clock))
    same(list(store.orphans(METHODS, 9).overdue), ["unknown"], "after a renewal")


def work_of_lost_workers_is_found(store: Store, clock: ManualClock) -> None:
    """Work of a lost worker is found by its method, whatever its lease, until it has no owner."""
    until = clock() + _LEASE
    for owner in ("us", "them"):
        store.renew(worker_of(clock, owner))
    for unique_id, seconds in (("a", 30), ("b", 10), ("hidden", 20), ("ended", 5)):
        insert(store, held(clock, unique_id, seconds=seconds, target=unique_id))
    insert(store, held(clock, "n", method="N"))
    insert(store, held(clock, "theirs", owner="them"))
    insert(store, held(clock, "unknown", owner="unknown"))
    store.update("operations/hidden", delete(clock()))
    store.update("operations/ended", end_of(clock))
    same(list(store.orphans(METHODS, 9).records), [], "before any is lost")
    expect(not store.lose("us", until - timedelta(seconds=1)), "it has renewed since")
    expect(not store.lose("us", None), "it is known")
    expect(not store.lose("nobody", until), "it is not known")
    for _ in range(2):
        expect(store.lose("us", until), "it counts as lost")
        expect(store.lose("unknown", None), "one without a word counts as lost")
    found = store.orphans(METHODS, 9)
    same(ids(found.records), ["b", "unknown", "hidden", "a"], "what is lost, in order")
    same(dict(found.overdue), {}, "who of the others is overdue")
    _looks_again(found, until)
    same(ids(store.orphans(METHODS, 2).records), ["b", "unknown"], "two of it")
    same(ids(store.orphans({"N", "O"}, 9).records), ["n"], "of another method")
    same(sorted(w.owner for w in store.workers() if w.lost), ["unknown", "us"], "who is lost")
    for unique_id in ("b", "unknown"):
        store.update(f"operations/{unique_id}", end_of(clock))
    same(ids(store.orphans(METHODS, 9).records), ["hidden", "a"], "the rest")


def deleted_work_is_not_retried(store: Store, clock: ManualClock) -> None:
    """Deleted work is removed when its attempt fails, or at once if it waits for a retry."""
    failed = FailedAttempt(1, clock(), "OSError", "away")
    insert(store, held(clock, "paused", target="t", attempt=1))
    change = with_failure(retry(1, clock() + _LEASE, clock()), failed)
    expect(store.update("operations/paused", change) is not None, "it waits")
    same(store.update("operations/paused", delete(clock())), None, "what is deleted in a pause")
    insert(store, held(clock, "running", target="t", attempt=1))
    expect(store.update("operations/running", delete(clock())) is not None, "it is hidden")
    same(store.update("operations/running", change), None, "what fails when it is deleted")
    insert(store, record_of(clock, "new", target="t", lease_until=clock() + _LEASE))
    expect(store.update("operations/new", delete(clock())) is not None, "what never began is kept")


def lost_worker_cannot_renew(store: Store, clock: ManualClock) -> None:
    """A lost worker cannot renew its lease, but its process can continue under another name."""
    worker = worker_of(clock)
    store.renew(worker)
    expect(store.lose("us", worker.alive_until), "it counts as lost")
    clock.advance(1)
    same(store.renew(worker_of(clock)), None, "its renewal")
    same([w.alive_until for w in store.workers()], [worker.alive_until], "until when it lived")
    expect(store.renew(worker_of(clock, "us again")) is not None, "another name can")
    insert(store, held(clock, "waiting", seconds=0, owner=""))
    found = store.claim(Claim("us again", clock() + _LEASE, {"M": None}, 9))
    same(ids([record for record, _ in found.works]), ["waiting"], "what it claims")
    same(list(store.orphans(METHODS, 9).records), [], "what is lost of that")


def renewal_and_loss_exclude_each_other(store: Store, clock: ManualClock) -> None:
    """Of a concurrent renewal and loss of one worker, exactly one succeeds."""
    for number in range(8):
        owner = f"worker-{number}"
        worker = worker_of(clock, owner)
        store.renew(worker)
        again = attrs.evolve(worker, alive_until=worker.alive_until + _LEASE)
        act = functools.partial(_renewed_or_lost, store, again, worker.alive_until)
        found = together(3, act)
        lost = {w.owner: w.lost for w in store.workers()}[owner]
        same(found[1:], [lost, lost], "what those say who lose it")
        same(found[0] is None, lost, "whether the renewal was refused")


def waiting_work_is_counted_by_method(store: Store, clock: ManualClock) -> None:
    """Queued work is counted by method, with the first due time.

    Work with an owner, ended work and work that is done outside the service are not counted. Work
    is due from its exact due time on.
    """
    same(list(store.waiting()), [], "what waits in a new store")
    first = clock() + timedelta(seconds=1)
    for unique_id, seconds, method in (("a", 5, "N"), ("b", 1, "M"), ("c", 9, "M"), ("d", 0, "M")):
        insert(store, held(clock, unique_id, seconds=seconds, method=method, owner=""))
    insert(store, held(clock, "suspect", seconds=7, owner="", lost_attempts=2))
    insert(store, held(clock, "held"))
    insert(store, record_of(clock, "outside"))
    store.update("operations/d", end_of(clock))
    for passed, of_m, of_n in ((0, 0, 0), (5, 1, 1), (2, 2, 1)):
        clock.advance(passed)
        found = [(work.method, work.count, work.due_time, work.due) for work in store.waiting()]
        wanted = [("M", 3, first, of_m), ("N", 1, first + timedelta(seconds=4), of_n)]
        same(found, wanted, "what waits")


def _looks_again(found: Orphans, end: datetime) -> None:
    expect(found.next_look is not None and found.next_look <= end, "the next look comes in time")


def _renewed_or_lost(store: Store, worker: Worker, seen: datetime, number: int) -> object:
    return store.renew(worker) if number == 0 else store.lose(worker.owner, seen)
