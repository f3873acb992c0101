"""Short runs of the long test commands, on each store and with each executor."""

from __future__ import annotations

import logging

import pytest

from tests.full.across.__main__ import main


@pytest.fixture(autouse=True)
def restored_log_level():
    """Restore the log level that the command sets, because later tests may need the log."""
    log = logging.getLogger("lro")
    level = log.level
    yield
    log.setLevel(level)


@pytest.mark.parametrize(
    ("command", "said", "times"),
    [
        # the command fails unless 100 identical starts make one operation (spec §9.2)
        ("ids --rounds 6", "{'starts': 600, 'operations': 6, 'runs': 6}", 3),
        # CANCELLED means stopped; either cancellation or completion wins (spec §2.6, §2.8)
        ("cancel --count 80", "'CANCELLED'", 9),
        ("wait --rounds 1 --look-again 0.2", "every announcement lost", 2),
        ("records --examples 2 --fixed", "2 traces", 1),
    ],
)
def test_short_run_of_each_long_test_command_finds_no_violation(command, said, times, capsys):
    """A short run of each command raises no error and prints its counts."""
    pytest.importorskip("psycopg")
    main(command.split())
    assert capsys.readouterr().out.count(said) == times
