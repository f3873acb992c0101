"""Lists agree with the filter evaluator, and paging is exact during changes (spec §3.4(7))."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from lro import Service, State
from lro._filters import prefiltering
from lro._model.operation import delete, end
from lro.adapters import Record
from lro.testing import START, ManualClock
from lro.wire import ListOperationsRequest
from tests.filters.messages import Row, row
from tests.places import Place
from tests.service_fixtures import store_of
from tests.services.postgres import shared_server
from tests.stores.list_agreement import (
    EXPORT,
    PATHS,
    Comparison,
    compare,
    declared,
    keep,
    stores_of,
)
from tests.stores.list_walks import EMPTY, Walks, insert, make_service
from tests.vector_files import vectors

EACH_STORE = pytest.mark.parametrize("kind", ["memory", "sqlite", "postgres"])
FILTERS = ("", "state() = IN_PROGRESS stage-1")
"""Filters that match running operations at 1 percent, as all steady operations are."""
PARENT = "walks/threads"
WRITERS = 3
OPERATIONS = {"memory": 300, "sqlite": 60, "postgres": 60}
"""The number of inserts per writer; all of them take about a quarter of a second."""
SECONDS = 20
"""Creation times are spread over this many seconds, so that many of them are equal."""
STEADY = 40
"""The number of operations that no writer changes."""


@pytest.fixture
def place(kind: str, tmp_path: Path) -> Place:
    """Return a new database of this kind."""
    if kind != "postgres":
        return Place(kind, str(tmp_path / "operations.db"))
    pytest.importorskip("psycopg")
    server = shared_server()
    return Place(kind, server.url, server.fresh_schema())


@pytest.fixture
def frequent_thread_switches() -> Iterator[None]:
    """Make threads switch much more often than usual."""
    usual = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(usual)


def strewn(store: Any, second: int, writer: str, number: int) -> str:
    """Store an operation whose name contains its creation time and its writer."""
    name = f"{PARENT}/operations/{second:03}.{writer}.{number:04}"
    insert(store, PARENT, name, START + timedelta(seconds=second), 1)
    return name


def write(store: Any, writer: int, count: int, gone: set[str]) -> None:
    """Insert operations with random creation times, and end or delete one after each insert."""
    chosen, mine = random.Random(writer), list[str]()
    for number in range(count):
        mine.append(strewn(store, chosen.randrange(SECONDS), f"w{writer}", number))
        chosen.shuffle(mine)
        name, now = mine[-1], store.now()
        change = delete(now) if number % 2 else end(EMPTY, now=now, keep_for=timedelta(days=1))
        store.update(mine.pop(), change)
        gone.update([name] * (number % 2))


def walk(service: Service, text: str, sizes: random.Random, gone: set[str]) -> None:
    """Page through the list once while it changes, and check the result.

    Writers add a name to ``gone`` after they have deleted the operation.
    """
    shown: list[str] = []
    token, ended = "", False
    while not ended:
        over = set(gone)
        request = ListOperationsRequest(
            name=PARENT, filter=text, page_size=sizes.randint(1, 30), page_token=token
        )
        page = service.list(request)
        names = [operation.name for operation in page.operations]
        assert not over & set(names), "shown after it was deleted"
        assert not (text and any(operation.done for operation in page.operations))
        shown += names
        assert len(shown) < 10_000, "the walk does not end"
        token = page.next_page_token
        ended = not token
    keys = [(-int(name.rpartition("/")[2][:3]), name) for name in shown]
    assert keys == sorted(set(keys)), "out of order, or shown twice"
    assert sum(".steady." in name for name in shown) == STEADY, "not all that stayed was shown"


@EACH_STORE
def test_list_walk_shows_each_operation_once(kind: str, tmp_path: Path, clock: ManualClock) -> None:
    """An operation that exists throughout is shown exactly once, whatever changes between pages."""
    with store_of(kind, clock, tmp_path) as store, make_service(store) as service:
        for seed in range(24 if kind == "memory" else 12):  # each filter is used twice or once
            Walks(service, clock, seed).run()


@EACH_STORE
@pytest.mark.parametrize("text", FILTERS)
@pytest.mark.usefixtures("frequent_thread_switches")
def test_list_walk_shows_each_operation_once_during_writes(
    kind: str, place: Place, text: str
) -> None:
    """While writers change the list, no operation is missed, repeated or out of order.

    Each writer has its own store, as another process would; in memory all writers share one
    store.
    """
    gone, sizes = set[str](), random.Random(text)
    with ExitStack() as stack, ThreadPoolExecutor(WRITERS) as threads:
        service = stack.enter_context(make_service(place.open()))
        for number in range(STEADY):
            strewn(service.store, number % SECONDS, "steady", number)
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
        walk(service, text, sizes, gone)
    assert len(gone) == WRITERS * OPERATIONS[kind] / 2


EVAL = vectors("filter_eval")
EMBEDDED = ("memory", "sqlite")
KINDS = pytest.mark.parametrize("kinds", [EMBEDDED, ("postgres",)], ids=["embedded", "postgres"])


@KINDS
def test_stores_filter_as_the_evaluator_does(kinds: tuple[str, ...]) -> None:
    assert sum(compare(kinds, seed) for seed in range(16)) > 50


def record_of(one: Row) -> Record:
    """Make a record from a row of the test vectors."""
    return Record(
        name=one.name,
        parent="",
        method=EXPORT,
        state=State(one.state),
        metadata=one.metadata,
        result=one.response if one.error is None else one.error,
        create_time=one.create_time,
        update_time=one.end_time or one.create_time,
        end_time=one.end_time,
        cancel_requested=one.cancel_requested,
    )


@contextmanager
def of_the_vectors(kinds: tuple[str, ...], *, structs: bool = False) -> Iterator[Comparison]:
    """Store the records of the test vectors, with every index, in one store of each kind."""
    clock = ManualClock()
    with stores_of(kinds, clock) as made:
        records = [record_of(row(one)) for one in EVAL["records"]]
        records = [*keep(records, made.values(), PATHS)]
        services = {kind: declared(store, PATHS, structs=structs) for kind, store in made.items()}
        yield Comparison(records=records, services=services)


@pytest.mark.parametrize("structs", [False, True])
@KINDS
def test_stores_filter_alike_on_the_vectors(kinds: tuple[str, ...], structs: bool) -> None:
    """Every store and the evaluator agree on all filters of the test vectors."""
    with of_the_vectors(kinds, structs=structs) as both:
        for case in EVAL["cases"]:
            both.check(case["filter"])
        both.check('name = "operations/a" AND name = "operations/b"')
    assert both.tally["filters"] > 240
    assert both.tally["match something"] > 150


@KINDS
def test_stores_filter_alike_with_the_longest_filters(kinds: tuple[str, ...]) -> None:
    """Filters of up to 400 terms give the same results, even if they are too long for SQL."""
    tests = [f"metadata.verb = export{number}" for number in range(400)]
    names = [f"name = operations/export-{number:03}" for number in range(400)]
    with of_the_vectors(kinds) as both:
        for some in (tests, names):
            for count in (60, 99, 400):
                both.check(" OR ".join([*some[:count], "metadata.verb = sync"]))
                both.check(" OR ".join(some[:count]))
                both.check(" ".join([f"NOT {one}" for one in some[:count]]))
    assert both.tally["match something"] > 6


def test_faulty_store_is_found_by_the_comparison(monkeypatch: pytest.MonkeyPatch) -> None:
    """The comparison finds a faulty store, which misses records whose field has its default."""
    monkeypatch.setattr(prefiltering, "_default_holds", lambda route: False)

    def compare_all() -> None:
        with of_the_vectors(("sqlite",)) as both:
            for case in EVAL["cases"]:
                both.check(case["filter"])

    with pytest.raises(AssertionError, match=r"sqlite: .* wanted"):
        compare_all()
