"""Being told by the system that a file is written to, where it tells: by Linux's inotify."""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import weakref
from collections.abc import Callable
from typing import Any, Final

_MODIFIED: Final = 0x00000002
"""``IN_MODIFY`` of ``sys/inotify.h``: the only one that we ask for."""
_MANY: Final = 65536


class Watch:
    """Waits for writes to a file, without looking at it. Used by one thread; ended by any.

    Raises:
        OSError: The system tells nothing, or not to us: there are limits.
    """

    def __init__(self, path: str) -> None:
        self._path = os.fsencode(path)
        try:
            self._system: Any = ctypes.CDLL(None, use_errno=True)
            self._notices: int = self._system.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        except (AttributeError, TypeError) as exc:  # it has no such calls, or no such library
            raise OSError("this system tells nothing of files") from exc
        if self._notices < 0:
            raise OSError(ctypes.get_errno(), "this system tells nothing more of files")
        try:
            self._end, self._end_from = os.pipe()
        except OSError:
            os.close(self._notices)
            raise
        descriptors = self._notices, self._end, self._end_from
        closing = weakref.finalize(self, _close, descriptors)
        # Not at the end of the process, which frees them in any case: the thread that waits still
        # does so then, and who closes the service at that time calls end().
        closing.atexit = False
        self.close: Callable[[], object] = closing
        """Frees what it holds; only when nobody waits. Idempotent."""
        self._poll = select.poll()
        for descriptor in (self._notices, self._end):
            self._poll.register(descriptor, select.POLLIN)

    def renew(self) -> bool:
        """Watch the file that is there now, and forget the writes up to now; whether there is one.

        Writes between the last :meth:`wait` and this are not told of.
        """
        if self._system.inotify_add_watch(self._notices, self._path, _MODIFIED) < 0:
            return False
        with contextlib.suppress(BlockingIOError):
            while True:
                os.read(self._notices, _MANY)
        return True

    def wait(self, seconds: float) -> bool:
        """Whether there was a write since :meth:`renew`, or :meth:`end`; at most so long."""
        return bool(self._poll.poll(max(0.0, seconds) * 1000))

    def end(self) -> None:
        """Have :meth:`wait` return at once, now and ever after."""
        os.write(self._end_from, b".")


def _close(descriptors: tuple[int, ...]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)
