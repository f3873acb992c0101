"""Checks of stores: records, request keys, updates and notifications (spec §2, §9.2)."""

from __future__ import annotations

import threading
import time
from datetime import UTC, datetime, timedelta
from functools import partial
from queue import SimpleQueue
from typing import Any

import attrs

from lro._base.errors import (
    InvalidArgument,
    LeaseLost,
    NotApplied,
    OperationNotFound,
    RequestIdConflict,
    TargetBusy,
    Unavailable,
)
from lro._base.status import AnyMessage, Code, Status
from lro._engine.store_port import KEY_LENGTH, Claim, Inserted, StateSummary, Store
from lro._model.operation import Change, Record, delete, release, report, request_cancel
from lro.testing._samples import (
    DONE,
    METHODS,
    PATIENCE,
    REQUEST,
    ManualClock,
    end_of,
    expect,
    gone,
    held,
    insert,
    key_of,
    record_of,
    refuses,
    same,
    together,
)


def every_field_is_stored(store: Store, clock: ManualClock) -> None:
    """Every field of a record is stored, times to the microsecond and texts with any character."""
    moment = datetime(2031, 2, 3, 4, 5, 6, 789012, tzinfo=UTC)
    record = record_of(
        clock,
        "ü/✓/\U0001f600",
        parent="projects/p",
        method="acme.v1.Images.Resize",
        metadata=AnyMessage(
            "x/acme.Meta", {"text": '"\\\n\u2028', "list": [None, True, 1.5, {"a": ""}]}
        ),
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


def invalid_text_is_refused(store: Store, clock: ManualClock) -> None:
    """Texts with U+0000 or a lone surrogate are refused; the error names the field."""
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


def second_record_of_a_name_is_refused(store: Store, clock: ManualClock) -> None:
    """An insert with a name that is taken is refused, and the first record does not change."""
    insert(store, record_of(clock))
    again = record_of(clock, caller="other")
    error = refuses(InvalidArgument, lambda: insert(store, again), "a name that is taken")
    same(error.field, "name", "the field")
    same(store.get(again.name), record_of(clock), "the first record")


def results_are_stored(store: Store, clock: ManualClock) -> None:
    """Responses, errors with details, empty results and binary payloads are stored."""
    binary = AnyMessage("x/acme.Binary", bytes(range(256)))
    failed = Status(Code.NOT_FOUND, "no \u2603", (binary, AnyMessage("x/acme.Detail", {"a": [1]})))
    for number, result in enumerate((DONE, binary, failed, None, AnyMessage("x/a.Null", None))):
        record = record_of(clock, str(number), metadata=binary)
        insert(store, record)
        ended = store.update(record.name, end_of(clock, result))
        same(store.get(record.name), ended, "the record after its end")
        same(store.get(record.name).result, result, "the result")
        same(store.get(record.name).metadata, binary, "the metadata")


def checkpoints_are_stored_by_key(store: Store, clock: ManualClock) -> None:
    """The last value of a key replaces earlier values; the record does not change."""
    for unique_id in "ab":
        insert(store, held(clock, unique_id, attempt=1))
    same(dict(store.checkpoints("operations/a")), {}, "the checkpoints of a new operation")
    values = {
        "of/\u00fc \u2713": REQUEST,
        "k" * KEY_LENGTH: AnyMessage("x/acme.Binary", bytes(range(256))),
        "\U0001f600" * KEY_LENGTH: AnyMessage("", "a text \0"),
        "null": AnyMessage("", None),
        "json": AnyMessage(
            "", {"list": [1, 1.5, True, None, {"\u2028": "\u00dcn\u00ef"}], "empty": {}}
        ),
    }
    for key in values:
        store.checkpoint("operations/a", 1, key, DONE)
    for key, value in values.items():
        store.checkpoint("operations/a", 1, key, value)
    same(dict(store.checkpoints("operations/a")), values, "the checkpoints")
    same(dict(store.checkpoints("operations/b")), {}, "the checkpoints of another operation")
    same(dict(store.checkpoints("operations/x")), {}, "the checkpoints of no operation")
    same(store.get("operations/a"), held(clock, attempt=1), "the record")
    same(store.request("operations/a"), REQUEST, "the request")


def only_the_current_attempt_stores_checkpoints(store: Store, clock: ManualClock) -> None:
    """Checkpoints of other attempts are refused; an attempt can read those of earlier attempts."""
    insert(store, held(clock, attempt=1, owner="us", target="t"))
    store.checkpoint("operations/a", 1, "first", DONE)
    store.update("operations/a", release(1, clock()))
    store.claim(Claim("them", clock() + timedelta(seconds=15), {"M": None}, 9))
    late = refuses(LeaseLost, lambda: _checkpoint(store, 1, "late"), "one of an attempt before")
    same((late.attempt, late.current), (1, 2), "the attempts")
    refuses(LeaseLost, lambda: _checkpoint(store, 3, "early"), "one of an attempt to come")
    store.update("operations/a", delete(clock()))
    _checkpoint(store, 2, "second")
    kept = {"first": DONE, "second": DONE}
    same(dict(store.checkpoints("operations/a")), kept, "the checkpoints")


def end_removes_checkpoints(store: Store, clock: ManualClock) -> None:
    """The write that ends an operation, or removes its record, also removes its checkpoints."""
    failed = Status(Code.NOT_FOUND, "no")
    for number, result in enumerate((DONE, failed, None)):
        _kept(store, clock, str(number))
        store.update(f"operations/{number}", end_of(clock, result))
    _kept(store, clock, "others", parent="p/1")
    _kept(store, clock, "hidden", target="t")
    store.update("operations/hidden", delete(clock()))
    store.update("operations/hidden", end_of(clock))
    _kept(store, clock, "removed", owner="", lease_until=None)
    store.update("operations/removed", delete(clock()))
    for name in ("0", "1", "2", "hidden", "removed"):
        same(dict(store.checkpoints(f"operations/{name}")), {}, f"the checkpoints of {name}")
    for name, error in (("0", NotApplied), ("1", NotApplied), ("removed", OperationNotFound)):
        call = partial(store.checkpoint, f"operations/{name}", 1, "key", DONE)
        refuses(error, call, f"a checkpoint of {name}")
    same(len(store.checkpoints("p/1/operations/others")), 2, "those of another one")


def checkpoint_after_the_end_is_refused(store: Store, clock: ManualClock) -> None:
    """A checkpoint that is stored at the same time as the end does not outlast the end."""
    for number in range(8):
        _kept(store, clock, str(number))
        name = f"operations/{number}"

        def act(turn: int, name: str = name) -> object:
            if turn == 0:
                return store.update(name, end_of(clock))
            store.checkpoint(name, 1, f"key {turn}", DONE)
            return None

        found = together(4, act)
        for error in found[1:]:
            expect(error is None or isinstance(error, NotApplied), f"a late one says so: {error}")
        expect(isinstance(found[0], Record), "it has ended")
        same(dict(store.checkpoints(name)), {}, "its checkpoints")


def _kept(store: Store, clock: ManualClock, unique_id: str, **fields: Any) -> None:
    record = held(clock, unique_id, attempt=1, **fields)
    insert(store, record)
    for key in ("one", "two"):
        store.checkpoint(record.name, 1, key, DONE)


def _checkpoint(store: Store, attempt: int, key: str) -> None:
    store.checkpoint("operations/a", attempt, key, DONE)


def missing_record_is_not_found(store: Store, _: ManualClock) -> None:
    """Each method that needs a record raises OperationNotFound if there is none."""
    for call in (
        lambda: store.get("operations/x"),
        lambda: store.request("operations/x"),
        lambda: store.update("operations/x", lambda record: record),
        lambda: store.checkpoint("operations/x", 1, "key", DONE),
    ):
        refuses(OperationNotFound, call, "there is no such record")
    same(list(store.page("", None, 9).records), [], "a page of nothing")
    same(list(store.orphans(METHODS, 9).records), [], "orphans of nothing")
    same(list(store.expire(9).names), [], "expired of nothing")


def update_replaces_the_record(store: Store, clock: ManualClock) -> None:
    """The change gets the stored record, and the record that it returns is stored."""
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


def update_may_change_nothing(store: Store, clock: ManualClock) -> None:
    """A change that returns the same record or an equal one changes nothing."""
    record = record_of(clock)
    insert(store, record)
    same(store.update(record.name, lambda found: found), record, "the same record")
    same(store.update(record.name, lambda _: record), record, "an equal record")
    same(store.get(record.name), record, "the record after both")


def update_that_raises_changes_nothing(store: Store, clock: ManualClock) -> None:
    """An error of the change is raised, and the record stays as it was."""
    record = record_of(clock)
    insert(store, record)

    def change(found: Record) -> Record:
        raise NotApplied(found.name, "test", found.state.value)

    refuses(NotApplied, lambda: store.update(record.name, change), "the change's own error")
    same(store.get(record.name), record, "the record after it")
    expect(store.update(record.name, end_of(clock)) is not None, "the store still takes changes")


def update_to_none_removes_the_record(store: Store, clock: ManualClock) -> None:
    """After a change has returned None, no method finds the record or its request."""
    record = record_of(clock)
    insert(store, record)
    same(store.update(record.name, delete(clock())), None, "update")
    gone(store, record.name)
    refuses(OperationNotFound, lambda: store.request(record.name), "its request is gone")
    refuses(OperationNotFound, lambda: store.update(record.name, end_of(clock)), "it stays away")
    same(list(store.page("", None, 9).records), [], "the page after it")
    clock.advance(60)
    same(list(store.orphans(METHODS, 9).overdue), [], "the owners after it")


def queued_writes_complete_separately(store: Store, clock: ManualClock) -> None:
    """Each queued write completes once, with its own result or error."""
    over: SimpleQueue[tuple[int, object, BaseException | None]] = SimpleQueue()
    records = [record_of(clock, f"r{n}") for n in range(20)]
    insert(store, records[0])
    for number, record in enumerate(records):
        try:
            store.insert_later(record, REQUEST, None, partial(_put, over, number))
        except InvalidArgument as exc:  # the write was refused at once
            _put(over, number, None, exc)
    answers = [over.get(timeout=PATIENCE) for _ in records]
    same(sorted(number for number, _, _ in answers), list(range(20)), "which were answered")
    for number, answer, error in answers:
        if number == 0:
            expect(isinstance(error, InvalidArgument), "a name that is taken is refused")
        else:
            same((answer, error), (Inserted(records[number], fresh=True), None), "the answer")
    for number in range(20):
        name = records[number].name if number else "operations/none"
        change, done = partial(Record.next_version, caller="ann"), partial(_put, over, number)
        try:
            store.update_later(name, change, done)
        except OperationNotFound as exc:
            done(None, exc)
    errors = {number: error for number, _, error in (over.get(timeout=PATIENCE) for _ in records)}
    expect(isinstance(errors.pop(0), OperationNotFound), "what is not there is not found")
    same(set(errors.values()), {None}, "the errors of the others")
    callers = [store.get(record.name).caller for record in records]
    same(callers, ["", *["ann"] * 19], "who the callers are")
    expect(over.empty(), "each write is over once")


def _put(
    over: SimpleQueue[tuple[int, object, BaseException | None]],
    number: int,
    answer: object,
    error: BaseException | None,
) -> None:
    over.put((number, answer, error))


def concurrent_updates_are_serialised(store: Store, clock: ManualClock) -> None:
    """Concurrent updates of one record lose no update (spec §2.8)."""
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


def concurrent_ends_apply_once(store: Store, clock: ManualClock) -> None:
    """Of eight concurrent ends, exactly one is applied."""
    record = record_of(clock)
    insert(store, record)
    results = [Status(Code.ABORTED, str(number)) for number in range(8)]
    ends = [_yielding(end_of(clock, result)) for result in results]
    found = together(8, lambda number: store.update(record.name, ends[number]))
    winners = [number for number, one in enumerate(found) if isinstance(one, Record)]
    same(len(winners), 1, "how many ends were applied")
    same(store.get(record.name).result, results[winners[0]], "whose result stands")


def success_removes_the_request(store: Store, clock: ManualClock) -> None:
    """The request is stored while the work runs, and removed when it succeeds."""
    record = record_of(clock)
    insert(store, record)
    store.update(record.name, report(DONE, None, clock()))
    same(store.request(record.name), REQUEST, "the request during the work")
    store.update(record.name, end_of(clock))
    refuses(OperationNotFound, lambda: store.request(record.name), "the request after the work")


def failure_keeps_the_request(store: Store, clock: ManualClock) -> None:
    """The request of failed or cancelled work is kept for a new try until the record is removed."""
    ends = {"failed": Code.NOT_FOUND, "cancelled": Code.CANCELLED, "deleted": Code.ABORTED}
    for id_, code in ends.items():
        record = record_of(clock, id_)
        insert(store, record)
        store.update(record.name, end_of(clock, Status(code, "why"), days=1))
        store.update(record.name, lambda one: one.next_version(caller="other"))
        same(store.request(record.name), REQUEST, f"the request of what is {id_}")
    store.update("operations/deleted", delete(clock()))
    clock.advance(days=2)
    same(len(store.expire(9).names), 2, "how many have expired")
    for id_ in ends:
        call = partial(store.request, f"operations/{id_}")
        refuses(OperationNotFound, call, f"the request of what is {id_}, which is removed")
        insert(store, record_of(clock, id_))
        same(store.request(f"operations/{id_}"), REQUEST, "the request of a new one of its name")


def _yielding(change: Change) -> Change:
    def slowly(record: Record) -> Record | None:
        time.sleep(0.0002)  # other threads update, which reveals a missing lock
        return change(record)

    return slowly


def check_only_insert_stores_nothing(store: Store, clock: ManualClock) -> None:
    """A check-only insert stores no record, request, key or target."""
    record = record_of(clock, target="t")
    expect(insert(store, record, key_of(), check_only=True).fresh, "a check of a new one is fresh")
    gone(store, record.name)
    refuses(OperationNotFound, lambda: store.request(record.name), "no request is stored")
    other = record_of(clock, "b", target="t")
    expect(insert(store, other, key_of(fingerprint="g")).fresh, "neither key nor target is taken")


def check_only_insert_makes_every_check(store: Store, clock: ManualClock) -> None:
    """A check-only insert raises the same errors and finds the same records as a real insert."""
    first = record_of(clock, target="t")
    insert(store, first, key_of())
    busy = record_of(clock, "b", target="t")
    refuses(TargetBusy, lambda: insert(store, busy, None, check_only=True), "a busy target")
    other = key_of(fingerprint="g")
    refuses(RequestIdConflict, lambda: insert(store, busy, other, check_only=True), "a conflict")
    again = insert(store, busy, key_of(), check_only=True)
    same((again.record.name, again.fresh), (first.name, False), "a repeated request")


def repeated_request_finds_the_first_record(store: Store, clock: ManualClock) -> None:
    """A repeated request returns the first start's record as it is now (spec §9.1)."""
    first = record_of(clock, target="t")
    insert(store, first, key_of())
    store.update(first.name, report(DONE, None, clock()))
    clock.advance(60)
    again = insert(store, record_of(clock, "b", target="t"), key_of())
    same((again.record, again.fresh), (store.get(first.name), False), "the second insert")
    gone(store, "operations/b")
    store.update(first.name, end_of(clock))
    same(insert(store, record_of(clock, "c"), key_of()).record.result, DONE, "after the end")


def key_with_another_request_conflicts(store: Store, clock: ManualClock) -> None:
    """A known key with a different request is refused, and no record is stored (spec §9.2(3))."""
    insert(store, record_of(clock), key_of())
    other = record_of(clock, "b")
    refuses(RequestIdConflict, lambda: insert(store, other, key_of(fingerprint="g")), "a conflict")
    gone(store, other.name)


def key_belongs_to_one_method_and_caller(store: Store, clock: ManualClock) -> None:
    """A request id of another method or caller is a different key (spec §9.2(2))."""
    for number, key in enumerate(
        (key_of(), key_of(method="N"), key_of(caller="c"), key_of("other"))
    ):
        expect(insert(store, record_of(clock, str(number)), key).fresh, f"{key} is new")


def request_id_is_any_text(store: Store, clock: ManualClock) -> None:
    """A request id of up to 128 characters is compared as it is, code point by code point."""
    texts = ("order-17", "Order-17", "order-17/", "caf\u00e9", "cafe\u0301", "\U0001f600" * 128)
    for number, text in enumerate(texts):
        made = insert(store, record_of(clock, str(number)), key_of(text))
        expect(made.fresh, f"the request id {text!r} is new")
    for number, text in enumerate(texts):
        again = insert(store, record_of(clock, "again"), key_of(text))
        same((again.record.name, again.fresh), (f"operations/{number}", False), repr(text))


def key_is_known_for_a_day(store: Store, clock: ManualClock) -> None:
    """A key is known for exactly 24 hours, and after that it is new (spec §9.2(2))."""
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


def key_outlives_a_deleted_record(store: Store, clock: ManualClock) -> None:
    """After a delete, the key still returns the original reply, but no record (spec §9.2(4))."""
    first = record_of(clock)
    insert(store, first, key_of())
    store.update(first.name, report(DONE, None, clock()))
    store.update(first.name, delete(clock()))
    again = insert(store, record_of(clock, "b"), key_of())
    same((again.record, again.fresh), (first, False), "the repeated start")
    gone(store, first.name)


def key_outlives_a_hidden_record(store: Store, clock: ManualClock) -> None:
    """While a deleted record still keeps its target, the key returns the original reply."""
    first = record_of(clock, target="t")
    insert(store, first, key_of())
    store.update(first.name, report(DONE, None, clock()))
    store.update(first.name, delete(clock()))
    again = insert(store, record_of(clock, "b"), key_of())
    same((again.record, again.fresh), (first, False), "the repeated start")


def key_outlives_an_expired_record(store: Store, clock: ManualClock) -> None:
    """After the expiry of a record, and after its removal, the key returns the original reply."""
    first = record_of(clock)
    insert(store, first, key_of())
    store.update(first.name, end_of(clock, days=0.25))
    clock.advance(hours=6)
    again = insert(store, record_of(clock, "b"), key_of())
    same((again.record, again.fresh), (first, False), "before the removal")
    same(list(store.expire(9).names), [first.name], "what is removed")
    again = insert(store, record_of(clock, "b"), key_of())
    same((again.record, again.fresh), (first, False), "after the removal")


def concurrent_inserts_of_one_key_store_one(store: Store, clock: ManualClock) -> None:
    """Eight concurrent inserts with one key store one record and all return it (spec §9.2(5))."""
    found = together(8, lambda number: insert(store, record_of(clock, str(number)), key_of()))
    answers = [one for one in found if isinstance(one, Inserted)]
    same(len(answers), 8, f"how many were answered, of {found}")
    same(sum(one.fresh for one in answers), 1, "how many are fresh")
    same(len({one.record.name for one in answers}), 1, "how many operations they name")
    same(len(store.page("", None, 9).records), 1, "how many are stored")


def states_name_finished_operations(store: Store, clock: ManualClock) -> None:
    """``finished`` names operations that have ended, expired, been deleted or never existed."""
    for unique_id in ("running", "done", "failed", "deleted", "expired"):
        insert(store, record_of(clock, unique_id))
    insert(store, held(clock, "hidden", target="t"))
    store.update("operations/done", end_of(clock))
    store.update("operations/failed", end_of(clock, Status(Code.ABORTED, "")))
    store.update("operations/expired", end_of(clock, days=1))
    for unique_id in ("deleted", "hidden"):
        store.update(f"operations/{unique_id}", delete(clock()))
    clock.advance(days=1)
    over = {f"operations/{id_}" for id_ in ("done", "failed", "deleted", "expired", "hidden", "no")}
    found = store.poll_states([*over, "operations/running"])
    same(found, StateSummary(frozenset(over), frozenset()), "the states")
    same(store.poll_states(()), StateSummary(frozenset(), frozenset()), "the states of no names")
    same(store.poll_states({"operations/running"}).finished, frozenset(), "the one in progress")


def states_name_cancel_requests(store: Store, clock: ManualClock) -> None:
    """A cancel request is returned until the work has ended, even if the record is hidden."""
    for unique_id in "abc":
        insert(store, held(clock, unique_id))
        store.update(f"operations/{unique_id}", request_cancel(clock()))
    insert(store, record_of(clock, "quiet"))
    store.update("operations/b", delete(clock()))
    store.update("operations/c", end_of(clock))
    names = [f"operations/{unique_id}" for unique_id in ("a", "b", "c", "quiet")]
    same(store.poll_states(names).cancel_requested, frozenset(names[:2]), "those asked to cancel")


def many_states_are_read_at_once(store: Store, clock: ManualClock) -> None:
    """A call can poll more names than a statement can have parameters, with any characters."""
    names = [f"operations/{n}\u2603'\"\\,{{}}" for n in range(3000)]
    insert(store, record_of(clock, names[7].removeprefix("operations/")))
    same(
        store.poll_states(names).finished, frozenset(names) - {names[7]}, "those that are not there"
    )


def notifications_change_no_record(store: Store, clock: ManualClock) -> None:
    """A notification with any name, even of a removed record, changes no record."""
    record = record_of(clock)
    insert(store, record)
    for name in (record.name, record.name, "operations/x", "projects/\u2603/operations/y"):
        store.notify_others(name)
    same(store.get(record.name), record, "the record")


def subscription_returns_in_time(store: Store, clock: ManualClock) -> None:
    """With a timeout of 0, the wait ends at once and names no changed record."""
    insert(store, record_of(clock))
    subscription = store.listen()
    changes = subscription.next_changes(0)
    expect(changes is None or len(changes) == 0, "nothing has changed in no time")
    subscription.close()
    subscription.close()


def closed_subscription_returns(store: Store, clock: ManualClock) -> None:  # noqa: ARG001
    """A thread that waits in a subscription returns soon after ``close``, perhaps with an error."""
    subscription = store.listen()
    began = threading.Event()

    def hear() -> None:
        began.set()
        try:
            subscription.next_changes(600)
        except Unavailable:
            pass

    listener = threading.Thread(target=hear, daemon=True)
    listener.start()
    began.wait()
    subscription.close()
    listener.join(10)
    expect(not listener.is_alive(), "the listener is let go")


def closed_store_notifies_nobody(store: Store, clock: ManualClock) -> None:
    """After ``close``, notifying raises no error, and a subscription is refused or gets nothing."""
    insert(store, held(clock, seconds=timedelta(minutes=1).total_seconds()))
    store.close()
    store.notify_others("operations/a")
    if store.shared:
        refuses(
            Unavailable, lambda: store.listen().next_changes(0), "a subscription to a closed store"
        )
