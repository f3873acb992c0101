"""No SQL statement of the page reads more than about 10,000 rows, even in a large store."""

from __future__ import annotations

import itertools
import json
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode

import pytest

import lro
from bench import million
from bench.filling import fill_postgres, fill_sqlite
from lro.console import ConsoleEdge
from lro.http import HttpRequest
from lro.stores.sqlite import SQLiteStore
from lro.stores.sqlite._file import Readers
from tests.services.postgres import PostgresServer, postgres, store_maker

__all__ = ["postgres"]

MOST: Final = 10_001
"""One row more than the limit: by reading it, a statement learns that there are more rows."""

SIZE: Final = 16_500
IN_PROGRESS: Final = 0.9
"""The share of operations in progress; one parent alone has more of them than the limit."""

INDEXED: Final = {
    "none": "",
    "state": "state() = IN_PROGRESS",
    "rare state": "state() = CANCELLED",
    "method": "type(metadata) = bench.v1.Run3Metadata",
    "time": 'create_time() >= "2020-01-01T00:00:00Z"',
    "dataset": 'metadata.dataset = "d17"',
}
SCANNED: Final = {
    "no index, no match": 'metadata.owner = "unknown"',
    "word": "zircon",
    "asked to stop": "cancel_requested()",
}

Statement = tuple[str, tuple[Any, ...]]


def fill(store: Any, size: int) -> None:
    """Add operations, most of them in progress, and the counts of half an hour."""
    records = million.records(size, store.now(), IN_PROGRESS)
    if isinstance(store, SQLiteStore):
        fill_sqlite(store.path, records, False)
    else:
        fill_postgres(store._address.url, store.schema, records, False)
    for minute in range(30):
        store.add_counts(store.now() - timedelta(minutes=minute), million.counts(minute))


def asked(service: lro.Service) -> Iterator[tuple[str, Any]]:
    """Make each call of the page, and yield a label of the call and its result."""
    # This clock runs so fast that no tally is cached.
    clock = itertools.count(step=60).__next__
    edge = ConsoleEdge(
        service, authenticate=lambda headers: None, parents=million.PARENTS[1:], clock=clock
    )

    def call(path: str, body: object = None, **query: Any) -> Any:
        request = HttpRequest(
            method="GET" if body is None else "POST",
            path=path,
            query=urlencode(query),
            headers={} if body is None else {"content-type": "application/json"},
            body=b"" if body is None else json.dumps(body).encode(),
        )
        reply = edge.handle(request)
        assert reply.status == 200, reply.body
        return json.loads(reply.body)

    yield "session", call("/session")
    page: dict[str, Any] = {}
    for label, text in (INDEXED | SCANNED).items():
        page = call("/v1/operations", pageSize=50, filter=text)
        yield f"list, {label}", page
        if token := page.get("nextPageToken"):
            yield (
                f"next, {label}",
                call("/v1/operations", pageSize=50, filter=text, pageToken=token),
            )
    many = call("/v1/operations", pageSize=100)["operations"]
    names = [one["name"] for one in many]
    yield "batchGet", call("/v1/operations:batchGet", {"names": names})
    yield "full view", call("/v1/operations:batchGet", {"names": names}, view="FULL")
    for minutes in (1, 60, 360, 4320):
        found = call("/tally", minutes=minutes)
        assert found["inProgress"]["capped"]
        yield f"tally, {minutes}", found


def instructions(path: Path, statement: Statement) -> int:
    """Count the SQLite instructions that a statement takes: a few tens for each row."""
    taken = 0

    def count() -> None:
        nonlocal taken
        taken += 1

    with closing(sqlite3.connect(path)) as link:
        link.set_progress_handler(count, 1)
        link.execute(*statement).fetchall()
    return taken


def sqlite_costs(path: Path, size: int, monkeypatch: pytest.MonkeyPatch) -> Mapping[str, int]:
    """Return the cost of each call's most expensive statement, in a file of ``size`` operations."""
    statements: list[Statement] = []
    read = Readers._read

    def noted(self: Any, take: Any, sql: str, values: Any, seconds: Any) -> Any:
        statements.append((sql, values))
        return read(self, take, sql, values, seconds)

    found: dict[str, int] = {}
    store = SQLiteStore(path)
    service, _ = million.declared(store, maintenance=False, clock=lambda: 0.0)  # no page is cut
    with service, monkeypatch.context() as patch:
        fill(store, size)
        patch.setattr(Readers, "_read", noted)
        for label, _ in asked(service):
            found[label] = max((instructions(path, one) for one in statements), default=0)
            statements.clear()
    return found


def test_statements_of_sqlite_cost_the_same_for_twice_as_many_operations(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small, large = (
        sqlite_costs(tmp_path / f"{size}.db", size, monkeypatch) for size in (SIZE, 2 * SIZE)
    )
    dearer = {
        label: (cost, large[label])
        for label, cost in small.items()
        if large[label] > 1.1 * cost + 100 * 50 and label.partition(", ")[2] not in SCANNED
    }
    assert dearer == {}
    # A scan without an index is limited too.
    assert max(large.values()) < 100 * MOST


def rows_read(plan: Mapping[str, Any]) -> int:
    """Return the number of table rows that a query plan has read, filtered rows included."""
    below = sum(rows_read(one) for one in plan.get("Plans", ()))
    if "Relation Name" not in plan:
        return below
    thrown = (plan.get(f"Rows Removed by {why}", 0) for why in ("Filter", "Index Recheck"))
    read: int = (plan["Actual Rows"] + sum(thrown)) * plan["Actual Loops"]
    return below + read


def test_statements_of_postgres_read_no_more_rows_than_the_limit(
    postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By PostgreSQL's own count, no statement reads more rows than the limit."""
    pytest.importorskip("psycopg")
    store = store_maker(postgres)()
    service, _ = million.declared(store, maintenance=False, clock=lambda: 0.0)  # no page is cut
    with service:
        fill(store, SIZE)
        connections = store._resources.connections
        rows, statements = connections.rows, list[Any]()

        def noted(sql: bytes, values: Any = (), **options: Any) -> Any:
            statements.append((sql, values))
            return rows(sql, values, **options)

        found: dict[str, int] = {}
        monkeypatch.setattr(connections, "rows", noted)
        for label, _ in asked(service):
            plans = [
                rows(b"EXPLAIN (ANALYZE, FORMAT JSON) " + sql, values, prepare=False)[0][0]
                for sql, values in statements
            ]
            found[label] = max((rows_read(plan[0]["Plan"]) for plan in plans), default=0)
            statements.clear()
    scanned = {label for label in found if label.partition(", ")[2] in SCANNED}
    assert max(found[label] for label in found if label not in scanned) == MOST  # read by the tally
    # A scan without an index first finds its end through an index, and then reads up to the end.
    assert max(found[label] for label in scanned) <= 2 * MOST
