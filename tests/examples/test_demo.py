"""The demo, run as its readers run it."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from examples.analysis.router import NAMES
from tests.examples.serving import ROOT


@pytest.fixture(scope="module")
def told() -> str:
    """What the demo prints on a screen of 80 columns."""
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


def test_ten_results(told: str) -> None:
    """Each endpoint came to 100 percent, and has its line in the table."""
    for verb in NAMES:
        assert re.search(rf"^ *{verb} .*100% DONE", told, re.MULTILINE)
        assert re.search(rf"│ POST /v1/{verb} +│ \S.* │", told)
    assert "1 face, at (" in told
    assert "24 coins" in told
    assert "authentic: True" in told


def test_a_cancel_and_a_wait(told: str) -> None:
    """Then one is cancelled, one is waited for, and the finished ones are listed."""
    percent = re.search(r"Cancelled a long track at (\d+) %: it ended CANCELLED", told)
    assert percent is not None
    assert 0 < int(percent[1]) < 100
    assert re.search(r"Waited \d+\.\d\d s in one call: retina\.jpg scores \d\d\.\d", told)
    assert "The server lists 2 finished scores." in told


def test_eighty_columns(told: str) -> None:
    """No line is longer than the screen is wide."""
    assert max(len(line) for line in told.splitlines()) <= 80
