"""Checks of stores that keep statistics, which is optional (``lro.adapters.StatisticsStore``)."""

from __future__ import annotations

import functools
from collections.abc import Callable
from datetime import timedelta

from lro._engine.store_port import Load, MethodLoad, StatisticsStore, Store, keeps_statistics
from lro._model.operation import claim, delete, lose, release
from lro.testing._samples import (
    ManualClock,
    StoreCheck,
    end_of,
    expect,
    held,
    insert,
    record_of,
    same,
    together,
)


def _where_kept(check: Callable[[StatisticsStore, ManualClock], None]) -> StoreCheck:
    @functools.wraps(check)
    def checked(store: Store, clock: ManualClock) -> None:
        if keeps_statistics(store):
            check(store, clock)

    return checked


@_where_kept
def counts_add_up_by_the_minute(store: StatisticsStore, clock: ManualClock) -> None:
    """Counts are added up per minute and method."""
    same(list(store.read_counts(clock())), [], "the counts of a new store")
    first = clock()
    store.add_counts(first, {"M": {"a": 1, "b.sum": 0.25}, "": {"x": 3}})
    store.add_counts(clock.advance(59), {"M": {"a": 2, "c": 5}})
    store.add_counts(clock.advance(1), {"M": {"a": 10, "b.sum": 0.5}})
    found = [(one.minute, one.method, dict(one.counts)) for one in store.read_counts(first)]
    second = first + timedelta(minutes=1)
    wanted = [
        (first, "", {"x": 3}),
        (first, "M", {"a": 3, "b.sum": 0.25, "c": 5}),
        (second, "M", {"a": 10, "b.sum": 0.5}),
    ]
    same(found, wanted, "the counts of both minutes")
    last = store.read_counts(second - timedelta(microseconds=1))
    same([one.minute for one in last], [first, first, second], "minutes that end after a moment")
    same([one.minute for one in store.read_counts(second)], [second], "the second minute")


@_where_kept
def counts_are_read_in_steps(store: StatisticsStore, clock: ManualClock) -> None:
    """Counts can be read in steps of 1, 5 or 30 minutes; each step sums up its minutes."""
    begin = clock()
    for _ in range(12):
        store.add_counts(clock(), {"M": {"a": 1}})
        clock.advance(minutes=5)
    for step, number in ((1, 1), (5, 1), (30, 6)):
        found = store.read_counts(begin, step_minutes=step)
        same([one.counts["a"] for one in found], [number] * (12 // number), f"steps of {step} min")
        seconds = {(one.minute - begin).total_seconds() % (60 * step) for one in found}
        same(seconds, {0.0}, f"where the steps of {step} min begin")


@_where_kept
def reading_counts_is_bounded(store: StatisticsStore, clock: ManualClock) -> None:
    """If there are more counts than ``limit``, the newest are returned, oldest first."""
    begin = clock()
    for number in range(5):
        store.add_counts(clock(), {"A": {"n": number}, "B": {"n": number}})
        clock.advance(minutes=1)
    found = store.read_counts(begin, limit=3)
    same([(one.method, one.counts["n"]) for one in found], [("B", 3), ("A", 4), ("B", 4)], "three")
    same(len(store.read_counts(begin, limit=100)), 10, "how many there are")


@_where_kept
def counts_older_than_72_hours_are_removed(store: StatisticsStore, clock: ManualClock) -> None:
    """When counts are added, counts older than 72 hours are removed."""
    begin = clock()
    for hours in (0, 1, 71):
        store.add_counts(begin + timedelta(hours=hours), {"M": {"a": 1}})
    clock.advance(hours=72, minutes=1)
    store.add_counts(clock(), {"M": {"a": 1}})
    found = [one.minute for one in store.read_counts(begin)]
    kept = [begin + timedelta(hours=1), begin + timedelta(hours=71), clock()]
    same(found, kept, "the minutes that are left")
    same(len(store.read_counts(begin, step_minutes=30)), 3, "the steps that are left")
    clock.advance(days=9)
    store.add_counts(clock(), {"N": {"b": 1}})
    same([one.method for one in store.read_counts(begin)], ["N"], "the methods that are left")


@_where_kept
def concurrent_counts_add_up(store: StatisticsStore, clock: ManualClock) -> None:
    """Counts that threads add at the same time are all kept, whatever the order of methods."""
    names = "ABCDE"

    def add(number: int) -> None:
        for place in range(5):
            turned = names[number % 5 :] + names[: number % 5]
            store.add_counts(clock(), {name: {"n": 1, f"s{place}": 0.5} for name in turned})

    same(together(8, add), [None] * 8, "eight at once")
    series = {"n": 40, **{f"s{place}": 4.0 for place in range(5)}}
    wanted = dict.fromkeys(names, series)
    minutes = {one.method: dict(one.counts) for one in store.read_counts(clock())}
    same(minutes, wanted, "the minute")


@_where_kept
def load_has_the_work_in_progress(store: StatisticsStore, clock: ManualClock) -> None:
    """The load counts queued and running work by method, and running work by owner."""
    same(store.read_load([""], 9), Load([], {}, capped=False), "the load of nothing")
    first = clock()
    insert(store, held(clock, "waits", method="A", owner=""))
    insert(store, held(clock, "begun", method="A", parent="p/1", attempt=1))
    insert(store, record_of(clock, "outside", method="B"))
    for unique_id in ("claimed", "released", "lost", "ended", "hidden", "gone"):
        clock.advance(1)
        record = held(clock, unique_id, method="C", owner="")
        insert(store, record)
        until = clock() + timedelta(seconds=9)
        store.update(record.name, claim("us", until, clock()))
    store.update("operations/released", release(1, clock()))
    store.update("operations/lost", lose(1, clock(), clock()))
    store.update("operations/ended", end_of(clock))
    store.update("operations/hidden", delete(clock()))
    store.update("operations/gone", end_of(clock))
    store.update("operations/gone", delete(clock()))
    insert(store, held(clock, "elsewhere", method="C", parent="p/2", owner="them"))
    methods = [
        MethodLoad("A", 1, 1, first, "operations/waits"),
        MethodLoad("B", 0, 1, first, "operations/outside"),
        MethodLoad("C", 2, 1, first + timedelta(seconds=1), "operations/claimed"),
    ]
    found = store.read_load(["", "p/1", ""], 9)
    same(found, Load(methods, {"us": 2}, capped=False), "the load under two parents")
    found = store.read_load(["p/2"], 9)
    same((found.methods[0].running, dict(found.owners)), (1, {"them": 1}), "under the third")
    same(store.read_load([], 9), Load([], {}, capped=False), "under none")


@_where_kept
def load_reads_a_bounded_number_of_records(store: StatisticsStore, clock: ManualClock) -> None:
    """At most ``limit`` records are read, the oldest first; ``capped`` says whether more exist."""
    for number in range(6):
        clock.advance(1)
        insert(store, held(clock, str(number), owner="", parent=f"p/{number % 2}"))
    for limit, capped in ((3, True), (5, True), (6, False), (7, False)):
        found = store.read_load(["p/0", "p/1"], limit)
        same((found.methods[0].waiting, found.capped), (min(limit, 6), capped), f"limit {limit}")
        same(found.methods[0].oldest_name, "p/0/operations/0", "the oldest")
    found = store.read_load(["p/1", "p/0"], 0)
    expect(found.capped and not found.methods, "nothing is counted with a limit of 0")
