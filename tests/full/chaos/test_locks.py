"""Strangers' locks and crash loops in their short form."""

from __future__ import annotations

from tests.chaos.campaign import Cell
from tests.chaos.locks import LOCKS, lock_trial
from tests.chaos.loops import loop_trial
from tests.chaos.verdict import Verdict
from tests.chaos.world import Ground
from tests.full.chaos.conftest import LEASE, Run


async def trial(ground: Ground, cell: Cell, seed: int) -> Verdict:
    """Have something locked for longer than a lease."""
    return await lock_trial(ground, seed, cell.row, 1.5 * LEASE)


async def loop(ground: Ground, cell: Cell, seed: int) -> Verdict:
    """Kill each server before its first lease is over."""
    return await loop_trial(ground, seed)


def test_a_strangers_lock_costs_no_living_work(run: Run) -> None:
    """Of a record, of the table, or of the file: no worker that lives is taken for dead."""
    run(trial, [Cell(what, store, "threads") for what, store in LOCKS.items()])


def test_a_server_that_lives_shorter_than_its_lease_reports_the_truth(run: Run) -> None:
    """Though each of them is killed before its first lease is over."""
    run(loop, [Cell("crash loop", store, "threads") for store in ("sqlite", "postgres")])
