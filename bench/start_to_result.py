"""Start an operation, do trivial work, see the result; against the least the storage can cost."""

from __future__ import annotations

import asyncio
import itertools
import sqlite3
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import attrs

import lro
from bench.measure import compare
from lro.executors.asyncio import AsyncioExecutor
from lro.executors.inline import InlineExecutor
from lro.executors.threads import ThreadExecutor
from lro.stores.memory import MemoryStore
from lro.stores.sqlite import SQLiteStore

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


def make(store: object, executor: object) -> tuple[lro.Service, lro.Method]:  # type: ignore[type-arg]
    service = lro.Service(store, executor)  # type: ignore[arg-type]

    @service.method("bench.v1.Bench.Run")
    def run(request: Request, _: lro.Job[Progress]) -> RunResponse:
        return RunResponse(request.steps)

    return service, run


def one_by_one(service: lro.Service, method: lro.Method) -> Callable[[], float]:  # type: ignore[type-arg]
    def sample() -> float:
        began = time.perf_counter()
        for _ in range(ONE_BY_ONE):
            operation = method.start(Request(1))
            if not operation.done:
                operation = service.wait(operation.name)
            assert operation.done
        return (time.perf_counter() - began) / ONE_BY_ONE

    return sample


def in_flight(service: lro.Service, method: lro.Method) -> Callable[[], float]:  # type: ignore[type-arg]
    def sample() -> float:
        began = time.perf_counter()
        names = [method.start(Request(1)).name for _ in range(IN_FLIGHT)]
        for name in names:
            assert service.wait(name).done
        return (time.perf_counter() - began) / IN_FLIGHT

    return sample


def dict_floor() -> float:
    """An event loop and a dictionary: create a task, await its result."""

    async def main() -> float:
        kept: dict[int, object] = {}

        async def work(number: int) -> None:
            kept[number] = ("done", 1)

        began = time.perf_counter()
        for number in range(ONE_BY_ONE):
            kept[number] = ("in progress", None)
            await asyncio.create_task(work(number))
            assert kept[number]
        return (time.perf_counter() - began) / ONE_BY_ONE

    return asyncio.run(main())


def sqlite_floor(path: Path) -> Callable[[], float]:
    """Two durable transactions on a table of one key and one text, and a read."""
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("CREATE TABLE kept (name TEXT PRIMARY KEY, value TEXT)")
    numbers = itertools.count()

    def sample() -> float:
        began = time.perf_counter()
        for _ in range(ONE_BY_ONE):
            name = f"operations/{next(numbers)}"
            connection.execute("INSERT INTO kept VALUES (?, '{}')", (name,))
            connection.execute("UPDATE kept SET value = '{\"total\": 1}' WHERE name = ?", (name,))
            connection.execute("SELECT value FROM kept WHERE name = ?", (name,)).fetchone()
        return (time.perf_counter() - began) / ONE_BY_ONE

    return sample


def run() -> Iterator[str]:
    executors = {
        "inline": InlineExecutor,
        "asyncio": AsyncioExecutor,
        "threads": lambda: ThreadExecutor(4, queue=IN_FLIGHT + 10),
    }
    with tempfile.TemporaryDirectory() as folder:
        floor = sqlite_floor(Path(folder) / "floor.db")
        for label, make_executor in executors.items():
            service, method = make(MemoryStore(), make_executor())
            yield str(compare(f"memory, {label}", one_by_one(service, method), dict_floor))
            service.close()
            service, method = make(SQLiteStore(Path(folder) / f"{label}.db"), make_executor())
            yield str(compare(f"SQLite FULL, {label}", one_by_one(service, method), floor))
            service.close()
        service, method = make(MemoryStore(), executors["threads"]())
        many = compare(f"memory, {IN_FLIGHT} in flight", in_flight(service, method), dict_floor)
        yield f"{many}  {1e6 / many.ours:,.0f}/s"
        service.close()
        service, method = make(SQLiteStore(Path(folder) / "many.db"), executors["threads"]())
        many = compare(
            f"SQLite, {IN_FLIGHT} in flight", in_flight(service, method), floor, rounds=3
        )
        yield f"{many}  {1e6 / many.ours:,.0f}/s"
        service.close()
