"""Records and their changes: what every store promises of them."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from functools import partial

import attrs

from lro._base.any import Any
from lro._base.errors import InvalidArgument, NotApplied, OperationNotFound
from lro._base.status import Code, Status
from lro._engine.store_port import Store
from lro._model.record import Record
from lro._model.transitions import Change, delete, report
from lro.testing._clock import ManualClock, expect, refuses, same, together
from lro.testing._samples import DONE, METHODS, REQUEST, end_of, gone, insert, key_of, record_of


def a_record_comes_back_as_it_went_in(store: Store, clock: ManualClock) -> None:
    """Every field of a record survives, to the microsecond and the last character."""
    moment = datetime(2031, 2, 3, 4, 5, 6, 789012, tzinfo=UTC)
    record = record_of(
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
    answer = insert(store, record)
    expect(answer.fresh, "an insert without a key is fresh")
    same(answer.record, record, "what insert answers")
    same(store.get(record.name), record, "what get finds")
    same(store.request(record.name), REQUEST, "the request")


def what_is_no_text_is_refused(store: Store, clock: ManualClock) -> None:
    """U+0000 and half a surrogate pair, in any text: the error says where; nothing is stored."""
    good = record_of(clock)
    for text in ("a\0b", "\ud800", "x\udcff"):
        for field in ("parent", "method", "owner", "caller", "request_id", "target"):
            wrong = good.next_version(**{field: text})
            for check_only in (True, False):
                call = partial(insert, store, wrong, check_only=check_only)
                same(refuses(InvalidArgument, call, field).field, field, "the field")
        for field in ("method", "caller", "request_id", "fingerprint"):
            key = attrs.evolve(key_of(), **{field: text})
            refuses(InvalidArgument, partial(insert, store, good, key), f"the {field} of a key")
    gone(store, good.name)


def a_name_is_taken_once(store: Store, clock: ManualClock) -> None:
    """A second record of a name is refused, and the first one stays."""
    insert(store, record_of(clock))
    again = record_of(clock, caller="other")
    error = refuses(InvalidArgument, lambda: insert(store, again), "a name that is taken")
    same(error.field, "name", "the field")
    same(store.get(again.name), record_of(clock), "the first record")


def results_come_back_as_they_went_in(store: Store, clock: ManualClock) -> None:
    """Responses, errors with details, done without a result, and payloads in binary form."""
    binary = Any("x/acme.Binary", bytes(range(256)))
    failed = Status(Code.NOT_FOUND, "no \u2603", (binary, Any("x/acme.Detail", {"a": [1]})))
    for number, result in enumerate((DONE, binary, failed, None, Any("x/a.Null", None))):
        record = record_of(clock, str(number), metadata=binary)
        insert(store, record)
        ended = store.update(record.name, end_of(clock, result))
        same(store.get(record.name), ended, "the record after its end")
        same(store.get(record.name).result, result, "the result")
        same(store.get(record.name).metadata, binary, "the metadata")


def what_is_not_there_is_not_found(store: Store, clock: ManualClock) -> None:
    """Every verb that needs a record raises OperationNotFound without one."""
    for call in (
        lambda: store.get("operations/x"),
        lambda: store.request("operations/x"),
        lambda: store.update("operations/x", lambda record: record),
    ):
        refuses(OperationNotFound, call, "there is no such record")
    store.forget("operations/x")
    same(list(store.page("", None, 9).records), [], "a page of nothing")
    same(store.orphans(METHODS, 9).records, (), "orphans of nothing")
    same(list(store.renew("us", clock()).cancel_requested), [], "leases of nothing")
    same(list(store.expire(9).names), [], "expired of nothing")


def an_update_replaces_the_record(store: Store, clock: ManualClock) -> None:
    """The change is given what is stored, and what it gives is stored."""
    record = record_of(clock)
    insert(store, record)
    seen: list[Record] = []

    def change(found: Record) -> Record:
        seen.append(found)
        return found.next_version(caller="other", cancel_requested=True, metadata=REQUEST)

    changed = store.update(record.name, change)
    same(seen[0], record, "what the change was given")
    same(
        changed,
        record.next_version(caller="other", cancel_requested=True, metadata=REQUEST),
        "update",
    )
    same(store.get(record.name), changed, "the record after it")


def an_update_may_change_nothing(store: Store, clock: ManualClock) -> None:
    """A change may give the very record, or an equal one."""
    record = record_of(clock)
    insert(store, record)
    same(store.update(record.name, lambda found: found), record, "the same record")
    same(store.update(record.name, lambda _: record), record, "an equal record")
    same(store.get(record.name), record, "the record after both")


def an_update_that_raises_changes_nothing(store: Store, clock: ManualClock) -> None:
    """What a change raises comes out, and the store goes on as before."""
    record = record_of(clock)
    insert(store, record)

    def change(found: Record) -> Record:
        raise NotApplied(found.name, "test", found.state.value)

    refuses(NotApplied, lambda: store.update(record.name, change), "the change's own error")
    same(store.get(record.name), record, "the record after it")
    expect(store.update(record.name, end_of(clock)) is not None, "the store still takes changes")


def an_update_to_none_removes_the_record(store: Store, clock: ManualClock) -> None:
    """The record and its request are gone from every verb."""
    record = record_of(clock)
    insert(store, record)
    same(store.update(record.name, delete(clock())), None, "update")
    gone(store, record.name)
    refuses(OperationNotFound, lambda: store.request(record.name), "its request is gone")
    refuses(OperationNotFound, lambda: store.update(record.name, end_of(clock)), "it stays away")
    same(list(store.page("", None, 9).records), [], "the page after it")
    clock.advance(60)
    same(store.orphans(METHODS, 9).records, (), "the orphans after it")


def updates_are_serialised(store: Store, clock: ManualClock) -> None:
    """Of many changes at once none is lost (spec §2.8)."""
    record = record_of(clock)
    insert(store, record)

    def work(number: int) -> None:
        def add(found: Record) -> Record:
            return found.next_version(attempt=found.attempt + number)

        for _ in range(10):
            store.update(record.name, _yielding(add))

    same(together(8, work), [None] * 8, "eight threads")
    found = store.get(record.name)
    same((found.attempt, found.version), (280, 81), "attempt and version")


def an_end_is_reached_once(store: Store, clock: ManualClock) -> None:
    """Of many ends at once exactly one is applied."""
    record = record_of(clock)
    insert(store, record)
    results = [Status(Code.ABORTED, str(number)) for number in range(8)]
    ends = [_yielding(end_of(clock, result)) for result in results]
    found = together(8, lambda number: store.update(record.name, ends[number]))
    winners = [number for number, one in enumerate(found) if isinstance(one, Record)]
    same(len(winners), 1, "how many ends were applied")
    same(store.get(record.name).result, results[winners[0]], "whose result stands")


def the_request_goes_with_the_end(store: Store, clock: ManualClock) -> None:
    """It is kept through the work, and not as long as the record."""
    record = record_of(clock)
    insert(store, record)
    store.update(record.name, report(DONE, None, clock()))
    same(store.request(record.name), REQUEST, "the request during the work")
    store.update(record.name, end_of(clock))
    refuses(OperationNotFound, lambda: store.request(record.name), "the request after the work")


def _yielding(change: Change) -> Change:
    def slowly(record: Record) -> Record | None:
        time.sleep(0.0002)  # lets every other thread try: what is not locked shows it
        return change(record)

    return slowly
