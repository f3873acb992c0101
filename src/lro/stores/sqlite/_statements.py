"""SQL of the SQLite store: its schema and its statements."""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import os
import re
import sqlite3
import sys
import time
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Final, Protocol

import attrs

from lro._base.errors import DeclarationError, Unavailable
from lro._engine.store_port import (
    FREE_LANE,
    STEP_MINUTES,
    Claim,
    Counts,
    Renewed,
    RequestKey,
    Worker,
)
from lro._messages.json_text import dumps, reread
from lro._model.operation import Record, State
from lro.stores._counting import PRUNED_ROWS, WAITS, added, numbers, steps_of
from lro.stores._rows import (
    COLUMNS,
    DEFAULTS,
    MICROSECOND,
    STAMP_COLUMNS,
    SWEEP_TIME,
    added_columns,
    from_row,
    micros,
    moment,
    repeats_start,
    textual,
)
from lro.stores._sql_store import SCHEDULE_COLUMNS
from lro.stores._turns import IS_SENT, IS_SUSPECT, MAX_LANE, MOST_LANES, UNBEGUN, Due, in_turn
from lro.stores._workers import COLUMNS as WORKER_COLUMNS
from lro.stores._workers import FORGOTTEN, HOLDS, renewed_of, to_row, unknown_worker
from lro.stores.sqlite._file import FetchRows, code_of, is_busy

SCHEMA_VERSION: Final = 2
"""The schema version that this library creates and uses; the file's ``user_version``."""

APPLICATION_ID: Final = int.from_bytes(b"lro\x01", "big")
"""Marks the files of this library. In files of other programs, ``user_version`` has no meaning."""

_TYPES: Final = {
    "name": "TEXT PRIMARY KEY",
    **dict.fromkeys(
        ("create_time", "update_time", "attempt", "lost_attempts", "version", "cancel_requested"),
        "INTEGER NOT NULL",
    ),
    **dict.fromkeys(
        ("start_time", "end_time", "expire_time", "cancel_time", "lease_until", "notify_at"),
        "INTEGER",
    ),
    **dict.fromkeys(("metadata", "result", "keys"), "TEXT"),
    **added_columns("INTEGER", "TEXT"),
}
_DECLARED: Final = ", ".join(f"{name} {_TYPES.get(name, 'TEXT NOT NULL')}" for name in COLUMNS)

CHANGE_NOTHING: Final = f"PRAGMA user_version = {SCHEMA_VERSION}"
"""Makes SQLite write to the file, although nothing changes.

SQLite would skip an UPDATE that changes no value.
"""

_INDEXES: Final = (
    "CREATE INDEX lro_operations_order ON lro_operations (parent, create_time DESC, name)",
    "CREATE INDEX lro_operations_states ON lro_operations (parent, state, create_time DESC, name)",
    f"""CREATE INDEX lro_operations_waiting ON lro_operations
        (method, ({IS_SUSPECT}), lane, rank, lease_until, name) WHERE {WAITS}""",
    "CREATE INDEX lro_operations_running ON lro_operations (method, owner, lease_until)"
    " WHERE owner != ''",
    "CREATE INDEX lro_operations_lanes ON lro_operations (method, lane)"
    " WHERE owner != '' AND lane != 0",
    f"CREATE INDEX lro_operations_unbegun ON lro_operations (begin_before) WHERE {UNBEGUN}",
    f"""CREATE INDEX lro_operations_sent ON lro_operations (method, lane, lease_until)
        WHERE {IS_SENT}""",
    f"""CREATE INDEX lro_operations_expiry ON lro_operations ({SWEEP_TIME})
        WHERE expire_time IS NOT NULL""",
    "CREATE INDEX lro_operations_debts ON lro_operations (notify_at) WHERE notify_at IS NOT NULL",
    "CREATE UNIQUE INDEX lro_operations_targets ON lro_operations (target)"
    " WHERE target != '' AND state IN ('IN_PROGRESS', 'HIDDEN')",
    "CREATE INDEX lro_begins_latest ON lro_begins (method, lane, at)",
    "CREATE INDEX lro_begins_over ON lro_begins (until)",
    "CREATE INDEX lro_starts_age ON lro_starts (at)",
)
_BEGINS: Final = """CREATE TABLE lro_begins (method TEXT NOT NULL, lane INTEGER NOT NULL,
    at INTEGER NOT NULL, until INTEGER NOT NULL)"""
_WORKERS: Final = """CREATE TABLE lro_workers (owner TEXT PRIMARY KEY, host TEXT NOT NULL,
    pid INTEGER NOT NULL, version TEXT NOT NULL, methods TEXT NOT NULL, capacity INTEGER,
    start_time INTEGER NOT NULL, seen_time INTEGER NOT NULL, alive_until INTEGER NOT NULL,
    lost INTEGER NOT NULL)"""
_CHECKPOINTS: Final = (
    "CREATE TABLE lro_checkpoints"
    " (name TEXT, key TEXT, value TEXT NOT NULL, PRIMARY KEY (name, key))",
    *[  # triggers, so that ending an operation without checkpoints needs no further statement
        f"CREATE TRIGGER lro_checkpoints_{after} ON lro_operations{when}"
        " BEGIN DELETE FROM lro_checkpoints WHERE name = old.name; END"
        for after, when in (
            ("ended AFTER UPDATE OF state", " WHEN new.state NOT IN ('IN_PROGRESS', 'HIDDEN')"),
            ("removed AFTER DELETE", ""),
        )
    ],
)

_INPUTS: Final = (  # with row ids, a request would be written in two B-trees
    "CREATE TABLE lro_inputs (name TEXT PRIMARY KEY, request TEXT NOT NULL) WITHOUT ROWID"
)

_SCHEDULES: Final = """CREATE TABLE lro_schedules (name TEXT PRIMARY KEY, version INTEGER NOT NULL,
    schedule TEXT NOT NULL)"""

_PAUSED: Final = "CREATE TABLE lro_paused (method TEXT PRIMARY KEY, since INTEGER NOT NULL)"

_ADDED_TABLES: Final = (_BEGINS, _WORKERS, _SCHEDULES, _PAUSED)
"""The tables that version 1 does not have, except for the checkpoints."""

_TABLES: Final = (
    f"CREATE TABLE lro_operations ({_DECLARED})",
    _INPUTS,
    *_ADDED_TABLES,
    *_CHECKPOINTS,
    "CREATE TABLE lro_starts (method TEXT, caller TEXT, request_id TEXT,"
    " fingerprint TEXT NOT NULL, at INTEGER NOT NULL, name TEXT NOT NULL,"
    " first TEXT NOT NULL, PRIMARY KEY (method, caller, request_id))",
    "CREATE TABLE lro_minutes (step INTEGER, minute INTEGER, method TEXT, counts TEXT NOT NULL,"
    " PRIMARY KEY (step, minute, method))",
    "CREATE TABLE lro_secrets (id INTEGER PRIMARY KEY CHECK (id = 1), key BLOB NOT NULL)",
    *_INDEXES,
    f"PRAGMA application_id = {APPLICATION_ID}",
    CHANGE_NOTHING,
)

_RENAMED: Final = ("operations", "starts", "minutes", "secrets")
"""The tables of version 1 that version 2 has under a name with the prefix."""

_RENAME: Final = (
    "DROP TABLE totals",
    *[f"ALTER TABLE {name} RENAME TO lro_{name}" for name in _RENAMED],
    _INPUTS,
    "INSERT INTO lro_inputs SELECT name, request FROM inputs",
    "DROP TABLE inputs",
)

_UPGRADE: Final = (
    *[
        re.sub("(INDEX|TABLE|TRIGGER) ", r"\1 IF NOT EXISTS ", one, count=1)
        for one in (*_ADDED_TABLES, *_CHECKPOINTS, *_INDEXES)
    ],
    CHANGE_NOTHING,
)
"""Upgrades version 1 to 2; also repairs a version 2 that old code has marked as version 1."""

_COLUMNS: Final = {
    "lro_operations": ", ".join(COLUMNS),
    "lro_inputs": "name, request",
    "lro_workers": ", ".join(WORKER_COLUMNS),
    "lro_begins": "method, lane, at, until",
    "lro_schedules": SCHEDULE_COLUMNS,
    "lro_checkpoints": "name, key, value",
    "lro_paused": "method, since",
    "lro_starts": "method, caller, request_id, fingerprint, at, name, first",
    "lro_minutes": "step, minute, method, counts",
    "lro_secrets": "id, key",
}


_BEFORE: Final = (0, 1)
"""The versions that this library upgrades; 0 means that there are no tables."""


def prepare(writer: sqlite3.Connection, path: str, until: float) -> None:
    """Create the tables in a file without them, or upgrade and check the existing tables.

    If other processes have locked the file, wait until ``until``, a time of :func:`time.monotonic`.

    Raises:
        DeclarationError: The file has another schema version or other tables, or its file system
            does not support a write-ahead log.
        sqlite3.Error: The file cannot be used.
    """
    _version(writer, path)  # check first, so that a file of another program is not changed
    if _write_ahead(writer, until) != "wal":
        raise DeclarationError(path, "must be on a file system that supports SQLite's WAL mode")
    if _version(writer, path) in _BEFORE:
        _make_tables(writer, path)
    version = _version(writer, path)
    if version != SCHEMA_VERSION:
        text = f"has schema version {version}; this library can only use version {SCHEMA_VERSION}"
        raise DeclarationError(path, text)
    for table, columns in _COLUMNS.items():
        _execute(writer, path, f"SELECT {columns} FROM {table} LIMIT 0")


def _write_ahead(writer: sqlite3.Connection, until: float) -> str:
    # If two processes open a new file at once, SQLite raises "locked" in one of them without
    # waiting.
    while True:
        try:
            (mode,) = writer.execute("PRAGMA journal_mode = WAL").fetchone()
            return str(mode)
        except sqlite3.OperationalError as exc:
            if not is_busy(exc) or time.monotonic() >= until:
                raise
            time.sleep(0.002)


def read_version(path: str) -> int:
    """Return the version of the tables in a file, 0 if there are none; change nothing.

    Raises:
        Unavailable: The file cannot be read as a database.
        DeclarationError: The file belongs to another program.
    """
    if not os.path.exists(path):
        return 0
    try:
        with contextlib.closing(
            sqlite3.connect(f"{Path(path).absolute().as_uri()}?mode=ro", uri=True)
        ) as reader:
            return _version(reader, path)
    except sqlite3.Error as exc:
        raise Unavailable(f"{path} cannot be read: {exc}") from exc


def _version(reader: sqlite3.Connection, path: str) -> int:
    """Return the version of the tables, 0 for a file that no program has marked as its own."""
    # Read in this order: another process may create the tables and set both values in between.
    (version,) = reader.execute("PRAGMA user_version").fetchone()
    (application,) = reader.execute("PRAGMA application_id").fetchone()
    if application != APPLICATION_ID and (application or version):
        raise _foreign(path, f"application id {application} and version {version}")
    return int(version)


def _make_tables(writer: sqlite3.Connection, path: str) -> None:
    """Create or upgrade all tables in one transaction, unless another process has done so."""
    writer.execute("BEGIN IMMEDIATE")
    try:
        version = _version(writer, path)
        if version == 0:
            found = {name for (name,) in writer.execute("SELECT name FROM sqlite_master")}
            for table in _COLUMNS:
                if table in found:
                    raise _foreign(path, f"a table {table!r} of the same name")
        for statement in _TABLES if version == 0 else _upgrade(writer) if version == 1 else ():
            _execute(writer, path, statement)
        writer.execute("COMMIT")
    except BaseException:
        with contextlib.suppress(sqlite3.Error):  # the transaction may be rolled back already
            writer.execute("ROLLBACK")
        raise


def _upgrade(writer: sqlite3.Connection) -> Iterator[str]:
    """Yield the statements that upgrade version 1, each after the one before was executed."""
    query = "SELECT name FROM sqlite_master WHERE type = ? AND tbl_name IN ({})"
    marks = ", ".join("?" * len(_RENAMED))
    if not writer.execute(query.format("?"), ("table", "lro_operations")).fetchall():
        # SQLite cannot rename an index, only make it again; those of the library have such names.
        for (name,) in writer.execute(query.format(marks), ("index", *_RENAMED)).fetchall():
            if name.startswith(("operations_", "starts_")):
                yield f"DROP INDEX {name}"
        yield from _RENAME
    known = {name for _, name, *_ in writer.execute("PRAGMA table_info(lro_operations)")}
    for name, kind in added_columns("INTEGER", "TEXT").items():
        if name not in known:
            yield f"ALTER TABLE lro_operations ADD COLUMN {name} {kind}"
    yield from _UPGRADE


def _execute(writer: sqlite3.Connection, path: str, statement: str) -> None:
    try:
        writer.execute(statement)
    except sqlite3.OperationalError as exc:
        if code_of(exc) != sqlite3.SQLITE_ERROR:
            raise
        raise _foreign(path, f"tables that do not match its schema version ({exc})") from exc


def _foreign(path: str, what: str) -> DeclarationError:
    return DeclarationError(path, f"has {what}: it is not of this library")


_ROW: Final = ", ".join(COLUMNS)

INSERT_INPUT: Final = "INSERT INTO lro_inputs VALUES (?, ?)"
DELETE: Final = "DELETE FROM lro_operations WHERE name = ?"
DELETE_INPUT: Final = "DELETE FROM lro_inputs WHERE name = ?"

GET: Final = f"SELECT {_ROW} FROM lro_operations WHERE name = ?"
STAMP: Final = f"SELECT {', '.join(STAMP_COLUMNS)} FROM lro_operations WHERE name = ?"
_NAMES: Final = "name IN (SELECT value FROM json_each(?))"
FIND: Final = f"SELECT {_ROW} FROM lro_operations WHERE {_NAMES}"
STAMPS: Final = f"SELECT name, {', '.join(STAMP_COLUMNS)} FROM lro_operations WHERE {_NAMES}"
KEEP_CHECKPOINT: Final = """INSERT INTO lro_checkpoints SELECT name, ?, ? FROM lro_operations
    WHERE name = ? AND attempt = ? AND state IN ('IN_PROGRESS', 'HIDDEN')
    ON CONFLICT (name, key) DO UPDATE SET value = excluded.value"""
BUSY: Final = """SELECT 1 FROM lro_operations
    WHERE target = ? AND target != '' AND state IN ('IN_PROGRESS', 'HIDDEN')"""
INDEXED: Final = "SELECT 1 FROM sqlite_master WHERE type = 'index' AND name = ?"
POLL_STATES: Final = """SELECT wanted.value, state, expire_time, cancel_requested
    FROM json_each(?) AS wanted LEFT JOIN lro_operations ON name = wanted.value
    WHERE state IS NULL OR state != 'IN_PROGRESS' OR expire_time IS NOT NULL OR cancel_requested"""
"""Selects only names whose state must be reported, usually a few."""

_NAME, _METHOD, _LANE_COLUMN = map(COLUMNS.index, ("name", "method", "lane"))
_MINE: Final = """SELECT name, cancel_requested, lease_until <= ? FROM lro_operations
    WHERE owner != '' AND owner = ? AND (cancel_requested OR lease_until <= ?)"""
_RENEW: Final = f"""INSERT INTO lro_workers VALUES ({", ".join("?" * len(WORKER_COLUMNS))})
    ON CONFLICT (owner) DO UPDATE SET (methods, capacity, seen_time, alive_until)
        = (excluded.methods, excluded.capacity, excluded.seen_time, excluded.alive_until)
        WHERE NOT lost"""
_LEAVE: Final = "DELETE FROM lro_workers WHERE owner = ?"
_LOSE: Final = "UPDATE lro_workers SET lost = 1 WHERE owner = ? AND (lost OR alive_until = ?)"
_LOSE_UNKNOWN: Final = f"""INSERT OR IGNORE INTO lro_workers
    VALUES ({", ".join("?" * len(WORKER_COLUMNS))})"""
_IS_LOST: Final = "SELECT 1 FROM lro_workers WHERE owner = ? AND lost"
_FORGET: Final = """DELETE FROM lro_workers WHERE seen_time <= ?
    AND owner NOT IN (SELECT owner FROM lro_operations WHERE owner != '') RETURNING owner"""

_NOT_PAUSED: Final = "NOT IN (SELECT method FROM lro_paused)"

_KIND: Final = f"FROM lro_operations AS o WHERE {WAITS} AND ({IS_SUSPECT}) = ?"
_LANE: Final = f"{_KIND} AND o.method = p.method AND o.lane = p.lane AND o.rank = p.rank"
_FIRST_LANE: Final = "ORDER BY o.lane, o.rank LIMIT 1"
LANES: Final = f"""WITH RECURSIVE found(row, count) AS (
        SELECT (SELECT o.rowid {_KIND} AND o.method = value AND o.lane > ? AND o.lane <= ?
            {_FIRST_LANE}), 1 FROM json_each(?) WHERE value {_NOT_PAUSED}
        UNION ALL
        SELECT coalesce((SELECT o.rowid {_KIND} AND o.method = p.method
                AND o.lane = p.lane AND o.rank > p.rank ORDER BY o.rank LIMIT 1),
            (SELECT o.rowid {_KIND} AND o.method = p.method
                AND o.lane > p.lane AND o.lane <= ? {_FIRST_LANE})), count + 1
        FROM found JOIN lro_operations AS p ON p.rowid = row WHERE count < {MOST_LANES}
    )
    SELECT p.method, p.lane, p.rank,
        (SELECT o.lease_until {_LANE} ORDER BY o.lease_until LIMIT 1) <= ?,
        (SELECT o.lease_until {_LANE} AND o.lease_until > ? ORDER BY o.lease_until LIMIT 1)
    FROM found JOIN lro_operations AS p ON p.rowid = row"""
"""Selects the lanes in which work waits, with whether work is due, and when more will be due."""
DUE_OF_LANE: Final = f"""SELECT lease_until, name {_KIND}
    AND method = ? AND lane = ? AND rank = ? AND lease_until <= ?
    AND name NOT IN (SELECT value FROM json_each(?))
    ORDER BY lease_until, name LIMIT ?"""
FIRST_WAITING: Final = f"""SELECT o.lease_until, o.lane, o.name {_KIND} AND o.method = ?
    AND o.method {_NOT_PAUSED} AND o.name NOT IN (SELECT value FROM json_each(?))
    ORDER BY o.lease_until LIMIT 1"""
RUNNING: Final = "SELECT count(*) FROM lro_operations WHERE method = ? AND owner != ''"
RUNNING_IN_LANE: Final = f"{RUNNING} AND lane = ? AND lane != 0"
RUNNING_WITHOUT_KEY: Final = f"{RUNNING} AND lane = 0"
SENT: Final = f"""SELECT count(*) FROM lro_operations
    WHERE {IS_SENT} AND method = ? AND lease_until > ?"""
SENT_IN_LANE: Final = f"{SENT} AND lane = ?"
BEGUN: Final = """SELECT at FROM lro_begins WHERE method = ? AND lane = ? AND at > ? AND at <= ?
    ORDER BY at DESC LIMIT ?"""
_NOTE_BEGIN: Final = "INSERT INTO lro_begins VALUES (?, ?, ?, ?)"
BEGINS_OVER: Final = "SELECT 1 FROM lro_begins WHERE until <= ? LIMIT 1"
_FORGET_BEGINS: Final = "DELETE FROM lro_begins WHERE until <= ?"
_WANTED: Final = f"""SELECT method, lane FROM lro_operations
    WHERE name = ? AND {WAITS} AND (lease_until <= ? OR {IS_SENT}) AND method {_NOT_PAUSED}"""
_BEGIN: Final = f"""UPDATE lro_operations SET owner = ?, lease_until = ?, attempt = attempt + 1,
    start_time = coalesce(start_time, ?), update_time = ?, sent_time = NULL,
    version = version + 1 WHERE {_NAMES}"""
_PUT_OFF: Final = f"""UPDATE lro_operations
    SET lease_until = max(?, ? + coalesce(? - sent_time, 0)),
    sent_time = coalesce(sent_time, ?), version = version + 1 WHERE {_NAMES}"""
_TAKEN: Final = f"""SELECT {", ".join(f"o.{name}" for name in COLUMNS)}, i.request
    FROM json_each(?) AS taken CROSS JOIN lro_operations AS o ON o.name = taken.value
    CROSS JOIN lro_inputs AS i ON i.name = o.name"""

EXPIRED: Final = f"""SELECT name, method FROM lro_operations
    WHERE expire_time IS NOT NULL AND {SWEEP_TIME} <= ? LIMIT ?"""
DUE: Final = f"""SELECT {_ROW} FROM lro_operations
    WHERE notify_at <= ? ORDER BY notify_at LIMIT ?"""
ANY_DUE: Final = "SELECT 1 FROM lro_operations WHERE notify_at <= ? LIMIT 1"
_CLAIM: Final = "UPDATE lro_operations SET notify_at = ?, version = version + 1 WHERE name = ?"

SPENT: Final = "SELECT rowid FROM lro_starts WHERE at <= ? LIMIT ?"
_DELETE_START: Final = "DELETE FROM lro_starts WHERE rowid = ?"

_COUNTED: Final = "SELECT counts FROM lro_minutes WHERE step = ? AND minute = ? AND method = ?"
_KEEP_COUNTS: Final = "INSERT OR REPLACE INTO lro_minutes VALUES (?, ?, ?, ?)"
_PRUNE: Final = f"""DELETE FROM lro_minutes WHERE rowid IN (SELECT rowid FROM lro_minutes
    WHERE step IN {STEP_MINUTES} AND minute < ? LIMIT {PRUNED_ROWS})"""
LOAD: Final = f"""SELECT method, owner, {WAITS} AS waits,
        sum(place <= ?), sum(place > ?), min(create_time), name
    FROM (SELECT *, row_number() OVER () AS place FROM (
        SELECT method, owner, lease_until, create_time, name FROM lro_operations
            WHERE parent = ? AND state = 'IN_PROGRESS' ORDER BY create_time LIMIT ?))
    GROUP BY method, owner, waits"""
"""In SQLite, a bare column beside ``min``, such as ``name``, is from the row with the minimum."""

_FIND_START: Final = """SELECT fingerprint, at, name, first FROM lro_starts
    WHERE method = ? AND caller = ? AND request_id = ?"""
_REMEMBER_START: Final = "INSERT OR REPLACE INTO lro_starts VALUES (?, ?, ?, ?, ?, ?, ?)"

_UNFINISHED: Final = frozenset({State.IN_PROGRESS.value, State.HIDDEN.value})


class Executes(Protocol):
    """A connection that executes statements: the store's or the application's."""

    def execute(self, sql: str, values: tuple[object, ...] = ..., /) -> Any:
        """Execute a statement and return its cursor."""
        ...


def rows_of(connection: Executes) -> FetchRows:
    """Return a function that queries this connection, and so sees its uncommitted changes."""

    def rows(sql: str, values: tuple[object, ...] = ()) -> list[Any]:
        found: list[Any] = connection.execute(sql, values).fetchall()
        return found

    return rows


@functools.lru_cache(maxsize=128)
def insert_of(columns: tuple[str, ...], count: int = 0) -> str:
    """Return the statement that inserts a record with values in these columns, else the defaults.

    With a ``count``, the statement inserts :func:`some_of` the given records.
    """
    values = {name: f"column{n}" if count else "?" for n, name in enumerate(columns, 1)}
    values |= {name: _literal(DEFAULTS[name]) for name in DEFAULTS if name not in values}
    chosen = ", ".join(values.values())
    source = f"SELECT {chosen} FROM {some_of(count, len(columns))}"
    return (
        f"INSERT {OR_FAIL * bool(count)}INTO lro_operations ({', '.join(values)})"
        f" {source if count else f'VALUES ({chosen})'}"
    )


OR_FAIL: Final = "OR FAIL "
"""Makes SQLite keep no copies of pages, with which it would undo a statement that fails midway.

The caller must roll back if such a statement fails. SQLite writes many copies to a temporary file,
which it makes for each statement.
"""


def some_of(count: int, width: int) -> str:
    """Return an unnamed table of ``width`` columns: ``column1`` and so on.

    Its values are the parameters: first those of ``count`` rows, then the number of rows to use.
    """
    marks = ", ".join([f"({', '.join('?' * width)})"] * count)
    return f"(SELECT * FROM (VALUES {marks}) LIMIT ?)"


def _literal(value: object) -> str:
    assert value is None or (isinstance(value, (str, int)) and "'" not in str(value))
    return "NULL" if value is None else repr(value)


@functools.lru_cache(maxsize=128)
def update_of(columns: tuple[str, ...]) -> str:
    """Return the statement that writes these columns of a record if its stamp has not changed."""
    assignments = ", ".join(f"{column} = ?" for column in columns)
    expected = " AND ".join(f"{column} IS ?" for column in STAMP_COLUMNS)
    return f"UPDATE lro_operations SET {assignments} WHERE name = ? AND {expected}"


def listed(texts: Collection[str]) -> tuple[str, frozenset[str]]:
    """Return the texts that SQLite can store, as a JSON list, and the set of unstorable texts."""
    found = json.dumps(list(texts))
    if "\\u" not in found:
        return found, frozenset()
    impossible = frozenset(text for text in texts if not textual(text))
    return json.dumps([text for text in texts if text not in impossible]), impossible


def renew(writer: sqlite3.Connection, worker: Worker, now: int) -> tuple[Renewed | None, list[str]]:
    """Renew the row of a worker that does not count as lost; remove workers not seen for long.

    Returns:
        The result for the worker (None if it is lost), and the owners of the removed rows.
    """
    writer.execute(_RENEW, to_row(worker))
    if writer.execute(_IS_LOST, (worker.owner,)).fetchone():
        return None, []
    forgotten = [owner for (owner,) in writer.execute(_FORGET, (micros(moment(now) - FORGOTTEN),))]
    return renewed_of(writer.execute(_MINE, (now, worker.owner, now))), forgotten


def leave(writer: sqlite3.Connection, owner: str) -> None:
    """Remove a worker's row; write to the file even if there is no such row."""
    writer.execute(_LEAVE, (owner,))
    writer.execute(CHANGE_NOTHING)


def touch(writer: sqlite3.Connection) -> list[Any]:
    """Write to the file without a change, and return the rows of ``HOLDS``."""
    writer.execute(CHANGE_NOTHING)
    return writer.execute(HOLDS).fetchall()


def lose(writer: sqlite3.Connection, owner: str, alive_until: int | None, now: datetime) -> bool:
    """Mark a worker as lost unless it has renewed its row; return True if it counts as lost."""
    if alive_until is None:
        writer.execute(_LOSE_UNKNOWN, to_row(attrs.evolve(unknown_worker(owner, now), lost=True)))
    else:
        writer.execute(_LOSE, (owner, alive_until))
    return writer.execute(_IS_LOST, (owner,)).fetchone() is not None


def claim_due(writer: sqlite3.Connection, now: int, until: int, limit: int) -> list[Any]:
    """Claim records whose notifications are due; return their rows before the claim."""
    rows = writer.execute(DUE, (now, limit)).fetchall()
    writer.executemany(_CLAIM, [(until, row[_NAME]) for row in rows])
    return rows


@attrs.frozen
class Choice:
    """Work for a claim: names in order, whether more work is due now, and the next due time."""

    names: Sequence[str] = ()
    more: bool = False
    next_due: int | None = None


class _Room:
    """Number of operations of each method, or of each lane, that may begin within the limits."""

    def __init__(self, rows: FetchRows, claim: Claim, now: int) -> None:
        self._rows, self._claim, self._now = rows, claim, now
        self._known: dict[tuple[str, int], int] = {}
        self.times: list[int] = []
        """Times at which rates allow more of the due work to begin."""

    def of(self, method: str, lane: int) -> int:
        """Return how many operations may begin in a lane, at most one more than the claim wants."""
        group = method, lane if method in self._claim.keyed else 0
        if group not in self._known:
            self._known[group] = min(max(0, self._claim.max_count) + 1, *self._bounds(*group))
        return self._known[group]

    def take(self, method: str, lane: int) -> bool:
        """Count one more operation in this lane; return True if there was room for it."""
        room = self.of(method, lane)
        self._known[method, lane if method in self._claim.keyed else 0] = room - 1
        return room > 0

    def _bounds(self, method: str, lane: int) -> Iterator[int]:
        limit, rate = self._claim.limits[method], self._claim.rates.get(method)
        yield sys.maxsize
        keyed, ahead = method in self._claim.keyed, 0
        if (limit is None and rate is None) or (keyed and lane == FREE_LANE):
            return
        if self._claim.puts_off:
            values = (method, self._now, lane) if keyed else (method, self._now)
            ((ahead,),) = self._rows(SENT_IN_LANE if keyed else SENT, values)
        if limit is not None:
            counted = RUNNING_IN_LANE if lane else RUNNING_WITHOUT_KEY if keyed else RUNNING
            ((running,),) = self._rows(counted, (method, lane) if lane else (method,))
            yield limit - running - ahead
        if rate is not None:
            most, span = rate[0], rate[1] // MICROSECOND
            since = self._now - span
            begun = self._rows(BEGUN, (method, lane, since, self._now + span, most))
            if len(begun) == most:
                self.times.append(begun[-1][0] + span)
            yield most - len(begun) - ahead


def choose(rows: FetchRows, claim: Claim, now: int) -> Choice:
    """Choose the waiting operations that a claim takes; read only indexes."""
    most, room = max(0, claim.max_count), _Room(rows, claim, now)
    if claim.name:
        only = _wanted(rows, claim, now, room)
        return Choice(only[:most], len(only) > most)
    looked = _look(rows, claim, now, room)
    first = None
    if looked.many and not looked.found:
        excluded = listed(claim.excluded)[0]
        kinds = itertools.product(claim.kinds, claim.limits)
        waiting = [one for kind in kinds for one in rows(FIRST_WAITING, (*kind, excluded))]
        first = min(waiting, default=None)
        if first is not None and first[0] > now:
            return Choice(next_due=first[0])
        if first is not None:
            looked = _look(rows, attrs.evolve(claim, after_lane=first[1] - 1), now, room)
        # If nothing was found, much work of the same lane comes before this work.
        if first is not None and not looked.found:
            only = _wanted(rows, attrs.evolve(claim, name=first[2]), now, room)
            return Choice(only[:most], more=True)
    ordered = in_turn(looked.found, claim.keyed)
    names = [one.name for one in ordered if room.take(one.method, one.lane)]
    # After this claim, the next one says when the rates allow more.
    rated = any(one.method in claim.rates for one in looked.found)
    more = looked.many or len(names) > most or rated
    return Choice(names[:most], more, min(looked.times + room.times, default=None))


@attrs.frozen
class _Looked:
    """The due work of the lanes that were read, and the next due times.

    ``many`` means that there may be more lanes.
    """

    found: Sequence[Due]
    times: list[int]
    many: bool


def _look(rows: FetchRows, claim: Claim, now: int, room: _Room) -> _Looked:
    methods, excluded = json.dumps([*claim.limits]), listed(claim.excluded)[0]
    found: list[Due] = []
    times: list[int] = []
    many = False
    for kind in claim.kinds:
        spans = [(claim.after_lane, MAX_LANE)] + [(-1, claim.after_lane)] * (claim.after_lane >= 0)
        lanes: list[Any] = []
        for low, high in spans:
            each = (kind, low, high, methods, kind, kind, high, kind, now, kind, now)
            lanes += rows(LANES, each)
        if len(lanes) >= MOST_LANES:
            most = max(Counter(method for method, *_ in lanes).values())
            many = many or most >= MOST_LANES
        for place, (method, lane, rank, is_due, next_due) in enumerate(lanes):
            if next_due is not None:
                times.append(next_due)
            if is_due and (wanted := room.of(method, lane)) > 0:
                values = kind, method, lane, rank, now, excluded, wanted
                due = rows(DUE_OF_LANE, values)
                found += [Due(method, lane, rank, place, *one) for one in due]
    return _Looked(found, times, many)


def _wanted(rows: FetchRows, claim: Claim, now: int, room: _Room) -> Sequence[str]:
    if claim.name in claim.excluded or not textual(claim.name):
        return ()
    for method, lane in rows(_WANTED, (claim.name, now)):
        if method in claim.limits and room.of(method, lane) > 0:
            return (claim.name,)
    return ()


def take(writer: sqlite3.Connection, claim: Claim, now: int) -> tuple[Choice, list[Any]]:
    """Write the changes of a claim; return its choice, and the chosen rows with their requests."""
    choice = choose(rows_of(writer), claim, now)
    until, names = micros(claim.lease_until), json.dumps(choice.names)
    if claim.puts_off:
        writer.execute(_PUT_OFF, (until, now, now, now, names))
    else:
        writer.execute(_BEGIN, (claim.owner, until, now, now, names))
    taken = {row[_NAME]: row for row in writer.execute(_TAKEN, (names,))}
    for row in taken.values() if not claim.puts_off and claim.rates else ():
        method = row[_METHOD]
        if method in claim.rates:
            lane = row[_LANE_COLUMN] if method in claim.keyed else 0
            over = now + claim.rates[method][1] // MICROSECOND
            writer.execute(_NOTE_BEGIN, (method, lane, now, over))
    return choice, [taken[name] for name in choice.names if name in taken]


def over(state: str | None, expire_time: int | None, now: int) -> bool:
    """Return True if no caller needs to wait for an operation in this state."""
    return state != State.IN_PROGRESS.value or (expire_time is not None and expire_time <= now)


def asked(state: str | None, cancel_requested: int | None) -> bool:
    """Return True if a cancel was requested and the operation has not ended."""
    return bool(cancel_requested) and state in _UNFINISHED


def sweep(writer: sqlite3.Connection, due: int, old: int, limit: int) -> list[tuple[str, str]]:
    """Remove up to ``limit`` records that expired by ``due``, and starts older than ``old``.

    Returns:
        The name and the method of each record.
    """
    removed: list[tuple[str, str]] = writer.execute(EXPIRED, (due, limit)).fetchall()
    names = [(name,) for name, _ in removed]
    writer.executemany(DELETE, names)
    writer.executemany(DELETE_INPUT, names)
    writer.executemany(_DELETE_START, writer.execute(SPENT, (old, limit)).fetchall())
    writer.execute(_FORGET_BEGINS, (due,))
    return removed


def add_counts(writer: sqlite3.Connection, minute: datetime, counts: Counts, oldest: int) -> None:
    """Add counts to the stored counts of the minute, and remove counts before ``oldest``."""

    for method, more in counts.items():
        for step in steps_of(minute).items():
            key = *step, method
            found = writer.execute(_COUNTED, key).fetchone()
            sums = added(numbers(found[0]) if found else {}, more)
            # Refuse NaN, which the store could write, but never read again.
            writer.execute(_KEEP_COUNTS, (*key, json.dumps(sums, allow_nan=False)))
    writer.execute(_PRUNE, (oldest,))


def first_start(rows: FetchRows, key: RequestKey, now: int) -> Record | None:
    """Return the record of an earlier start with this key; if removed since, its first version.

    Raises:
        RequestIdConflict: The earlier start had a different request.
    """
    found = rows(_FIND_START, (key.method, key.caller, key.request_id))
    if not found:
        return None
    fingerprint, at, name, first = found[0]
    if not repeats_start(key, fingerprint, moment(at), moment(now)):
        return None
    for row in rows(GET, (name,)):
        present = from_row(row)
        if present.visible(moment(now)):
            return present
    remembered: Any = reread(first)
    return from_row(remembered)


def start_row(key: RequestKey, record: Record, row: tuple[object, ...]) -> tuple[object, ...]:
    """Return the row that :func:`remember_start` stores for a start."""
    values: Any = list(row)
    first = dumps(values).decode()
    at = micros(record.create_time)
    return key.method, key.caller, key.request_id, key.fingerprint, at, record.name, first


def remember_start(writer: Executes, start: tuple[object, ...]) -> None:
    """Store a start under its key for a day; replace an older start with this key."""
    writer.execute(_REMEMBER_START, start)
