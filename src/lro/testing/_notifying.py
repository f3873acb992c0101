"""Checks of stores that find pending notifications (``lro.adapters.OutboxStore``)."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Sequence
from datetime import timedelta
from typing import Final

from lro._base.errors import InvalidArgument, LeaseLost
from lro._engine.store_port import OutboxStore, Store, keeps_outbox
from lro._model.operation import (
    Change,
    Record,
    delete,
    request_cancel,
    settle_notifications,
    with_derived,
)
from lro.testing._samples import (
    ManualClock,
    StoreCheck,
    end_of,
    expect,
    gone,
    held,
    ids,
    insert,
    record_of,
    refuses,
    same,
    together,
)

_LEASE: Final = timedelta(seconds=60)
_NOTIFY: Final = '{"to": "\\u2603 \u2603"}'


def _where_kept(check: Callable[[OutboxStore, ManualClock], None]) -> StoreCheck:
    @functools.wraps(check)
    def checked(store: Store, clock: ManualClock) -> None:
        if keeps_outbox(store):
            check(store, clock)

    return checked


def _end_pending(clock: ManualClock, days: float = 30) -> Change:
    return with_derived(end_of(clock, days=days), sends=lambda _: True)


def _insert_pending(store: Store, clock: ManualClock, *unique_ids: str, days: float = 30) -> None:
    """Insert operations, a second apart, and end each with a pending notification."""
    for unique_id in unique_ids:
        clock.advance(1)
        insert(store, record_of(clock, unique_id, notify=_NOTIFY))
        store.update(f"operations/{unique_id}", _end_pending(clock, days))


def _claim(store: OutboxStore, clock: ManualClock, limit: int = 99) -> Sequence[Record]:
    return store.claim_due(clock() + _LEASE, limit)


@_where_kept
def end_marks_pending_notifications(store: OutboxStore, clock: ManualClock) -> None:
    """The update that ends an operation sets ``notify_at``, which is None before."""
    same(store.next_due(), None, "what is pending in a new store")
    record = record_of(clock, notify=_NOTIFY)
    insert(store, record)
    same(store.get(record.name), record, "the record before its end")
    same((store.next_due(), list(_claim(store, clock))), (None, []), "what is due before the end")
    ended = store.update(record.name, _end_pending(clock))
    same(ended and ended.notify_at, clock(), "when the first notification is due")
    same(store.get(record.name), ended, "the record after its end")
    same(store.find([record.name]).records, [ended], "the record, found among others")
    same(store.next_due(), clock(), "when something is due")
    insert(store, record_of(clock, "b"))
    store.update("operations/b", end_of(clock))
    same(ids(_claim(store, clock)), ["a"], "only the pending one is claimed")
    wrong = record_of(clock, "c", notify="a\0b")
    error = refuses(InvalidArgument, lambda: insert(store, wrong), "what is no text")
    same(error.field, "notify", "the field")


@_where_kept
def due_notifications_are_claimed(store: OutboxStore, clock: ManualClock) -> None:
    """Claims take the oldest due records up to the limit; a record is due again after its claim."""
    _insert_pending(store, clock, "c", "a", "d", "b")
    before = {name: store.get(f"operations/{name}") for name in "cadb"}
    until = clock() + _LEASE
    same(list(store.claim_due(until, 0)), [], "none are asked for")
    first = store.claim_due(until, 2)
    same(ids(first), ["c", "a"], "the oldest two")
    wanted = [before[name].next_version(notify_at=until) for name in "ca"]
    same(list(first), wanted, "what is claimed")
    for record in first:
        same(store.get(record.name), record, "what is claimed, read again")
    found = store.find([record.name for record in first]).records
    same(sorted(ids(found)), ["a", "c"], "what is claimed, found among others")
    expect(all(record in wanted for record in found), "what is found is as it was claimed")
    same(store.next_due(), before["d"].notify_at, "when the others are due")
    same(ids(_claim(store, clock)), ["d", "b"], "the others")
    same(store.next_due(), until, "when the claims end")


@_where_kept
def claim_of_a_notification_expires(store: OutboxStore, clock: ManualClock) -> None:
    """Until a claim has expired, no other claim gets its record."""
    _insert_pending(store, clock, "a")
    same(len(_claim(store, clock)), 1, "the first claim")
    clock.advance(_LEASE.total_seconds() - 0.000001)
    same(list(_claim(store, clock)), [], "a claim that has not ended")
    clock.advance(0.000001)
    same(ids(_claim(store, clock)), ["a"], "a claim that has ended")


@_where_kept
def claim_is_settled_once(store: OutboxStore, clock: ManualClock) -> None:
    """A claim can be settled once; settling it again, or after another claim, is refused."""
    _insert_pending(store, clock, "a")
    (first,) = _claim(store, clock)
    later = clock() + timedelta(minutes=5)
    again = store.update(first.name, settle_notifications(first, '{"tries": 1}', later))
    same(again, first.next_version(notify='{"tries": 1}', notify_at=later), "what is settled")
    same(store.get(first.name), again, "what is settled, read again")
    same(store.next_due(), later, "when the next try is due")
    late = settle_notifications(first, "", None)
    refuses(LeaseLost, lambda: store.update(first.name, late), "a claim that is settled")
    clock.advance(minutes=5)
    (second,) = _claim(store, clock)
    same(second.notify, '{"tries": 1}', "what is still pending")
    refuses(LeaseLost, lambda: store.update(first.name, late), "the claim before")
    same(store.get(first.name), second, "the record after both")
    settled = store.update(second.name, settle_notifications(second, "", None))
    same(settled and (settled.notify, settled.notify_at), ("", None), "what is over")
    same(store.get(first.name), settled, "what is over, read again")
    same((store.next_due(), list(_claim(store, clock))), (None, []), "what is due in the end")
    last = settle_notifications(second, "", None)
    refuses(LeaseLost, lambda: store.update(first.name, last), "a claim that is over")


@_where_kept
def claimed_record_accepts_other_changes(store: OutboxStore, clock: ManualClock) -> None:
    """A change of a claimed record does not change the operation that callers see."""
    _insert_pending(store, clock, "a")
    before = store.get("operations/a")
    (claimed,) = _claim(store, clock)
    same(claimed.operation, before.operation, "what callers see")
    same(claimed.update_time, before.update_time, "when it was updated")
    same(store.update(claimed.name, request_cancel(clock())), claimed, "a cancel that is late")
    same([r.name for r in store.page("", None, 9).records], [claimed.name], "the list")
    store.update(claimed.name, delete(clock()))
    gone(store, claimed.name)
    clock.advance(days=1)
    same((store.next_due(), list(_claim(store, clock))), (None, []), "what is due of a deleted one")


@_where_kept
def hidden_record_has_no_notifications(store: OutboxStore, clock: ManualClock) -> None:
    """A hidden record is removed when its work ends, without notifications."""
    insert(store, held(clock, notify=_NOTIFY))
    store.update("operations/a", delete(clock()))
    same(store.update("operations/a", _end_pending(clock)), None, "the end of hidden work")
    gone(store, "operations/a")
    same((store.next_due(), list(_claim(store, clock))), (None, []), "what is due")


@_where_kept
def expiry_waits_for_notifications(store: OutboxStore, clock: ManualClock) -> None:
    """Expired records are removed at once, or up to 4 days later if notifications are pending."""
    _insert_pending(store, clock, "pending", "settles", days=1)
    insert(store, record_of(clock, "free"))
    store.update("operations/free", end_of(clock, days=1))
    clock.advance(days=1)
    expired = store.get("operations/pending")
    expect(not expired.visible(clock()), "callers cannot see what has expired")
    same(list(store.page("", None, 9).records), [], "the list")
    _sweep(store, ["operations/free"])
    same(ids(_claim(store, clock)), ["pending", "settles"], "what is claimed after the expiry")
    settles = store.get("operations/settles")
    store.update(settles.name, settle_notifications(settles, "", None))
    _sweep(store, [settles.name])
    clock.advance(days=4, seconds=-2)
    _sweep(store, [])
    clock.advance(3)
    _sweep(store, [expired.name])
    gone(store, expired.name)
    same((store.next_due(), list(_claim(store, clock))), (None, []), "what is due in the end")


def _sweep(store: Store, names: Collection[str]) -> None:
    same(list(store.expire(9).names), list(names), "what has expired")


@_where_kept
def concurrent_claims_share_notifications(store: OutboxStore, clock: ManualClock) -> None:
    """Eight threads claim at the same time, and each record is claimed once."""
    _insert_pending(store, clock, *[f"{number:02}" for number in range(24)])
    found: list[str] = []

    def claim(_: int) -> None:
        while some := _claim(store, clock, 2):
            found.extend(ids(some))

    same(together(8, claim), [None] * 8, "eight at once")
    same(sorted(found), [f"{number:02}" for number in range(24)], "what they have claimed")
