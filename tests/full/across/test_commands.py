"""The long forms in short: on each store, and with each executor."""

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
    ("command", "said", "times"),
    [
        # A hundred identical starts at once: one operation (spec §9.2); else there is an error.
        ("ids --rounds 6", "{'starts': 600, 'operations': 6, 'runs': 6}", 3),
        # Cancelled means stopped; of cancellation and completion one wins (spec §2.6, §2.8).
        ("cancel --count 80", "'CANCELLED'", 9),
        ("wait --rounds 1 --look-again 0.2", "every announcement lost", 2),
        ("records --examples 2 --fixed", "2 traces", 1),
    ],
)
def test_a_long_form_in_short(command, said, times, capsys):
    """It raises what is wrong, and counts what it has seen."""
    pytest.importorskip("psycopg")
    main(command.split())
    assert capsys.readouterr().out.count(said) == times
