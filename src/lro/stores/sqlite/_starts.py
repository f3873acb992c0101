"""Request keys: which operation a start of the last 24 hours has begun (spec §9.2)."""

from __future__ import annotations

import sqlite3
from datetime import timedelta
from typing import Any, Final

from lro._base.errors import RequestIdConflict
from lro._engine.store_port import RequestKey
from lro._messages.json_text import dumps, reread
from lro._model.record import Record
from lro.stores._rows import COLUMNS, from_row, micros, moment
from lro.stores.sqlite._readers import Rows

REQUEST_LIFE: Final = timedelta(hours=24)

_FIND: Final = """SELECT fingerprint, at, name, first FROM starts
    WHERE method = ? AND caller = ? AND request_id = ?"""
_REMEMBER: Final = "INSERT OR REPLACE INTO starts VALUES (?, ?, ?, ?, ?, ?, ?)"
_GET: Final = f"SELECT {', '.join(COLUMNS)} FROM operations WHERE name = ?"


def first_start(rows: Rows, key: RequestKey, now: int) -> Record | None:
    """The record that a start with this key has begun; as it was first stored, if it is gone.

    Raises:
        RequestIdConflict: That was another request.
    """
    found = rows(_FIND, (key.method, key.caller, key.request_id))
    if not found:
        return None
    fingerprint, at, name, first = found[0]
    if moment(now) - moment(at) >= REQUEST_LIFE:
        return None
    if fingerprint != key.fingerprint:
        raise RequestIdConflict("request_id", "was used before with another request")
    for row in rows(_GET, (name,)):
        present = from_row(row)
        if present.visible(moment(now)):
            return present
    remembered: Any = reread(first)
    return from_row(remembered)


def start_row(key: RequestKey, record: Record, row: tuple[object, ...]) -> tuple[object, ...]:
    """What :func:`remember` keeps of a start."""
    values: Any = list(row)
    first = dumps(values).decode()
    at = micros(record.create_time)
    return key.method, key.caller, key.request_id, key.fingerprint, at, record.name, first


def remember(writer: sqlite3.Connection, start: tuple[object, ...]) -> None:
    """Keep a start for its day, in place of an older one with this key."""
    writer.execute(_REMEMBER, start)


def forget(writer: sqlite3.Connection, name: str) -> None:
    """Drop the key with which this operation was started, if it was."""
    writer.execute("DELETE FROM starts WHERE name = ?", (name,))
