"""Checks of stores: claims take queued work once, in order and within limits (spec §2.8)."""

from __future__ import annotations

import threading
import time
import typing
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, Final

from lro._base.status import AnyMessage
from lro._engine.store_port import FREE_LANE, SUSPECT, WORK_WAITS, Claim, Claimed, Store
from lro._model.operation import Record, delete, lose, release, request_cancel, requeue, retry
from lro.testing._samples import (
    REQUEST,
    ManualClock,
    end_of,
    expect,
    held,
    ids,
    insert,
    record_of,
    same,
    together,
)

_ANY: Final[Mapping[str, int | None]] = {"M": None}
_LEASE: Final = timedelta(seconds=15)


def _waiting(
    clock: ManualClock, unique_id: str = "a", *, seconds: float = 0, **fields: Any
) -> Record:
    """Return a new queued record that is due in ``seconds``."""
    due = clock() + timedelta(seconds=seconds)
    return record_of(clock, unique_id, lease_until=due, **fields)


def _claim(
    store: Store,
    clock: ManualClock,
    most: int = 9,
    limits: Mapping[str, int | None] = _ANY,
    owner: str = "us",
    **more: Any,
) -> Claimed:
    return store.claim(Claim(owner, clock() + _LEASE, limits, most, **more))


def _said(found: Claimed) -> tuple[list[str], bool, datetime | None]:
    """Return the ids of the claimed operations, whether more work is due, and the next due time."""
    return ids([record for record, _ in found.works]), found.more, found.next_due


def _claimed(*given: Any, **more: Any) -> list[str]:
    """Return the ids of the claimed operations."""
    return ids([record for record, _ in _claim(*given, **more).works])


def claim_begins_an_attempt(store: Store, clock: ManualClock) -> None:
    """A claim begins the next attempt of queued work; it returns the stored record and request."""
    record = _waiting(clock, lost_attempts=1, caller="ann", metadata=REQUEST)
    store.insert(record, AnyMessage("x/a.Request", {"n": 1}), None)
    insert(store, _waiting(clock, "b"))
    clock.advance(5)
    found = _claim(store, clock, 1)
    begun = record.next_version(
        owner="us", lease_until=clock() + _LEASE, attempt=1, start_time=clock(), update_time=clock()
    )
    same(list(found.works), [(begun, AnyMessage("x/a.Request", {"n": 1}))], "what was claimed")
    same(store.get(record.name), begun, "the record")
    same(store.get(record.name), begun, "the record, the second time")
    same(list(store.find([record.name]).records), [begun], "the record found by its name")
    same(store.request(record.name), AnyMessage("x/a.Request", {"n": 1}), "the request")
    ended = store.update(record.name, end_of(clock))
    same(store.get(record.name), ended, "the record after its end")


def second_attempt_keeps_the_start_time(store: Store, clock: ManualClock) -> None:
    """A second attempt of released or lost work keeps the start time of the first attempt."""
    record = _waiting(clock)
    insert(store, record)
    began = clock.advance(1)
    same(_claimed(store, clock), ["a"], "what is claimed")
    store.update(record.name, release(1, clock.advance(1)))
    same(_claimed(store, clock), ["a"], "what is claimed after it was released")
    due = clock() + timedelta(seconds=2)
    store.update(record.name, lose(2, due, clock()))
    same(_said(_claim(store, clock)), ([], False, due), "what is claimed too soon")
    clock.advance(2)
    ((found, _),) = _claim(store, clock).works
    same((found.attempt, found.lost_attempts, found.start_time), (3, 1, began), "the third attempt")
    same(store.get(record.name), found, "the record")


def claim_of_zero_changes_nothing(store: Store, clock: ManualClock) -> None:
    """With ``max_count=0`` a claim only says whether work could be claimed now, or when."""
    same(_said(_claim(store, clock, 0)), ([], False, None), "a look at nothing")
    record = _waiting(clock, seconds=2)
    insert(store, record)
    for owner in ("us", ""):
        due = record.lease_until
        same(_said(_claim(store, clock, 0, owner=owner)), ([], False, due), "a look too soon")
    clock.advance(2)
    for owner in ("us", ""):
        same(_said(_claim(store, clock, 0, owner=owner)), ([], True, None), "a look at what is due")
    same(_said(_claim(store, clock, 0, {"M": 0})), ([], False, None), "a look within a limit")
    same(store.get(record.name), record, "the record")


def only_waiting_work_is_claimed(store: Store, clock: ManualClock) -> None:
    """No claim takes work that is owned, ended, of another method, or done outside the service."""
    insert(store, held(clock, "held", seconds=-1))
    insert(store, record_of(clock, "outside"))
    insert(store, _waiting(clock, "ended"))
    store.update("operations/ended", end_of(clock))
    insert(store, _waiting(clock, "gone"))
    store.update("operations/gone", lambda _: None)
    insert(store, _waiting(clock, "other", method="N"))
    for owner in ("us", ""):
        found = _claim(store, clock, owner=owner)
        same(_said(found), ([], False, None), "what waits")
    same(_claimed(store, clock, limits={}), [], "what waits of no method")
    both = {"M": None, "N": None, "O": None}
    same(_claimed(store, clock, limits=both), ["other"], "what waits of three methods")


def hidden_work_is_claimed(store: Store, clock: ManualClock) -> None:
    """Deleted work and work with a cancel request are claimed, so that the service can end them."""
    insert(store, _waiting(clock, "hidden", target="t"))
    store.update("operations/hidden", delete(clock()))
    insert(store, _waiting(clock, "stop"))
    store.update("operations/stop", request_cancel(clock()))
    same(_claimed(store, clock), ["hidden", "stop"], "what was claimed")
    state, asked = store.get("operations/hidden").state, store.get("operations/stop")
    same((state.value, asked.cancel_requested), ("HIDDEN", True), "what it is")


def earliest_due_is_claimed_first(store: Store, clock: ManualClock) -> None:
    """Claims take work of all methods by due time, then by name in code point order."""
    for unique_id, seconds in (("late", 9), ("z", 3), ("\U00010000", 2), ("\uffff", 2), ("B", 2)):
        method = "N" if unique_id in "zB" else "M"
        insert(store, _waiting(clock, unique_id, seconds=seconds, method=method))
    clock.advance(5)
    insert(store, _waiting(clock, "a", seconds=-4))
    both = {"N": None, "M": None}
    found = _claim(store, clock, 2, both)
    same(_said(found)[:2], (["a", "B"], True), "the first two")
    found = _claim(store, clock, 2, both)
    wanted = ["\uffff", "\U00010000"], True
    same(_said(found)[:2], wanted, "the next two")
    found = _claim(store, clock, 2, both)
    same(_said(found)[:2], (["z"], False), "the last one")


def work_is_claimed_from_its_due_time(store: Store, clock: ManualClock) -> None:
    """Work is claimed from its exact due time on; a claim before that returns the due time."""
    moments = [clock() + timedelta(seconds=seconds) for seconds in (1, 2, 3)]
    insert(store, _waiting(clock, "a", seconds=1))
    insert(store, _waiting(clock, "b", seconds=2))
    insert(store, _waiting(clock, "c", seconds=2.5, method="N"))
    insert(store, _waiting(clock, "d", seconds=3))
    clock.advance(1, microseconds=-1)
    same(_said(_claim(store, clock)), ([], False, moments[0]), "just before")
    clock.advance(microseconds=1)
    found = _claim(store, clock)
    same(_said(found), (["a"], False, moments[1]), "just then")
    found = _claim(store, clock, 0)
    same(_said(found), ([], False, moments[1]), "for none")
    clock.advance(1)
    found = _claim(store, clock, 0)
    same(_said(found), ([], True, moments[2]), "for none, due")
    same(_claim(store, clock, limits={"O": None}).next_due, None, "of another method")


def limit_of_a_method_holds(store: Store, clock: ManualClock) -> None:
    """A method's limit counts all its work that has an owner, and does not delay other methods."""
    for number in range(5):
        insert(store, _waiting(clock, f"a{number}"))
    insert(store, _waiting(clock, "n", method="N"))
    insert(store, held(clock, "theirs", owner="them", seconds=-9))
    insert(store, held(clock, "more", method="O"))
    clock.advance(1)
    limits = {"M": 3, "N": None, "O": 1}
    found = _claim(store, clock, 9, limits)
    same(_said(found), (["a0", "a1", "n"], False, None), "what was claimed")
    insert(store, _waiting(clock, "n2", method="N"))
    same(_claimed(store, clock, 1, limits), ["n2"], "what is claimed of the other method")
    same(_claimed(store, clock, 9, limits), [], "what is claimed at the limit")
    store.update("operations/a0", end_of(clock))
    insert(store, _waiting(clock, "n3", method="N"))
    found = _claim(store, clock, 1, limits)
    same(_said(found)[:2], (["a2"], True), "after an end")
    same(_claimed(store, clock, 9, {"M": 4}), ["a3"], "with a higher limit")
    same(_claimed(store, clock, 9, {"M": 0}), [], "with a lower limit")
    same(_claimed(store, clock, 9, {"M": None}), ["a4"], "without a limit")


def one_operation_is_claimed_by_name(store: Store, clock: ManualClock) -> None:
    """A claim by name takes work that is queued and due, if the methods and limits allow it."""
    insert(store, _waiting(clock, "a"))
    insert(store, _waiting(clock, "b"))
    insert(store, _waiting(clock, "later", seconds=99))
    insert(store, held(clock, "held", method="N"))
    insert(store, _waiting(clock, "n", method="N"))
    insert(store, record_of(clock, "outside"))
    limits = {"M": None, "N": 1}
    for unique_id in ("later", "held", "n", "outside", "never", "\ud800", "a\0"):
        name = f"operations/{unique_id}"
        found = _claim(store, clock, limits=limits, name=name)
        same(_said(found), ([], False, None), f"a claim of {unique_id!r}")
    name = "operations/b"
    same(_said(_claim(store, clock, 0, name=name)), ([], True, None), "a claim of none")
    clock.advance(1)
    same(_claimed(store, clock, limits={"N": None}, name=name), [], "of another method")
    same(_claimed(store, clock, name=name, excluded=[name]), [], "if it is left out")
    found = _claim(store, clock, limits=limits, name=name)
    same(found.works[0], (store.get(name), REQUEST), "what was claimed")
    same((len(found.works), found.works[0][0].attempt), (1, 1), "the attempt")
    same(_claimed(store, clock, limits=limits, name=name), [], "what was claimed already")
    same(_claimed(store, clock, limits={"N": 2}, name="operations/n"), ["n"], "within the limit")
    same(_claimed(store, clock), ["a"], "what is left")


def sent_operation_is_claimed_before_it_is_due(store: Store, clock: ManualClock) -> None:
    """Work can be claimed by a sent name, even before it is due, until the work is queued again."""
    insert(store, _waiting(clock, "a", seconds=2))
    insert(store, _waiting(clock, "started", seconds=60, sent_time=clock()))
    same(_claimed(store, clock, name="operations/started"), ["started"], "sent by its start")
    name = "operations/a"
    same(_claimed(store, clock, name=name), [], "before it is due")
    clock.advance(2)
    same(_claimed(store, clock, owner=""), ["a"], "what is to be sent")
    found = _claim(store, clock, name=name).works
    same([(one.attempt, one.sent_time) for one, _ in found], [(1, None)], "what was claimed")
    store.update(name, retry(1, clock() + _LEASE, clock()))
    same(_claimed(store, clock, name=name), [], "with an older message")
    clock.advance(15)
    same(_claimed(store, clock, owner="", name=name), ["a"], "what is to be sent again")
    due = clock() + timedelta(seconds=1)
    store.update(name, requeue(due))
    same(_claimed(store, clock, name=name), [], "what was called back")
    same(_said(_claim(store, clock, 0, owner="")), ([], False, due), "when it is due")
    store.update(name, requeue(clock()))
    same(store.get(name).lease_until, due, "when it is due, called back again")


def sent_names_count_for_limits(store: Store, clock: ManualClock) -> None:
    """Work whose name was sent counts towards the limit of its method or lane until it is due."""
    for number in range(6):
        insert(store, _waiting(clock, f"a{number}", lane=2 + number % 2))
    insert(store, held(clock, "held", lane=2))
    limit = {"M": 3}
    same(_said(_claim(store, clock, 1, limit, ""))[:2], (["a0"], True), "the first")
    same(_said(_claim(store, clock, 9, limit, ""))[:2], (["a1"], False), "the second")
    same(_claimed(store, clock, 9, limit, name="operations/a1"), ["a1"], "what begins")
    same(_claimed(store, clock, 9, limit), ["a2"], "of what waits, by others")
    store.update("operations/a1", end_of(clock))
    store.update("operations/a2", end_of(clock))
    same(_claimed(store, clock, 9, limit, ""), ["a3"], "after two ends")
    same(_claimed(store, clock, 9, {"M": 2}, "", keyed=["M"]), ["a5"], "in another lane")
    same(_claimed(store, clock, owner="", rates={"M": (4, _LEASE)}), ["a4"], "within a rate")
    clock.advance(15)
    same(_claimed(store, clock, 9, limit, ""), ["a0", "a3"], "what is sent again")


def excluded_names_are_not_claimed(store: Store, clock: ManualClock) -> None:
    """A claim skips excluded names and takes other work."""
    for unique_id in "abcd":
        insert(store, _waiting(clock, unique_id))
    without = ["operations/a", "operations/c", "operations/never", "operations/\ud800"]
    found = _claim(store, clock, 1, excluded=without)
    same(_said(found)[:2], (["b"], True), "the first")
    found = _claim(store, clock, 1, excluded=frozenset(without))
    same(_said(found)[:2], (["d"], False), "the second")
    same(_claimed(store, clock, excluded=()), ["a", "c"], "the others")


def claim_without_owner_postpones(store: Store, clock: ManualClock) -> None:
    """A claim without an owner starts no work; it sets a new due time.

    The wait is as long as the lease, or as the time since the name was first sent, whichever is
    longer.
    """
    record = _waiting(clock)
    insert(store, record)
    insert(store, held(clock, "held"))
    clock.advance(99)
    sent = clock()
    later = record.next_version(lease_until=clock() + _LEASE, sent_time=sent)
    found = _claim(store, clock, owner="")
    same((list(found.works), found.more), ([(later, REQUEST)], False), "what was put off")
    same(store.get(record.name), later, "the record")
    same(_claimed(store, clock, owner=""), [], "what is due then")
    clock.advance(60)
    later = later.next_version(lease_until=clock() + timedelta(seconds=60))
    same(list(_claim(store, clock, owner="").works), [(later, REQUEST)], "put off for longer")
    same(store.get(record.name), later, "the record after that")
    same(_claim(store, clock).next_due, later.lease_until, "when it is due")
    clock.advance(60)
    same(_claimed(store, clock), ["a"], "what is claimed then")


def concurrent_claims_share_the_work(store: Store, clock: ManualClock) -> None:
    """Eight threads claim at the same time, and each operation is claimed exactly once."""
    for number in range(60):
        insert(store, _waiting(clock, f"{number:02}", method="MN"[number % 2]))

    def claim_all(number: int) -> list[Record]:
        mine: list[Record] = []
        while True:
            both = {"M": None, "N": None}
            found = _claim(store, clock, 3, both, f"owner {number}")
            mine += [record for record, _ in found.works]
            if not found.more:
                return mine

    shares = typing.cast("list[list[Record]]", together(8, claim_all))
    taken = [record for share in shares for record in share]
    same(sorted(ids(taken)), [f"{n:02}" for n in range(60)], "what was claimed, by all together")
    for number, share in enumerate(shares):
        for record in share:
            same((record.owner, record.attempt), (f"owner {number}", 1), "who has it")
            same(store.get(record.name), record, "the record")


def concurrent_claims_keep_the_order(store: Store, clock: ManualClock) -> None:
    """A claim may overtake only operations that other threads claim at the same time."""
    claimers, waiting = 8, 80
    for number in range(waiting):
        insert(store, _waiting(clock, f"{number:02}", seconds=number - waiting))
    lock, left = threading.Lock(), set(range(waiting))
    ahead_of: list[int] = []

    def claim_all(_: int) -> None:
        while claimed := _claimed(store, clock, 1):
            with lock:
                place = int(claimed[0])
                left.remove(place)
                ahead_of.append(sum(one < place for one in left))

    same(together(claimers, claim_all), [None] * claimers, "errors of the claims")
    same(left, set(), "what is left")
    expect(max(ahead_of) < claimers, f"{claimers} claimed, one ahead of {max(ahead_of)} operations")


def limit_holds_for_concurrent_claims(store: Store, clock: ManualClock) -> None:
    """A method's limit holds while claims and ends run concurrently, and all work gets done."""
    for number in range(40):
        insert(store, _waiting(clock, f"{number:02}", method="MN"[number % 4 == 0]))
    seen: list[int] = []

    def work_all(_: int) -> int:
        done = 0
        while True:
            found = _claim(store, clock, 2, {"M": 3, "N": None})
            time.sleep(0.002)  # other threads claim, which reveals a wrong count
            records = store.page("", None, 99).records
            seen.append(sum(one.owner != "" and one.method == "M" for one in records))
            for work in found.works:
                store.update(work[0].name, end_of(clock))
            done += len(found.works)
            if all(one.done for one in records):
                return done

    done = together(8, work_all)
    same(sum(one for one in done if isinstance(one, int)), 40, f"how many were done, of {done}")
    expect(max(seen) <= 3, f"{max(seen)} of a method with a limit of 3 ran at once")


def notification_of_work_changes_no_record(store: Store, clock: ManualClock) -> None:
    """A notification with ``WORK_WAITS``, which is not a record's name, changes no record."""
    record = _waiting(clock)
    insert(store, record)
    store.notify_others(WORK_WAITS)
    same(store.get(record.name), record, "the record")


def claim_uses_the_clock_of_the_store(store: Store, clock: ManualClock) -> None:
    """The store's clock, not the lease of the claim, decides which work is due."""
    insert(store, _waiting(clock, seconds=1))
    until: datetime = clock() + timedelta(days=999)
    same(list(store.claim(Claim("us", until, _ANY, 9)).works), [], "what is due")
    clock.advance(1)
    ((record, _),) = store.claim(Claim("us", until, _ANY, 9)).works
    same((record.lease_until, record.start_time), (until, clock()), "lease and start")


def suspects_are_claimed_separately(store: Store, clock: ManualClock) -> None:
    """Work that has lost two workers is claimed only by a claim of suspects, or by its name."""
    for unique_id, lost in (("a", 0), ("b", 1), ("c", 2), ("d", 3)):
        insert(store, _waiting(clock, unique_id, lost_attempts=lost))
    insert(store, _waiting(clock, "e", seconds=9, lost_attempts=2))
    due = clock() + timedelta(seconds=9)
    same(_said(_claim(store, clock, 0, suspects=None)), ([], True, due), "a look for both")
    same(_said(_claim(store, clock)), (["a", "b"], False, None), "all others")
    same(_said(_claim(store, clock, 0, suspects=None)), ([], True, due), "a look for the suspects")
    same(_said(_claim(store, clock, 1, suspects=True)), (["c"], True, due), "the first suspect")
    same(_claimed(store, clock, name="operations/d"), ["d"], "a suspect that is asked for")
    store.update("operations/a", lose(1, clock(), clock()))
    store.update("operations/b", lose(1, clock(), clock()))
    same(_claimed(store, clock), ["a"], "what was lost once")
    same(_claimed(store, clock, suspects=True), ["b"], "what has become a suspect")


def lowest_rank_is_claimed_first(store: Store, clock: ManualClock) -> None:
    """Lower ranks are claimed first, in all methods; work that is not due delays no other work."""
    for unique_id, rank, seconds in (("low", 3, 0), ("high", -3, 2), ("later", -9, 9), ("b", 0, 1)):
        method = "N" if unique_id == "b" else "M"
        insert(store, _waiting(clock, unique_id, seconds=seconds, method=method, rank=rank))
    insert(store, _waiting(clock, "high2", seconds=3, rank=-3))
    later = clock() + timedelta(seconds=9)
    clock.advance(5)
    both = {"N": None, "M": None}
    same(_said(_claim(store, clock, 0, both)), ([], True, later), "a look")
    same(_said(_claim(store, clock, 2, both)), (["high", "high2"], True, later), "the first two")
    same(_said(_claim(store, clock, 9, both)), (["b", "low"], False, later), "the others")
    clock.advance(4)
    same(_claimed(store, clock, 9, both), ["later"], "the last one")


def limit_holds_in_each_lane(store: Store, clock: ManualClock) -> None:
    """The limit applies per lane to work of all ranks; work with an empty key has no limit."""
    for unique_id, lane in (("a1", 2), ("a2", 2), ("a3", 2), ("b1", 3), ("c1", 4), ("c2", 4)):
        insert(store, _waiting(clock, unique_id, lane=lane))
        clock.advance(1)
    insert(store, _waiting(clock, "none", lane=FREE_LANE))
    insert(store, held(clock, "other", method="N", lane=2))
    keyed: dict[str, Any] = {"keyed": ["M"], "limits": {"M": 1}}
    same(_said(_claim(store, clock, 2, after_lane=2, **keyed)), (["b1", "c1"], True, None), "two")
    same(
        _said(_claim(store, clock, 1, after_lane=4, **keyed))[:2], (["none"], True), "without a key"
    )
    insert(store, _waiting(clock, "none2", lane=FREE_LANE))
    same(_claimed(store, clock, after_lane=4, **keyed), ["none2", "a1"], "the last free lane")
    same(_said(_claim(store, clock, 9, **keyed)), ([], False, None), "when no lane is free")
    same(_claimed(store, clock, name="operations/c2", **keyed), [], "by its name")
    store.update("operations/c1", end_of(clock))
    same(_claimed(store, clock, name="operations/c2", **keyed), ["c2"], "when its lane is free")
    same(_claimed(store, clock, 9, {"M": 2}, keyed=["M"]), ["a2"], "with a higher limit")
    same(_claimed(store, clock, 9, {"M": 6}), [], "with a limit of the method")
    same(_claimed(store, clock, 9, {"M": 7}), ["a3"], "with a higher one")


def work_without_keys_shares_one_limit(store: Store, clock: ManualClock) -> None:
    """Work that was stored before its method got keys shares one limit."""
    for unique_id, lane in (("old1", 0), ("old2", 0), ("old3", 0), ("new1", 2), ("new2", 2)):
        insert(store, _waiting(clock, unique_id, lane=lane))
        clock.advance(1)
    keyed: dict[str, Any] = {"keyed": ["M"], "limits": {"M": 1}}
    rates = {"M": (2, timedelta(hours=1))}
    same(_claimed(store, clock, 9, **keyed, rates=rates), ["old1", "new1"], "one of each")
    same(_claimed(store, clock, 9, **keyed), [], "while these run")
    same(_said(_claim(store, clock, 9, owner="", **keyed))[0], [], "to be sent")
    same(_claimed(store, clock, name="operations/old2", **keyed), [], "by its name")
    for unique_id in ("old1", "new1"):
        store.update(f"operations/{unique_id}", end_of(clock))
    same(_claimed(store, clock, 9, **keyed, rates=rates), ["old2", "new2"], "the next ones")
    same(_claimed(store, clock, 9, {"M": None}, keyed=["M"], rates=rates), [], "within the rate")


def due_work_is_found_behind_other_ranks(store: Store, clock: ManualClock) -> None:
    """Due work is found behind any amount of work of other ranks that is not due."""
    for number in range(200):
        insert(store, _waiting(clock, f"later{number}", rank=number - 100, seconds=99))
    for rank in (101, 102, 103):
        insert(store, _waiting(clock, f"due{rank}", rank=rank))
        clock.advance(0.001)
    for limits in ({"M": None}, {"M": 9}, {"M": 9, "N": None}):
        found = _claim(store, clock, 1, limits)
        same(len(found.works), 1, "what is due")
    due = store.get("operations/later0").lease_until
    for limits in ({"M": None}, {"M": 9}):
        same(_said(_claim(store, clock, 1, limits)), ([], False, due), "when nothing is due")


def lanes_take_turns(store: Store, clock: ManualClock) -> None:
    """The first operation of each lane is claimed before any second operation.

    Work of a lower rank is claimed first, whatever its lane.
    """
    for number in range(6):
        insert(store, _waiting(clock, f"a{number}", lane=1))
        clock.advance(1)
    for unique_id, lane, rank in (("b0", 2, 0), ("b1", 2, 0), ("c0", 3, 0), ("c1", 3, -1)):
        insert(store, _waiting(clock, unique_id, lane=lane, rank=rank))
        clock.advance(1)
    found = _claim(store, clock, 9, keyed=["M"], after_lane=2)
    wanted = ["c1", "c0", "a0", "b0", "a1", "b1", "a2", "a3", "a4"]
    same(_said(found)[:2], (wanted, True), "what is claimed")


def due_work_is_found_behind_other_lanes(store: Store, clock: ManualClock) -> None:
    """Due work is found behind any number of lanes whose work is not due or is at its limit."""
    for number in range(300):
        insert(store, _waiting(clock, f"later{number}", lane=number + 1, seconds=9 + number))
    insert(store, _waiting(clock, "low", lane=5))
    insert(store, _waiting(clock, "high", lane=900))
    keyed: dict[str, Any] = {"keyed": ["M"], "limits": {"M": 1}}
    same(_claimed(store, clock, 1, after_lane=400, **keyed), ["high"], "what is due")
    same(_claimed(store, clock, 1, after_lane=400, **keyed), ["low"], "what is due in another lane")
    due = clock() + timedelta(seconds=9)
    for most in (0, 1):
        same(_said(_claim(store, clock, most, **keyed)), ([], False, due), "when nothing is due")
    clock.advance(9)
    same(_claimed(store, clock, 1, after_lane=150, **keyed), ["later0"], "what is due then")
    insert(store, _waiting(clock, "put off", lane=300))
    due_time = store.get("operations/put off").lease_until
    found = _claim(store, clock, owner="", keyed=["M"])
    same(ids([record for record, _ in found.works]), ["put off"], "what is put off")
    expect(store.get("operations/put off").lease_until != due_time, "it is not put off")


def rate_limits_begins_in_any_time_span(store: Store, clock: ManualClock) -> None:
    """A rate bounds how many operations begin in any time span.

    With keys, the bound applies to each lane. A claim also returns the time at which more
    operations may begin.
    """
    for number in range(7):
        insert(store, _waiting(clock, f"a{number}", lane=2 + number % 2))
    rates = {"M": (2, timedelta(seconds=10))}
    same(_claimed(store, clock, 1, rates=rates), ["a0"], "the first")
    first = clock()
    clock.advance(4)
    next_due = first + timedelta(seconds=10)
    found = _claim(store, clock, 9, rates=rates)
    same(ids([record for record, _ in found.works]), ["a1"], "the second")
    expect(found.more or found.next_due == next_due, "the next claim would be late")
    same(_said(_claim(store, clock, 9, rates=rates)), ([], False, next_due), "the third")
    same(_claimed(store, clock, name="operations/a2", rates=rates), [], "one that is asked for")
    clock.advance(6, microseconds=-1)
    same(_said(_claim(store, clock, 0, rates=rates)), ([], False, next_due), "just before")
    clock.advance(microseconds=1)
    same(_claimed(store, clock, 9, rates=rates), ["a2"], "just then")
    store.expire(9)
    next_due = first + timedelta(seconds=14)
    same(_said(_claim(store, clock, 9, rates=rates)), ([], False, next_due), "after a sweep")
    keyed = {"keyed": ["M"], "rates": {"M": (1, timedelta(seconds=10))}}
    clock.advance(20)
    same(_claimed(store, clock, 9, **keyed), ["a4", "a3"], "one of each lane")
    clock.advance(10)
    same(_claimed(store, clock, 9, **keyed), ["a6", "a5"], "the next of each lane")


def work_too_late_to_begin_is_found(store: Store, clock: ManualClock) -> None:
    """Work that has not begun by its ``begin_before`` is found.

    The next ``begin_before`` of waiting work is returned too.
    """
    for unique_id, seconds in (("a", 1), ("b", 2), ("c", 3)):
        before = clock() + timedelta(seconds=seconds)
        insert(store, _waiting(clock, unique_id, begin_before=before, method="N"))
    same(store.orphans([], 9).next_look, clock() + timedelta(seconds=1), "when to look")
    same(_claimed(store, clock, 1, {"N": None}), ["a"], "what begins")
    clock.advance(2)
    same(ids(store.orphans([], 9).unbegun), ["b"], "what is too late")
    store.update("operations/a", release(1, clock()))
    store.update("operations/b", end_of(clock))
    clock.advance(1)
    found = store.orphans(["N"], 9)
    same(ids(found.unbegun), ["c"], "what has begun before is not too late")
    same(found.unbegun[0], store.get("operations/c"), "the record")


def paused_methods_are_not_claimed(store: Store, clock: ManualClock) -> None:
    """No claim returns work of a paused method or says that it is due; other work is claimed."""
    for id_, method, seconds in (("a", "M", 0), ("b", "N", 0), ("c", "M", 5), ("d", "N", 9)):
        insert(store, _waiting(clock, id_, method=method, seconds=seconds))
    insert(store, _waiting(clock, "s", lost_attempts=SUSPECT))
    insert(store, held(clock, "held"))
    store.pause("M")
    since = clock()
    clock.advance(1)
    store.pause("M")
    same(dict(store.paused()), {"M": since}, "the paused methods")
    rate = {"M": (1, timedelta(seconds=1))}
    for more in ({}, {"name": "operations/a"}, {"suspects": None}, {"rates": rate}):
        for owner, limit in (("us", None), ("us", 5), ("", None)):
            found = _claim(store, clock, 0, {"M": limit}, owner, **more)
            same(_said(found), ([], False, None), f"a look with {more}")
            same(_said(_claim(store, clock, 9, {"M": limit}, owner, **more)), ([], False, None), "")
    both: Mapping[str, int | None] = {"M": None, "N": 3}
    due = clock() + timedelta(seconds=8)
    same(_said(_claim(store, clock, limits=both)), (["b"], False, due), "a claim of both methods")
    same(store.count_waiting(9), 4, "how much waits")
    store.resume("M")
    store.resume("M")
    same(dict(store.paused()), {}, "the methods that are paused after that")
    same(_said(_claim(store, clock))[0], ["a"], "a claim after the pause")


def pause_holds_for_concurrent_claims(store: Store, clock: ManualClock) -> None:
    """After ``pause`` has returned, no claim takes work of the method."""
    for number in range(60):
        insert(store, _waiting(clock, f"{number:02}"))
    paused = threading.Event()
    late: list[str] = []

    def claim(number: int) -> None:
        if number == 0:
            store.pause("M")
            paused.set()
            return
        over = False
        while not over:
            over = paused.is_set()
            found = _claimed(store, clock, 1, owner=f"owner{number}")
            late.extend(found if over else ())

    together(5, claim)
    same(late, [], "what was claimed after the pause")
