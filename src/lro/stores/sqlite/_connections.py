"""One SQLite file: how it is opened, written by one at a time, and read by many at once."""

from __future__ import annotations

import contextlib
import sqlite3
import threading
import time
from collections.abc import Iterator
from typing import Any as Anything
from typing import Final

from lro._errors import Unavailable
from lro._faults import DeclarationError
from lro.stores._rows import COLUMNS

SCHEMA_VERSION: Final = 1

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


class Connections:
    """A connection that writes, and as many that read as there are reads at once.

    Raises:
        Unavailable: The file cannot be opened.
        DeclarationError: It was made by a newer version of this library, or is no database.
    """

    def __init__(self, path: str, busy_seconds: float) -> None:
        if path in ("", ":memory:"):
            raise DeclarationError(repr(path), "is no file; use the MemoryStore")
        self._path = path
        self._busy_seconds = busy_seconds
        self._lock = threading.Lock()
        self._writing = threading.RLock()
        self._closed = False
        self._idle: list[sqlite3.Connection] = []
        try:
            with _unavailable():
                self._writer = self._open()
                _prepare(self._writer, path, busy_seconds)
        except sqlite3.DatabaseError as exc:
            raise DeclarationError(path, f"is no SQLite database: {exc}") from exc

    @contextlib.contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """The writing connection in a transaction, which is on disk when the block has ended.

        Raises:
            Unavailable: The store is closed, or another process holds the file too long.
        """
        with self._writing, _unavailable():
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

    def rows(self, sql: str, values: tuple[object, ...] = ()) -> list[Anything]:
        """What a query finds in the last committed state. Never waits for the writer.

        Raises:
            Unavailable: The store is closed, or the file cannot be read.
        """
        with _unavailable():
            reader = self._take()
            try:
                return reader.execute(sql, values).fetchall()
            finally:
                self._give_back(reader)

    def foreign_commits(self) -> int | None:
        """SQLite's counter of commits by other connections; None while the writer is busy.

        Raises:
            Unavailable: The store is closed, or the file cannot be read.
        """
        if not self._writing.acquire(blocking=False):
            return None
        try:
            if self._closed:
                raise Unavailable("the store is closed")
            with _unavailable():
                (version,) = self._writer.execute("PRAGMA data_version").fetchone()
                return int(version)
        finally:
            self._writing.release()

    def close(self) -> None:
        """Close every connection; those that read just now, as soon as they have read."""
        with self._writing, self._lock:
            self._closed = True
            for connection in (self._writer, *self._idle):
                connection.close()
            self._idle.clear()

    def _take(self) -> sqlite3.Connection:
        with self._lock:
            if self._closed:
                raise Unavailable("the store is closed")
            if self._idle:
                return self._idle.pop()
        return self._open()

    def _give_back(self, reader: sqlite3.Connection) -> None:
        with self._lock:
            if self._closed:
                reader.close()
            else:
                self._idle.append(reader)

    def _open(self) -> sqlite3.Connection:
        connection = sqlite3.connect(
            self._path,
            timeout=self._busy_seconds,
            isolation_level=None,
            check_same_thread=False,  # one thread at a time, not always the same
        )
        try:
            connection.execute("PRAGMA synchronous = FULL")
        except BaseException:
            connection.close()
            raise
        return connection


def _prepare(writer: sqlite3.Connection, path: str, busy_seconds: float) -> None:
    try:
        _write_ahead(writer, busy_seconds)
        (version,) = writer.execute("PRAGMA user_version").fetchone()
        if version > SCHEMA_VERSION:
            text = f"has schema version {version}; this library knows {SCHEMA_VERSION}"
            raise DeclarationError(path, text)
        if version == 0:
            _make_tables(writer)
    except BaseException:
        writer.close()
        raise


def _write_ahead(writer: sqlite3.Connection, busy_seconds: float) -> None:
    # Of two processes that open a new file at once one is told "locked" without any waiting.
    end = time.monotonic() + busy_seconds
    while True:
        try:
            writer.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError:
            if time.monotonic() >= end:
                raise
            time.sleep(0.002)


def _make_tables(writer: sqlite3.Connection) -> None:
    try:
        writer.executescript(_SCHEMA)
    except sqlite3.OperationalError:
        # Another process may have made them between our look and our attempt.
        if writer.in_transaction:
            writer.execute("ROLLBACK")
        if writer.execute("PRAGMA user_version").fetchone() != (SCHEMA_VERSION,):
            raise


@contextlib.contextmanager
def _unavailable() -> Iterator[None]:
    try:
        yield
    except sqlite3.OperationalError as exc:
        if getattr(exc, "sqlite_errorcode", None) == sqlite3.SQLITE_ERROR:
            raise  # our own statement is wrong: asking again would not help
        raise Unavailable(
            f"the operations database cannot be used now ({type(exc).__name__})"
        ) from exc
