"""The kill matrix: servers are killed at named points, and callers must get no wrong reply."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import signal
from collections.abc import Mapping
from typing import Final

import attrs

from tests.chaos.campaign import Cell
from tests.chaos.load import BATCH_SECONDS, hold, mixed, press, send
from tests.chaos.servers import Server, Stuck
from tests.chaos.stories import Story
from tests.chaos.traps import Moment, Point, Trap
from tests.chaos.verdict import Verdict, judge
from tests.chaos.works import all_effects
from tests.chaos.world import Ground, Host, World
from tests.waiting import until_async

_B, _W, _A = Moment.BEFORE, Moment.WITHIN, Moment.AFTER
_TRIES: Final = 20
"""The number of loads after which the trial fails if the server's trap has not sprung."""
_WORKERS: Final = {"threads": 4, "loop": 4, "processes": 2, "celery": 2}
"""The number of workers of a server that is to die."""
_ROOM: Final = {"threads": 12, "loop": 12, "processes": 4, "celery": 4}
"""The number of workers of a server that takes over all the work of another server."""


@attrs.frozen
class Row:
    """A row of the matrix: what the server is doing when it dies, and at which points it may die.

    The ``scene`` is "load", "drain", "orphans", "expiry", "child" (only a child dies), "any time"
    or "stop" (SIGTERM, after which the server has time to stop). The number in each of ``places``
    is the highest ``Trap.count`` that the seed may choose.
    """

    scene: str
    places: tuple[tuple[Point, Moment, int], ...] = ()

    def fits(self, executor: str) -> bool:
        return self.scene != "child" or executor not in ("threads", "loop")


def _any_moment(point: Point, most: int) -> tuple[tuple[Point, Moment, int], ...]:
    return tuple((point, moment, most) for moment in Moment)


ROWS: Final[Mapping[str, Row]] = {
    "after insert commit": Row("load", ((Point.INSERT, _A, 6),)),
    "after claim": Row("load", ((Point.CLAIM, _A, 6),)),
    "before the first renewal": Row("load", ((Point.RENEW, _B, 1),)),
    "mid work": Row("load", ((Point.WORK, _A, 12),)),
    "before encode": Row("load", ((Point.ENCODE, _B, 4),)),
    "before the terminal commit": Row("load", ((Point.END, _B, 4), (Point.END, _W, 4))),
    "after the commit before the ring": Row("load", ((Point.END, _A, 4),)),
    "during cancel": Row(
        "load", (*_any_moment(Point.CANCEL, 2), *_any_moment(Point.ACKNOWLEDGE, 2))
    ),
    "during drain": Row("drain", _any_moment(Point.RELEASE, 1)),
    "during orphan scan": Row(
        "orphans",
        (
            *_any_moment(Point.TAKE_OVER, 1),
            *_any_moment(Point.ABANDON, 1),
            (Point.LOSE, _B, 1),
            (Point.LOSE, _A, 1),
        ),
    ),
    "during delete": Row("load", _any_moment(Point.DELETE, 2)),
    "during expiry": Row("expiry", _any_moment(Point.EXPIRE, 1)),
    "at any time": Row("any time"),
    "stopped by SIGTERM at any time": Row("stop"),
    "a child alone mid work": Row("child", ((Point.WORK, _A, 12),)),
    "a child alone before encode": Row("child", ((Point.ENCODE, _B, 4),)),
}


async def kill_trial(ground: Ground, cell: Cell, seed: int) -> Verdict:
    """Kill a server with a trap chosen by the seed, and judge the replies that callers got."""
    row = ROWS[cell.row]
    async with World(ground, seed) as world:
        trap = _trap(world, row)
        company = row.scene == "expiry" or (row.scene != "orphans" and world.random.random() < 0.5)
        rescuer = await _rescuer(world) if company else None
        victim = await _SCENES[row.scene](world, trap)
        if rescuer is None:
            rescuer = await _rescuer(world)
        since = await rescuer.ready()
        await _ask_again(world, rescuer.web)
        await world.settle()
        await _take_targets(world, rescuer.web)
        await world.settle()
        await _last_looks(world, rescuer.web)
        late = await rescuer.web.late_writes()
        drained = frozenset({victim.pid} if row.scene in ("drain", "stop") else ())
        facts = world.facts(drained=drained)
        if not victim.alive:
            facts = attrs.evolve(facts, death=victim.died_at, since=since)
    verdict = judge(world.journal, facts)
    if late:
        late_note = f"{late} writes of the rescuer came late"
        return attrs.evolve(verdict, violations=(*verdict.violations, late_note))
    return verdict


def _trap(world: World, row: Row) -> Trap | None:
    if not row.places:
        return None
    point, moment, most = world.random.choice(row.places)
    count, delay = world.random.randint(1, most), 0.0
    if point is Point.EXPIRE and moment is _W:  # expiry has no trap within its transaction
        moment, delay = _B, world.random.uniform(0.0001, 0.004)
    alone = row.scene == "child"
    return Trap(point=point, moment=moment, count=count, delay=delay, child_only=alone)


async def _victim(world: World, trap: Trap | None = None, drain: float = 10.0) -> Host:
    return await world.host(trap, workers=_WORKERS[world.ground.executor], drain=drain)


def _load(world: World) -> list[Story]:
    return mixed(world.journal, 6)


async def _rescuer(world: World) -> Host:
    host = await world.host(workers=_ROOM[world.ground.executor])
    if world.ground.executor == "processes" and len(world.servers) == 1:
        # Start the children before they are needed, because their start may take long.
        await host.ready()
        warming = [world.journal.new("again", pause_ms=300) for _ in range(_ROOM["processes"])]
        await press(world, host.web, warming)
        await world.settle()
    return host


async def _under_load(world: World, trap: Trap | None) -> Server:
    host = await _victim(world, trap)
    await host.ready()
    world.callers.begin()
    for _ in range(_TRIES):
        loading = asyncio.create_task(send(world, host.web, _load(world)))
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(host.victim.dead.wait(), BATCH_SECONDS)
        await loading
        if not host.victim.alive:
            return host.victim
    raise Stuck(f"{trap} did not spring")


async def _bereft(world: World, trap: Trap | None) -> Server:
    host = await _victim(world, trap)
    await host.ready()
    world.callers.begin()
    for _ in range(_TRIES):
        await send(world, host.web, _load(world))
        await world.settle()
        if any(effect.what == "died" for effect in all_effects(world.folder)):
            return host.victim
    raise Stuck(f"{trap} did not spring")


async def _while_draining(world: World, trap: Trap | None) -> Server:
    # After SIGTERM, a Celery worker finishes its work, so its trap would not spring. It is killed
    # at a random time instead.
    at_will = world.remote or world.random.random() < 0.25
    host = await _victim(world, None if at_will else trap, drain=0.3)
    await host.ready()
    world.callers.begin()
    victim = host.worker
    await _occupy(world, host, first_steps=100, steps=100)  # the work outlasts the signal
    victim.signal(signal.SIGTERM)
    if at_will:
        await asyncio.sleep(world.random.uniform(0, 1.8))
        victim.signal(signal.SIGKILL)
    await victim.gone()
    if victim.code != -signal.SIGKILL and not at_will:
        raise Stuck(f"{trap} did not spring; exit status {victim.code}")
    return victim


async def _scanning(world: World, trap: Trap | None) -> Server:
    first = await _victim(world)
    await first.ready()
    # Start the victim before the work: a busy machine may start a server so slowly that the work
    # would have ended.
    victim = (await world.host(trap, only_scans=True)).victim
    await victim.ready()
    world.callers.begin()
    await _occupy(world, first, first_steps=600)
    await first.kill()
    await victim.gone()
    return victim


async def _occupy(world: World, host: Host, first_steps: int, steps: int = 25) -> None:
    workers = _WORKERS[world.ground.executor]
    # The first operation is not retried; it runs until its server dies, even on a busy machine.
    stories = hold(world.journal, workers + 2, first_steps, steps)
    for story in stories[:2]:  # one story of each kind must begin
        await press(world, host.web, [story])
    await press(world, host.web, stories[2:])
    await world.work_begins(stories, workers)


async def _expiring(world: World, trap: Trap | None) -> Server:
    first = world.servers[0]
    for server in world.servers:
        await server.ready()
    world.callers.begin()
    brief = [world.journal.new("brief") for _ in range(world.random.randint(1, 30))]
    await press(world, first, [*brief, *hold(world.journal, 4)])
    # Wait until the brief operations have ended and expired.
    await until_async(lambda: all(story.settled for story in brief))
    await until_async(
        lambda: all(any(s.operation is None for s in story.sights) for story in brief)
    )
    victim = (await world.host(trap, only_scans=True)).victim
    await victim.gone()
    return victim


async def _at_any_time(number: signal.Signals, world: World, _: Trap | None) -> Server:
    host = await _victim(world, drain=0.3)
    await host.ready()
    world.callers.begin()
    loading = asyncio.create_task(send(world, host.web, _load(world)))
    await asyncio.sleep(world.random.uniform(0, BATCH_SECONDS))
    victim = world.random.choice(host.parts)
    victim.signal(number)
    await victim.gone()
    await loading
    return victim


_SCENES: Final = {
    "load": _under_load,
    "drain": _while_draining,
    "orphans": _scanning,
    "expiry": _expiring,
    "any time": functools.partial(_at_any_time, signal.SIGKILL),
    "stop": functools.partial(_at_any_time, signal.SIGTERM),
    "child": _bereft,
}


async def _ask_again(world: World, server: Server) -> None:
    """Repeat each start that has a request id, which must return the same operation."""
    for story in list(world.journal.stories.values()):
        if story.request_id:
            await world.callers.start(server, story)
            await world.callers.start(server, story)
            await world.callers.start_otherwise(server, story)


async def _take_targets(world: World, server: Server) -> None:
    """Start new work on each target, which must be free because its operation has ended."""
    for story in [s for s in world.journal.stories.values() if s.kind == "alone" and s.names]:
        another = world.journal.new("alone", target=story.request.target)
        await world.callers.insist(server, another)


async def _last_looks(world: World, server: Server) -> None:
    await world.callers.list_once(server)
    for story in world.journal.stories.values():
        await world.callers.look(server, story)
