"""Wake-ups across processes after a commit, and the cost of notifications for writers."""

from __future__ import annotations

import asyncio
import itertools
import random
import sqlite3
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import attrs

from bench.measure import MISSING, Figure, against, compare, percentile
from bench.parked import waiters
from bench.peer import CHANNEL, FLOOR_TABLE, Place, declared, open_store, peer
from bench.start_to_result import Progress, Request
from lro.stores.sqlite import SQLiteStore

WAKES = 300
WRITERS = 32
WRITING_SECONDS = 0.5
WRITING_ROUNDS = 25


def places(folder: str) -> list[Place]:
    """Return the place of a new SQLite file and, if PostgreSQL can be started, of a new schema."""
    found: list[Place] = [("sqlite", str(Path(folder, "operations.db")), "-")]
    server = postgres_server()
    if server is None:
        MISSING.append("PostgreSQL: it is not installed")
    else:
        found.append(("postgres", server.url, server.fresh_schema()))
    return found


def postgres_server() -> Any:
    """Return the tests' PostgreSQL server, which ends with this process, or None if unavailable."""
    try:
        import pytest

        from tests.services.postgres import shared_server
    except ImportError:
        return None
    try:
        return shared_server()
    except pytest.skip.Exception:
        return None


def wakes(place: Place, command: Callable[[str, str], float]) -> list[float]:
    """Return the seconds from each commit in the other process to the reply of a wait here."""
    service, method = declared(open_store(*place))
    draw = random.Random(1)

    async def main() -> list[float]:
        found = []
        for _ in range(WAKES):
            name = method.start(Request()).name
            waiter = asyncio.create_task(service.wait_async(name))
            while not service.edges.waiters.waiting:
                await asyncio.sleep(0)
            await asyncio.sleep(draw.random() * 0.02)
            ended = asyncio.get_running_loop().run_in_executor(None, command, "end", name)
            assert (await waiter).done
            now = time.monotonic()
            found.append(now - await ended)
        return found

    try:
        return asyncio.run(main())
    finally:
        service.close(0)


def sqlite_floor(where: str, command: Callable[[str, str], float]) -> list[float]:
    """Return the seconds until a bare loop that polls SQLite's change counter sees each commit."""
    file = sqlite3.connect(f"{where}.floor", isolation_level=None, check_same_thread=False)
    never = threading.Event()
    draw = random.Random(2)
    found = []

    def seen() -> float:
        (before,) = file.execute("PRAGMA data_version").fetchone()
        ready.set()
        while file.execute("PRAGMA data_version").fetchone() == (before,):
            never.wait(SQLiteStore.look_seconds)
        return time.monotonic()

    with ThreadPoolExecutor(1) as threads:
        for number in range(WAKES):
            ready = threading.Event()
            watcher = threads.submit(seen)
            ready.wait()
            never.wait(draw.random() * 0.02)
            at = command("commit", str(number))
            found.append(watcher.result() - at)
    file.close()
    return found


def postgres_floor(where: str, command: Callable[[str, str], float]) -> list[float]:
    """Return the seconds from each bare NOTIFY until a listening connection gets it."""
    import psycopg

    found = []
    with psycopg.connect(where, autocommit=True) as connection, ThreadPoolExecutor(1) as threads:
        connection.execute(f"LISTEN {CHANNEL}")
        draw = random.Random(3)
        never = threading.Event()

        def notified() -> float:
            for _ in connection.notifies(stop_after=1):
                pass
            return time.monotonic()

        for number in range(WAKES):
            watcher = threads.submit(notified)
            never.wait(0.002 + draw.random() * 0.02)
            at = command("notify", str(number))
            found.append(watcher.result() - at)
    return found


def writing(step: Callable[[int], object]) -> float:
    """Return the seconds per write while several threads call ``step`` at the same time."""
    end = time.monotonic() + WRITING_SECONDS
    written = itertools.count()

    def write(number: int) -> None:
        while time.monotonic() < end:
            step(number)
            next(written)

    began = time.monotonic()
    with ThreadPoolExecutor(WRITERS) as threads:
        list(threads.map(write, range(WRITERS)))
    return (time.monotonic() - began) / next(written)


def notifications(place: Place, command: Callable[[str, str], float]) -> Iterator[Figure]:
    """Measure what our notifications cost the writers, and what a bare NOTIFY costs."""
    store = open_store(*place)
    service, method = declared(store)
    names = [method.start(Request()).name for _ in range(WRITERS)]
    command("listen", method.start(Request()).name)
    reporters = [service.reporter(name) for name in names]
    notify_others = store.notify_others

    def sample(how: Callable[[str], None]) -> Callable[[], float]:
        def measure() -> float:
            store.notify_others = how
            return writing(lambda number: reporters[number].report(Progress(1)))

        return measure

    yield compare(
        f"{WRITERS} writers, PostgreSQL, notified / not",
        sample(notify_others),
        sample(lambda _: None),
        rounds=WRITING_ROUNDS,
        unit="/s",
        target=0.95,
    )
    store.notify_others = notify_others
    service.close(0)
    yield from bare_notifications(place[1])


def bare_notifications(where: str) -> Iterator[Figure]:
    """Measure an UPDATE by key on bare connections, with and without a NOTIFY."""
    import psycopg

    connections = [psycopg.connect(where, autocommit=True) for _ in range(WRITERS)]
    connections[0].execute(FLOOR_TABLE)
    for number in range(WRITERS):
        connections[0].execute("INSERT INTO kept VALUES (%s, 0)", (f"w{number}",))
    update = "UPDATE kept SET value = value + 1 WHERE name = %s RETURNING name"
    notify = f"WITH u AS ({update}) SELECT pg_notify('{CHANNEL}', name) FROM u"

    def sample(sql: Any) -> Callable[[], float]:
        return lambda: writing(lambda number: connections[number].execute(sql, (f"w{number}",)))

    what = f"{WRITERS} writers, bare UPDATE, with NOTIFY in it / without"
    yield compare(what, sample(notify), sample(update), unit="/s")
    for connection in connections:
        connection.close()


def run() -> Iterator[Figure]:
    floors = {"sqlite": sqlite_floor, "postgres": postgres_floor}
    with tempfile.TemporaryDirectory() as folder:
        stores = places(folder)
        for place in stores:
            kind, where, _ = place
            with peer(*place) as command:
                pairs = [(wakes(place, command), floors[kind](where, command)) for _ in range(3)]
                for share, target in ((0.5, None), (0.99, 20)):
                    found = against(
                        f"wake across processes, {kind}",
                        [(percentile(own, share), percentile(low, share)) for own, low in pairs],
                        unit="ms",
                        measure=f"p{share * 100:.0f}",
                        scale=1e3,
                        target=target,
                    )
                    yield attrs.evolve(found, absolute=True)
                if kind == "postgres":
                    yield from notifications(place, command)
        yield from waiters([("memory", "-", "-"), *stores])
