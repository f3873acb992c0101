"""A store that goes away, again and again, while several servers work on it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.chaos.campaign import Cell
from tests.chaos.outage import Outages, crash, lock, outage_trial
from tests.chaos.verdict import Verdict
from tests.chaos.world import Ground
from tests.full.chaos.conftest import Run
from tests.services.postgres import shared_server

SECONDS = 5.0
OUTAGES: dict[str, Callable[[Ground], Outages]] = {
    "sqlite": lambda ground: lock(ground.store.partition(":///")[2], longest=2.5),
    "postgres": lambda _: crash(shared_server()),
}


@pytest.mark.parametrize(
    ("store", "executor"),
    [("sqlite", "threads"), ("postgres", "threads"), ("sqlite", "loop"), ("postgres", "loop")],
)
def test_an_outage_costs_nothing_but_time(run: Run, store: str, executor: str) -> None:
    """No wrong answer, nothing lost, no live worker taken for dead, and Waits keep their limit."""
    done: list[int] = []

    async def trial(ground: Ground, cell: Cell, seed: int) -> Verdict:
        # A worker's lease outlasts every outage, as the usual one does.
        found = await outage_trial(ground, seed, SECONDS, OUTAGES[store](ground))
        done.append(found.outages * found.operations)
        return found.verdict

    run(trial, [Cell("the store goes away", store, executor)], lease=15.0)
    assert all(done)
