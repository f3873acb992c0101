"""Repeated, checked and failed starts: what every store promises of them (spec §9)."""

from __future__ import annotations

from lro._base.errors import OperationNotFound, RequestIdConflict, TargetBusy
from lro._engine.store_port import Inserted, Store
from lro._model.transitions import delete, report
from lro.testing._clock import ManualClock, expect, refuses, same, together
from lro.testing._samples import DONE, end_of, gone, insert, key_of, record_of


def a_check_stores_nothing(store: Store, clock: ManualClock) -> None:
    """``check_only`` leaves no record, no request, no key and no target behind."""
    record = record_of(clock, target="t")
    expect(insert(store, record, key_of(), check_only=True).fresh, "a check of a new one is fresh")
    gone(store, record.name)
    refuses(OperationNotFound, lambda: store.request(record.name), "no request is stored")
    other = record_of(clock, "b", target="t")
    expect(insert(store, other, key_of(fingerprint="g")).fresh, "neither key nor target is taken")


def a_check_makes_every_check(store: Store, clock: ManualClock) -> None:
    """``check_only`` refuses what the real insert would refuse, and finds what it would find."""
    first = record_of(clock, target="t")
    insert(store, first, key_of())
    busy = record_of(clock, "b", target="t")
    refuses(TargetBusy, lambda: insert(store, busy, None, check_only=True), "a busy target")
    other = key_of(fingerprint="g")
    refuses(RequestIdConflict, lambda: insert(store, busy, other, check_only=True), "a conflict")
    again = insert(store, busy, key_of(), check_only=True)
    same((again.record.name, again.fresh), (first.name, False), "a repeated request")


def a_repeated_request_finds_the_first(store: Store, clock: ManualClock) -> None:
    """The same key gives the present record of the first start (spec §9.1)."""
    first = record_of(clock, target="t")
    insert(store, first, key_of())
    store.update(first.name, report(DONE, None, clock()))
    clock.advance(60)
    again = insert(store, record_of(clock, "b", target="t"), key_of())
    same((again.record, again.fresh), (store.get(first.name), False), "the second insert")
    gone(store, "operations/b")
    store.update(first.name, end_of(clock))
    same(insert(store, record_of(clock, "c"), key_of()).record.result, DONE, "after the end")


def a_key_with_another_request_is_a_conflict(store: Store, clock: ManualClock) -> None:
    """Nothing is stored then (spec §9.2(3))."""
    insert(store, record_of(clock), key_of())
    other = record_of(clock, "b")
    refuses(RequestIdConflict, lambda: insert(store, other, key_of(fingerprint="g")), "a conflict")
    gone(store, other.name)


def a_key_is_of_one_method_and_caller(store: Store, clock: ManualClock) -> None:
    """The same id elsewhere is another key (spec §9.2(2))."""
    for number, key in enumerate(
        (key_of(), key_of(method="N"), key_of(caller="c"), key_of("other"))
    ):
        expect(insert(store, record_of(clock, str(number)), key).fresh, f"{key} is new")


def a_key_lives_for_a_day(store: Store, clock: ManualClock) -> None:
    """Up to 24 hours it is known; from exactly then on it is new (spec §9.2(2))."""
    first = record_of(clock)
    insert(store, first, key_of())
    clock.advance(days=1, microseconds=-1)
    store.expire(9)
    again = insert(store, record_of(clock, "b"), key_of())
    same((again.record.name, again.fresh), (first.name, False), "just before 24 hours")
    clock.advance(microseconds=1)
    later = insert(store, record_of(clock, "c"), key_of(fingerprint="g"))
    same((later.record.name, later.fresh), ("operations/c", True), "at 24 hours")
    same(insert(store, record_of(clock, "d"), key_of(fingerprint="g")).fresh, False, "the new key")


def a_key_outlives_a_deleted_record(store: Store, clock: ManualClock) -> None:
    """The original reply is repeated, and the record does not return (spec §9.2(4))."""
    first = record_of(clock)
    insert(store, first, key_of())
    store.update(first.name, report(DONE, None, clock()))
    store.update(first.name, delete(clock()))
    again = insert(store, record_of(clock, "b"), key_of())
    same((again.record, again.fresh), (first, False), "the repeated start")
    gone(store, first.name)


def a_key_outlives_a_hidden_record(store: Store, clock: ManualClock) -> None:
    """So it is while the deleted record still holds its target: callers cannot see that one."""
    first = record_of(clock, target="t")
    insert(store, first, key_of())
    store.update(first.name, report(DONE, None, clock()))
    store.update(first.name, delete(clock()))
    again = insert(store, record_of(clock, "b"), key_of())
    same((again.record, again.fresh), (first, False), "the repeated start")


def a_key_outlives_an_expired_record(store: Store, clock: ManualClock) -> None:
    """So it is from the moment of expiry, whether the record was removed already or not."""
    first = record_of(clock)
    insert(store, first, key_of())
    store.update(first.name, end_of(clock, days=0.25))
    clock.advance(hours=6)
    again = insert(store, record_of(clock, "b"), key_of())
    same((again.record, again.fresh), (first, False), "before the removal")
    same(list(store.expire(9).names), [first.name], "what is removed")
    again = insert(store, record_of(clock, "b"), key_of())
    same((again.record, again.fresh), (first, False), "after the removal")


def one_key_at_once_starts_one(store: Store, clock: ManualClock) -> None:
    """Concurrent inserts of one key store one record (spec §9.2(5))."""
    found = together(8, lambda number: insert(store, record_of(clock, str(number)), key_of()))
    answers = [one for one in found if isinstance(one, Inserted)]
    same(len(answers), 8, f"how many were answered, of {found}")
    same(sum(one.fresh for one in answers), 1, "how many are fresh")
    same(len({one.record.name for one in answers}), 1, "how many operations they name")
    same(len(store.page("", None, 9).records), 1, "how many are stored")


def forgetting_undoes_the_insert(store: Store, clock: ManualClock) -> None:
    """The record, its request, its key and its target are as if it had not been (spec §9.3)."""
    record = record_of(clock, target="t")
    insert(store, record, key_of())
    store.forget(record.name)
    gone(store, record.name)
    refuses(OperationNotFound, lambda: store.request(record.name), "its request is gone")
    same(list(store.page("", None, 9).records), [], "the page after it")
    other = record_of(clock, "b", target="t")
    expect(insert(store, other, key_of(fingerprint="g")).fresh, "key and target are free again")
