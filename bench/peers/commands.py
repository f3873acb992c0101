"""Measures a candidate by commands on standard input. Needs only the standard library.

``one N`` asks for the median time, in seconds, from the call that creates a piece of work to its
visible result, for N pieces one after the other; ``many N`` asks for the time per piece if N are in
flight at once.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import time
from collections.abc import Awaitable, Callable


def serve(one: Callable[[], object], many: Callable[[int], object]) -> None:
    """Run commands to the end of input: ``one`` does one piece of work, ``many(n)`` does n."""
    print("ready", flush=True)
    for line in sys.stdin:
        what, count = line.split()
        if what == "one":
            times = []
            for _ in range(int(count)):
                began = time.perf_counter()
                one()
                times.append(time.perf_counter() - began)
            print(statistics.median(times), flush=True)
        else:
            began = time.perf_counter()
            many(int(count))
            print((time.perf_counter() - began) / int(count), flush=True)


async def aserve(
    one: Callable[[], Awaitable[object]], many: Callable[[int], Awaitable[object]]
) -> None:
    """Run the same commands with coroutines."""
    print("ready", flush=True)
    while line := await asyncio.to_thread(sys.stdin.readline):
        what, count = line.split()
        if what == "one":
            times = []
            for _ in range(int(count)):
                began = time.perf_counter()
                await one()
                times.append(time.perf_counter() - began)
            print(statistics.median(times), flush=True)
        else:
            began = time.perf_counter()
            await many(int(count))
            print((time.perf_counter() - began) / int(count), flush=True)
