"""How a process hears that another one has written to the file: by its change counter."""

from __future__ import annotations

import threading
import time

from lro._errors import Unavailable
from lro.stores.sqlite._connections import Connections

LOOK_SECONDS = 0.01
"""How often the counter is looked at."""


class CounterEar:
    """Looks at the counter of commits by others every ``LOOK_SECONDS``."""

    def __init__(self, file: Connections) -> None:
        self._file = file
        self._closed = threading.Event()
        self._seen = file.foreign_commits()

    def heard(self, seconds: float) -> tuple[str, ...] | None:
        """None as soon as another process has committed, () when the seconds are over."""
        end = time.monotonic() + seconds
        while True:
            if self._closed.is_set():
                raise Unavailable("the ear is closed")
            found = self._file.foreign_commits()
            if found is not None and found != self._seen:
                self._seen = found
                return None
            left = end - time.monotonic()
            if left <= 0:
                return ()
            self._closed.wait(min(left, LOOK_SECONDS))

    def close(self) -> None:
        """End a ``heard`` that is waiting. Idempotent."""
        self._closed.set()
