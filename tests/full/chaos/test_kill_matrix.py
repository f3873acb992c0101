"""The kill matrix in its short form: each point, the stores in turn, each executor."""

from __future__ import annotations

import itertools

from tests.chaos.campaign import Cell
from tests.chaos.kill import ROWS, kill_trial
from tests.chaos.verdict import Verdict
from tests.chaos.world import Ground
from tests.full.chaos.conftest import Run

FEW = {
    "processes": ("before encode", "during cancel", "during orphan scan", "a child alone mid work"),
    "celery": ("before the first renewal", "before the terminal commit", "during orphan scan"),
}
"""The rows for the executors whose processes take long to begin."""


async def trial(ground: Ground, cell: Cell, seed: int) -> Verdict:
    """Kill a server; how soon the truth is known, the long form says, on a quiet machine."""
    return await kill_trial(ground, ROWS[cell.row], seed)


def test_a_server_that_dies_leaves_the_truth(run: Run) -> None:
    """Wherever it is killed: one end each, nothing lost, nothing begun twice that must not be."""
    rows = [row for row in ROWS if ROWS[row].fits("threads")]
    stores = itertools.cycle(("sqlite", "postgres"))
    run(trial, [Cell(row, store, "threads") for row, store in zip(rows, stores, strict=False)])


def test_so_it_is_where_an_event_loop_does_the_work(run: Run) -> None:
    """The same where no thread waits for a start, a report or an end, on the other store each."""
    rows = [row for row in ROWS if ROWS[row].fits("loop")]
    stores = itertools.cycle(("postgres", "sqlite"))
    run(trial, [Cell(row, store, "loop") for row, store in zip(rows, stores, strict=False)])


def test_so_it_is_where_others_do_the_work(run: Run) -> None:
    """The same where a server's functions run in its children, or in Celery's workers."""
    stores = {"processes": "sqlite", "celery": "postgres"}
    run(trial, [Cell(row, stores[how], how) for how in FEW for row in FEW[how]])
