"""The client for event loops, its handles and groups."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Iterable
from contextlib import aclosing
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Generic, overload

from lro import (
    CancelOperationRequest,
    DeleteOperationRequest,
    DescribeOperationsResponse,
    GetOperationRequest,
    ListOperationsRequest,
    ListOperationsResponse,
    Operation,
    OperationDescription,
    TypeRegistry,
    WaitOperationRequest,
)
from lro.wire import RerunOperationRequest
from lro_client import _arguments
from lro_client._client import describing, group_flows, handle_flows
from lro_client._client.group_flows import GroupResult
from lro_client._client.handle_flows import MAX_LEAVE_SECONDS
from lro_client._client.handles import (
    HandleBase,
    KnownOperation,
    Meta,
    Resp,
    Update,
    known,
    register,
)
from lro_client._client.state import ClientState
from lro_client._flow import polling, single
from lro_client._flow.async_driver import AsyncDriver, shielded
from lro_client._flow.policy import Polling, Retry
from lro_client._flow.steps import AsyncTransport
from lro_client.transports.http import AsyncHttpTransport, Routes

if TYPE_CHECKING:
    import uuid

    from lro_client.filters import Expression
    from lro_client.transports.http import AsyncHttpClient


class AsyncOperationHandle(HandleBase[Resp, Meta]):
    """An operation: cached values as properties, verbs as methods. Only verbs ask the server.

    ``await operation`` is its result. As a context it cancels an operation that is not done when
    the block is left, for whatever reason. Otherwise nothing does: who stops waiting, by the
    cancellation of a task or the end of the process, leaves the operation to go on.
    """

    __slots__ = ("_driver",)

    def __init__(
        self,
        known: KnownOperation,
        *,
        response: type[Resp] | None,
        metadata: type[Meta] | None,
        state: ClientState,
        driver: AsyncDriver,
    ) -> None:
        super().__init__(known, response=response, metadata=metadata, state=state)
        self._driver = driver

    async def refresh(self) -> Operation:
        """Ask for the latest state, once.

        Raises:
            CallError: The call failed.
        """
        self._check_exists()
        flow = single.single(self._state.config, GetOperationRequest(self.name))
        return self._take_state(single.read(await self._driver.run(flow)))

    async def describe(self) -> OperationDescription:
        """Ask what the server knows of the operation: its method, times, attempt (spec §3.11).

        Raises:
            CallError: The call failed: NOT_FOUND if there is no such operation, UNIMPLEMENTED if
                the server does not describe operations, which none does over gRPC.
        """
        self._check_exists()
        return await self._driver.run(describing.describe(self._state, self.name))

    async def wait(self, timeout: timedelta | float | None = None) -> Operation:
        """Wait until the operation is done; its last state, whatever the outcome.

        ``timeout`` from now, a timedelta or seconds, is kept to within 50 ms; None waits for
        ever (spec §11.4).

        Raises:
            PollTimeout: The time is over; the operation goes on.
            OperationGone: It was deleted or has expired.
            CallError: A poll failed for a reason that does not pass.
        """
        return await self._driver.run(
            handle_flows.wait(self._state, self, _arguments.seconds(timeout))
        )

    async def result(self, timeout: timedelta | float | None = None) -> Resp:
        """Wait as :meth:`wait` does, then give the response.

        Raises:
            OperationFailed: The operation ended with an error.
            OperationCancelled: It was cancelled.
            DecodingError: The response is not of the declared type.
            PollTimeout, OperationGone, CallError: As for :meth:`wait`.
        """
        return await self._driver.run(
            handle_flows.result(self._state, self, _arguments.seconds(timeout))
        )

    def future(self) -> asyncio.Future[Resp]:
        """The result as a future of this event loop; costs no task while it waits.

        Its callbacks are called once each, whatever becomes of the operation: it has the result, or
        what :meth:`result` raises, or says that the client was closed. To cancel the future is to
        stop waiting; the operation goes on.
        """
        return handle_flows.async_future(self._state, self)

    async def updates(
        self, timeout: timedelta | float | None = None, *, every: float = 1.0
    ) -> AsyncGenerator[Update[Meta], None]:
        """Each changed state until the operation is done, looked for at most ``every`` seconds.

        Raises:
            DeclarationError: ``every`` is not a number of seconds above 0.
            PollTimeout, OperationGone, CallError: As for :meth:`wait`.
        """
        limit = _arguments.seconds(timeout)
        flow = polling.until_done(
            self._state.config,
            self.name,
            self.operation,
            limit,
            self._count_polls,
            self._fits,
            every,
        )
        async with aclosing(self._driver.iterate(flow)) as steps:
            async for operation in steps:
                yield Update(self, self._take_state(operation))

    async def cancel(self) -> None:
        """Ask for the work to stop; :meth:`result` shows whether it did.

        Raises:
            CallError: The call failed.
        """
        await self._driver.run(handle_flows.cancel(self._state, self))

    async def cancel_and_wait(self, timeout: timedelta | float | None = None) -> Operation:
        """Ask for the work to stop, then wait: it may be cancelled, or have come to its end first.

        Raises:
            PollTimeout: The time is over before it has stopped.
            OperationGone, CallError: As for :meth:`cancel` and :meth:`wait`.
        """
        limit = _arguments.seconds(timeout)
        return await self._driver.run(handle_flows.cancel_and_wait(self._state, self, limit))

    async def delete(self) -> None:
        """Remove the record; does not stop the work.

        Raises:
            CallError: The call failed.
        """
        await self._driver.run(handle_flows.delete(self._state, self))

    async def __aenter__(self) -> AsyncOperationHandle[Resp, Meta]:
        return self

    async def __aexit__(self, *_: object) -> None:
        flow = handle_flows.cancel_unfinished(self._state, [self])
        await self._driver.leave(self._driver.run(flow))

    def __await__(self) -> Generator[Any, None, Resp]:
        return self.result().__await__()


class AsyncGroup(Generic[Resp, Meta]):
    """Operations that are waited for together, however many they are.

    A client of a server that offers Watch or BatchGet needs few calls for all of them; elsewhere it
    lists by names, or asks for each through a few connections. As a context it cancels what is not
    done when the block is left, for whatever reason.
    """

    def __init__(
        self,
        handles: Iterable[AsyncOperationHandle[Resp, Meta]],
        *,
        state: ClientState,
        driver: AsyncDriver,
    ) -> None:
        found = group_flows.members(handles)
        self.handles: tuple[AsyncOperationHandle[Resp, Meta], ...] = found
        """The operations, in the order that was given."""
        self._state = state
        self._driver = driver

    async def as_completed(
        self, timeout: timedelta | float | None = None
    ) -> AsyncGenerator[AsyncOperationHandle[Resp, Meta], None]:
        """The handles in the order of their end.

        For an operation that is gone or unreachable, ``result()`` raises the reason.

        Raises:
            GroupTimeout: The time is over; its ``pending`` are not done.
        """
        limit = _arguments.seconds(timeout)
        flow = group_flows.as_completed(self._state, self.handles, limit)
        async with aclosing(self._driver.iterate(flow)) as steps:
            async for handle in steps:
                yield handle

    async def wait(
        self, count: int | None = None, timeout: timedelta | float | None = None
    ) -> GroupResult[AsyncOperationHandle[Resp, Meta]]:
        """Wait until ``count`` of them are over (1: any, None: all), or the time is.

        Returns:
            Those who are ``done``, the first one first, and those who are ``pending``.
        """
        limit = _arguments.seconds(timeout)
        return await self._driver.run(group_flows.wait(self._state, self.handles, count, limit))

    async def results(self, timeout: timedelta | float | None = None) -> list[Resp]:
        """All results, in the order of the handles; the first failure is raised at once.

        Raises:
            OperationFailed: An operation ended with an error.
            GroupTimeout: The time is over.
            OperationGone, CallError, DecodingError: As for a handle's ``result``.
        """
        limit = _arguments.seconds(timeout)
        flow = group_flows.results(self._state, self.handles, limit, collect=False)
        return await self._driver.run(flow)

    async def outcomes(self, timeout: timedelta | float | None = None) -> list[Resp | Exception]:
        """All results, in the order of the handles; what failed is there as its exception.

        Raises:
            GroupTimeout: The time is over.
        """
        limit = _arguments.seconds(timeout)
        flow = group_flows.results(self._state, self.handles, limit, collect=True)
        return await self._driver.run(flow)

    async def updates(
        self, timeout: timedelta | float | None = None
    ) -> AsyncGenerator[Update[Meta], None]:
        """Each changed state of each operation, until all are over; states may be skipped.

        Raises:
            GroupTimeout: The time is over.
        """
        limit = _arguments.seconds(timeout)
        flow = group_flows.updates(self._state, self.handles, limit)
        async with aclosing(self._driver.iterate(flow)) as steps:
            async for update in steps:
                yield update

    async def cancel(self) -> None:
        """Ask for all work to stop that is not done; what cannot be cancelled goes on.

        Takes no longer than one call may, for all of them.
        """
        await self._cancel(self._state.config.call_seconds)

    def __len__(self) -> int:
        return len(self.handles)

    async def __aenter__(self) -> AsyncGroup[Resp, Meta]:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._driver.leave(self._cancel(MAX_LEAVE_SECONDS))

    async def _cancel(self, seconds: float) -> None:
        await self._driver.run(handle_flows.cancel_unfinished(self._state, self.handles, seconds))


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
        http: AsyncHttpClient | None = None,
        transport: AsyncTransport | None = None,
        routes: Routes | None = None,
        types: TypeRegistry | None = None,
        polling: Polling | None = None,
        retry: Retry | None = None,
        call_seconds: float = 30.0,
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
        self._closing: asyncio.Task[None] | None = None
        self._state = ClientState(
            transport,
            self._driver,
            types=types,
            polling=polling,
            retry=retry,
            clock=clock,
            call_seconds=call_seconds,
        )

    @overload
    async def start(
        self,
        target: str,
        message: object,
        *,
        response: type[Resp],
        metadata: type[Meta],
        request_id: str | uuid.UUID = "",
        validate_only: bool = False,
    ) -> AsyncOperationHandle[Resp, Meta]: ...

    @overload
    async def start(
        self,
        target: str,
        message: object,
        *,
        response: type[Resp],
        request_id: str | uuid.UUID = "",
        validate_only: bool = False,
    ) -> AsyncOperationHandle[Resp, dict[str, Any]]: ...

    @overload
    async def start(
        self,
        target: str,
        message: object,
        *,
        request_id: str | uuid.UUID = "",
        validate_only: bool = False,
    ) -> AsyncOperationHandle[dict[str, Any], dict[str, Any]]: ...

    async def start(
        self,
        target: str,
        message: object,
        *,
        response: type[Any] = dict,
        metadata: type[Any] = dict,
        request_id: str | uuid.UUID = "",
        validate_only: bool = False,
    ) -> AsyncOperationHandle[Any, Any]:
        """Call a method that returns an operation: POST ``message`` as JSON to the path ``target``.

        With ``request_id``, a UUID, the call is retried, and starts nothing twice (spec §9.1).

        ``message`` can also be a packed ``lro.AnyMessage`` or, except with gRPC, a dict, which is
        sent unchanged. Without a class for the response or the metadata you get a dict of its JSON
        without ``@type``; with ``lro.AnyMessage`` the message stays packed.

        Raises:
            DeclarationError: An argument cannot be used; nothing was sent.
            CallError: The method refused.
        """
        types = self._state.types
        request = _arguments.starting(types, target, message, request_id, validate_only)
        register(types, response=response, metadata=metadata, message=type(message))
        flow = handle_flows.start(self._state, request)
        return self._handle(await self._driver.run(flow), response, metadata)

    @overload
    def operation(
        self, operation: Operation | str, *, response: type[Resp], metadata: type[Meta]
    ) -> AsyncOperationHandle[Resp, Meta]: ...

    @overload
    def operation(
        self, operation: Operation | str, *, response: type[Resp]
    ) -> AsyncOperationHandle[Resp, dict[str, Any]]: ...

    @overload
    def operation(
        self, operation: Operation | str
    ) -> AsyncOperationHandle[dict[str, Any], dict[str, Any]]: ...

    def operation(
        self, operation: Operation | str, *, response: type[Any] = dict, metadata: type[Any] = dict
    ) -> AsyncOperationHandle[Any, Any]:
        """A handle for an operation, or for a name or token that was kept; makes no call.

        Raises:
            InvalidArgument: The token is not valid, or is one of another server.
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
        return await self._ask(_arguments.named(GetOperationRequest, request))

    async def describe(self, names: Iterable[str]) -> DescribeOperationsResponse:
        """What the server knows of operations: their methods, times, attempts (spec §3.11).

        With a call for each thousand names of one parent; what is not there is ``missing``.

        Raises:
            CallError: A call failed: UNIMPLEMENTED if the server does not describe operations,
                which none does over gRPC.
            DeclarationError: ``names`` is one text, or has one that is not a name.
        """
        return await self._driver.run(describing.describe_many(self._state, names))

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
        return AsyncPager(self, _arguments.listing(request, filter, page_size, page_token))

    async def cancel(self, request: str | CancelOperationRequest) -> None:
        """Ask for the work of an operation to stop (spec §3.6).

        Raises:
            CallError: The call failed.
        """
        await self._send(_arguments.named(CancelOperationRequest, request))

    async def delete(self, request: str | DeleteOperationRequest) -> None:
        """Remove the record of an operation (spec §3.5).

        Raises:
            CallError: The call failed.
        """
        await self._send(_arguments.named(DeleteOperationRequest, request))

    async def rerun(
        self, request: str | RerunOperationRequest, *, request_id: str | uuid.UUID = ""
    ) -> Operation:
        """Start the work of an operation that has ended again; the new operation (spec §3.12).

        Servers offer this to those whom they trust with it. With ``request_id``, a UUID, the call
        is retried, and starts nothing twice.

        Raises:
            CallError: The call failed: FAILED_PRECONDITION if the operation is in progress or its
                request is gone, UNIMPLEMENTED if the server does not offer it.
        """
        wanted = _arguments.rerunning(request, request_id)
        return await self._driver.run(handle_flows.rerun(self._state, wanted))

    async def wait(
        self, request: str | WaitOperationRequest, *, timeout: timedelta | float | None = None
    ) -> Operation:
        """One WaitOperation call: done, or the state when ``timeout`` (seconds) is over (spec §4).

        Raises:
            CallError: The call failed, with UNIMPLEMENTED where the server has no Wait.
        """
        return await self._ask(_arguments.waiting(request, timeout))

    async def close(self) -> None:
        """Free the connections, if they were made here; every wait here ends."""
        if self._closing is None:  # in a task of its own, as the scope may be cancelled
            self._closing = asyncio.Task(self._close(), loop=asyncio.get_running_loop())
        with shielded():
            await asyncio.shield(self._closing)

    async def _close(self) -> None:
        self._state.close()
        await self._driver.stop()
        await self._transport.close()

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def _handle(
        self, known: KnownOperation, response: type[Resp], metadata: type[Meta]
    ) -> AsyncOperationHandle[Resp, Meta]:
        return AsyncOperationHandle(
            known, response=response, metadata=metadata, state=self._state, driver=self._driver
        )

    async def _ask(self, request: Any) -> Operation:
        return single.read(await self._driver.run(single.single(self._state.config, request)))

    async def _send(self, request: Any) -> None:
        await self._driver.run(single.single(self._state.config, request))


class AsyncPager:
    """The operations of a list, fetched page by page as they are needed."""

    def __init__(self, client: AsyncClient, request: ListOperationsRequest) -> None:
        self._client = client
        self._request = request

    async def pages(
        self, timeout: timedelta | float | None = None
    ) -> AsyncGenerator[ListOperationsResponse, None]:
        """The raw pages, one call each.

        All are fetched within ``timeout`` from now, a timedelta or seconds; None sets no limit.

        Raises:
            CallError: A call failed, or the time is over (DEADLINE_EXCEEDED).
        """
        client = self._client
        within = _arguments.seconds(timeout)
        flow = single.pages(client._state.config, self._request, within)
        async with aclosing(client._driver.iterate(flow)) as steps:
            async for page in steps:
                yield page

    async def __aiter__(self) -> AsyncGenerator[Operation, None]:
        async with aclosing(self.pages()) as pages:
            async for page in pages:
                for operation in page.operations:
                    yield operation
