"""The store that the console is measured on: 20 methods, several parents, all states, counts.

``python -m bench.million KIND PORT WHERE`` serves its console with uvicorn.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any, Final

import attrs

import lro
import lro.adapters
from bench.filling import (
    Facts,
    Population,
    RunMetadata,
    RunRequest,
    RunResponse,
    fill_postgres,
    fill_sqlite,
    make_record,
)
from bench.serving import serve
from lro._engine.method_spec import MethodSpec
from lro.asgi import EdgeApp
from lro.console import ConsoleEdge
from lro.executors.inline import InlineExecutor
from lro.stores.memory import MemoryStore
from lro.stores.sqlite import SQLiteStore

METHODS: Final = 20
PARENTS: Final = ("", *(f"projects/p{number}" for number in range(5)))
SHARES: Final = (0.7, 0.1, 0.1, 0.05, 0.03, 0.02)
"""For each parent, the share of all operations that the parent has."""
IN_PROGRESS: Final = 0.1
"""The share of operations in progress: a worst case, because usually far fewer are."""
WORKERS: Final = 50
MINUTES: Final = 72 * 60
SCHEMA: Final = "bench_console"
_KEPT: Final = timedelta(days=90)
_LEASE: Final = timedelta(days=2)
_CODES: Final = ("UNAVAILABLE", "INTERNAL", "DEADLINE_EXCEEDED", "INVALID_ARGUMENT")


@attrs.frozen(kw_only=True)
class Crowd(Population):
    """Operations of which many are in progress: half of these run, and half wait."""

    in_progress: float

    def _state(self, drawn: int) -> lro.State:
        if drawn < self.in_progress * 256:
            return lro.State.IN_PROGRESS
        if drawn >= 250:
            return lro.State.CANCELLED
        return lro.State.FAILED if drawn >= 235 else lro.State.SUCCEEDED


_METADATA: Final = [
    attrs.make_class(f"Run{number}Metadata", {}, bases=(RunMetadata,), frozen=True, kw_only=True)
    for number in range(METHODS)
]


def declared(
    store: Any, executor: Any = None, **options: Any
) -> tuple[lro.Service, list[MethodSpec]]:
    """Return a service and its methods, each of which has an indexed path."""
    service = lro.Service(store, executor or InlineExecutor(), **options)
    for number, metadata in enumerate(_METADATA):
        service.declare(
            f"bench.v1.Bench.Run{number}",
            request=RunRequest,
            response=RunResponse,
            metadata=metadata,
            options=lro.Options(indexed_paths=("dataset",)),
        )
    return service, list(service.edges.specs.values())


def records(
    size: int, now: datetime, in_progress: float = IN_PROGRESS
) -> Iterator[lro.adapters.Record]:
    """Yield the records of all parents."""
    _, specs = declared(MemoryStore(), maintenance=False)
    for parent, share in zip(PARENTS, SHARES, strict=True):
        crowd = Crowd(
            size=max(1, round(size * share)),
            newest=now,
            expiry=_KEPT,
            salt=str(PARENTS.index(parent)).encode(),
            in_progress=in_progress,
        )
        for number in reversed(range(crowd.size)):
            facts = crowd.facts(number)
            yield _record(facts, specs[facts.draw[29] % METHODS], parent, now)


def _record(facts: Facts, spec: MethodSpec, parent: str, now: datetime) -> lro.adapters.Record:
    metadata = _METADATA[int(spec.full_name.rpartition("Run")[2])]
    record = make_record(facts, spec, parent, _KEPT, metadata)
    if facts.state is lro.State.IN_PROGRESS:
        waits = facts.draw[31] % 2
        held = (
            {"attempt": 0, "start_time": None}
            if waits
            else {"owner": f"w{facts.draw[30] % WORKERS}"}
        )
        record = record.next_version(lease_until=now + _LEASE, **held)
    return spec.stamp(record)


def counts(number: int) -> dict[str, dict[str, float]]:
    """Return the counts of one busy minute: all methods, most series."""
    found: dict[str, dict[str, float]] = {}
    for method in range(METHODS):
        draw = number * 31 + method * 17
        series: dict[str, float] = {
            "starts.started": 40,
            "starts.repeated": 1,
            "ends.succeeded": 36,
        }
        for code in _CODES[: 1 + draw % 4]:
            series[f"ends.failed.{code}"] = 1
        for kind in (
            "queue",
            "operation.succeeded",
            "attempt.succeeded",
            "operation.failed.INTERNAL",
        ):
            series |= {f"{kind}.{place}": 1.0 + draw % 9 for place in range(2, 10)}
            series[f"{kind}.sum"] = 12.345678 + draw % 100
        found[f"bench.v1.Bench.Run{method}"] = series
    return found


def store_of(kind: str, where: str) -> Any:
    """Open the store at a file or URL."""
    if kind == "sqlite":
        return SQLiteStore(where)
    from lro.stores.postgres import PostgresStore

    return PostgresStore(where, schema=SCHEMA, statement_seconds=600)


def fill(kind: str, where: str, size: int) -> None:
    """Fill an empty store with the operations and 72 hours of counts."""
    store = store_of(kind, where)
    service, _ = declared(store, maintenance=False)
    now = store.now()
    with service:
        if kind == "sqlite":
            fill_sqlite(where, records(size, now), False)
        else:
            fill_postgres(where, SCHEMA, records(size, now), False)
        for number in reversed(range(MINUTES)):
            store.add_counts(now - timedelta(minutes=number), counts(number))


def main(kind: str, port: int, where: str) -> None:
    """Serve the console."""
    service, _ = declared(store_of(kind, where))
    # This clock runs so fast that no reply is cached: each call reads the store.
    app = EdgeApp(
        ConsoleEdge(service, parents=PARENTS[1:], clock=itertools.count(step=60).__next__)
    )
    print("ready", flush=True)
    serve(app, port)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3])
