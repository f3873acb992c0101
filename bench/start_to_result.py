"""Start to result in memory; against an event loop and a dictionary."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import attrs

import lro
from bench.measure import Figure, Sample, compare, percentile
from lro.executors.asyncio import AsyncioExecutor
from lro.executors.inline import InlineExecutor
from lro.executors.threads import ThreadExecutor
from lro.stores.memory import MemoryStore
from lro.telemetry import Telemetry

ONE_BY_ONE = 400
IN_FLIGHT = 2000


@attrs.frozen
class Request:
    steps: lro.Int32 = 0


@attrs.frozen
class Progress:
    percent: lro.Int32 = 0


@attrs.frozen
class RunResponse:
    total: lro.Int32 = 0


def make(store: Any, executor: Any, **options: Any) -> tuple[lro.Service, Any]:
    """Return a service and its method, whose work does almost nothing."""
    service = lro.Service(store, executor, **options)

    def run(request: Request, _: lro.Job[Progress]) -> RunResponse:
        return RunResponse(request.steps)

    async def arun(request: Request, _: lro.Job[Progress]) -> RunResponse:
        return RunResponse(request.steps)

    function: Any = arun if isinstance(executor, AsyncioExecutor) else run
    return service, service.method("bench.v1.Bench.Run")(function)


def one_by_one(service: lro.Service, method: Any, times: int = ONE_BY_ONE) -> Sample:
    """Measure the median time from the call that starts an operation to its result."""

    def sample() -> float:
        found = []
        for _ in range(times):
            began = time.perf_counter()
            operation = method.start(Request(1)).operation
            if not operation.done:
                operation = service.wait(operation.name)
            assert operation.response is not None
            found.append(time.perf_counter() - began)
        return percentile(found, 0.5)

    return sample


def in_flight(
    service: lro.Service, method: Any, times: int = IN_FLIGHT, callers: int = 1
) -> Sample:
    """Measure the time per operation with many in flight, from first start to last result.

    Each caller is a thread, which starts its share before it waits for the first result.
    """

    def call() -> None:
        names = [method.start(Request(1)).name for _ in range(times // callers)]
        for name in names:
            assert service.wait(name).response is not None

    def sample() -> float:
        threads = [threading.Thread(target=call) for _ in range(callers)]
        began = time.perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return (time.perf_counter() - began) / (times // callers * callers)

    return sample


def dict_one_by_one() -> float:
    """Measure the floor: create a task, and await the value that it puts into a dictionary."""

    async def main() -> float:
        kept: dict[int, object] = {}

        async def work(number: int) -> None:
            kept[number] = ("done", 1)

        found = []
        for number in range(ONE_BY_ONE):
            began = time.perf_counter()
            kept[number] = ("in progress", None)
            await asyncio.create_task(work(number))
            assert kept[number][0] == "done"  # type: ignore[index]
            found.append(time.perf_counter() - began)
        return percentile(found, 0.5)

    return asyncio.run(main())


def dict_in_flight() -> float:
    """Measure the floor for many operations: the same number of tasks at once."""

    async def main() -> float:
        kept: dict[int, object] = {}

        async def work(number: int) -> None:
            kept[number] = ("done", 1)

        began = time.perf_counter()
        tasks = []
        for number in range(IN_FLIGHT):
            kept[number] = ("in progress", None)
            tasks.append(asyncio.create_task(work(number)))
        for task in tasks:
            await task
        return (time.perf_counter() - began) / IN_FLIGHT

    return asyncio.run(main())


EXECUTORS: dict[str, Callable[[], Any]] = {
    "inline": InlineExecutor,
    "threads": lambda: ThreadExecutor(4),
    "asyncio": lambda: AsyncioExecutor(),
}


def run() -> Iterator[Figure]:
    for label, make_executor in EXECUTORS.items():
        service, method = make(MemoryStore(), make_executor())
        with service:
            what, target = f"memory, {label}", 4 if label == "inline" else None
            ours = one_by_one(service, method)
            yield compare(what, ours, dict_one_by_one, measure="p50", target=target)
    for label in ("inline", "threads"):
        service, method = make(MemoryStore(), EXECUTORS[label]())
        with service:
            what = f"memory, {label}, {IN_FLIGHT} in flight"
            many = in_flight(service, method)
            yield compare(what, many, dict_in_flight, unit="/s", target=20_000, absolute=True)
    yield from with_telemetry()


def with_telemetry() -> Iterator[Figure]:
    """Compare telemetry without a provider, without the API, and with spans, to telemetry off."""
    from opentelemetry.sdk.trace import TracerProvider

    options = {
        "no provider": None,
        "no API package": None,
        "spans that are not exported": Telemetry(tracer_provider=TracerProvider()),
    }
    for title, telemetry in options.items():
        for label in ("inline", "threads"):
            with contextlib.ExitStack() as stack:
                pair = [
                    make(MemoryStore(), EXECUTORS[label](), telemetry=chosen)
                    for chosen in (telemetry, False)
                ]
                for service, _ in pair:
                    stack.enter_context(service)
                if title == "no API package":
                    stack.enter_context(mock.patch("lro._engine.telemetry._api", return_value=None))
                ours, off = [one_by_one(*one) for one in pair]
                name = f"memory, {label}, {title} / no telemetry"
                yield compare(name, ours, off, rounds=21)
