"""Kills of processes that send webhooks: the short form."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos.webhooks import webhook_trial
from tests.services.postgres import shared_server


@pytest.mark.parametrize("store", ["sqlite", "postgres"])
def test_killed_processes_lose_no_event_and_make_up_none(store: str, tmp_path: Path) -> None:
    """Each end is notified, at least once, with one id; nothing is that has not ended."""
    place = str(tmp_path / "rows.db")
    if store == "postgres":
        place = f"{shared_server().url}#{shared_server().fresh_schema()}"
    found = webhook_trial(place, tmp_path, kills=4, seed=1)
    assert found.faults == []
    assert found.operations > 0
    assert found.events >= found.operations
