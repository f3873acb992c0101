"""The servers of the start benches: ``python -m bench.starting KIND PORT [WHERE [SCHEMA]]``.

``WHERE`` is the file or URL of a store that several servers share. ``frozen`` is ``sqlite`` in an
application that calls ``gc.freeze()`` after startup, and ``threads`` with a blocking function.
"""

from __future__ import annotations

import asyncio
import gc
import json
import queue
import secrets
import sqlite3
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import lro
from bench.across import postgres_server
from bench.serving import bare, serve
from bench.start_to_result import Progress, Request, RunResponse
from lro.asgi import OperationsApp
from lro.executors.asyncio import AsyncioExecutor
from lro.executors.threads import ThreadExecutor
from lro.stores.memory import MemoryStore
from lro.stores.sqlite import SQLiteStore

TAKEN = 1000
"""The number of accepted slow operations: half of them run, half wait."""
SLOW_SECONDS = 60
PATH = "/v1/things:run"
SLOW_PATH = "/v1/things:wait"


class FloorWriter:
    """A thread that commits all queued statements together, and wakes the loop once per group.

    The statements are those that our store needs: a record, its request, and the end.
    """

    def __init__(self, path: str) -> None:
        self._queue: queue.SimpleQueue[tuple[asyncio.Future[None], list[Any]]] = queue.SimpleQueue()
        self._path = path
        self._loop = asyncio.get_running_loop()
        threading.Thread(target=self._live, daemon=True).start()

    async def write(self, *statements: tuple[str, tuple[Any, ...]]) -> None:
        """Return after these statements have been committed."""
        future = self._loop.create_future()
        self._queue.put((future, list(statements)))
        await future

    def _live(self) -> None:
        file = sqlite3.connect(self._path, isolation_level=None)
        file.execute("PRAGMA journal_mode = WAL")
        file.execute("PRAGMA synchronous = FULL")
        file.execute(
            "CREATE TABLE operations (name TEXT PRIMARY KEY, method TEXT, state TEXT, result TEXT)"
        )
        file.execute("CREATE TABLE inputs (name TEXT PRIMARY KEY, request TEXT)")
        while True:
            group = [self._queue.get()]
            while not self._queue.empty():
                group.append(self._queue.get())
            file.execute("BEGIN IMMEDIATE")
            for _, statements in group:
                for sql, values in statements:
                    file.execute(sql, values)
            file.execute("COMMIT")
            futures = [future for future, _ in group]
            self._loop.call_soon_threadsafe(self._over, futures)

    def _over(self, futures: list[asyncio.Future[None]]) -> None:
        for future in futures:
            future.set_result(None)


def floor(path: str) -> Any:
    """Return an application with the cheapest durable start, without checks, leases or lists."""
    writers: list[FloorWriter] = []
    tasks: set[asyncio.Task[None]] = set()

    async def work(name: str, request: Any) -> None:
        result = json.dumps({"total": request["steps"]})
        await writers[0].write(
            ("UPDATE operations SET state = 'DONE', result = ? WHERE name = ?", (result, name)),
            ("DELETE FROM inputs WHERE name = ?", (name,)),
        )

    async def app(_: Any, receive: Any, send: Any) -> None:
        if not writers:
            writers.append(FloorWriter(path))
        body = (await receive())["body"]
        request = json.loads(body)
        name = f"operations/{secrets.token_urlsafe(16)}"
        await writers[0].write(
            ("INSERT INTO operations VALUES (?, 'run', 'IN_PROGRESS', NULL)", (name,)),
            ("INSERT INTO inputs VALUES (?, ?)", (name, body)),
        )
        task = asyncio.get_running_loop().create_task(work(name, request))
        tasks.add(task)
        task.add_done_callback(tasks.discard)
        found = json.dumps({"name": name, "done": False}).encode()
        headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(found))]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": found})

    return app


def on_threads(store: Any) -> Any:
    """Return our ASGI application with a function that returns at once, on enough threads."""
    service = lro.Service(store, ThreadExecutor(128))

    @service.method("bench.v1.Bench.Run", path=PATH)
    def run(request: Request, _: lro.Job[Progress]) -> RunResponse:
        return RunResponse(request.steps)

    return OperationsApp(service, starts=True)


def ours(store: Any) -> Any:
    """Return our ASGI application with a method that returns at once."""
    executor = AsyncioExecutor(TAKEN // 2, loop="running")
    service = lro.Service(store, executor, limits=lro.Limits(backlog=TAKEN // 2))

    @service.method("bench.v1.Bench.Run", path=PATH)
    async def run(request: Request, _: lro.Job[Progress]) -> RunResponse:
        return RunResponse(request.steps)

    @service.method("bench.v1.Bench.Wait", path=SLOW_PATH)
    async def wait(request: Request, job: lro.Job[Progress]) -> RunResponse:
        await job.sleep_async(SLOW_SECONDS)
        return RunResponse(request.steps)

    return OperationsApp(service, starts=True)


def postgres_store(where: Sequence[str]) -> Any:
    """Return a store on the server at a URL, or on this process's own server."""
    from lro.stores.postgres import PostgresStore

    if where:
        url, schema = where
        return PostgresStore(url, schema=schema)
    server = postgres_server()
    assert server is not None
    return PostgresStore(server.url, schema=server.fresh_schema())


def main(kind: str, port: int, *where: str) -> None:
    folder = Path(tempfile.mkdtemp())
    apps: dict[str, Callable[[], Any]] = {
        "bare": lambda: bare(b"{}"),
        "floor": lambda: floor(str(folder / "floor.db")),
        "memory": lambda: ours(MemoryStore()),
        "sqlite": lambda: ours(SQLiteStore(where[0] if where else folder / "operations.db")),
        "threads": lambda: on_threads(SQLiteStore(folder / "operations.db")),
        "frozen": lambda: ours(SQLiteStore(folder / "operations.db")),
        "postgres": lambda: ours(postgres_store(where)),
    }
    app = apps[kind]()
    if kind == "frozen":
        gc.freeze()
    print(time.time(), flush=True)
    serve(app, port)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), *sys.argv[3:])
