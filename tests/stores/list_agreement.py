"""Every store lists what the bare evaluator says.

``python -m tests.stores.list_agreement --examples N`` compares as many filters as you like.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import itertools
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final
from unittest.mock import patch

import attrs
import hypothesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from lro import Any, ListOperationsRequest, Service, TypeRegistry
from lro._engine import listing
from lro._filters.filter import Filter, compile_filter
from lro._filters.indexes import CALLER
from lro._filters.types import MessageType
from lro.adapters import Record, Store
from lro.errors import InvalidFilter
from lro.stores._list_queries import ListQuery
from lro.stores.memory import MemoryStore
from lro.stores.sqlite import SQLiteStore
from lro.stores.sqlite._pages import DIALECT
from lro.testing import ManualClock
from tests.stores.filter_strategies import facts_of, filters
from tests.stores.indexed_services import (
    BINARY,
    EXPORT,
    KNOWN,
    PATHS,
    RELEASES,
    Harness,
    Past,
    harnesses,
)
from tests.stores.record_strategies import PARENTS, happenings

FILTERS_EACH: Final = 20
"""Filters for one set of records."""


@attrs.frozen(kw_only=True)
class Ask:
    """How lists are asked for: by which release, and how far one look of a store goes."""

    release: int
    scan: int
    batch: int
    tick_seconds: float


ASKS: Final = st.builds(
    Ask,
    release=st.sampled_from([*[RELEASES - 1] * 6, 0, -1]),
    scan=st.sampled_from([1, 2, 3, 7, 2000]),
    batch=st.sampled_from([1, 3, 200]),
    tick_seconds=st.sampled_from([0.0, 0.0, 0.001, 0.2]),
)
PROCESSES: Final = RELEASES + 6
"""How many processes write: those of each release, one without indexes, two with other types."""

SIZES: Final = st.lists(st.sampled_from([1, 2, 3, 5, 0]), min_size=1, max_size=3)
CALLERS: Final = st.sampled_from(["", "ann", "bob", "carl"])


class Tally(collections.Counter[str]):
    """What was compared, by kind."""

    def add(self, text: str, names: Sequence[str], service: Service, only: str | None) -> None:
        """Count a filter, and which way a store goes for it."""
        specs, types = service.specs.values(), service.types
        request = ListOperationsRequest(filter=text)
        query = listing.CheckedList.of(
            request, service.store, specs, types, service.methods.indexes
        )
        walk = ListQuery.of(query.prefilter(only), None, service.methods.indexes.keys, DIALECT)
        way = "nowhere"
        if not walk.nothing:
            order = "by index" if walk.order else "in plain order"
            way = "by names" if walk.names else "by state" if walk.order == "state" else order
        self["filters"] += 1
        self["match something"] += bool(names)
        self["names listed"] += len(names)
        self[way] += 1
        self[f"{way}, match something"] += bool(names)
        self["by the caller's key"] += walk.order == CALLER
        self["with more said in SQL"] += walk.residue[0] != "TRUE"


@attrs.frozen(kw_only=True)
class Comparison:
    """The lists of several services beside the bare evaluator."""

    past: Past
    harness: Harness
    services: Mapping[str, Service]
    tally: Tally

    def check(self, text: str, parent: str, sizes: Sequence[int], caller: str) -> None:
        """One filter: the same names in the same order, or the same refusal."""
        some = next(iter(self.services.values()))
        wanted = compiled(text, some)
        if wanted is None:
            self.tally["refused"] += 1
            for kind, service in self.services.items():
                assert refused(service, text), f"{kind} does not refuse {text!r}"
            return
        only = caller if self.harness.owner_only else None
        seen = self.past.visible(parent, only)
        names = [one.name for one in seen if wanted.matches(readable(one, some.types))]
        self.tally.add(text, names, some, only)
        for kind, service in self.services.items():
            found = listed(service, text, parent, sizes, caller)
            wrong = [self.past.records.get(name) for name in {*found} ^ {*names}]
            assert found == names, f"{kind}: {text!r}: {found}, wanted {names}: {wrong}"


def compiled(text: str, service: Service) -> Filter | None:
    """The filter by itself; None for one that is refused."""
    infos = [spec.info for spec in service.specs.values()]
    sides = [
        [MessageType(name, service.types.codec(name).shape) for name in sorted(names)]
        for names in ({i.metadata_type for i in infos}, {i.response_type for i in infos})
    ]
    try:
        return compile_filter(text, metadata=sides[0], response=sides[1])
    except InvalidFilter:
        return None


def refused(service: Service, text: str) -> bool:
    """Whether a list refuses the filter."""
    try:
        service.list(ListOperationsRequest(filter=text))
    except InvalidFilter:
        return True
    return False


def readable(record: Record, types: TypeRegistry) -> Record:
    """The record with JSON in it, where that can be had."""
    result = record.result
    return attrs.evolve(
        record,
        metadata=record.metadata and types.readable(record.metadata),
        result=types.readable(result) if isinstance(result, Any) else result,
    )


def listed(
    service: Service, text: str, parent: str, sizes: Sequence[int], caller: str = ""
) -> list[str]:
    """The names on all pages of a list."""
    names: list[str] = []
    token = ""
    for size in itertools.islice(itertools.cycle(sizes), 1000):
        request = ListOperationsRequest(parent, text, size, token)
        page = service.list(request, caller=caller)
        names += [one.name for one in page.operations]
        token = page.next_page_token
        if not token:
            return names
    raise AssertionError(f"the list of {text!r} has no end")


@contextlib.contextmanager
def stores_of(kinds: Sequence[str], clock: ManualClock) -> Iterator[dict[str, Store]]:
    """An empty store of each kind."""
    with contextlib.ExitStack() as stack:
        stores: dict[str, Store] = {}
        for kind in kinds:
            if kind == "memory":
                stores[kind] = MemoryStore(clock)
            elif kind == "sqlite":
                folder = stack.enter_context(tempfile.TemporaryDirectory())
                stores[kind] = SQLiteStore(Path(folder) / "operations.db", clock=clock)
            else:
                stores[kind] = stack.enter_context(postgres_store(clock))
            stack.callback(stores[kind].close)
        yield stores


@contextlib.contextmanager
def postgres_store(clock: ManualClock) -> Iterator[Store]:
    """A store in a schema of its own, which is gone afterwards."""
    import psycopg

    from lro.stores.postgres import PostgresStore
    from tests.services.postgres import UNHURRIED, shared_server

    server = shared_server()
    schema = server.fresh_schema()
    yield PostgresStore(server.url, schema=schema, clock=clock, **UNHURRIED)
    with psycopg.connect(server.url, autocommit=True) as link:
        link.execute(f'DROP SCHEMA "{schema}" CASCADE'.encode())


def run(kinds: Sequence[str], sets: int, tally: Tally, seed: int | None = None) -> None:
    """Compare filters over so many sets of records; with a seed, others than usually."""
    chosen = settings(
        max_examples=sets,
        deadline=None,
        database=None,
        derandomize=seed is None,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.generate] if seed is not None else [Phase.generate, Phase.shrink],
    )

    @chosen
    @given(
        harness=harnesses(),
        ask=ASKS,
        data=st.data(),
    )
    def one(harness: Harness, ask: Ask, data: st.DataObject) -> None:
        methods, fields = [*PATHS, EXPORT], harness.fields()
        made = data.draw(happenings(methods, BINARY, PROCESSES, RELEASES, fields))
        clock, ticks = ManualClock(), itertools.count()
        with stores_of(kinds, clock) as stores:
            past = Past(harness, stores, clock)
            for what in made:
                past.happen(what)
            clock.advance(data.draw(st.sampled_from([0, 1, 10])))
            services = {
                kind: harness.service(store, ask.release, lambda: next(ticks) * ask.tick_seconds)
                for kind, store in stores.items()
            }
            tally["sets of records"] += 1
            tally["records"] += len(past.records)
            both = Comparison(past=past, harness=harness, services=services, tally=tally)
            facts = facts_of(past.records.values(), KNOWN, harness.paths(ask.release))
            with patch.multiple(listing, SCAN=ask.scan, _BATCH=ask.batch):
                for _ in range(FILTERS_EACH):
                    text, parent = (
                        data.draw(filters(facts)),
                        data.draw(st.sampled_from(("", *PARENTS))),
                    )
                    both.check(text, parent, data.draw(SIZES), data.draw(CALLERS))

    (one if seed is None else hypothesis.seed(seed)(one))()


def main(arguments: Sequence[str] | None = None) -> None:
    """Compare so many filters, and say what they were."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.stores.list_agreement", description=__doc__
    )
    parser.add_argument("--examples", type=int, default=10_000, help="how many filters")
    parser.add_argument("--seed", type=int, default=time.time_ns() % 10**6)
    kinds = ("memory", "sqlite", "postgres")
    parser.add_argument("--store", nargs="*", default=kinds, choices=kinds)
    options = parser.parse_args(arguments)
    print(f"seed {options.seed}", flush=True)
    tally, began, seed = Tally(), time.monotonic(), options.seed
    while tally["filters"] < options.examples:
        left = options.examples - tally["filters"]
        run(options.store, min(100, left // FILTERS_EACH + 1), tally, seed)
        seed += 1
        print(f"{time.monotonic() - began:.0f} s", dict(sorted(tally.items())), flush=True)


if __name__ == "__main__":
    main()
