"""The load on a server, chosen by the seed; each story is the start of an operation."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from tests.chaos.servers import Server
from tests.chaos.stories import Journal, Story
from tests.chaos.world import World

BATCH_SECONDS: Final = 1.5
"""The approximate time in which four threads do a mixed load, in seconds."""


def mixed(journal: Journal, count: int = 8) -> list[Story]:
    """Create ``count`` stories of different kinds, short and long, with and without request ids."""
    chance = journal.random
    stories: list[Callable[[], Story]] = [
        lambda: journal.new("once", steps=2, pause_ms=20),
        lambda: journal.new("once", end="refuse"),
        lambda: journal.new("again", steps=3, pause_ms=30),
        lambda: journal.new("again"),
        lambda: journal.new("alone", steps=chance.randint(1, 6), pause_ms=50),
        lambda: journal.new("brief"),
        lambda: journal.new(chance.choice(("once", "again")), steps=10, pause_ms=80),
        lambda: journal.new(chance.choice(("once", "again", "alone")), steps=10, pause_ms=80),
    ]
    return [story() for story in chance.sample(stories, count)]


def hold(journal: Journal, count: int, first_steps: int = 25, steps: int = 25) -> list[Story]:
    """Create long stories, of the kinds "once" and "again" in turn, with steps of 0.1 s.

    The first story has ``first_steps``, and every other story has ``steps``.
    """
    kinds = ("once", "again")
    each = (first_steps, *(count - 1) * (steps,))
    return [journal.new(kinds[n % 2], steps=many, pause_ms=100) for n, many in enumerate(each)]


async def press(world: World, server: Server, stories: Sequence[Story]) -> None:
    """Start all of these stories at once."""
    await asyncio.gather(*(world.callers.start(server, story) for story in stories))


async def send(world: World, server: Server, stories: Sequence[Story]) -> None:
    """Start all of these stories at random moments, and cancel or delete some of them."""
    await asyncio.gather(*(lead(world, server, story) for story in stories))


async def lead(world: World, server: Server, story: Story) -> None:
    """Start this story at a random moment, and maybe cancel or delete it."""
    chance = world.random
    await asyncio.sleep(chance.uniform(0, 0.15))
    if not await world.callers.start(server, story):
        return
    long = story.request.steps > 6
    fate = chance.random()
    await asyncio.sleep(chance.uniform(0, 0.3))
    if fate < (0.6 if long else 0.15):
        await world.callers.cancel(server, story)
    elif fate > 0.8:
        await world.callers.delete(server, story)
