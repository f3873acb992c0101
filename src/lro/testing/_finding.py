"""Targets, leases, expiry: what every store promises of finding records again."""

from __future__ import annotations

from collections.abc import Collection
from datetime import UTC, timedelta

from lro._base.any import Any
from lro._base.errors import TargetBusy
from lro._base.status import Code, Status
from lro._engine.store_port import Inserted, Orphans, Store
from lro._model.page_tokens import KEY_BYTES
from lro._model.record import Record, State
from lro._model.transitions import claim, delete, release, request_cancel
from lro.testing._clock import ManualClock, expect, refuses, same, together
from lro.testing._samples import METHODS, end_of, gone, held, ids, insert, record_of


def records_are_found_by_their_names(store: Store, clock: ManualClock) -> None:
    """Those that are there, each once, just as ``get`` gives them, visible to callers or not."""
    names = [f"operations/{unique_id}" for unique_id in ("running", "done", "expired", "hidden")]
    for unique_id in ("running", "done", "expired", "hidden", "other"):
        insert(store, held(clock, unique_id))
    insert(store, record_of(clock, "deleted"))
    store.update("operations/done", end_of(clock))
    store.update("operations/expired", end_of(clock, days=1))
    for unique_id in ("hidden", "deleted"):
        store.update(f"operations/{unique_id}", delete(clock()))
    clock.advance(days=1)
    asked = [*names, names[0], "operations/deleted", "operations/never", "", "a\0", "a\ud800"]
    wanted = sorted((store.get(name) for name in names), key=_by_name)
    same(_found(store, asked), wanted, "the records found")
    same(_found(store, frozenset(names)), wanted, "those of a set of names")
    same(_found(store, ()), [], "those of no names")


def what_is_found_is_never_old(store: Store, clock: ManualClock) -> None:
    """A record that was found is read again when it was changed, its lease prolonged, or lost."""
    names = [insert(store, held(clock, unique_id)).record.name for unique_id in "abc"]
    store.find(names)
    store.update(names[0], request_cancel(clock()))
    store.renew("us", clock() + timedelta(hours=1), [names[1]])
    store.forget(names[2])
    wanted = [store.get(name) for name in names[:2]]
    for time in ("first", "second"):
        same(_found(store, names), wanted, f"the records, the {time} time")


def many_are_found_in_one_read(store: Store, clock: ManualClock) -> None:
    """More than a statement could have parameters, odd characters in their names."""
    ids_ = [f"{n}\u2603'\"\\,{{}}" for n in range(3000)]
    there = [insert(store, record_of(clock, unique_id)).record for unique_id in ids_[::1000]]
    found = _found(store, [f"operations/{unique_id}" for unique_id in ids_])
    same(found, sorted(there, key=_by_name), "those that are there")


def what_is_found_is_bounded_in_bytes(store: Store, clock: ManualClock) -> None:
    """The names that are left for another call are in ``rest``, also after records were read."""
    packed = Any("type.googleapis.com/a.M", {"s": "\u00e9" * 2000})
    names = [insert(store, record_of(clock, one, metadata=packed)).record.name for one in "abcde"]
    weight = store.get(names[0]).weight
    for changed in (names, names[:2], ()):
        for name in changed:
            store.update(name, lambda record: record.next_version())
        for room, count in ((5 * weight, 5), (5 * weight - 1, 4), (2 * weight, 2), (1, 1)):
            found = store.find([*names, "operations/never"], room)
            same(len(found.records), count, f"how many records of {weight} bytes {room} allow")
            known = {record.name for record in found.records}
            expect(known.isdisjoint(found.rest), "none is both found and left")
            expect(known | set(found.rest) >= set(names), "each is found or left")
            if count == 5:
                same(list(found.rest), [], "those left, if all were found")


def a_target_has_one_operation_in_progress(store: Store, clock: ManualClock) -> None:
    """A second one is refused; other targets, and work without one, go beside it (spec §9.5)."""
    insert(store, record_of(clock, target="t"))
    busy = record_of(clock, "b", target="t")
    error = refuses(TargetBusy, lambda: insert(store, busy), "the target is busy")
    same(error.target, "t", "the target that the error names")
    gone(store, busy.name)
    for number, target in enumerate(("u", "", "")):
        expect(insert(store, record_of(clock, str(number), target=target)).fresh, "is free")


def the_end_of_the_work_frees_the_target(store: Store, clock: ManualClock) -> None:
    """However it ends."""
    for number, result in enumerate((None, Status(Code.ABORTED, ""), Status(Code.CANCELLED, ""))):
        record = record_of(clock, str(number), target="t")
        expect(insert(store, record).fresh, "the target is free")
        store.update(record.name, end_of(clock, result))


def deleting_does_not_free_the_target(store: Store, clock: ManualClock) -> None:
    """The record is hidden until its work ends, and then gone for good (spec §9.5)."""
    record = record_of(clock, target="t")
    insert(store, record)
    store.update(record.name, delete(clock()))
    same(store.get(record.name).state, State.HIDDEN, "the state of the deleted record")
    refuses(TargetBusy, lambda: insert(store, record_of(clock, "b", target="t")), "still busy")
    same(store.update(record.name, end_of(clock)), None, "the end of the work")
    gone(store, record.name)
    expect(insert(store, record_of(clock, "b", target="t")).fresh, "the target is free then")


def one_target_at_once_starts_one(store: Store, clock: ManualClock) -> None:
    """Of concurrent inserts for one target exactly one is stored."""
    found = together(8, lambda n: insert(store, record_of(clock, str(n), target="t")))
    same(sum(isinstance(one, Inserted) for one in found), 1, "how many were stored")
    same(sum(isinstance(one, TargetBusy) for one in found), 7, "how many were refused")


def a_renewal_is_of_one_owner(store: Store, clock: ManualClock) -> None:
    """It prolongs the leases of that owner alone, hidden work included."""
    for record in (
        held(clock, "ours"),
        held(clock, "hidden", target="t"),
        held(clock, "theirs", owner="them"),
        record_of(clock, "nobody's"),
        held(clock, "ended"),
    ):
        insert(store, record)
    store.update("operations/hidden", delete(clock()))
    store.update("operations/ended", end_of(clock))
    until = clock() + timedelta(hours=1)
    store.renew("us", until)
    renewed = {
        name: store.get(f"operations/{name}").lease_until
        for name in ("ours", "hidden", "theirs", "nobody's", "ended")
    }
    old = clock() + timedelta(seconds=15)
    wanted = {"ours": until, "hidden": until, "theirs": old, "nobody's": None, "ended": None}
    same(renewed, wanted, "the leases after it")


def a_renewal_is_of_the_names_given(store: Store, clock: ManualClock) -> None:
    """Only the named leases are prolonged, and only their cancellations reported."""
    for unique_id in ("kept", "dropped"):
        insert(store, held(clock, unique_id))
        store.update(f"operations/{unique_id}", request_cancel(clock()))
    until = clock() + timedelta(hours=1)
    found = store.renew("us", until, ["operations/kept", "operations/no-such"])
    same(list(found.cancel_requested), ["operations/kept"], "those asked to cancel")
    same(list(found.left), [], "those that could not be renewed")
    same(store.get("operations/kept").lease_until, until, "the lease of the one named")
    left = store.get("operations/dropped").lease_until
    same(left, clock() + timedelta(seconds=15), "the lease of the other")
    same(list(store.renew("us", until, []).cancel_requested), [], "those of no name at all")


def a_renewal_tells_of_cancellations(store: Store, clock: ManualClock) -> None:
    """It gives the names of the owner's work that is asked to stop (spec §2.6)."""
    for unique_id, owner in (("a", "us"), ("b", "us"), ("c", "them"), ("d", "us")):
        insert(store, held(clock, unique_id, owner=owner))
    for unique_id in "acd":
        store.update(f"operations/{unique_id}", request_cancel(clock()))
    store.update("operations/d", end_of(clock))
    same(
        sorted(store.renew("us", clock()).cancel_requested),
        ["operations/a"],
        "who is asked to stop",
    )


def orphans_are_work_whose_lease_ran_out(store: Store, clock: ManualClock) -> None:
    """Work is lost from the exact end of its lease, hidden or not; not if it has ended."""
    insert(store, held(clock, "a", seconds=10))
    insert(store, held(clock, "hidden", seconds=10, target="t"))
    store.update("operations/hidden", delete(clock()))
    insert(store, held(clock, "later", seconds=20))
    insert(store, held(clock, "ended", seconds=10))
    store.update("operations/ended", end_of(clock))
    insert(store, record_of(clock, "unheld"))
    ends = clock() + timedelta(seconds=10), clock() + timedelta(seconds=20)
    clock.advance(seconds=10, microseconds=-1)
    found = store.orphans(METHODS, 9)
    same((found.records, found.next_lease_end), ((), ends[0]), "just before the end of the lease")
    clock.advance(microseconds=1)
    found = store.orphans(METHODS, 9)
    same(sorted(ids(found.records)), ["a", "hidden"], "at the end of the lease")
    same(found.next_lease_end, ends[1], "the next end of a lease")
    same(len(store.orphans(METHODS, 1).records), 1, "how many, if one is wanted")
    same(store.orphans({"N"}, 9), Orphans((), None), "those of another method")
    same(len(store.orphans({"N", "M"}, 9).records), 2, "those of several methods")


def work_handed_back_is_an_orphan_at_once(store: Store, clock: ManualClock) -> None:
    """Until a worker claims it."""
    record = held(clock)
    insert(store, record)
    until = clock() + timedelta(seconds=15)
    store.update(record.name, claim("us", until, clock()))
    store.update(record.name, release(1, clock()))
    same(ids(store.orphans(METHODS, 9).records), ["a"], "the orphans")
    store.update(record.name, claim("them", until, clock()))
    found = store.orphans(METHODS, 9)
    same((found.records, found.next_lease_end), ((), until), "the orphans after the claim")


def records_expire(store: Store, clock: ManualClock) -> None:
    """From exactly their moment they are removed; work in progress never (spec §9.4)."""
    for unique_id, days in (("a", 1), ("b", 1), ("c", 2), ("d", None)):
        insert(store, record_of(clock, unique_id))
        if days is not None:
            store.update(f"operations/{unique_id}", end_of(clock, days=days))
    clock.advance(days=1, microseconds=-1)
    early = store.expire(9)
    same((list(early.names), early.more), ([], False), "just before the first expiry")
    clock.advance(microseconds=1)
    sweeps = [store.expire(1), store.expire(9), store.expire(9)]
    removed = [name for sweep in sweeps for name in sweep.names]
    same(sorted(removed), ["operations/a", "operations/b"], "what is removed, one and then more")
    same([sweep.more for sweep in sweeps], [True, False, False], "whether there is more")
    gone(store, "operations/a")
    clock.advance(days=10_000)
    same(list(store.expire(9).names), ["operations/c"], "what is removed much later")
    same(ids(store.page("", None, 9).records), ["d"], "what is left")


def what_it_says_of_itself_stays(store: Store, clock: ManualClock) -> None:
    """The secret, 64 bytes and no constant; whether its verbs block, and whether it is shared."""
    said = store.secret(), store.reads_block, store.writes_block, store.shared
    same(len(said[0]), KEY_BYTES, "the length of the secret")
    expect(len(set(said[0])) > 16, "the secret is random")
    same([type(flag) for flag in said[1:]], [bool, bool, bool], "the types of the flags")
    clock.advance(days=1)
    found = store.secret(), store.reads_block, store.writes_block, store.shared
    same(found, said, "all that a day later")


def the_clock_is_the_one_given(store: Store, clock: ManualClock) -> None:
    """It goes when that one goes, and shows UTC."""
    same((store.now(), store.now().tzinfo), (clock(), UTC), "the moment")
    clock.advance(seconds=5)
    same(store.now(), clock(), "the moment later")


def closing_twice_is_closing(store: Store, clock: ManualClock) -> None:
    """``close`` is idempotent."""
    record: Record = record_of(clock)
    insert(store, record)
    store.close()
    store.close()


def _found(store: Store, names: Collection[str]) -> list[Record]:
    found = store.find(names)
    same(list(found.rest), [], "names that were not looked at")
    return sorted(found.records, key=_by_name)


def _by_name(record: Record) -> str:
    return record.name
