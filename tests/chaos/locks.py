"""Locks of other programs, which block writes to a record, a table or the file.

No server dies, so no work may be given up or begun twice, however long a lock is held.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import Callable, Iterator
from typing import Final

from tests.chaos.load import press
from tests.chaos.outage import locked
from tests.chaos.servers import Stuck
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
"""The things that are locked, each with the store that has such locks."""

_STATEMENTS: Final = {
    "one record": "SELECT 1 FROM lro_operations WHERE name = %s FOR UPDATE",
    "the table against writers": "LOCK TABLE lro_operations IN SHARE MODE",
    "the table": "LOCK TABLE lro_operations IN ACCESS EXCLUSIVE MODE",
}
_PAUSE_MS: Final = 500


def spans(lease: float) -> list[float]:
    """Return lock times from half a lease to four leases, in steps of half a second."""
    return [lease / 2 + step / 2 for step in range(int(7 * lease + 1e-9) + 1)]


async def lock_trial(ground: Ground, seed: int, what: str, seconds: float) -> Verdict:
    """Hold a lock for ``seconds`` while two servers work and a third server is idle."""
    async with World(ground, seed) as world:
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
        await world.work_begins(stories)
        await asyncio.sleep(world.random.uniform(0, ground.lease / 3))
        name = world.random.choice(stories).name
        assert name is not None
        held = await asyncio.to_thread(_hold, _locks(ground.store, what, name), seconds)
        await world.settle()  # after the lock, work whose reports were blocked continues
        facts = world.facts()
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
        return lambda: locked(store)
    url, _, schema = store.partition("#")
    values = (name,) if "%s" in _STATEMENTS[what] else ()
    return lambda: _locked(url, schema, _STATEMENTS[what], values)


@contextlib.contextmanager
def _locked(url: str, schema: str, statement: str, values: tuple[str, ...]) -> Iterator[None]:
    import psycopg

    with psycopg.connect(url, options=f"-c search_path={schema}") as stranger:
        stranger.execute(statement.encode(), values)
        yield
        stranger.rollback()
