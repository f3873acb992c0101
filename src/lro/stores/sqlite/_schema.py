"""The tables, and how a file of an older version gets those of this one."""

from __future__ import annotations

import contextlib
import sqlite3
import time
from collections.abc import Sequence
from typing import Final

from lro._base.errors import DeclarationError
from lro.stores._rows import COLUMNS
from lro.stores.sqlite._told import busy, code_of

_TYPES: Final = {
    "name": "TEXT PRIMARY KEY",
    **dict.fromkeys(
        ("create_time", "update_time", "attempt", "lost_attempts", "version", "cancel_requested"),
        "INTEGER NOT NULL",
    ),
    **dict.fromkeys(("start_time", "end_time", "expire_time", "lease_until"), "INTEGER"),
    **dict.fromkeys(("metadata", "result"), "TEXT"),
}
_FIRST: Final = tuple(name for name in COLUMNS if name != "keys")
_DECLARED: Final = ", ".join(f"{name} {_TYPES.get(name, 'TEXT NOT NULL')}" for name in _FIRST)

Step = Sequence[str]
"""Statements that bring a file from one version to the next, done in one transaction."""

STEPS: Final[tuple[Step, ...]] = (
    (
        f"CREATE TABLE operations ({_DECLARED})",
        "CREATE INDEX operations_order ON operations (parent, create_time DESC, name)",
        "CREATE INDEX operations_leases ON operations (lease_until) WHERE lease_until IS NOT NULL",
        "CREATE INDEX operations_expiry ON operations (expire_time) WHERE expire_time IS NOT NULL",
        "CREATE UNIQUE INDEX operations_targets ON operations (target)"
        " WHERE target != '' AND state IN ('IN_PROGRESS', 'HIDDEN')",
        "CREATE TABLE inputs (name TEXT PRIMARY KEY, request TEXT NOT NULL)",
        "CREATE TABLE starts (method TEXT, caller TEXT, request_id TEXT,"
        " fingerprint TEXT NOT NULL, at INTEGER NOT NULL, name TEXT NOT NULL,"
        " first TEXT NOT NULL, PRIMARY KEY (method, caller, request_id))",
        "CREATE INDEX starts_age ON starts (at)",
        "CREATE TABLE secrets (id INTEGER PRIMARY KEY CHECK (id = 1), key BLOB NOT NULL)",
    ),
    # A start whose work cannot be submitted is undone by the operation's name.
    ("CREATE INDEX starts_names ON starts (name)",),
    # Lists find records by their state, and by what is declared to be worth an index.
    (
        "ALTER TABLE operations ADD COLUMN keys TEXT",
        # Nothing ends before it is created any more, whoever sets the clock.
        "UPDATE operations SET end_time = create_time WHERE end_time < create_time",
        "CREATE INDEX operations_states ON operations (parent, state, create_time DESC, name)",
    ),
)
"""Step ``n`` makes version ``n + 1`` of version ``n``; version 0 is a file without our tables.

Processes of the version before may still work on the file while a step is done, and afterwards:
a step only adds what they need not know of. But what those before version 3 write has no keys that
are up to date (docs/explanation/lists.md).
"""

SCHEMA_VERSION: Final = len(STEPS)

_COLUMNS: Final = {
    "operations": ", ".join(COLUMNS),
    "inputs": "name, request",
    "starts": "method, caller, request_id, fingerprint, at, name, first",
    "secrets": "id, key",
}


def prepare(
    writer: sqlite3.Connection, path: str, until: float, steps: Sequence[Step] = STEPS
) -> None:
    """Bring a file to the present version, and see that its tables are ours.

    ``until`` is the moment of :func:`time.monotonic` up to which others' locks are waited for.

    Raises:
        DeclarationError: It was made by a newer version of this library, has other tables, or is
            where SQLite cannot keep a write-ahead log.
        sqlite3.Error: The file cannot be used.
    """
    if _write_ahead(writer, until) != "wal":
        raise DeclarationError(path, "is where no write-ahead log can be kept")
    version = _version(writer)
    while version < len(steps):
        version = _step(writer, path, steps)
    if version > len(steps):
        text = f"has schema version {version}; this library knows {len(steps)}"
        raise DeclarationError(path, text)
    _refuse_other_columns(writer, path)


def _write_ahead(writer: sqlite3.Connection, until: float) -> str:
    # Of two processes that open a new file at once one is told "locked" without any waiting.
    while True:
        try:
            (mode,) = writer.execute("PRAGMA journal_mode = WAL").fetchone()
            return str(mode)
        except sqlite3.OperationalError as exc:
            if not busy(exc) or time.monotonic() >= until:
                raise
            time.sleep(0.002)


def _version(writer: sqlite3.Connection) -> int:
    (version,) = writer.execute("PRAGMA user_version").fetchone()
    return int(version)


def _step(writer: sqlite3.Connection, path: str, steps: Sequence[Step]) -> int:
    """Do the next step, unless another process was quicker; the version then."""
    writer.execute("BEGIN IMMEDIATE")
    try:
        version = _version(writer)
        if version < len(steps):
            if version == 0:
                _refuse_foreign(writer, path)
            for statement in steps[version]:
                _say(writer, path, statement)
            version += 1
            writer.execute(f"PRAGMA user_version = {version}")
            if version == len(steps):
                _refuse_other_columns(writer, path)
        writer.execute("COMMIT")
    except BaseException:
        with contextlib.suppress(sqlite3.Error):  # it may be undone already
            writer.execute("ROLLBACK")
        raise
    return version


def _refuse_foreign(writer: sqlite3.Connection, path: str) -> None:
    found = {name for (name,) in writer.execute("SELECT name FROM sqlite_master")}
    for table in _COLUMNS:
        if table in found:
            raise _foreign(path, f"a table {table!r} of the same name")


def _refuse_other_columns(writer: sqlite3.Connection, path: str) -> None:
    for table, columns in _COLUMNS.items():
        _say(writer, path, f"SELECT {columns} FROM {table} LIMIT 0")


def _say(writer: sqlite3.Connection, path: str, statement: str) -> None:
    try:
        writer.execute(statement)
    except sqlite3.OperationalError as exc:
        if code_of(exc) != sqlite3.SQLITE_ERROR:
            raise
        raise _foreign(path, f"other tables than its version says ({exc})") from exc


def _foreign(path: str, what: str) -> DeclarationError:
    return DeclarationError(path, f"has {what}: it is not of this library")
