"""The server's clock, known without asking: the one clock of all processes on the store."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import datetime
from typing import Final

from lro.stores._rows import moment

PERIOD_SECONDS: Final = 60.0
"""How long a measurement is good: quartz clocks drift by a few milliseconds in that time."""

ASK: Final = "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint"
"""The server's time in SQL, in microseconds since 1970."""


class ServerClock:
    """How far the server's clock is ahead of this process's monotonic one, which nobody sets.

    ``monotonic`` gives seconds, as :func:`time.monotonic` does.
    """

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self.monotonic = monotonic
        self._ahead = 0
        self._slack: int | None = None
        self._due = 0.0

    def now(self) -> datetime:
        """The moment by the server's clock, in UTC."""
        return moment(_micros(self.monotonic()) + self._ahead)

    def due(self) -> bool:
        """Whether it is time to measure again; who is told so does it."""
        now = self.monotonic()
        if now < self._due:
            return False
        self._due = now + PERIOD_SECONDS
        return True

    def measured(self, server: int, began: float, ended: float) -> None:
        """Between these two moments of the monotonic clock the server's showed this.

        An estimate that agrees with the last one, within what the two round trips leave open, does
        not move the clock: it must not tremble with the network.
        """
        ahead = server - _micros((began + ended) / 2)
        slack = _micros((ended - began) / 2)
        self._due = self.monotonic() + PERIOD_SECONDS
        agrees = self._slack is not None and abs(ahead - self._ahead) <= slack + self._slack
        if not agrees or self._slack is None or slack < self._slack:
            self._ahead, self._slack = ahead, slack


def _micros(seconds: float) -> int:
    return round(seconds * 1_000_000)
