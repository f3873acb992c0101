"""Store calls of a process that has nothing to do, alone and with waiting clients."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from typing import Any, Final

import lro
from bench.measure import Figure
from bench.parked import Counted
from bench.start_to_result import Progress, Request, RunResponse
from lro.executors.threads import ThreadExecutor

SECONDS: Final = 60.0
"""The length of a measurement: four leases, so that it includes a check for orphans."""
WAITERS: Final = 100


def work(request: Request, _: lro.Job[Progress]) -> RunResponse:
    """Do the work of an operation; no operation of this method is ever started."""
    return RunResponse(request.steps)


def idle_load(stores: Mapping[str, Callable[[], Any]]) -> Iterator[Figure]:
    """Measure store calls and the process's CPU, with an idle service on each store at once."""
    counted = {label: Counted(make()) for label, make in stores.items()}
    services = [
        lro.Service(store, ThreadExecutor(2), max_wait=timedelta(minutes=5))
        for store in counted.values()
    ]
    methods = [
        service.declare(
            "bench.v1.Bench.Run", request=Request, response=RunResponse, metadata=Progress
        )
        for service in services
    ]
    for service in services:
        service.method("bench.v1.Bench.Here")(work)
        service.edges.start_maintenance()
    try:
        time.sleep(1.0)  # until the calls at startup are over

        async def wait() -> None:
            waiters = [
                asyncio.create_task(service.wait_async(method.start(Request()).name))
                for service, method in zip(services, methods, strict=True)
                for _ in range(WAITERS)
            ]
            while sum(service.edges.waiters.waiting for service in services) < len(waiters):
                await asyncio.sleep(0.01)
            await asyncio.sleep(1.0)  # until every waiter has read its operation
            rows.extend(await asyncio.to_thread(_asked, f"{WAITERS} clients wait", counted, 1))
            for waiter in waiters:
                waiter.cancel()

        rows = _asked("idle process", counted, 0.2)
        asyncio.run(wait())
        yield from rows
    finally:
        for service in services:
            service.close(0)


def _asked(title: str, counted: Mapping[str, Counted], target: float) -> list[Figure]:
    for store in counted.values():
        store.calls.clear()
    cpu = time.process_time()
    time.sleep(SECONDS)
    share = (time.process_time() - cpu) / SECONDS
    rows = [
        Figure(
            what=f"{title}, {label}",
            measure="store calls a second",
            ours=store.calls.total() / SECONDS,
            unit="calls",
            target=target,
        )
        for label, store in counted.items()
    ]
    shown = Figure(what=f"{title}, all stores", measure="CPU", ours=share * 100, unit="% of a core")
    return [*rows, shown]
