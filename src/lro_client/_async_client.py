"""The client for event loops."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import aclosing
from datetime import timedelta
from typing import TYPE_CHECKING
from typing import Any as Anything

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
from lro_client import _flows, _requests
from lro_client._calls import AsyncTransport, StartRequest
from lro_client._drive import AsyncDriver
from lro_client._handles import HandleBase, Meta, Resp, Update, register
from lro_client._policy import Polling, Retry
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
    ``call_seconds`` bounds each single call.
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
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._types = types or TypeRegistry()
        self._setting = _requests.setting(polling, retry, clock, call_seconds)
        if transport is None:
            transport = AsyncHttpTransport(
                http or httpx.AsyncClient(),
                base_url=base_url,
                routes=routes,
                types=self._types,
                own=http is None,
            )
        self._transport = transport
        self._driver = AsyncDriver(transport, sleep)

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

        Raises:
            CallError: The method refused.
        """
        register(self._types, type(message), response, metadata)
        request = StartRequest(
            target=target,
            message=message,
            request_id=str(request_id),
            validate_only=validate_only,
        )
        reply = await self._driver.run(_flows.single(self._setting, request))
        return self.operation(_flows.read(reply), response=response, metadata=metadata)

    def operation(
        self,
        operation: Operation | str,
        *,
        response: type[Resp],
        metadata: type[Meta],
    ) -> AsyncOperationHandle[Resp, Meta]:
        """A handle for an operation, or for a name that was kept; asks the server nothing."""
        if isinstance(operation, str):
            operation = Operation(name=operation)
        register(self._types, response, metadata)
        return AsyncOperationHandle(
            operation, response=response, metadata=metadata, types=self._types, client=self
        )

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

    async def close(self) -> None:
        """Free the connections, if they were made here."""
        await self._transport.close()

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _ask(self, request: Anything) -> Operation:
        return _flows.read(await self._driver.run(_flows.single(self._setting, request)))

    async def _tell(self, request: Anything) -> None:
        await self._driver.run(_flows.single(self._setting, request))


class AsyncPager:
    """The operations of a list, fetched page by page as they are needed."""

    def __init__(self, client: AsyncClient, request: ListOperationsRequest) -> None:
        self._client = client
        self._request = request

    async def pages(self) -> AsyncGenerator[ListOperationsResponse, None]:
        """The raw pages, one call each."""
        client = self._client
        flow = _flows.pages(client._setting, self._request)
        async with aclosing(client._driver.walk(flow)) as steps:
            async for page in steps:
                yield page

    async def __aiter__(self) -> AsyncGenerator[Operation, None]:
        async with aclosing(self.pages()) as pages:
            async for page in pages:
                for operation in page.operations:
                    yield operation


class AsyncOperationHandle(HandleBase[Resp, Meta]):
    """An operation: cached values as properties, verbs as methods. Only verbs ask the server."""

    def __init__(
        self,
        operation: Operation,
        *,
        response: type[Resp] | None,
        metadata: type[Meta] | None,
        types: TypeRegistry,
        client: AsyncClient,
    ) -> None:
        super().__init__(operation, response=response, metadata=metadata, types=types)
        self._client = client

    async def refresh(self) -> Operation:
        """Ask for the latest state, once.

        Raises:
            CallError: The call failed.
        """
        return self._seen(await self._client.get(self.name))

    async def wait(self, timeout: timedelta | float | None = None) -> Operation:
        """Wait until the operation is done; its last state, whatever the outcome.

        ``timeout`` from now, a timedelta or seconds, is kept to within 50 ms; None waits for
        ever (spec §11.4).

        Raises:
            PollTimeout: The time is over; the operation goes on.
            OperationGone: It was deleted or has expired.
            CallError: A poll failed for a reason that does not pass.
        """
        client = self._client
        known = self._operation
        return self._seen(
            await client._driver.run(
                _flows.until_done(client._setting, self.name, known, _requests.seconds(timeout))
            )
        )

    async def result(self, timeout: timedelta | float | None = None) -> Resp:
        """Wait as :meth:`wait` does, then give the response.

        Raises:
            OperationFailed: The operation ended with an error.
            OperationCancelled: It was cancelled.
            DecodingError: The response is not of the declared type.
            PollTimeout, OperationGone, CallError: As for :meth:`wait`.
        """
        await self.wait(timeout)
        return self._result()

    async def updates(
        self, timeout: timedelta | float | None = None, *, every: float = 1.0
    ) -> AsyncGenerator[Update[Meta], None]:
        """Each changed state until the operation is done, looked for at most ``every`` seconds.

        Raises:
            PollTimeout, OperationGone, CallError: As for :meth:`wait`.
        """
        client = self._client
        flow = _flows.updates(
            client._setting, self.name, self._operation, _requests.seconds(timeout), every
        )
        async with aclosing(client._driver.walk(flow)) as steps:
            async for operation in steps:
                yield Update(self, self._seen(operation))

    async def cancel(self) -> None:
        """Ask for the work to stop; what becomes of it, :meth:`result` tells.

        Raises:
            CallError: The call failed.
        """
        await self._client.cancel(self.name)

    async def delete(self) -> None:
        """Remove the record; does not stop the work.

        Raises:
            CallError: The call failed.
        """
        await self._client.delete(self.name)

    def __await__(self) -> Generator[Anything, None, Resp]:
        return self.result().__await__()
