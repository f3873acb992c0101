"""Store chaos: the store goes away, again and again, while all servers are at work."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import time
from collections.abc import Callable
from random import Random
from typing import Final

import attrs

from tests.chaos.load import lead, mixed
from tests.chaos.servers import PATIENCE, Server
from tests.chaos.verdict import Verdict, judge
from tests.chaos.world import Ground, World
from tests.services.postgres import PostgresServer

SERVERS: Final = 3
"""How many servers share the store."""
CALLERS: Final = 6
"""How many callers start operations one after the other."""

Outages = Callable[[Random, float], int]
"""Takes the store away and gives it back, for so many seconds; how often it did."""


@attrs.frozen(kw_only=True)
class Weathered:
    """What came of it: the verdict, how often the store was away, and what was done meanwhile."""

    verdict: Verdict
    outages: int
    operations: int
    unanswered: int
    longest_overrun: float
    """How many seconds after its limit a Wait was answered, at most."""


async def outage_trial(ground: Ground, seed: int, seconds: float, outages: Outages) -> Weathered:
    """Have servers work for so long on a store that goes away again and again.

    No server dies, so nothing may be lost: every operation whose name a caller got must end with
    what its work gave. What a caller was not answered, it asks again until it is.
    """
    world = World(ground, seed)
    try:
        hosts = await asyncio.gather(*(world.host() for _ in range(SERVERS)))
        await asyncio.gather(*(host.ready() for host in hosts))
        world.callers.begin()
        webs = [host.web for host in hosts]
        end = time.monotonic() + seconds
        away = asyncio.create_task(asyncio.to_thread(outages, Random(seed), seconds))
        await asyncio.gather(*(_call(world, webs, end) for _ in range(CALLERS)))
        times = await away
        await _until_answered(world, webs)
        await world.settle()
        await asyncio.gather(*(world.callers.list_once(web) for web in webs))
        facts = world.facts()
    finally:
        await world.end()
    verdict = judge(world.journal, facts)
    stories = world.journal.stories.values()
    return Weathered(
        verdict=verdict,
        outages=times,
        operations=sum(bool(story.names) for story in stories),
        unanswered=world.callers.unanswered,
        longest_overrun=world.callers.longest_overrun,
    )


async def _call(world: World, servers: list[Server], end: float) -> None:
    while time.monotonic() < end:
        for story in mixed(world.journal, 3):
            await lead(world, world.random.choice(servers), story)


async def _until_answered(world: World, servers: list[Server]) -> None:
    for story in list(world.journal.stories.values()):
        if story.request_id:
            end = time.monotonic() + PATIENCE
            while not await world.callers.start(world.random.choice(servers), story):
                if time.monotonic() > end:
                    story.faults.append("its start is not answered")
                    return
                await asyncio.sleep(0.1)


def crash(server: PostgresServer, longest: float = 1.5) -> Outages:
    """PostgreSQL stopped in immediate mode, as by a crash, and started up to so long after."""

    def outages(chance: Random, seconds: float) -> int:
        end, times = time.monotonic() + seconds, 0
        while time.monotonic() < end:
            time.sleep(chance.uniform(0.5, 4))
            with server.away():
                time.sleep(chance.uniform(0, longest))
            times += 1
        return times

    return outages


def lock(path: str, longest: float = 7.0) -> Outages:
    """SQLite's write lock, held for up to so long by a process that is none of the servers."""

    def outages(chance: Random, seconds: float) -> int:
        end, times = time.monotonic() + seconds, 0
        with contextlib.closing(sqlite3.connect(path, timeout=60, isolation_level=None)) as other:
            while time.monotonic() < end:
                time.sleep(chance.uniform(0.2, 2))
                other.execute("BEGIN IMMEDIATE")
                time.sleep(chance.uniform(0.5, longest))
                other.execute("ROLLBACK")
                times += 1
        return times

    return outages
