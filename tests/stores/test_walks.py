"""Walks stay exact while operations are inserted, deleted, completed and expire (spec §3.4(7))."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from lro import ListOperationsRequest, Service
from lro._model.operation import delete, end, report
from lro.testing import START, ManualClock
from tests.places import Place
from tests.service_fixtures import store_of
from tests.services.postgres import shared_server
from tests.stores.list_walks import EMPTY, insert, make_service, metadata, run_walks

EACH_STORE = pytest.mark.parametrize("kind", ["memory", "sqlite", "postgres"])
FILTERS = ("", "state() = IN_PROGRESS stage-1")
"""Both match what is in progress with 1 percent, as the steady operations are."""
PARENT = "walks/threads"
WRITERS = 3
OPERATIONS = {"memory": 300, "sqlite": 60, "postgres": 60}
"""So many does each writer insert: what takes about a quarter of a second."""
SECONDS = 20
"""Over so many moments the creation times are strewn, so that many are equal."""
STEADY = 40
"""This number of operations, which no writer touches."""


@pytest.fixture
def place(kind: str, tmp_path: Path) -> Place:
    """A place of this kind where nothing has been kept yet."""
    if kind != "postgres":
        return Place(kind, str(tmp_path / "operations.db"))
    pytest.importorskip("psycopg")
    server = shared_server()
    return Place(kind, server.url, server.fresh_schema())


@pytest.fixture
def restless() -> Iterator[None]:
    """Threads that take turns much more often than usual."""
    usual = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(usual)


def strewn(store: Any, second: int, writer: str, number: int, percent: int) -> str:
    """Store an operation whose name holds its creation time and its writer."""
    name = f"{PARENT}/operations/{second:03}.{writer}.{number:04}"
    insert(store, PARENT, name, START + timedelta(seconds=second), percent)
    return name


def write(store: Any, writer: int, count: int, gone: set[str]) -> None:
    """Insert so many operations anywhere; complete, report on and delete others in between."""
    chosen, now, mine = random.Random(writer), store.now, []
    for number in range(count):
        percent = chosen.randrange(2)
        mine.append(strewn(store, chosen.randrange(SECONDS), f"w{writer}", number, percent))
        chosen.shuffle(mine)
        if number % 3 == 0:
            name = mine.pop()
            store.update(name, delete(now()))
            gone.add(name)
        elif number % 3 == 1:
            store.update(mine[-1], report(metadata(percent), None, now()))
        else:
            store.update(mine.pop(), end(EMPTY, now=now(), keep_for=timedelta(days=1)))


def walk(service: Service, text: str, sizes: random.Random, gone: set[str]) -> int:
    """Walk through the list once while it changes, and check it; how many operations it showed.

    ``gone`` holds what has been deleted, each from when the deletion is over.
    """
    shown: list[str] = []
    token = ""
    for _ in range(10_000):
        over = set(gone)
        request = ListOperationsRequest(
            name=PARENT, filter=text, page_size=sizes.randint(1, 30), page_token=token
        )
        page = service.list(request)
        names = [operation.name for operation in page.operations]
        assert not over & set(names), "shown after it was deleted"
        assert not (text and any(operation.done for operation in page.operations))
        shown += names
        token = page.next_page_token
        if not token:
            break
    assert not token, "the walk does not end"
    parts = [name.rpartition("/")[2].split(".") for name in shown]
    keys = [(-int(second), name) for (second, _, _), name in zip(parts, shown, strict=True)]
    assert keys == sorted(set(keys)), "out of order, or shown twice"
    steady = [writer for _, writer, _ in parts if writer == "steady"]
    assert len(steady) == STEADY, "not all that was there throughout was shown"
    return len(shown)


@EACH_STORE
def test_walks_are_exact(kind: str, tmp_path: Path, clock: ManualClock) -> None:
    """Whatever happens between pages, what was there throughout is shown exactly once."""
    with store_of(kind, clock, tmp_path) as store, make_service(store) as service:
        run_walks(service, clock, 15 if kind == "memory" else 6)


@EACH_STORE
@pytest.mark.parametrize("text", FILTERS)
@pytest.mark.usefixtures("restless")
def test_walks_are_exact_beside_others_that_write(kind: str, place: Place, text: str) -> None:
    """Nothing is lost, doubled or out of order where changes come at any moment, by any process.

    Each writer has a store of its own, as another process has it, but for that in memory.
    """
    gone, sizes = set[str](), random.Random(text)
    with ExitStack() as stack, ThreadPoolExecutor(WRITERS) as threads:
        service = stack.enter_context(make_service(place.open()))
        for number in range(STEADY):
            strewn(service.store, number % SECONDS, "steady", number, 1)
        writers = []
        for number in range(WRITERS):
            store = service.store
            if kind != "memory":
                store = stack.enter_context(closing(place.open()))
            writers.append(threads.submit(write, store, number, OPERATIONS[kind], gone))
        while not all(writer.done() for writer in writers):
            walk(service, text, sizes, gone)
        for writer in writers:
            writer.result()
        assert walk(service, text, sizes, gone) > 0
    assert len(gone) == WRITERS * OPERATIONS[kind] / 3
