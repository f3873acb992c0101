"""Servers that are frozen for three leases: what they write when they go on."""

from __future__ import annotations

import attrs

from tests.chaos.campaign import Cell
from tests.chaos.freeze import freeze_trial
from tests.chaos.verdict import Verdict
from tests.chaos.world import Ground
from tests.full.chaos.conftest import Run

late_writes: list[int] = []


async def trial(ground: Ground, cell: Cell, seed: int) -> Verdict:
    """Freeze a server, within a transaction where the row says so."""
    within = cell.row == "frozen within a transaction"
    frozen = await freeze_trial(ground, seed, within=within)
    late_writes.append(frozen.late_writes)
    return frozen.verdict


def test_late_writes_are_refused(run: Run) -> None:
    """All of them, counted and logged; the result of who has taken over stands."""
    late_writes.clear()
    cells = [
        Cell("frozen", "sqlite", "threads"),
        Cell("frozen", "postgres", "threads"),
        Cell("frozen within a transaction", "postgres", "threads"),
    ]
    loops = [attrs.evolve(cell, executor="loop") for cell in cells]
    run(trial, [*cells, *loops])
    assert sum(late_writes) > 0
