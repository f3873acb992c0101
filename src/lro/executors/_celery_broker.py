"""A few connections to a Celery app's broker that only publish, and never wait for long."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Final

from kombu.exceptions import LimitExceeded, OperationalError

from lro._base.errors import Unavailable
from lro._engine.forks import after_fork

FRESH_SECONDS: Final = 1.0
"""Seconds after an answer in which the broker counts as reachable, after a failure as not."""


class NamePublisher:
    """The broker of a Celery app, over at most ``connections`` connections of our own.

    The app's settings decide where it is and how it is spoken to. Ours are only the limits: each
    connect and each answer may take ``timeout``, and nothing is tried again but once, over a new
    connection where the old one has turned out to be dead. So a call comes to its end within
    three times that, also where packets vanish.
    """

    def __init__(self, app: Any, timeout: timedelta, connections: int) -> None:
        self._app = app
        self._seconds = timeout.total_seconds()
        self._connections = connections
        self._inherited: object = None
        self._reset_after_fork()
        after_fork(self, NamePublisher._reset_after_fork)

    def _reset_after_fork(self) -> None:
        # The parent goes on to use its connections. They are kept here, because what is dropped is
        # closed, and that may end them for the parent too.
        self._inherited = getattr(self, "_pool", None)
        self._pool: Any = None
        self._lock = threading.Lock()
        self._found: tuple[float, str] = (-math.inf, "")

    def check_reachable(self) -> None:
        """Do nothing if the broker is there, or was a moment ago.

        Of many callers while it is away, only the first one waits to find out:
        among them is the thread that renews the leases of this process.

        Raises:
            Unavailable: It cannot be reached, or could not a moment ago.
        """
        at, trouble = self._found
        if time.monotonic() - at >= FRESH_SECONDS:
            self.publish(_open_channel)
        elif trouble:
            raise Unavailable(trouble)

    def publish(self, action: Callable[[Any], object]) -> None:
        """Have ``action`` done with a connection; a second time if the first was a dead one.

        Raises:
            Unavailable: The broker cannot be reached.
        """
        connection = self._take()
        lost = (
            OperationalError,
            *connection.recoverable_connection_errors,
            *connection.recoverable_channel_errors,
        )
        try:
            self._perform(action, connection, lost)
        except lost as exc:
            raise self._away(exc) from exc
        finally:
            connection.release()
        self._found = (time.monotonic(), "")

    def _perform(
        self,
        action: Callable[[Any], object],
        connection: Any,
        lost: tuple[type[Exception], ...],
    ) -> None:
        if connection.connected:  # as far as it knows
            try:
                action(connection)
                return
            except lost:
                connection.collect()
        others = max(0, len(connection.alt) - 1)
        connection.ensure_connection(
            max_retries=others, interval_start=0, interval_step=0, interval_max=0
        )
        action(connection)

    def _take(self) -> Any:
        with self._lock:
            if self._pool is None:
                self._pool = self._connect().Pool(limit=self._connections)
            pool = self._pool
        try:
            return pool.acquire(block=True, timeout=self._seconds)
        except LimitExceeded as exc:
            text = f"all {self._connections} connections to the message broker are in use"
            raise Unavailable(text) from exc

    def _away(self, cause: Exception) -> Unavailable:
        first = cause.__cause__ or cause  # kombu's own error says less than what it stands for
        trouble = f"the message broker cannot be reached now ({type(first).__name__})"
        self._found = (time.monotonic(), trouble)
        return Unavailable(trouble)

    def _connect(self) -> Any:
        # How a transport is told its limits depends on its kind; one that we do not know has its
        # own, and refuses options that it does not know.
        kind = self._app.connection_for_write().transport.driver_type
        options: dict[str, object] = {}
        if kind == "redis":
            options = {
                "socket_timeout": self._seconds,
                "socket_connect_timeout": self._seconds,
                "retry_on_timeout": False,
            }
        elif kind == "amqp":
            options = {
                "read_timeout": self._seconds,
                "write_timeout": self._seconds,
                # Else what is written to a connection that the broker has left counts as sent.
                "confirm_publish": True,
            }
        if options:  # kombu tries for ever unless told
            options |= {"max_retries": 0, "interval_start": 0}
        return self._app.connection_for_write(
            connect_timeout=self._seconds, transport_options=options
        )


def _open_channel(connection: Any) -> None:
    # A channel of any transport is opened by asking the broker something.
    connection.channel().close()
