"""Operations started by start_async and done on the same event loop: how many a second."""

from __future__ import annotations

import argparse
import asyncio
import gc
import tempfile
import time
from collections.abc import Iterator
from typing import Any, Final

from bench.measure import Figure, alone
from bench.peer import open_store
from bench.start_to_result import Request, make
from bench.starting import postgres_store
from lro.executors.asyncio import AsyncioExecutor

KINDS: Final = ("memory", "sqlite", "postgres")
TARGETS: Final = {"memory": 20_000, "sqlite": 8_000, "postgres": 5_000}

PARSER = argparse.ArgumentParser(prog="python -m bench in_flight")
PARSER.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS)
PARSER.add_argument("--callers", nargs="+", type=int, default=[32, 500])
PARSER.add_argument("--rounds", type=int, default=7)
PARSER.add_argument("--starts", type=int, default=6000)


async def rate(service: Any, method: Any, callers: int, starts: int) -> float:
    """Return the operations per second, from the first start to the last result."""

    async def call() -> None:
        for _ in range(starts // callers):
            operation = (await method.start_async(Request(1))).operation
            if not operation.done:
                operation = await service.wait_async(operation.name)
            assert operation.response is not None

    gc.collect()
    began = time.perf_counter()
    await asyncio.gather(*(call() for _ in range(callers)))
    return starts // callers * callers / (time.perf_counter() - began)


async def rates(kind: str, callers: int, options: argparse.Namespace) -> list[float]:
    executor = AsyncioExecutor(1000, loop="running")
    where = f"{tempfile.mkdtemp()}/operations.db"
    store = postgres_store(()) if kind == "postgres" else open_store(kind, where, "")
    service, method = make(store, executor)
    found = [await rate(service, method, callers, options.starts) for _ in range(options.rounds)]
    await asyncio.to_thread(service.close)
    return found[1:]  # without the round that warms up


def run(options: argparse.Namespace) -> Iterator[Figure]:
    import uvloop

    for kind in options.kinds:
        for callers in options.callers:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                found = runner.run(rates(kind, callers, options))
            yield alone(f"{kind}, {callers} callers", found, unit="/s", target=TARGETS[kind])
