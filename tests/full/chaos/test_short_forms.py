"""The chaos campaigns in their short form: each command, on one store or both."""

from __future__ import annotations

import gc
import warnings

import pytest

from tests.chaos.__main__ import main
from tests.services.postgres import shared_server
from tests.waiting import PATIENCE

AT_ONCE = 10
"""The number of trials that run at the same time."""
LEASE = 3
"""The lease in seconds. While other tests run, a live server may get no CPU for 2 seconds."""


@pytest.mark.parametrize(
    ("command", "options"),
    [
        # Wherever a server is killed, each operation ends once, none is lost, and at-most-once work
        # begins once. Executors with processes, which are slow to start, have fewer rows.
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
        # Some late writes of frozen servers occur; each is refused, counted and logged.
        ("fence --executors threads,loop", {}),
        # No kind of lock makes a live worker count as lost.
        ("locks --leases 1.5", {}),
        ("loops --executors threads", {}),
        # No reply is wrong, nothing is lost, and Waits keep their timeout.
        ("store --executors threads,loop --seconds 5", {"lease": "15"}),
        # Each operation's end is sent at least once, with one id; nothing is sent before the end.
        ("webhooks --kills 4", {}),
        # Completed steps are not repeated, and each operation has the results of its steps.
        ("steps --kills 6", {}),
    ],
)
def test_campaign_finds_nothing_wrong(command: str, options: dict[str, str]) -> None:
    """A campaign finds no violation; its time limits are loose, unlike those of the long form."""
    for extra in ("celery", "psycopg"):
        pytest.importorskip(extra)
    shared_server()  # skips the test if there is no server
    options = {"lease": str(LEASE), "seeds": "1"} | options
    more = [f"--{name}={value}" for name, value in options.items()]
    with warnings.catch_warnings():
        # A call that is abandoned while it connects to a server that is being killed leaves a
        # socket that httpcore does not know; the garbage collector closes the socket.
        warnings.simplefilter("ignore", ResourceWarning)
        assert main([*command.split(), *more], margin=PATIENCE, at_once=AT_ONCE) == 0
        gc.collect()
