"""Tests of a client's polling with random schedules: ``python -m tests.client.schedules``."""

from __future__ import annotations

import argparse
import collections
import random
from collections.abc import Sequence

import lro
from lro_client import CallError, Polling
from lro_client._flow.single import BATCH, LIST, WAIT, WATCH
from tests.client.virtual_server import NEVER, World, error

FAULTS = [
    error(lro.Code.UNAVAILABLE, passing=True),
    error(lro.Code.UNAVAILABLE, http_status=503, retry_after=1.0),
    error(lro.Code.RESOURCE_EXHAUSTED, http_status=429),
    error(lro.Code.DEADLINE_EXCEEDED, passing=True),
    error(lro.Code.INTERNAL, http_status=500),
    error(lro.Code.UNKNOWN, passing=True),
]
Tally = collections.Counter[str]


class Schedule:
    """A random schedule of operations, listeners and failed calls, determined by a seed."""

    def __init__(self, seed: int, tally: Tally) -> None:
        self.tally = tally
        self.chance = chance = random.Random(seed)
        self.rate = chance.choice([0.0, 0.1, 0.3, 0.6])
        self.dies_at = 1000.0 + chance.choice([NEVER, NEVER, NEVER, 0.0, 10.0])
        self.last_fault = chance.choice(FAULTS)
        self.numbers: list[int] = []
        self.left: dict[int, int] = {}
        offered = [verb for verb in (WAIT, WATCH, BATCH, LIST) if chance.random() < 0.6]
        self.world = World(
            offers=frozenset(offered),
            fault=self.fault,
            seed=seed,
            cuts=chance.choice([0.0, 0.02, 0.3]),
            deaf=chance.random() < 0.2,
            latency=chance.choice([0.0, 0.01, 1.0]),
            polling=Polling(connections=chance.choice([1, 2, 3, 8])),
        )

    def fault(self, now: float, _: object) -> CallError | None:
        """Return the error of a call at this time, or None if the call succeeds."""
        if now >= self.dies_at:
            return self.last_fault
        if self.chance.random() >= self.rate:
            return None
        self.tally["calls failed"] += 1
        return self.chance.choice(FAULTS)

    def prepare(self) -> None:
        """Plan the operations, and when their listeners arrive and leave."""
        chance, world = self.chance, self.world
        for number in range(chance.randint(1, 30)):
            name = f"operations/{number}"
            gone = world.now + chance.uniform(0, 60) if chance.random() < 0.1 else NEVER
            world.plan(name, chance.choice([0.0, 0.2, 3.0, 30.0, 90.0]), gone_at=gone)
            for _ in range(chance.choice([1, 1, 2])):
                self._plan_listener(name)

    def _plan_listener(self, name: str) -> None:
        leaving = self.chance.uniform(0, 50) if self.chance.random() < 0.2 else None

        def come() -> None:
            number = self.world.watch(name, wants_progress=self.chance.random() < 0.3)
            self.numbers.append(number)
            if leaving is not None:
                self.world.later(leaving, lambda: go(number))

        def go(number: int) -> None:
            self.world.leave(number)
            self.left[number] = len(self.world.received[number])

        self.world.later(self.chance.choice([0.0, 0.0, 0.005, 1.0, 20.0]), come)

    def check(self) -> None:
        """Check that each listener got one final update, then nothing, and that no call is open."""
        world = self.world
        for number in self.numbers:
            ends = world.ends(number)
            if number in self.left:
                assert len(world.received[number]) == self.left[number]
                assert len(ends) <= 1
                self.tally["left before"] += not ends
            else:
                assert [*ends] == world.received[number][-1:]
            for _, news in ends:
                gone = hasattr(news, "error")
                self.tally["gone" if gone else "ended"] += 1
        assert world.most_flying <= world.polling.connections
        assert (world.flying, world.registry.entries) == (0, {})


def run_schedule(seed: int, tally: Tally) -> None:
    """Run the schedule of a seed to its end, and check the outcome."""
    schedule = Schedule(seed, tally)
    schedule.prepare()
    schedule.world.run()
    schedule.check()
    tally["schedules"] += 1


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the schedules, and print how often each kind of event occurred."""
    parser = argparse.ArgumentParser(prog="python -m tests.client.schedules", description=__doc__)
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    tally = Tally()
    for seed in range(options.seed, options.seed + options.count):
        run_schedule(seed, tally)
    print(f"{options.count} schedules from seed {options.seed}: {dict(sorted(tally.items()))}")


if __name__ == "__main__":
    main()
