"""10,000 coroutines that wait in one process: their cost, and the wake-up of the last one."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import sqlite3
import subprocess
import sys
import threading
import time
import tracemalloc
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from bench.measure import Figure, against, percentile
from bench.peer import ROOT, Place, declared, open_store, peer
from bench.start_to_result import Request
from bench.wake import WAITERS, bare
from lro._engine.store_port import Store
from lro.stores.sqlite import SQLiteStore

IDLE_SECONDS = 10.0
ROUNDS = 5

VERBS = frozenset(
    name
    for name, verb in vars(Store).items()
    if callable(verb) and not name.startswith("_") and name not in ("now", "notify_others", "close")
)
"""The methods of a store whose calls are counted."""


class Counted:
    """A store that counts the calls of its methods by name."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self.calls: Counter[str] = Counter()

    def __getattr__(self, name: str) -> Any:
        if name in VERBS:
            self.calls[name] += 1
        return getattr(self._store, name)


def resident() -> int:
    """Return the resident memory of this process in bytes."""
    gc.collect()
    pages = Path("/proc/self/statm").read_text().split()[1]
    return int(pages) * os.sysconf("SC_PAGESIZE")


def park(place: Place, names: int) -> dict[str, Any]:
    """Measure waiters on this number of operations: their memory, their idle cost, their wake-up.

    The wake-up is measured only with a single operation, because otherwise commits dominate.
    """
    store = Counted(open_store(*place))
    service, method = declared(store)
    with ThreadPoolExecutor(32) as threads:
        started = list(threads.map(lambda _: method.start(Request()).name, range(names)))
    before = resident()
    if names == 1:
        tracemalloc.start()

    async def main() -> dict[str, Any]:
        tasks = [
            asyncio.create_task(service.wait_async(started[n % names])) for n in range(WAITERS)
        ]
        while service.edges.waiters.waiting < WAITERS:
            await asyncio.sleep(0.01)
        await settled(store)
        found = {"resident": (resident() - before) / WAITERS}
        if names == 1:
            found["traced"] = tracemalloc.get_traced_memory()[0] / WAITERS
            tracemalloc.stop()
        store.calls.clear()
        cpu, began = time.process_time(), time.monotonic()
        await asyncio.sleep(IDLE_SECONDS)
        idle = time.monotonic() - began
        found["cpu"] = (time.process_time() - cpu) / idle
        found["calls"] = store.calls.total() / idle
        if names == 1:
            found["last"] = await wake(service, place, started[0], tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        return found

    found = asyncio.run(main())
    service.close(0)
    return found


async def settled(store: Counted) -> None:
    """Wait until each waiter has read its operation, and the states have been polled once more."""
    before = -1
    while store.calls["get"] != before:
        before = store.calls["get"]
        await asyncio.sleep(1)
    looks = store.calls["poll_states"]
    while store.shared and store.calls["poll_states"] == looks:
        await asyncio.sleep(0.1)


async def wake(service: Any, place: Place, name: str, tasks: list[Any]) -> float:
    """Return the seconds from the commit of the operation's end to the last waiter's reply."""
    awake: list[float] = []
    for task in tasks:
        task.add_done_callback(lambda _: awake.append(time.monotonic()))
    if place[0] == "memory":
        began = time.monotonic()
        service.reporter(name).finish()
        await asyncio.wait(tasks)
        return max(awake) - began
    with peer(*place) as command:
        began = await asyncio.to_thread(command, "end", name)
        await asyncio.wait(tasks)
    return max(awake) - began


def floor() -> float:
    """Return the seconds until the last of ``WAITERS`` bare futures is awake."""
    return percentile([asyncio.run(bare()) for _ in range(ROUNDS)], 0.5)


def parked(place: Place) -> Iterator[Figure]:
    """Yield the figures of one store, each measured in a process of its own."""
    for names, label in ((1, "one operation"), (WAITERS, "one each")):
        command = [sys.executable, "-m", "bench.parked", str(names), *place]
        found = json.loads(subprocess.check_output(command, cwd=ROOT))
        what = f"{WAITERS:,} wait for {label}, {place[0]}"
        cpu, calls = found["cpu"] * 100, found["calls"]
        yield Figure(what=what, measure="CPU", ours=cpu, unit="% of a core", target=0.1)
        yield Figure(what=what, measure="store calls a second", ours=calls, unit="calls", target=1)
        kind, measure = (
            ("traced", "objects of each") if names == 1 else ("resident", "memory of each")
        )
        yield Figure(what=what, measure=measure, ours=found[kind] / 1e3, unit="kB", target=2.5)
        if "last" in found:
            pairs = [(found["last"], floor())]
            yield against(what, pairs, unit="ms", measure="last awake", scale=1e3, target=2)


def looking(where: str) -> Figure:
    """Measure the cost of a bare loop that polls a file's change counter at our interval."""
    file = sqlite3.connect(f"{where}.floor", isolation_level=None)
    never = threading.Event()
    cpu, end = time.process_time(), time.monotonic() + IDLE_SECONDS
    while time.monotonic() < end:
        file.execute("PRAGMA data_version").fetchone()
        never.wait(SQLiteStore.look_seconds)
    cpu = time.process_time() - cpu
    file.close()
    what = "a bare loop that looks as often, sqlite"
    share = cpu / IDLE_SECONDS * 100
    return Figure(what=what, measure="CPU", ours=share, unit="% of a core")


def waiters(places: Iterable[Place]) -> Iterator[Figure]:
    """Yield the figures of these stores."""
    for place in places:
        yield from parked(place)
        if place[0] == "sqlite":
            yield looking(place[1])


if __name__ == "__main__":
    count, *where = sys.argv[1:]
    print(json.dumps(park((where[0], where[1], where[2]), int(count))))
