"""The architecture page agrees with the code: the routes of three calls, the table of states."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import pytest

from lro._model.record import TRANSITIONS
from tests.modules_entered import MODULES_AT_MOST, as_markdown, entered

PAGE: Final = Path(__file__).resolve().parent.parent / "docs/explanation/architecture.md"


@pytest.mark.platform
def test_each_call_enters_the_modules_that_the_page_lists() -> None:
    """A new module on the way of a call is a decision, which the page records."""
    pytest.importorskip("markdown_it", reason="the lists are those of a full installation")
    lists = entered()
    assert {call: len(modules) for call, modules in lists.items()} == {
        call: min(len(modules), MODULES_AT_MOST[call]) for call, modules in lists.items()
    }
    assert as_markdown(lists) in PAGE.read_text(), (
        "python -m tests.modules_entered prints the lists"
    )


def test_state_table_of_the_page_is_the_one_of_the_code() -> None:
    """Each row is a state, an event and the state that it leads to."""
    rows = re.findall(r"^\| `(\w+)` \| `([\w ]+)` \| `(\w+)` \|$", PAGE.read_text(), re.MULTILINE)
    assert sorted(rows) == sorted(
        (state.name, event.name.lower().replace("_", " "), after.name)
        for state, events in TRANSITIONS.items()
        for event, after in events.items()
    )
