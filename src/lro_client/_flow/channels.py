"""Where a thread, or a coroutine, waits for what others find."""

from __future__ import annotations

import asyncio
import collections
import queue
from collections.abc import Awaitable, Callable
from typing import Any

_GLANCE_SECONDS = 0.01
"""How often one looks at a clock that does not go by itself."""


class ThreadChannel:
    """What a thread waits for, by a clock that may be another than that of the machine."""

    def __init__(self, clock: Callable[[], float] | None) -> None:
        self._items: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._clock = clock
        self.put = self._items.put

    def take(self, seconds: float | None) -> Any:
        """The next item; None if there is none for so long."""
        if self._clock is None or seconds is None:
            return self._take(seconds)
        end = self._clock() + seconds
        found = self._take(_GLANCE_SECONDS)
        while found is None and self._clock() < end:
            found = self._take(_GLANCE_SECONDS)
        return found

    def _take(self, seconds: float | None) -> Any:
        try:
            return self._items.get(timeout=seconds)
        except queue.Empty:
            return None


class LoopChannel:
    """What a coroutine waits for. For one event loop."""

    def __init__(self, sleep: Callable[[float], Awaitable[None]]) -> None:
        self._sleep = sleep
        self._items: collections.deque[Any] = collections.deque()
        self._waiter: asyncio.Future[None] | None = None

    def put(self, item: Any) -> None:
        """Add an item."""
        self._items.append(item)
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def take(self, seconds: float | None) -> Any:
        """The next item; None if there is none for so long."""
        if not self._items:
            self._waiter = asyncio.get_running_loop().create_future()
            await until(self._waiter, seconds, self._sleep)
        return self._items.popleft() if self._items else None


async def until(
    event: Awaitable[Any],
    seconds: float | None,
    sleep: Callable[[float], Awaitable[None]],
) -> None:
    """Wait for the event, but for no longer."""
    waited = [asyncio.ensure_future(event)]
    if seconds is not None and sleep is not asyncio.sleep:
        waited.append(asyncio.ensure_future(sleep(seconds)))
        seconds = None
    try:
        await asyncio.wait(waited, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for one in waited:
            one.cancel()
