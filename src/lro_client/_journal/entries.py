"""What a journal knows of a start, as a value and as a row of SQLite."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

import attrs

from lro_client._tokens import public_address

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_TICK: Final = timedelta(microseconds=1)


def _in_utc(_: object, field: attrs.Attribute[datetime], value: datetime) -> None:
    if value.utcoffset() is None or value.utcoffset():
        raise ValueError(f"{field.name} must be in UTC, got {value!r}")


def _some(_: object, field: attrs.Attribute[str], value: str) -> None:
    if not value:
        raise ValueError(f"{field.name} must not be empty")


def _lower(request_id: str) -> str:
    return request_id.lower()  # ids are compared without regard to case (spec §9.2(1))


@attrs.frozen(kw_only=True)
class Entry:
    """A start that was sent, or was about to be, and whose result was not taken yet.

    ``message`` is the JSON text that was sent to ``target`` of ``server``, ``message_type`` its
    type URL (empty for a class without a full name), ``response`` and ``metadata`` are what tokens
    call their classes. ``name`` is the operation's, empty as long as no answer came; ``started``
    is in UTC.
    """

    request_id: str = attrs.field(validator=_some, converter=_lower)
    server: str = attrs.field(default="", converter=public_address)
    target: str
    message: str
    message_type: str = ""
    response: str = ""
    metadata: str = ""
    name: str = ""
    started: datetime = attrs.field(validator=_in_utc)

    @property
    def start(self) -> tuple[str, ...]:
        """What makes two starts with one request id the same (spec §9.2(3))."""
        return self.server, self.target, self.message, self.message_type


_FIELDS: Final = tuple(field.name for field in attrs.fields(Entry))
_COLUMNS: Final = ", ".join(_FIELDS)

TABLE: Final = (
    """
    CREATE TABLE entries (
        number INTEGER PRIMARY KEY AUTOINCREMENT,
        request_id TEXT NOT NULL UNIQUE,
        server TEXT NOT NULL,
        target TEXT NOT NULL,
        message TEXT NOT NULL,
        message_type TEXT NOT NULL,
        response TEXT NOT NULL,
        metadata TEXT NOT NULL,
        name TEXT NOT NULL,
        started INTEGER NOT NULL
    )
    """,
    "CREATE INDEX entries_by_name ON entries (name)",
)
"""Make the table; of its columns all but the first are the fields of an entry."""

BEGIN: Final = f"""
INSERT INTO entries ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (request_id) DO NOTHING
"""
"""Add a row, unless there is one of the same request id."""

FIND: Final = "SELECT server, target, message, message_type FROM entries WHERE request_id = ?"
"""The ``start`` of the entry with a request id."""

COLLECT: Final = """
DELETE FROM entries
WHERE ((name = ? AND name != '') OR (request_id = ? AND name IN ('', ?)))
"""
"""Remove an operation, by its name or by the request id of its start."""

LIST: Final = f"SELECT {_COLUMNS} FROM entries WHERE 1{{}} ORDER BY number"
"""Rows, oldest first, with room for one more condition."""


def row_of(entry: Entry) -> tuple[str | int, ...]:
    """An entry as a row."""
    return (*attrs.astuple(entry)[:-1], ticks_of(entry.started))


def entry_of(row: tuple[object, ...]) -> Entry:
    """The entry of a row.

    Raises:
        ValueError: The row is none of an entry's: the file is damaged.
    """
    *texts, started = row
    if not (isinstance(started, int) and all(isinstance(text, str) for text in texts)):
        raise ValueError(f"an entry has {row!r:.200}")
    values = {name: str(text) for name, text in zip(_FIELDS, texts, strict=False)}
    try:
        return Entry(**values, started=_EPOCH + started * _TICK)
    except OverflowError:
        raise ValueError(f"an entry was made {started} microseconds after 1970") from None


def ticks_of(moment: datetime) -> int:
    """A moment in microseconds since 1970."""
    return (moment - _EPOCH) // _TICK
