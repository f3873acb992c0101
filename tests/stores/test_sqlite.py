"""SQLite on its own: durability, several processes on one file, locks, versions, connections."""

from __future__ import annotations

import itertools
import json
import sqlite3
import subprocess
import sys
import threading
from contextlib import ExitStack, closing, contextmanager
from datetime import UTC, datetime, timedelta

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lro import Any, InvalidArgument, State, Status
from lro._model.operation import claim, report, request_cancel
from lro.adapters import Record
from lro.errors import NotApplied, OperationNotFound, RequestIdConflict, TargetBusy, Unavailable
from lro.stores._rows import RecordCache
from lro.stores.sqlite import SQLiteStore
from lro.stores.sqlite._connections import FileConnections
from lro.testing import STORE_CHECKS, ManualClock, run_store_check
from lro.testing._samples import (
    DONE,
    METHODS,
    REQUEST,
    end_of,
    held,
    ids,
    insert,
    key_of,
    record_of,
    together,
)
from tests.services.processes import killed_at_end
from tests.waiting import PATIENCE

WRITER = """
import sys
from datetime import UTC, datetime, timedelta
from lro._base.status import Any
from lro._model.operation import Record, end
from lro.stores.sqlite import SQLiteStore

store = SQLiteStore(sys.argv[1])
number = 0
while True:
    now = datetime.now(UTC)
    name = f"operations/{sys.argv[2]}-{number}"
    store.insert(
        Record(name=name, parent="", method="M", create_time=now, update_time=now),
        Any("x/a.Request", {"number": number}),
        None,
    )
    print(name, "inserted", flush=True)
    store.update(name, end(Any("x/a.Done", {}), now=now, keep_for=timedelta(days=1)))
    print(name, "ended", flush=True)
    number += 1
"""

OPENER = """
import sys
from datetime import UTC, datetime
from lro._base.status import Any
from lro._model.operation import Record
from lro.stores.sqlite import SQLiteStore

print("ready", flush=True)
sys.stdin.readline()
store = SQLiteStore(sys.argv[1])
now = datetime.now(UTC)
name = f"operations/{sys.argv[2]}"
record = Record(name=name, parent="", method="M", create_time=now, update_time=now)
store.insert(record, Any(), None)
print(store.secret().hex(), flush=True)
store.close()
"""


def process(program, *arguments):
    """A process of its own, with pipes; killed at the end."""
    command = [sys.executable, "-c", program, *map(str, arguments)]
    return killed_at_end(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "operations.db"


def opened(path, **options):
    """A store that the test closes."""
    return closing(SQLiteStore(path, **options))


def test_what_was_acknowledged_survives_a_kill(path):
    """After kill -9 every insert and end that was answered is there, and the file is sound."""
    with process(WRITER, path, "a") as writer:
        said = [writer.stdout.readline().split() for _ in range(41)]
        writer.kill()
        said += [line.split() for line in writer.stdout if line.endswith("\n")]
    ended = {name for name, what in said if what == "ended"}
    assert len(ended) >= 20
    with opened(path) as store:
        for name, _ in said:
            record = store.get(name)
            assert not (name in ended and record.result != Any("x/a.Done", {}))
            if not record.done:
                assert store.request(name).payload == {"number": int(name.rpartition("-")[2])}
        found = {record.name for record in store.page("", None, 10_000).records}
        assert {name for name, _ in said} <= found
    with closing(sqlite3.connect(path)) as plain:
        assert plain.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


def test_processes_open_a_new_file_at_once(path):
    """One of them makes the tables, all of them work, and they share one secret."""
    with ExitStack() as stack:
        running = [stack.enter_context(process(OPENER, path, number)) for number in range(4)]
        assert [one.stdout.readline() for one in running] == ["ready\n"] * 4
        for one in running:
            one.stdin.write("go\n")
            one.stdin.flush()
        secrets = [one.stdout.readline() for one in running]
        assert [one.wait(PATIENCE) for one in running] == [0] * 4
    with opened(path) as store:
        assert set(secrets) == {store.secret().hex() + "\n"}
        assert sorted(ids(store.page("", None, 9).records)) == ["0", "1", "2", "3"]


def test_threads_open_a_new_file_at_once(tmp_path):
    """The same within one process, many times over, as no process start spreads it."""
    for number in range(10):
        path = tmp_path / f"{number}.db"
        found = together(4, lambda _, path=path: SQLiteStore(path))
        assert [type(one) for one in found] == [SQLiteStore] * 4, found
        assert len({store.secret() for store in found}) == 1
        for store in found:
            store.close()


def test_threads_share_a_store(path):
    """Every verb from many threads at once; what each has done is there."""
    clock = ManualClock()
    with opened(path, clock=clock) as store:

        def work(number):
            for turn in range(5):
                record = held(clock, f"{number}-{turn}", target=f"t{number}")
                insert(store, record, key_of(f"{number}-{turn}"))
                assert store.get(record.name).target == record.target  # others renew its lease
                store.renew("us", clock())
                store.orphans(METHODS, 5)
                store.page("", None, 5)
                store.update(record.name, end_of(clock))
            return number

        assert together(8, work) == list(range(8))
        assert len(store.page("", None, 99).records) == 40


def test_a_reopened_file_keeps_everything(path):
    """Records, requests, leases, keys, targets and the secret."""
    clock = ManualClock()
    with opened(path, clock=clock) as store:
        record = held(clock, "a", target="t")
        insert(store, record, key_of())
        store.update(record.name, claim("us", clock(), clock()))
        insert(store, record_of(clock, "done"))
        store.update("operations/done", end_of(clock))
        before = store.get("operations/a"), store.get("operations/done"), store.secret()
    with opened(path, clock=clock) as store:
        assert (store.get("operations/a"), store.get("operations/done"), store.secret()) == before
        assert store.request("operations/a") == REQUEST
        assert ids(store.orphans(METHODS, 9).records) == ["a"]
        assert not insert(store, record_of(clock, "b"), key_of()).fresh
        with pytest.raises(TargetBusy):
            insert(store, record_of(clock, "b", target="t"))
        with pytest.raises(RequestIdConflict):
            insert(store, record_of(clock, "b"), key_of(fingerprint="g"))


def test_two_stores_on_one_file_see_each_other(path):
    """What one has committed, the other finds at once; they share the secret."""
    clock = ManualClock()
    with opened(path, clock=clock) as one, opened(path, clock=clock) as two:
        assert one.secret() == two.secret()
        insert(one, record_of(clock))
        two.update("operations/a", end_of(clock))
        assert one.get("operations/a").result == DONE


def test_an_existing_file_is_opened_without_writing(path):
    """A lock of another program does not keep a process from starting."""
    SQLiteStore(path).close()
    with foreign_lock(path), opened(path, busy_seconds=0) as store:
        assert len(store.secret()) == 64


@contextmanager
def foreign_lock(path):
    """Another program writes to the file, and takes its time."""
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        yield
        other.execute("ROLLBACK")


def test_a_lock_held_too_long_is_unavailable(path):
    """Every write says so, reads go on, and afterwards nothing is lost or half done."""
    clock = ManualClock()
    with opened(path, clock=clock, busy_seconds=0.01) as store:
        insert(store, held(clock), key_of())
        kept = store.get("operations/a")
        with foreign_lock(path):
            for write in (
                lambda: insert(store, record_of(clock, "b"), key_of("other")),
                lambda: store.update("operations/a", end_of(clock)),
                lambda: store.renew("us", clock()),
                lambda: store.forget("operations/a"),
            ):
                with pytest.raises(Unavailable, match=r"cannot be used now \(SQLITE_BUSY\)"):
                    write()
            assert store.get("operations/a") == kept
            assert store.request("operations/a") == REQUEST
            assert ids(store.page("", None, 9).records) == ["a"]
            assert list(store.expire(9).names) == []
        assert insert(store, record_of(clock, "b"), key_of("other")).fresh
        assert store.update("operations/a", end_of(clock)).done


def test_a_lock_held_shortly_is_waited_for(path):
    """Within ``busy_seconds`` a write simply takes longer."""
    clock = ManualClock()
    with opened(path, clock=clock, busy_seconds=PATIENCE) as store:
        with foreign_lock(path):
            insertion = threading.Thread(target=insert, args=(store, record_of(clock)))
            insertion.start()
        insertion.join(PATIENCE)
        assert store.get("operations/a")


def test_a_new_file_under_a_lock_is_unavailable(path):
    """Opening it waits no longer than any other call."""
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(Unavailable):
            SQLiteStore(path, busy_seconds=0.01)
        other.execute("ROLLBACK")
    with opened(path) as store:
        assert len(store.secret()) == 64


def test_a_secret_that_cannot_be_stored_leaves_nothing_open(path, monkeypatch):
    """A constructor that fails closes what it had opened."""
    closed = []
    whole = FileConnections.close
    monkeypatch.setattr(FileConnections, "close", lambda self: (closed.append(1), whole(self)))

    def no_bytes(count):
        raise OSError("no entropy")

    monkeypatch.setattr("secrets.token_bytes", no_bytes)
    with pytest.raises(OSError, match="entropy"):
        SQLiteStore(path)
    assert closed == [1]


def test_a_closed_store_is_unavailable(path):
    """Reads and writes alike."""
    clock = ManualClock()
    store = SQLiteStore(path, clock=clock)
    insert(store, record_of(clock))
    store.close()
    for call in (
        lambda: store.get("operations/a"),
        lambda: store.page("", None, 1),
        lambda: insert(store, record_of(clock, "b")),
    ):
        with pytest.raises(Unavailable, match="the store is closed"):
            call()


def test_big_requests_are_not_read_by_polls(path):
    """A request of 5 MB stays where it is until a worker wants it."""
    clock = ManualClock()
    with opened(path, clock=clock) as store:
        big = Any("x/a.Request", {"data": "x" * 5_000_000})
        store.insert(record_of(clock), big, None)
        statements = []
        for connection in (store._file._writer._connection, *store._file._readers._idle):
            connection.set_trace_callback(statements.append)
        store.get("operations/a")
        store.page("", None, 9)
        store.orphans(METHODS, 9)
        store.update("operations/a", lambda record: record.next_version(caller="c"))
        assert len(statements) > 4
        assert not [one for one in statements if "inputs" in one]
        assert store.request("operations/a") == big


def test_readers_are_shared(path):
    """A hundred threads that come and go leave no hundred connections behind."""
    clock = ManualClock()
    with opened(path, clock=clock) as store:
        insert(store, record_of(clock))
        for _ in range(100):
            reader = threading.Thread(target=store.get, args=("operations/a",))
            reader.start()
            reader.join()
        assert len(store._file._readers._idle) == 1


def test_a_read_that_outlasts_the_store_closes_its_connection(path):
    """It was out when the others were closed."""
    store = SQLiteStore(path)
    readers = store._file._readers
    reader = readers._take()
    store.close()
    readers._give_back(reader)
    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        reader.execute("SELECT 1")
    assert readers._idle == []


def test_a_change_that_writes_is_refused(path):
    """Changes have no effects of their own; one that tries raises, and its update is undone."""
    clock = ManualClock()
    with opened(path, clock=clock) as store:
        insert(store, record_of(clock))

        def change(record):
            store.update(record.name, end_of(clock))
            return record.next_version(caller="c")

        with pytest.raises(RuntimeError, match="must have no effects"):
            store.update("operations/a", change)
        assert store.get("operations/a") == record_of(clock)


def test_a_change_may_read(path):
    """It sees what is committed, and that is what it is given."""
    clock = ManualClock()
    with opened(path, clock=clock) as store:
        insert(store, record_of(clock))
        change = lambda record: record.next_version(caller=store.get(record.name).name)  # noqa: E731
        assert store.update("operations/a", change).caller == "operations/a"


def test_what_cannot_be_written_leaves_nothing(path):
    """A value that JSON has not is refused before it could be in the way of any reader."""
    clock = ManualClock()
    with opened(path, clock=clock) as store:
        insert(store, record_of(clock))
        deep = []
        for _ in range(150):
            deep = [deep]
        for payload in ({"a": "\ud800"}, {"a": deep}, {"a": object()}):
            packed = Any("x/a.Meta", payload)
            with pytest.raises((ValueError, TypeError)):
                store.update(
                    "operations/a", lambda record, p=packed: record.next_version(metadata=p)
                )
        assert store.get("operations/a") == record_of(clock)


def test_an_equal_record_is_not_written(path):
    """A change may give a copy: nothing is said to the database."""
    clock = ManualClock()
    with opened(path, clock=clock) as store:
        insert(store, record_of(clock))
        found = count(
            store, "ROLLBACK", lambda: store.update("operations/a", lambda r: attrs.evolve(r))
        )
        assert found.answer == record_of(clock)


@pytest.mark.parametrize("check", STORE_CHECKS, ids=lambda check: check.__name__)
def test_a_store_that_remembers_nothing_keeps_its_promises(check, tmp_path, monkeypatch):
    """Every record is read from the file: what is remembered must not be what makes it right."""
    monkeypatch.setattr("lro.stores._rows.MAX_BYTES", 0)
    numbers = itertools.count()
    run_store_check(check, lambda clock: SQLiteStore(tmp_path / f"{next(numbers)}.db", clock=clock))


TEXTS = st.text(st.characters(blacklist_categories=["Cs"], blacklist_characters="\0"), max_size=9)
TIMES = st.datetimes(datetime(1, 1, 2), datetime(9999, 12, 30), timezones=st.just(UTC)).map(
    lambda moment: moment.replace(fold=0)
)
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=8,
)
MESSAGES = st.builds(Any, TEXTS, JSON | st.binary(max_size=9))
STATUSES = st.builds(Status, st.integers(0, 16), TEXTS, st.lists(MESSAGES, max_size=2).map(tuple))
RECORDS = st.builds(
    Record,
    name=st.just("operations/a"),
    parent=TEXTS,
    method=TEXTS,
    state=st.sampled_from(State),
    metadata=st.none() | MESSAGES,
    result=st.none() | MESSAGES | STATUSES,
    create_time=TIMES,
    update_time=TIMES,
    start_time=st.none() | TIMES,
    end_time=st.none() | TIMES,
    expire_time=st.none() | TIMES,
    cancel_requested=st.booleans(),
    attempt=st.integers(0, 2**40),
    lost_attempts=st.integers(0, 2**40),
    owner=TEXTS,
    lease_until=st.none() | TIMES,
    caller=TEXTS,
    request_id=TEXTS,
    target=TEXTS,
    version=st.integers(1, 2**40),
)


class Forgetful(RecordCache):
    """Remembers nothing."""

    def keep(self, record, text_length, *, wanted=False):
        return record


@pytest.fixture(scope="module")
def forgetful(tmp_path_factory):
    """A store that reads all records from its file."""
    with opened(tmp_path_factory.mktemp("trips") / "operations.db") as store:
        store._cache = Forgetful()
        yield store


@settings(deadline=None)
@given(RECORDS, RECORDS)
def test_any_record_comes_back(forgetful, first, second):
    """As it was inserted, and as it was changed, whatever is in it."""
    forgetful.forget("operations/a")
    insert(forgetful, first)
    assert repr(forgetful.get("operations/a")) == repr(first)
    forgetful.update("operations/a", lambda _: second)
    assert repr(forgetful.get("operations/a")) == repr(second)


def test_a_sweep_takes_no_more_than_its_limit(path, monkeypatch):
    """Records and keys alike, a few in each transaction; and it says whether something is left."""
    monkeypatch.setattr("lro.stores.sqlite._store._SLICE", 2)
    clock = ManualClock()
    with opened(path, clock=clock) as store:
        for number in range(8):
            insert(store, record_of(clock, str(number)), key_of(str(number)))
            if number < 5:
                store.update(f"operations/{number}", end_of(clock, days=0.5))
        clock.advance(hours=12)
        ended = count(store, "COMMIT", lambda: store.expire(3))
        assert (len(ended.names), ended.more, ended.times) == (3, True, 2)
        ended = count(store, "COMMIT", lambda: store.expire(3))
        assert (len(ended.names), ended.more, ended.times) == (2, False, 1)
        clock.advance(hours=12)
        assert [store.expire(5).more for _ in range(3)] == [True, False, False]
        assert store._file.rows("SELECT count(*) FROM starts") == [(0,)]
        assert store.expire(0).more is False
        assert count(store, "BEGIN IMMEDIATE", lambda: store.expire(9)).times == 0


class Counted:
    """What a call gives, and how often the writing connection said something meanwhile."""

    def __init__(self, answer, times):
        self.answer, self.times = answer, times

    def __getattr__(self, name):
        return getattr(self.answer, name)


def count(store, statement, call):
    """The answer of a call, with the number of times that it has made the store say this."""
    said = []
    connection = store._file._writer._connection
    connection.set_trace_callback(said.append)
    try:
        answer = call()
    finally:
        connection.set_trace_callback(None)
    return Counted(answer, said.count(statement))


def test_a_forgotten_start_is_found_by_its_operation(path):
    """By an index: undoing one of a million starts reads no other."""
    clock = ManualClock()
    with opened(path, clock=clock) as store:
        insert(store, record_of(clock), key_of())
        store.forget("operations/a")
        assert insert(store, record_of(clock, "b"), key_of(fingerprint="g")).fresh
        plan = store._file.rows("EXPLAIN QUERY PLAN DELETE FROM starts WHERE name = 'x'")
        assert "starts_names" in plan[0][3]


def test_a_name_is_taken_once(path):
    """A second record of a name is refused, and the first one stays."""
    clock = ManualClock()
    with opened(path, clock=clock) as store:
        insert(store, record_of(clock))
        with pytest.raises(InvalidArgument, match="'operations/a' is taken"):
            insert(store, record_of(clock, caller="other"))
        assert store.get("operations/a") == record_of(clock)


def test_a_check_does_not_wait_for_writers(path):
    """It writes nothing, so that a lock is nothing to it."""
    clock = ManualClock()
    with opened(path, clock=clock, busy_seconds=0) as store:
        insert(store, record_of(clock, target="t"), key_of())
        with foreign_lock(path):
            assert insert(store, record_of(clock, "b"), check_only=True).fresh
            assert not insert(store, record_of(clock, "b"), key_of(), check_only=True).fresh
            with pytest.raises(TargetBusy):
                insert(store, record_of(clock, "b", target="t"), check_only=True)


def test_an_outdated_record_is_read_again(path):
    """What another process has changed since is changed further, not overwritten."""
    clock = ManualClock()
    with opened(path, clock=clock) as one, opened(path, clock=clock) as two:
        insert(one, held(clock))
        two.update("operations/a", claim("us", clock() + timedelta(seconds=20), clock()))
        one.update("operations/a", lambda record: record.next_version(caller="c"))
        assert (two.get("operations/a").attempt, two.get("operations/a").caller) == (1, "c")
        two.renew("us", clock() + timedelta(hours=1))
        one.update("operations/a", lambda record: record.next_version(caller="d"))
        assert two.get("operations/a").lease_until == clock() + timedelta(hours=1)
        two.update("operations/a", request_cancel(clock()))
        one.update("operations/a", request_cancel(clock()))
        assert one.get("operations/a") == two.get("operations/a")
        two.update("operations/a", end_of(clock))
        with pytest.raises(NotApplied):
            one.update("operations/a", end_of(clock))
        two.forget("operations/a")
        with pytest.raises(OperationNotFound):
            one.update("operations/a", end_of(clock))


def test_what_is_known_is_not_read(path):
    """A claim and an end by the process that inserted: one statement each, and the request's."""
    clock = ManualClock()
    with opened(path, clock=clock) as store:
        insert(store, record_of(clock))
        said = []
        store._file._writer._connection.set_trace_callback(said.append)
        store.update("operations/a", claim("us", clock(), clock()))
        store.update("operations/a", end_of(clock))
        assert [one.split()[0] for one in said] == [
            *("BEGIN", "UPDATE", "COMMIT"),
            *("BEGIN", "UPDATE", "DELETE", "COMMIT"),
        ]


def test_equal_messages_that_differ_are_written(path):
    """Python holds 1 and true for equal; JSON does not."""
    clock = ManualClock()
    with opened(path, clock=clock) as store:
        insert(store, record_of(clock, metadata=Any("x/a.Meta", {"a": 1})))
        change = lambda record: record.next_version(metadata=Any("x/a.Meta", {"a": True}))  # noqa: E731
        store.update("operations/a", change)
    with opened(path, clock=clock) as store:
        assert store.get("operations/a").metadata.payload["a"] is True


def test_errors_of_a_change_stay_what_they_are(path):
    """Also those that the database itself could raise."""
    clock = ManualClock()
    with opened(path, clock=clock) as store:
        insert(store, record_of(clock))
        for error in (sqlite3.OperationalError("mine"), UnicodeDecodeError("utf-8", b"", 0, 1, "")):

            def change(record, error=error):
                raise error

            with pytest.raises(type(error)) as caught:
                store.update("operations/a", change)
            assert caught.value is error


def test_poll_states_reads_only_what_may_have_changed(path):
    """Nothing written since, names without a change are not looked up again."""
    clock = ManualClock()
    with opened(path, clock=clock) as store, opened(path, clock=clock) as other:
        for unique_id in "abcd":
            insert(store, record_of(clock, unique_id))
        other.update("operations/d", request_cancel(clock()))
        names = [f"operations/{unique_id}" for unique_id in "abcd"]
        asked_for = []
        rows = store._file.rows
        store._file.rows = lambda sql, values=(): asked_for.append(values[0]) or rows(sql, values)

        def poll_states(*wanted):
            asked_for.clear()
            found = store.poll_states(wanted)
            return (
                sorted(found.finished),
                sorted(found.cancel_requested),
                sorted(json.loads(asked_for[0])),
            )

        d = names[3]
        assert poll_states(*names[:2], d) == ([], [d], [*names[:2], d])
        assert poll_states(*names) == ([], [d], names[2:])
        assert poll_states(*names) == ([], [d], [d])
        other.update("operations/a", end_of(clock))
        assert poll_states(*names) == (names[:1], [d], names)
        store.update("operations/b", end_of(clock))
        assert poll_states(*names) == (names[:2], [d], names)
        with store._file._writer._lock:  # another thread writes: anything may change
            assert poll_states(*names) == (names[:2], [d], names)
        assert poll_states("operations/\ud800", "operations/\0é", "operations/é")[0] == [
            "operations/\0é",
            "operations/é",
            "operations/\ud800",
        ]


def test_the_clock_of_the_machine(path):
    """By default time is UTC's."""
    with opened(path) as store:
        assert store.now().utcoffset().total_seconds() == 0


def test_many_records_are_remembered_for_polls(path, monkeypatch):
    """The last ones known, each as long as it does not change; the oldest are forgotten."""
    monkeypatch.setattr("lro.stores._rows.MAX_BYTES", 20 * 2_000 + 1_999)
    clock = ManualClock()
    with opened(path, clock=clock) as store:
        names = []
        for number in range(25):
            record = held(clock, f"{number:03d}")
            insert(store, record)
            names.append(record.name)
        assert len(store._cache._kept) == 20
        first = [store.get(name) for name in names]
        assert len(store._cache._kept) == 20
        assert store.get(names[-1]) is first[-1]
        assert store.get(names[0]) == first[0]
        store.renew("us", clock() + timedelta(hours=1))
        assert store.get(names[-1]).lease_until == clock() + timedelta(hours=1)
        store.update(names[-1], end_of(clock))
        assert store.get(names[-1]).done
        store.update(names[-1], lambda record: None)
        with pytest.raises(OperationNotFound):
            store.get(names[-1])


def test_the_cache_knows_the_length_of_texts(path):
    """However a record came into it: its limit is one of memory, and so of the texts' length."""
    clock = ManualClock()
    long = Any("x/a.Long", {"text": "x" * 4000})

    with opened(path, clock=clock) as store:

        def lengths():
            return [store._cache.text_length(f"operations/{name}") // 1000 for name in "ab"]

        insert(store, record_of(clock, "a"))
        insert(store, record_of(clock, "b", metadata=long))
        assert lengths() == [0, 4]
        store.update("operations/b", lambda record: record.next_version(caller="c"))
        store.update("operations/a", report(long, None, clock()))
        assert lengths() == [4, 4]
        store.get("operations/a")  # or its end would not be kept
        store.update("operations/a", end_of(clock, result=long))
        store._cache.forget("operations/b")
        assert lengths() == [8, 0]
        assert store.get("operations/b").metadata == long
        store._cache.forget("operations/a")
        store.get("operations/a")
        store.update("operations/a", lambda record: record.next_version(caller="c"))
        assert lengths() == [8, 4]
        store.update("operations/a", lambda record: None)
        assert lengths() == [0, 4]


def test_a_long_log_starts_again_from_its_beginning(path, monkeypatch):
    """Readers that are never all gone at once keep SQLite from it; then writers wait for them."""
    clock = ManualClock()
    with opened(path, clock=clock) as store:
        insert(store, record_of(clock))
        monkeypatch.setattr("lro.stores.sqlite._writer._LOG_BYTES", 100_000)
        monkeypatch.setattr("lro.stores.sqlite._writer._READERS_MS", 1)
        monkeypatch.setattr("lro.stores.sqlite._writer._LOG_ROUND", 1)
        long = Any("x/a.Long", {"text": "x" * 50_000})

        def write():
            return store.update("operations/a", report(long, None, clock()))

        with closing(sqlite3.connect(path, isolation_level=None)) as reader:
            reader.execute("BEGIN")
            reader.execute("SELECT count(*) FROM operations").fetchall()
            asked = "PRAGMA wal_checkpoint(RESTART)"
            assert [count(store, asked, write).times for _ in range(4)] == [1, 0, 0, 0]
            reader.execute("COMMIT")
            _, long_log, _ = reader.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
            store._file._writer._rest_until = 0.0
            write()
            write()
            _, short_log, _ = reader.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
            assert short_log < long_log / 2


def test_a_log_that_cannot_start_again_stays(path, monkeypatch):
    """What was committed is in it; it is asked for again after a while."""
    clock = ManualClock()
    with opened(path, clock=clock) as store:
        writer = store._file._writer
        monkeypatch.setattr("lro.stores.sqlite._writer._LOG_BYTES", 0)
        monkeypatch.setattr("lro.stores.sqlite._writer._LOG_ROUND", 1)
        whole, refused = writer._connection, []

        class Refusing:
            def __getattr__(self, name):
                return getattr(whole, name)

            def execute(self, statement, *values):
                if "checkpoint" in statement:
                    refused.append(statement)
                    raise sqlite3.OperationalError("refused by a test")
                return whole.execute(statement, *values)

        writer._connection = Refusing()
        insert(store, record_of(clock))
        insert(store, record_of(clock, "b"))
        assert len(refused) == 1
        assert whole.execute("PRAGMA busy_timeout").fetchone() == (0,)
        writer._connection = whole

        def unknown(path):
            raise OSError("a test raises this")

        monkeypatch.setattr("os.path.getsize", unknown)
        assert writer._log_bytes() == 0
