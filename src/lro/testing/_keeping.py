"""Checks of stores: records are kept, requests repeated, changes noticed (spec §2, §9.2)."""

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


def a_record_comes_back_as_it_went_in(store: Store, clock: ManualClock) -> None:
    """Every field of a record survives, to the microsecond and the last character."""
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
    binary = AnyMessage("x/acme.Binary", bytes(range(256)))
    failed = Status(Code.NOT_FOUND, "no \u2603", (binary, AnyMessage("x/acme.Detail", {"a": [1]})))
    for number, result in enumerate((DONE, binary, failed, None, AnyMessage("x/a.Null", None))):
        record = record_of(clock, str(number), metadata=binary)
        insert(store, record)
        ended = store.update(record.name, end_of(clock, result))
        same(store.get(record.name), ended, "the record after its end")
        same(store.get(record.name).result, result, "the result")
        same(store.get(record.name).metadata, binary, "the metadata")


def checkpoints_come_back_as_they_went_in(store: Store, clock: ManualClock) -> None:
    """Each under its key, the last one of a key, beside a record that stays as it is."""
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


def only_the_current_attempt_keeps_checkpoints(store: Store, clock: ManualClock) -> None:
    """Of work in progress, deleted for callers or not; who comes later gets what was kept."""
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


def checkpoints_go_with_the_end(store: Store, clock: ManualClock) -> None:
    """In the same step, however it ends, or when the record is removed; then none is kept."""
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


def a_checkpoint_and_an_end_exclude_each_other(store: Store, clock: ManualClock) -> None:
    """Of those that come at once, one is first: what has ended has no checkpoint."""
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


def what_is_not_there_is_not_found(store: Store, _: ManualClock) -> None:
    """Every verb that needs a record raises OperationNotFound without one."""
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
    same(list(store.orphans(METHODS, 9).overdue), [], "the owners after it")


def what_is_handed_in_together_is_made(store: Store, clock: ManualClock) -> None:
    """Each write is over once, by its own answer or error, whatever becomes of the others."""
    over: SimpleQueue[tuple[int, object, BaseException | None]] = SimpleQueue()
    records = [record_of(clock, f"r{n}") for n in range(20)]
    insert(store, records[0])
    for number, record in enumerate(records):
        try:
            store.insert_later(record, REQUEST, None, partial(_put, over, number))
        except InvalidArgument as exc:  # it was refused at once
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


def the_request_goes_with_the_success(store: Store, clock: ManualClock) -> None:
    """It is kept through the work, and not as long as the record."""
    record = record_of(clock)
    insert(store, record)
    store.update(record.name, report(DONE, None, clock()))
    same(store.request(record.name), REQUEST, "the request during the work")
    store.update(record.name, end_of(clock))
    refuses(OperationNotFound, lambda: store.request(record.name), "the request after the work")


def the_request_of_what_failed_goes_with_the_record(store: Store, clock: ManualClock) -> None:
    """Work that failed or was cancelled can be started again, until its record is removed."""
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
        time.sleep(0.0002)  # lets every other thread try: what is not locked shows it
        return change(record)

    return slowly


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


def states_name_the_finished(store: Store, clock: ManualClock) -> None:
    """Done however it ended, deleted, hidden, expired or never there; the rest is not named."""
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


def states_name_those_asked_to_cancel(store: Store, clock: ManualClock) -> None:
    """Until the work has ended; also where its record is hidden."""
    for unique_id in "abc":
        insert(store, held(clock, unique_id))
        store.update(f"operations/{unique_id}", request_cancel(clock()))
    insert(store, record_of(clock, "quiet"))
    store.update("operations/b", delete(clock()))
    store.update("operations/c", end_of(clock))
    names = [f"operations/{unique_id}" for unique_id in ("a", "b", "c", "quiet")]
    same(store.poll_states(names).cancel_requested, frozenset(names[:2]), "those asked to cancel")


def many_states_are_read_at_once(store: Store, clock: ManualClock) -> None:
    """More than a statement could have parameters, odd characters in their names."""
    names = [f"operations/{n}\u2603'\"\\,{{}}" for n in range(3000)]
    insert(store, record_of(clock, names[7].removeprefix("operations/")))
    same(
        store.poll_states(names).finished, frozenset(names) - {names[7]}, "those that are not there"
    )


def announcements_are_harmless(store: Store, clock: ManualClock) -> None:
    """Of anything, at any time, also of what is gone; they change no record."""
    record = record_of(clock)
    insert(store, record)
    for name in (record.name, record.name, "operations/x", "projects/\u2603/operations/y"):
        store.notify_others(name)
    same(store.get(record.name), record, "the record")


def a_subscription_keeps_to_its_time(store: Store, clock: ManualClock) -> None:
    """Without a change it answers when its seconds are over, or that anything may have changed."""
    insert(store, record_of(clock))
    subscription = store.listen()
    changes = subscription.next_changes(0)
    expect(changes is None or len(changes) == 0, "nothing has changed in no time")
    subscription.close()
    subscription.close()


def a_closed_subscription_hears_no_longer(store: Store, clock: ManualClock) -> None:  # noqa: ARG001
    """Who listens in another thread is let go soon, with or without an error."""
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


def a_closed_store_has_no_subscriptions(store: Store, clock: ManualClock) -> None:
    """It announces nothing, without an error; a subscription is refused, or gives nothing."""
    insert(store, held(clock, seconds=timedelta(minutes=1).total_seconds()))
    store.close()
    store.notify_others("operations/a")
    if store.shared:
        refuses(
            Unavailable, lambda: store.listen().next_changes(0), "a subscription to a closed store"
        )
