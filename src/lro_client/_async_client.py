"""The client for event loops."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from contextlib import aclosing
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import httpx

from lro import (
    CancelOperationRequest,
    DeleteOperationRequest,
    GetOperationRequest,
    ListOperationsRequest,
    ListOperationsResponse,
    Operation,
    TypeRegistry,
    WaitOperationRequest,
)
from lro_client import _arguments, _handle_flows, _requests
from lro_client._async_group import AsyncGroup
from lro_client._async_operation_handle import AsyncOperationHandle
from lro_client._client_state import ClientState
from lro_client._flow import single
from lro_client._flow.drivers import AsyncDriver
from lro_client._flow.policy import Polling, Retry
from lro_client._flow.steps import AsyncTransport
from lro_client._handles import Meta, Resp, known, register
from lro_client._journal import Journal
from lro_client._observer import KnownOperation
from lro_client.filters import Expression
from lro_client.transports.http import AsyncHttpTransport, Routes

if TYPE_CHECKING:
    import uuid


class AsyncClient:
    """A client of any service that returns operations. For one event loop.

    ``base_url`` is the service's address, ``http`` an ``httpx.AsyncClient`` to use instead of one
    made here (its base URL, headers, authentication and proxies are kept), ``transport`` something
    else than HTTP, such as ``AsyncLocalTransport(service)``. ``routes`` are the paths of the verbs,
    ``types`` a registry of message classes, ``polling`` and ``retry`` the policies.
    ``call_seconds`` bounds each single call, ``journal`` keeps what was started across crashes.
    """

    def __init__(
        self,
        base_url: str = "",
        *,
        http: httpx.AsyncClient | None = None,
        transport: AsyncTransport | None = None,
        routes: Routes | None = None,
        types: TypeRegistry | None = None,
        polling: Polling | None = None,
        retry: Retry | None = None,
        call_seconds: float = 30.0,
        journal: Journal | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        _arguments.check_optional("types", types, TypeRegistry)
        _arguments.check_function("clock", clock)
        _arguments.check_function("sleep", sleep)
        types = types or TypeRegistry()
        if transport is not None:
            _arguments.check_awaits("transport", transport, "AsyncLocalTransport(service)")
        else:
            transport = AsyncHttpTransport(http, base_url=base_url, routes=routes, types=types)
        self._transport = transport
        self._driver = AsyncDriver(transport, sleep)
        self._state = ClientState(
            transport,
            self._driver,
            types=types,
            polling=polling,
            retry=retry,
            clock=clock,
            call_seconds=call_seconds,
            journal=journal,
        )

    async def start(
        self,
        target: str,
        message: object,
        *,
        response: type[Resp],
        metadata: type[Meta],
        request_id: str | uuid.UUID = "",
        validate_only: bool = False,
    ) -> AsyncOperationHandle[Resp, Meta]:
        """Call a method that returns an operation: POST ``message`` as JSON to the path ``target``.

        With ``request_id``, a UUID, the call is retried, and starts nothing twice (spec §9.1).

        With a journal every start has a request id, and is noted before it is sent. ``message`` may
        also be a packed ``lro.Any`` or, but for gRPC, a dict; with ``lro.Any`` for ``response`` or
        ``metadata`` what comes stays packed.

        Raises:
            DeclarationError: An argument cannot be used; nothing was sent.
            CallError: The method refused.
            JournalError: The journal cannot be written.
        """
        types = self._state.types
        request = _requests.starting(types, target, message, request_id, validate_only)
        register(types, response=response, metadata=metadata, message=type(message))
        flow = _handle_flows.start(self._state, request, response, metadata)
        return self._handle(await self._driver.run(flow), response, metadata)

    def operation(
        self,
        operation: Operation | str,
        *,
        response: type[Resp],
        metadata: type[Meta],
    ) -> AsyncOperationHandle[Resp, Meta]:
        """A handle for an operation, or for a name or token that was kept; asks nobody.

        Raises:
            InvalidArgument: What looks like a token is none, or is one of another server.
            DeclarationError: It is empty, a URL, or something else than these.
        """
        register(self._state.types, response=response, metadata=metadata)
        return self._handle(known(operation, self._state.address), response, metadata)

    def group(self, handles: Iterable[AsyncOperationHandle[Resp, Meta]]) -> AsyncGroup[Resp, Meta]:
        """Operations of this client to wait for together, with few calls for all of them."""
        return AsyncGroup(handles, state=self._state, driver=self._driver)

    async def get(self, request: str | GetOperationRequest) -> Operation:
        """The latest state of an operation, by name (spec §3.2).

        Raises:
            CallError: The call failed, with NOT_FOUND for a name that is not there.
        """
        return await self._ask(_requests.named(GetOperationRequest, request))

    def list(
        self,
        request: str | ListOperationsRequest = "",
        filter: str | Expression = "",  # the field's name
        *,
        page_size: int = 0,
        page_token: str = "",
    ) -> AsyncPager:
        """The operations of a parent that match an AIP-160 filter (spec §3.3, §11.9).

        Give the filter as text, or build it from values with :mod:`lro_client.filters`. With
        the ``page_token`` of an earlier page, it goes on after that.
        """
        return AsyncPager(self, _requests.listing(request, filter, page_size, page_token))

    async def cancel(self, request: str | CancelOperationRequest) -> None:
        """Ask for the work of an operation to stop (spec §3.6).

        Raises:
            CallError: The call failed.
        """
        await self._tell(_requests.named(CancelOperationRequest, request))

    async def delete(self, request: str | DeleteOperationRequest) -> None:
        """Remove the record of an operation (spec §3.5).

        Raises:
            CallError: The call failed.
        """
        await self._tell(_requests.named(DeleteOperationRequest, request))

    async def wait(
        self,
        request: str | WaitOperationRequest,
        *,
        timeout: timedelta | float | None = None,
    ) -> Operation:
        """One WaitOperation call: done, or the state when ``timeout`` (seconds) is over (spec §4).

        Raises:
            CallError: The call failed, with UNIMPLEMENTED where the server has no Wait.
        """
        return await self._ask(_requests.waiting(request, timeout))

    async def pending(
        self, *, response: type[Resp], metadata: type[Meta]
    ) -> AsyncGenerator[AsyncOperationHandle[Resp, Meta], None]:
        """The operations in the journal that were declared with these classes, the oldest first.

        Those of this server that were started, also by a process that has crashed, and whose result
        nobody has taken. A start whose answer never came is repeated with its request id, and so
        starts nothing twice; where it is refused, the handle's ``result()`` says why, and the start
        stays in the journal. With ``lro.Any`` for both classes: all of them.

        Raises:
            ValueError: The client has no journal.
            JournalError: It cannot be read.
        """
        register(self._state.types, response=response, metadata=metadata)
        flow = self._state.observer.pending(self._state.config, response, metadata)
        async with aclosing(self._driver.walk(flow)) as steps:
            async for found in steps:
                yield self._handle(found, response, metadata)

    async def close(self) -> None:
        """Free the connections, if they were made here; nobody waits here any more."""
        self._state.close()
        await self._driver.end()
        await self._transport.close()

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def _handle(
        self,
        known: KnownOperation,
        response: type[Resp],
        metadata: type[Meta],
    ) -> AsyncOperationHandle[Resp, Meta]:
        return AsyncOperationHandle(
            known,
            response=response,
            metadata=metadata,
            state=self._state,
            driver=self._driver,
        )

    async def _ask(self, request: Any) -> Operation:
        return single.read(await self._driver.run(single.single(self._state.config, request)))

    async def _tell(self, request: Any) -> None:
        await self._driver.run(single.single(self._state.config, request))


class AsyncPager:
    """The operations of a list, fetched page by page as they are needed."""

    def __init__(self, client: AsyncClient, request: ListOperationsRequest) -> None:
        self._client = client
        self._request = request

    async def pages(self) -> AsyncGenerator[ListOperationsResponse, None]:
        """The raw pages, one call each."""
        client = self._client
        flow = single.pages(client._state.config, self._request)
        async with aclosing(client._driver.walk(flow)) as steps:
            async for page in steps:
                yield page

    async def __aiter__(self) -> AsyncGenerator[Operation, None]:
        async with aclosing(self.pages()) as pages:
            async for page in pages:
                for operation in page.operations:
                    yield operation
