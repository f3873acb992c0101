"""The store on one SQLite file."""

from __future__ import annotations

import functools
import secrets
from collections import Counter
from collections.abc import Callable, Collection
from datetime import UTC, datetime, timedelta
from os import PathLike, fsdecode
from typing import Final

import attrs

from lro._base.arguments import check, check_function, check_seconds
from lro._base.errors import Unavailable
from lro._base.status import AnyMessage
from lro._engine.store_port import (
    READ_BYTES,
    SCAN,
    Claim,
    Claimed,
    Counts,
    DatabaseConnection,
    Done,
    Expired,
    Found,
    Inserted,
    Load,
    Orphans,
    Page,
    Renewed,
    RequestKey,
    StateSummary,
    Worker,
)
from lro._filters.prefilter import EVERYTHING, Test
from lro._model.operation import Change, Record
from lro._model.page_tokens import KEY_BYTES, Cursor
from lro.stores._counting import LoadRow, load_of, oldest_minute
from lro.stores._list_queries import ListQuery, retry_smaller
from lro.stores._rows import (
    REQUEST_LIFE,
    RecordCache,
    from_row,
    micros,
    moment,
    refuse_untextual,
    text_length,
    unpack,
)
from lro.stores._sql_store import Rows, SQLStore
from lro.stores._workers import orphans_of
from lro.stores.sqlite import _pages as pages
from lro.stores.sqlite import _statements as sql
from lro.stores.sqlite._connections import CounterSubscription, FileConnections
from lro.stores.sqlite._file import is_lost_index
from lro.stores.sqlite._locks import WorkerLocks
from lro.stores.sqlite._record_writes import (
    InsertRecord,
    KeepCheckpoint,
    TogetherWriter,
    UpdateRecord,
    checked,
    known,
)

_DAY: Final = 86_400.0
_LOOK_SECONDS: Final = 1.0
_DEATH_LOOK: Final = timedelta(seconds=1)
"""Time between two checks of whether the processes of other workers have ended."""
_DEATH_LOOK_ALONE: Final = timedelta(seconds=5)
"""Time between two such checks while no other worker has work."""
_SLICE: Final = 10
"""The most records that one transaction of a sweep removes, so that writers wait only briefly."""


class SQLiteStore(SQLStore):
    """Store in a SQLite file, which it creates with its tables if missing.

    Any number of processes on one machine may use a file. Every write is committed to disk
    (``synchronous=FULL``) before the call returns; concurrent writes share a commit. Readers never
    wait for the writer. A call waits up to ``busy_seconds`` for locks of other connections, then
    fails with UNAVAILABLE. ``clock`` returns the time in UTC.

    Raises:
        Unavailable: The file cannot be opened; the error has its path.
        DeclarationError: The file has another schema version, or is not of this library;
            ``path`` is a URL; or an argument is of a wrong type or out of its bounds.
    """

    _BY_NAME = "name = ?"
    _JSON_ITEMS = "SELECT value FROM json_each(?)"
    reads_block = False
    writes_block = True
    shared = True
    look_seconds: float = 0.01
    """Seconds between two checks by a subscription for commits of other processes."""

    def __init__(
        self,
        path: str | PathLike[str],
        *,
        clock: Callable[[], datetime] | None = None,
        busy_seconds: float = 5.0,
    ) -> None:
        named = isinstance(path, (str, PathLike)) and "\0" not in fsdecode(path)
        check("path", path, "the path of a file", fine=named)
        check_seconds("busy_seconds", busy_seconds, zero=True, most=_DAY)
        if clock is not None:
            check_function("clock", clock)
        self._clock = clock or _utc_now
        self._busy_seconds = busy_seconds
        self._keys: frozenset[str] = frozenset()
        self._open(fsdecode(path))

    def _open(self, path: str) -> None:
        self._cache = RecordCache()
        self._unchanged: tuple[object, frozenset[str]] = (None, frozenset())
        """A state of the file, and the names for which ``poll_states`` reported nothing then."""
        self._file = FileConnections(path, self._busy_seconds, TogetherWriter(self._cache))
        self._locks = WorkerLocks(self._file.path)
        try:
            self._secret = self._make_secret()
        except BaseException:
            self._file.close()
            raise

    @property
    def writes_wait(self) -> bool:
        """True while a group of writes is being committed."""
        return self._file.is_writing

    def notify_others(self, name: str) -> None:
        """Do nothing: other processes notice commits by the file's change counter."""

    def listen(self) -> CounterSubscription:
        """Subscribe to the commits of other processes."""
        return self._file.listen(self.look_seconds)

    def poll_states(self, names: Collection[str]) -> StateSummary:
        """Read which of these operations have ended, and which have a cancel request."""
        state, wanted = self._file.state(), frozenset(names)
        seen_at, plain = self._unchanged
        if state is None or state != seen_at:
            plain = frozenset()
        text, impossible = sql.listed(wanted - plain)
        rows = self._file.rows(sql.POLL_STATES, (text,))
        now = micros(self._clock())
        if rows or impossible:
            wanted = wanted.difference(impossible, (name for name, _, _, _ in rows))
        self._unchanged = state, wanted
        over = {name for name, found, expiry, _ in rows if sql.over(found, expiry, now)}
        asked = frozenset(name for name, found, _, mark in rows if sql.asked(found, mark))
        return StateSummary(finished=impossible.union(over), cancel_requested=asked)

    def secret(self) -> bytes:
        """Return the key of page tokens, stored in the file."""
        return self._secret

    def insert(
        self,
        record: Record,
        request: AnyMessage,
        key: RequestKey | None,
        *,
        check_only: bool = False,
    ) -> Inserted:
        """Add a record and its request, or find the record that the same request added before."""
        if check_only:
            refuse_untextual(record, key)
            return checked(self._file.rows, record, key)
        return self._file.make(InsertRecord(self._cache, record, request, key))

    def insert_later(
        self, record: Record, request: AnyMessage, key: RequestKey | None, done: Done[Inserted]
    ) -> None:
        """Queue a record and its request for the next group of writes."""
        self._file.make_later(InsertRecord(self._cache, record, request, key), done)

    def insert_within(
        self,
        connection: DatabaseConnection,
        record: Record,
        request: AnyMessage,
        key: RequestKey | None,
        *,
        check_only: bool = False,
    ) -> Inserted:
        """Add a record and its request in the application's transaction on the same file.

        Raises:
            InvalidArgument: As :meth:`TransactionalStore.insert_within` says.
        """
        insert = InsertRecord(self._cache, record, request, key)
        transaction = self._file.transaction_of(connection)
        with transaction.all_or_nothing(writes=not check_only):
            if check_only:
                return checked(sql.rows_of(transaction), record, key)
            return insert.apply(transaction)

    def get(self, name: str) -> Record:
        """Read the record of this name."""
        record, row = known(self._cache, self._file.rows, name)
        if row is None:
            return record
        return self._cache.keep(record, text_length(row), wanted=True)

    def find(self, names: Collection[str], max_bytes: int = READ_BYTES) -> Found:
        """Read the existing records of these names."""
        found: list[Record] = []
        left: list[str] = []
        for name, *stamp in self._file.rows(sql.STAMPS, (sql.listed(names)[0],)):
            current = self._cache.current(name, tuple(stamp))
            if current is None or (found and current.weight > max_bytes):
                left.append(name)
            else:
                max_bytes -= current.weight
                found.append(current)
        if not left or (found and max_bytes <= 0):
            return Found(found, left)
        read, more = self._file.records(sql.FIND, (sql.listed(left)[0],), max_bytes=max_bytes)
        for record in read:
            if found and record.weight > max_bytes:
                more = True
                break
            max_bytes -= record.weight
            found.append(self._cache.keep(record, record.weight, wanted=True))
        seen = {record.name for record in found}
        return Found(found, [name for name in left if name not in seen] if more else ())

    def update(self, name: str, change: Change) -> Record | None:
        """Replace or remove a record, all or nothing."""
        return self._file.make(UpdateRecord(self._cache, name, change))

    def update_later(self, name: str, change: Change, done: Done[Record | None]) -> None:
        """Queue a change or removal for the next group of writes."""
        self._file.make_later(UpdateRecord(self._cache, name, change), done)

    def checkpoint(self, name: str, attempt: int, key: str, value: AnyMessage) -> None:
        """Store a checkpoint of the current attempt with a group of writes."""
        self._file.make(KeepCheckpoint(self._cache, name, attempt, key, value))

    def checkpoint_later(
        self, name: str, attempt: int, key: str, value: AnyMessage, done: Done[None]
    ) -> None:
        """Queue a checkpoint for the next group of writes."""
        self._file.make_later(KeepCheckpoint(self._cache, name, attempt, key, value), done)

    def page(
        self,
        parent: str,
        after: Cursor | None,
        limit: int,
        prefilter: Test = EVERYTHING,
        scan: int = SCAN,
        max_bytes: int = READ_BYTES,
    ) -> Page:
        """Read up to ``limit`` visible records of one parent, newest first."""
        now = micros(self._clock())
        rows = functools.partial(self._file.rows, seconds=_LOOK_SECONDS)
        records = functools.partial(self._file.records, seconds=_LOOK_SECONDS)
        walk = ListQuery.of(prefilter, after, self._keys, pages.DIALECT)
        try:
            return retry_smaller(
                lambda scan: pages.find(rows, records, walk, parent, limit, scan, now, max_bytes),
                scan,
            )
        except Unavailable as exc:
            if not self._keys or not is_lost_index(exc):
                raise
        self._keys = frozenset()  # an index was dropped: lists use no indexes until a restart
        return self.page(parent, after, limit, prefilter, scan, max_bytes)

    def index(self, keys: Collection[str]) -> None:
        """Make missing indexes by these keys; no process can write meanwhile."""
        for key in sorted(set(keys) - self._keys):
            if not self._file.rows(sql.INDEXED, (pages.index_name(key),)):
                self._file.write(functools.partial(pages.make_index, key=key))
            self._keys |= {key}

    def claim(self, claim: Claim) -> Claimed:
        """Begin a new attempt at waiting operations, in the order of :meth:`Store.claim`."""
        now = micros(self._clock())
        choice = sql.choose(self._file.rows, claim, now)
        works: list[tuple[Record, AnyMessage]] = []
        if choice.names:  # without work, do not wait for the write lock
            choice, rows = self._file.write(functools.partial(sql.take, claim=claim, now=now))
            for *row, request in rows:
                record = self._cache.keep(from_row(row), text_length(row))
                works.append((record, unpack(request)))
        next_due = None if choice.next_due is None else moment(choice.next_due)
        return Claimed(works, choice.more, next_due)

    def renew(self, worker: Worker) -> Renewed | None:
        """Record that a worker is alive; do not wait for the disk. Return None if it is lost."""
        self._locks.hold(worker.owner)
        now = micros(self._clock())
        renew = functools.partial(sql.renew, worker=worker, now=now)
        renewed, forgotten = self._file.write_undurably(renew)
        for owner in forgotten:
            self._locks.remove(owner)
        return renewed

    def leave(self, owner: str) -> None:
        """Forget a worker."""
        self._file.write_undurably(functools.partial(sql.leave, owner=owner))
        self._locks.remove(owner)

    def workers(self) -> list[Worker]:
        """Read the workers, the oldest first."""
        found = super().workers()
        return [attrs.evolve(w, lost=w.lost or self._locks.is_dead(w.owner)) for w in found]

    def orphans(self, methods: Collection[str], limit: int) -> Orphans:
        """Read records in progress whose worker is lost; ended processes are known at once."""
        now = self._clock()
        holds, found = self._orphans(now, methods, limit, self._locks.is_dead)
        # Read again under the write lock: owners that waited for it have renewed by then.
        if found.overdue:
            holds = self._file.write_undurably(sql.touch)
            found = orphans_of(holds, found.records, found.dead, now, found.unbegun)
        alone = self._locks.are_all_held(owner for owner, *_ in holds if owner)
        look = now + (_DEATH_LOOK_ALONE if alone else _DEATH_LOOK)
        return attrs.evolve(found, next_look=min(look, found.next_look or look))

    def lose(self, owner: str, alive_until: datetime | None) -> bool:
        """Mark a worker as lost, unless it has renewed since."""
        until = None if alive_until is None else micros(alive_until)
        lose = functools.partial(sql.lose, owner=owner, alive_until=until, now=self._clock())
        is_lost = self._file.write_undurably(lose)
        if is_lost:
            self._locks.remove(owner)
        return is_lost

    def expire(self, limit: int) -> Expired:
        """Remove records past their expiry, and old request keys, a few in each transaction."""
        now = self._clock()
        due, old = micros(now), micros(now - REQUEST_LIFE)
        names: list[str] = []
        methods: Counter[str] = Counter()
        for left in range(limit, 0, -_SLICE):
            if not self._overdue(due, old):  # with nothing to write, do not wait for the write lock
                return Expired(names, methods, more=False)
            sweep = functools.partial(sql.sweep, due=due, old=old, limit=min(left, _SLICE))
            removed = self._file.write_undurably(sweep)
            names += [name for name, _ in removed]
            methods.update(method for _, method in removed)
        return Expired(names, methods, more=self._overdue(due, old))

    def add_counts(self, minute: datetime, counts: Counts) -> None:
        """Add counts to the stored counts of a minute."""
        oldest = oldest_minute(self._clock())
        self._file.write(lambda writer: sql.add_counts(writer, minute, counts, oldest))

    def read_load(self, parents: Collection[str], limit: int) -> Load:
        """Read the work in progress under these parents, the oldest first."""
        rows: list[LoadRow] = []
        left = limit
        for parent in dict.fromkeys(parents):
            some = self._file.rows(sql.LOAD, (left, left, parent, left + 1))
            rows += some
            if any(beyond for _, _, _, _, beyond, _, _ in some):
                break
            left -= sum(count for _, _, _, count, _, _, _ in some)
        return load_of(rows)

    def claim_due(self, until: datetime, limit: int) -> list[Record]:
        """Claim records whose notifications are due; set their next due time to ``until``.

        This does not wait for the disk. Claims that are lost in a power failure are repeated.
        """
        now = micros(self._clock())
        # With nothing to write, do not wait for the write lock.
        if not self._file.rows(sql.ANY_DUE, (now,)):
            return []
        claim = functools.partial(sql.claim_due, now=now, until=micros(until), limit=limit)
        due = map(from_row, self._file.write_undurably(claim))
        return [record.next_version(notify_at=until) for record in due]

    def close(self) -> None:
        """Close every connection to the file."""
        self._file.close()
        self._locks.close()

    def reopen(self, path: str | PathLike[str] | None = None) -> None:
        """Open the file again after :meth:`close`; a missing file is made again.

        With a ``path``, the closed store opens that file instead, and stays there.

        Raises:
            Unavailable, DeclarationError: As for :class:`SQLiteStore`.
        """
        if self._file.is_closed:
            keys, self._keys = self._keys, frozenset()
            self._open(self._file.path if path is None else fsdecode(path))
            self.index(keys)

    @property
    def path(self) -> str:
        """The absolute path of the file."""
        return self._file.path

    def _read(self, query: str, *values: object) -> Rows:
        return self._file.rows(query, values)

    def _write(self, statement: str, *values: object) -> Rows:
        return self._file.write(lambda writer: writer.execute(statement, values).fetchall())

    def _key(self, name: str) -> str:
        return name

    def _make_secret(self) -> bytes:
        query = "SELECT key FROM lro_secrets"
        known = self._file.rows(query)
        if not known:
            fresh = secrets.token_bytes(KEY_BYTES)
            insert = "INSERT OR IGNORE INTO lro_secrets VALUES (1, ?)"
            self._file.write(lambda writer: writer.execute(insert, (fresh,)))
            known = self._file.rows(query)
        return bytes(known[0][0])

    def _overdue(self, due: int, old: int) -> bool:
        rows = self._file.rows
        queries = (sql.EXPIRED, (due, 1)), (sql.SPENT, (old, 1)), (sql.BEGINS_OVER, (due,))
        return any(rows(query, values) for query, values in queries)


def _utc_now() -> datetime:
    return datetime.now(UTC)
