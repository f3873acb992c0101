"""The demo, run as a reader of the README runs it."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from examples.analysis.router import NAMES
from tests.full.examples.serving import ROOT


@pytest.fixture(scope="module")
def printed() -> str:
    """Run the demo on a terminal of 80 columns and return its output."""
    plain = {name: text for name, text in os.environ.items() if name != "FORCE_COLOR"}
    ran = subprocess.run(
        [sys.executable, "-m", "examples.analysis", "demo"],
        cwd=ROOT,
        env={**plain, "COLUMNS": "80", "PYTHONIOENCODING": "utf-8"},
        capture_output=True,
        encoding="utf-8",
        timeout=300,
    )
    assert (ran.returncode, ran.stderr) == (0, "")
    return ran.stdout


def test_each_endpoint_reaches_100_percent_and_has_a_row(printed: str) -> None:
    """Each endpoint reaches 100 percent and has a row in the table."""
    for verb in NAMES:
        assert re.search(rf"^ *{verb} .*100% DONE", printed, re.MULTILINE)
        assert re.search(rf"│ POST /v1/{verb} +│ \S.* │", printed)
    assert "1 face, at (" in printed
    assert "24 coins" in printed
    assert "authentic: True" in printed


def test_cancel_wait_and_list_are_shown(printed: str) -> None:
    """One operation is cancelled, one is awaited and two are listed, all within 80 columns."""
    percent = re.search(r"Cancelled a long track at (\d+) %: it ended CANCELLED", printed)
    assert percent is not None
    assert 0 < int(percent[1]) < 100
    assert re.search(r"Waited \d+\.\d\d s in one call: retina\.jpg scores \d\d\.\d", printed)
    assert "The server lists 2 finished scores." in printed
    assert max(len(line) for line in printed.splitlines()) <= 80
