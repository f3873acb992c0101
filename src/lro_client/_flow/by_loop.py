"""Values for each event loop, for clients that are used on several loops."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class ByLoop(Generic[T]):
    """One value for each open event loop. Thread-safe.

    ``make`` makes a value on its loop. The first loop gets ``ready`` instead, unless it is None.
    """

    def __init__(self, make: Callable[[], T], ready: T | None = None) -> None:
        self._make = make
        self._ready = ready
        self._found: dict[asyncio.AbstractEventLoop, T] = {}
        self._lock = threading.Lock()

    def here(self) -> T:
        """Return the value of the running event loop.

        Raises:
            RuntimeError: No event loop runs in this thread.
        """
        loop = asyncio.get_running_loop()
        found = self._found.get(loop)
        if found is not None:
            return found
        with self._lock:
            for other in [one for one in self._found if one.is_closed()]:
                del self._found[other]
            ready, self._ready = self._ready, None
            made = self._found[loop] = self._make() if ready is None else ready
        return made

    def everywhere(self, act: Callable[[T], object]) -> None:
        """Call ``act`` with each value on its loop, without waiting for loops of other threads."""
        with self._lock:
            found = list(self._found.items())
        here = asyncio.get_running_loop()
        for loop, one in found:
            if loop is here:
                act(one)
            elif loop.is_running():
                loop.call_soon_threadsafe(act, one)

    async def end_all(self, end: Callable[[T], Coroutine[Any, Any, object]]) -> None:
        """End each value on its loop, without waiting for loops of other threads."""
        with self._lock:
            found, self._found = self._found, {}
            ready, self._ready = self._ready, None
        here = asyncio.get_running_loop()
        for loop, one in found.items():
            if loop is not here and loop.is_running():
                asyncio.run_coroutine_threadsafe(end(one), loop)
        for mine in (found.get(here), ready):
            if mine is not None:
                await end(mine)
