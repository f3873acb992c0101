"""Start to result on SQLite and PostgreSQL, each against its floor; load of idle services."""

from __future__ import annotations

import contextlib
import itertools
import json
import sqlite3
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import attrs

from bench.across import postgres_server
from bench.idle import idle_load
from bench.measure import MISSING, Figure, Sample, compare, percentile
from bench.start_to_result import in_flight, make, one_by_one
from lro.executors.inline import InlineExecutor
from lro.executors.threads import ThreadExecutor
from lro.stores.sqlite import SQLiteStore

ONE_BY_ONE: Final = 300
IN_FLIGHT: Final = 3200
CALLERS: Final = 64
"""The number of threads that start operations, and also of threads that do the work."""
GROUP: Final = 50
ROUNDS: Final = 5

TABLE: Final = "CREATE TABLE kept (name TEXT PRIMARY KEY, value TEXT)"
READ_MANY: Final = "SELECT value FROM kept WHERE name IN (SELECT value FROM json_each(?))"
RESULT: Final = '{"total": 1}'
Rows = Sequence[tuple[str, ...]]

_numbers = itertools.count()


@attrs.frozen
class Database:
    """A kind of store, and the plain SQL statements of its floor."""

    label: str
    make_store: Callable[[], Any]
    execute: Callable[[str, tuple[str, ...]], Any]
    """Execute one statement, and commit."""
    execute_many: Callable[[str, Rows], object]
    """Execute one statement for each row, and commit all together."""
    read_many: Callable[[Sequence[str]], Rows]
    """Read the values of these names in one query."""
    mark: str
    """The placeholder for a parameter in this database's SQL."""

    @property
    def insert(self) -> str:
        return f"INSERT INTO kept VALUES ({self.mark}, '{{}}')"

    @property
    def update(self) -> str:
        return f"UPDATE kept SET value = {self.mark} WHERE name = {self.mark}"

    @property
    def select(self) -> str:
        return f"SELECT value FROM kept WHERE name = {self.mark}"


def floor_one_by_one(database: Database) -> Sample:
    """Measure the median time of two durable statements on a table of two columns, and a read."""

    def sample() -> float:
        found = []
        for _ in range(ONE_BY_ONE):
            name = f"operations/{next(_numbers)}"
            began = time.perf_counter()
            database.execute(database.insert, (name,))
            database.execute(database.update, (RESULT, name))
            assert database.execute(database.select, (name,)).fetchone() == (RESULT,)
            found.append(time.perf_counter() - began)
        return percentile(found, 0.5)

    return sample


def floor_in_groups(database: Database) -> Sample:
    """Measure the time per operation if ``GROUP`` operations share two commits."""

    def sample() -> float:
        began = time.perf_counter()
        for _ in range(IN_FLIGHT // GROUP):
            names = [f"operations/{next(_numbers)}" for _ in range(GROUP)]
            database.execute_many(database.insert, [(name,) for name in names])
            database.execute_many(database.update, [(RESULT, name) for name in names])
            assert len(database.read_many(names)) == GROUP
        return (time.perf_counter() - began) / (IN_FLIGHT // GROUP * GROUP)

    return sample


@contextlib.contextmanager
def sqlite_database(folder: Path) -> Iterator[Database]:
    """Yield SQLite as a kind of store, with new files in this folder."""
    floor = sqlite3.connect(folder / "floor.db", isolation_level=None)
    floor.execute("PRAGMA journal_mode = WAL")
    floor.execute("PRAGMA synchronous = FULL")
    floor.execute(TABLE)

    def execute_many(sql: str, rows: Rows) -> None:
        floor.execute("BEGIN IMMEDIATE")
        floor.executemany(sql, rows)
        floor.execute("COMMIT")

    def read_many(names: Sequence[str]) -> Rows:
        return floor.execute(READ_MANY, (json.dumps(names),)).fetchall()

    numbers = itertools.count()
    yield Database(
        label="SQLite FULL",
        make_store=lambda: SQLiteStore(folder / f"operations{next(numbers)}.db"),
        execute=floor.execute,
        execute_many=execute_many,
        read_many=read_many,
        mark="?",
    )
    floor.close()


@contextlib.contextmanager
def postgres_database(server: Any) -> Iterator[Database]:
    """Yield PostgreSQL as a kind of store, with new schemas on a server of our own."""
    import psycopg

    from lro.stores.postgres import PostgresStore

    with psycopg.connect(server.url, autocommit=True) as floor:
        schema = server.fresh_schema()
        floor.execute(f"CREATE SCHEMA {schema}")
        floor.execute(f"SET search_path = {schema}")
        floor.execute(TABLE)

        def execute_many(sql: str, rows: Rows) -> None:
            with floor.transaction(), floor.cursor() as cursor:
                cursor.executemany(sql, rows)

        def read_many(names: Sequence[str]) -> Rows:
            sql = "SELECT value FROM kept WHERE name = ANY (%s)"
            return floor.execute(sql, (names,)).fetchall()

        yield Database(
            label="PostgreSQL",
            make_store=lambda: PostgresStore(server.url, schema=server.fresh_schema()),
            execute=floor.execute,
            execute_many=execute_many,
            read_many=read_many,
            mark="%s",
        )


def latency(database: Database) -> Iterator[Figure]:
    executors: dict[str, Callable[[], Any]] = {
        "inline": InlineExecutor,
        "threads": lambda: ThreadExecutor(4),
    }
    floor = floor_one_by_one(database)
    for label, make_executor in executors.items():
        service, method = make(database.make_store(), make_executor())
        with service:
            ours = one_by_one(service, method, ONE_BY_ONE)
            yield compare(
                f"{database.label}, {label}", ours, floor, measure="p50", rounds=ROUNDS, target=2.5
            )


def throughput(database: Database) -> Iterator[Figure]:
    service, method = make(database.make_store(), InlineExecutor())
    with service:
        ours, floor = in_flight(service, method, IN_FLIGHT, CALLERS), floor_one_by_one(database)
        what = f"{database.label}, {IN_FLIGHT} in flight, inline / one by one"
        yield compare(what, ours, floor, rounds=ROUNDS, unit="/s")
    executor = ThreadExecutor(CALLERS)
    service, method = make(database.make_store(), executor)
    with service:
        ours = in_flight(service, method, IN_FLIGHT, CALLERS)
        floors = {
            f"{IN_FLIGHT} in flight / one by one": floor_one_by_one(database),
            f"{IN_FLIGHT} in flight / in groups of {GROUP}": floor_in_groups(database),
        }
        for label, floor in floors.items():
            yield compare(f"{database.label}, {label}", ours, floor, rounds=ROUNDS, unit="/s")


def run() -> Iterator[Figure]:
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        databases = [stack.enter_context(sqlite_database(folder))]
        server = postgres_server()
        if server is None:
            MISSING.append("PostgreSQL: it is not installed")
        else:
            databases.append(stack.enter_context(postgres_database(server)))
        for database in databases:
            yield from latency(database)
            yield from throughput(database)
        yield from idle_load({one.label: one.make_store for one in databases})
