"""How a process hears that another one has written to the file: by its change counter."""

from __future__ import annotations

import contextlib
import threading
import time
from typing import Final

from lro.stores.sqlite._watch import Watch
from lro.stores.sqlite._writer import Writer

_LIVELY_SECONDS: Final = 1.0
"""So long after a write to the log its commit may come: the log is synced to disk in between."""
_FIRST_PAUSE: Final = 0.001
"""So soon after a write the counter is looked at; then after twice that, and so on."""


class CounterSubscription:
    """Looks at SQLite's counter of commits by others, at least every ``look_seconds``.

    Where the system tells of writes to the log, it is only looked at when there were some. The
    counter names nobody, so that what is heard is always that anything may have changed.

    Raises:
        Unavailable: The store is closed, or the file cannot be read.
    """

    def __init__(self, writer: Writer, look_seconds: float) -> None:
        self._writer = writer
        self._look_seconds = look_seconds
        self._listening = threading.Lock()
        self._closing = threading.Lock()
        self._closed = threading.Event()
        self._known = writer.commits_by_others()
        self._pause = look_seconds
        self._told = True
        self._quiet_from = 0.0
        self._watch: Watch | None = None
        with contextlib.suppress(OSError):
            self._watch = Watch(writer.log_path)

    def next_changes(self, seconds: float) -> tuple[str, ...] | None:
        """None as soon as another process has committed, () when the seconds are over.

        Raises:
            Unavailable: The store is closed, or the file cannot be read.
        """
        end = time.monotonic() + seconds
        with self._listening:
            while not self._closed.is_set():
                found = self._writer.commits_by_others()
                if found != self._known:
                    self._known = found
                    return None
                now = time.monotonic()
                if now >= end:
                    break
                self._rest(self._watch, now, end - now)
        return ()

    def close(self) -> None:
        """Have ``next_changes`` return, and free what it needed. Idempotent."""
        with self._closing:
            if self._closed.is_set():
                return
            self._closed.set()
            if self._watch is not None:
                self._watch.end()
        with self._listening:
            if self._watch is not None:
                self._watch.close()

    def _rest(self, watch: Watch | None, now: float, left: float) -> None:
        """Until it is time to look again."""
        if self._told and watch is not None:
            self._told = not watch.renew()
            self._quiet_from = now + _LIVELY_SECONDS
        if self._told or watch is None or self._pause < self._look_seconds:
            # Nor is the system listened to for a moment after a write: others follow, or are ours.
            self._closed.wait(min(left, self._pause))
            self._pause = min(2 * self._pause, self._look_seconds)
        elif watch.wait(left if now >= self._quiet_from else min(left, self._look_seconds)):
            self._told = True
            self._pause = _FIRST_PAUSE
