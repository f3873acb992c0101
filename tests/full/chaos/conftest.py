"""What the chaos tests share: a broker, and campaigns in their short form."""

from __future__ import annotations

import asyncio
import gc
import warnings
from collections.abc import Iterator
from typing import Protocol

import pytest

from tests.chaos.campaign import Campaign, Cell, Trial
from tests.services.postgres import shared_server
from tests.services.redis import redis_server

AT_ONCE = 10
"""How many trials run together."""
LEASE = 3.0
"""In seconds. Beside all other tests a server that lives may have no turn for a second or two."""


class Run(Protocol):
    """Runs a trial in each cell, and asserts that nothing was violated."""

    def __call__(self, trial: Trial, cells: list[Cell], lease: float = LEASE) -> None:
        """Run all of them, with leases of so many seconds."""
        ...


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a Redis of our own."""
    with redis_server(tmp_path_factory.mktemp("redis")) as server:
        yield server.url


@pytest.fixture
def run(request: pytest.FixtureRequest) -> Run:
    """Runs campaigns."""

    def run(trial: Trial, cells: list[Cell], lease: float = LEASE) -> None:
        if any(cell.store == "postgres" for cell in cells):
            shared_server()  # skips here where there is none
        remote = any(cell.executor == "celery" for cell in cells)
        broker = request.getfixturevalue("broker") if remote else ""
        campaign = Campaign(trial=trial, lease=lease, at_once=AT_ONCE, broker=broker)
        violations: list[str] = []
        # Each with another seed, and so another place in the row, in every run of the tests alike.
        with warnings.catch_warnings():
            # A call that is given up while it connects, to a server that is killed just then,
            # leaves a socket that httpcore does not know yet: the collector closes it.
            warnings.simplefilter("ignore", ResourceWarning)
            tallies = asyncio.run(campaign.run(list(enumerate(cells)), violations.append))
            gc.collect()
        assert violations == []
        assert sum(tally.runs for tally in tallies.values()) == len(cells)

    return run


@pytest.fixture(autouse=True)
def everything() -> None:
    """The matrix is of all stores and executors."""
    for extra in ("celery", "psycopg"):
        pytest.importorskip(extra)
