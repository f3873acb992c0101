"""Opening a closed service again whose work runs in child processes."""

from __future__ import annotations

from pathlib import Path

import pytest

from lro.executors.processes import ProcessExecutor
from lro.stores.sqlite import SQLiteStore
from tests.engine.test_opening_again import check_opening


@pytest.mark.parametrize("loops", ["one", "several"])
def test_children_are_started_again_and_end_at_each_close(loops: str, tmp_path: Path) -> None:
    """After a new start, new children do the work; after each close no child is left."""
    store = SQLiteStore(tmp_path / "operations.db")
    check_opening(store, ProcessExecutor(1), "processes", loops, tmp_path)
