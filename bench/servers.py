"""Starts per second of one and two server processes, on one and two stores; PostgreSQL's writes.

Each server has callers of its own.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from bench.across import postgres_server
from bench.load import Found, Server, load, post
from bench.measure import MISSING, Figure, alone
from bench.starting import PATH

CONNECTIONS: Final = 16
REQUESTS: Final = 4000
ROUNDS: Final = 5


def started(port: int) -> Found:
    """Send starts to the server at a port."""
    return load(port, post(PATH), CONNECTIONS, REQUESTS)


def run() -> Iterator[Figure]:
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        stores: dict[str, list[tuple[str, ...]]] = {
            "sqlite": [(str(folder / f"{number}.db"),) for number in range(2)]
        }
        server = postgres_server()
        if server is None:
            MISSING.append("PostgreSQL: it is not installed")
        else:
            stores["postgres"] = [(server.url, server.fresh_schema()) for _ in range(2)]
        pool = stack.enter_context(concurrent.futures.ProcessPoolExecutor(2))
        for kind, (first, second) in stores.items():
            yield from measured(pool, kind, [first])
            yield from measured(pool, kind, [first, first])
            yield from measured(pool, kind, [first, second])
        if server is not None:
            yield from cost(stores["postgres"][0])


def measured(
    pool: concurrent.futures.Executor, kind: str, stores: Sequence[tuple[str, ...]]
) -> Iterator[Figure]:
    """Measure the total starts per second of several servers, each on one of these stores."""
    with contextlib.ExitStack() as stack:
        servers = [Server("starting", kind, *where) for where in stores]
        for one in servers:
            stack.callback(one.close)
        ports = [one.port for one in servers]
        rounds = [list(pool.map(started, ports)) for _ in range(ROUNDS)]
    what = f"{kind}, processes: {len(stores)}, stores: {len(set(stores))}"
    rates = [sum(one.rate for one in found) for found in rounds]
    yield alone(what, rates, unit="/s", measure="rate")
    p99 = [max(one.p99 for one in found) for found in rounds]
    yield alone(what, p99, unit="ms", measure="p99", scale=1e3)


def cost(store: tuple[str, ...]) -> Iterator[Figure]:
    """Measure the cost of a start and its end for PostgreSQL."""
    import psycopg
    from psutil import Process

    url, schema = store
    size = "SELECT sum(pg_total_relation_size(c.oid))::bigint FROM pg_class AS c JOIN"
    size += " pg_namespace AS n ON n.oid = relnamespace WHERE relkind = 'r' AND nspname = %s"

    def used() -> tuple[float, int, int]:
        times = database.cpu_times()
        cpu = times.user + times.system + times.children_user + times.children_system
        cpu += sum(sum(child.cpu_times()[:2]) for child in database.children())
        wal = "SELECT (pg_current_wal_insert_lsn() - '0/0')::bigint"
        ((written,),) = connection.execute(wal).fetchall()
        ((kept,),) = connection.execute(size, (schema,)).fetchall()
        return cpu, written, kept

    with (
        psycopg.connect(url, autocommit=True) as connection,
        contextlib.closing(Server("starting", "postgres", *store)) as server,
    ):
        database = Process(connection.info.backend_pid).parent()
        assert database is not None
        started(server.port)
        before = used()
        started(server.port)
        cpu, written, kept = (
            (now - then) / REQUESTS for now, then in zip(used(), before, strict=True)
        )
    what = "postgres, a start and its end"
    yield Figure(what=what, measure="CPU of the database", ours=cpu * 1e6, unit="µs")
    yield Figure(what=what, measure="bytes of its log", ours=written, unit="bytes")
    yield Figure(what=what, measure="bytes kept", ours=kept, unit="bytes")
