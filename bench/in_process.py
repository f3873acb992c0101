"""A start through the ASGI application, without a server: its CPU, its calls, and its objects."""

from __future__ import annotations

import asyncio
import cProfile
import gc
import pstats
import sqlite3
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any, Final

from bench.starting import PATH, SLOW_PATH, ours
from lro.stores.memory import MemoryStore
from lro.stores.sqlite import SQLiteStore

ROUNDS: Final = 20
STARTS: Final = 640
CALLERS: Final = 32
HELD: Final = 200
"""The number of starts that wait for their commit while their objects are counted."""

_BODY: Final = b'{"steps": 1}'
_HEADERS: Final = (
    (b"host", b"bench"),
    (b"content-type", b"application/json"),
    (b"content-length", b"12"),
)


async def call(app: Any, path: str) -> int:
    """POST to a path, and return the status code of the reply."""
    scope = {
        "type": "http", "method": "POST", "path": path, "raw_path": path.encode(),
        "query_string": b"", "headers": list(_HEADERS), "scheme": "http", "root_path": "",
    }  # fmt: skip
    sent: list[Any] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": _BODY, "more_body": False}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    await app(scope, receive, send)
    return int(sent[0]["status"])


async def starts(app: Any, path: str) -> set[int]:
    """Send starts from many callers until all work is done, and return the status codes."""

    async def some() -> set[int]:
        found = set()
        for _ in range(STARTS // CALLERS):
            found.add(await call(app, path))
            await asyncio.sleep(0)
        return found

    found = set[int]().union(*await asyncio.gather(*(some() for _ in range(CALLERS))))
    while path == PATH and app.edge.service.edges.work.held():
        await asyncio.sleep(0)
    return found


async def cpu(app: Any, path: str, status: int) -> float:
    """Return the seconds of CPU per start, as the median of the rounds."""
    found = []
    for _ in range(ROUNDS):
        began = time.process_time()
        assert await starts(app, path) == {status}
        found.append((time.process_time() - began) / STARTS)
    return median(found)


async def calls(app: Any) -> float:
    """Return the number of function calls per start, C functions included."""
    profile = cProfile.Profile()
    profile.enable()
    await starts(app, PATH)
    profile.disable()
    return float(pstats.Stats(profile).total_calls) / STARTS  # type: ignore[attr-defined]


async def tracked(path: Path) -> float:
    """Return the number of objects tracked by ``gc`` per start that waits for its commit."""
    app = ours(SQLiteStore(path))
    assert await call(app, PATH) == 200
    while app.edge.service.edges.work.held():
        await asyncio.sleep(0.01)
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    gc.collect()
    gc.disable()
    before = len(gc.get_objects())
    tasks = [asyncio.create_task(call(app, PATH)) for _ in range(HELD)]
    while app.edge.service.edges.work._writes < HELD:
        await asyncio.sleep(0)
    found = (len(gc.get_objects()) - before) / HELD
    gc.enable()
    other.execute("COMMIT")
    other.close()
    await asyncio.gather(*tasks)
    await asyncio.to_thread(app.edge.service.close)
    return found


async def filled(app: Any) -> None:
    """Fill the queue, so that further starts are refused."""
    for _ in range(3):  # a slot becomes free only shortly after the work in it has ended
        while await call(app, SLOW_PATH) == 200:
            pass
        await asyncio.sleep(0.05)


def run() -> Iterator[str]:
    async def main() -> list[str]:
        app = ours(MemoryStore())
        await starts(app, PATH)
        lines = [
            f"a start, its work and its end: {await cpu(app, PATH, 200) * 1e6:.0f} us of CPU",
            f"calls of functions: {await calls(app):.0f}",
        ]
        await filled(app)
        lines.append(f"a start that is refused: {await cpu(app, SLOW_PATH, 429) * 1e6:.0f} us")
        with tempfile.TemporaryDirectory() as folder:
            objects = await tracked(Path(folder) / "operations.db")
        lines.append(f"objects of a start that waits for its commit on SQLite: {objects:.0f}")
        await asyncio.to_thread(app.edge.service.close, 0)
        return lines

    yield from asyncio.run(main())
