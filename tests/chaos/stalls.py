"""When the machine gave the harness no processor: no server is to blame for that time."""

from __future__ import annotations

import asyncio
import time
from typing import Final

BEAT_SECONDS: Final = 0.05
"""How often the harness looks whether it is late."""
TOLERATED_SECONDS: Final = 0.1
"""How late it may be without that being called a stall."""


class Stalls:
    """The spans in which the harness's own event loop stood still, by the monotonic clock."""

    def __init__(self) -> None:
        self._spans: list[tuple[float, float]] = []

    async def watch(self) -> None:
        """Look out for stalls, until cancelled."""
        while True:
            due = time.monotonic() + BEAT_SECONDS
            await asyncio.sleep(BEAT_SECONDS)
            now = time.monotonic()
            if now - due > TOLERATED_SECONDS:
                self._spans.append((due, now))

    def within(self, begin: float, end: float) -> float:
        """How many seconds between two moments it stood still."""
        return sum(max(0.0, min(end, b) - max(begin, a)) for a, b in self._spans)
