"""A hundred identical starts at once, from threads and processes: one operation (spec §9.2)."""

from __future__ import annotations

from tests.full.across.ids import identical_starts
from tests.full.across.parties import Inside
from tests.places import Place

ROUNDS = 6


def test_one_operation_from_many_processes(three, traces):
    """All get its name, its work is done once; with another body it is a conflict."""
    found = identical_starts(three, ROUNDS, traces)
    assert found == {"starts": 100 * ROUNDS, "operations": ROUNDS, "runs": ROUNDS}


def test_one_operation_from_many_threads(traces):
    """The same in memory."""
    party = Inside(Place("memory"))
    try:
        found = identical_starts([party], ROUNDS, traces)
    finally:
        party.close()
    assert found == {"starts": 100 * ROUNDS, "operations": ROUNDS, "runs": ROUNDS}
