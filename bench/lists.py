"""A page of 100 operations out of 1,000 and out of 1,000,000, by store and by filter.

``LRO_BENCH_LISTS=1000,20000`` sets other sizes, ``LRO_BENCH_STORES=sqlite`` selects stores.
"""

from __future__ import annotations

import contextlib
import gc
import os
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final

import attrs

import lro
import lro.adapters
import lro.wire
from bench.filling import (
    OTHER_PARENT,
    PARENT,
    RARE,
    Database,
    Facts,
    Population,
    databases,
    declared,
    spec_of,
)
from bench.measure import MISSING, Figure, compare, late, percentile
from lro._model.page_tokens import encode_page_token

PAGE: Final = 100
CALLS: Final = 40
"""Pages per round: alternately the first page and a page from a random position."""
ROUNDS: Final = 5
ROUND_SECONDS: Final = 2.0
"""A round ends with the page that is being read after this time, even if pages are slow."""
WALK_SECONDS: Final = 60.0
KEPT: Final = timedelta(days=90)
DATASET: Final = "d17"
OWNER: Final = "o17"


@attrs.frozen
class Wanted:
    """A filter, and the same condition as a function."""

    label: str
    text: str
    holds: Callable[[Facts], bool]


def filters(now: datetime) -> Sequence[Wanted]:
    day = timedelta(days=1)
    start, end, since = now - 16 * day, now - 14 * day, now - day
    times = f'> "{_stamp(start)}"', f'< "{_stamp(end)}"'

    def since_yesterday(facts: Facts) -> bool:
        failed = facts.state is lro.State.FAILED
        return failed and facts.create_time > since and facts.dataset == DATASET

    return (
        Wanted("no filter", "", lambda _: True),
        Wanted("state() = FAILED", "state() = FAILED", lambda f: f.state is lro.State.FAILED),
        Wanted(
            "two days by create_time()",
            f"create_time() {times[0]} AND create_time() {times[1]}",
            lambda f: start < f.create_time < end,
        ),
        Wanted(
            "two days by end_time()",
            f"end_time() {times[0]} AND end_time() {times[1]}",
            lambda f: f.end_time is not None and start < f.end_time < end,
        ),
        Wanted(
            "failed since yesterday on a dataset",
            f'state() = FAILED AND create_time() > "{_stamp(since)}"'
            f' AND metadata.dataset = "{DATASET}"',
            since_yesterday,
        ),
        Wanted("metadata.dataset, indexed", f'metadata.dataset = "{DATASET}"', _on_dataset),
        Wanted(
            "metadata.owner, not indexed", f'metadata.owner = "{OWNER}"', lambda f: f.owner == OWNER
        ),
        Wanted("a bare word", RARE, lambda f: f.rare),
        Wanted("metadata.owner, no match", 'metadata.owner = "unknown"', lambda _: False),
    )


def _on_dataset(facts: Facts) -> bool:
    return facts.dataset == DATASET


def _stamp(moment: datetime) -> str:
    return moment.isoformat().replace("+00:00", "Z")


@attrs.frozen(kw_only=True)
class Filled:
    """A service on a filled store, and the numbers of the operations that match each filter."""

    service: lro.Service
    population: Population
    matches: Mapping[str, Sequence[int]]

    @classmethod
    def of(cls, database: Database, size: int, now: datetime, wanted: Sequence[Wanted]) -> Filled:
        store, fill = database.make()
        service, _ = declared(store)
        spec = spec_of(service)
        population = Population(size=size, newest=now, expiry=KEPT)
        fill(population.records(spec), False)
        others = Population(size=size // 200, newest=now, expiry=KEPT, salt=b"other")
        fill(others.records(spec, OTHER_PARENT), False)
        matches: dict[str, list[int]] = {one.text: [] for one in wanted}
        for number in range(size):
            facts = population.facts(number)
            for one in wanted:
                if one.holds(facts):
                    matches[one.text].append(number)
        return cls(service=service, population=population, matches=matches)

    def page(self, text: str, size: int, token: str = "") -> lro.wire.ListOperationsResponse:
        request = lro.wire.ListOperationsRequest(
            name=PARENT, filter=text, page_size=size, page_token=token
        )
        return self.service.list(request)

    def token(self, text: str, number: int) -> str:
        """Return the page token after the operation with this number."""
        store = self.service.store
        place = lro.adapters.Cursor(
            self.population.facts(number).create_time, self.population.name(number)
        )
        return encode_page_token(
            place, key=store.secret(), parent=PARENT, filter_text=text, now=store.now()
        )


class Pages:
    """Pages of one list, from its beginning and from random positions; each page is checked."""

    def __init__(self, filled: Filled, wanted: Wanted, size: int = PAGE) -> None:
        self._filled = filled
        self._text = wanted.text
        self._size = size
        self._matches = filled.matches[wanted.text]
        self._random = random.Random(5)
        self.rounds: list[list[float]] = []

    def __call__(self) -> float:
        """Return the median time of a page."""
        times: list[float] = []
        end = time.perf_counter() + ROUND_SECONDS
        for call in range(CALLS):
            latest = max(0, len(self._matches) - self._size)
            first = self._random.randint(0, latest) if call % 2 else 0
            token = self._filled.token(self._text, self._matches[first - 1]) if first else ""
            began = time.perf_counter()
            page = self._filled.page(self._text, self._size, token)
            times.append(time.perf_counter() - began)
            self._check(page, first)
            if time.perf_counter() >= end:
                break
        self.rounds.append(times)
        return percentile(times, 0.5)

    def _check(self, page: lro.wire.ListOperationsResponse, first: int) -> None:
        found = [operation.name for operation in page.operations]
        name = self._filled.population.name
        whole = self._matches[first : first + self._size]
        assert found == [name(number) for number in whole[: len(found)]]
        # A slow page may be short, but then its token continues the list (spec §3.4(8)).
        assert len(found) == len(whole) or page.next_page_token

    def rows(self, what: str, targets: Sequence[float | None] = (None, None)) -> Iterator[Figure]:
        """Yield the times of a page."""
        times = [one for some in self.rounds[1:] for one in some]  # without the warm-up
        yield from late(what, times, targets=targets)


def row(
    database: Database, small: Filled, large: Filled, wanted: Wanted, target: float | None
) -> Iterator[Figure]:
    """Yield the times of both stores, and the ratio for pages of equal size."""
    what = f"{database.label}, {wanted.label}"
    pages = Pages(large, wanted), Pages(small, wanted)
    whole = growth(what, *pages)
    same = min(PAGE, len(small.matches[wanted.text]) // 2)  # half, to leave room for random pages
    if 0 < same < PAGE:
        whole = growth(what, Pages(large, wanted, same), Pages(small, wanted, same))
    yield from pages[0].rows(what, (None, target))
    yield attrs.evolve(whole, measure="growth", target=target and 1.3)


def growth(what: str, large: Pages, small: Pages) -> Figure:
    rounds = ROUNDS if large() < 1.0 else 1
    return compare(what, large, small, rounds=rounds, scale=1e3, unit="ms")


def walk(
    database: Database, filled: Filled, wanted: Wanted, *, from_last: bool = False
) -> Iterator[Figure]:
    """Read the pages of a list in order: all of them, or only those after the last match."""
    last = filled.matches[wanted.text][-1:] if from_last else ()
    tokens = [filled.token(wanted.text, number) for number in last] or [""]
    times: list[float] = []
    while sum(times) < WALK_SECONDS:
        began = time.perf_counter()
        page = filled.page(wanted.text, PAGE, tokens[-1])
        times.append(time.perf_counter() - began)
        tokens.append(page.next_page_token)
        if not page.next_page_token:
            break
    if tokens[-1]:
        MISSING.append(f"the end of {wanted.label}: it takes longer than {WALK_SECONDS:.0f} s")
    where = "from the last match on" if from_last else "from the first page on"
    what = f"{database.label}, {wanted.label}, {where}"
    yield Figure(what=what, measure="pages", ours=len(times), unit="pages")
    yield from late(what, times, shares=(0.5, 1.0))


def table(database: Database, sizes: Sequence[int]) -> Iterator[Figure]:
    """Yield the rows of one store; the two lists that are read whole have no index."""
    now = datetime.now(UTC).replace(microsecond=0)
    wanted = filters(now)
    with contextlib.ExitStack() as stack:
        both = []
        for size in sizes:
            filled = Filled.of(database, size, now, wanted)
            stack.callback(filled.service.close, 0)
            both.append(filled)
        gc.collect()
        gc.freeze()  # keeps the collector from scanning the filled store in each round
        stack.callback(gc.unfreeze)
        small, large = both
        for one in wanted:
            yield from row(database, small, large, one, None if one in wanted[-3:] else 10)
        for one in wanted[1:6]:
            yield from walk(database, large, one, from_last=True)
        yield from walk(database, large, wanted[-1])
        yield from walk(database, large, wanted[-3])


def run() -> Iterator[Figure]:
    sizes = [int(size) for size in os.environ.get("LRO_BENCH_LISTS", "1000,1000000").split(",")]
    with contextlib.ExitStack() as stack:
        for database in databases(stack):
            yield from table(database, sizes)
