"""Log lines that are written at most once a minute."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final

PERIOD_SECONDS: Final = 60.0
_TEXTS: Final = 100


class RecurringLine:
    """Decides which log lines are due: each text at most once a minute."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._next: dict[str, float] = {}

    def is_due(self, text: str = "") -> bool:
        """Return True if this text may be logged now; it may be logged again a minute later."""
        now = self._clock()
        with self._lock:
            if now < self._next.get(text, now):
                return False
            if len(self._next) >= _TEXTS:
                self._next.clear()
            self._next[text] = now + PERIOD_SECONDS
            return True
