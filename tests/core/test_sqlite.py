"""SQLite on its own: durability, several processes on one file, locks, versions, connections."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
import threading
from contextlib import ExitStack, closing, contextmanager
from datetime import timedelta

import pytest

from lro._any import Any
from lro._errors import OperationNotFound, RequestIdConflict, TargetBusy, Unavailable
from lro._faults import DeclarationError
from lro._states import claim
from lro.stores._recent import SIZE
from lro.stores.sqlite import SCHEMA_VERSION, SQLiteStore
from lro.stores.sqlite._connections import Connections, _make_tables, _write_ahead
from lro.testing import ManualClock
from lro.testing._clock import together
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
)
from tests.core.kit import PATIENCE

WRITER = """
import sys
from datetime import UTC, datetime, timedelta
from lro._any import Any
from lro._states import Record, end
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
    store.update(name, end(Any("x/a.Done", {}), now=now, expiry=timedelta(days=1)))
    print(name, "ended", flush=True)
    number += 1
"""

OPENER = """
import sys
from datetime import UTC, datetime
from lro._any import Any
from lro._states import Record
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


@contextmanager
def process(program, *arguments):
    """A process of its own, with pipes; killed at the end."""
    command = [sys.executable, "-c", program, *map(str, arguments)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as running:
        try:
            yield running
        finally:
            running.kill()


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
        found = {record.name for record in store.page("", None, 10_000)}
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
        assert sorted(ids(store.page("", None, 9))) == ["0", "1", "2", "3"]


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
        assert len(store.page("", None, 99)) == 40


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
    """A lock of somebody else does not keep a process from starting."""
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
                with pytest.raises(Unavailable, match=r"cannot be used now \(OperationalError\)"):
                    write()
            assert store.get("operations/a") == kept
            assert store.request("operations/a") == REQUEST
            assert ids(store.page("", None, 9)) == ["a"]
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


def test_a_file_of_a_newer_version_is_refused(path):
    """And left as it is."""
    SQLiteStore(path).close()
    with closing(sqlite3.connect(path)) as plain:
        plain.execute(f"PRAGMA user_version = {SCHEMA_VERSION + 1}")
    known = f"schema version {SCHEMA_VERSION + 1}; this library knows {SCHEMA_VERSION}"
    with pytest.raises(DeclarationError, match=known):
        SQLiteStore(path)


def test_a_file_that_is_no_database_is_refused(path):
    """With its name in the error, and unchanged."""
    path.write_bytes(b"not a database at all, but long enough to be looked at" * 100)
    before = path.read_bytes()
    with pytest.raises(DeclarationError, match="no SQLite database"):
        SQLiteStore(path)
    assert path.read_bytes() == before


@pytest.mark.parametrize("name", ["", ":memory:"])
def test_a_store_without_a_file_is_refused(name):
    """Each connection would have a database of its own."""
    with pytest.raises(DeclarationError, match="use the MemoryStore"):
        SQLiteStore(name)


def test_a_folder_that_is_missing_is_unavailable(tmp_path):
    """It may be mounted later."""
    with pytest.raises(Unavailable):
        SQLiteStore(tmp_path / "missing" / "operations.db")


def test_a_secret_that_cannot_be_stored_leaves_nothing_open(path, monkeypatch):
    """A constructor that fails closes what it had opened."""
    closed = []
    whole = Connections.close
    monkeypatch.setattr(Connections, "close", lambda self: (closed.append(1), whole(self)))

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
        for connection in (store._file._writer, *store._file._idle):
            connection.set_trace_callback(statements.append)
        store.get("operations/a")
        store.page("", None, 9)
        store.orphans(METHODS, 9)
        store.update("operations/a", lambda record: record.moved(caller="c"))
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
        assert len(store._file._idle) == 1


def test_a_read_that_outlasts_the_store_closes_its_connection(path):
    """It was out when the others were closed."""
    store = SQLiteStore(path)
    file = store._file
    reader = file._take()
    store.close()
    file._give_back(reader)
    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        reader.execute("SELECT 1")
    assert file._idle == []


def test_an_error_of_ours_is_not_called_unavailable(path):
    """A statement that is wrong stays wrong, however often one asks."""
    with opened(path) as store:
        with pytest.raises(sqlite3.OperationalError):
            store._file.rows("SELECT nonsense FROM nowhere")
        with pytest.raises(OperationNotFound):
            store.get("operations/a")


def test_a_change_that_writes_fails_and_leaves_nothing(path):
    """Changes have no effects of their own; one that tries is undone with its update."""
    clock = ManualClock()
    with opened(path, clock=clock) as store:
        insert(store, record_of(clock))

        def change(record):
            store.update(record.name, end_of(clock))
            return record.moved(caller="c")

        with pytest.raises(sqlite3.OperationalError, match="within a transaction"):
            store.update("operations/a", change)
        assert store.get("operations/a") == record_of(clock)


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
                store.update("operations/a", lambda record, p=packed: record.moved(metadata=p))
        assert store.get("operations/a") == record_of(clock)


def test_old_keys_are_removed(path):
    """After their day they are gone from the file, a few at a time."""
    clock = ManualClock()
    with opened(path, clock=clock) as store:
        for number in range(5):
            insert(store, record_of(clock, str(number)), key_of(str(number)))
        clock.advance(days=1)
        assert list(store.expire(3).names) == []
        query = "SELECT count(*) FROM starts"
        assert store._file.rows(query) == [(2,)]
        store.expire(3)
        assert store._file.rows(query) == [(0,)]


def test_the_clock_of_the_machine(path):
    """By default time is UTC's."""
    with opened(path) as store:
        assert store.now().utcoffset().total_seconds() == 0


def test_many_records_are_remembered_for_polls(path):
    """The last ones read, each as long as it does not change; the oldest are forgotten."""
    clock = ManualClock()
    with opened(path, clock=clock) as store:
        names = []
        for number in range(SIZE + 5):
            record = held(clock, f"{number:03d}")
            insert(store, record)
            names.append(record.name)
        first = [store.get(name) for name in names]
        assert len(store._recent._kept) == SIZE
        assert store.get(names[-1]) is first[-1]
        assert store.get(names[0]) == first[0]
        store.renew("us", clock() + timedelta(hours=1))
        assert store.get(names[-1]).lease_until == clock() + timedelta(hours=1)
        store.update(names[-1], end_of(clock))
        assert store.get(names[-1]).done
        store.update(names[-1], lambda record: None)
        with pytest.raises(OperationNotFound):
            store.get(names[-1])


def test_a_transaction_that_was_ended_within_is_not_ended_twice(path):
    """SQLite itself rolls back after some errors, such as a full disk."""

    def write(store):
        with store._file.transaction() as writer:
            writer.execute("ROLLBACK")
            raise ZeroDivisionError

    with opened(path) as store:
        with pytest.raises(ZeroDivisionError):
            write(store)
        insert(store, record_of(ManualClock()))


def test_tables_that_are_there_already(path):
    """Another process was quicker: that is no error, unless it made something else."""
    SQLiteStore(path).close()
    with closing(sqlite3.connect(path, isolation_level=None)) as plain:
        _make_tables(plain)
        assert not plain.in_transaction
        plain.execute("PRAGMA user_version = 0")
        with pytest.raises(sqlite3.OperationalError, match="already exists"):
            _make_tables(plain)
        with closing(sqlite3.connect(path, isolation_level=None, timeout=0)) as other:
            plain.execute("BEGIN IMMEDIATE")
            with pytest.raises(sqlite3.OperationalError, match="locked"):
                _make_tables(other)
            plain.execute("ROLLBACK")


def test_the_write_ahead_log_is_asked_for_again(monkeypatch):
    """Until it is there, or the time for locks is over."""

    class Locked:
        answers = 3

        def execute(self, statement):
            self.answers -= 1
            if self.answers:
                raise sqlite3.OperationalError("database is locked")

    monkeypatch.setattr("time.sleep", lambda seconds: None)
    _write_ahead(Locked(), PATIENCE)
    with pytest.raises(sqlite3.OperationalError):
        _write_ahead(Locked(), 0)
