"""Behaviour that SQLite and PostgreSQL stores share beyond the contract."""

from __future__ import annotations

import inspect
import sqlite3
from contextlib import ExitStack, closing
from datetime import UTC, datetime, timedelta

import attrs
import pytest

from lro import AnyMessage, InvalidArgument, State
from lro._model.operation import settle_notifications
from lro.adapters import OutboxStore, Record, ScheduleStore, StatisticsStore, Store
from lro.errors import LeaseLost, NotApplied, OperationNotFound, TargetBusy, Unavailable
from lro.stores._rows import RecordCache
from tests.stores.samples import (
    DONE,
    called,
    cancel_of,
    changed_later,
    claim_of,
    end_of,
    held,
    insert,
    insert_pending,
    key_of,
    listed,
    record_of,
    removal,
    report_of,
    together,
    worker_of,
)
from tests.stores.store_verbs import verbs

WITHOUT_DATABASE = {"now", "secret", "notify_others", "index", "close"}
"""Methods that do not use the database once the store is open, or that have their own tests."""


@pytest.fixture
def one(place, clock):
    """Open a store on the new database."""
    with closing(place.open(clock)) as made:
        yield made


@pytest.fixture
def two(one, place, clock):
    """Open a second store on the same database, as another process would."""
    with closing(place.open(clock)) as made:
        yield made


def test_verb_table_has_every_store_method():
    """The table of store calls has every method, so that failures of new methods are tested too."""
    ports = vars(Store) | vars(StatisticsStore) | vars(OutboxStore) | vars(ScheduleStore)
    functions = {name for name, found in ports.items() if inspect.isfunction(found)}
    public = {name for name in functions if not name.startswith("_")}
    assert public - set(verbs(None, None)) == WITHOUT_DATABASE


def test_a_closed_store_is_unavailable(one, clock):
    """After ``close``, every method fails with UNAVAILABLE."""
    insert(one, record_of(clock))
    one.close()
    for call in verbs(one, clock).values():
        with pytest.raises(Unavailable, match="the store is closed"):
            call()


def test_threads_open_a_new_database_concurrently(place, clock):
    """Six threads open one new database: all can write, and they share one secret."""
    with ExitStack() as stack:

        def begin(number):
            store = stack.enter_context(closing(place.open(clock)))
            return insert(store, record_of(clock, str(number))) and store.secret()

        secrets = together(6, begin)
        assert {type(secret) for secret in secrets} == {bytes}
        assert len({*secrets}) == 1
    with closing(place.open(clock)) as store:
        assert listed(store) == ["0", "1", "2", "3", "4", "5"]


def test_commit_of_another_store_is_visible_at_once(one, two, clock):
    """A store sees at once what another store commits, even to a record that it has cached."""
    assert one.secret() == two.secret()
    record = held(clock)
    insert(one, record)
    assert two.get(record.name) == one.get(record.name) == record
    one.renew(worker_of(clock))
    assert [worker.owner for worker in two.workers()] == ["us"]
    two.update(record.name, cancel_of(clock))
    assert one.update(record.name, report_of(clock, DONE)).cancel_requested
    two.update(record.name, end_of(clock))
    assert one.get(record.name).result == DONE
    with pytest.raises(NotApplied):
        one.update(record.name, end_of(clock))
    two.update(record.name, removal)
    for call in (lambda: one.get(record.name), lambda: one.update(record.name, end_of(clock))):
        with pytest.raises(OperationNotFound):
            call()


def test_changes_by_two_stores_are_both_kept(one, two, clock):
    """Changes by two stores are both kept: each change is decided on the current record."""
    record = held(clock)
    insert(one, record)
    two.update(record.name, report_of(clock, DONE))
    seen = []

    def change(found):
        seen.append(found.metadata)
        return found.next_version(cancel_requested=True)

    changed = one.update(record.name, change)
    assert seen == [None, DONE]
    assert two.get(record.name) == changed
    two.update(record.name, lambda found: found.next_version(owner="", lease_until=clock()))
    taken = one.update(record.name, claim_of(clock, "them"))
    assert (taken.owner, taken.version) == ("them", 5)
    insert(one, record_of(clock, "b"))
    two.update("operations/b", end_of(clock))
    assert one.update("operations/b", lambda found: found).done


def test_queued_change_is_decided_on_the_stored_record(one, two, clock):
    """A queued change is decided on the stored record, not on a cached one that may be outdated."""
    insert(one, record_of(clock))
    two.update("operations/a", cancel_of(clock))
    changed = changed_later(one, "a", called("ann"))
    assert (changed.cancel_requested, changed.caller, changed.version) == (True, "ann", 3)
    assert changed_later(two, "a", lambda found: found) == changed
    large = AnyMessage("x/acme.Meta", {"text": "x" * 100_000})
    written = changed_later(one, "a", lambda found: found.next_version(metadata=large))
    assert written.metadata == large == two.get("operations/a").metadata
    assert changed_later(one, "a", removal) is None
    assert listed(two) == []
    with pytest.raises(OperationNotFound):
        changed_later(one, "a", removal)


@pytest.mark.parametrize("later", [False, True])
def test_change_of_any_field_is_written_and_no_other_field_changes(one, two, clock, later):
    """A change writes the fields that differ, also those that become empty, and keeps the rest."""
    insert(one, record_of(clock))
    empty, moment = one.get("operations/a"), clock() + timedelta(days=1, microseconds=7)
    message = AnyMessage("x/acme.Meta", {"text": "\u00fc null", "null": None})
    by_type = {"None": moment, "False": True, "''": '"\\\u2028', "0": 3}
    fields = {
        field.name: by_type[repr(field.default)]
        for field in attrs.fields(Record)
        if repr(field.default) in by_type
    }
    fields |= {"metadata": message, "result": message, "keys": '{"a": null}'}
    fields |= {"state": State.SUCCEEDED, "parent": "p", "method": "N", "create_time": moment}
    full = attrs.evolve(empty, **fields, version=2)
    change = (
        changed_later
        if later
        else (lambda store, id_, made: store.update(f"operations/{id_}", made))
    )
    for number, (name, value) in enumerate(fields.items(), 2):
        given = attrs.evolve(empty, **{name: value}, version=2 * number)
        assert change(one, "a", lambda _, given=given: given) == given
        assert two.get("operations/a") == given
        emptied = attrs.evolve(empty, version=2 * number + 1)
        assert change(one, "a", lambda _, emptied=emptied: emptied) == emptied
        assert two.get("operations/a") == emptied
    assert change(one, "a", lambda _: full) == two.get("operations/a") == full


def test_request_key_older_than_a_day_does_not_bypass_a_busy_target(one, clock):
    """A start repeated after a day is new and needs a free target (spec §9.2(2), §9.5)."""
    insert(one, record_of(clock, target="t"), key_of())
    clock.advance(days=1)
    for check_only in (False, True):
        with pytest.raises(TargetBusy):
            insert(one, record_of(clock, "b", target="t"), key_of(), check_only=check_only)


def test_write_with_invalid_text_stores_nothing(one, clock):
    """A write with a lone surrogate or a value that JSON cannot hold is refused, in any field."""
    record = record_of(clock)
    insert(one, record)
    deep = []
    for _ in range(150):
        deep = [deep]
    for payload in ({"a": "\ud800"}, {"a": deep}, {"a": object()}):
        packed = AnyMessage("x/a.Meta", payload)
        with pytest.raises((ValueError, TypeError)):
            one.update(record.name, lambda found, p=packed: found.next_version(metadata=p))
    for text in ("a\0b", "a\ud800b"):
        for field in ("caller", "request_id", "method", "fingerprint"):
            with pytest.raises(InvalidArgument, match="Unicode text"):
                insert(one, record_of(clock, "b"), attrs.evolve(key_of(), **{field: text}))
    with pytest.raises(InvalidArgument):
        one.update(record.name, called("a\ud800b"))
    odd = "operations/\ud800"
    assert one.poll_states([odd]).finished == {odd}
    for call in (lambda: one.get(odd), lambda: one.request(odd), lambda: one.update(odd, removal)):
        with pytest.raises((InvalidArgument, OperationNotFound)):
            call()
    assert one.get(record.name) == record
    assert listed(one) == ["a"]


def test_json_may_hold_any_character_and_keeps_its_types(place, clock):
    """U+0000 is stored; ``1`` and ``true``, which are equal in Python, stay distinct."""
    odd = AnyMessage(
        "x/a.Odd",
        {"text": '\0\u2028\ud7ff"\\', "\0": ["\0"], "a": 1, "b": [2**62, 5e-324, -0.0, None]},
    )
    first = datetime(1, 1, 2, tzinfo=UTC)
    record = record_of(
        clock, metadata=odd, create_time=first, update_time=datetime.max.replace(tzinfo=UTC)
    )
    with closing(place.open(clock)) as store:
        store.insert(record, odd, None)
    with closing(place.open(clock)) as store:
        assert repr(store.get("operations/a")) == repr(record)
        assert store.request("operations/a") == odd
        other = attrs.evolve(odd, payload={**odd.payload, "a": True})
        store.update("operations/a", lambda found: found.next_version(metadata=other))
    with closing(place.open(clock)) as store:
        assert store.get("operations/a").metadata.payload["a"] is True


def test_full_cache_drops_its_oldest_records(one, two, clock, monkeypatch):
    """A read returns the cached object until the record changes; a full cache drops old records."""
    monkeypatch.setattr("lro.stores._rows.MAX_BYTES", 20 * 2_000 + 1_999)
    names = [f"operations/{number:03d}" for number in range(25)]
    for name in names:
        insert(one, held(clock, name[-3:]))
    first = [one.get(name) for name in names]
    assert one.get(names[-1]) is first[-1]
    assert one.get(names[0]) == first[0]
    assert one.get(names[0]) is not first[0]
    two.update(names[-1], cancel_of(clock))
    second = one.get(names[-1])
    assert second.cancel_requested
    assert one.get(names[-1]) is second


def test_claim_by_another_store_invalidates_the_cached_record(one, two, clock):
    """A claim by another store invalidates a cached record, even one that is read often."""
    insert_pending(one, clock, "a")
    for _ in range(2):
        before = one.get("operations/a")
        assert before.notify_at == clock()
    (claimed,) = two.claim_due(clock() + timedelta(seconds=9), 9)
    assert one.get("operations/a") == claimed
    assert list(one.find(["operations/a"]).records) == [claimed]
    assert list(one.claim_due(clock() + timedelta(seconds=9), 9)) == []
    with pytest.raises(LeaseLost):
        one.update(before.name, settle_notifications(before, "", None))
    after = two.update(before.name, settle_notifications(claimed, "", None))
    assert one.get("operations/a") == after
    assert list(one.find(["operations/a"]).records) == [after]
    assert after.operation == before.operation
    assert one.next_due() is two.next_due() is None


def test_ended_record_is_cached_only_if_it_was_read(clock):
    """Ended records are not cached unless a caller has read them, so they cannot fill the cache."""
    cache = RecordCache()
    for name in "abc":
        cache.keep(record_of(clock, name), 7)
    assert cache.get("operations/b") is not None
    assert cache.peek("operations/a") is not None  # does not count: the caller gets the end, too
    current = cache._kept["operations/c"]
    assert cache.current("operations/c", current.stamp) is current.record
    ended = {name: end_of(clock)(record_of(clock, name)) for name in "abcd"}
    for record in ended.values():
        cache.keep(record, 7)
    assert cache.get("operations/a") is cache.peek("operations/a") is None
    assert cache.get("operations/b") is cache.peek("operations/b") is ended["b"]
    assert cache.get("operations/c") is ended["c"]
    assert cache.get("operations/d") is None
    cache.keep(ended["d"], 7, wanted=True)
    assert cache.get("operations/d") is ended["d"]
    for record in ended.values():
        cache.forget(record.name)
    assert cache._bytes == 0


def test_update_function_that_writes_to_the_file_is_refused(file_store, clock):
    """A change function may read the file but not write to it; its errors are raised unchanged."""
    record = record_of(clock)
    insert(file_store, record)

    def change(found):
        file_store.update(found.name, end_of(clock))
        return found.next_version(caller="c")

    with pytest.raises(RuntimeError, match="must have no effects"):
        file_store.update(record.name, change)
    for error in (sqlite3.OperationalError("mine"), UnicodeDecodeError("utf-8", b"", 0, 1, "")):

        def fail(found, error=error):
            raise error

        with pytest.raises(type(error)) as caught:
            file_store.update(record.name, fail)
        assert caught.value is error
    assert file_store.get(record.name) == record
    read = lambda found: found.next_version(caller=file_store.get(found.name).name)  # noqa: E731
    assert file_store.update(record.name, read).caller == record.name
