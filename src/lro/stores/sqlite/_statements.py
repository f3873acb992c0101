"""The statements sent to SQLite: few texts, always the same, so that they stay prepared."""

from __future__ import annotations

import functools
import json
import sqlite3
from collections.abc import Collection
from typing import Any, Final

from lro._engine.store_port import RequestKey
from lro._messages.json_text import dumps, reread
from lro._model.record import Record, State
from lro.stores._rows import (
    COLUMNS,
    STAMP_COLUMNS,
    from_row,
    micros,
    moment,
    repeats_start,
    textual,
)
from lro.stores.sqlite._file import FetchRows

_ROW: Final = ", ".join(COLUMNS)

INSERT: Final = f"INSERT INTO operations ({_ROW}) VALUES ({', '.join('?' * len(COLUMNS))})"
INSERT_INPUT: Final = "INSERT INTO inputs VALUES (?, ?)"
DELETE: Final = "DELETE FROM operations WHERE name = ?"
DELETE_INPUT: Final = "DELETE FROM inputs WHERE name = ?"

GET: Final = f"SELECT {_ROW} FROM operations WHERE name = ?"
STAMP: Final = f"SELECT {', '.join(STAMP_COLUMNS)} FROM operations WHERE name = ?"
_NAMES: Final = "name IN (SELECT value FROM json_each(?))"
FIND: Final = f"SELECT {_ROW} FROM operations WHERE {_NAMES}"
STAMPS: Final = f"SELECT name, {', '.join(STAMP_COLUMNS)} FROM operations WHERE {_NAMES}"
INPUT: Final = "SELECT request FROM inputs WHERE name = ?"
BUSY: Final = """SELECT 1 FROM operations
    WHERE target = ? AND target != '' AND state IN ('IN_PROGRESS', 'HIDDEN')"""
INDEXED: Final = "SELECT 1 FROM sqlite_master WHERE type = 'index' AND name = ?"
POLL_STATES: Final = """SELECT wanted.value, state, expire_time, cancel_requested
    FROM json_each(?) AS wanted LEFT JOIN operations ON name = wanted.value
    WHERE state IS NULL OR state != 'IN_PROGRESS' OR expire_time IS NOT NULL OR cancel_requested"""
"""Gives only names whose state is to be reported; most that are asked for have none."""

_AMONG: Final = "method IN (SELECT value FROM json_each(?))"
LOST: Final = f"""SELECT {_ROW} FROM operations WHERE lease_until <= ? AND {_AMONG}
    ORDER BY lease_until LIMIT ?"""
_TOUCH: Final = "UPDATE operations SET lease_until = lease_until WHERE name = ?"
_NAME: Final = COLUMNS.index("name")
NEXT_LEASE_END: Final = (
    f"SELECT min(lease_until) FROM operations WHERE lease_until > ? AND {_AMONG}"
)
RENEW: Final = """UPDATE operations SET lease_until = ?
    WHERE lease_until IS NOT NULL AND owner = ?"""
ASKED: Final = """SELECT name FROM operations
    WHERE lease_until IS NOT NULL AND owner = ? AND cancel_requested"""
NAMED: Final = f" AND {_NAMES}"

EXPIRED: Final = "SELECT name FROM operations WHERE expire_time <= ? LIMIT ?"
SPENT: Final = "SELECT rowid FROM starts WHERE at <= ? LIMIT ?"
_DELETE_START: Final = "DELETE FROM starts WHERE rowid = ?"

_FIND_START: Final = """SELECT fingerprint, at, name, first FROM starts
    WHERE method = ? AND caller = ? AND request_id = ?"""
_REMEMBER_START: Final = "INSERT OR REPLACE INTO starts VALUES (?, ?, ?, ?, ?, ?, ?)"
_FORGET_START: Final = "DELETE FROM starts WHERE name = ?"

_UNFINISHED: Final = frozenset({State.IN_PROGRESS.value, State.HIDDEN.value})


def rows_of(connection: sqlite3.Connection) -> FetchRows:
    """What a query finds for this connection, uncommitted changes of its own included."""

    def rows(sql: str, values: tuple[object, ...] = ()) -> list[Any]:
        return connection.execute(sql, values).fetchall()

    return rows


@functools.lru_cache(maxsize=128)
def update_of(columns: tuple[str, ...]) -> str:
    """The statement that writes these columns of one record, if its stamp is as expected."""
    assignments = ", ".join(f"{column} = ?" for column in columns)
    expected = " AND ".join(f"{column} IS ?" for column in STAMP_COLUMNS)
    return f"UPDATE operations SET {assignments} WHERE name = ? AND {expected}"


def listed(texts: Collection[str]) -> tuple[str, frozenset[str]]:
    """Texts as a list in JSON, without those that a database cannot keep; and which these are."""
    found = json.dumps(list(texts))
    if "\\u" not in found:
        return found, frozenset()
    impossible = frozenset(text for text in texts if not textual(text))
    return json.dumps([text for text in texts if text not in impossible]), impossible


def lost(writer: sqlite3.Connection, now: int, among: str, limit: int) -> list[Any]:
    """The rows of records whose lease is over, each written to, which changes nothing."""
    rows = writer.execute(LOST, (now, among, limit)).fetchall()
    writer.executemany(_TOUCH, [(row[_NAME],) for row in rows])
    return rows


def over(state: str | None, expire_time: int | None, now: int) -> bool:
    """Whether no caller need wait for an operation in this state."""
    return state != State.IN_PROGRESS.value or (expire_time is not None and expire_time <= now)


def asked(state: str | None, cancel_requested: int | None) -> bool:
    """Whether work goes on that was asked to cancel."""
    return bool(cancel_requested) and state in _UNFINISHED


def sweep(writer: sqlite3.Connection, due: int, old: int, limit: int) -> list[str]:
    """Remove up to ``limit`` records that have expired by ``due``, and starts of before ``old``."""
    names = writer.execute(EXPIRED, (due, limit)).fetchall()
    writer.executemany(DELETE, names)
    writer.executemany(_DELETE_START, writer.execute(SPENT, (old, limit)).fetchall())
    return [name for (name,) in names]


def first_start(rows: FetchRows, key: RequestKey, now: int) -> Record | None:
    """The record that a start with this key has begun; as it was first stored, if it is gone.

    Raises:
        RequestIdConflict: That was another request.
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
    """What :func:`remember_start` keeps of a start."""
    values: Any = list(row)
    first = dumps(values).decode()
    at = micros(record.create_time)
    return key.method, key.caller, key.request_id, key.fingerprint, at, record.name, first


def remember_start(writer: sqlite3.Connection, start: tuple[object, ...]) -> None:
    """Keep a start for its day, in place of an older one with this key."""
    writer.execute(_REMEMBER_START, start)


def forget_start(writer: sqlite3.Connection, name: str) -> None:
    """Drop the key with which this operation was started, if it was."""
    writer.execute(_FORGET_START, (name,))
