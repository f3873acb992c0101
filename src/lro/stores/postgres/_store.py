"""The store in one schema of a PostgreSQL database."""

from __future__ import annotations

import contextlib
import json
import secrets
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from datetime import datetime
from typing import Any, Final

import attrs
import psycopg

from lro._base.arguments import check_count, check_function, check_seconds, check_text
from lro._base.errors import Unavailable
from lro._base.status import AnyMessage
from lro._engine.process import PerProcess
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
from lro._messages.json_text import dumps
from lro._model.operation import Change, Record
from lro._model.page_tokens import Cursor
from lro.stores._counting import load_of, oldest_minute, steps_of
from lro.stores._list_queries import ListQuery, StatementTooSlow, retry_smaller
from lro.stores._rows import REQUEST_LIFE, from_row, micros, refuse_untextual
from lro.stores._sql_store import Rows, SQLStore
from lro.stores._workers import FORGOTTEN, renewed_of, unknown_worker
from lro.stores._workers import to_row as worker_row
from lro.stores.postgres import _statements as statements
from lro.stores.postgres._claims import WorkClaims
from lro.stores.postgres._connections import (
    INHERITED,
    ConnectionPool,
    ServerAddress,
    ServerClock,
    unavailable,
)
from lro.stores.postgres._notifications import Announcer, NotifySubscription
from lro.stores.postgres._pages import DIALECT, query
from lro.stores.postgres._records import RecordTable
from lro.stores.postgres._schema import (
    SchemaSetup,
    channel_of,
    check_name,
    read_version,
    schema_sql,
)
from lro.stores.postgres._statements import NOTIFY, id_of, ids_of
from lro.stores.postgres._within import TransactionInserts


class ProcessResources:
    """Connections and threads of a process; each is opened or started when first needed."""

    def __init__(
        self, address: ServerAddress, clock: ServerClock, size: int, setup: SchemaSetup
    ) -> None:
        self._sender = secrets.token_hex(4)
        self._channel = channel_of(address.schema)
        self._lock = threading.Lock()
        self._subscriptions: weakref.WeakSet[NotifySubscription] = weakref.WeakSet()
        self.closed = False
        self.connections = ConnectionPool(address, clock, size, setup, setup.forget)
        self.records = RecordTable(self.connections)
        self.claims = WorkClaims(self.connections, self.records.cache)
        self.within = TransactionInserts(self.connections)
        self.announcer = Announcer(self._notify, self._sender)

    def listen(self) -> NotifySubscription:
        """Make a subscription on a separate connection.

        Raises:
            Unavailable: The store is closed or the database cannot be reached.
        """
        subscription = NotifySubscription(self.connections.connect(), self._channel, self._sender)
        with self._lock:
            self._subscriptions.add(subscription)
        if self.closed:
            subscription.close()
            raise Unavailable("the store is closed")
        return subscription

    def close(self) -> None:
        """Send pending announcements, and close every connection."""
        self.closed = True
        self.announcer.stop()
        self.records.close()
        self.connections.close()
        with self._lock:
            subscriptions = list(self._subscriptions)
        for subscription in subscriptions:
            subscription.close()

    def _notify(self, payloads: Sequence[str]) -> None:
        self.connections.rows(NOTIFY, (self._channel, dumps(list(payloads)).decode()))


_SLICE: Final = 100
"""The most records that one statement of a sweep removes."""

_DAY: Final = 86_400.0

_LOCK_MS: Final = 50
"""Milliseconds to wait for a locked row of a worker."""


@contextlib.contextmanager
def _translate_timeout() -> Iterator[None]:
    """Raise :class:`StatementTooSlow` if the time limit cancels a statement of the block."""
    try:
        yield
    except Unavailable as exc:
        if isinstance(exc.__cause__, psycopg.errors.QueryCanceled):
            raise StatementTooSlow(exc) from exc
        raise


class PostgresStore(SQLStore, PerProcess):
    """Store in a schema of a PostgreSQL database (13 or later); it makes a missing schema.

    The store connects when it is first used. Then it makes the schema, its tables, and the indexes
    that methods have declared, if they are missing. So a module that creates a store can be
    imported without a database. Until all this has succeeded, calls raise Unavailable; the cause of
    the error says why.

    Processes on many machines can share a store; its clock is the server's. Before a call returns,
    its writes are committed to the server's disk. Concurrent writes are committed in groups. The
    store reconnects by itself. While the server is down, calls fail with UNAVAILABLE, at once if
    the process already knows. The store survives a fork.

    Args:
        url: A connection string of libpq: ``postgresql://user@host/database``, or keywords. Missing
            parts come from the environment (``PGPASSWORD``, ...). A pooler must give each
            connection a session of its own.
        password: A function without arguments that returns the password as text, for passwords that
            expire. It is called for each new connection, by any thread and by several at once, but
            never on an event loop. If it fails, the call that needs the connection raises
            Unavailable, and the next call tries the function again.
        schema: The schema's name. Stores on different schemas share nothing.
        connections: The most connections of a process; each subscription adds a connection.
        connect_seconds: How long a call waits for a free connection or for a new connection.
        statement_seconds: How long the server may take for one statement.
        clock: For tests: returns the time in UTC, in place of the server's clock.

    Raises:
        DeclarationError: The URL or the schema's name is not valid; the URL has a password and
            ``password`` is given; or another argument is of a wrong type or out of its bounds.
    """

    _BY_NAME = statements.BY_NAME
    _JSON_ITEMS = statements.JSON_ITEMS
    reads_block = True
    writes_block = True
    shared = True

    def __init__(
        self,
        url: str,
        *,
        password: Callable[[], str] | None = None,
        schema: str = "lro",
        connections: int = 10,
        connect_seconds: float = 5.0,
        statement_seconds: float = 5.0,
        clock: Callable[[], datetime] | None = None,
    ) -> None:
        check_text("url", url)
        check_name(schema)
        check_count("connections", connections)
        check_seconds("connect_seconds", connect_seconds, most=_DAY)
        check_seconds("statement_seconds", statement_seconds, most=_DAY)
        if clock is not None:
            check_function("clock", clock)
        self._address = ServerAddress(
            url=url,
            password=password,
            schema=schema,
            connect_seconds=connect_seconds,
            statement_seconds=statement_seconds,
        )
        self._server = ServerClock()
        self._clock = clock or self._server_now
        self._size = connections
        self._setup = SchemaSetup(self._address, self._server)
        self._resources = self._new_resources()
        self._polled: tuple[Collection[str], list[str], str] = (), [], ""
        """The names polled last: the collection, the names in order, and their hashes."""

    def _after_fork(self) -> None:
        INHERITED.append(self._resources)
        self._setup.reset_after_fork()
        self._resources = self._new_resources()

    def _new_resources(self) -> ProcessResources:
        return ProcessResources(self._address, self._server, self._size, self._setup)

    def notify_others(self, name: str) -> None:
        """Notify the other processes soon: several names share one NOTIFY."""
        self._resources.announcer.announce(name)

    def listen(self) -> NotifySubscription:
        """Subscribe to changes on a separate connection; if that connection is lost, call again."""
        return self._resources.listen()

    def poll_states(self, names: Collection[str]) -> StateSummary:
        """Read which of these operations have ended, and which have a cancel request."""
        if not names:
            return StateSummary(frozenset(), frozenset())
        seen, asked, ids = self._polled
        if names is not seen or not isinstance(names, frozenset):
            asked = list(names)
            ids = ids_of(asked)
            self._polled = names, asked, ids  # most polls read the same names again
        rows = self._rows(statements.POLL_STATES, micros(self._clock()), ids)
        return StateSummary(
            finished=frozenset(asked[place - 1] for place, waited_for, _ in rows if not waited_for),
            cancel_requested=frozenset(asked[place - 1] for place, _, cancel in rows if cancel),
        )

    def _server_now(self) -> datetime:
        if not self._setup.done:
            self._resources.connections.make_ready()
        return self._server.now()

    def secret(self) -> bytes:
        """Return the key of page tokens, stored in the database."""
        if self._setup.secret is None:
            self._resources.connections.make_ready()
        # The call of _setup either set the secret or raised an error.
        assert self._setup.secret is not None
        return self._setup.secret

    def insert(
        self,
        record: Record,
        request: AnyMessage,
        key: RequestKey | None,
        *,
        check_only: bool = False,
    ) -> Inserted:
        """Add a record and its request, or find the record that the same request added before.

        Raises:
            InvalidArgument: As :meth:`Store.insert` says.
        """
        if not check_only:
            return self._resources.records.insert(record, request, key)
        refuse_untextual(record, key)
        return self._resources.records.find_obstacle(record, key) or Inserted(record, fresh=True)

    def insert_later(
        self, record: Record, request: AnyMessage, key: RequestKey | None, done: Done[Inserted]
    ) -> None:
        """Queue a record and its request for the next group of writes."""
        self._resources.records.insert_later(record, request, key, done)

    def insert_within(
        self,
        connection: DatabaseConnection,
        record: Record,
        request: AnyMessage,
        key: RequestKey | None,
        *,
        check_only: bool = False,
    ) -> Inserted:
        """Add a record and its request in the application's transaction on the same database.

        Raises:
            InvalidArgument: As :meth:`TransactionalStore.insert_within` says.
        """
        inserts = self._resources.within
        return inserts.insert(connection, record, request, key, check_only=check_only)

    def get(self, name: str) -> Record:
        """Read the record of this name."""
        return self._resources.records.get(name)

    def find(self, names: Collection[str], max_bytes: int = READ_BYTES) -> Found:
        """Read the existing records of these names."""
        return self._resources.records.find(names, max_bytes)

    def update(self, name: str, change: Change) -> Record | None:
        """Replace or remove a record, all or nothing."""
        return self._resources.records.update(name, change)

    def update_later(self, name: str, change: Change, done: Done[Record | None]) -> None:
        """Queue a change or removal for the next group of writes."""
        self._resources.records.update_later(name, change, done)

    def checkpoint(self, name: str, attempt: int, key: str, value: AnyMessage) -> None:
        """Store a checkpoint of the current attempt."""
        self._resources.records.checkpoint(name, attempt, key, value)

    def checkpoint_later(
        self, name: str, attempt: int, key: str, value: AnyMessage, done: Done[None]
    ) -> None:
        """Queue a checkpoint for the next group of checkpoints."""
        self._resources.records.checkpoint_later(name, attempt, key, value, done)

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
        walk = ListQuery.of(prefilter, after, self._setup.keys, DIALECT)
        if walk.nothing:
            return Page((), None)
        now, prepare = micros(self._clock()), prefilter == EVERYTHING

        def find(scan: int) -> Page:
            text, values = query(walk, parent, limit=limit, scan=scan, now=now, max_bytes=max_bytes)
            with _translate_timeout():
                rows = self._resources.connections.rows(text, values, prepare=prepare)
            found = [from_row(row[2:]) for row in rows if row[1] is not None]
            total = rows[0][1] or 0
            return walk.page(found, rows[0][0], cut=total == limit or total > len(found))

        return retry_smaller(find, scan)

    def index(self, keys: Collection[str]) -> None:
        """Let a thread make the missing indexes by these keys; writes continue meanwhile.

        The thread makes the indexes after the store's first use. Making an index may have to wait
        for the oldest transaction of the database.
        """
        self._setup.want(keys)

    def claim(self, claim: Claim) -> Claimed:
        """Begin a new attempt at waiting operations, in the order of :meth:`Store.claim`."""
        return self._resources.claims.make(claim, micros(self._clock()))

    def renew(self, worker: Worker) -> Renewed | None:
        """Record that a worker is alive; return None if it counts as lost."""
        now = micros(self._clock())
        last = micros(self._clock() - FORGOTTEN), worker.owner, now, worker.owner, now
        rows = self._rows_soon(statements.RENEW, *worker_row(worker), *last)
        if not rows[0][0]:
            return None
        return renewed_of(row[1:] for row in rows if row[1] is not None)

    def leave(self, owner: str) -> None:
        """Forget a worker."""
        self._rows_soon(statements.LEAVE, owner)

    def orphans(self, methods: Collection[str], limit: int) -> Orphans:
        """Read records in progress whose worker is lost."""
        _, found = self._orphans(self._clock(), methods, limit)
        if not found.overdue:
            return found
        owners = dumps(list(found.overdue)).decode()
        free = {owner for (owner,) in self._rows(statements.TOUCH, owners)}
        overdue = {o: at for o, at in found.overdue.items() if at is None or o in free}
        return attrs.evolve(found, overdue=overdue)

    def lose(self, owner: str, alive_until: datetime | None) -> bool:
        """Mark a worker as lost, unless it has renewed since."""
        if alive_until is not None:
            return bool(self._rows_soon(statements.LOSE, owner, micros(alive_until)))
        unknown = attrs.evolve(unknown_worker(owner, self._clock()), lost=True)
        return bool(self._rows_soon(statements.LOSE_UNKNOWN, *worker_row(unknown), owner))

    def _rows_soon(self, sql: bytes, *values: object) -> list[tuple[Any, ...]]:
        """Run a statement that waits only briefly for locked rows."""
        return self._resources.connections.rows(sql, values, lock_ms=_LOCK_MS)

    def expire(self, limit: int) -> Expired:
        """Remove records past their expiry, and old request keys."""
        now = self._clock()
        due = micros(now), micros(now - REQUEST_LIFE)
        names: list[str] = []
        methods: Counter[str] = Counter()
        step, left = _SLICE, limit

        def remove(size: int) -> int:
            with _translate_timeout():
                some = self._rows(statements.EXPIRE, due[0], size)
                names.extend(name for name, _ in some)
                methods.update(method for _, method in some)
                spent = self._rows(statements.EXPIRE_STARTS, due[1], size)
            return 0 if max(len(some), len(spent)) < size else size

        while step and left > 0:
            step = retry_smaller(remove, min(step, left))
            left -= step
        for name in names:
            self._resources.records.cache.forget(name)
        self._rows(statements.FORGET_BEGINS, due[0])
        more = bool(step) and self._rows(statements.LEFT, *due)[0][0]
        return Expired(names, methods, more)

    def add_counts(self, minute: datetime, counts: Counts) -> None:
        """Add counts to the stored counts of a minute."""
        values = json.dumps(counts), json.dumps(steps_of(minute))
        self._rows(statements.PRUNE, oldest_minute(self._clock()))
        self._resources.connections.rows(statements.ADD_COUNTS, values, once=True)

    def read_load(self, parents: Collection[str], limit: int) -> Load:
        """Read the work in progress under these parents, the oldest first."""
        ids, most = ids_of([*dict.fromkeys(parents)]), limit + 1
        return load_of(self._rows(statements.LOAD, limit, limit, ids, most, most))

    def claim_due(self, until: datetime, limit: int) -> list[Record]:
        """Claim records whose notifications are due; set their next due time to ``until``."""
        values = micros(self._clock()), limit, micros(until)
        return [from_row(row) for row in self._rows(statements.CLAIM_DUE, *values)]

    def close(self) -> None:
        """Send pending announcements, and close every connection and subscription."""
        self._setup.close()
        self._resources.close()

    def reopen(self, database: str | None = None) -> None:
        """Connect again at the next call, after :meth:`close`.

        With a ``database``, the closed store connects to the database of this name on its server.
        """
        if not self._resources.closed:
            return
        if database is None:
            self._setup.reset_after_fork()
        else:
            keys = self._setup.declared
            self._address = self._address.with_database(database)
            self._setup = SchemaSetup(self._address, self._server)
            self._setup.want(keys)
        self._resources = self._new_resources()

    @property
    def database(self) -> str:
        """The name of the database in the store's URL; empty if the URL has none."""
        return self._address.database

    @property
    def schema(self) -> str:
        """The schema's name."""
        return self._address.schema

    def schema_version(self) -> int:
        """Return the version of the existing schema, 0 if there is none; change nothing.

        Raises:
            Unavailable: The database cannot be reached, or the tables are not of this library.
        """
        try:
            with self._address.connect(self._server) as connection:
                return read_version(connection)
        except psycopg.Error as exc:
            raise unavailable(exc) from exc

    def create_schema(self) -> None:
        """Make the missing parts of the schema, and wait for the declared indexes.

        Raises:
            Unavailable: The database cannot be reached or cannot do it now, or lets only the owner
                of the tables make an index.
        """
        self._resources.connections.make_ready()
        try:
            self._setup.finish()
        except psycopg.Error as exc:
            raise unavailable(exc) from exc

    def schema_sql(self) -> str:
        """Return the SQL that makes the schema, its tables, and the indexes declared so far.

        Use it if only the database's owner may make schemas. The application's role then needs
        USAGE of the schema, and SELECT, INSERT, UPDATE and DELETE on its tables.
        """
        return schema_sql(self._address.schema, self._setup.declared)

    def _read(self, query: str, *values: object) -> Rows:
        return self._rows(statements.translated(query), *values)

    def _write(self, statement: str, *values: object) -> Rows:
        return self._read(statement, *values)

    def _key(self, name: str) -> str:
        return id_of(name)

    def _rows(self, sql: bytes, *values: object) -> list[tuple[Any, ...]]:
        return self._resources.connections.rows(sql, values)
