"""Learn early that a server is to stop: by the signal that it gets.

A server that is to stop (SIGTERM, or Control-C) first lets the calls in flight end, and tells
the application afterwards, if at all. A Wait may be held for a minute, which is longer than a stop
may take. No server shows an application the moment itself. So where a server of this process
handles SIGTERM, a handler of ours is put before its own, which it calls.
"""

from __future__ import annotations

import logging
import queue
import signal
import threading
import weakref
from collections.abc import Callable
from types import FrameType
from typing import Any, Final, Protocol, TypeAlias, TypeGuard

from lro._engine.forks import after_fork

log = logging.getLogger("lro")

Handler: TypeAlias = Callable[[int, FrameType | None], Any]


class Waited(Protocol):
    """What has waiters."""

    def end_waits(self) -> None:
        """Tell them that the service is stopping."""
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
        """From now on end its waits at a signal, if a server in this process handles SIGTERM.

        Only the main thread can put a handler in place: in another one this does nothing. Servers
        install theirs when they begin, so it is to be called thereafter, as often as one likes.
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
    """A signal handler that tells us, and then calls the one that was there."""

    def __init__(self, signals: StopSignals, then: Handler) -> None:
        self._signals = signals
        self._then = then

    def __call__(self, number: int, frame: FrameType | None) -> object:
        self._signals.receive(number)
        return self._then(number, frame)


def _handled(handler: object) -> TypeGuard[Handler]:
    return callable(handler) and handler is not signal.default_int_handler


STOP_SIGNALS: Final = StopSignals()
