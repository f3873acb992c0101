"""Crash loops: servers that die within a lease must still report the state of lost work."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from typing import Final

from tests.chaos.campaign import Cell
from tests.chaos.load import press
from tests.chaos.servers import Server
from tests.chaos.verdict import Verdict, judge
from tests.chaos.world import Ground, World

LIFE: Final = 0.7
"""The lifetime of a server, in leases."""
_LIVES: Final = 12


async def loop_trial(ground: Ground, _: Cell, seed: int) -> Verdict:
    """Kill a server at work, and each of its successors, until all operations have ended.

    Callers must see all ends at most a lease and the margin after the first death. Periods in which
    no server is ready do not count.
    """
    life = LIFE * ground.lease
    async with World(ground, seed) as world:
        first = await world.host()
        await first.ready()
        world.callers.begin()
        # The work is of the kind "once", as retryable work could be lost again before it begins.
        stories = [world.journal.new("once", steps=25, pause_ms=100) for _ in range(4)]
        await press(world, first.web, stories)
        await world.work_begins(stories)
        died_at = gap = await _killed(first.web)
        gaps: list[tuple[float, float]] = []
        for _ in range(_LIVES):
            host = await world.host()
            began = await host.ready()
            gaps.append((gap, began))
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(world.settle(), life)
            if not world.journal.unsettled:
                break
            gap = await _killed(host.web)
        facts = world.facts()
    verdict = judge(world.journal, facts)
    limit = ground.lease + ground.margin
    known_at = [story.first_done.received for story in stories if story.first_done is not None]
    taken = [at - died_at - sum(end - gap for gap, end in gaps if gap < at) for at in known_at]
    late = [f"no truth for {seconds:.2f} s" for seconds in taken if seconds > limit]
    return Verdict((*verdict.violations, *late), tuple(taken))


async def _killed(server: Server) -> float:
    server.signal(signal.SIGKILL)
    await server.gone()
    return server.died_at
