"""Connections to PostgreSQL with bounded waits, and a pool of them."""

from __future__ import annotations

import contextlib
import functools
import itertools
import logging
import math
import os
import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timedelta
from typing import Any, Final, TypeVar

import attrs
import psycopg
from psycopg import errors
from psycopg.abc import Params, PQGen
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.pq import TransactionStatus

from lro._base.arguments import check, is_coroutine_function, needs
from lro._base.errors import DeclarationError, InvalidArgument, Unavailable, interrupts
from lro.stores._recurring import RecurringLine
from lro.stores._rows import moment

PERIOD_SECONDS: Final = 60.0
"""Seconds between two measurements of the server's clock.

A quartz clock drifts by a few milliseconds in this time.
"""

ASK: Final = "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint"
"""The server's time in SQL, in microseconds since 1970."""


class ServerClock:
    """The server's clock, kept as an offset to this process's monotonic clock, which never jumps.

    ``monotonic`` returns seconds, as :func:`time.monotonic` does.
    """

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self.monotonic = monotonic
        self._ahead = 0
        self._zero = moment(0)
        """The server's time at zero of the monotonic clock."""
        self._slack: int | None = None
        self._due = 0.0

    def now(self) -> datetime:
        """Return the time by the server's clock, in UTC."""
        return self._zero + timedelta(0, self.monotonic())

    def due(self) -> bool:
        """Return True if the clock must be measured again; then the caller must measure it."""
        now = self.monotonic()
        if now < self._due:
            return False
        self._due = now + PERIOD_SECONDS
        return True

    def measured(self, server: int, began: float, ended: float) -> None:
        """Adjust the clock: the server's time was ``server`` between ``began`` and ``ended``.

        The clock is changed only if the new estimate is more exact than the last estimate, or
        differs by more than the uncertainty of both round trips. Otherwise the clock would jitter
        with the network.
        """
        ahead = server - _micros((began + ended) / 2)
        slack = _micros((ended - began) / 2)
        self._due = self.monotonic() + PERIOD_SECONDS
        agrees = self._slack is not None and abs(ahead - self._ahead) <= slack + self._slack
        if not agrees or self._slack is None or slack < self._slack:
            self._ahead, self._slack = ahead, slack
            self._zero = moment(ahead)


def _micros(seconds: float) -> int:
    return round(seconds * 1_000_000)


T = TypeVar("T")

_DEFAULTS: Final = {
    "application_name": "lro",
    # Keepalives find a vanished peer within half a minute, even if the connection only listens.
    "keepalives_idle": 15,
    "keepalives_interval": 5,
    "keepalives_count": 3,
}
_OFF: Final = (
    *("enable_seqscan", "enable_bitmapscan", "enable_sort", "enable_hashjoin", "enable_mergejoin"),
    "jit",
)
"""Planner settings to turn off.

Each statement finds its few rows by an index, in the order of that index. A plan made for a small
table, or from old statistics, must not scan or sort a whole table later. PostgreSQL still sorts
where no index has the order. With sorts turned off, it rates such a plan as very costly, and would
spend seconds on its JIT compilation, unless JIT is turned off too.
"""

_SET_UP: Final = f"""SELECT set_config('search_path', %s, false),
    set_config('statement_timeout', %s, false), set_config('lock_timeout', %s, false),
    set_config('default_transaction_isolation', 'read committed', false),
    set_config('standard_conforming_strings', 'on', false),
    set_config('synchronous_commit', CASE current_setting('synchronous_commit')
        WHEN 'off' THEN 'on' ELSE current_setting('synchronous_commit') END, false),
    set_config('plan_cache_mode', 'force_generic_plan', false),
    {", ".join(f"set_config('{name}', 'off', false)" for name in _OFF)}, pg_backend_pid(), {ASK}"""


INHERITED: Final[list[object]] = []
"""Objects of the parent process that a forked process must neither use nor close."""


class NoAnswer(psycopg.OperationalError):
    """The server did not answer in time; it may still execute the statement."""


class NoPassword(psycopg.OperationalError):
    """The application's password function returned no password for a new connection."""


class BoundedConnection(psycopg.Connection[tuple[Any, ...]]):
    """A connection that waits at most ``patience`` seconds for a reply.

    The server's own time limit does not help if the server or the network hangs.
    """

    patience: float = 10.0

    def execute(
        self, query: Any, params: Params | None = None, **options: Any
    ) -> psycopg.Cursor[tuple[Any, ...]]:
        """Execute a statement; ``%s`` marks each of its parameters, and ``%%`` is a percent sign.

        The server's own marks replace these marks once for each text. psycopg's marks are parsed at
        each call, which takes longer than the rest of the call for a long statement.
        """
        if params is not None and isinstance(query, (bytes, str)):
            query = _numbered(query)
        return super().execute(query, params, **options)

    @contextlib.contextmanager
    def locks_within(self, milliseconds: int | None) -> Iterator[None]:
        """Limit waits for locks in the block, which is one transaction. None changes nothing."""
        if milliseconds is None:
            yield
            return
        with self.transaction():
            self.execute(f"SET LOCAL lock_timeout = {milliseconds:d}".encode(), prepare=False)
            yield

    def wait(self, gen: PQGen[T], *args: Any, **options: Any) -> T:
        """Wait for the server as psycopg does, but with a time limit."""
        return super().wait(_bounded(gen, self.patience), *args, **options)


@functools.lru_cache(maxsize=256)
def _numbered(query: bytes | str) -> bytes:
    numbers, text = itertools.count(1), query if isinstance(query, str) else query.decode()
    return re.sub(
        "%[s%]", lambda mark: "%" if mark[0] == "%%" else f"${next(numbers)}", text
    ).encode()


def _bounded(steps: PQGen[T], seconds: float) -> PQGen[T]:
    end = time.monotonic() + seconds
    try:
        wanted = next(steps)
        while True:
            ready = yield wanted
            if not ready and time.monotonic() >= end:
                raise NoAnswer(f"no answer from the server within {seconds:g} s")
            wanted = steps.send(ready)
    except StopIteration as over:
        result: T = over.value
        return result


def unavailable(cause: BaseException) -> Unavailable:
    """Return the error that callers get for a database error; it shows the kind, but no details."""
    kind = cause if isinstance(cause, NoPassword) else type(cause).__name__
    error = Unavailable(f"the operations database cannot be used now ({kind})")
    error.__cause__ = cause
    return error


def _ask_for_password(function: Callable[[], str]) -> str:
    """Return a function's password. No error shows the password or the function's own error."""
    try:
        given: object = function()
        if isinstance(given, str) and given and b"\0" not in given.encode():
            return given
    except BaseException as exc:
        if interrupts(exc):
            raise
        wrong = f"raised {type(exc).__name__}"
    else:
        empty = "a text that is empty or has a NUL character"
        wrong = f"returned {empty if isinstance(given, str) else type(given).__name__}"
    raise NoPassword(f"the password function {wrong}")  # without its cause, which may show a secret


@attrs.frozen(kw_only=True)
class ServerAddress:
    """Address of the database, the store's schema, and time limits in seconds.

    Raises:
        DeclarationError: The URL is not a connection string of PostgreSQL; or ``password`` is not
            a function without arguments, or is given although the URL has a password.
    """

    url: str = attrs.field(repr=False)  # the URL may have a password
    password: Callable[[], str] | None = attrs.field(repr=False)
    schema: str
    connect_seconds: float
    statement_seconds: float
    _conninfo: str = attrs.field(init=False, repr=False)
    _trusted: set[str] = attrs.field(init=False, repr=False, factory=set)
    """The connection string, if its pooler was found to keep sessions; otherwise empty."""

    def __attrs_post_init__(self) -> None:
        timeout = max(1, math.ceil(self.connect_seconds))
        limits: dict[str, Any] = {"connect_timeout": timeout, "tcp_user_timeout": timeout * 1000}
        try:
            given = conninfo_to_dict(self.url)
        except psycopg.ProgrammingError:  # the error may quote the password
            raise DeclarationError("url", "is not a valid connection string") from None
        if (ask := self.password) is not None:
            fine = callable(ask) and not is_coroutine_function(ask) and not needs(ask, 1)
            wanted = "a plain function without arguments that returns the password"
            check("password", type(ask), wanted, fine=fine)  # a repr may show a secret
            if "password" in given:
                raise DeclarationError("url", "must have no password if a function gives it")
        hosts = given.get("host") or os.environ.get("PGHOST") or ""
        addresses = given.get("hostaddr") or os.environ.get("PGHOSTADDR") or ""
        if "," in f"{hosts}{addresses}" and "PGTARGETSESSIONATTRS" not in os.environ:
            limits["target_session_attrs"] = "read-write"  # use the primary server
        whole: dict[str, Any] = {**_DEFAULTS, **limits, **given, "client_encoding": "UTF8"}
        object.__setattr__(self, "_conninfo", make_conninfo("", **whole))

    @property
    def quoted_schema(self) -> str:
        """The schema's name, quoted for SQL."""
        return quoted(self.schema)

    @property
    def database(self) -> str:
        """The name of the database in the URL; empty if the URL has none."""
        return str(conninfo_to_dict(self.url).get("dbname", ""))

    def with_database(self, name: str) -> ServerAddress:
        """Return the address of another database on the same server."""
        return attrs.evolve(self, url=make_conninfo(self.url, dbname=name))

    def connect(self, clock: ServerClock) -> BoundedConnection:
        """Open a connection, and measure the clock with it.

        Raises:
            psycopg.Error: The server cannot be reached, or refuses the login.
            Unavailable: A pooler gives the connection no session of its own.
        """
        connection = self._open(prepare_threshold=0)
        try:
            connection.patience = self.statement_seconds + 1
            # At least 1, because 0 means no limit to PostgreSQL.
            milliseconds = max(1, round(self.statement_seconds * 1000))
            began = clock.monotonic()
            # A wait for one locked row must not use up the time limit of the whole group of writes.
            limits = (self.quoted_schema, str(milliseconds), str(max(1, milliseconds // 5)))
            row = connection.execute(_SET_UP.encode(), limits, prepare=False).fetchone()
            assert row is not None
            clock.measured(row[-1], began, clock.monotonic())
            if row[-2] != connection.info.backend_pid and not self._trusted:
                self._check_pooler(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def _open(self, *, prepare_threshold: int | None) -> BoundedConnection:
        return BoundedConnection.connect(
            self._conninfo,
            password=None if self.password is None else _ask_for_password(self.password),
            autocommit=True,
            prepare_threshold=prepare_threshold,
            cursor_factory=psycopg.RawCursor,
        )

    def distrust(self) -> None:
        """Check the pooler again at the next connection, because its mode may have changed."""
        self._trusted.clear()

    def _check_pooler(self, connection: BoundedConnection) -> None:
        """Refuse a pooler that moves connections between server sessions.

        With such a pooler, session settings such as the schema would be lost, and would affect
        other clients. To find out, a second connection opens a transaction. If the pooler gives it
        the session that last served the first connection, the pooler does not reserve sessions.
        """
        for _ in range(_PROBES):
            try:
                kept = self._keeps_session(connection)
            except NoAnswer:  # the connection has failed, and cannot be used
                raise
            except psycopg.Error as exc:
                if _NO_TRANSACTIONS not in str(exc):  # perhaps the pooler has no free session now
                    line = "whether the pooler of the database keeps sessions is not known: %s"
                    log.info(line, exc)
                    return
                kept = False
            if not kept:
                raise Unavailable(_POOLED)
        self._trusted.add(self._conninfo)

    def _keeps_session(self, connection: BoundedConnection) -> bool:
        other = self._open(prepare_threshold=None)
        with contextlib.closing(other):
            other.patience = self.connect_seconds
            before = _backend(connection)
            # If the session differs, the pooler changes sessions even without other clients.
            if _backend(connection) != before:
                return False
            try:
                other.execute("BEGIN")
                _backend(other)
            except NoAnswer as exc:
                raise psycopg.OperationalError(
                    "the pooler has no room for a second connection"
                ) from exc
            try:
                return _backend(connection) == before
            except NoAnswer:  # the pooler's only session now serves ``other``
                return False


log = logging.getLogger("lro")

ATTEMPTS: Final = 3
"""The most times that a statement is sent if connections break or deadlocks occur."""

REST_SECONDS: Final = 0.2
"""Seconds from a failed attempt to connect to the next attempt. Meanwhile, calls fail at once."""

IDLE_SECONDS: Final = 300.0
"""Seconds after which an idle connection is closed."""

_ASK: Final = f"SELECT {ASK}".encode()

_MISSING: Final = (errors.UndefinedTable, errors.InvalidSchemaName)
_STRANGE: Final = (
    errors.InvalidSqlStatementName,
    errors.DuplicatePreparedStatement,
    errors.ProtocolViolation,
    *_MISSING,
)
"""Errors of a statement that a pooler runs on the session of another connection."""
_OF_THE_SESSION: Final = (
    errors.ReadOnlySqlTransaction,
    errors.InvalidCatalogName,
    errors.InsufficientPrivilege,
    *_STRANGE,
)
"""Errors that may not occur on a new connection, such as errors of a server that was demoted."""

_PROBES: Final = 3
_NO_TRANSACTIONS: Final = "statement pooling mode"
"""Part of PgBouncer's message in statement pooling mode; all its errors have the same code."""
_POOLED: Final = (
    "the pooler before the operations database gives connections no session of their own"
    " (pool_mode = transaction): use its session mode, or connect to the server itself"
)

GOING_DOWN: Final = (errors.AdminShutdown, errors.CrashShutdown, errors.CannotConnectNow)
AGAIN: Final = (errors.DeadlockDetected, errors.SerializationFailure)
"""Errors of a statement that had no effect and may be sent again at once."""


def quoted(name: str) -> str:
    """Return a name quoted for SQL."""
    return '"' + name.replace('"', '""') + '"'


def _backend(connection: BoundedConnection) -> object:
    return connection.execute("SELECT pg_backend_pid()", prepare=False).fetchone()


class ConnectionLost(Exception):
    """The connection broke; the server may or may not have executed the statement."""


class ConnectionPool:
    """Pool of up to ``size`` connections, each used by one thread at a time.

    psycopg's own pool reconnects in background threads, at growing intervals, while its callers
    wait. Our callers must get an error at once while the server is unavailable, and succeed once it
    is back. ``ready`` is called before each new connection; its first call prepares the schema.
    ``missing`` is called if the tables are gone.
    """

    def __init__(
        self,
        address: ServerAddress,
        clock: ServerClock,
        size: int,
        ready: Callable[[], None],
        missing: Callable[[], None],
    ) -> None:
        self.address = address
        self.clock = clock
        self._size = size
        self._ready = ready
        self._missing = missing
        self._refusals = RecurringLine()
        self._renew_at = 0.0
        self._changed = threading.Condition(threading.Lock())
        self._idle: list[tuple[BoundedConnection, float]] = []
        self._open = 0
        self._away: BaseException | None = None
        self._probing = False
        self._connect_at = 0.0
        self._closed = False

    def rows(
        self,
        sql: bytes,
        values: Sequence[object] = (),
        *,
        prepare: bool = True,
        lock_ms: int | None = None,
        once: bool = False,
        first: tuple[bytes, Sequence[object]] | None = None,
    ) -> list[tuple[Any, ...]]:
        """Return the rows of a statement, which must be idempotent unless ``once`` is given.

        ``prepare`` keeps the plan of a frequent statement. ``lock_ms`` replaces the usual limit on
        waits for locks. ``once`` means that the statement must not run twice. ``first`` is executed
        before the statement, in the same transaction.

        Raises:
            Unavailable: The store is closed, or the database cannot be used now.
            InvalidArgument: A value can never be stored in the database.
        """
        cause: BaseException | None = None
        for _ in range(ATTEMPTS):
            try:
                with self.borrow() as connection, connection.locks_within(lock_ms):
                    if first is None:
                        return connection.execute(sql, values, prepare=prepare).fetchall()
                    with connection.transaction():
                        connection.execute(*first, prepare=prepare)
                        found = connection.execute(sql, values, prepare=prepare).fetchall()
                    return found
            except (ConnectionLost, *AGAIN) as exc:
                cause = exc.__cause__ or exc
                if once and isinstance(exc, ConnectionLost):
                    break
            except psycopg.Error as exc:
                if _blames_value(exc):
                    text = f"a value cannot be kept by the database ({type(exc).__name__})"
                    raise InvalidArgument("", text) from exc
                raise self.refused(exc) from exc
        assert cause is not None
        raise unavailable(cause) from cause

    @contextlib.contextmanager
    def borrow(self) -> Iterator[BoundedConnection]:
        """Lend a connection to the block. A psycopg error means that nothing was written.

        Raises:
            ConnectionLost: The connection broke in the block.
            Unavailable: The store is closed, or the database cannot be reached or does not answer.
        """
        connection = self._take()
        try:
            if self.clock.due():
                began = self.clock.monotonic()
                ((server,),) = connection.execute(_ASK)
                self.clock.measured(server, began, self.clock.monotonic())
            yield connection
        except NoAnswer as exc:
            raise unavailable(exc) from exc
        except psycopg.Error as exc:
            lost = connection.closed or isinstance(exc, GOING_DOWN)
            if not lost and not (isinstance(exc, _OF_THE_SESSION) and self._may_renew()):
                raise
            if isinstance(exc, _STRANGE):
                self.address.distrust()
            if isinstance(exc, _MISSING):
                self._missing()
            connection.close()
            self._drop_idle()  # the idle connections are most likely broken, too
            raise ConnectionLost from exc
        finally:
            self._give_back(connection)

    def connect(self) -> BoundedConnection:
        """Open a connection outside the pool; the caller closes it.

        Raises:
            Unavailable: The store is closed, or the database cannot be reached.
        """
        self.make_ready()
        try:
            return self.address.connect(self.clock)
        except psycopg.Error as exc:
            raise unavailable(exc) from exc

    def make_ready(self) -> None:
        """Prepare the schema and measure the clock, unless both are done.

        Raises:
            Unavailable: The store is closed, or the database cannot be reached or used.
        """
        if self._closed:
            raise Unavailable("the store is closed")
        try:
            self._ready()
        except psycopg.Error as exc:
            raise unavailable(exc) from exc

    def refused(self, error: psycopg.Error) -> Unavailable:
        """Return the error that callers get when the server refuses a statement."""
        if not isinstance(error, psycopg.OperationalError):
            # Perhaps tables or privileges are missing. Log no details: they may show a whole row.
            what = error.diag.message_primary or type(error).__name__
            # Lines are limited by error class, because each message may be different.
            if self._refusals.is_due(type(error).__name__):
                log.error("the operations database refuses a statement of ours: %s", what)
        return unavailable(error)

    def _may_renew(self) -> bool:
        """Return True if connections may be replaced now, after an error of their session."""
        with self._changed:
            now = time.monotonic()
            due = now >= self._renew_at
            if due:
                self._renew_at = now + REST_SECONDS
            return due

    def close(self) -> None:
        """Close idle connections now, and busy connections when they are returned. Idempotent."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._drop_idle()

    def _take(self) -> BoundedConnection:
        end = time.monotonic() + self.address.connect_seconds
        while True:
            with self._changed:
                if (connection := self._idle_one(end)) is not None:
                    return connection
            try:
                self._ready()
                connection = self.address.connect(self.clock)
            except BaseException as exc:
                self._missed(exc)
                if not isinstance(exc, psycopg.Error):
                    raise
            else:
                with self._changed:
                    self._away, self._probing = None, False
                return connection

    def _idle_one(self, end: float) -> BoundedConnection | None:
        """Return a free connection, or None if the caller may open a new one. The lock is held."""
        while True:
            now = time.monotonic()
            if self._closed:
                raise Unavailable("the store is closed")
            if self._away is not None and (self._probing or now < self._connect_at):
                raise unavailable(self._away) from self._away
            if self._idle:
                return self._idle.pop()[0]
            may_grow = self._open < self._size
            if may_grow and now >= self._connect_at:
                self._open += 1
                self._probing = self._away is not None
                return None
            if now >= end:
                waited = f"{self.address.connect_seconds:g} s"
                raise Unavailable(f"no connection to the operations database was free in {waited}")
            self._changed.wait((min(end, self._connect_at) if may_grow else end) - now)

    def _missed(self, cause: BaseException) -> None:
        with self._changed:
            self._open -= 1
            self._probing = False
            if isinstance(cause, psycopg.Error):  # not for KeyboardInterrupt
                self._connect_at = time.monotonic() + REST_SECONDS
                if self._open == 0:  # if some are open, the server may just be full
                    self._away = cause
            self._changed.notify_all()

    def _give_back(self, connection: BoundedConnection) -> None:
        idle = (
            not connection.closed and connection.pgconn.transaction_status == TransactionStatus.IDLE
        )
        now = time.monotonic()
        old: list[BoundedConnection] = []
        with self._changed:
            if idle and not self._closed:
                self._idle.append((connection, now))
                if self._idle[0][1] < now - IDLE_SECONDS:
                    old.append(self._idle.pop(0)[0])
            else:
                old.append(connection)
            self._open -= len(old)
            self._changed.notify()
        for one in old:
            one.close()

    def _drop_idle(self) -> None:
        with self._changed:
            dropped, self._idle = self._idle, []
            self._open -= len(dropped)
            self._changed.notify_all()
        for connection, _ in dropped:
            connection.close()


def _blames_value(error: psycopg.Error) -> bool:
    # Errors of psycopg itself have no SQLSTATE.
    of_psycopg = isinstance(error, psycopg.ProgrammingError) and error.sqlstate is None
    return of_psycopg or isinstance(error, psycopg.DataError)
