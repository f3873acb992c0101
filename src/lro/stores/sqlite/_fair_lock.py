"""A fair order of writers: a process that has written lets waiting processes write first."""

from __future__ import annotations

import contextlib
import os
from typing import Any, Final

fcntl: Any
try:
    import fcntl
except ImportError:  # on Windows: there, writes of several processes are less even
    fcntl = None

_COURTESY_SECONDS: Final = 0.1
"""How long it is waited for. Its holder may be stopped, or wait for another program's lock."""
_WITHOUT_SECONDS: Final = 1.0
"""How long processes write without it after that."""


class FairLock:
    """The right to ask for SQLite's lock next; all processes on a file share one.

    SQLite's own lock goes to the process that happens to ask when it is free: as a rule, the one
    that has just released it. A process that must take this lock first cannot write again while
    another one waits. It only makes writers fair: SQLite's lock alone protects the file.
    """

    def __init__(self, path: str) -> None:
        self._path = path + "-turn"
        self._file: int | None = None
        self._held = False
        self._asked_at: float | None = None
        self._without_until = 0.0

    def take(self, now: float) -> bool:
        """Try to take it; return whether to go on, with or without it.

        ``now`` is by :func:`time.monotonic`.
        """
        if self._held or now < self._without_until or self._lock():
            return True
        if self._asked_at is None:
            self._asked_at = now
        if now - self._asked_at < _COURTESY_SECONDS:
            return False
        self._without_until = now + _WITHOUT_SECONDS
        return True

    def release(self) -> None:
        """Release it, or stop asking for it."""
        self._asked_at = None
        if self._held and self._file is not None:
            self._held = False
            with contextlib.suppress(OSError):
                fcntl.flock(self._file, fcntl.LOCK_UN)

    def close(self) -> None:
        """Free what it holds."""
        self._held = False
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _lock(self) -> bool:
        if fcntl is None:
            return True
        try:
            if self._file is None:
                self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._held = True
        except BlockingIOError:
            return False
        except OSError:  # no such file can be made here, or no lock be had on it
            pass
        return True
