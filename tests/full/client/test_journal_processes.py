"""Processes that make, open and write one journal at once."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from lro_client import Journal

WRITING = """
import sys
from tests.client.test_journal import Journal, entry

path, first = sys.argv[1], int(sys.argv[2])
for number in range(first, first + 15):
    with Journal(path, busy_seconds=200) as journal:  # SQLite gives no turns
        journal.begin(entry(number))
        journal.begin(entry(0))
"""


def test_processes_share_a_journal(tmp_path: Path) -> None:
    """Also while they make and open it all at once."""
    path = tmp_path / "pending.db"
    root = Path(__file__).parents[3]
    command = [sys.executable, "-c", WRITING, str(path)]
    running = [subprocess.Popen([*command, str(1 + 15 * n)], cwd=root) for n in range(4)]
    assert [process.wait(240) for process in running] == [0] * 4
    with Journal(path) as journal:
        assert len(journal.pending()) == 61
