"""The client that blocks, its handles, groups and pagers."""

# Generated from async_client.py by `python -m tests.blocking_client`: edit that file instead.

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Generic, Unpack, overload

from lro import Operation, TypeRegistry
from lro.wire import (
    BatchGetOperationsResponse,
    CancelOperationRequest,
    DeleteOperationRequest,
    GetOperationRequest,
    ListOperationsRequest,
    ListOperationsResponse,
    RerunOperationRequest,
    View,
    WaitOperationRequest,
)
from lro_client import _arguments
from lro_client._client import batches, group_flows, handle_flows
from lro_client._client.group_flows import GroupResult
from lro_client._client.handles import (
    HandleBase,
    KnownOperation,
    Meta,
    Resp,
    Update,
    known,
    register,
)
from lro_client._client.state import ClientOptions, ClientState, config_of, credentials_in
from lro_client._flow import single
from lro_client._flow.drivers import Driver
from lro_client._flow.steps import Transport
from lro_client.transports._credentials import refuse_credentials
from lro_client.transports.http import HttpTransport, Routes

if TYPE_CHECKING:
    import uuid
    from concurrent.futures import Future

    from lro_client.filters import Expression
    from lro_client.transports.http import HttpClient


class OperationHandle(HandleBase[Resp, Meta]):
    """A handle of an operation.

    Its properties return the last known state, and its methods call the server.

    As a context manager, the handle cancels the operation if it is not done when the block is left,
    for whatever reason. Nothing else cancels it: if you stop waiting, or the process ends, the
    operation continues.
    """

    __slots__ = ("_driver",)

    def __init__(
        self,
        known: KnownOperation,
        *,
        response: type[Resp] | None,
        metadata: type[Meta] | None,
        state: ClientState,
        driver: Driver,
    ) -> None:
        super().__init__(known, response=response, metadata=metadata, state=state)
        self._driver = driver

    def refresh(self) -> Operation:
        """Read the latest state with one call.

        Raises:
            CallError: The call failed.
        """
        self._check_exists()
        flow = single.single(self._state.config, GetOperationRequest(self.name))
        return self._take_state(single.read(self._driver.run(flow)))

    def wait(self, timeout: timedelta | float | None = None) -> Operation:
        """Wait until the operation is done, and return its last state, whatever the outcome.

        ``timeout`` is a timedelta or a number of seconds from now, accurate to 50 ms. With None the
        method waits without a limit (spec §11.4).

        Raises:
            PollTimeout: The timeout expired, but the operation continues.
            OperationGone: The operation was deleted or has expired.
            CallError: A poll failed with an error that is not retried.
        """
        limit = _arguments.seconds(timeout)
        return self._driver.run(handle_flows.wait(self._state, self, limit))

    def result(self, timeout: timedelta | float | None = None) -> Resp:
        """Wait as :meth:`wait` does, and return the response.

        Raises:
            OperationFailed: The operation ended with an error.
            OperationCancelled: The operation was cancelled.
            DecodingError: The response is not of the declared type.
            PollTimeout, OperationGone, CallError: As for :meth:`wait`.
        """
        limit = _arguments.seconds(timeout)
        return self._driver.run(handle_flows.result(self._state, self, limit))

    def future(self) -> Future[Resp]:
        """Return the result as a future of the standard library. No thread waits for it.

        Callbacks run once each, in a thread. The future gets the outcome of
        :meth:`result`, or an error when the client is closed. Cancelling the future stops the wait,
        not the operation.
        """
        return handle_flows.future(self._state, self)

    def updates(
        self, timeout: timedelta | float | None = None, *, every: float | None = None
    ) -> Iterator[Update[Meta]]:
        """Yield each changed state until the operation is done.

        ``every`` is the maximum delay of a change, in seconds. By default, the delay is at most a
        second if the server has WaitOperation. Without WaitOperation, the client polls as
        :meth:`wait` does, with the pauses of ``Polling`` (spec §11.2).

        Raises:
            DeclarationError: ``every`` is not a number of seconds above 0.
            PollTimeout, OperationGone, CallError: As for :meth:`wait`.
        """
        limit = _arguments.seconds(timeout)
        flow = handle_flows.updates(self._state, self, limit, every)
        for operation in self._driver.iterate(flow):
            yield Update(self, self._take_state(operation))

    def cancel(self) -> None:
        """Ask for the work to stop. :meth:`result` shows whether the work stopped.

        Raises:
            CallError: The call failed.
        """
        self._driver.run(handle_flows.cancel(self._state, self))

    def cancel_and_wait(self, timeout: timedelta | float | None = None) -> Operation:
        """Ask for the work to stop, and wait until the operation ends, cancelled or not.

        Raises:
            PollTimeout: The timeout expired before the work stopped.
            OperationGone, CallError: As for :meth:`cancel` and :meth:`wait`.
        """
        limit = _arguments.seconds(timeout)
        return self._driver.run(handle_flows.cancel_and_wait(self._state, self, limit))

    def delete(self) -> None:
        """Remove the operation's record, without stopping the work.

        Raises:
            CallError: The call failed.
        """
        self._driver.run(handle_flows.delete(self._state, self))

    def __enter__(self) -> OperationHandle[Resp, Meta]:
        return self

    def __exit__(self, *_: object) -> None:
        self._driver.leave(handle_flows.cancel_unfinished(self._state, [self]))


class Group(Generic[Resp, Meta]):
    """Operations that are waited for together, with few calls even for thousands of operations.

    The client uses Watch or BatchGet if the server offers them. Otherwise it lists operations by
    name, or polls each operation separately over a few connections.

    As a context manager, the group cancels the operations that are not done when the block is left,
    for whatever reason.
    """

    def __init__(
        self, handles: Iterable[OperationHandle[Resp, Meta]], *, state: ClientState, driver: Driver
    ) -> None:
        found = group_flows.members(handles)
        self.handles: tuple[OperationHandle[Resp, Meta], ...] = found
        """The handles, in the order in which they were given."""
        self._state = state
        self._driver = driver

    def as_completed(
        self, timeout: timedelta | float | None = None
    ) -> Iterator[OperationHandle[Resp, Meta]]:
        """Yield the handles in the order in which their operations end.

        If an operation is gone or cannot be reached, its handle's ``result()`` raises the reason.

        Raises:
            GroupTimeout: The timeout expired. ``pending`` names the operations that are not done.
        """
        limit = _arguments.seconds(timeout)
        flow = group_flows.as_completed(self._state, self.handles, limit)
        yield from self._driver.iterate(flow)

    def wait(
        self, count: int | None = None, timeout: timedelta | float | None = None
    ) -> GroupResult[OperationHandle[Resp, Meta]]:
        """Wait until ``count`` operations have ended (None: all), or the timeout expires.

        Returns:
            The ``done`` handles, in the order in which they ended, and the ``pending`` handles.
        """
        limit = _arguments.seconds(timeout)
        return self._driver.run(group_flows.wait(self._state, self.handles, count, limit))

    def results(self, timeout: timedelta | float | None = None) -> list[Resp]:
        """Return all results, in the order of the handles. Raise the first failure at once.

        Raises:
            OperationFailed: An operation ended with an error.
            GroupTimeout: The timeout expired.
            OperationGone, CallError, DecodingError: As for a handle's ``result``.
        """
        limit = _arguments.seconds(timeout)
        flow = group_flows.results(self._state, self.handles, limit, collect=False)
        return self._driver.run(flow)

    def outcomes(self, timeout: timedelta | float | None = None) -> list[Resp | Exception]:
        """Return a result or an exception for each handle, in the order of the handles.

        Raises:
            GroupTimeout: The timeout expired.
        """
        limit = _arguments.seconds(timeout)
        flow = group_flows.results(self._state, self.handles, limit, collect=True)
        return self._driver.run(flow)

    def updates(self, timeout: timedelta | float | None = None) -> Iterator[Update[Meta]]:
        """Yield changed states until all operations have ended. A slow reader misses some states.

        Raises:
            GroupTimeout: The timeout expired.
        """
        limit = _arguments.seconds(timeout)
        flow = group_flows.updates(self._state, self.handles, limit)
        yield from self._driver.iterate(flow)

    def cancel(self) -> None:
        """Cancel all operations that are not done. Ignore operations that cannot be cancelled.

        All of the calls together take at most ``call_seconds``.
        """
        seconds = self._state.config.call_seconds
        flow = handle_flows.cancel_unfinished(self._state, self.handles, seconds)
        self._driver.run(flow)

    def __len__(self) -> int:
        return len(self.handles)

    def __enter__(self) -> Group[Resp, Meta]:
        return self

    def __exit__(self, *_: object) -> None:
        self._driver.leave(handle_flows.cancel_unfinished(self._state, self.handles))


class Client:
    """A client of any service that returns operations. It can be shared between threads.

    ``base_url`` is the service's address. ``http`` is your own ``httpx.Client``, with its
    base URL, certificates and proxies. ``transport`` replaces HTTP, for example with
    ``LocalTransport(service)``. ``routes`` are the paths of the verbs, and ``types`` is a
    registry of message classes. More options are ``polling`` and ``retry``, which are policies,
    ``call_seconds``, which is the timeout of each call, and ``clock``.

    Three options are sent with every request, and only to the origin of ``base_url``. ``headers``
    maps names to values. ``token`` is sent as ``Authorization: Bearer TOKEN``; a function is called
    before each request. ``auth`` is an ``httpx.Auth``, or a pair
    of user and password. ``token`` and ``auth`` exclude each other. A ``transport`` takes none of
    the three: it has options of its own.

    Raises:
        DeclarationError: An option is not valid, or two options contradict each other.
    """

    def __init__(
        self,
        base_url: str = "",
        *,
        http: HttpClient | None = None,
        transport: Transport | None = None,
        routes: Routes | None = None,
        types: TypeRegistry | None = None,
        sleep: Callable[[float], None] = time.sleep,
        **options: Unpack[ClientOptions],
    ) -> None:
        config = config_of(options)
        _arguments.check_optional("types", types, TypeRegistry)
        _arguments.check_function("sleep", sleep)
        types = types or TypeRegistry()
        sent = credentials_in(options)
        if transport is not None:
            _arguments.check_blocks("transport", transport, "LocalTransport(service)")
            refuse_credentials(sent)
        else:
            transport = HttpTransport(http, base_url=base_url, routes=routes, types=types, **sent)
        self._driver = Driver(transport, config.clock, sleep)
        self._state = ClientState(transport, self._driver, config, types)

    @overload
    def start(
        self,
        target: str,
        message: object,
        *,
        response: type[Resp],
        metadata: type[Meta],
        request_id: str | uuid.UUID = "",
        validate_only: bool = False,
    ) -> OperationHandle[Resp, Meta]: ...

    @overload
    def start(
        self,
        target: str,
        message: object,
        *,
        response: type[Resp],
        request_id: str | uuid.UUID = "",
        validate_only: bool = False,
    ) -> OperationHandle[Resp, dict[str, Any]]: ...

    @overload
    def start(
        self,
        target: str,
        message: object,
        *,
        metadata: type[Meta],
        request_id: str | uuid.UUID = "",
        validate_only: bool = False,
    ) -> OperationHandle[dict[str, Any], Meta]: ...

    @overload
    def start(
        self,
        target: str,
        message: object,
        *,
        request_id: str | uuid.UUID = "",
        validate_only: bool = False,
    ) -> OperationHandle[dict[str, Any], dict[str, Any]]: ...

    def start(
        self,
        target: str,
        message: object,
        *,
        response: type[Any] = dict,
        metadata: type[Any] = dict,
        request_id: str | uuid.UUID = "",
        validate_only: bool = False,
    ) -> OperationHandle[Any, Any]:
        """Call a method that returns an operation: POST ``message`` as JSON to the path ``target``.

        With a ``request_id``, the call is retried and never starts the work twice (spec §9.1). The
        id is a text of your own, such as ``"order-17"``. Over gRPC, for services of Google, and for
        messages that have a field ``request_id``, it must be a UUID, such as
        ``uuid.uuid5(uuid.NAMESPACE_URL, "order-17")``.

        ``message`` can also be a packed ``lro.AnyMessage`` or, except over gRPC, a dict that is
        sent unchanged. Without a class for the response or the metadata, you get the JSON as a
        dict, without ``@type``. With ``lro.AnyMessage``, the message stays packed.

        Raises:
            DeclarationError: An argument is not valid. Nothing was sent.
            CallError: The call failed.
        """
        types = self._state.types
        request = _arguments.starting(types, target, message, request_id, validate_only)
        register(types, response=response, metadata=metadata, message=type(message))
        flow = handle_flows.start(self._state, request)
        return self._handle(self._driver.run(flow), response, metadata)

    @overload
    def operation(
        self, operation: Operation | str, *, response: type[Resp], metadata: type[Meta]
    ) -> OperationHandle[Resp, Meta]: ...

    @overload
    def operation(
        self, operation: Operation | str, *, response: type[Resp]
    ) -> OperationHandle[Resp, dict[str, Any]]: ...

    @overload
    def operation(
        self, operation: Operation | str, *, metadata: type[Meta]
    ) -> OperationHandle[dict[str, Any], Meta]: ...

    @overload
    def operation(
        self, operation: Operation | str
    ) -> OperationHandle[dict[str, Any], dict[str, Any]]: ...

    def operation(
        self, operation: Operation | str, *, response: type[Any] = dict, metadata: type[Any] = dict
    ) -> OperationHandle[Any, Any]:
        """Return a handle for an operation, or for its name or token, without a call.

        Raises:
            InvalidArgument: The token is not valid, or belongs to another server.
            DeclarationError: The name is empty, a URL, or not a string.
        """
        register(self._state.types, response=response, metadata=metadata)
        return self._handle(known(operation, self._state.address), response, metadata)

    def group(self, handles: Iterable[OperationHandle[Resp, Meta]]) -> Group[Resp, Meta]:
        """Return a group that waits for all these operations with few calls."""
        return Group(handles, state=self._state, driver=self._driver)

    def get(self, request: str | GetOperationRequest, *, view: View = "BASIC") -> Operation:
        """Read the latest state of an operation by its name (spec §3.2).

        With the ``view`` FULL the operation has a ``description``: its method, times and attempts
        (spec §3.11). Servers of this library support that view over HTTP.

        Raises:
            CallError: The call failed, with NOT_FOUND if there is no such operation.
        """
        return self._ask(_arguments.named(GetOperationRequest, request), view)

    def batch_get(
        self, names: Iterable[str], *, view: View = "BASIC"
    ) -> BatchGetOperationsResponse:
        """Return the latest states of operations (spec §3.11).

        One call reads up to a thousand names of one parent. Names of operations that do not exist
        are in ``missing``. ``view`` is the same as for :meth:`get`.

        Raises:
            CallError: A call failed, with UNIMPLEMENTED over gRPC or if the server has no BatchGet.
            DeclarationError: ``names`` is a single string, or contains an invalid name.
        """
        return self._driver.run(batches.batch_get(self._state, names, view))

    def list(
        self,
        parent: str | ListOperationsRequest = "",
        filter: str | Expression = "",  # the name of the request's field
        *,
        page_size: int = 0,
        page_token: str = "",
        view: View = "BASIC",
    ) -> Pager:
        """List the operations of a parent that match an AIP-160 filter (spec §3.3, §11.9).

        The parent is a name such as ``projects/p/locations/us``, or the whole request. The filter
        is a string, or an expression of :mod:`lro_client.filters`. With the ``page_token`` of an
        earlier page, the list continues after that page. ``view`` is the same as for :meth:`get`.
        """
        return Pager(self, _arguments.listing(parent, filter, page_size, page_token), view)

    def cancel(self, request: str | CancelOperationRequest) -> None:
        """Ask for the work of an operation to stop (spec §3.6).

        Raises:
            CallError: The call failed.
        """
        self._send(_arguments.named(CancelOperationRequest, request))

    def delete(self, request: str | DeleteOperationRequest) -> None:
        """Remove the record of an operation (spec §3.5).

        Raises:
            CallError: The call failed.
        """
        self._send(_arguments.named(DeleteOperationRequest, request))

    def rerun(
        self, request: str | RerunOperationRequest, *, request_id: str | uuid.UUID = ""
    ) -> Operation:
        """Start the work of an ended operation again, and return the new operation (spec §3.12).

        Servers offer reruns only to callers whom they trust. An operation is rerun once: a repeated
        call returns the same new operation. With a ``request_id``, the call starts one more rerun
        for each id.

        Raises:
            CallError: The call failed, with FAILED_PRECONDITION if the operation is in progress or
                its request was deleted, or with UNIMPLEMENTED if the server offers no reruns.
        """
        wanted = _arguments.rerunning(request, request_id)
        return self._driver.run(handle_flows.rerun(self._state, wanted))

    def wait(
        self, request: str | WaitOperationRequest, *, timeout: timedelta | float | None = None
    ) -> Operation:
        """Make one WaitOperation call, which lasts ``timeout`` at most (spec §4).

        Return the state of the operation, done or not.

        Raises:
            CallError: The call failed, with UNIMPLEMENTED if the server has no Wait.
        """
        return self._ask(_arguments.waiting(request, timeout))

    def close(self) -> None:
        """End every wait, and close the connections unless you passed the HTTP client."""
        self._driver.shut_down(self._state.close)

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _handle(
        self, known: KnownOperation, response: type[Resp], metadata: type[Meta]
    ) -> OperationHandle[Resp, Meta]:
        return OperationHandle(
            known, response=response, metadata=metadata, state=self._state, driver=self._driver
        )

    def _ask(self, request: Any, view: View = "BASIC") -> Operation:
        flow = single.single(self._state.config, request, view=view)
        return single.read(self._driver.run(flow))

    def _send(self, request: Any) -> None:
        self._driver.run(single.single(self._state.config, request))


class Pager:
    """Iterates over the operations of a list. Pages are fetched when they are needed."""

    def __init__(self, client: Client, request: ListOperationsRequest, view: View) -> None:
        self._client = client
        self._request = request
        self._view: View = view

    def pages(self, timeout: timedelta | float | None = None) -> Iterator[ListOperationsResponse]:
        """Yield the pages, with one call for each page.

        ``timeout``, a timedelta or a number of seconds from now, limits all calls together.

        Raises:
            CallError: A call failed, or the timeout expired (DEADLINE_EXCEEDED).
        """
        client = self._client
        within = _arguments.seconds(timeout)
        flow = single.pages(client._state.config, self._request, within, self._view)
        yield from client._driver.iterate(flow)

    def __iter__(self) -> Iterator[Operation]:
        for page in self.pages():
            yield from page.operations
