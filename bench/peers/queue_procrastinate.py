"""Procrastinate: ``queue_procrastinate.py front URL`` or ``queue_procrastinate.py work URL``.

The task is a plain function, which the worker runs in a thread. NOTIFY wakes the worker.
"""

from __future__ import annotations

import asyncio
import sys

import procrastinate
from queued import SLOTS, note, serve_front

AT_ONCE = 500


def work() -> None:
    note()


def front(url: str) -> None:
    app = procrastinate.App(connector=procrastinate.SyncPsycopgConnector(conninfo=url))
    task = app.task(name="work")(work)
    with app.open():
        app.schema_manager.apply_schema()

        def fill(count: int) -> None:
            for first in range(0, count, AT_ONCE):
                task.batch_defer(*({} for _ in range(min(AT_ONCE, count - first))))

        serve_front(fill, task.defer)


async def worker(url: str) -> None:
    app = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=url, max_size=10))
    app.task(name="work")(work)
    async with app.open_async():
        print("ready", flush=True)
        await app.run_worker_async(concurrency=SLOTS)


if __name__ == "__main__":
    if sys.argv[1] == "front":
        front(sys.argv[2])
    else:
        asyncio.run(worker(sys.argv[2]))
