"""Kills between insert, commit, claim and end of starts within transactions: the short form."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos.transactions import POINTS, transaction_trial
from tests.services.postgres import shared_server


@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("store", ["sqlite", "postgres"])
def test_kill_leaves_an_operation_for_each_committed_row_and_no_other(
    store: str, point: str, tmp_path: Path
) -> None:
    """Nothing is lost after the commit, nothing is there without it, and nothing is done twice."""
    place = str(tmp_path / "rows.db")
    if store == "postgres":
        place = f"{shared_server().url}#{shared_server().fresh_schema()}"
    assert transaction_trial(place, tmp_path, point, POINTS.index(point)) == []
