"""This library: ``on_lro.py memory``, ``on_lro.py FILE`` or ``on_lro.py URL``.

A further argument ``loop`` uses an event loop; ``steps N`` runs a function of N steps.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from typing import Any

import attrs

try:
    from commands import aserve, serve
except ImportError:
    from bench.peers.commands import aserve, serve

import lro
from lro.executors.asyncio import AsyncioExecutor
from lro.executors.threads import ThreadExecutor

CALLERS = 64
"""Threads that start operations and wait; with a blocking store, as many threads do the work."""

COROUTINES = 200
"""Coroutines that start operations and wait, on the event loop that does the work too."""


@attrs.frozen
class Request:
    number: lro.Int32 = 0


@attrs.frozen
class Progress:
    percent: lro.Int32 = 0


@attrs.frozen
class RunResponse:
    number: lro.Int32 = 0


def store(where: str) -> Any:
    if where == "memory":
        from lro.stores.memory import MemoryStore

        return MemoryStore()
    if where.startswith("postgresql:"):
        from lro.stores.postgres import PostgresStore

        return PostgresStore(where)
    from lro.stores.sqlite import SQLiteStore

    return SQLiteStore(where)


async def asame(number: int) -> int:
    return number


async def on_loop(where: str, steps: int) -> None:
    """Start with start_async, and do the work on the same event loop."""
    service = lro.Service(store(where), AsyncioExecutor(1000, loop="running"))

    @service.method("bench.v1.Bench.Run")
    async def run(request: Request, job: lro.Job[Progress]) -> RunResponse:
        number = request.number
        for step in range(steps):
            number = await job.step_async(str(step), asame, number)
        return RunResponse(number)

    async def one() -> None:
        operation = await run.start_async(Request(1))
        assert (await service.wait_async(operation.name)).response is not None

    async def some(count: int) -> None:
        for _ in range(count):
            await one()

    async def many(count: int) -> None:
        await asyncio.gather(*(some(count // COROUTINES) for _ in range(COROUTINES)))

    await aserve(one, many)
    await asyncio.to_thread(service.close)


def main(where: str, steps: int) -> None:
    callers = 1 if where == "memory" else CALLERS
    workers = 4 if where == "memory" else CALLERS
    service = lro.Service(store(where), ThreadExecutor(workers))

    @service.method("bench.v1.Bench.Run")
    def run(request: Request, job: lro.Job[Progress]) -> RunResponse:
        number = request.number
        for step in range(steps):
            number = job.step(str(step), int, number)
        return RunResponse(number)

    def one() -> None:
        assert service.wait(run.start(Request(1)).name).response is not None

    def some(count: int) -> None:
        names = [run.start(Request(1)).name for _ in range(count)]
        for name in names:
            assert service.wait(name).response is not None

    def many(count: int) -> None:
        threads = [threading.Thread(target=some, args=(count // callers,)) for _ in range(callers)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    with service:
        serve(one, many)


if __name__ == "__main__":
    steps = int(sys.argv[-1]) if "steps" in sys.argv else 0
    if "loop" in sys.argv:
        asyncio.run(on_loop(sys.argv[1], steps))
    else:
        main(sys.argv[1], steps)
