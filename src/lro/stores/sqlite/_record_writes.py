"""Inserts and updates of records: one by one as actions, or many in few statements.

Each statement releases the GIL, and must wait to get it back. If an event loop is busy, that
wait takes longer than the statement. So the similar writes of a group are made together.
"""

from __future__ import annotations

import contextlib
import functools
import sqlite3
import typing
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias, TypeVar

from lro._base.errors import OperationNotFound, TargetBusy
from lro._base.status import AnyMessage
from lro._engine.store_port import Inserted, RequestKey
from lro._model.operation import Change, Record, check_reporting
from lro.stores._rows import (
    COLUMNS,
    STAMP_COLUMNS,
    RecordCache,
    changes,
    from_row,
    micros,
    pack,
    refuse_untextual,
    stamp_of,
    taken,
    text_length,
    to_row,
)
from lro.stores.sqlite import _statements as sql
from lro.stores.sqlite._file import DATABASE_ERRORS, FetchRows
from lro.stores.sqlite._group_commit import HalfDone, Unrelated

T = TypeVar("T")

Changed: TypeAlias = tuple[Record | None, int | None]
"""A record after a change (None if removed), and the text length of its messages.

The length is None if the record was removed or has not changed.
"""


def checked(rows: FetchRows, record: Record, key: RequestKey | None) -> Inserted:
    """Return the result that an insert would have.

    Raises:
        RequestIdConflict, TargetBusy: The insert would be refused.
    """
    if key is not None:
        first = sql.first_start(rows, key, micros(record.create_time))
        if first is not None:
            return Inserted(first, fresh=False)
    if record.target and rows(sql.BUSY, (record.target,)):
        raise TargetBusy(record.target)
    return Inserted(record, fresh=True)


def known(cache: RecordCache, rows: FetchRows, name: str) -> tuple[Record, Any]:
    """Return the record of this name, and its row (None if the cached record is current).

    Raises:
        OperationNotFound: There is no record of this name.
    """
    # Three columns show whether anything has changed; reading all columns takes 10 times longer.
    stamps = rows(sql.STAMP, (name,))
    current = cache.current(name, stamps[0]) if stamps else None
    if current is not None:
        return current, None
    found = rows(sql.GET, (name,)) if stamps else ()
    if not found:
        raise OperationNotFound(name)
    return from_row(found[0]), found[0]


class InsertRecord:
    """Add a record and its request, or find the record that the same request added earlier.

    Raises:
        InvalidArgument: A text cannot be stored.
    """

    def __init__(
        self, cache: RecordCache, record: Record, request: AnyMessage, key: RequestKey | None
    ) -> None:
        refuse_untextual(record, key)
        self.record = record
        self.row = to_row(record)
        self.request = pack(request)
        self.plain = key is None and not record.target
        """True if no request key and no target must be checked before the insert."""
        self._cache = cache
        self._key = key
        self._start = None if key is None else sql.start_row(key, record, self.row)

    def __call__(self, writer: sql.Executes) -> Inserted:
        """Insert the record.

        Raises:
            RequestIdConflict, TargetBusy, InvalidArgument: The insert is refused.
        """
        if not self.plain:
            found = checked(sql.rows_of(writer), self.record, self._key)
            if not found.fresh:
                return found
        try:
            writer.execute(sql.INSERT, self.row)
        except sqlite3.IntegrityError as exc:
            raise taken(self.record.name) from exc
        writer.execute(sql.INSERT_INPUT, (self.record.name, self.request))
        if self._start is not None:
            sql.remember_start(writer, self._start)
        return Inserted(self.record, fresh=True)

    def committed(self, inserted: Inserted) -> Inserted:
        """Cache the record after the commit."""
        if inserted.fresh:
            self._cache.keep(self.record, text_length(self.row))
        return inserted


class UpdateRecord:
    """Replace or remove a record, all or nothing."""

    def __init__(self, cache: RecordCache, name: str, change: Change) -> None:
        self.name = name
        self.change = change
        self._cache = cache

    def __call__(self, writer: sqlite3.Connection) -> Changed:
        """Apply the change to the cached record or, if that is outdated, to the stored record."""
        last, changed = self._cache.changed(self.name, self.change) or (None, None)
        if last is not None and changed is not None:
            length = _write(writer, last, changed, self._cache.text_length(self.name))
            if length is not None:
                return changed, length
        record, row = known(self._cache, sql.rows_of(writer), self.name)
        try:
            changed = self.change(record)
        except DATABASE_ERRORS as exc:  # raised by the application, not by the database
            raise Unrelated(exc) from exc
        if changed is record:
            return record, None
        if changed is None:
            writer.execute(sql.DELETE, (self.name,))
            writer.execute(sql.DELETE_INPUT, (self.name,))
            return None, None
        before = self._cache.text_length(self.name) if row is None else text_length(row)
        return changed, _write(writer, record, changed, before)

    def committed(self, found: Changed) -> Record | None:
        """Update the cache after the commit."""
        changed, length = found
        if changed is None:
            self._cache.forget(self.name)
        elif length is not None:
            self._cache.keep(changed, length)
        return changed


class KeepCheckpoint:
    """Store a checkpoint of an operation's current attempt."""

    def __init__(
        self, cache: RecordCache, name: str, attempt: int, key: str, value: AnyMessage
    ) -> None:
        self._cache = cache
        self._row = key, pack(value), name, attempt

    def __call__(self, writer: sqlite3.Connection) -> None:
        """Store the checkpoint.

        Raises:
            OperationNotFound, NotApplied, LeaseLost: The checkpoint is refused.
        """
        if not writer.execute(sql.KEEP_CHECKPOINT, self._row).rowcount:
            _, _, name, attempt = self._row
            check_reporting(known(self._cache, sql.rows_of(writer), name)[0], attempt)


def _write(writer: sqlite3.Connection, record: Record, changed: Record, length: int) -> int | None:
    """Write the changed columns.

    Returns:
        The text length of the changed messages; None if the stored record differs from ``record``.
    """
    columns, values = _changes(record, changed)
    if columns:
        guard = record.name, *stamp_of(record)
        if not writer.execute(sql.update_of(columns), (*values, *guard)).rowcount:
            return None
    if not changed.keeps_request:
        writer.execute(sql.DELETE_INPUT, (record.name,))
    return _length(columns, values, length)


def _changes(record: Record, changed: Record) -> tuple[tuple[str, ...], list[object]]:
    try:
        return changes(record, changed)
    except DATABASE_ERRORS as exc:  # raised by a message, not by the database
        raise Unrelated(exc) from exc


def _length(columns: Sequence[str], values: Sequence[object], before: int) -> int:
    texts = sum([len(value) for value in values if isinstance(value, str)])
    return texts if "metadata" in columns else texts + before


# -- many together --------------------------------------------------------------------------------

_MOST: Final = 64
"""The most records that one statement writes."""

UPDATE_FROM: Final = sqlite3.sqlite_version_info >= (3, 35)
"""True if one statement of SQLite can update several records and return their names."""


class TogetherWriter:
    """Writes a group's plain inserts and updates with multi-row statements."""

    def __init__(self, cache: RecordCache) -> None:
        self._cache = cache

    def __call__(self, writer: sqlite3.Connection, actions: Sequence[object]) -> Mapping[int, Any]:
        """Return the results of the writes that were made, by the action's index.

        The actions without a result have changed nothing.

        Raises:
            HalfDone: A failed write has left changes, or has undone the whole transaction.
        """
        answers: dict[int, Any] = {}
        inserts = [
            (place, action)
            for place, action in enumerate(actions)
            if isinstance(action, InsertRecord) and action.plain
        ]
        for chunk in _chunks(inserts):
            if _insert(writer, [action for _, action in chunk]):
                answers.update((place, Inserted(one.record, fresh=True)) for place, one in chunk)
        for columns, updates in self._updates(actions).items():
            for some in _chunks(updates):
                written = _update(writer, columns, some)
                answers.update((one.place, one.answer) for one in some if one.name in written)
        return answers

    def _updates(self, actions: Sequence[object]) -> Mapping[tuple[str, ...], list[_Update]]:
        """Return the updates of a group, keyed by the columns that change."""
        found: dict[tuple[str, ...], list[_Update]] = defaultdict(list)
        seen: set[str] = set()
        for place, action in enumerate(actions if UPDATE_FROM else ()):
            if not isinstance(action, UpdateRecord) or action.name in seen:
                continue
            record, changed = self._cache.changed(action.name, action.change) or (None, None)
            if record is None or changed is None:
                continue
            seen.add(action.name)
            try:
                columns, values = changes(record, changed)
            # A message raised the error, and raises it again when its write is made alone.
            except Exception:
                continue
            if columns:
                length = _length(columns, values, self._cache.text_length(action.name))
                row = record.name, *values, *stamp_of(record)
                found[columns].append(_Update(place, changed, length, row))
        return found


class _Update(typing.NamedTuple):
    place: int
    changed: Record
    length: int
    row: tuple[object, ...]
    """The record's name, the new values of the changed columns, and the stamp before the change."""

    @property
    def name(self) -> str:
        return self.changed.name

    @property
    def answer(self) -> Changed:
        return self.changed, self.length


def _insert(writer: sqlite3.Connection, actions: Sequence[InsertRecord]) -> bool:
    """Insert these records, or none of them; return True if they were inserted."""
    try:
        _execute(writer, _insertion, [action.row for action in actions])
    except DATABASE_ERRORS as exc:  # the insert at fault fails again when made alone
        _check_in_transaction(writer, exc)
        return False
    with _undoing():
        inputs = [(action.record.name, action.request) for action in actions]
        _execute(writer, _input_insertion, inputs)
    return True


def _update(
    writer: sqlite3.Connection, columns: tuple[str, ...], updates: Sequence[_Update]
) -> Collection[str]:
    """Update the records whose stored stamp is as expected; return their names."""
    try:
        statement = functools.partial(_replacement, columns)
        rows = _execute(writer, statement, [one.row for one in updates]).fetchall()
    except DATABASE_ERRORS as exc:
        _check_in_transaction(writer, exc)
        return ()
    written = {name for (name,) in rows}
    over = [(one.name,) for one in updates if one.name in written and not one.changed.keeps_request]
    if over:
        with _undoing():
            _execute(writer, _input_removal, over)
    return written


def _check_in_transaction(writer: sqlite3.Connection, error: BaseException) -> None:
    if not writer.in_transaction:  # earlier writes of the group were rolled back, too
        raise HalfDone from error


@contextlib.contextmanager
def _undoing() -> Iterator[None]:
    try:
        yield
    except DATABASE_ERRORS as exc:
        raise HalfDone from exc


def _chunks(items: Sequence[T]) -> Iterator[Sequence[T]]:
    for first in range(0, len(items), _MOST):
        yield items[first : first + _MOST]


def _execute(
    writer: sqlite3.Connection,
    statement: typing.Callable[[int], str],
    rows: Sequence[tuple[object, ...]],
) -> sqlite3.Cursor:
    """Execute a statement for these rows, whose number is padded to a power of two.

    The padding rows have no name, so they have no effect. With the padding, there are only a few
    distinct statements, and each of them stays prepared.
    """
    count = 1 << (len(rows) - 1).bit_length()
    values = [value for row in rows for value in row]
    values += [None] * ((count - len(rows)) * len(rows[0]))
    return writer.execute(statement(count), values)


def _values(count: int, width: int) -> str:
    """Return an unnamed table of ``count`` rows, with columns ``column1`` and so on."""
    marks = ", ".join([f"({', '.join('?' * width)})"] * count)
    return f"(VALUES {marks})"


@functools.cache
def _insertion(count: int) -> str:
    return f"{sql.INSERT_INTO} SELECT * FROM {_values(count, len(COLUMNS))} WHERE column1 NOT NULL"


@functools.cache
def _input_insertion(count: int) -> str:
    return f"INSERT INTO inputs SELECT * FROM {_values(count, 2)} WHERE column1 NOT NULL"


@functools.cache
def _input_removal(count: int) -> str:
    return f"DELETE FROM inputs WHERE name IN {_values(count, 1)}"


@functools.lru_cache(maxsize=128)
def _replacement(columns: tuple[str, ...], count: int) -> str:
    width = 1 + len(columns) + len(STAMP_COLUMNS)
    assignments = ", ".join(f"{name} = v.column{n}" for n, name in enumerate(columns, 2))
    expected = " AND ".join(
        f"operations.{name} IS v.column{n}"
        for n, name in enumerate(STAMP_COLUMNS, 2 + len(columns))
    )
    return (
        f"UPDATE operations SET {assignments} FROM {_values(count, width)} AS v"
        f" WHERE name = v.column1 AND {expected} RETURNING name"
    )
