"""The process of a service: forks, its role, its end, and the signals to stop.

A forked child sets up again the objects that it inherits. A child process of an executor only runs
functions. Services that are open when the interpreter exits are closed then, because a WSGI server
does not tell its application that it stops, and a script may end without closing its service. A
server that is asked to stop (SIGTERM, or Ctrl-C) first lets calls in flight end. Calls that wait
for an operation would delay the stop, so our signal handler ends these calls, and then calls the
server's handler.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import logging
import math
import os
import queue
import signal
import threading
import time
import weakref
from collections.abc import Callable
from datetime import timedelta
from types import FrameType
from typing import Any, Final, Protocol, Self, TypeAlias, TypeGuard, TypeVar

log = logging.getLogger("lro")

T = TypeVar("T")


def living(objects: weakref.WeakKeyDictionary[T, Any]) -> list[T]:
    """Return the keys that still exist, while other threads may add and drop keys.

    Iteration over the dictionary, or over a ``WeakSet``, would then raise RuntimeError.
    """
    return [one for reference in objects.keyrefs() if (one := reference()) is not None]


_objects: Final[weakref.WeakKeyDictionary[PerProcess, None]] = weakref.WeakKeyDictionary()
"""The objects to reset in a forked child, in the order in which they were made."""


class PerProcess:
    """Base class of objects with locks, threads or connections that no forked child may share.

    The child calls ``__init__`` of each such object again, with the same arguments. So state that
    must survive a fork is not set in ``__init__``, but begins as an attribute of the class. A class
    that has much such state, or that applications subclass, overrides ``_after_fork``. Neither
    ``__init__`` nor ``_after_fork`` may wait for a lock that a thread of the parent may have held,
    or change anything that the parent still uses.
    """

    _arguments: tuple[tuple[Any, ...], dict[str, Any]]

    def __new__(cls, *positional: Any, **named: Any) -> Self:
        new = super().__new__(cls)
        new._arguments = positional, named
        _objects[new] = None
        return new

    def _after_fork(self) -> None:
        positional, named = self._arguments
        type(self).__init__(self, *positional, **named)

    def start_over(self) -> None:
        """Set this object up as in a forked child; call this when its threads have ended."""
        self._after_fork()


def _reset_all() -> None:
    for one in living(_objects):
        try:
            one._after_fork()
        except Exception:  # the other objects must still be reset
            log.exception("%r could not be reset after a fork", one)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reset_all)


_is_worker_process = False


def is_worker_process() -> bool:
    """Return True if this process only runs functions for another process.

    Such a process imports the application, but the service must not run a second time there: it
    does no maintenance, has no operations of its own, and starts no processes.
    """
    return _is_worker_process


def mark_worker_process() -> None:
    """Declare, before the application is imported, that this process only runs functions."""
    global _is_worker_process
    _is_worker_process = True


@functools.cache
def installed_version() -> str:
    """Return the installed version of this library, or the empty string."""
    import importlib.metadata  # imported late: this import costs half as much as that of lro

    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        return importlib.metadata.version("lro")
    return ""


class Closing(Protocol):
    """An object that can be closed within about a given number of seconds."""

    drain: timedelta
    """About how long closing may take."""

    def close(self, drain: float) -> None:
        """Close within about ``drain`` seconds."""
        ...


_open: Final[weakref.WeakKeyDictionary[Closing, None]] = weakref.WeakKeyDictionary()


def close_at_exit(one: Closing) -> None:
    """Close this object when the interpreter exits, unless it is collected before."""
    _open[one] = None
    # This exit function is registered again for each object. The last registered function is called
    # first, so this one is called before those of modules that the object uses, such as those of
    # its executor.
    atexit.unregister(_close_all)
    atexit.register(_close_all)


def no_longer_open(one: Closing) -> None:
    """Do not close this object at exit: it is closed, or does not need to be closed."""
    _open.pop(one, None)


def _close_all() -> None:
    began, services = time.monotonic(), living(_open)
    # The services are closed in parallel: that takes no longer than the slowest service does.
    threads = [threading.Thread(target=_close, args=(one, began)) for one in services[1:]]
    try:
        for thread, one in zip(threads, services[1:], strict=True):
            thread.daemon = True
            try:
                thread.start()
            except RuntimeError:  # no thread can be started any more
                _close(one, began)
        for one in services[:1]:
            _close(one, began)
        for thread in threads:
            if thread.ident is not None:
                thread.join()
    except BaseException as exc:  # a second signal: no service has time to drain
        log.warning("closing services when the process ended was interrupted: %r", exc)
        for one in services[1:]:
            with contextlib.suppress(BaseException):
                _close(one, -math.inf)


def _close(one: Closing, began: float) -> None:
    try:
        one.close(max(0.0, one.drain.total_seconds() - (time.monotonic() - began)))
    except Exception:  # the other services must still be closed
        log.exception("a service could not be closed when the process ended")


Handler: TypeAlias = Callable[[int, FrameType | None], Any]


class Waited(Protocol):
    """An object with waiting calls."""

    def end_waits(self) -> None:
        """End all waiting calls: the service is stopping."""
        ...


class StopSignals(PerProcess):
    """Ends the waiting calls of services when this process is sent SIGTERM or SIGINT."""

    def __init__(self) -> None:
        self._waited: weakref.WeakKeyDictionary[Waited, None] = weakref.WeakKeyDictionary()
        self._after_fork()

    def _after_fork(self) -> None:
        # A signal handler may interrupt a put or get of the same thread: this queue has no lock.
        self._received: queue.SimpleQueue[int] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def end_waits_of(self, one: Waited) -> None:
        """From now on, end the waits of ``one`` at a signal, if a server here handles SIGTERM.

        Only the main thread can install a handler, so this does nothing in other threads. Servers
        install their handlers when they start, so call this after the start. Idempotent.
        """
        if threading.current_thread() is not threading.main_thread():
            return
        present = signal.getsignal(signal.SIGTERM)
        if not _handled(present):
            return  # the signal ends this process at once, or is ignored
        self._waited[one] = None
        if self._thread is None and not self._start():
            return
        if not isinstance(present, _Before):
            for number in (signal.SIGTERM, signal.SIGINT):
                handler = signal.getsignal(number)
                if _handled(handler):
                    signal.signal(number, _Before(self, handler))

    def receive(self, number: int) -> None:
        """Handle a signal. Called by the signal handler."""
        # The signal may have interrupted the main thread while that thread held a lock that is
        # needed to end the waits. So another thread ends them.
        self._received.put(number)

    def _start(self) -> bool:
        thread = threading.Thread(
            target=self._live, args=(self._received,), name="lro-signals", daemon=True
        )
        try:
            thread.start()
        except RuntimeError as exc:  # too many threads: the next call tries again
            log.warning("waits cannot be ended at a stop: %s", exc)
            return False
        self._thread = thread
        return True

    def _live(self, received: queue.SimpleQueue[int]) -> None:
        while True:
            received.get()
            for one in living(self._waited):
                try:
                    one.end_waits()
                except Exception:  # other waits must still end, now and at the next signal
                    log.exception("waits could not be ended at a stop")


class _Before:
    """A signal handler that ends the waits, then calls the handler that it replaced."""

    def __init__(self, signals: StopSignals, then: Handler) -> None:
        self._signals = signals
        self._then = then

    def __call__(self, number: int, frame: FrameType | None) -> object:
        self._signals.receive(number)
        return self._then(number, frame)


def _handled(handler: object) -> TypeGuard[Handler]:
    return callable(handler) and handler is not signal.default_int_handler


STOP_SIGNALS: Final = StopSignals()
