"""Periods in which the harness itself got no CPU, which must not be blamed on a server."""

from __future__ import annotations

import asyncio
import time
from typing import Final

BEAT_SECONDS: Final = 0.05
"""The seconds between two checks of whether the harness is late."""
TOLERATED_SECONDS: Final = 0.1
"""A delay up to this many seconds is not a stall."""


class Stalls:
    """The periods in which the harness's event loop was stalled, by the monotonic clock."""

    def __init__(self) -> None:
        self._spans: list[tuple[float, float]] = []

    async def watch(self) -> None:
        """Record stalls until cancelled."""
        while True:
            due = time.monotonic() + BEAT_SECONDS
            await asyncio.sleep(BEAT_SECONDS)
            now = time.monotonic()
            if now - due > TOLERATED_SECONDS:
                self._spans.append((due, now))

    def within(self, begin: float, end: float) -> float:
        """Return for how many seconds between two moments the harness was stalled."""
        return sum(max(0.0, min(end, b) - max(begin, a)) for a, b in self._spans)
