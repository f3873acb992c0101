"""Waiters parked in one process, woken by one notification; against bare asyncio futures."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from collections.abc import Iterator

from bench.measure import Figure, compare
from bench.peer import declared
from bench.start_to_result import Request, RunResponse
from lro.stores.memory import MemoryStore

WAITERS = 10_000


async def ours(many_names: bool) -> float:
    """Return the seconds until the last waiter is awake; no thread is added."""
    service, method = declared(MemoryStore())
    count = WAITERS if many_names else 1
    names = [method.start(Request()).name for _ in range(count)]
    threads = threading.active_count()
    awake: list[float] = []

    async def wait(name: str) -> None:
        operation = await service.wait_async(name)
        awake.append(time.perf_counter())
        assert operation.done

    tasks = [asyncio.create_task(wait(names[n % count])) for n in range(WAITERS)]
    while service.edges.waiters.waiting < WAITERS:
        await asyncio.sleep(0)
    assert threading.active_count() == threads
    reporters = [service.reporter(name) for name in names]
    gc.collect()  # so that earlier garbage is not collected during the measurement
    began = time.perf_counter()
    for reporter in reporters:
        reporter.complete(RunResponse(1))
    await asyncio.gather(*tasks)
    return max(awake) - began


async def bare() -> float:
    """Return the same time for bare futures with timeouts."""
    loop = asyncio.get_running_loop()
    futures = [loop.create_future() for _ in range(WAITERS)]
    awake: list[float] = []

    async def wait(future: asyncio.Future[None]) -> None:
        handle = loop.call_later(60, lambda: None)
        await future
        handle.cancel()
        awake.append(time.perf_counter())

    tasks = [asyncio.create_task(wait(future)) for future in futures]
    await asyncio.sleep(0.2)
    gc.collect()
    began = time.perf_counter()
    for future in futures:
        future.set_result(None)
    await asyncio.gather(*tasks)
    return max(awake) - began


def run() -> Iterator[Figure]:
    for many, label, target in ((False, "one operation", 2), (True, "one operation each", 4)):
        yield compare(
            f"{WAITERS:,} wait for {label}",
            lambda many=many: asyncio.run(ours(many)),  # type: ignore[misc]
            lambda: asyncio.run(bare()),
            rounds=5,
            scale=1e3,
            unit="ms",
            measure="last awake",
            target=target,
        )
