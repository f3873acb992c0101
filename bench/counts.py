"""Calls of functions, objects, statements and bytes for each operation: they do not vary.

"Calls of ours" are those of functions in ``src``; a generator or coroutine counts again each time
it goes on. "Calls" are all, also those of Python's own functions. Each number is the most common
one of many operations, one after the other. ``tests/full/bench`` compares them with those in
``bench/figures.json``.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import sqlite3
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from statistics import mode
from typing import Any, Final
from unittest import mock

import lro
from bench.across import postgres_server
from bench.measure import MISSING, Figure
from bench.peer import declared
from bench.start_to_result import Request, RunResponse
from bench.starting import PATH, SLOW_PATH, ours
from lro.asgi import OperationsApp
from lro.stores.memory import MemoryStore
from lro.stores.sqlite import SQLiteStore
from lro_client import AsyncClient, Client

TIMES: Final = 21
WARM: Final = 20
"""The number of operations before the first that counts: they fill caches."""
SETTLING: Final = 0.02
"""Seconds after an operation, in which other threads and the work of a start end.

They are longer than the time between two looks for providers of OpenTelemetry, so that each
operation includes one look.
"""
HELD: Final = 200
"""The number of starts that wait for their commit while their objects are counted."""
PARKING: Final = 5
"""Iterations of the event loop after which a call waits."""
PAGE: Final = 100
SOURCE: Final = str(Path(lro.__file__).resolve().parent.parent) + os.sep

LISTENER: Final = "lro-listener"
"""The thread that looks for commits of other processes, by the clock: it does not count."""

_BODY: Final = b'{"steps": 1}'
_OPERATION: Final = (
    b'{"name":"operations/1","metadata":{"@type":"type.googleapis.com/google.protobuf.\
Struct","value":{"percent":40}},"done":false}'
)
_UNTYPED: Final = (80877103, 80877104)
"""The codes of PostgreSQL's requests for encryption, which have no type, as the first message."""

Step = Callable[[], Awaitable[object]]
Settled = Callable[[], bool]
Counts = list[float]


def counting(seen: list[tuple[int, str]]) -> list[str]:
    """Return what the threads have done, without the listener; each is known by its number."""
    done = list(seen)  # at first, because the calls below are seen too
    listeners = {thread.ident for thread in threading.enumerate() if thread.name == LISTENER}
    return [text for number, text in done if number not in listeners]


class Calls:
    """Lists the files of the functions that are called, in this thread and in later ones.

    A function that is written in C has no file.
    """

    def __init__(self) -> None:
        self.seen: list[tuple[int, str]] = []
        self.pause: Counts = [0, 0]
        """The calls of the pause after each operation, which are not its own."""

    def __enter__(self) -> Calls:
        threading.setprofile(self._see)
        sys.setprofile(self._see)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)
        threading.setprofile(None)

    def _see(self, frame: Any, event: str, _: object) -> None:
        if event == "call":
            self.seen.append((threading.get_ident(), frame.f_code.co_filename))
        elif event == "c_call":
            self.seen.append((threading.get_ident(), ""))

    def read(self) -> tuple[float, ...]:
        """Return the calls of ours and all calls since ``seen`` was cleared."""
        files = counting(self.seen)
        return sum(file.startswith(SOURCE) for file in files), len(files)

    async def count(self, step: Step, settled: Settled = lambda: True) -> Counts:
        """Count the calls of an operation."""
        counts = await counted(step, self.seen.clear, self.read, settled)
        return [one - other for one, other in zip(counts, self.pause, strict=True)]


async def counted(
    step: Step,
    clear: Callable[[], object],
    read: Callable[[], tuple[float, ...]],
    settled: Settled = lambda: True,
) -> Counts:
    """Return the most common value of each count."""
    for _ in range(WARM):
        await step()
        await asyncio.sleep(SETTLING)
    found: list[tuple[float, ...]] = []
    while len(found) < TIMES:
        while not settled():
            await asyncio.sleep(SETTLING)
        clear()
        await step()
        await asyncio.sleep(SETTLING)
        counts = read()
        if settled():
            found.append(counts)
    return [mode(one) for one in zip(*found, strict=True)]


def row(what: str, measure: str, count: float, target: float | None = None) -> Figure:
    """Return a count of an operation."""
    unit = {"calls of ours": "calls", "bytes of the log": "bytes"}.get(measure, measure)
    return Figure(what=what, measure=measure, ours=count, unit=unit, target=target, exact=True)


def calls(what: str, counts: Counts, target: float | None = None) -> list[Figure]:
    """Return both counts of calls of an operation."""
    return [row(what, "calls of ours", counts[0], target), row(what, "calls", counts[1])]


async def call(app: Any, path: str, method: str = "POST", body: bytes = _BODY) -> int:
    """Send a request, and return the status code of the reply."""
    path, _, query = path.partition("?")
    headers = {"host": "bench", "content-type": "application/json", "content-length": len(body)}
    scope = {
        "type": "http", "method": method, "path": path, "raw_path": path.encode(),
        "query_string": query.encode(), "scheme": "http", "root_path": "",
        "headers": [(name.encode(), str(value).encode()) for name, value in headers.items()],
    }  # fmt: skip
    sent: list[Any] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    await app(scope, receive, send)
    return int(sent[0]["status"])


async def nothing() -> None:
    """Be an operation whose pause is counted."""


def starting(app: Any, path: str = PATH, status: int = 200) -> tuple[Step, Settled]:
    """Return a function that starts an operation, and one that says if all work has ended."""

    async def step() -> None:
        assert await call(app, path) == status

    return step, lambda: not app.edge.service.edges.work.held()


async def of_starts(seen: Calls, label: str, store: Any, target: float | None) -> list[Figure]:
    """Count the calls of a start with its work and its end, and of a start that is refused."""
    app = ours(store)
    found = calls(f"start, work and end, {label}", await seen.count(*starting(app)), target)
    for _ in range(3):  # a slot becomes free only shortly after the work in it has ended
        while await call(app, SLOW_PATH) == 200:
            pass
        await asyncio.sleep(SETTLING)
    refuse, _ = starting(app, SLOW_PATH, 429)  # the pause is so long that each counts the queue
    found += calls(f"refused start, {label}", await seen.count(refuse))
    await asyncio.to_thread(app.edge.service.close, 0)
    return found


async def of_reads(seen: Calls, label: str, store: Any) -> list[Figure]:
    """Count the calls of a GET, of a page, and of a wait with the end that it waits for."""
    service, method = declared(store)
    app = OperationsApp(service)
    names = [method.start(Request()).name for _ in range(max(PAGE, WARM + TIMES))]
    unended = iter(names)

    async def wait() -> None:
        name = next(unended)
        task = asyncio.create_task(call(app, f"/v1/{name}:wait", body=b'{"timeout": "60s"}'))
        for _ in range(PARKING):
            await asyncio.sleep(0)
        service.reporter(name).complete(RunResponse(1))
        assert await task == 200

    get = await seen.count(lambda: call(app, f"/v1/{names[0]}", "GET", b""))
    page = await seen.count(lambda: call(app, f"/v1/operations?pageSize={PAGE}", "GET", b""))
    found = calls(f"GET, {label}", get) + calls(f"page of {PAGE}, {label}", page)
    if label == "memory":
        found += calls(f"wait and end, {label}", await seen.count(wait))
    await asyncio.to_thread(service.close, 0)
    return found


async def of_clients(seen: Calls, url: str) -> list[Figure]:
    """Count the calls of a poll of the client, from a server that always replies the same."""
    name = "operations/1"
    with Client(url) as client:

        async def get() -> None:
            client.get(name)

        found = calls("poll, Client.get", await seen.count(get))
    async with AsyncClient(url) as client:
        found += calls("poll, AsyncClient.get", await seen.count(lambda: client.get(name)))
    return found


class Served:
    """A thread with a stub of a server, and a proxy that counts what PostgreSQL is sent."""

    def __init__(self) -> None:
        self.sent: Counter[str] = Counter()
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, daemon=True).start()

    def serve(self, handle: Any) -> int:
        """Serve connections with this function, and return the port."""
        starting = asyncio.start_server(handle, "127.0.0.1", 0)
        server = asyncio.run_coroutine_threadsafe(starting, self._loop).result()
        return int(server.sockets[0].getsockname()[1])

    async def stub(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Reply with an operation to each request without a body."""
        head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                await reader.readuntil(b"\r\n\r\n")
                writer.write(head % len(_OPERATION) + _OPERATION)

    def proxy(self, port: int) -> Callable[..., Any]:
        """Return a function that forwards connections to this port of PostgreSQL."""

        async def back(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            while data := await reader.read(65536):
                writer.write(data)
            writer.close()

        async def forth(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            server_reader, server_writer = await asyncio.open_connection("127.0.0.1", port)
            task = asyncio.create_task(back(server_reader, writer))
            typed = False
            with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
                while True:
                    kind = await reader.readexactly(1) if typed else b""
                    size = await reader.readexactly(4)
                    rest = await reader.readexactly(int.from_bytes(size) - 4)
                    server_writer.write(kind + size + rest)
                    self.sent[kind.decode()] += 1
                    typed = typed or int.from_bytes(rest[:4]) not in _UNTYPED
            server_writer.close()
            await task

        return forth

    def read(self) -> tuple[float, float]:
        """Return the statements and the round trips since ``sent`` was cleared."""
        simple = self.sent["Q"]
        return self.sent["E"] + simple, self.sent["S"] + simple


async def of_postgres(served: Served) -> list[Figure]:
    """Count what a start with its end sends to PostgreSQL."""
    server = postgres_server()
    if server is None:
        MISSING.append("statements on PostgreSQL: it is not installed")
        return []
    from lro.stores.postgres import PostgresStore

    port = served.serve(served.proxy(server.port))
    url = server.url.replace(f":{server.port}/", f":{port}/")
    app = ours(PostgresStore(url, schema=server.fresh_schema()))
    step, settled = starting(app)
    counts = await counted(step, served.sent.clear, served.read, settled)
    await asyncio.to_thread(app.edge.service.close)
    what = "start, work and end, PostgreSQL"
    return [row(what, "statements", counts[0]), row(what, "round trips", counts[1])]


async def of_sqlite(path: Path) -> list[Figure]:
    """Count the statements, the commits and the bytes of the log of a start with its end."""
    statements: list[tuple[int, str]] = []
    connect, log = sqlite3.connect, Path(f"{path}-wal")
    sizes = [0]

    def see(statement: str) -> None:
        statements.append((threading.get_ident(), statement))

    def traced(*args: Any, **options: Any) -> sqlite3.Connection:
        connection = connect(*args, **options)
        connection.set_trace_callback(see)
        return connection

    def clear() -> None:
        statements.clear()
        sizes[0] = log.stat().st_size

    def read() -> tuple[float, ...]:
        texts = [one.lstrip().upper() for one in counting(statements)]
        return len(texts), texts.count("COMMIT"), log.stat().st_size - sizes[0]

    with mock.patch.object(sqlite3, "connect", traced):
        app = ours(SQLiteStore(path))
        step, settled = starting(app)
        counts = await counted(step, clear, read, settled)
    await asyncio.to_thread(app.edge.service.close)
    measures = "statements", "commits", "bytes of the log"
    return [
        row("start, work and end, SQLite", measure, count)
        for measure, count in zip(measures, counts, strict=True)
    ]


async def of_objects(path: Path) -> list[Figure]:
    """Count the objects that ``gc`` tracks for a start that waits for its commit on SQLite."""
    app = ours(SQLiteStore(path))
    step, settled = starting(app)
    await counted(step, list, tuple, settled)
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    gc.collect()
    gc.disable()
    before = len(gc.get_objects())
    tasks = [asyncio.create_task(call(app, PATH)) for _ in range(HELD)]
    for _ in range(PARKING):
        await asyncio.sleep(0)
    found = (len(gc.get_objects()) - before) / HELD
    gc.enable()
    other.execute("COMMIT")
    other.close()
    assert set(await asyncio.gather(*tasks)) == {200}
    await asyncio.to_thread(app.edge.service.close)
    return [row("start that waits for its commit, SQLite", "objects", round(found))]


def run() -> Iterator[Figure]:
    served = Served()
    url = f"http://127.0.0.1:{served.serve(served.stub)}"

    async def main() -> list[Figure]:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            found = await of_objects(folder / "1.db") + await of_sqlite(folder / "2.db")
            found += await of_postgres(served)
            with Calls() as seen:
                seen.pause = await seen.count(nothing)
                found += await of_starts(seen, "memory", MemoryStore(), 100)
                found += await of_starts(seen, "SQLite", SQLiteStore(folder / "3.db"), None)
                found += await of_reads(seen, "memory", MemoryStore())
                found += await of_reads(seen, "SQLite", SQLiteStore(folder / "4.db"))
                found += await of_clients(seen, url)
        return found

    yield from asyncio.run(main())
