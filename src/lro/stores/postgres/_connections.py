"""The connections of one process: few, kept, made when needed, and never waited for long."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any, Final

import psycopg
from psycopg import errors
from psycopg.pq import TransactionStatus

from lro._base.errors import InvalidArgument, Unavailable
from lro.stores.postgres._connection import (
    ASK,
    BoundedConnection,
    NoAnswer,
    ServerAddress,
    ServerClock,
    unavailable,
)

log = logging.getLogger("lro")

ATTEMPTS: Final = 3
"""How often a statement is sent whose connection is lost, or which a deadlock has ended."""

REST_SECONDS: Final = 0.2
"""How long a server that could not be reached is not asked again: all calls fail at once then."""

IDLE_SECONDS: Final = 300.0
"""How long an idle connection is kept."""

_ASK: Final = f"SELECT {ASK}".encode()

GOING_DOWN: Final = (errors.AdminShutdown, errors.CrashShutdown, errors.CannotConnectNow)
AGAIN: Final = (errors.DeadlockDetected, errors.SerializationFailure)
"""Errors of a statement that has had no effect, and may be sent again at once."""


class ConnectionLost(Exception):
    """The connection broke: whether the statement under way was carried out is not known."""


class ConnectionPool:
    """Up to ``size`` connections, each for one thread at a time.

    psycopg's own pool reconnects in threads of its own, at growing intervals, while its callers
    wait: ours must get an error at once while the server is away, and find it once it is back.
    """

    def __init__(self, address: ServerAddress, clock: ServerClock, size: int) -> None:
        self.address = address
        self.clock = clock
        self._size = size
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
    ) -> list[tuple[Any, ...]]:
        """What a statement gives that may be carried out twice, each time with the same effect.

        ``prepare``: keep its plan, because it comes often. ``lock_ms`` is how long it waits for
        locks, if not as long as all others.

        Raises:
            Unavailable: The store is closed, or the database cannot be used now.
            InvalidArgument: A value is of a kind that the database never takes.
        """
        cause: BaseException | None = None
        for _ in range(ATTEMPTS):
            try:
                with self.borrow() as connection, connection.locks_within(lock_ms):
                    return connection.execute(sql, values, prepare=prepare).fetchall()
            except (ConnectionLost, *AGAIN) as exc:
                cause = exc.__cause__ or exc
            except psycopg.Error as exc:
                if _blames_value(exc):
                    text = f"a value cannot be kept by the database ({type(exc).__name__})"
                    raise InvalidArgument("", text) from exc
                raise self.refused(exc) from exc
        assert cause is not None
        raise unavailable(cause) from cause

    @contextlib.contextmanager
    def borrow(self) -> Iterator[BoundedConnection]:
        """A connection for the length of the block. An error of psycopg means: nothing was done.

        Raises:
            ConnectionLost: It broke meanwhile.
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
            if not connection.closed and not isinstance(exc, GOING_DOWN):
                raise
            connection.close()
            self._drop_idle()  # the others have most likely gone the same way
            raise ConnectionLost from exc
        finally:
            self._give_back(connection)

    def connect(self) -> BoundedConnection:
        """A connection beside the others, which the caller closes.

        Raises:
            Unavailable: The store is closed, or the database cannot be reached.
        """
        if self._closed:
            raise Unavailable("the store is closed")
        try:
            return self.address.connect(self.clock)
        except psycopg.Error as exc:
            raise unavailable(exc) from exc

    def refused(self, error: psycopg.Error) -> Unavailable:
        """The error that callers get when the server refuses a statement."""
        if not isinstance(error, psycopg.OperationalError):
            # It has the means, but not the tables, say, or we not the right. No details, which may
            # be a whole row.
            what = error.diag.message_primary
            log.error("the operations database refuses a statement of ours: %s", what)
        return unavailable(error)

    def close(self) -> None:
        """Close every connection; those in use, as soon as they are not. Idempotent."""
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
        """A connection that is free, or None and the right to make one. With the lock held."""
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
            if isinstance(cause, psycopg.Error):  # and not Ctrl-C
                self._connect_at = time.monotonic() + REST_SECONDS
                if self._open == 0:  # else the server may only have no room for one more
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
    # What psycopg itself refuses has no code of the server.
    of_psycopg = isinstance(error, psycopg.ProgrammingError) and error.sqlstate is None
    return of_psycopg or isinstance(error, psycopg.DataError)
