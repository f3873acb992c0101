"""The lists and the queue of the memory store, which are brought up to date when they are read."""

from __future__ import annotations

import gc
import random
import weakref
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from lro import State
from lro.adapters import Record
from lro.stores.memory import MemoryStore
from lro.testing import ManualClock
from tests.interleaving import interrupted
from tests.stores.samples import (
    claim_of,
    claim_work,
    claimed,
    end_of,
    held,
    insert,
    insert_pending,
    key_of,
    record_of,
    removal,
    waiting,
)

WRITES = 900
"""More than the store collects before it brings its lists up to date by itself."""


def shown(store: Any, clock: ManualClock) -> list[object]:
    """Return what the store's lists and its queue say."""
    page = store.page("", None, 2 * WRITES).records
    states = [[one for one in page if one.state is state] for state in State]
    orphans = store.orphans(["M"], WRITES)
    load = store.read_load([""], WRITES)
    return [page, states, store.count_waiting(WRITES), store.waiting(), orphans, load,
            store.next_due(), store.workers(), clock()]  # fmt: skip


def write(store: Any, clock: ManualClock, chosen: random.Random, number: int) -> None:
    """Make a random write, mostly to one of the latest records."""
    if chosen.random() < 0.3:
        clock.advance(chosen.choice([0.001, 1, 60]))
    make = chosen.choice([held, waiting, record_of, insert_pending])
    if chosen.random() < 0.4:
        if make is insert_pending:
            insert_pending(store, clock, str(number))
        else:
            insert(
                store,
                make(clock, str(number), rank=number % 3, lane=number % 2),
                key_of(str(number)),
            )
        return
    name = f"operations/{max(0, number - chosen.randrange(9))}"
    change: Any = chosen.choice([end_of(clock), claim_of(clock), removal, _moved])
    try:
        store.update(name, change)
    except Exception as exc:  # the change comes too late
        assert type(exc).__module__.startswith("lro."), exc
        return
    if change is removal and chosen.random() < 0.5:
        insert(store, record_of(clock, name.partition("/")[2]))


def _moved(record: Record) -> Record:
    return record.next_version(lost_attempts=record.lost_attempts + 1)


def test_lists_do_not_depend_on_when_they_are_read() -> None:
    """A store that is read after each write and one that is read once show the same."""
    clocks = [ManualClock(), ManualClock()]
    often, once = (MemoryStore(clock) for clock in clocks)
    choices = [random.Random(7), random.Random(7)]
    for number in range(WRITES):
        write(often, clocks[0], choices[0], number)
        shown(often, clocks[0])
        write(once, clocks[1], choices[1], number)
    found = shown(often, clocks[0])
    assert len(found[0]) > 100  # type: ignore[arg-type]
    assert shown(once, clocks[1]) == found
    taken = [
        claim_work(store, clock, 99) for store, clock in zip((often, once), clocks, strict=True)
    ]
    assert taken[0].works
    assert [record for record, _ in taken[0].works] == [record for record, _ in taken[1].works]
    for clock in clocks:
        clock.advance(days=40)
    assert often.expire(WRITES).names == once.expire(WRITES).names
    assert shown(often, clocks[0]) == shown(once, clocks[1])


def test_lists_are_complete_after_an_interrupt() -> None:
    """Wherever Ctrl-C interrupts a read, the next read finds all records in their places."""
    clock = ManualClock()

    def filled() -> MemoryStore:
        store = MemoryStore(clock)
        store.index({"k"})
        insert_pending(store, clock, "a")
        insert(store, waiting(clock, "b", begin_before=clock() + timedelta(days=1)))
        insert(store, waiting(clock, "c", keys='{"k": "v"}'))
        insert(store, held(clock, "d"))
        shown(store, clock)
        insert(store, waiting(clock, "e", keys='{"k": "w"}'))
        for name, change in {"b": claim_of(clock), "c": removal, "d": end_of(clock)}.items():
            store.update(f"operations/{name}", change)
        return store

    def make() -> Callable[[], object]:
        stores[:] = filled(), filled()
        return lambda: stores[0].count_waiting(9)

    stores: list[MemoryStore] = []
    calls = 0
    for calls in interrupted(make):  # noqa: B007
        for store in stores:
            store.update("operations/b", end_of(clock))
        assert shown(stores[0], clock) == shown(stores[1], clock)
        assert claimed(claim_work(stores[0], clock)) == claimed(claim_work(stores[1], clock))
    assert calls > 20


@pytest.mark.parametrize("read", [True, False])
def test_work_that_waits_again_at_the_same_time_is_queued_as_it_is_now(read: bool) -> None:
    """Work that has begun and waits again, due at the same time as before, may be late."""
    clock = ManualClock()
    store = MemoryStore(clock)
    insert(store, waiting(clock, begin_before=clock() + timedelta(seconds=5)))
    assert claim_work(store, clock).works
    if read:
        store.waiting()
    due = clock()
    store.update("operations/a", lambda record: record.next_version(owner="", lease_until=due))
    clock.advance(10)
    assert not store.orphans(["M"], 9).unbegun
    store.update("operations/a", removal)
    assert not store.orphans(["M"], 9).unbegun


def test_a_record_that_replaces_another_is_queued_in_its_own_lane() -> None:
    """A new record has its own place in the queue, even with the name and times of an old one."""
    clock = ManualClock()
    store = MemoryStore(clock)
    insert(store, waiting(clock, lane=1))
    assert store.count_waiting(9) == 1
    store.update("operations/a", removal)
    insert(store, waiting(clock, lane=2))
    assert [record.lane for record, _ in claim_work(store, clock).works] == [2]
    assert store.count_waiting(9) == 0


def test_removed_records_are_freed_although_nobody_reads_the_lists() -> None:
    """Many removals in a row keep only the last removed records in memory."""
    clock = ManualClock()
    store = MemoryStore(clock)
    for number in range(WRITES):
        insert(store, record_of(clock, str(number)))
    assert store.count_waiting(WRITES) == 0  # a read of the queue
    first = weakref.ref(store.get("operations/0"))
    for number in range(WRITES):
        store.update(f"operations/{number}", removal)
    gc.collect()
    assert first() is None
