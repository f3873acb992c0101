"""The chaos campaigns in their short form: each command, with the stores in turn."""

from __future__ import annotations

import gc
import warnings

import pytest

from tests.chaos.__main__ import main
from tests.services.postgres import shared_server
from tests.waiting import PATIENCE

AT_ONCE = 10
"""How many trials run together."""
LEASE = 3
"""In seconds. Beside all other tests a server that lives may have no turn for a second or two."""


@pytest.mark.parametrize(
    ("command", "options"),
    [
        # Wherever a server is killed: one end each, nothing lost, nothing begun twice that must
        # not be. The executors whose processes take long to begin have fewer rows.
        ("kill --stores sqlite --executors threads", {}),
        ("kill --stores postgres --executors loop", {}),
        (
            "kill --stores sqlite --executors processes",
            {"rows": "before encode,during cancel,during orphan scan,a child alone mid work"},
        ),
        (
            "kill --stores postgres --executors celery",
            {"rows": "before the first renewal,before the terminal commit,during orphan scan"},
        ),
        # Late writes of frozen servers are refused, counted and logged, and there are some.
        ("fence --executors threads,loop", {}),
        # No worker that lives is taken for dead, whatever is locked.
        ("locks --leases 1.5", {}),
        ("loops --executors threads", {}),
        # No wrong answer, nothing lost, and Waits keep their limit.
        ("store --executors threads,loop --seconds 5", {"lease": "15"}),
        # Each end is notified, at least once, with one id; nothing is that has not ended.
        ("webhooks --kills 4", {}),
        # Completed steps are not done again, and each operation has the result of its steps.
        ("steps --kills 6", {}),
    ],
)
def test_campaign_finds_nothing_wrong(command: str, options: dict[str, str]) -> None:
    """How soon the truth is known, the long form says, on a quiet machine."""
    for extra in ("celery", "psycopg"):
        pytest.importorskip(extra)
    shared_server()  # skips here where there is none
    options = {"lease": str(LEASE), "seeds": "1"} | options
    more = [f"--{name}={value}" for name, value in options.items()]
    with warnings.catch_warnings():
        # A call that is given up while it connects, to a server that is killed just then,
        # leaves a socket that httpcore does not know yet: the collector closes it.
        warnings.simplefilter("ignore", ResourceWarning)
        assert main([*command.split(), *more], margin=PATIENCE, at_once=AT_ONCE) == 0
        gc.collect()
