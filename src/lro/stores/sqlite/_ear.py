"""How a process hears that another one has written to the file: by its change counter."""

from __future__ import annotations

import threading
import time

from lro.stores.sqlite._writer import Writer


class CounterEar:
    """Looks at SQLite's counter of commits by others every ``look_seconds``.

    The counter names nobody, so that what is heard is always that anything may have changed.

    Raises:
        Unavailable: The store is closed, or the file cannot be read.
    """

    def __init__(self, writer: Writer, look_seconds: float) -> None:
        self._writer = writer
        self._look_seconds = look_seconds
        self._closed = threading.Event()
        self._known = writer.commits_by_others()

    def heard(self, seconds: float) -> tuple[str, ...] | None:
        """None as soon as another process has committed, () when the seconds are over.

        Raises:
            Unavailable: The store is closed, or the file cannot be read.
        """
        end = time.monotonic() + seconds
        while not self._closed.is_set():
            found = self._writer.commits_by_others()
            if found != self._known:
                self._known = found
                return None
            left = end - time.monotonic()
            if left <= 0:
                break
            self._closed.wait(min(left, self._look_seconds))
        return ()

    def close(self) -> None:
        """Have ``heard`` return. Idempotent."""
        self._closed.set()
