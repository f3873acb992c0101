"""Inserts and updates of records: one by one, or many in few statements.

Each statement releases the GIL, and must wait to get it back. If an event loop is busy, that
wait takes longer than the statement. So the similar writes of a group are made together.
"""

from __future__ import annotations

import bisect
import functools
import itertools
import sqlite3
import typing
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias, TypeVar

from lro._base.errors import OperationNotFound, TargetBusy
from lro._base.status import AnyMessage
from lro._engine.store_port import Inserted, RequestKey
from lro._model.operation import Change, Record, check_reporting
from lro.stores._rows import (
    STAMP_COLUMNS,
    RecordCache,
    changes,
    filled,
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
from lro.stores.sqlite._group_commit import ActionWrite, HalfDone, Outdated, Unrelated

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
    if name in cache:
        # Two columns show whether anything has changed; reading all takes 10 times longer.
        stamps = rows(sql.STAMP, (name,))
        current = cache.current(name, stamps[0]) if stamps else None
        if current is not None:
            return current, None
    found = rows(sql.GET, (name,))
    if not found:
        raise OperationNotFound(name)
    return from_row(found[0]), found[0]


class InsertRecord(ActionWrite[Inserted]):
    """Add a record and its request, or find the record that the same request added earlier.

    Raises:
        InvalidArgument: A text cannot be stored.
    """

    def __init__(
        self, cache: RecordCache, record: Record, request: AnyMessage, key: RequestKey | None
    ) -> None:
        refuse_untextual(record, key)
        self.record = record
        self.columns, self.values = filled(record)
        self.request = pack(request)
        self.plain = key is None and not record.target
        """True if no request key and no target must be checked before the insert."""
        self._cache = cache
        self._key = key
        self._start = None if key is None else sql.start_row(key, record, to_row(record))

    def apply(self, writer: sql.Executes) -> Inserted:
        """Insert the record.

        Raises:
            RequestIdConflict, TargetBusy, InvalidArgument: The insert is refused.
        """
        if not self.plain:
            found = checked(sql.rows_of(writer), self.record, self._key)
            if not found.fresh:
                return found
        try:
            writer.execute(sql.insert_of(self.columns), tuple(self.values))
        except sqlite3.IntegrityError as exc:
            raise taken(self.record.name) from exc
        writer.execute(sql.INSERT_INPUT, (self.record.name, self.request))
        if self._start is not None:
            sql.remember_start(writer, self._start)
        return Inserted(self.record, fresh=True)

    def committed(self, answer: Inserted) -> Inserted:
        """Cache the record after the commit."""
        if answer.fresh:
            self._cache.keep(self.record, _length(self.columns, self.values, 0))
        return answer


class UpdateRecord(ActionWrite[Record | None]):
    """Replace or remove a record, all or nothing."""

    def __init__(self, cache: RecordCache, name: str, change: Change) -> None:
        self.name = name
        self.change = change
        self._cache = cache

    def apply(self, writer: sqlite3.Connection) -> Changed:
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

    def committed(self, answer: Changed) -> Record | None:
        """Update the cache after the commit."""
        changed, length = answer
        if changed is None:
            self._cache.forget(self.name)
        elif length is not None:
            self._cache.keep(changed, length)
        return changed


class KeepCheckpoint(ActionWrite[None]):
    """Store a checkpoint of an operation's current attempt."""

    def __init__(
        self, cache: RecordCache, name: str, attempt: int, key: str, value: AnyMessage
    ) -> None:
        self._cache = cache
        self._row = key, pack(value), name, attempt

    def apply(self, writer: sqlite3.Connection) -> None:
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


def _length(columns: Sequence[str], values: Sequence[Any], before: int) -> int:
    """Return the text length of a record's messages, from its changed columns."""
    if "metadata" in columns:
        before = len(values[columns.index("metadata")] or "")
    if "result" in columns:
        before += len(values[columns.index("result")] or "")
    return before


# -- many together --------------------------------------------------------------------------------

_MOST: Final = 64
"""The most records that one statement writes."""

UPDATE_FROM: Final = sqlite3.sqlite_version_info >= (3, 33)
"""True if one statement of SQLite can update several records."""


class TogetherWriter:
    """Writes a group's plain inserts and updates with multi-row statements."""

    def __init__(self, cache: RecordCache) -> None:
        self._cache = cache

    def __call__(self, writer: sqlite3.Connection, group: Sequence[object]) -> Mapping[int, Any]:
        """Return the results of the writes that were made, by their indexes in the group.

        The writes without a result have changed nothing.

        Raises:
            HalfDone: A failed write has left changes, or has undone the whole transaction.
            Outdated: Another process has changed a cached record.
        """
        answers: dict[int, Any] = {}
        inserts: dict[tuple[str, ...], list[InsertRecord]] = defaultdict(list)
        updates: dict[tuple[str, ...], list[_Update]] = defaultdict(list)
        seen: set[str] = set()
        for place, write in enumerate(group):
            if isinstance(write, InsertRecord):
                if write.plain:
                    inserts[write.columns].append(write)
                    answers[place] = Inserted(write.record, fresh=True)
            elif isinstance(write, UpdateRecord) and UPDATE_FROM and write.name not in seen:
                seen.add(write.name)  # later updates of the record follow, one by one
                columns, update = self._update(write)
                if update is not None:
                    updates[columns].append(update)
                    answers[place] = update.changed, update.length
        try:
            for columns, some in inserts.items():
                for chunk in _chunks(some):
                    _insert(writer, columns, chunk)
            for columns, more in updates.items():
                for part in _chunks(more):
                    if not _update(writer, columns, part):
                        self._forget_outdated(writer, part)
                        raise Outdated
        except DATABASE_ERRORS as exc:  # the write at fault fails again when made alone
            raise HalfDone from exc
        return answers

    def _update(self, write: UpdateRecord) -> tuple[tuple[str, ...], _Update | None]:
        """Return the columns that an update changes, and None if it cannot be made with others."""
        record, changed = self._cache.changed(write.name, write.change) or (None, None)
        if record is None or changed is None:
            return (), None
        try:
            columns, values = changes(record, changed)
        # A message raised the error, and raises it again when its write is made alone.
        except Exception:
            return (), None
        if not columns:
            return (), None
        length = _length(columns, values, self._cache.text_length(write.name))
        return columns, _Update(changed, length, (record.name, *values, *stamp_of(record)))

    def _forget_outdated(self, writer: sqlite3.Connection, updates: Sequence[_Update]) -> None:
        names = sql.listed([one.changed.name for one in updates])[0]
        stored = {name: tuple(stamp) for name, *stamp in writer.execute(sql.STAMPS, (names,))}
        for one in updates:
            if stored.get(one.changed.name) != stamp_of(one.changed):
                self._cache.forget(one.changed.name)


class _Update(typing.NamedTuple):
    changed: Record
    length: int
    row: tuple[object, ...]
    """The record's name, the new values of the changed columns, and the stamp before the change."""


def _insert(
    writer: sqlite3.Connection, columns: tuple[str, ...], writes: Sequence[InsertRecord]
) -> None:
    """Insert records that have values in the same columns."""
    statement = functools.partial(sql.insert_of, columns)
    _execute(writer, statement, [write.values for write in writes])
    inputs = [(write.record.name, write.request) for write in writes]
    _execute(writer, _input_insertion, inputs)


def _update(
    writer: sqlite3.Connection, columns: tuple[str, ...], updates: Sequence[_Update]
) -> bool:
    """Update records, all in the same columns; return False if any has another stamp by now."""
    statement = functools.partial(_replacement, columns)
    if _execute(writer, statement, [one.row for one in updates]).rowcount < len(updates):
        return False
    over = [one.row[:1] for one in updates if not one.changed.keeps_request]
    if over:
        _execute(writer, _input_removal, over)
    return True


def _chunks(items: Sequence[T]) -> Iterator[Sequence[T]]:
    for first in range(0, len(items), _MOST):
        yield items[first : first + _MOST]


_COUNTS: Final = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, _MOST)
"""The numbers of rows for which there are statements; each of these few stays prepared."""


def _execute(
    writer: sqlite3.Connection, statement: Callable[[int], str], rows: Sequence[Sequence[object]]
) -> sqlite3.Cursor:
    """Execute a statement on :func:`some_of` these rows and, to have one of ``_COUNTS``, zeros."""
    count = _COUNTS[bisect.bisect_left(_COUNTS, len(rows))]
    values = list(itertools.chain.from_iterable(rows))
    # The driver takes ten times as long to bind None, which it offers to adapters, as zero.
    values += [0] * ((count - len(rows)) * len(rows[0]))
    values.append(len(rows))
    return writer.execute(statement(count), values)


@functools.cache
def _input_insertion(count: int) -> str:
    return f"INSERT {sql.OR_FAIL}INTO lro_inputs SELECT * FROM {sql.some_of(count, 2)}"


@functools.cache
def _input_removal(count: int) -> str:
    return f"DELETE FROM lro_inputs WHERE name IN {sql.some_of(count, 1)}"


@functools.lru_cache(maxsize=128)
def _replacement(columns: tuple[str, ...], count: int) -> str:
    width = 1 + len(columns) + len(STAMP_COLUMNS)
    assignments = ", ".join(f"{name} = v.column{n}" for n, name in enumerate(columns, 2))
    expected = " AND ".join(
        f"lro_operations.{name} IS v.column{n}"
        for n, name in enumerate(STAMP_COLUMNS, 2 + len(columns))
    )
    return (
        f"UPDATE {sql.OR_FAIL}lro_operations SET {assignments}"
        f" FROM {sql.some_of(count, width)} AS v WHERE name = v.column1 AND {expected}"
    )
