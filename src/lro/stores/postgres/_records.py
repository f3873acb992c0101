"""Reads and writes of records in PostgreSQL; waiting writes share a transaction."""

from __future__ import annotations

import functools
import time
import typing
from collections.abc import Callable, Collection, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, TypeAlias

import psycopg
from psycopg import errors

from lro._base.errors import InvalidArgument, OperationNotFound, TargetBusy, Unavailable
from lro._base.status import AnyMessage
from lro._engine.store_port import Done, Found, Inserted, RequestKey
from lro._messages.json_text import reread
from lro._model.operation import Change, Record, check_reporting, weight_of
from lro.stores._group_commit import GroupCommit
from lro.stores._rows import (
    COLUMNS,
    RecordCache,
    from_row,
    micros,
    moment,
    repeats_start,
    stamp_of,
    taken,
    text_length,
    to_row,
)
from lro.stores.postgres._connections import (
    AGAIN,
    ATTEMPTS,
    ConnectionLost,
    ConnectionPool,
    unavailable,
)
from lro.stores.postgres._statements import (
    FIND,
    FIND_FIRST,
    GET,
    GET_IF_CHANGED,
    RecordWrite,
    WriteKind,
    checkpointing,
    id_of,
    ids_of,
    insertion,
    removal,
    replacement,
    sql_array,
    start_id,
    statement_of,
    target_id,
)

T = typing.TypeVar("T")

MAX_GROUP_WRITES: Final = 200

MAX_GROUP_BYTES: Final = 2_000_000
"""The most bytes of JSON that one group has; a record with more bytes is a group of its own."""

_CULPRIT: Final = (
    psycopg.DataError,
    psycopg.IntegrityError,
    errors.ProgramLimitExceeded,
    errors.LockNotAvailable,
)
"""Errors that a single record may cause for its group. Each record is then written separately."""


class GroupWriter(GroupCommit[RecordWrite]):
    """Writes records in groups, with one statement for each group.

    Removals and checkpoints need other statements, so each of these two kinds has its own writer.
    """

    def __init__(self, connections: ConnectionPool) -> None:
        super().__init__()
        self._connections = connections

    def write(self, write: RecordWrite) -> None:
        """Queue a write, and wait until it is committed or has failed.

        The write's error is InvalidArgument or Unavailable. After Unavailable, the record may or
        may not be written.
        """
        self._submit(write)

    def _lead(self, leader: RecordWrite) -> None:  # noqa: ARG002
        time.sleep(0)  # lets the threads that can run now add their writes to this group
        group = self._take()
        unknown = Unavailable("the write was interrupted; whether it was made is not known")
        for write in group:
            write.error = unknown
        self._made = True
        self._send(group)

    def _choose(self, waiting: list[RecordWrite]) -> tuple[list[RecordWrite], list[RecordWrite]]:
        group: list[RecordWrite] = []
        left: list[RecordWrite] = []
        touched: set[str] = set()
        room = MAX_GROUP_BYTES
        for write in waiting:
            full = len(group) == MAX_GROUP_WRITES or (group and len(write.text) > room)
            if full or not touched.isdisjoint(write.touches):
                left.append(write)
                continue
            group.append(write)
            touched.update(write.touches)
            room -= len(write.text)
        group.sort(key=lambda write: write.order)
        return group, left

    def _send(self, group: Sequence[RecordWrite]) -> None:
        sql, text = statement_of(group)
        cause: BaseException | None = None
        for _ in range(ATTEMPTS):
            try:
                with self._connections.borrow() as connection:
                    rows = connection.execute(sql, (text,)).fetchall()
            except AGAIN as exc:
                cause = exc
            except ConnectionLost as exc:
                cause = exc.__cause__
                for write in group:
                    write.doubtful = True
            except _CULPRIT as exc:
                self._blame(group, exc)
                return
            except psycopg.Error as exc:
                _fail(group, self._connections.refused(exc))
                return
            except Unavailable as exc:
                _fail(group, exc)
                return
            else:
                names = {name for (name,) in rows}
                for write in group:
                    write.applied, write.error = write.name in names, None
                return
        assert cause is not None
        _fail(group, unavailable(cause))

    def _blame(self, group: Sequence[RecordWrite], cause: psycopg.Error) -> None:
        if len(group) == 1:
            (culprit,) = group
            if isinstance(cause, errors.UniqueViolation):
                # No error: the write was not applied, because another process was first.
                culprit.error = None
            elif isinstance(cause, psycopg.OperationalError):
                culprit.error = unavailable(cause)
            else:
                kind = type(cause).__name__
                text = f"the record {culprit.name!r} cannot be kept by the database ({kind})"
                culprit.error = InvalidArgument("", text)
            return
        end = time.monotonic() + self._connections.address.statement_seconds
        for write in group:
            if time.monotonic() < end:
                self._send([write])
            else:
                _fail([write], unavailable(cause))


def _fail(group: Sequence[RecordWrite], error: Unavailable) -> None:
    for write in group:
        write.error = Unavailable(*error.args)
        write.error.__cause__ = error.__cause__


_VERSION: Final = COLUMNS.index("version")
_NO_STAMP: Final = None, None

_THREADS_ASIDE: Final = 4
"""Number of threads for handed-in writes that take more than one statement."""

_ENCODED_BYTES: Final = 64 * 1024
"""Size over which a handed-in change is encoded in another thread, off the event loop."""

_Steps: TypeAlias = Generator[RecordWrite | None, None, T]
"""Yields the next write to make, or None before a step that may block."""


def _made(write: RecordWrite) -> _Steps[bool]:
    """Make a write; return False if the stored state forbids it."""
    yield write
    if write.error is not None:
        raise write.error
    return write.applied


INSERT_ATTEMPTS: Final = 10
"""The most attempts to insert a record whose conflicting row vanishes before it is read."""


class RecordTable:
    """The records of the schema; ``cache`` has the records that this process has seen."""

    def __init__(self, connections: ConnectionPool) -> None:
        self.cache = RecordCache()
        self._connections = connections
        self._writer = GroupWriter(connections)
        self._remover = GroupWriter(connections)
        self._keeper = GroupWriter(connections)
        self._others = {WriteKind.REMOVE: self._remover, WriteKind.KEEP: self._keeper}
        self._aside = ThreadPoolExecutor(_THREADS_ASIDE, "lro-writes-aside")

    def close(self) -> None:
        """Let the threads end after the writes that were handed in."""
        self._writer.close()
        self._keeper.close()
        self._aside.shutdown(wait=False)

    def get(self, name: str) -> Record:
        """Read a record; the server does not send it if the cached record is current.

        Raises:
            OperationNotFound: There is no record of this name.
            Unavailable: The database cannot be used now.
        """
        known = self.cache.get(name)
        row: Any
        if known is None:
            row = self._stored(name)
        else:
            found = self._connections.rows(GET_IF_CHANGED, (*stamp_of(known), id_of(name)))
            if found and found[0][0] is None:
                return known
            row = reread(found[0][0]) if found else None
        if row is None:
            self.cache.forget(name)
            raise OperationNotFound(name)
        return self._read(row)

    def find(self, names: Collection[str], max_bytes: int) -> Found:
        """Read the existing records of these names; unchanged cached records are not sent.

        Raises:
            Unavailable: The database cannot be used now.
        """
        asked = list(dict.fromkeys(names))
        if not asked:
            return Found(())
        known = [self.cache.peek(name) for name in asked]
        stamps = zip(*[_NO_STAMP if one is None else stamp_of(one) for one in known], strict=True)
        found: list[Record] = []
        rest: list[str] = []
        values = max_bytes, ids_of(asked), *map(sql_array, stamps)
        for place, over, text in self._connections.rows(FIND, values):
            if over:
                rest.append(asked[place - 1])
                continue
            record = known[place - 1]
            if text is not None:
                row: Any = reread(text)
                record = self._read(row)
            assert record is not None  # only a cached record can be unchanged
            found.append(record)
        return Found(found, rest)

    def insert(self, record: Record, request: AnyMessage, key: RequestKey | None) -> Inserted:
        """Add a record, or find the record that the same request added before (spec §9).

        Raises:
            RequestIdConflict, TargetBusy: As :meth:`Store.insert` says.
            InvalidArgument: The record cannot be stored, or the name is taken.
            Unavailable: The database cannot be used now; the record may have been added.
        """
        return self._wait_for(self._insert(record, request, key))

    def insert_later(
        self, record: Record, request: AnyMessage, key: RequestKey | None, done: Done[Inserted]
    ) -> None:
        """Queue an insert; if it conflicts with a stored row, another thread handles that."""
        self._go_on(self._insert(record, request, key), done)

    def _insert(
        self, record: Record, request: AnyMessage, key: RequestKey | None
    ) -> _Steps[Inserted]:
        write = insertion(record, request, key)
        for _ in range(INSERT_ATTEMPTS):
            if (yield from _made(write)):
                self._keep(record)
                return Inserted(record, fresh=True)
            yield None
            found = self.find_obstacle(record, key, write)
            if found is not None:
                return found
            write = write.again()
        raise too_slow()

    def _wait_for(self, steps: _Steps[T]) -> T:
        """Take all steps in this thread, and return their result."""
        while True:
            try:
                write = next(steps)
            except StopIteration as over:
                answer: T = over.value
                return answer
            if write is not None:
                self._writer_of(write).write(write)

    def _go_on(self, steps: _Steps[T], done: Done[T], *, may_block: bool = False) -> None:
        """Take steps until a step must wait; after the last step, call ``done`` with the result.

        A step that may block is left to another thread. If no other thread can be used, this
        thread takes the step. There is no deadlock: such a step never waits for a group of writes
        that this thread may have to lead.
        """
        try:
            while (write := next(steps)) is None or write.kind is WriteKind.REMOVE:
                if write is not None:
                    self._remover.write(write)
                elif not may_block:
                    resume = functools.partial(self._resume, steps, done, may_block=True)
                    try:
                        self._aside.submit(resume)
                    except RuntimeError:  # the store is closed, or the process is ending
                        resume()
                    return
        except StopIteration as over:
            done(over.value, None)
            return
        write.on_over = functools.partial(self._resume, steps, done)
        self._writer_of(write).hand_in(write)

    def _resume(self, steps: _Steps[T], done: Done[T], *, may_block: bool = False) -> None:
        """Take further steps; pass any error to ``done``, because no caller would receive it."""
        try:
            self._go_on(steps, done, may_block=may_block)
        except BaseException as exc:
            done(None, exc)

    def _writer_of(self, write: RecordWrite) -> GroupWriter:
        return self._others.get(write.kind, self._writer)

    def find_obstacle(
        self, record: Record, key: RequestKey | None, write: RecordWrite | None = None
    ) -> Inserted | None:
        """Return the start that an insert repeats; None if the insert has no conflict.

        Raises:
            RequestIdConflict, TargetBusy, InvalidArgument: The stored rows forbid the insert.
        """
        doubtful = write is not None and write.doubtful
        return find_obstacle(self._connections.rows, FIND_FIRST, record, key, doubtful=doubtful)

    def update(self, name: str, change: Change) -> Record | None:
        """Replace or remove a record, all or nothing.

        The change is first applied to the cached record; the result is written only if the stored
        record is the same as the cached record. Otherwise, or if the change is refused, the stored
        record is read and changed.

        Raises:
            OperationNotFound: There is no record of this name.
            Unavailable: The database cannot be used now; the record may have been changed.
        """
        return self._wait_for(self._update(name, change))

    def update_later(self, name: str, change: Change, done: Done[Record | None]) -> None:
        """Queue a change; another thread takes over if more than one statement is needed."""
        self._go_on(self._update(name, change), done)

    def _update(self, name: str, change: Change) -> _Steps[Record | None]:
        tried = self.cache.changed(name, change)
        if tried is not None and _differs(tried[1], tried[0]):
            if tried[1] is None or tried[1].weight > _ENCODED_BYTES:
                yield None
            if (yield from self._write(*tried)):
                return tried[1]
        while True:
            yield None
            record = self.get(name)
            changed = change(record)
            if not _differs(changed, record) or (yield from self._write(record, changed)):
                return changed

    def checkpoint(self, name: str, attempt: int, key: str, value: AnyMessage) -> None:
        """Store a checkpoint of the current attempt.

        Raises:
            OperationNotFound, NotApplied, LeaseLost: The checkpoint is refused.
            Unavailable: The database cannot be used now; the checkpoint may have been stored.
        """
        self._wait_for(self._checkpoint(name, attempt, key, value))

    def checkpoint_later(
        self, name: str, attempt: int, key: str, value: AnyMessage, done: Done[None]
    ) -> None:
        """Queue a checkpoint; if it is refused, another thread reads the reason."""
        self._go_on(self._checkpoint(name, attempt, key, value), done)

    def _checkpoint(self, name: str, attempt: int, key: str, value: AnyMessage) -> _Steps[None]:
        write = checkpointing(name, attempt, key, value)
        while not (yield from _made(write)):
            yield None
            check_reporting(self.get(name), attempt)
            write = write.again()

    def _write(self, old: Record, new: Record | None) -> _Steps[bool]:
        """Write a change; return False if the stored record is not ``old`` any more."""
        if new is None:
            write = removal(old)
            written = yield from _made(write)
            # If the record is gone, it does not matter which process removed it.
            written = written or (write.doubtful and self._stored(old.name) is None)
            if written:
                self.cache.forget(old.name)
            return written
        write = replacement(old, new)
        written = yield from _made(write)
        if not written and write.doubtful:
            yield None
            written = self._was_written(old, new)
        if written:
            self._keep(new)
        return written

    def _was_written(self, old: Record, new: Record) -> bool:
        """Return True if a write whose reply was lost was committed."""
        stored = self._stored(old.name)
        if stored is None:
            raise OperationNotFound(old.name)
        if stored == to_row(new):
            return True
        if stored[_VERSION] > new.version:
            raise Unavailable("the record was changed twice; which change came first is not known")
        return False

    def _stored(self, name: str) -> Any:
        """Return the row of this name; None if there is no such row."""
        rows = self._connections.rows(GET, (id_of(name),))
        return rows[0] if rows else None

    def _read(self, row: Sequence[Any]) -> Record:
        return self.cache.keep(from_row(row), text_length(row), wanted=True)

    def _keep(self, record: Record) -> None:
        """Cache a record that has been written."""
        self.cache.keep(record, record.weight - weight_of(record.name, 0))


def find_obstacle(
    rows: Callable[[bytes, Sequence[object]], list[Any]],
    sql: bytes,
    record: Record,
    key: RequestKey | None,
    *,
    doubtful: bool = False,
) -> Inserted | None:
    """Return the start that an insert repeats; None if the insert has no conflict.

    ``sql`` is ``FIND_FIRST``, perhaps qualified by the schema. ``doubtful`` means that an earlier
    attempt at the insert may have been committed.

    Raises:
        RequestIdConflict, TargetBusy, InvalidArgument: The stored rows forbid the insert.
    """
    ids = id_of(record.name), target_id(record.target), key and start_id(key)
    ((state, busy, *first),) = rows(sql, ids)
    if doubtful and (state is not None or _is(first, record)):
        # The stored record is from the earlier attempt: no other insert has this name.
        return Inserted(record, fresh=True)
    if key is not None and first[0] is not None:
        began = _first_record(key, first, record)
        if began is not None:
            return Inserted(began, fresh=False)
    if busy:
        raise TargetBusy(record.target)
    if state is not None:
        raise taken(record.name)
    return None


def _differs(changed: Record | None, record: Record) -> bool:
    return changed is None or (changed is not record and changed != record)


def too_slow() -> Unavailable:
    """Return the error for an insert whose conflicting row had vanished whenever it was read."""
    return Unavailable("others start and end the same work faster than it can be read")


def _first_record(key: RequestKey, first: list[Any], new: Record) -> Record | None:
    _, fingerprint, at, stored, *row = first
    if not repeats_start(key, fingerprint, moment(at), new.create_time):
        return None
    if row[0] is not None:
        present = from_row(row)
        if present.visible(new.create_time):
            return present
    remembered: Any = reread(stored)
    return from_row(remembered)


def _is(first: list[Any], record: Record) -> bool:
    return (
        first[0] is not None
        and first[0].replace("-", "") == id_of(record.name)
        and first[2] == micros(record.create_time)
    )
