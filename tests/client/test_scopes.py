"""The client's last calls at the end of a block, in cancelled scopes of anyio and asyncio."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import anyio
import httpx
import pytest

from lro_client import AsyncClient
from lro_client.transports import AsyncHttpTransport
from tests.client import sockets
from tests.client.messages import NAME, reply, running, succeeded
from tests.waiting import until_async


class Server:
    """A server that holds each Wait for ever, and records which operations are cancelled."""

    def __init__(self) -> None:
        self.waits = 0
        self.cancelled: list[str] = []
        self.held = asyncio.Event()
        self.leaving: Callable[[], object] = lambda: None

    async def __call__(self, request: httpx.Request) -> httpx.Response:
        name, _, verb = request.url.path.removeprefix("/v1/").partition(":")
        if verb == "cancel":
            self.leaving()
            for _ in range(9):
                await asyncio.sleep(0)
            self.cancelled.append(name)
            return reply({})
        self.waits += 1
        await self.held.wait()
        return reply(running())

    def client(self) -> AsyncClient:
        """Make a client of this server."""
        http = httpx.AsyncClient(base_url="http://s", transport=httpx.MockTransport(self))
        return AsyncClient(http=http)


@asynccontextmanager
async def anyio_scope(server: Server) -> AsyncIterator[None]:
    """Enter an anyio scope that is cancelled while a Wait is held."""
    with anyio.CancelScope() as scope:
        asyncio.get_running_loop().create_task(_when_held(server, scope.cancel))
        yield


async def _when_held(server: Server, cancel: Callable[[], object]) -> None:
    await until_async(lambda: server.waits)
    cancel()


@asynccontextmanager
async def anyio_group(server: Server) -> AsyncIterator[None]:
    """Enter an anyio task group in which another task fails while a Wait is held."""

    async def fail() -> None:
        await until_async(lambda: server.waits)
        raise ZeroDivisionError

    try:
        async with anyio.create_task_group() as group:
            group.start_soon(fail)
            yield
    except* ZeroDivisionError:
        pass


@asynccontextmanager
async def late_scope(server: Server) -> AsyncIterator[None]:
    """Enter an anyio scope that is cancelled while the client sends its Cancel."""
    with anyio.CancelScope() as scope:
        server.leaving = scope.cancel
        yield


@asynccontextmanager
async def late_timeout(server: Server) -> AsyncIterator[None]:
    """Enter a timeout that expires while the client sends its Cancel."""
    with suppress(TimeoutError):
        async with asyncio.timeout(None) as limit:
            server.leaving = lambda: limit.reschedule(0.0)
            yield


SCOPES = [anyio_scope, anyio_group]


@pytest.mark.parametrize("scope", SCOPES)
@pytest.mark.parametrize("many", [False, True])
def test_leaving_a_cancelled_scope_cancels_the_unfinished_operation(
    many: bool, scope: Callable[[Server], Any]
) -> None:
    """The Cancel is sent although the scope cancels every await and the loop ends soon after."""

    async def main() -> list[str]:
        server = Server()
        async with scope(server), server.client() as client:
            handle = client.operation(NAME)
            async with client.group([handle]) if many else handle as bound:
                await (bound.results() if many else bound.result())
        return server.cancelled

    assert asyncio.run(main()) == [NAME]


@pytest.mark.parametrize("scope", [late_scope, late_timeout])
def test_cancellation_at_the_end_of_a_block_does_not_stop_the_cancel(
    scope: Callable[[Server], Any],
) -> None:
    """If a scope is cancelled while the client sends its Cancel, the Cancel is still sent."""

    async def main() -> list[str]:
        server = Server()
        client = server.client()
        async with scope(server), client.operation(NAME):
            pass
        return server.cancelled

    assert asyncio.run(main()) == [NAME]


@pytest.mark.parametrize("scope", SCOPES)
@pytest.mark.parametrize("two", [False, True])
def test_client_closes_its_transport_once_in_a_cancelled_scope(
    two: bool, scope: Callable[[Server], Any]
) -> None:
    """The transport is closed once, even if ``close`` is called twice or the loop ends."""
    closed = []

    class Transport(AsyncHttpTransport):
        async def close(self) -> None:
            for _ in range(9):
                await asyncio.sleep(0)
            await super().close()
            closed.append(1)

    async def main() -> None:
        server = Server()
        http = httpx.AsyncClient(base_url="http://s", transport=httpx.MockTransport(server))
        async with scope(server), AsyncClient(transport=Transport(http)) as client:
            await client.operation(NAME)
        if two:
            await asyncio.gather(client.close(), client.close())

    asyncio.run(main())
    assert closed == [1]


def test_cancelled_scope_ends_a_grpc_call_with_its_own_cancelled_error() -> None:
    """The scope sees its own CancelledError, not one that grpcio raises (grpc#43502)."""
    pytest.importorskip("grpc")
    from lro_client.transports.grpc import AsyncGrpcTransport

    async def main(address: str) -> bool:
        async with AsyncClient(transport=AsyncGrpcTransport(address)) as client:
            with anyio.move_on_after(0.05) as scope:
                await client.get(NAME)
            return scope.cancelled_caught

    with sockets.serving(sockets.silent) as url:
        assert asyncio.run(main(url.removeprefix("http://")))


@pytest.mark.platform
@pytest.mark.skipif(sys.version_info < (3, 12), reason="tasks begin at once from Python 3.12 on")
def test_futures_and_groups_work_with_an_eager_task_factory() -> None:
    """Futures and groups, which create tasks, work with an eager task factory."""

    async def main() -> None:
        asyncio.get_running_loop().set_task_factory(asyncio.eager_task_factory)
        transport = httpx.MockTransport(lambda _: reply(succeeded()))
        http = httpx.AsyncClient(base_url="http://s", transport=transport)
        async with asyncio.timeout(60), AsyncClient(http=http) as client:
            await client.operation(NAME).future()
            await client.group([client.operation(NAME)]).results()
            await asyncio.gather(*[client.operation(NAME).result() for _ in range(8)])

    asyncio.run(main())
