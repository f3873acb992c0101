"""SQLite files that vanish, are spoiled, foreign, full or of another version; invalid texts."""

from __future__ import annotations

import os
import re
import sqlite3
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path

import pytest

from lro import Any, DeclarationError, InvalidArgument
from lro.adapters import Record
from lro.errors import OperationNotFound, Unavailable
from lro.stores.sqlite import SCHEMA_VERSION, SQLiteStore, _statements
from lro.stores.sqlite._file import translate_error
from lro.stores.sqlite._statements import prepare
from lro.testing import ManualClock
from lro.testing._samples import (
    DONE,
    METHODS,
    REQUEST,
    end_of,
    held,
    ids,
    insert,
    key_of,
    made_later,
    record_of,
    together,
)
from tests.stores.store_verbs import check_complete
from tests.waiting import PATIENCE


@pytest.fixture
def path(tmp_path):
    return tmp_path / "operations.db"


@pytest.fixture(autouse=True)
def eager(monkeypatch):
    """Every call looks whether the file is still in its place."""
    monkeypatch.setattr("lro.stores.sqlite._file.SEEN_SECONDS", 0.0)


def opened(path, **options):
    """A store that the test closes."""
    return closing(SQLiteStore(path, **options))


@contextmanager
def plain(path, **options):
    """A connection that is not ours."""
    with closing(sqlite3.connect(path, isolation_level=None, **options)) as connection:
        yield connection


def version_of(path):
    with plain(path) as connection:
        return connection.execute("PRAGMA user_version").fetchone()[0]


def verbs(store, clock):
    """Every verb that reads or writes, as a call."""
    return {
        "insert": lambda: insert(store, record_of(clock, "new"), key_of("new")),
        "check": lambda: insert(store, record_of(clock, "new"), key_of("new"), check_only=True),
        "forget": lambda: store.forget("operations/a"),
        "request": lambda: store.request("operations/a"),
        "get": lambda: store.get("operations/a"),
        "find": lambda: store.find(["operations/a"], 1_000_000),
        "update": lambda: store.update(
            "operations/a", lambda record: record.next_version(caller="x")
        ),
        "insert_later": lambda: made_later(
            partial(store.insert_later, record_of(clock, "later"), REQUEST, None)
        ),
        "update_later": lambda: made_later(
            partial(store.update_later, "operations/a", partial(Record.next_version, caller="x"))
        ),
        "page": lambda: store.page("", None, 9),
        "renew": lambda: store.renew("us", clock()),
        "orphans": lambda: store.orphans(METHODS, 9),
        "expire": lambda: store.expire(9),
        "poll_states": lambda: store.poll_states(["operations/a"]),
        "add_counts": lambda: store.add_counts(clock(), {"M": {"a": 1}}),
        "read_counts": lambda: store.read_counts(clock()),
        "read_totals": lambda: store.read_totals(),
        "read_load": lambda: store.read_load([""], 9),
        "claim_due": lambda: store.claim_due(clock(), 9),
        "next_due": lambda: store.next_due(),
        "listen": lambda: store.listen(),
    }


def errors_of(store, clock):
    """What each verb raises, by name; None for those that answer."""
    found = {}
    for verb, call in verbs(store, clock).items():
        try:
            call()
        except Exception as exc:
            found[verb] = type(exc)
        else:
            found[verb] = None
    return found


def test_the_table_has_every_verb():
    """Also one that is new."""
    check_complete(verbs(None, None))


# -- versions -------------------------------------------------------------------------------------


def test_threads_open_new_files_at_once(tmp_path):
    """One thread makes the tables, many times over; every thread can use them."""
    for number in range(10):
        path = tmp_path / f"{number}.db"
        found = together(4, lambda _, path=path: SQLiteStore(path))
        assert [type(one) for one in found] == [SQLiteStore] * 4, found
        for store in found:
            store.close()


def test_tables_are_made_whole_or_not_at_all(path):
    """Making them fails at an index of another program: the file is left as it was."""
    with plain(path) as writer:
        writer.execute("CREATE TABLE theirs (x)")
        writer.execute("CREATE INDEX starts_age ON theirs (x)")
        with pytest.raises(DeclarationError, match="index starts_age already exists"):
            prepare(writer, "operations.db", 0.0)
        assert not writer.in_transaction
        found = writer.execute("SELECT name FROM sqlite_master ORDER BY name").fetchall()
        assert found == [("starts_age",), ("theirs",)]
    assert version_of(path) == 0


@pytest.mark.parametrize("version", [-1, SCHEMA_VERSION + 1, 3])
def test_a_file_of_another_version_is_refused(path, version):
    """An error says which version it has; the file is left as it is."""
    clock = ManualClock()
    with opened(path, clock=clock) as store:
        insert(store, record_of(clock))
    with plain(path) as connection:
        connection.execute(f"PRAGMA user_version = {version}")
    known = f"has schema version {version}; this library can only use version {SCHEMA_VERSION}"
    with pytest.raises(DeclarationError, match=known):
        SQLiteStore(path)
    with plain(path) as connection:
        assert connection.execute("SELECT name FROM operations").fetchall() == [("operations/a",)]
    assert version_of(path) == version


def test_tables_that_another_process_has_made_meanwhile_are_used(path, monkeypatch):
    """Between the first look at the version and the lock of the file."""
    SQLiteStore(path).close()
    found = [0, SCHEMA_VERSION, SCHEMA_VERSION]
    monkeypatch.setattr(_statements, "_version", lambda writer: found.pop(0))
    with plain(path) as connection:
        prepare(connection, "operations.db", 0.0)
        assert not connection.in_transaction
    assert found == []


def test_tables_cannot_be_made_under_the_lock_of_another_program(path):
    """The store waits no longer than any other call; a later one makes them."""
    with plain(path) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(Unavailable):
            SQLiteStore(path, busy_seconds=0.01)
        other.execute("ROLLBACK")
    SQLiteStore(path).close()
    assert version_of(path) == SCHEMA_VERSION


# -- what is no file of ours ----------------------------------------------------------------------


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


def test_a_directory_is_refused(tmp_path):
    """It will never be a file."""
    with pytest.raises(DeclarationError, match="is a directory"):
        SQLiteStore(tmp_path)


def test_a_folder_that_is_missing_is_unavailable(tmp_path):
    """It may be mounted later. The error has the path, and what is missing."""
    path = tmp_path / "missing" / "operations.db"
    wanted = f"{path} cannot be opened: there is no directory {path.parent}"
    with pytest.raises(Unavailable, match=re.escape(wanted)):
        SQLiteStore(path)


@pytest.mark.parametrize(
    "url",
    [
        "sqlite:///x.db",
        "file:/tmp/x.db",
        "postgresql://host/x",
        "file:x.db?mode=memory",
        "file::memory:",
        "sqlite:x.db",
        "FILE:x.db",
    ],
)
def test_a_url_is_refused(url, tmp_path, monkeypatch):
    """It would be the path of a file of that name, or in a directory of that name."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DeclarationError, match="is a URL, and a path is wanted, such as"):
        SQLiteStore(url)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["c:x.db", "file.db", "a:b.db"])
def test_a_path_with_a_colon_is_no_url(name, tmp_path, monkeypatch):
    """One letter and a colon is a drive of Windows; other names may hold a colon elsewhere."""
    monkeypatch.chdir(tmp_path)
    SQLiteStore(name).close()
    assert (tmp_path / name).exists()


@pytest.mark.parametrize(
    "table", ["operations", "inputs", "starts", "minutes", "totals", "secrets"]
)
@pytest.mark.parametrize("version", [0, SCHEMA_VERSION])
def test_foreign_tables_are_refused(path, table, version):
    """Of another program that has a table of such a name; and nothing is added to its file."""
    with plain(path) as other:
        if version:
            SQLiteStore(path).close()
            other.execute(f"DROP TABLE {table}")
        other.execute(f"CREATE TABLE {table} (mine)")
        other.execute(f"PRAGMA user_version = {version}")
        before = other.execute("SELECT name FROM sqlite_master ORDER BY 1").fetchall()
        with pytest.raises(DeclarationError, match="not of this library"):
            SQLiteStore(path)
        assert other.execute("SELECT name FROM sqlite_master ORDER BY 1").fetchall() == before


def test_tables_of_others_may_stand_beside_ours(path):
    """The file may belong to an application that has its own tables there."""
    clock = ManualClock()
    with plain(path) as other:
        other.execute("CREATE TABLE customers (name)")
        other.execute("INSERT INTO customers VALUES ('käthe')")
        with opened(path, clock=clock) as store:
            insert(store, record_of(clock))
            assert store.get("operations/a") == record_of(clock)
        assert other.execute("SELECT name FROM customers").fetchall() == [("käthe",)]


def test_tables_that_cannot_be_looked_at_are_not_foreign(monkeypatch):
    """What is in the way then is reported as it is."""
    monkeypatch.setattr(_statements, "_version", lambda writer: SCHEMA_VERSION)
    with pytest.raises(sqlite3.OperationalError, match="refused by a test"):
        prepare(Moody("wal", sqlite3.SQLITE_IOERR), "operations.db", 0.0)


class Moody:
    """Answers a request for the write-ahead log by what it was given, one after the other."""

    def __init__(self, *answers):
        self.answers = list(answers)

    def execute(self, statement):
        answer = self.answers.pop(0)
        if isinstance(answer, int):
            error = sqlite3.OperationalError("refused by a test")
            error.sqlite_errorcode = answer
            raise error
        self.answer = answer
        return self

    def fetchone(self):
        return (self.answer,)


def test_the_write_ahead_log_is_asked_for_again(monkeypatch):
    """Until it is there, or the time for locks is over; but only where a lock is in the way."""
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    now = iter(range(100))
    monkeypatch.setattr("time.monotonic", lambda: next(now))
    assert _statements._write_ahead(Moody(5, 5, 6, "wal"), PATIENCE) == "wal"
    with pytest.raises(sqlite3.OperationalError):
        _statements._write_ahead(Moody(5, "wal"), 0.0)
    with pytest.raises(sqlite3.OperationalError):
        _statements._write_ahead(Moody(sqlite3.SQLITE_READONLY, "wal"), PATIENCE)


def test_a_place_without_a_write_ahead_log_is_refused():
    """Where files cannot be shared as SQLite needs it, some network drives."""
    with pytest.raises(DeclarationError, match="no write-ahead log"):
        prepare(Moody("delete"), "operations.db", 0.0)


# -- what happens to the file ---------------------------------------------------------------------


def test_a_deleted_file_is_not_made_again(path):
    """No call reports that something was stored in a file that cannot be opened any more."""
    clock = ManualClock()
    with opened(path, clock=clock) as store:
        insert(store, held(clock))
        for name in (path, *path.parent.glob("operations.db-*")):
            os.unlink(name)
        found = errors_of(store, clock)
        assert found == dict.fromkeys(found, Unavailable)
        assert list(path.parent.glob("operations.db")) == []


def test_another_file_in_its_place_is_not_taken_for_it(path):
    """Restored from a copy, or made by another process: what was read before is not in it."""
    clock = ManualClock()
    with opened(path, clock=clock) as store:
        insert(store, held(clock))
        for name in (path, *path.parent.glob("operations.db-*")):
            os.unlink(name)
        with opened(path, clock=clock) as other:
            insert(other, record_of(clock, "b"))
            with pytest.raises(Unavailable, match="deleted or replaced"):
                store.get("operations/b")
            with pytest.raises(Unavailable, match="deleted or replaced"):
                insert(store, record_of(clock, "b"))
            store._file._readers._close_idle()
            with pytest.raises(Unavailable, match="deleted or replaced"):
                store.get("operations/b")
            assert ids(other.page("", None, 9).records) == ["b"]


def test_a_file_that_comes_back_is_used_again(path):
    """Moved away and back by another program."""
    clock = ManualClock()
    with opened(path, clock=clock) as store:
        insert(store, record_of(clock))
        away = path.with_name("away.db")
        path.rename(away)
        with pytest.raises(Unavailable, match="deleted or replaced"):
            store.get("operations/a")
        away.rename(path)
        assert store.get("operations/a") == record_of(clock)
        assert insert(store, record_of(clock, "b")).fresh


def test_the_place_is_looked_at_now_and_then(path, monkeypatch):
    """Not at every call: that would take as long as the call itself."""
    clock = ManualClock()
    monkeypatch.setattr("lro.stores.sqlite._file.SEEN_SECONDS", 3600.0)
    with opened(path, clock=clock) as store:
        insert(store, record_of(clock))
        looks = []
        monkeypatch.setattr(store._file._file, "_check_identity", lambda: looks.append(1))
        for _ in range(5):
            store.get("operations/a")
            store.update("operations/a", lambda record: record.next_version(caller="c"))
        assert looks == []


@pytest.mark.parametrize("spoil", ["truncate", "overwrite", "empty"])
def test_a_spoiled_file_is_unavailable(path, spoil):
    """Cut, overwritten or emptied by another program: an answer is true or an error of ours."""
    clock = ManualClock()
    with opened(path, clock=clock) as store:
        for number in range(50):
            insert(store, held(clock, str(number)), key_of(str(number)))
        insert(store, held(clock))
        truth = store.get("operations/a"), ids(store.page("", None, 99).records)
    with opened(path, clock=clock) as store:
        if spoil == "overwrite":
            path.write_bytes(b"?" * path.stat().st_size)
        else:
            os.truncate(path, 0 if spoil == "empty" else 5000)
        for verb, call in verbs(store, clock).items():
            try:
                answer = call()
            except (Unavailable, OperationNotFound):
                continue
            if verb == "get":
                assert answer == truth[0]
            if verb == "page":
                assert ids(answer) == truth[1]
    with (
        pytest.raises((DeclarationError, Unavailable, OperationNotFound)),
        opened(path) as store,
    ):
        store.get("operations/a")  # an empty file becomes a new one


def test_dropped_tables_are_unavailable(path):
    """A statement that cannot be right any more is no reason to show what SQLite says."""
    clock = ManualClock()
    with opened(path, clock=clock) as store:
        insert(store, held(clock))
        with plain(path) as other:
            for table in ("operations", "inputs", "starts", "minutes", "totals"):
                other.execute(f"DROP TABLE {table}")
        found = errors_of(store, clock)
        assert found.pop("listen") is None
        assert found == dict.fromkeys(found, Unavailable)


def test_a_full_disk_is_unavailable(path):
    """What does not fit is refused and leaves nothing; reads go on, and all does when it fits."""
    clock = ManualClock()
    with opened(path, clock=clock) as store:
        insert(store, record_of(clock))
        writer = store._file._writer._connection
        (pages,) = writer.execute("PRAGMA page_count").fetchone()
        writer.execute(f"PRAGMA max_page_count = {pages}")
        big = Any("x/a.Request", {"data": "x" * 100_000})
        with pytest.raises(Unavailable, match=r"\(SQLITE_FULL\)"):
            store.insert(record_of(clock, "b"), big, None)
        with pytest.raises(Unavailable, match=r"\(SQLITE_FULL\)"):
            store.update("operations/a", lambda record: record.next_version(metadata=big))
        assert store.get("operations/a") == record_of(clock)
        assert ids(store.page("", None, 9).records) == ["a"]
        writer.execute("PRAGMA max_page_count = 1000000")
        assert store.insert(record_of(clock, "b"), big, None).fresh
        assert (
            store.update("operations/a", lambda record: record.next_version(caller="c")).caller
            == "c"
        )


FULL, NORMAL = 2, 1


def waits_for_disk(store):
    """How the next commit of this connection goes to disk (``PRAGMA synchronous``)."""
    ((kind,),) = store._file._writer._connection.execute("PRAGMA synchronous").fetchall()
    return kind


def test_only_a_sweep_does_not_wait_for_the_disk(path, monkeypatch):
    """Whatever is acknowledged is on disk, also after a sweep that has failed."""
    clock = ManualClock()
    with opened(path, clock=clock) as store:
        for number in range(3):
            insert(store, record_of(clock, str(number)))
            store.update(f"operations/{number}", end_of(clock, days=number + 1))
        assert waits_for_disk(store) == FULL
        clock.advance(days=1)
        assert store.expire(9).names == ["operations/0"]
        assert waits_for_disk(store) == NORMAL
        insert(store, record_of(clock, "a"))
        assert waits_for_disk(store) == FULL
        clock.advance(days=1)
        with monkeypatch.context() as broken:
            broken.setattr(_statements, "_DELETE_START", "DELETE FROM nothing WHERE ?")
            store.insert(record_of(clock, "b"), REQUEST, key_of())
            clock.advance(days=1)
            with pytest.raises(Unavailable, match=r"\(SQLITE_ERROR\)"):
                store.expire(9)
        assert sorted(store.get(f"operations/{n}").name[-1] for n in "12") == ["1", "2"]
        insert(store, record_of(clock, "c"))
        assert waits_for_disk(store) == FULL
        assert sorted(store.expire(9).names) == ["operations/1", "operations/2"]
        store._file._writer._close()
        insert(store, record_of(clock, "d"))
        assert waits_for_disk(store) == FULL


@contextmanager
def without_rights():
    """As a user to whom the rights of files mean something."""
    if os.geteuid():
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.mark.platform
@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="this system has no users to be")
@pytest.mark.parametrize("what", ["file", "directory"])
def test_what_may_only_be_read_is_unavailable(what):
    """A file, or a directory in which the log cannot be made: refused when it is opened."""
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "operations.db"
        SQLiteStore(path).close()
        (path if what == "file" else path.parent).chmod(0o444 if what == "file" else 0o555)
        if what == "file":
            path.parent.chmod(0o755)
        with without_rights(), pytest.raises(Unavailable):
            SQLiteStore(path)
        path.parent.chmod(0o755)


def test_a_connection_that_may_only_read_is_unavailable(path):
    """As a file system that was mounted again, for reading only."""
    clock = ManualClock()
    with opened(path, clock=clock) as store:
        insert(store, record_of(clock))
        writer = store._file._writer._connection
        writer.execute("PRAGMA query_only = 1")
        with pytest.raises(Unavailable, match=r"\(SQLITE_READONLY\)"):
            store.update("operations/a", end_of(clock))
        assert store.get("operations/a") == record_of(clock)
        writer.execute("PRAGMA query_only = 0")
        assert store.update("operations/a", end_of(clock)).done


# -- texts ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["a\0b", "\ud800", "x\udcff"])
@pytest.mark.parametrize("field", ["caller", "target", "method", "owner", "parent", "request_id"])
def test_what_is_no_text_is_refused(path, field, text):
    """With the name of the field, and nothing is stored."""
    clock = ManualClock()
    with opened(path, clock=clock) as store:
        record = record_of(clock, **{field: text} if field != "parent" else {})
        if field == "parent":
            record = record.next_version(parent=text)
        with pytest.raises(InvalidArgument) as caught:
            insert(store, record)
        assert caught.value.field == field
        assert list(store.page("", None, 9).records) == []


def test_names_that_are_no_text_are_refused(path):
    """By every verb that takes a name or another text."""
    clock = ManualClock()
    odd = "operations/\ud800"
    with opened(path, clock=clock) as store:
        insert(store, held(clock))
        for call in (
            lambda: store.get(odd),
            lambda: store.request(odd),
            lambda: store.forget(odd),
            lambda: store.update(odd, lambda record: record),
            lambda: store.page("\ud800", None, 9),
            lambda: store.renew("\ud800", clock()),
            lambda: insert(store, record_of(clock, "b"), key_of("\ud800")),
            lambda: store.update(
                "operations/a", lambda record: record.next_version(owner="\ud800")
            ),
        ):
            with pytest.raises(InvalidArgument, match=r"(?i)surrogate|Unicode text"):
                call()
        assert store.orphans(["\ud800", "M"], 9).next_lease_end is not None
        assert list(store.renew("us", clock(), [odd]).cancel_requested) == []
        assert store.poll_states([odd]).finished == {odd}
        assert store.get("operations/a") == held(clock)


def test_how_errors_are_described():
    """A closed connection, and errors that have no code of SQLite's."""
    assert str(
        translate_error(sqlite3.ProgrammingError("Cannot operate on a closed database."))
    ) == ("the store is closed")
    assert "(OperationalError)" in str(
        translate_error(sqlite3.OperationalError("Could not decode"))
    )
    misuse = sqlite3.InterfaceError("bad parameter or other API misuse")
    misuse.sqlite_errorcode, misuse.sqlite_errorname = sqlite3.SQLITE_MISUSE, "SQLITE_MISUSE"
    assert isinstance(translate_error(misuse), Unavailable)


@pytest.mark.parametrize(
    ("values", "says"),
    [(({"a": 1},), "'dict' is not supported"), ((), "number of bindings")],
)
def test_a_value_that_cannot_be_bound_is_no_outage(path, values, says):
    """What can never work is not tried again."""
    with closing(SQLiteStore(path)) as store:
        with pytest.raises(InvalidArgument, match=says):
            store._file.rows("SELECT ?", values)
        with pytest.raises(InvalidArgument, match=says):
            store._file.write(lambda writer: writer.execute("SELECT ?", values))


def test_a_file_that_cannot_be_seen_when_it_is_made(path, monkeypatch):
    """It vanished in the same moment: nothing is left open."""
    connections = []
    connect = sqlite3.connect

    def vanishing(*arguments, **options):
        connections.append(connect(*arguments, **options))
        os.unlink(path)
        return connections[-1]

    monkeypatch.setattr("sqlite3.connect", vanishing)
    with pytest.raises(Unavailable, match=rf"{re.escape(str(path))} cannot be opened: "):
        SQLiteStore(path)
    for connection in connections:
        with pytest.raises(sqlite3.ProgrammingError, match="closed"):
            connection.execute("SELECT 1")


def test_the_request_outlives_nothing(path):
    """A start that was undone by another verb leaves no request behind."""
    clock = ManualClock()
    with opened(path, clock=clock) as store:
        insert(store, record_of(clock))
        assert store.request("operations/a") == REQUEST
        store.update("operations/a", end_of(clock, DONE))
        assert store._file.rows("SELECT count(*) FROM inputs") == [(0,)]
