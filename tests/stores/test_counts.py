"""What stores count beyond their contract: several processes, bounded reads, and faults."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from lro import DeclarationError
from lro._engine.store_port import keeps_statistics
from lro.adapters import StatisticsStore
from lro.stores._counting import PRUNED_ROWS
from lro.stores.memory import MemoryStore
from lro.stores.sqlite import SQLiteStore
from lro.testing import START, ManualClock


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
def test_old_minutes_go_in_many_turns(kind: str, tmp_path: Path) -> None:
    """After a long time without any counts one call does not remove them all."""
    clock = ManualClock()
    store: StatisticsStore = MemoryStore(clock)
    if kind == "sqlite":
        store = SQLiteStore(tmp_path / "operations.db", clock=clock)
    with closing(store):
        counts = {f"M{n}": {"a": 1} for n in range(300)}
        for _ in range(4):
            store.add_counts(clock(), counts)
            clock.advance(minutes=1)
        clock.advance(days=9)
        left = []
        for _ in range(4):
            store.add_counts(clock(), {})
            left.append(sum(len(store.read_counts(START, step_minutes=n)) for n in (1, 5, 30)))
        rows = 300 * (4 + 1 + 1)
        some = [max(0, rows - PRUNED_ROWS * turn) for turn in range(1, 5)]
        assert left == ([0] * 4 if kind == "memory" else some)


@pytest.mark.parametrize("step", [0, 2, 60])
def test_other_steps_are_refused(step: int) -> None:
    """By the argument's name, with what there is."""
    with pytest.raises(DeclarationError, match=r"step_minutes: must be one of \(1, 5, 30\)"):
        MemoryStore().read_counts(START, step_minutes=step)


def test_store_without_the_methods_keeps_no_statistics() -> None:
    """All four are needed."""

    class Half(MemoryStore):
        read_load = property()

    assert keeps_statistics(MemoryStore())
    assert not keeps_statistics(Half())
