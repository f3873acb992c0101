"""The process that a service lives in: forks, its role, its end, and the signals to stop.

Forked children reset what they inherit. A child process of an executor only runs functions. A
server under WSGI gives its application no notice of the end, and a script may simply come to its
last line: whatever is still open when the interpreter exits is closed then. A server that is to
stop (SIGTERM, or Control-C) first lets the calls in flight end, so waiters are ended by a signal
handler that runs before the server's.
"""

from __future__ import annotations

import atexit
import contextlib
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
from typing import Any, Final, Protocol, TypeAlias, TypeGuard, TypeVar

log = logging.getLogger("lro")

T = TypeVar("T")

_holders: weakref.WeakKeyDictionary[object, Callable[[Any], None]]
_holders = weakref.WeakKeyDictionary()


def after_fork(holder: T, reset: Callable[[T], None]) -> None:
    """Have ``reset(holder)`` called in every child, for as long as the holder lives.

    Holders are reset in the order in which they came; ``reset`` must take no lock that a thread
    of the parent may have held, and must not touch what the parent goes on to use.
    """
    _holders[holder] = reset


def _reset_all() -> None:
    for holder, reset in list(_holders.items()):
        try:
            reset(holder)
        except Exception:  # the others must live on
            log.exception("%r could not be reset after a fork", holder)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reset_all)


_is_worker_process = False


def is_worker_process() -> bool:
    """Whether this process runs functions for another one, and nothing else.

    It imports the application, whose service must not work here a second time: no maintenance, no
    operations of its own, no further processes.
    """
    return _is_worker_process


def mark_worker_process() -> None:
    """Make this process one that only runs functions, before it imports the application."""
    global _is_worker_process
    _is_worker_process = True


class Closing(Protocol):
    """What can be closed, and takes a number of seconds for it."""

    drain: timedelta
    """How long that may take, roughly."""

    def close(self, drain: float) -> None:
        """Close it within ``drain`` seconds, roughly."""
        ...


_open: Final[weakref.WeakSet[Closing]] = weakref.WeakSet()


def close_at_exit(one: Closing) -> None:
    """Close this object when the interpreter ends, unless it is collected before."""
    _open.add(one)
    # Registered again with each: what is registered last is called first, and so comes before the
    # exit functions of all that an open service uses, such as those of its executor's module.
    atexit.unregister(_close_all)
    atexit.register(_close_all)


def no_longer_open(one: Closing) -> None:
    """Forget this object: it is closed, or need not be closed."""
    _open.discard(one)


def _close_all() -> None:
    began, services = time.monotonic(), list(_open)
    # All at once: together they take no longer than the longest of them.
    threads = [threading.Thread(target=_close, args=(one, began)) for one in services[1:]]
    try:
        for thread, one in zip(threads, services[1:], strict=True):
            thread.daemon = True
            try:
                thread.start()
            except RuntimeError:  # there can be no thread any more
                _close(one, began)
        for one in services[:1]:
            _close(one, began)
        for thread in threads:
            if thread.ident is not None:
                thread.join()
    except BaseException as exc:  # a second signal: no service has time to drain
        log.warning("closing at the end of the process was interrupted: %r", exc)
        for one in services[1:]:
            with contextlib.suppress(BaseException):
                _close(one, -math.inf)


def _close(one: Closing, began: float) -> None:
    try:
        one.close(max(0.0, one.drain.total_seconds() - (time.monotonic() - began)))
    except Exception:  # the others are to be closed all the same
        log.exception("a service could not be closed at the end of the process")


Handler: TypeAlias = Callable[[int, FrameType | None], Any]


class Waited(Protocol):
    """What has waiters."""

    def end_waits(self) -> None:
        """End the waits: the service is stopping."""
        ...


class StopSignals:
    """Ends the waits of services when this process is sent SIGTERM or SIGINT."""

    def __init__(self) -> None:
        self._waited: weakref.WeakSet[Waited] = weakref.WeakSet()
        self._forked()
        after_fork(self, StopSignals._forked)

    def _forked(self) -> None:
        # A put may interrupt another put or get in the same thread: this queue takes no lock.
        self._received: queue.SimpleQueue[int] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def end_waits_of(self, one: Waited) -> None:
        """End its waits at a signal from now on, if a server in this process handles SIGTERM.

        Only the main thread can install a handler: in other threads this does nothing. Servers
        install their handlers when they start, so call this after that, as often as you like.
        """
        if threading.current_thread() is not threading.main_thread():
            return
        present = signal.getsignal(signal.SIGTERM)
        if not _handled(present):
            return  # this process ends at once, or another one decides
        self._waited.add(one)
        if self._thread is None and not self._start():
            return
        if not isinstance(present, _Before):
            for number in (signal.SIGTERM, signal.SIGINT):
                handler = signal.getsignal(number)
                if _handled(handler):
                    signal.signal(number, _Before(self, handler))

    def receive(self, number: int) -> None:
        """A signal has come. Called in its handler."""
        # Which may have interrupted the main thread anywhere, also where it holds a lock that is
        # needed to end waits. So another thread does that.
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
            for one in list(self._waited):
                one.end_waits()


class _Before:
    """A signal handler that ends the waits, and then calls the handler that was there."""

    def __init__(self, signals: StopSignals, then: Handler) -> None:
        self._signals = signals
        self._then = then

    def __call__(self, number: int, frame: FrameType | None) -> object:
        self._signals.receive(number)
        return self._then(number, frame)


def _handled(handler: object) -> TypeGuard[Handler]:
    return callable(handler) and handler is not signal.default_int_handler


STOP_SIGNALS: Final = StopSignals()
