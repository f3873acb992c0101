"""Seconds until the next call works: dead connections, restarts, standbys, poolers, lost files.

The time begins when a call can succeed again; before that, a server is unavailable for two
seconds.
"""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Final

import grpc
import uvicorn

import lro
import lro.grpc
from bench.across import postgres_server
from bench.measure import MISSING, Figure
from bench.peer import declared
from bench.start_to_result import Request, RunResponse
from lro.asgi import OperationsApp
from lro.errors import Unavailable
from lro.stores.memory import MemoryStore
from lro.stores.sqlite import SQLiteStore
from lro_client import AsyncClient, Client
from lro_client.transports.aiohttp import AiohttpTransport
from lro_client.transports.grpc import AsyncGrpcTransport, GrpcTransport
from tests.services.ports import free_port
from tests.services.proxy import Proxy, proxy_to

AWAY_SECONDS: Final = 2.0
PAUSE_SECONDS: Final = 0.05
LONGEST_SECONDS: Final = 300.0
Serve = Callable[[int], AbstractContextManager[None]]
Result = Callable[[], object]
Start = Callable[[], lro.Operation]


def took(label: str, what: str, seconds: float) -> Figure:
    return Figure(what=f"{label}: {what}", ours=seconds, unit="s")


def timed(call: Callable[[], object]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


# -- clients ----------------------------------------------------------------------------------


@contextlib.contextmanager
def over_http(service: lro.Service, port: int) -> Iterator[None]:
    """Serve with uvicorn in a thread during the block."""
    app = OperationsApp(service)
    server = uvicorn.Server(uvicorn.Config(app, port=port, log_level="error"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(PAUSE_SECONDS)
    try:
        yield
    finally:
        server.should_exit = True
        thread.join()


@contextlib.contextmanager
def over_grpc(service: lro.Service, port: int) -> Iterator[None]:
    """Serve with grpcio in its own threads during the block."""
    with ThreadPoolExecutor(8) as pool:
        server = grpc.server(pool)
        lro.grpc.add_to(server, service)
        server.add_insecure_port(f"127.0.0.1:{port}")
        server.start()
        try:
            yield
        finally:
            server.stop(0).wait()


@contextlib.contextmanager
def blocking(client: Client, name: str) -> Iterator[Result]:
    """Yield a function that waits for the result with this client."""
    with client:
        yield lambda: client.operation(name).wait(LONGEST_SECONDS)


@contextlib.contextmanager
def coroutine(client: AsyncClient, name: str) -> Iterator[Result]:
    """Yield a function that waits for the result with this client, on its own event loop."""
    with asyncio.Runner() as runner:
        yield lambda: runner.run(client.operation(name).wait(LONGEST_SECONDS))
        runner.run(client.close())


def clients(port: int) -> dict[str, tuple[Any, Callable[[str], AbstractContextManager[Result]]]]:
    """Return for each transport a function that serves it, and a function that makes a client."""
    url, address = f"http://127.0.0.1:{port}", f"127.0.0.1:{port}"
    return {
        "Client, httpx": (over_http, lambda name: blocking(Client(url), name)),
        "AsyncClient, httpx": (over_http, lambda name: coroutine(AsyncClient(url), name)),
        "AsyncClient, aiohttp": (
            over_http,
            lambda name: coroutine(AsyncClient(transport=AiohttpTransport(base_url=url)), name),
        ),
        "Client, gRPC": (
            over_grpc,
            lambda name: blocking(Client(transport=GrpcTransport(address)), name),
        ),
        "AsyncClient, gRPC": (
            over_grpc,
            lambda name: coroutine(AsyncClient(transport=AsyncGrpcTransport(address)), name),
        ),
    }


def of_clients() -> Iterator[Figure]:
    service, start = serving(MemoryStore())
    name = start().name
    service.reporter(name).complete(RunResponse(1))
    for label in clients(0):
        port = free_port()
        serve = clients(port)[label][0]
        with (
            serve(service, port),
            proxy_to(port) as proxy,
            clients(proxy.port)[label][1](name) as result,
        ):
            result()
            proxy.forget()
            yield took(label, "connection dies silently", timed(result))
        with clients(port)[label][1](name) as result:
            with serve(service, port):
                result()
            began = time.perf_counter()
            with ThreadPoolExecutor(1) as pool:
                waiting = pool.submit(result)  # the client polls while the server is away
                time.sleep(AWAY_SECONDS)
                with serve(service, port):
                    waiting.result()
                    seconds = time.perf_counter() - began - AWAY_SECONDS
            yield took(label, "server is away for 2 s", seconds)


# -- stores -----------------------------------------------------------------------------------


def serving(store: Any) -> tuple[lro.Service, Start]:
    """Return a service on this store, and a function that starts an operation."""
    service, method = declared(store)
    return service, lambda: method.start(Request())


def again_and_again(call: Result) -> None:
    """Call until the store is available."""
    end = time.perf_counter() + LONGEST_SECONDS
    while True:
        try:
            call()
            return
        except Unavailable:
            if time.perf_counter() > end:
                raise
            time.sleep(PAUSE_SECONDS)


def row(label: str, store: Any, what: str, happens: Callable[[Result], object]) -> Figure:
    """Write to the store, disturb it, and measure until it can be written again."""
    service, start = serving(store)
    with contextlib.closing(store), contextlib.closing(service):
        start()
        happens(start)
        seconds = timed(lambda: again_and_again(start))
        return took(label, what, seconds)


def refused(start: Result) -> None:
    """Check that a start fails because the store is unavailable."""
    try:
        start()
    except Unavailable:
        return
    raise AssertionError("the store was written")


def of_sqlite() -> Iterator[Figure]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "operations.db")

        def away(start: Result) -> None:
            path.rename(aside := path.with_suffix(".away"))
            time.sleep(AWAY_SECONDS)
            refused(start)
            aside.rename(path)

        yield row("SQLiteStore", SQLiteStore(path), "file is away for 2 s", away)


def of_postgres() -> Iterator[Figure]:
    server = postgres_server()
    if server is None:
        MISSING.append("PostgreSQL: it is not installed")
        return
    import psycopg

    from lro.stores.postgres import PostgresStore
    from tests.full.stores.test_poolers import pooler

    def at(url: str) -> PostgresStore:
        return PostgresStore(url, schema=server.fresh_schema())

    def behind(proxy: Proxy) -> PostgresStore:
        return at(f"postgresql://lro@127.0.0.1:{proxy.port}/postgres")

    def away(start: Result) -> None:
        with server.away():
            refused(start)
            time.sleep(AWAY_SECONDS)

    def only_reads(start: Result) -> None:
        # Old connections lead to a server that has become a standby, new ones to another server.
        with psycopg.connect(server.url, autocommit=True) as plain:
            plain.execute("ALTER ROLE app SET default_transaction_read_only = on")
            mine = "FROM pg_stat_activity WHERE usename = 'app'"
            plain.execute(f"SELECT pg_terminate_backend(pid) {mine}")
            for _ in range(2):
                refused(start)
            plain.execute("ALTER ROLE app RESET default_transaction_read_only")

    def dropped(url: str) -> None:
        console = url.rpartition("/")[0] + "/pgbouncer"
        options: Any = {"cursor_factory": psycopg.ClientCursor, "prepare_threshold": None}
        with psycopg.connect(console, autocommit=True, **options) as one:
            one.execute("KILL postgres")
            one.execute("RESUME postgres")

    direct, pooled = "PostgresStore", "PostgresStore, pooler"
    with proxy_to(server.port) as proxy:
        silent = "connections die silently"
        yield row(direct, behind(proxy), silent, lambda _: proxy.forget())
    yield row(direct, at(server.url), "server is away for 2 s", away)
    with psycopg.connect(server.url, autocommit=True) as plain:
        plain.execute("CREATE ROLE app LOGIN SUPERUSER")
    app = at(server.url.replace("lro@", "app@"))
    yield row(direct, app, "server has become a standby", only_reads)
    with pooler("session") as url:
        yield row(pooled, at(url), "server is away for 2 s", away)
        yield row(pooled, at(url), "pooler drops all", lambda _: dropped(url))
        with proxy_to(int(url.rpartition(":")[2].partition("/")[0])) as proxy:
            yield row(pooled, behind(proxy), silent, lambda _: proxy.forget())


def run() -> Iterator[Figure]:
    yield from of_clients()
    yield from of_sqlite()
    yield from of_postgres()
