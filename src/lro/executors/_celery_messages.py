"""The parts of the executor that import Celery: the publisher of names, and the Celery task."""

from __future__ import annotations

import contextlib
import contextvars
import logging
import math
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from datetime import timedelta
from typing import Any, Final, TypeAlias

from celery.exceptions import Reject, SoftTimeLimitExceeded
from kombu.exceptions import LimitExceeded, OperationalError

from lro._base.errors import InvalidOperationName, Unavailable
from lro._engine.events import about
from lro._engine.process import PerProcess

log = logging.getLogger("lro")

REJECT_PAUSE_SECONDS: Final = 1.0
"""Seconds before a worker returns a message to the broker, which then resends it at once."""

_SHOWN: Final = 5
"""The most arguments whose types are logged for an invalid message."""

Work: TypeAlias = Callable[[str], None]
Close: TypeAlias = Callable[[timedelta], None]
Freed: TypeAlias = Callable[[], None]


class CeleryWorkerTask(PerProcess):
    """A Celery task that runs the named operation, and releases it if Celery ends the process.

    When Celery ends the process, ``close`` is called to release the running work. ``freed`` is
    called each time an operation has ended in this process.
    """

    stopped = False

    def __init__(self, work: Work, close: Close | None, freed: Freed | None = None) -> None:
        self._work = work
        self._close = close
        self._freed = freed
        self._idle = threading.Condition()
        self._running = 0

    def run(self, *arguments: object, **named: object) -> None:
        """Run the operation that a message names, unless another worker has the operation.

        A message that is not exactly one name is dropped.

        Raises:
            Reject: This process cannot run the operation now; the message goes back to the broker.
        """
        name = arguments[0] if len(arguments) == 1 and not named else None
        if not isinstance(name, str):
            held = [type(one).__name__ for one in (*arguments, *named.values())][:_SHOWN]
            log.error("a message is dropped: it must have the name of an operation, not %s", held)
            return
        try:
            if self.stopped:
                raise Unavailable("the worker is stopping")
            self._run_in_thread(name)
        except InvalidOperationName as exc:
            log.error("a message is dropped: %s", exc)
            return
        except Unavailable as exc:
            line = "%s: not begun, its message goes back to the broker: %s"
            log.warning(line, name, exc, extra=about(name))
            time.sleep(REJECT_PAUSE_SECONDS)
            raise Reject(str(exc), requeue=True) from exc
        if self.stopped:  # another worker may already run this work
            raise Reject("the worker is stopping", requeue=True)

    @property
    def running(self) -> int:
        """The number of operations that run in this process."""
        with self._idle:
            return self._running

    def join(self, seconds: float) -> bool:
        """Wait at most ``seconds`` seconds for running work; return True if none is left."""
        with self._idle:
            return self._idle.wait_for(lambda: self._running == 0, seconds)

    def _run_in_thread(self, name: str) -> None:
        # Celery ends a process by an exception that a signal handler raises in the main thread.
        # That exception must not be raised within the user's function or the store. So the work
        # runs in another thread, and the main thread waits.
        if threading.current_thread() is not threading.main_thread():
            self._run_counted(name)
            return
        work_thread = SeparateThread(lambda: self._run_counted(name))
        while True:
            try:
                work_thread.start()
                work_thread.done.result()
                return
            except (Unavailable, InvalidOperationName):
                raise
            except SoftTimeLimitExceeded:  # raising this exception would only run the work again
                line = "%s: continues; Celery's soft time limit is not for operations"
                log.warning(line, name, extra=about(name))
            except BaseException as exc:
                if work_thread.done.done():  # the work itself raised the exception
                    raise
                work_thread.take()
                self._release(name, exc)
                if isinstance(exc, Exception):  # after this, Celery itself ends the worker
                    raise Reject(str(exc), requeue=True) from exc
                raise

    def _run_counted(self, name: str) -> None:
        with self._idle:
            self._running += 1
        try:
            self._work(name)
        finally:
            with self._idle:
                self._running -= 1
                self._idle.notify_all()
            if self._freed is not None:
                self._freed()

    def _release(self, name: str, why: BaseException) -> None:
        line = "%s: interrupted by the end of its worker: %r"
        log.warning(line, name, why, extra=about(name))
        self.end()

    def end(self) -> None:
        """Release the running work, and store the counts of this process."""
        if self._close is None:
            return
        try:
            self._close(timedelta())
        except Exception:  # other workers continue when the lease expires
            log.exception("the work of this process could not be released")


class SeparateThread:
    """An action that runs once, in its own thread, even if an exception interrupts the caller."""

    def __init__(self, action: Callable[[], None]) -> None:
        self.done: Future[None] = Future()
        self._action = action
        self._context = contextvars.copy_context()
        self._taken = threading.Lock()

    def take(self) -> bool:
        """Claim the action; return False if a thread has already claimed it."""
        return self._taken.acquire(blocking=False)

    def start(self) -> None:
        """Start a thread for the action, unless the action has begun."""
        if self._taken.locked():
            return
        try:
            threading.Thread(target=self._run, name="lro-celery", daemon=True).start()
        except RuntimeError as exc:
            if type(exc) is not RuntimeError:  # a signal handler's error
                raise
            raise Unavailable(f"no thread can be started: {exc}") from exc

    def _run(self) -> None:
        if not self.take():
            return
        try:
            self._context.run(self._action)
        except BaseException as exc:
            self.done.set_exception(exc)
        else:
            self.done.set_result(None)


STOPPING: Final = "the executor is stopping"
"""Message of the error once the publisher is closed and sends no more names."""

FRESH_SECONDS: Final = 1.0
"""Seconds for which the last result (an answer or a failure) counts as the broker's state."""


class NamePublisher(PerProcess):
    """Sends names to the broker of a Celery app, over at most ``connections`` connections.

    The broker's address and protocol come from the app's settings, but not the time limits.
    ``timeout`` bounds each of these: the wait for a free connection, each attempt to connect, and
    each wait for an answer. If a call fails because its connection was dead, the call is retried
    once over a new connection. So even if packets are lost, a call that gets a connection at once
    ends within three times ``timeout`` if the broker has one address.
    """

    def __init__(self, app: Any, timeout: timedelta, connections: int) -> None:
        self._app = app
        self._seconds = timeout.total_seconds()
        self._connections = connections
        self._parent_pool: object = None
        self._closed = False
        self._after_fork()

    def _after_fork(self) -> None:
        # The parent still uses these connections. The child keeps references to the pool: garbage
        # collection would close the connections, perhaps for the parent, too.
        self._parent_pool = getattr(self, "_pool", None)
        self._pool: Any = None
        self._lock = threading.Lock()
        self._last_result: tuple[float, str] = (-math.inf, "")

    def check_reachable(self) -> None:
        """Check that the broker can be reached, or could be reached a moment ago.

        While the broker is unavailable, only the first of many callers waits for the check. The
        other callers must not wait, because one of them renews this process's lease.

        Raises:
            Unavailable: The broker cannot be reached, or could not be reached a moment ago.
        """
        at, trouble = self._last_result
        if time.monotonic() - at >= FRESH_SECONDS:
            self.publish(_open_channel)
        elif trouble:
            raise Unavailable(trouble)

    def publish(self, action: Callable[[Any], object]) -> None:
        """Call ``action`` with a connection; call it again if the first connection was dead.

        Raises:
            Unavailable: The broker cannot be reached, all connections are in use, or this publisher
                was closed.
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
            raise self._unreachable(exc) from exc
        finally:
            with self._lock:
                if self._closed:
                    connection.collect()
                connection.release()
        self._last_result = (time.monotonic(), "")

    def close(self) -> None:
        """Close the idle connections now, and busy connections when their calls end. Idempotent."""
        with self._lock:
            self._closed = True
            pool, self._pool = self._pool, None
            idle = []
            with contextlib.suppress(LimitExceeded):
                while pool is not None:
                    idle.append(pool.acquire())
        for connection in idle:
            connection.collect()

    def reopen(self) -> None:
        """Connect again at the next call, after :meth:`close`."""
        with self._lock:
            self._closed = False

    def _perform(
        self, action: Callable[[Any], object], connection: Any, lost: tuple[type[Exception], ...]
    ) -> None:
        if connection.connected:  # the broker may still have closed it
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
            if self._closed:
                raise Unavailable(STOPPING)
            if self._pool is None:
                self._pool = self._connect().Pool(limit=self._connections)
            pool = self._pool
        try:
            return pool.acquire(block=True, timeout=self._seconds)
        except LimitExceeded as exc:
            text = f"all {self._connections} connections to the message broker are in use"
            raise Unavailable(text) from exc

    def _unreachable(self, cause: Exception) -> Unavailable:
        first = cause.__cause__ or cause  # more specific than kombu's own error
        trouble = f"the message broker cannot be reached now ({type(first).__name__})"
        self._last_result = (time.monotonic(), trouble)
        return Unavailable(trouble)

    def _connect(self) -> Any:
        # Each kind of transport has its own options for time limits, and refuses unknown options. A
        # transport that this module does not know keeps its default limits.
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
                # Otherwise data written to a connection that the broker has closed counts as sent.
                "confirm_publish": True,
            }
        if options:  # by default kombu retries for ever
            options |= {"max_retries": 0, "interval_start": 0}
        return self._app.connection_for_write(
            connect_timeout=self._seconds, transport_options=options
        )


def _open_channel(connection: Any) -> None:
    # On every transport, opening a channel needs an answer of the broker.
    connection.channel().close()
