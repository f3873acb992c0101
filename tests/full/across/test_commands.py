"""The long forms can be run."""

from __future__ import annotations

import logging

import pytest

from tests.full.across.__main__ import main


@pytest.fixture(autouse=True)
def loud():
    """The command silences the log; the tests after this one may look at it."""
    log = logging.getLogger("lro")
    level = log.level
    yield
    log.setLevel(level)


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("ids --rounds 2 --store memory sqlite", "'operations': 2, 'runs': 2"),
        ("cancel --count 20 --store memory --executor asyncio", "CANCELLED"),
        ("wait --rounds 1 --look-again 0.2 --store memory sqlite", "every announcement lost"),
        ("records --examples 2", "2 traces"),
    ],
)
def test_a_long_form_in_short(command, said, capsys):
    """It counts what it has seen."""
    main(command.split())
    assert said in capsys.readouterr().out
