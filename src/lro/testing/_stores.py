"""What every store promises (``lro._ports.Store``), one check a promise."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any as Anything
from typing import Final

from lro._any import Any
from lro._errors import NotApplied, OperationNotFound, RequestIdConflict, TargetBusy
from lro._pages import KEY_BYTES, Place
from lro._ports import Inserted, RequestKey, Store
from lro._states import (
    Change,
    Record,
    State,
    claim,
    delete,
    end,
    release,
    report,
    request_cancel,
)
from lro._status import Code, Status
from lro.testing._clock import ManualClock, expect, refuses, same, together

MakeStore = Callable[[ManualClock], Store]
"""Gives an empty store whose clock is the one given."""

StoreCheck = Callable[[Store, ManualClock], None]

_DAY: Final = timedelta(hours=24)
_REQUEST: Final = Any("type.googleapis.com/lro.testing.Request", {"text": "Ünï ✓ \U0001f600"})
_DONE: Final = Any("type.googleapis.com/lro.testing.Response", {})
_CHECKS: Final[list[StoreCheck]] = []


def check_store(make_store: MakeStore) -> None:
    """Run every check, each on a store of its own.

    Raises:
        AssertionError: The store breaks its contract; the text says where.
    """
    for check in STORE_CHECKS:
        run_store_check(check, make_store)


def run_store_check(check: StoreCheck, make_store: MakeStore) -> None:
    """Run one check on a new store, which is closed afterwards.

    Raises:
        AssertionError: The store breaks its contract; the text says where.
    """
    clock = ManualClock()
    store = make_store(clock)
    try:
        check(store, clock)
    except Exception as exc:
        raise AssertionError(f"{check.__name__}: {type(exc).__name__}: {exc}") from exc
    finally:
        store.close()


def _check(function: StoreCheck) -> StoreCheck:
    _CHECKS.append(function)
    return function


def _record(clock: ManualClock, unique_id: str = "a", **fields: Anything) -> Record:
    parent = str(fields.get("parent", ""))
    name = f"{parent}/operations/{unique_id}" if parent else f"operations/{unique_id}"
    known = {"parent": "", "method": "M", "create_time": clock(), "update_time": clock()}
    return Record(name=name, **{**known, **fields})


def _insert(
    store: Store, record: Record, key: RequestKey | None = None, *, check_only: bool = False
) -> Inserted:
    return store.insert(record, _REQUEST, key, check_only=check_only)


def _held(clock: ManualClock, unique_id: str = "a", **fields: Anything) -> Record:
    lease = {"owner": "us", "lease_until": clock() + timedelta(seconds=15)}
    return _record(clock, unique_id, **{**lease, **fields})


def _key(
    request_id: str = "r", fingerprint: str = "f", *, method: str = "M", caller: str = ""
) -> RequestKey:
    return RequestKey(method, caller, request_id, fingerprint)


def _end(clock: ManualClock, result: Any | Status | None = _DONE, days: float = 30) -> Change:
    return end(result, now=clock(), expiry=timedelta(days=days))


def _names(records: Sequence[Record]) -> list[str]:
    return [record.name.rpartition("/")[2] for record in records]


def _gone(store: Store, name: str) -> None:
    refuses(OperationNotFound, lambda: store.get(name), f"{name} is gone")


@_check
def a_record_comes_back_as_it_went_in(store: Store, clock: ManualClock) -> None:
    """Every field of a record survives, to the microsecond and the last character."""
    moment = datetime(2031, 2, 3, 4, 5, 6, 789012, tzinfo=UTC)
    record = _record(
        clock,
        "ü/✓/\U0001f600",
        parent="projects/p",
        method="acme.v1.Images.Resize",
        metadata=Any("x/acme.Meta", {"text": '"\\\n\u2028', "list": [None, True, 1.5, {"a": ""}]}),
        create_time=moment,
        start_time=moment,
        expire_time=moment + timedelta(days=9),
        cancel_requested=True,
        attempt=3,
        lost_attempts=2,
        owner="us",
        lease_until=moment,
        caller="käthe",
        request_id="id",
        target="things/1",
        version=7,
    )
    answer = _insert(store, record)
    expect(answer.fresh, "an insert without a key is fresh")
    same(answer.record, record, "what insert answers")
    same(store.get(record.name), record, "what get finds")
    same(store.request(record.name), _REQUEST, "the request")


@_check
def results_come_back_as_they_went_in(store: Store, clock: ManualClock) -> None:
    """Responses, errors with details, done without a result, and payloads in binary form."""
    binary = Any("x/acme.Binary", bytes(range(256)))
    failed = Status(Code.NOT_FOUND, "no \u2603", (binary, Any("x/acme.Detail", {"a": [1]})))
    for number, result in enumerate((_DONE, binary, failed, None, Any("x/a.Null", None))):
        record = _record(clock, str(number), metadata=binary)
        _insert(store, record)
        ended = store.update(record.name, _end(clock, result))
        same(store.get(record.name), ended, "the record after its end")
        same(store.get(record.name).result, result, "the result")
        same(store.get(record.name).metadata, binary, "the metadata")


@_check
def what_is_not_there_is_not_found(store: Store, clock: ManualClock) -> None:
    """Every verb that wants a record says so where there is none."""
    for call in (
        lambda: store.get("operations/x"),
        lambda: store.request("operations/x"),
        lambda: store.update("operations/x", lambda record: record),
    ):
        refuses(OperationNotFound, call, "there is no such record")
    store.forget("operations/x")
    same(list(store.page("", None, 9)), [], "a page of nothing")
    same(store.orphans(9).records, (), "orphans of nothing")
    same(list(store.renew("us", clock())), [], "leases of nothing")
    same(list(store.expire(9)), [], "expired of nothing")


@_check
def an_update_replaces_the_record(store: Store, clock: ManualClock) -> None:
    """The change is given what is stored, and what it gives is stored."""
    record = _record(clock)
    _insert(store, record)
    seen: list[Record] = []

    def change(found: Record) -> Record:
        seen.append(found)
        return found.moved(caller="other", cancel_requested=True, metadata=_REQUEST)

    changed = store.update(record.name, change)
    same(seen[0], record, "what the change was given")
    same(changed, record.moved(caller="other", cancel_requested=True, metadata=_REQUEST), "update")
    same(store.get(record.name), changed, "the record after it")


@_check
def an_update_may_change_nothing(store: Store, clock: ManualClock) -> None:
    """A change may give the very record, or an equal one."""
    record = _record(clock)
    _insert(store, record)
    same(store.update(record.name, lambda found: found), record, "the same record")
    same(store.update(record.name, lambda _: record), record, "an equal record")
    same(store.get(record.name), record, "the record after both")


@_check
def an_update_that_raises_changes_nothing(store: Store, clock: ManualClock) -> None:
    """What a change raises comes out, and the store goes on as before."""
    record = _record(clock)
    _insert(store, record)

    def change(found: Record) -> Record:
        raise NotApplied(found.name, "test", found.state.value)

    refuses(NotApplied, lambda: store.update(record.name, change), "the change's own error")
    same(store.get(record.name), record, "the record after it")
    expect(store.update(record.name, _end(clock)) is not None, "the store still takes changes")


@_check
def an_update_to_none_removes_the_record(store: Store, clock: ManualClock) -> None:
    """The record and its request are gone from every verb."""
    record = _held(clock)
    _insert(store, record)
    same(store.update(record.name, delete(clock())), None, "update")
    _gone(store, record.name)
    refuses(OperationNotFound, lambda: store.request(record.name), "its request is gone")
    refuses(OperationNotFound, lambda: store.update(record.name, _end(clock)), "it stays away")
    same(list(store.page("", None, 9)), [], "the page after it")
    clock.advance(60)
    same(store.orphans(9).records, (), "the orphans after it")


@_check
def updates_are_serialised(store: Store, clock: ManualClock) -> None:
    """Of many changes at once none is lost (spec §2.8)."""
    record = _record(clock)
    _insert(store, record)

    def work(number: int) -> None:
        for _ in range(10):
            store.update(record.name, lambda found: found.moved(attempt=found.attempt + 1))

    same(together(8, work), [None] * 8, "eight threads")
    found = store.get(record.name)
    same((found.attempt, found.version), (80, 81), "attempt and version")


@_check
def an_end_is_reached_once(store: Store, clock: ManualClock) -> None:
    """Of many ends at once exactly one is applied."""
    record = _record(clock)
    _insert(store, record)
    results = [Status(Code.ABORTED, str(number)) for number in range(8)]
    found = together(8, lambda number: store.update(record.name, _end(clock, results[number])))
    winners = [number for number, one in enumerate(found) if isinstance(one, Record)]
    same(len(winners), 1, "how many ends were applied")
    same(store.get(record.name).result, results[winners[0]], "whose result stands")


@_check
def the_request_goes_with_the_end(store: Store, clock: ManualClock) -> None:
    """It is kept through the work, and not as long as the record."""
    record = _record(clock)
    _insert(store, record)
    store.update(record.name, report(_DONE, None, clock()))
    same(store.request(record.name), _REQUEST, "the request during the work")
    store.update(record.name, _end(clock))
    refuses(OperationNotFound, lambda: store.request(record.name), "the request after the work")


@_check
def a_check_stores_nothing(store: Store, clock: ManualClock) -> None:
    """``check_only`` leaves no record, no request, no key and no target behind."""
    record = _record(clock, target="t")
    expect(_insert(store, record, _key(), check_only=True).fresh, "a check of a new one is fresh")
    _gone(store, record.name)
    refuses(OperationNotFound, lambda: store.request(record.name), "no request is stored")
    other = _record(clock, "b", target="t")
    expect(_insert(store, other, _key(fingerprint="g")).fresh, "neither key nor target is taken")


@_check
def a_check_makes_every_check(store: Store, clock: ManualClock) -> None:
    """``check_only`` refuses what the real insert would refuse, and finds what it would find."""
    first = _record(clock, target="t")
    _insert(store, first, _key())
    busy = _record(clock, "b", target="t")
    refuses(TargetBusy, lambda: _insert(store, busy, None, check_only=True), "a busy target")
    other = _key(fingerprint="g")
    refuses(RequestIdConflict, lambda: _insert(store, busy, other, check_only=True), "a conflict")
    again = _insert(store, busy, _key(), check_only=True)
    same((again.record.name, again.fresh), (first.name, False), "a repeated request")


@_check
def a_repeated_request_finds_the_first(store: Store, clock: ManualClock) -> None:
    """The same key gives the present record of the first start (spec §9.1)."""
    first = _record(clock, target="t")
    _insert(store, first, _key())
    store.update(first.name, report(_DONE, None, clock()))
    clock.advance(60)
    again = _insert(store, _record(clock, "b", target="t"), _key())
    same((again.record, again.fresh), (store.get(first.name), False), "the second insert")
    _gone(store, "operations/b")
    store.update(first.name, _end(clock))
    same(_insert(store, _record(clock, "c"), _key()).record.result, _DONE, "after the end")


@_check
def a_key_with_another_request_is_a_conflict(store: Store, clock: ManualClock) -> None:
    """Nothing is stored then (spec §9.2(3))."""
    _insert(store, _record(clock), _key())
    other = _record(clock, "b")
    refuses(RequestIdConflict, lambda: _insert(store, other, _key(fingerprint="g")), "a conflict")
    _gone(store, other.name)


@_check
def a_key_is_of_one_method_and_caller(store: Store, clock: ManualClock) -> None:
    """The same id elsewhere is another key (spec §9.2(2))."""
    for number, key in enumerate((_key(), _key(method="N"), _key(caller="c"), _key("other"))):
        expect(_insert(store, _record(clock, str(number)), key).fresh, f"{key} is new")


@_check
def a_key_lives_for_a_day(store: Store, clock: ManualClock) -> None:
    """Up to 24 hours it is known; from exactly then on it is new (spec §9.2(2))."""
    first = _record(clock)
    _insert(store, first, _key())
    clock.advance(days=1, microseconds=-1)
    store.expire(9)
    again = _insert(store, _record(clock, "b"), _key())
    same((again.record.name, again.fresh), (first.name, False), "just before 24 hours")
    clock.advance(microseconds=1)
    later = _insert(store, _record(clock, "c"), _key(fingerprint="g"))
    same((later.record.name, later.fresh), ("operations/c", True), "at 24 hours")
    same(_insert(store, _record(clock, "d"), _key(fingerprint="g")).fresh, False, "the new key")


@_check
def a_key_outlives_its_record(store: Store, clock: ManualClock) -> None:
    """Deleted, hidden or expired: the original reply is repeated (spec §9.2(4))."""
    for number, days in enumerate((0.5, 0.5, 30)):
        first = _record(clock, str(number), target=f"t{number}")
        key = _key(str(number))
        _insert(store, first, key)
        if number < 2:
            store.update(first.name, report(_DONE, None, clock()))
        if number == 0:
            store.update(first.name, _end(clock, days=0.25))
            clock.advance(hours=6)  # expired, and not yet removed
        else:
            store.update(first.name, delete(clock()))  # hidden, its target being busy
        again = _insert(store, _record(clock, f"new{number}"), key)
        same((again.record, again.fresh), (first, False), "the repeated start")
        expect(days > 0, "")
    store.expire(9)
    same(_insert(store, _record(clock, "x"), _key("0")).fresh, False, "after the removal")


@_check
def one_key_at_once_starts_one(store: Store, clock: ManualClock) -> None:
    """Concurrent inserts of one key store one record (spec §9.2(5))."""
    found = together(8, lambda number: _insert(store, _record(clock, str(number)), _key()))
    answers = [one for one in found if isinstance(one, Inserted)]
    same(len(answers), 8, f"how many were answered, of {found}")
    same(sum(one.fresh for one in answers), 1, "how many are fresh")
    same(len({one.record.name for one in answers}), 1, "how many operations they name")
    same(len(store.page("", None, 9)), 1, "how many are stored")


@_check
def forgetting_undoes_the_insert(store: Store, clock: ManualClock) -> None:
    """The record, its request, its key and its target are as if it had not been (spec §9.3)."""
    record = _record(clock, target="t")
    _insert(store, record, _key())
    store.forget(record.name)
    _gone(store, record.name)
    refuses(OperationNotFound, lambda: store.request(record.name), "its request is gone")
    same(list(store.page("", None, 9)), [], "the page after it")
    other = _record(clock, "b", target="t")
    expect(_insert(store, other, _key(fingerprint="g")).fresh, "key and target are free again")


STORE_CHECKS: Final[Sequence[StoreCheck]] = _CHECKS
"""Every check, by its function; the name says the promise."""
