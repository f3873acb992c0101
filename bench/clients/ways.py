"""Ways to wait for many operations at once, in a client's process.

A client's module has ``ways(url)``, which returns functions by name. Each waits for many
operations, each from its own start time, and returns the times of the results.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Sequence

Results = dict[str, float]
"""The time of each operation's result, by name."""

Way = Callable[[Sequence[str], Sequence[float]], Results]

failed: dict[str, str] = {}
"""The error of each failed operation, by name."""


def each_in_a_thread(make: Callable[[str], Callable[[], object]]) -> Way:
    """Wait for each operation in a thread; ``make`` prepares the call."""

    def way(names: Sequence[str], begins: Sequence[float]) -> Results:
        at: Results = {}
        calls = {name: make(name) for name in names}

        def one(name: str, begin: float) -> None:
            time.sleep(max(0.0, begin - time.monotonic()))
            try:
                calls[name]()
                at[name] = time.monotonic()
            except Exception as exc:  # reported to the parent
                failed[name] = repr(exc)

        moments = begins or [0.0] * len(names)
        threads = [
            threading.Thread(target=one, args=each) for each in zip(names, moments, strict=True)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return at

    return way


def each_in_a_task(make: Callable[[str], Callable[[], Awaitable[object]]]) -> Way:
    """Wait for each operation in a task, on one event loop."""

    async def all_of_them(names: Sequence[str], begins: Sequence[float]) -> Results:
        at: Results = {}
        calls = {name: make(name) for name in names}

        async def one(name: str, begin: float) -> None:
            if begin:
                await asyncio.sleep(max(0.0, begin - time.monotonic()))
            try:
                await calls[name]()
                at[name] = time.monotonic()
            except Exception as exc:  # reported to the parent
                failed[name] = repr(exc)

        await asyncio.gather(*map(one, names, begins or [0.0] * len(names)))
        return at

    return lambda names, begins: asyncio.run(all_of_them(names, begins))


def together(watch: Callable[[Sequence[str]], Awaitable[Results]]) -> Way:
    """Wait for all operations in one coroutine."""

    async def main(names: Sequence[str]) -> Results:
        return await watch(names)

    return lambda names, _: asyncio.run(main(names))
