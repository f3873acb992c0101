"""The embedded default: one SQLite file, write-ahead log, a durable commit before any answer."""

from __future__ import annotations

import contextlib
import secrets
import sqlite3
import threading
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from os import PathLike, fspath
from typing import Any as Anything
from typing import Final

from lro._any import Any
from lro._errors import OperationNotFound, RequestIdConflict, TargetBusy, Unavailable
from lro._faults import DeclarationError
from lro._jsontext import dumps, loads
from lro._pages import KEY_BYTES, Place
from lro._ports import Inserted, Orphans, RequestKey
from lro._states import Change, Record
from lro.stores._rows import COLUMNS, from_row, micros, moment, pack, to_row, unpack

SCHEMA_VERSION: Final = 1
REQUEST_LIFE: Final = timedelta(hours=24)

_TYPES: Final = {
    "name": "TEXT PRIMARY KEY",
    **dict.fromkeys(
        ("create_time", "update_time", "attempt", "lost_attempts", "version", "cancel_requested"),
        "INTEGER NOT NULL",
    ),
    **dict.fromkeys(("start_time", "end_time", "expire_time", "lease_until"), "INTEGER"),
    **dict.fromkeys(("metadata", "result"), "TEXT"),
}
_DECLARED: Final = ", ".join(f"{name} {_TYPES.get(name, 'TEXT NOT NULL')}" for name in COLUMNS)
_SCHEMA: Final = f"""
BEGIN IMMEDIATE;
CREATE TABLE operations ({_DECLARED});
CREATE INDEX operations_order ON operations (parent, create_time DESC, name);
CREATE INDEX operations_leases ON operations (lease_until) WHERE lease_until IS NOT NULL;
CREATE INDEX operations_expiry ON operations (expire_time) WHERE expire_time IS NOT NULL;
CREATE UNIQUE INDEX operations_targets ON operations (target)
    WHERE target != '' AND state IN ('IN_PROGRESS', 'HIDDEN');
CREATE TABLE inputs (name TEXT PRIMARY KEY, request TEXT NOT NULL);
CREATE TABLE starts (method TEXT, caller TEXT, request_id TEXT, fingerprint TEXT NOT NULL,
    at INTEGER NOT NULL, name TEXT NOT NULL, first TEXT NOT NULL,
    PRIMARY KEY (method, caller, request_id));
CREATE INDEX starts_age ON starts (at);
CREATE TABLE secrets (id INTEGER PRIMARY KEY CHECK (id = 1), key BLOB NOT NULL);
PRAGMA user_version = {SCHEMA_VERSION};
COMMIT;
"""
_ROW: Final = ", ".join(COLUMNS)
_INSERT: Final = f"INSERT INTO operations ({_ROW}) VALUES ({', '.join('?' * len(COLUMNS))})"
_GET: Final = f"SELECT {_ROW} FROM operations WHERE name = ?"
_PAGE: Final = f"""SELECT {_ROW} FROM operations WHERE parent = ?
    AND (create_time < ? OR (create_time = ? AND name > ?))
    AND state != 'HIDDEN' AND (expire_time IS NULL OR expire_time > ?)
    ORDER BY create_time DESC, name LIMIT ?"""
_FIRST_PAGE: Final = 2**62


class SQLiteStore:
    """Keeps records in a SQLite file, made with its tables where it does not exist.

    Every write is committed to disk (``synchronous=FULL``) before the call returns; readers never
    wait for the writer. ``busy_seconds`` is how long a call waits for another process's lock
    before it answers UNAVAILABLE. ``clock`` gives the time in UTC.

    Raises:
        Unavailable: The file cannot be opened.
        DeclarationError: It was made by a newer version of this library.
    """

    reads_block = False
    writes_block = True

    def __init__(
        self,
        path: str | PathLike[str],
        *,
        clock: Callable[[], datetime] | None = None,
        busy_seconds: float = 5.0,
    ) -> None:
        self._path = fspath(path)
        self._clock = clock or _utc_now
        self._busy_seconds = busy_seconds
        self._readers = threading.local()
        self._all: list[sqlite3.Connection] = []
        self._opening = threading.Lock()
        self._writing = threading.RLock()
        self._closed = False
        with _errors():
            self._writer = self._connect()
            self._prepare()
        self._secret = self._make_secret()

    def now(self) -> datetime:
        """The moment by this machine's clock, which all processes on the file share."""
        return self._clock()

    def secret(self) -> bytes:
        """The key of page tokens, kept in the file."""
        return self._secret

    def insert(
        self, record: Record, request: Any, key: RequestKey | None, *, check_only: bool = False
    ) -> Inserted:
        """Add a record and its request, or find the one that the same request started before."""
        with self._transaction() as writer:
            first = self._first_start(writer, key, micros(record.create_time))
            if first is not None:
                return Inserted(first, fresh=False)
            if record.target and _target_busy(writer, record.target):
                raise TargetBusy(record.target)
            if not check_only:
                row = to_row(record)
                writer.execute(_INSERT, row)
                writer.execute("INSERT INTO inputs VALUES (?, ?)", (record.name, pack(request)))
                if key is not None:
                    self._remember(writer, key, record, row)
            return Inserted(record, fresh=True)

    def forget(self, name: str) -> None:
        """Undo an insert."""
        with self._transaction() as writer:
            writer.execute("DELETE FROM operations WHERE name = ?", (name,))
            writer.execute("DELETE FROM inputs WHERE name = ?", (name,))
            writer.execute("DELETE FROM starts WHERE name = ?", (name,))

    def request(self, name: str) -> Any:
        """The packed request of work in progress."""
        row = self._read("SELECT request FROM inputs WHERE name = ?", (name,)).fetchone()
        if row is None:
            raise OperationNotFound(name)
        return unpack(row[0])

    def get(self, name: str) -> Record:
        """The record of this name."""
        row = self._read(_GET, (name,)).fetchone()
        if row is None:
            raise OperationNotFound(name)
        return from_row(row)

    def update(self, name: str, change: Change) -> Record | None:
        """Replace or remove a record, all or nothing."""
        with self._transaction() as writer:
            row = writer.execute(_GET, (name,)).fetchone()
            if row is None:
                raise OperationNotFound(name)
            record = from_row(row)
            changed = change(record)
            if changed is record:
                return record
            if changed is None:
                writer.execute("DELETE FROM operations WHERE name = ?", (name,))
            else:
                _write_changes(writer, row, to_row(changed))
            if changed is None or changed.done:
                writer.execute("DELETE FROM inputs WHERE name = ?", (name,))
            return changed

    def page(self, parent: str, after: Place | None, limit: int) -> Sequence[Record]:
        """Up to ``limit`` visible records of one parent, newest first."""
        at, name = (micros(after.create_time), after.name) if after else (_FIRST_PAGE, "")
        rows = self._read(_PAGE, (parent, at, at, name, micros(self._clock()), limit))
        return [from_row(row) for row in rows]

    def renew(self, owner: str, until: datetime) -> Sequence[str]:
        """Prolong the leases of an owner."""
        with self._transaction() as writer:
            writer.execute(
                "UPDATE operations SET lease_until = ? WHERE lease_until IS NOT NULL AND owner = ?",
                (micros(until), owner),
            )
            asked = writer.execute(
                "SELECT name FROM operations WHERE lease_until IS NOT NULL AND owner = ?"
                " AND cancel_requested",
                (owner,),
            )
            return [name for (name,) in asked]

    def orphans(self, limit: int) -> Orphans:
        """Records in progress whose lease has run out."""
        now = micros(self._clock())
        lost = self._read(
            f"SELECT {_ROW} FROM operations WHERE lease_until <= ? ORDER BY lease_until LIMIT ?",
            (now, limit),
        ).fetchall()
        (end,) = self._read(
            "SELECT min(lease_until) FROM operations WHERE lease_until > ?", (now,)
        ).fetchone()
        return Orphans(tuple(map(from_row, lost)), None if end is None else moment(end))

    def expire(self, limit: int) -> Sequence[str]:
        """Remove records past their expiry."""
        now = self._clock()
        old = micros(now - REQUEST_LIFE)
        due = "SELECT name FROM operations WHERE expire_time <= ? LIMIT ?"
        nothing_due = self._read(due, (micros(now), 1)).fetchone() is None
        no_old = self._read("SELECT 1 FROM starts WHERE at <= ? LIMIT 1", (old,)).fetchone() is None
        if nothing_due and no_old:
            return []
        with self._transaction() as writer:
            names = writer.execute(due, (micros(now), limit)).fetchall()
            writer.executemany("DELETE FROM operations WHERE name = ?", names)
            writer.execute(
                "DELETE FROM starts WHERE rowid IN"
                " (SELECT rowid FROM starts WHERE at <= ? LIMIT ?)",
                (old, limit),
            )
            return [name for (name,) in names]

    def close(self) -> None:
        """Close every connection to the file."""
        with self._writing, self._opening:
            self._closed = True
            for connection in self._all:
                connection.close()
            self._all.clear()

    # -- inside -------------------------------------------------------------------------------

    def _connect(self) -> sqlite3.Connection:
        with self._opening:
            if self._closed:
                raise Unavailable("the store is closed")
            connection = sqlite3.connect(
                self._path,
                timeout=self._busy_seconds,
                isolation_level=None,
                check_same_thread=False,
            )
            connection.execute("PRAGMA synchronous = FULL")
            self._all.append(connection)
            return connection

    def _prepare(self) -> None:
        writer = self._writer
        writer.execute("PRAGMA journal_mode = WAL")
        (version,) = writer.execute("PRAGMA user_version").fetchone()
        if version > SCHEMA_VERSION:
            raise DeclarationError(
                self._path, f"has schema version {version}; this library knows {SCHEMA_VERSION}"
            )
        if version == 0:
            try:
                writer.executescript(_SCHEMA)
            except sqlite3.OperationalError:
                # Another process may have made the tables between our look and our attempt.
                if writer.in_transaction:
                    writer.execute("ROLLBACK")
                if writer.execute("PRAGMA user_version").fetchone() != (SCHEMA_VERSION,):
                    raise

    def _make_secret(self) -> bytes:
        with self._transaction() as writer:
            fresh = secrets.token_bytes(KEY_BYTES)
            writer.execute("INSERT OR IGNORE INTO secrets VALUES (1, ?)", (fresh,))
            (key,) = writer.execute("SELECT key FROM secrets").fetchone()
            return bytes(key)

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with self._writing, _errors():
            if self._closed:
                raise Unavailable("the store is closed")
            writer = self._writer
            writer.execute("BEGIN IMMEDIATE")
            try:
                yield writer
                writer.execute("COMMIT")
            except BaseException:
                if writer.in_transaction:
                    writer.execute("ROLLBACK")
                raise

    def _read(self, sql: str, values: tuple[object, ...]) -> Anything:
        with _errors():
            reader = getattr(self._readers, "connection", None)
            if reader is None:
                reader = self._readers.connection = self._connect()
            return reader.execute(sql, values)

    def _first_start(
        self, writer: sqlite3.Connection, key: RequestKey | None, now: int
    ) -> Record | None:
        if key is None:
            return None
        found = writer.execute(
            "SELECT fingerprint, at, name, first FROM starts"
            " WHERE method = ? AND caller = ? AND request_id = ?",
            (key.method, key.caller, key.request_id),
        ).fetchone()
        if found is None or moment(now) - moment(found[1]) >= REQUEST_LIFE:
            return None
        if found[0] != key.fingerprint:
            raise RequestIdConflict("request_id", "was used before with another request")
        row = writer.execute(_GET, (found[2],)).fetchone()
        remembered: Anything = loads(found[3])
        return from_row(row if row is not None else remembered)

    def _remember(
        self, writer: sqlite3.Connection, key: RequestKey, record: Record, row: Anything
    ) -> None:
        writer.execute(
            "INSERT OR REPLACE INTO starts VALUES (?, ?, ?, ?, ?, ?, ?)",
            (
                key.method,
                key.caller,
                key.request_id,
                key.fingerprint,
                micros(record.create_time),
                record.name,
                dumps(list(row)).decode(),
            ),
        )


def _write_changes(
    writer: sqlite3.Connection, old: Sequence[object], new: Sequence[object]
) -> None:
    changed = [
        (column, after)
        for column, before, after in zip(COLUMNS, old, new, strict=True)
        if before != after
    ]
    assignments = ", ".join(f"{column} = ?" for column, _ in changed)
    values = (*(after for _, after in changed), new[0])
    writer.execute(f"UPDATE operations SET {assignments} WHERE name = ?", values)


def _target_busy(writer: sqlite3.Connection, target: str) -> bool:
    found = writer.execute(
        "SELECT 1 FROM operations WHERE target = ? AND target != ''"
        " AND state IN ('IN_PROGRESS', 'HIDDEN')",
        (target,),
    )
    return found.fetchone() is not None


@contextlib.contextmanager
def _errors() -> Iterator[None]:
    try:
        yield
    except (sqlite3.OperationalError, sqlite3.ProgrammingError) as exc:
        raise Unavailable(
            f"the operations database cannot be used now ({type(exc).__name__})"
        ) from exc


def _utc_now() -> datetime:
    return datetime.now(UTC)
