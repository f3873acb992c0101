"""Places of every kind of store, and processes on them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.full.across.parties import Apart
from tests.full.across.works import Latch, Traces
from tests.places import Place
from tests.services.postgres import shared_server

SHARED = ["sqlite", "postgres"]


def place_of(kind: str, folder: Path) -> Place:
    """A place of this kind where nothing has been kept yet."""
    if kind == "postgres":
        pytest.importorskip("psycopg")
        server = shared_server()
        return Place(kind, server.url, server.fresh_schema())
    return Place(kind, str(folder / "operations.db"))


@pytest.fixture(scope="module", params=SHARED)
def place(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Place:
    """A place that several processes can share, one for the tests of a module."""
    return place_of(request.param, tmp_path_factory.mktemp("across"))


@pytest.fixture(scope="module")
def three(place: Place) -> Iterator[list[Apart]]:
    """Three processes at that place, which work in threads."""
    with contextlib.ExitStack() as stack:
        parties = [Apart(place) for _ in range(3)]
        for party in parties:
            stack.callback(party.close)
        yield parties


@pytest.fixture
def traces(tmp_path: Path) -> Traces:
    """Traces of work."""
    return Traces(tmp_path / "traces", 10_000)


@pytest.fixture
def latch(tmp_path: Path) -> Iterator[Callable[[str], Latch]]:
    """Makes latches."""
    with contextlib.ExitStack() as stack:

        def make(name: str) -> Latch:
            made = Latch(tmp_path / name, make=True)
            stack.callback(made.close)
            return made

        yield make
