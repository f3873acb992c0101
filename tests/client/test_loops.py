"""A client on several event loops, one after another and at the same time."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import importlib
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from lro_client import AsyncClient, CallError
from lro_client.transports import AsyncHttpTransport
from tests.client import sockets
from tests.client.messages import NAME
from tests.client.overshoot import reading
from tests.waiting import PATIENCE

Making = Callable[[], AsyncClient]


def answer(line: str, connection: Any, over: threading.Event) -> None:
    """Answer every request with an operation that is done."""
    body = f'{{"name":"{NAME}","done":true}}'
    connection.sendall(f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode())


@pytest.fixture(params=["httpx", "aiohttp", "grpc"])
def make_clients(request: pytest.FixtureRequest) -> Iterator[Making]:
    """Makes clients of a server whose operation is done; tests run with each transport."""
    pytest.importorskip(request.param)
    if request.param == "grpc":
        from lro_client.transports.grpc import AsyncGrpcTransport
        from tests.grpc.odd import odd_server, replying

        with odd_server(replying(name=NAME, done=True)) as odd:
            yield lambda: AsyncClient(transport=AsyncGrpcTransport(odd.address))
        return
    kind: Any = AsyncHttpTransport
    if request.param == "aiohttp":
        kind = importlib.import_module("lro_client.transports.aiohttp").AiohttpTransport
    with sockets.serving(reading(answer)) as url:
        yield lambda: AsyncClient(transport=kind(base_url=url))


async def use(client: AsyncClient) -> None:
    """Use the client in four ways: a call, a wait, a future and a group."""
    assert (await client.get(NAME)).done
    await client.operation(NAME)
    await client.operation(NAME).future()
    await client.group([client.operation(NAME)] * 6).results()


@pytest.fixture
def collect_leftovers() -> Iterator[None]:
    """Collect garbage before the test ends, because ended loops leave objects open."""
    yield
    gc.collect()


leaving = pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")


@leaving
@pytest.mark.usefixtures("collect_leftovers")
def test_client_works_on_one_event_loop_after_the_other(make_clients: Making) -> None:
    """A client works on one event loop after another, as Celery, notebooks and tests need."""
    client = make_clients()
    for _ in range(3):
        asyncio.run(use(client))

    async def end() -> None:
        await use(client)
        await client.close()

    asyncio.run(end())
    with pytest.raises(CallError, match="the client was closed"):
        asyncio.run(use(client))


def test_client_works_on_two_event_loops_at_once(make_clients: Making) -> None:
    """A client works on two loops at once, as Flask and Django need. A ``close`` ends all waits."""
    client, ready, over = make_clients(), threading.Barrier(2), threading.Event()

    async def first() -> None:
        await use(client)
        await asyncio.to_thread(ready.wait, PATIENCE)
        await use(client)
        await client.close()
        over.set()

    async def second() -> None:
        await use(client)
        await asyncio.to_thread(ready.wait, PATIENCE)
        with contextlib.suppress(CallError):  # raised after the client is closed
            while True:
                await use(client)
        await asyncio.to_thread(over.wait, PATIENCE)

    with ThreadPoolExecutor(2) as threads:
        for ended in [threads.submit(asyncio.run, work()) for work in (first, second)]:
            ended.result(PATIENCE)


def test_close_ends_the_waits_of_other_loops() -> None:
    """``close`` on one event loop ends waits, futures and groups on another loop with an error."""
    held, ended = threading.Event(), list[str]()

    async def wait(client: AsyncClient) -> None:
        waits = [
            client.operation(NAME).result(),
            client.operation(NAME).future(),
            client.group([client.operation(f"{NAME}{number}") for number in range(6)]).results(),
        ]
        waiting = asyncio.gather(*waits, return_exceptions=True)
        ended.extend(str(one) for one in await waiting)

    def silent(connection: Any, over: threading.Event) -> None:
        held.set()
        sockets.silent(connection, over)

    with sockets.serving(silent) as url, ThreadPoolExecutor() as threads:
        client = AsyncClient(url)
        waiting = threads.submit(asyncio.run, wait(client))
        assert held.wait(PATIENCE)
        asyncio.run(client.close())
        waiting.result(PATIENCE)
    assert all("the client was closed" in one for one in ended)
    assert len(ended) == 3


@leaving
@pytest.mark.usefixtures("collect_leftovers")
def test_http_client_of_another_event_loop_is_refused() -> None:
    """If the HTTP client belongs to another event loop, the error says so and suggests a remedy."""
    with sockets.serving(reading(answer)) as url:
        client = AsyncClient(http=httpx.AsyncClient(base_url=url))
        asyncio.run(use(client))
        with pytest.raises(CallError, match="belongs to another event loop: give each loop"):
            asyncio.run(use(client))
