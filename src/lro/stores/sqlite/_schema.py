"""The tables of a file, which the first process that opens it makes."""

from __future__ import annotations

import contextlib
import sqlite3
import time
from typing import Final

from lro._base.errors import DeclarationError
from lro.stores._rows import COLUMNS
from lro.stores.sqlite._errors import code_of, is_busy

SCHEMA_VERSION: Final = 1
"""The version that this library makes and uses; it stands in the file as ``user_version``."""

_TYPES: Final = {
    "name": "TEXT PRIMARY KEY",
    **dict.fromkeys(
        ("create_time", "update_time", "attempt", "lost_attempts", "version", "cancel_requested"),
        "INTEGER NOT NULL",
    ),
    **dict.fromkeys(("start_time", "end_time", "expire_time", "lease_until"), "INTEGER"),
    **dict.fromkeys(("metadata", "result", "keys"), "TEXT"),
}
_DECLARED: Final = ", ".join(f"{name} {_TYPES.get(name, 'TEXT NOT NULL')}" for name in COLUMNS)

_TABLES: Final = (
    f"CREATE TABLE operations ({_DECLARED})",
    "CREATE INDEX operations_order ON operations (parent, create_time DESC, name)",
    "CREATE INDEX operations_states ON operations (parent, state, create_time DESC, name)",
    "CREATE INDEX operations_leases ON operations (lease_until) WHERE lease_until IS NOT NULL",
    "CREATE INDEX operations_expiry ON operations (expire_time) WHERE expire_time IS NOT NULL",
    "CREATE UNIQUE INDEX operations_targets ON operations (target)"
    " WHERE target != '' AND state IN ('IN_PROGRESS', 'HIDDEN')",
    "CREATE TABLE inputs (name TEXT PRIMARY KEY, request TEXT NOT NULL)",
    "CREATE TABLE starts (method TEXT, caller TEXT, request_id TEXT,"
    " fingerprint TEXT NOT NULL, at INTEGER NOT NULL, name TEXT NOT NULL,"
    " first TEXT NOT NULL, PRIMARY KEY (method, caller, request_id))",
    "CREATE INDEX starts_age ON starts (at)",
    "CREATE INDEX starts_names ON starts (name)",
    "CREATE TABLE secrets (id INTEGER PRIMARY KEY CHECK (id = 1), key BLOB NOT NULL)",
    f"PRAGMA user_version = {SCHEMA_VERSION}",
)

_COLUMNS: Final = {
    "operations": ", ".join(COLUMNS),
    "inputs": "name, request",
    "starts": "method, caller, request_id, fingerprint, at, name, first",
    "secrets": "id, key",
}


def prepare(writer: sqlite3.Connection, path: str, until: float) -> None:
    """Make the tables in a file that has none of ours, and check those that are there.

    ``until`` is the moment of :func:`time.monotonic` up to which others' locks are waited for.

    Raises:
        DeclarationError: The file has another schema version, has other tables, or is where SQLite
            cannot keep a write-ahead log.
        sqlite3.Error: The file cannot be used.
    """
    if _write_ahead(writer, until) != "wal":
        raise DeclarationError(path, "is where no write-ahead log can be kept")
    if _version(writer) == 0:
        _make_tables(writer, path)
    version = _version(writer)
    if version != SCHEMA_VERSION:
        text = f"has schema version {version}; this library can only use version {SCHEMA_VERSION}"
        raise DeclarationError(path, text)
    for table, columns in _COLUMNS.items():
        _execute(writer, path, f"SELECT {columns} FROM {table} LIMIT 0")


def _write_ahead(writer: sqlite3.Connection, until: float) -> str:
    # If two processes open a new file at once, SQLite reports "locked" to one without waiting.
    while True:
        try:
            (mode,) = writer.execute("PRAGMA journal_mode = WAL").fetchone()
            return str(mode)
        except sqlite3.OperationalError as exc:
            if not is_busy(exc) or time.monotonic() >= until:
                raise
            time.sleep(0.002)


def _version(writer: sqlite3.Connection) -> int:
    (version,) = writer.execute("PRAGMA user_version").fetchone()
    return int(version)


def _make_tables(writer: sqlite3.Connection, path: str) -> None:
    """Make all tables in one transaction, unless another process has made them meanwhile."""
    writer.execute("BEGIN IMMEDIATE")
    try:
        if _version(writer) == 0:
            found = {name for (name,) in writer.execute("SELECT name FROM sqlite_master")}
            for table in _COLUMNS:
                if table in found:
                    raise _foreign(path, f"a table {table!r} of the same name")
            for statement in _TABLES:
                _execute(writer, path, statement)
        writer.execute("COMMIT")
    except BaseException:
        with contextlib.suppress(sqlite3.Error):  # it may be undone already
            writer.execute("ROLLBACK")
        raise


def _execute(writer: sqlite3.Connection, path: str, statement: str) -> None:
    try:
        writer.execute(statement)
    except sqlite3.OperationalError as exc:
        if code_of(exc) != sqlite3.SQLITE_ERROR:
            raise
        raise _foreign(path, f"other tables than its version says ({exc})") from exc


def _foreign(path: str, what: str) -> DeclarationError:
    return DeclarationError(path, f"has {what}: it is not of this library")
