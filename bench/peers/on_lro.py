"""This library: ``on_lro.py memory``, ``on_lro.py FILE`` or ``on_lro.py URL``."""

from __future__ import annotations

import sys
import threading
from typing import Any

import attrs
from commands import serve

import lro
from lro.executors.threads import ThreadExecutor

CALLERS = 64
"""Threads that start operations and wait for them; as many do the work, where a store may wait."""


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


def main(where: str) -> None:
    callers = 1 if where == "memory" else CALLERS
    workers = 4 if where == "memory" else CALLERS
    service = lro.Service(store(where), ThreadExecutor(workers, queue=10_000))

    @service.method("bench.v1.Bench.Run")
    def run(request: Request, _: lro.Job[Progress]) -> RunResponse:
        return RunResponse(request.number)

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
    main(sys.argv[1])
