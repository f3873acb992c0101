"""The architecture page agrees with the code: modules of five calls, and the tables of states."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from lro._engine.attempt import NEXT
from lro._model.operation import TRANSITIONS
from tests.modules_entered import MODULES_AT_MOST, TITLES

ROOT: Final = Path(__file__).resolve().parent.parent
PAGE: Final = ROOT / "docs/explanation/architecture.md"


@pytest.mark.platform
def test_each_call_enters_the_modules_that_the_page_lists() -> None:
    """The page lists the modules of each call, so that a new module is a deliberate choice.

    The calls run in a separate process: with the caches of other tests, they would enter fewer
    modules.
    """
    pytest.importorskip("markdown_it", reason="the lists are those of a full installation")
    command = [sys.executable, "-m", "tests.modules_entered"]
    run = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=240)
    assert run.returncode == 0, run.stderr
    counts = dict(re.findall(r"^\*\*(.+)\*\*: (\d+) modules", run.stdout, re.MULTILINE))
    assert set(counts) == set(TITLES.values())
    for call, title in TITLES.items():
        assert int(counts[title]) <= MODULES_AT_MOST[call], run.stdout
    first, last = run.stdout.split("\n", 1)[0], run.stdout.strip().rsplit("\n", 1)[-1]
    listed = first + PAGE.read_text().partition(first)[2].partition(last)[0] + last
    assert listed.splitlines() == run.stdout.strip().splitlines()


def test_state_table_of_the_page_is_the_one_of_the_code() -> None:
    """Each row of the page's table has a state, an event and the next state, as in the code."""
    rows = re.findall(r"^\| `(\w+)` \| `([\w ]+)` \| `(\w+)` \|$", PAGE.read_text(), re.MULTILINE)
    assert sorted(rows) == sorted(
        (state.name, event.name.lower().replace("_", " "), after.name)
        for state, events in TRANSITIONS.items()
        for event, after in events.items()
    )


def test_lives_of_attempts_on_the_page_are_those_of_the_code() -> None:
    """Each row of the page's table has a state of an attempt and all states that may follow it."""
    rows = re.findall(r"^\| `([A-Z]+)` \| [^`|]+ \| (.*)\|$", PAGE.read_text(), re.MULTILINE)
    listed = {state: set(re.findall(r"\w+", after)) for state, after in rows}
    assert listed == {state.name: {one.name for one in after} for state, after in NEXT.items()}
