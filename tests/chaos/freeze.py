"""Fencing: a server is frozen until another server has taken over its work, and then thawed."""

from __future__ import annotations

import asyncio
import contextlib
import re
import signal
import time
from collections.abc import Sequence
from typing import Final

import attrs

from tests.chaos.campaign import Cell
from tests.chaos.load import press
from tests.chaos.servers import Server, Stuck, insist
from tests.chaos.stories import Journal, Story
from tests.chaos.traps import Deed, Moment, Point, Trap
from tests.chaos.verdict import CLOSING, Verdict, is_lost, judge
from tests.chaos.works import effects
from tests.chaos.world import Ground, World
from tests.waiting import until_async

LEASES: Final = 3
"""The number of leases for which a server stays frozen."""

_REFUSED: Final = re.compile(r"WARNING .* was refused: ")
_WORKERS: Final = {"threads": 4, "loop": 4, "processes": 2}


FROZEN: Final = {
    "frozen for three leases": (
        (Point.REPORT, Moment.BEFORE, 12),
        (Point.REPORT, Moment.AFTER, 12),
        (Point.CLAIM, Moment.AFTER, 4),
        (Point.END, Moment.BEFORE, 3),
        (Point.RENEW, Moment.BEFORE, 1),
    ),
    "frozen within a transaction": (
        (Point.REPORT, Moment.WITHIN, 12),
        (Point.END, Moment.WITHIN, 3),
    ),
}
"""For each row, the points at which a server is frozen, each with its trap's highest count."""


async def freeze_trial(ground: Ground, cell: Cell, seed: int) -> Verdict:
    """Freeze a server for three leases, at a point chosen by the seed, and thaw it.

    In half of the trials, the server that has taken over the work is then killed. The leases of
    the dead server must expire, although the thawed server renews all leases that it believes it
    holds.
    """
    workers = _WORKERS[ground.executor]
    async with World(ground, seed) as world:
        point, moment, most = world.random.choice(FROZEN[cell.row])
        # The winner claims the work for which the loser has no free worker.
        count = world.random.randint(1, min(most, workers * (4 if point is Point.REPORT else 1)))
        trap = Trap(point=point, moment=moment, count=count, deed=Deed.STOP)
        winner = (await world.host(workers=3 * workers)).web
        loser = (await world.host(trap, workers=workers)).web
        world.shun(loser)  # a frozen server answers no call
        await asyncio.gather(winner.ready(), loser.ready())
        world.callers.begin()
        stories = _load(world.journal, workers + 2)
        pressing = asyncio.create_task(press(world, loser, stories))
        await loser.frozen()
        frozen_at = time.monotonic()
        await asyncio.sleep(LEASES * ground.lease)
        awake = time.monotonic()
        loser.signal(signal.SIGCONT)
        await pressing
        await until_async(lambda: all(attempt.over for attempt in _attempts(world, loser)))
        if world.random.random() < 0.5:
            winner.signal(signal.SIGKILL)
            await winner.gone()
            world.unshun(loser)
        await world.settle()
        late, faults = await _counted(world, loser)
        facts = world.facts(
            silent={loser.pid: frozen_at},
            frozen=frozenset({loser.pid}),
            death=frozen_at,
            awake=awake,
            since=frozen_at,
        )
    verdict = judge(world.journal, facts)
    return attrs.evolve(verdict, violations=(*verdict.violations, *faults), late_writes=late)


def _load(journal: Journal, count: int) -> list[Story]:
    chance, stories = journal.random, []
    for number in range(count):
        kind = "once" if number % 3 == 2 else "again"
        steps, end = chance.choice((4, 20, 45)), chance.choice(("", "stubborn"))
        stories.append(journal.new(kind, steps=steps, pause_ms=80, end=end))
    return stories


@attrs.frozen
class _Attempt:
    """The log of an attempt of the frozen server, and whether another attempt has replaced it."""

    did: tuple[str, ...]
    stubborn: bool
    lost: bool

    @property
    def over(self) -> bool:
        last = self.did[-1]
        return last in CLOSING and not (last == "fenced" and self.stubborn)

    @property
    def late_writes(self) -> int:
        """The number of the attempt's writes that had to be refused."""
        return self.did.count("fenced") + (self.lost and self.did[-1] == "end")

    @property
    def under_way(self) -> bool:
        """Whether the attempt was stopped and may have made one more late write, a report."""
        return self.lost and self.did[-1] == "stopped"


def _attempts(world: World, server: Server) -> list[_Attempt]:
    found = []
    for story in world.journal.stories.values():
        log = effects(world.folder, story.name) if story.name else []
        last = max((effect.attempt for effect in log), default=0)
        end = story.first_done
        given_up = end is not None and end.operation is not None and is_lost(end.operation)
        for attempt in sorted({effect.attempt for effect in log if effect.server == server.pid}):
            did = tuple(effect.what for effect in log if effect.attempt == attempt)
            lost = attempt < last or given_up
            found.append(_Attempt(did, story.request.end == "stubborn", lost))
    return found


def _expected(attempts: Sequence[_Attempt]) -> range:
    """Return the possible numbers of late writes of these attempts."""
    least = sum(attempt.late_writes for attempt in attempts)
    return range(least, least + sum(attempt.under_way for attempt in attempts) + 1)


async def _counted(world: World, server: Server) -> tuple[int, list[str]]:
    """Return the number of late writes, and a fault unless each was counted and logged."""

    async def agree() -> bool:
        attempts = _attempts(world, server)
        over = all(attempt.over for attempt in attempts)
        return over and await server.late_writes() in _expected(attempts)

    with contextlib.suppress(Stuck):
        await insist(agree, "agreement on late writes")
    late, attempts = await server.late_writes(), _attempts(world, server)
    if late not in _expected(attempts):
        return late, [f"{late} late writes are counted, and not {_expected(attempts)}: {attempts}"]
    log = (world.folder / f"server-{server.pid}.log").read_text("utf-8")
    logged = len(_REFUSED.findall(log))
    return late, [] if logged == late else [
        f"{late} late writes are counted, {logged} are in the log"
    ]
