"""Store outages: the store is unavailable repeatedly while all servers work."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import sqlite3
import time
from collections.abc import Iterator
from random import Random
from typing import Final

from tests.chaos.campaign import Cell
from tests.chaos.load import lead, mixed
from tests.chaos.servers import Server
from tests.chaos.verdict import Verdict, judge
from tests.chaos.world import Ground, World
from tests.services.postgres import shared_server

SERVERS: Final = 3
"""The number of servers that share the store."""
CALLERS: Final = 6
"""The number of callers, each of which starts one operation after another."""


LONGEST: Final = 5.0
"""The length of the longest outage, in seconds."""


async def outage_trial(ground: Ground, cell: Cell, seed: int, seconds: float) -> Verdict:
    """Let servers work for ``seconds`` on a store with repeated outages.

    PostgreSQL is stopped in immediate mode, as by a crash; the SQLite file is locked. No server
    dies, so nothing may be lost: every operation whose name a caller got must end with its
    function's outcome. At the end, each start with a request id is repeated until there is a reply.
    """
    async with World(ground, seed) as world:
        hosts = await asyncio.gather(*(world.host() for _ in range(SERVERS)))
        await asyncio.gather(*(host.ready() for host in hosts))
        world.callers.begin()
        webs = [host.web for host in hosts]
        end = time.monotonic() + seconds
        away = asyncio.create_task(asyncio.to_thread(_outages, ground.store, Random(seed), seconds))
        await asyncio.gather(*(_call(world, webs, end) for _ in range(CALLERS)))
        times = await away
        for story in list(world.journal.stories.values()):
            if story.request_id:
                await world.callers.insist(world.random.choice(webs), story)
        await world.settle()
        await asyncio.gather(*(world.callers.list_once(web) for web in webs))
        facts = world.facts()
    verdict = judge(world.journal, facts)
    operations = sum(bool(story.names) for story in world.journal.stories.values())
    print(
        f"{cell.store}: away {times} times; {operations} operations,"
        f" {world.callers.unanswered} calls unanswered; a Wait was answered at most"
        f" {world.callers.longest_overrun:.2f} s after its limit"
    )
    return verdict if times and operations else Verdict(("there was nothing to see",))


async def _call(world: World, servers: list[Server], end: float) -> None:
    while time.monotonic() < end:
        for story in mixed(world.journal, 3):
            await lead(world, world.random.choice(servers), story)


def _outages(store: str, chance: Random, seconds: float) -> int:
    away = functools.partial(locked, store) if store.endswith(".db") else shared_server().away
    end, times = time.monotonic() + seconds, 0
    while time.monotonic() < end:
        time.sleep(chance.uniform(0.2, 2))
        with away():
            time.sleep(chance.uniform(0.5, LONGEST))
        times += 1
    return times


@contextlib.contextmanager
def locked(path: str) -> Iterator[None]:
    """Hold SQLite's write lock, as a program other than the servers would."""
    with contextlib.closing(sqlite3.connect(path, timeout=60, isolation_level=None)) as stranger:
        stranger.execute("BEGIN IMMEDIATE")
        yield
        stranger.execute("ROLLBACK")
