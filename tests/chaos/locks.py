"""Strangers' locks: another program keeps a record, a table or the file from being written.

No server dies, so no work may be given up, and none begun twice, however long the lock is held.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import sqlite3
import time
from collections.abc import Callable, Iterator
from typing import Final

from tests.chaos.load import press
from tests.chaos.servers import PATIENCE, Stuck
from tests.chaos.stories import Journal, Story
from tests.chaos.verdict import Verdict, judge
from tests.chaos.world import Ground, World

Lock = contextlib.AbstractContextManager[None]

LOCKS: Final[dict[str, str]] = {
    "the file": "sqlite",
    "one record": "postgres",
    "the table against writers": "postgres",
    "the table": "postgres",
}
"""What is locked, and in which store."""

_STATEMENTS: Final = {
    "one record": "SELECT 1 FROM operations WHERE name = %s FOR UPDATE",
    "the table against writers": "LOCK TABLE operations IN SHARE MODE",
    "the table": "LOCK TABLE operations IN ACCESS EXCLUSIVE MODE",
}
_PAUSE_MS: Final = 500


def spans(lease: float, every: float = 0.5) -> list[float]:
    """Half a lease to four leases, in steps of so many seconds."""
    count = int(3.5 * lease / every + 1e-9)
    return [lease / 2 + every * step for step in range(count + 1)]


async def lock_trial(ground: Ground, seed: int, what: str, seconds: float) -> Verdict:
    """Lock something for so long while two servers work and a third has nothing to do."""
    world = World(ground, seed)
    try:
        hosts = await asyncio.gather(*(world.host() for _ in range(3)))
        await asyncio.gather(*(host.ready() for host in hosts))
        world.callers.begin()
        length = seconds + ground.lease + 2
        stories = _load(world.journal, math.ceil(length * 1000 / _PAUSE_MS))
        half = len(stories) // 2
        await asyncio.gather(
            press(world, hosts[0].web, stories[:half]), press(world, hosts[1].web, stories[half:])
        )
        if not all(story.names for story in stories):
            raise Stuck("not all starts were answered")
        await world.until(lambda: world.begun(stories) == len(stories), "work that takes long")
        await asyncio.sleep(world.random.uniform(0, ground.lease / 3))
        name = world.random.choice(stories).name
        assert name is not None
        held = await asyncio.to_thread(_hold, _locks(ground.store, what, name), seconds)
        with contextlib.suppress(Stuck):  # what never ends is for the verdict to say
            # Work whose reports cannot be written stands still, and goes on after the lock.
            over = length + PATIENCE
            await world.until(lambda: not world.journal.unsettled, "the end of everything", over)
        facts = world.facts()
    finally:
        await world.end()
    verdict = judge(world.journal, facts)
    faults = [] if held >= seconds else [f"the lock was held for {held:.1f} s only"]
    return Verdict((*verdict.violations, *faults))


def _load(journal: Journal, steps: int) -> list[Story]:
    kinds = ("once", "again")
    return [journal.new(kinds[n % 2], steps=steps, pause_ms=_PAUSE_MS) for n in range(6)]


def _hold(lock: Callable[[], Lock], seconds: float) -> float:
    with lock():
        began = time.monotonic()
        time.sleep(seconds)
        return time.monotonic() - began


def _locks(store: str, what: str, name: str) -> Callable[[], Lock]:
    if what == "the file":
        return lambda: _locked_file(store.partition(":///")[2])
    url, _, schema = store.partition("#")
    values = (name,) if "%s" in _STATEMENTS[what] else ()
    return lambda: _locked(url, schema, _STATEMENTS[what], values)


@contextlib.contextmanager
def _locked_file(path: str) -> Iterator[None]:
    with contextlib.closing(sqlite3.connect(path, timeout=60, isolation_level=None)) as stranger:
        stranger.execute("BEGIN IMMEDIATE")
        yield
        stranger.execute("ROLLBACK")


@contextlib.contextmanager
def _locked(url: str, schema: str, statement: str, values: tuple[str, ...]) -> Iterator[None]:
    import psycopg

    with psycopg.connect(url, options=f"-c search_path={schema}") as stranger:
        stranger.execute(statement.encode(), values)
        yield
        stranger.rollback()
