"""SQLite files that are missing, damaged, foreign, full or of another version; wrong paths."""

from __future__ import annotations

import os
import re
import sqlite3
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from lro import AnyMessage, DeclarationError, InvalidArgument
from lro.errors import OperationNotFound, Unavailable
from lro.stores.sqlite import SCHEMA_VERSION, SQLiteStore, read_version
from tests.stores.samples import called, end_of, held, ids, insert, key_of, listed, record_of
from tests.stores.store_verbs import errors_of, verbs
from tests.stores.wires import CONNECT, filled, sqlite_error, stranger

TABLES = (
    *("lro_operations", "lro_inputs", "lro_checkpoints", "lro_starts", "lro_minutes"),
    *("lro_workers", "lro_schedules", "lro_begins", "lro_paused", "lro_secrets"),
)


@pytest.fixture(autouse=True)
def checks_path_at_every_call(monkeypatch):
    """Make stores check at every call whether the file is still at its path."""
    monkeypatch.setattr("lro.stores.sqlite._file.SEEN_SECONDS", 0.0)


@contextmanager
def plain(path):
    """Open a plain connection, without the library."""
    with closing(CONNECT(path, isolation_level=None)) as connection:
        yield connection


def names_in(path):
    """Return the names of a file's tables and indexes, and its schema version."""
    with plain(path) as connection:
        names = connection.execute("SELECT name FROM sqlite_master ORDER BY 1").fetchall()
        return [name for (name,) in names], connection.execute("PRAGMA user_version").fetchone()[0]


# -- other versions, foreign files, wrong paths ---------------------------------------------------


def test_failed_creation_of_tables_leaves_the_file_unchanged(path):
    """If an index of another program keeps the tables from being made, the file is unchanged."""
    with plain(path) as writer:
        writer.execute("CREATE TABLE theirs (x)")
        writer.execute("CREATE INDEX lro_starts_age ON theirs (x)")
    with pytest.raises(DeclarationError, match="index lro_starts_age already exists"):
        SQLiteStore(path)
    assert names_in(path) == (["lro_starts_age", "theirs"], 0)


@pytest.mark.parametrize("version", [-1, SCHEMA_VERSION + 1, 99])
def test_a_file_of_another_version_is_refused(path, clock, version):
    """A file of another schema version is left unchanged, and the error names this version."""
    filled(path, clock).close()
    with plain(path) as connection:
        connection.execute(f"PRAGMA user_version = {version}")
    before = names_in(path)
    known = f"has schema version {version}; this library can only use version {SCHEMA_VERSION}"
    with pytest.raises(DeclarationError, match=known):
        SQLiteStore(path)
    assert names_in(path) == before


@pytest.mark.parametrize(("mark", "number"), [("application_id", 7), ("user_version", 3)])
def test_a_file_that_another_program_has_marked_is_refused(path, mark, number):
    with plain(path) as other:
        other.execute(f"PRAGMA {mark} = {number}")
    before = path.read_bytes()
    for look in (SQLiteStore, read_version):
        with pytest.raises(DeclarationError, match=f"id .*{number}.* it is not of this library"):
            look(path)
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    "moment",
    ["PRAGMA application_id", "PRAGMA user_version", "PRAGMA journal_mode", "BEGIN IMMEDIATE"],
)
def test_tables_made_concurrently_by_another_process_are_used(path, clock, wire, moment):
    """If another process makes the tables before this process gets the lock, they are used."""
    wire.when(moment, lambda _: filled(path, clock).close())
    with closing(SQLiteStore(path, clock=clock)) as store:
        assert listed(store) == ["a"]


@pytest.mark.parametrize("version", [0, SCHEMA_VERSION])
def test_foreign_tables_are_refused(tmp_path, version):
    """If another program's table in a file has the name of ours, the file is refused unchanged."""
    for table in TABLES:
        path = tmp_path / f"{table}.db"
        with plain(path) as other:
            if version:
                SQLiteStore(path).close()
                other.execute(f"DROP TABLE {table}")
            other.execute(f"CREATE TABLE {table} (mine)")
            other.execute(f"PRAGMA user_version = {version}")
        before = names_in(path)
        with pytest.raises(DeclarationError, match="not of this library"):
            SQLiteStore(path)
        assert names_in(path) == before


def test_file_that_is_not_a_database_is_refused(path):
    """If a file is not a database, the error names the file, and the file is left unchanged."""
    path.write_bytes(b"not a database at all, but long enough to be looked at" * 100)
    before = path.read_bytes()
    with pytest.raises(DeclarationError, match=rf"{path}.*is not a SQLite database"):
        SQLiteStore(path)
    assert path.read_bytes() == before


URLS = (
    *("sqlite:///x.db", "file:/tmp/x.db", "postgresql://host/x", "file:x.db?mode=memory"),
    *("file::memory:", "sqlite:x.db", "FILE:x.db"),
)
REFUSED = {
    **dict.fromkeys(("", ":memory:"), "for memory use MemoryStore"),
    ".": "is a directory",
    **dict.fromkeys(URLS, "must be a path such as"),
}


def test_path_that_cannot_be_a_file_is_refused(tmp_path, monkeypatch):
    """A URL is refused, because SQLite would take it for the path of a file.

    A letter before the colon is a Windows drive; other file names may contain a colon too.
    """
    monkeypatch.chdir(tmp_path)
    for name, why in REFUSED.items():
        with pytest.raises(DeclarationError, match=why):
            SQLiteStore(name)
    assert not list(tmp_path.iterdir())
    for name in ("c:x.db", "file.db", "a:b.db"):
        SQLiteStore(name).close()
        assert (tmp_path / name).exists()


def test_a_folder_that_is_missing_is_unavailable(tmp_path):
    """A missing folder may be mounted later, so the error is Unavailable; it names the folder."""
    path = tmp_path / "missing" / "operations.db"
    wanted = f"{path} cannot be opened: there is no directory {path.parent}"
    with pytest.raises(Unavailable, match=re.escape(wanted)):
        SQLiteStore(path)


def test_error_while_checking_tables_is_raised(path, wire):
    """If the check of the tables fails with an error, that error is raised."""
    SQLiteStore(path).close()
    wire.fail("SELECT name, parent")
    with pytest.raises(Unavailable, match="refused by a test"):
        SQLiteStore(path)


def test_switch_to_wal_mode_is_retried_while_the_file_is_locked(path, wire):
    """The switch to WAL mode is retried while the file is locked, until the time limit."""
    busy = sqlite_error(sqlite3.SQLITE_BUSY, "SQLITE_BUSY")
    asks = "PRAGMA journal_mode"
    wire.fail(asks, busy, times=3)
    SQLiteStore(path).close()
    assert len([one for one in wire.said if one.startswith(asks)]) == 4
    for error, seconds in (
        (busy, 0.0),
        (sqlite_error(sqlite3.SQLITE_READONLY, "SQLITE_READONLY"), 9.0),
    ):
        wire.fail(asks, error)
        with pytest.raises(Unavailable):
            SQLiteStore(path, busy_seconds=seconds)


def test_file_system_without_wal_mode_is_refused(path, wire):
    """Some network drives lack the shared memory that WAL mode needs; files there are refused."""
    wire.when("PRAGMA journal_mode", lambda one: one.cursor().execute("SELECT 'delete'"))
    with pytest.raises(DeclarationError, match="WAL mode"):
        SQLiteStore(path)


# -- files that change during use -----------------------------------------------------------------


def take_away(path):
    """Delete a database file and its log."""
    for name in (path, *path.parent.glob("operations.db-*")):
        os.unlink(name)


def test_a_deleted_file_is_not_made_again(path, clock):
    """After the file is deleted, every call fails; no new file is made."""
    with closing(filled(path, clock)) as store:
        take_away(path)
        found = errors_of(store, clock)
        assert found == dict.fromkeys(verbs(store, clock), "Unavailable")
        assert list(path.parent.glob("operations.db")) == []


def test_replaced_file_is_detected(path, clock):
    """After the file is replaced by a restored or new one, every call fails."""
    with closing(filled(path, clock)) as store:
        take_away(path)
        with closing(filled(path, clock, "b")) as other:
            for call in (
                lambda: store.get("operations/b"),
                lambda: insert(store, record_of(clock, "b")),
                lambda: listed(store),
            ):
                with pytest.raises(Unavailable, match="deleted or replaced"):
                    call()
            assert listed(other) == ["b"]


def test_a_file_that_comes_back_is_used_again(path, clock):
    """After another program has moved the file away and back, the store works again."""
    with closing(filled(path, clock)) as store:
        away = path.with_name("away.db")
        path.rename(away)
        with pytest.raises(Unavailable, match="deleted or replaced"):
            store.get("operations/a")
        away.rename(path)
        assert store.get("operations/a") == record_of(clock)
        assert insert(store, record_of(clock, "b")).fresh


LOST_LOG = "the log of the operations database was deleted or replaced"


@pytest.mark.parametrize("lost", [("-wal",), ("-shm",), ("-wal", "-shm")], ids="+".join)
def test_deleted_write_ahead_log_is_unavailable_and_its_writes_are_saved(path, clock, lost):
    """If the log is deleted, every call fails; a process that starts later finds all writes."""
    with closing(filled(path, clock, "ab")) as store:
        for suffix in lost:
            os.unlink(f"{path}{suffix}")
        for _ in range(2):
            assert errors_of(store, clock) == dict.fromkeys(verbs(store, clock), "Unavailable")
        with pytest.raises(Unavailable, match=LOST_LOG):
            store.get("operations/a")
        with closing(SQLiteStore(path, clock=clock)) as later:  # the first store is still open
            assert listed(later) == ["a", "b"]
            assert insert(later, record_of(clock, "c")).fresh
        with pytest.raises(Unavailable, match=LOST_LOG):
            insert(store, record_of(clock, "d"))
    with closing(SQLiteStore(path, clock=clock)) as later:
        assert listed(later) == ["a", "b", "c"]


def restore_backup(store, path, clock):
    """Rename a backup of ``operations/a`` over the file of a store with 50 newer records."""
    saved = path.with_name("saved.db")
    with plain(path) as source, plain(saved) as copy:
        source.backup(copy)
    for number in range(50):
        insert(store, held(clock, str(number)), key_of(str(number)))
    saved.rename(path)


def test_the_log_of_a_file_that_was_replaced_is_not_applied_to_the_new_one(path, clock, caplog):
    """If a backup replaces the file, the former log is moved aside, not applied to the backup."""
    with closing(filled(path, clock)) as store:
        restore_backup(store, path, clock)
        with pytest.raises(Unavailable, match="deleted or replaced"):
            store.get("operations/a")
        (kept,) = path.parent.glob("operations.db-wal-of-*")
        assert kept.stat().st_size > 0
        assert caplog.messages == [f"{path} was replaced: the log of the former file is now {kept}"]
        with closing(SQLiteStore(path, clock=clock)) as restored:
            assert listed(restored) == ["a"]
            assert insert(restored, record_of(clock, "b")).fresh
            with pytest.raises(Unavailable, match="deleted or replaced"):
                store.get("operations/a")
        with plain(path) as sound:
            assert sound.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


def test_the_log_of_a_file_that_was_replaced_is_set_aside_at_the_end(path, clock, monkeypatch):
    """A process that closes before it notices a replaced file still moves the old log aside."""
    monkeypatch.setattr("lro.stores.sqlite._file.SEEN_SECONDS", 3600.0)
    with closing(filled(path, clock)) as store:
        restore_backup(store, path, clock)
    with closing(SQLiteStore(path, clock=clock)) as restored:
        assert listed(restored) == ["a"]
    with plain(path) as sound:
        assert sound.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


def test_path_of_the_file_is_not_checked_at_every_call(path, clock, monkeypatch):
    """The path is not checked at every call, because a check takes as long as a call."""
    monkeypatch.setattr("lro.stores.sqlite._file.SEEN_SECONDS", 3600.0)
    with closing(filled(path, clock)) as store:
        store.get("operations/a")
        path.rename(path.with_name("away.db"))
        assert store.get("operations/a") == record_of(clock)
        assert store.update("operations/a", called("c")).caller == "c"


@pytest.mark.parametrize("spoil", ["truncate", "overwrite", "empty"])
def test_a_spoiled_file_is_unavailable(path, clock, spoil):
    """After the file is truncated, overwritten or emptied, a call returns correct data or fails."""
    with closing(SQLiteStore(path, clock=clock)) as store:
        for number in range(50):
            insert(store, held(clock, str(number)), key_of(str(number)))
        insert(store, held(clock))
        truth = store.get("operations/a"), listed(store)
    with closing(SQLiteStore(path, clock=clock)) as store:
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
                assert sorted(ids(answer.records)) == truth[1]
    with (
        pytest.raises((DeclarationError, Unavailable, OperationNotFound)),
        closing(SQLiteStore(path)) as store,
    ):
        store.get("operations/a")  # an emptied file becomes a new database


def test_dropped_tables_are_unavailable(path, clock):
    """A call on dropped tables fails with Unavailable, and the error hides SQLite's message."""
    with closing(filled(path, clock)) as store:
        with plain(path) as other:
            for table in TABLES[:-1]:
                other.execute(f"DROP TABLE {table}")
        wanted = dict.fromkeys(verbs(store, clock), "Unavailable")
        del wanted["listen"]
        assert errors_of(store, clock) == wanted


BIG = AnyMessage("x/a.Request", {"data": "x" * 100_000})


def test_a_full_disk_is_unavailable(file_store, clock, wire):
    """On a full disk, writes fail and store nothing, and reads work; later, writes work again."""
    insert(file_store, record_of(clock))
    writer = wire.connections[0]
    (pages,) = writer.execute("PRAGMA page_count").fetchone()
    writer.execute(f"PRAGMA max_page_count = {pages}")
    for call in (
        lambda: file_store.insert(record_of(clock, "b"), BIG, None),
        lambda: file_store.update("operations/a", lambda one: one.next_version(metadata=BIG)),
    ):
        with pytest.raises(Unavailable, match=r"\(SQLITE_FULL\)"):
            call()
    assert file_store.get("operations/a") == record_of(clock)
    assert listed(file_store) == ["a"]
    writer.execute("PRAGMA max_page_count = 1000000")
    assert file_store.insert(record_of(clock, "b"), BIG, None).fresh
    assert file_store.update("operations/a", called("c")).caller == "c"


@contextmanager
def no_room(path):
    """Limit files to the length of the log, so that writes fail as on a full disk."""
    resource = pytest.importorskip("resource")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    size = path.with_name(f"{path.name}-wal").stat().st_size
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.platform
def test_write_that_changes_nothing_fails_if_writes_fail(path, clock):
    """A write that changes nothing, as health checks make, fails if no data can be written."""
    with closing(filled(path, clock)) as store:
        for number in range(10):  # makes the log longer than any other file of this process
            assert store.insert(record_of(clock, str(number)), BIG, None).fresh
        with no_room(path):
            for _ in range(2):
                with pytest.raises(Unavailable):
                    insert(store, record_of(clock, "b"))
                with pytest.raises(Unavailable):
                    store.leave("nobody")
            assert store.get("operations/a")
        store.leave("nobody")
        assert insert(store, record_of(clock, "b")).fresh


@contextmanager
def without_rights():
    """Run as a user other than root, because file permissions do not restrict root."""
    if os.geteuid():
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.mark.platform
@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="a process cannot change its user")
@pytest.mark.parametrize("what", ["file", "directory"])
def test_read_only_file_or_directory_is_unavailable(what, clock):
    """If the file or its directory is read-only, the first write or an earlier call fails."""
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "operations.db"
        SQLiteStore(path).close()
        (path if what == "file" else path.parent).chmod(0o444 if what == "file" else 0o555)
        if what == "file":
            path.parent.chmod(0o755)
        with without_rights(), pytest.raises(Unavailable), closing(SQLiteStore(path)) as store:
            insert(store, record_of(clock))
        path.parent.chmod(0o755)


def test_read_only_remount_is_unavailable(file_store, clock, wire):
    """After a read-only remount writes fail and reads work; later writes work again."""
    insert(file_store, record_of(clock))
    wire.connections[0].execute("PRAGMA query_only = 1")
    with pytest.raises(Unavailable, match=r"\(SQLITE_READONLY\)"):
        file_store.update("operations/a", end_of(clock))
    assert file_store.get("operations/a") == record_of(clock)
    wire.connections[0].execute("PRAGMA query_only = 0")
    assert file_store.update("operations/a", end_of(clock)).done


def misuse():
    """Return SQLite's error for a wrong call, for instance on a closed connection."""
    error = sqlite3.InterfaceError("bad parameter or other API misuse")
    error.sqlite_errorcode, error.sqlite_errorname = sqlite3.SQLITE_MISUSE, "SQLITE_MISUSE"
    return error


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (sqlite3.ProgrammingError("Cannot operate on a closed database."), "the store is closed"),
        (sqlite3.OperationalError("Could not decode"), r"cannot be used now \(OperationalError\)"),
        (misuse(), r"cannot be used now \(SQLITE_MISUSE\)"),
    ],
)
def test_an_error_of_sqlite_is_unavailable(file_store, clock, wire, error, said):
    """An error of SQLite becomes Unavailable without its details, and the next call works."""
    insert(file_store, record_of(clock))
    wire.fail("SELECT", error)
    with pytest.raises(Unavailable, match=said):
        file_store.get("operations/a")
    assert file_store.get("operations/a")


def test_value_that_cannot_be_bound_is_an_invalid_argument(file_store, clock):
    """A value that SQLite can never store raises InvalidArgument, so that callers do not retry."""
    with pytest.raises(InvalidArgument, match="is not supported"):
        insert(file_store, record_of(clock, attempt=object()))
    with pytest.raises(InvalidArgument, match="is not supported"):
        file_store.page({"a": 1}, None, 9)
    assert listed(file_store) == []


def test_file_that_vanishes_while_it_is_created_leaves_no_connection(path, wire):
    """If the file vanishes while it is created, no connection is left open."""
    connect = sqlite3.connect

    def vanishing(*arguments, **options):
        made = connect(*arguments, **options)
        os.unlink(path)
        return made

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sqlite3.connect", vanishing)
        with pytest.raises(Unavailable, match=rf"{re.escape(str(path))} cannot be opened: "):
            SQLiteStore(path)
    for connection in wire.connections:
        with pytest.raises(sqlite3.ProgrammingError, match="closed"):
            connection.execute("SELECT 1")


def test_waiting_for_a_lock_ends_when_the_file_is_moved(path, clock, wire):
    """A write that waits for a lock fails as soon as the file is moved away."""
    with closing(SQLiteStore(path, clock=clock, busy_seconds=3600)) as store, stranger(path):
        wire.when("BEGIN IMMEDIATE", lambda _: path.rename(path.with_name("away.db")))
        with pytest.raises(Unavailable, match="deleted or replaced"):
            insert(store, record_of(clock))
