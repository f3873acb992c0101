"""Walks stay exact while operations are inserted, deleted, completed and expire (spec §3.4(7))."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from lro import Service
from lro.adapters import Store
from lro.stores.memory import MemoryStore
from lro.stores.sqlite import SQLiteStore
from lro.testing import ManualClock
from tests.places import Place
from tests.services.postgres import shared_server, store_maker
from tests.stores.list_walks import make_service, run_walks
from tests.stores.list_writers import FILTERS, fill, walk, write

EACH_STORE = pytest.mark.parametrize("kind", ["memory", "sqlite", "postgres"])
EACH_FILTER = pytest.mark.parametrize("text", FILTERS[::3])
WRITERS = 3
OPERATIONS = {"memory": 300, "sqlite": 60, "postgres": 60}
"""So many does each writer insert: what takes about a quarter of a second."""


@pytest.fixture
def place(kind: str, tmp_path: Path) -> Place:
    """A place of this kind where nothing has been kept yet."""
    if kind != "postgres":
        return Place(kind, str(tmp_path / "operations.db"))
    pytest.importorskip("psycopg")
    server = shared_server()
    return Place(kind, server.url, server.fresh_schema())


@pytest.fixture
def service(place: Place) -> Iterator[Service]:
    """A service at that place, by the store's own clock."""
    with make_service(place.open()) as service:
        yield service


@pytest.fixture
def restless() -> Iterator[None]:
    """Threads that take turns much more often than usual."""
    usual = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(usual)


def timed_store(kind: str, folder: Path, clock: ManualClock) -> Store:
    """An empty store of this kind, by the clock of the test."""
    if kind == "memory":
        return MemoryStore(clock)
    if kind == "sqlite":
        return SQLiteStore(folder / "operations.db", clock=clock)
    pytest.importorskip("psycopg")
    made: Store = store_maker(shared_server())(clock)
    return made


@EACH_STORE
def test_walks_are_exact(kind: str, tmp_path: Path, clock: ManualClock) -> None:
    """Whatever happens between pages, what was there throughout is shown exactly once."""
    with make_service(timed_store(kind, tmp_path, clock)) as service:
        run_walks(service, clock, 15)


@EACH_STORE
@EACH_FILTER
@pytest.mark.usefixtures("restless")
def test_walks_are_exact_beside_threads_that_write(kind: str, service: Service, text: str) -> None:
    """Nothing of it is lost, doubled or out of order where the changes come at any moment."""
    parent, gone, sizes = "walks/threads", set[str](), random.Random(text)
    fill(service.store, parent)
    with ThreadPoolExecutor(WRITERS) as threads:
        writers = [
            threads.submit(write, service.store, parent, number, OPERATIONS[kind], gone.add)
            for number in range(WRITERS)
        ]
        while not all(writer.done() for writer in writers):
            walk(service, parent, text, sizes, gone)
    for writer in writers:
        writer.result()
    assert walk(service, parent, text, sizes, gone) > 0
    assert len(gone) == WRITERS * OPERATIONS[kind] / 3
