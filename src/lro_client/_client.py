"""The blocking client."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
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
from lro_client._client_state import ClientState
from lro_client._flow import single
from lro_client._flow.drivers import Driver
from lro_client._flow.policy import Polling, Retry
from lro_client._flow.steps import Transport
from lro_client._group import Group
from lro_client._handles import Meta, Resp, known, register
from lro_client._journal import Journal
from lro_client._observer import KnownOperation
from lro_client._operation_handle import OperationHandle
from lro_client.filters import Expression
from lro_client.transports.http import HttpTransport, Routes

if TYPE_CHECKING:
    import uuid


class Client:
    """A client of any service that returns operations. Safe to share between threads.

    ``base_url`` is the service's address, ``http`` an ``httpx.Client`` to use instead of one made
    here (its base URL, headers, authentication and proxies are kept), ``transport`` something else
    than HTTP, such as ``LocalTransport(service)``. ``routes`` are the paths of the verbs, ``types``
    a registry of message classes, ``polling`` and ``retry`` the policies. ``call_seconds`` bounds
    each single call, ``journal`` keeps what was started across crashes.
    """

    def __init__(
        self,
        base_url: str = "",
        *,
        http: httpx.Client | None = None,
        transport: Transport | None = None,
        routes: Routes | None = None,
        types: TypeRegistry | None = None,
        polling: Polling | None = None,
        retry: Retry | None = None,
        call_seconds: float = 30.0,
        journal: Journal | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        _arguments.check_optional("types", types, TypeRegistry)
        _arguments.check_function("clock", clock)
        _arguments.check_function("sleep", sleep)
        types = types or TypeRegistry()
        if transport is not None:
            _arguments.check_blocks("transport", transport, "LocalTransport(service)")
        else:
            transport = HttpTransport(http, base_url=base_url, routes=routes, types=types)
        self._transport = transport
        self._driver = Driver(transport, clock, sleep)
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

    def start(
        self,
        target: str,
        message: object,
        *,
        response: type[Resp],
        metadata: type[Meta],
        request_id: str | uuid.UUID = "",
        validate_only: bool = False,
    ) -> OperationHandle[Resp, Meta]:
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
        return self._handle(self._driver.run(flow), response, metadata)

    def operation(
        self,
        operation: Operation | str,
        *,
        response: type[Resp],
        metadata: type[Meta],
    ) -> OperationHandle[Resp, Meta]:
        """A handle for an operation, or for a name or token that was kept; asks nobody.

        Raises:
            InvalidArgument: What looks like a token is none, or is one of another server.
            DeclarationError: It is empty, a URL, or something else than these.
        """
        register(self._state.types, response=response, metadata=metadata)
        return self._handle(known(operation, self._state.address), response, metadata)

    def group(self, handles: Iterable[OperationHandle[Resp, Meta]]) -> Group[Resp, Meta]:
        """Operations of this client to wait for together, with few calls for all of them."""
        return Group(handles, state=self._state, driver=self._driver)

    def get(self, request: str | GetOperationRequest) -> Operation:
        """The latest state of an operation, by name (spec §3.2).

        Raises:
            CallError: The call failed, with NOT_FOUND for a name that is not there.
        """
        return self._ask(_requests.named(GetOperationRequest, request))

    def list(
        self,
        request: str | ListOperationsRequest = "",
        filter: str | Expression = "",  # the field's name
        *,
        page_size: int = 0,
        page_token: str = "",
    ) -> Pager:
        """The operations of a parent that match an AIP-160 filter (spec §3.3, §11.9).

        Give the filter as text, or build it from values with :mod:`lro_client.filters`. With
        the ``page_token`` of an earlier page, it goes on after that.
        """
        return Pager(self, _requests.listing(request, filter, page_size, page_token))

    def cancel(self, request: str | CancelOperationRequest) -> None:
        """Ask for the work of an operation to stop (spec §3.6).

        Raises:
            CallError: The call failed.
        """
        self._tell(_requests.named(CancelOperationRequest, request))

    def delete(self, request: str | DeleteOperationRequest) -> None:
        """Remove the record of an operation (spec §3.5).

        Raises:
            CallError: The call failed.
        """
        self._tell(_requests.named(DeleteOperationRequest, request))

    def wait(
        self,
        request: str | WaitOperationRequest,
        *,
        timeout: timedelta | float | None = None,
    ) -> Operation:
        """One WaitOperation call: done, or the state when ``timeout`` (seconds) is over (spec §4).

        Raises:
            CallError: The call failed, with UNIMPLEMENTED where the server has no Wait.
        """
        return self._ask(_requests.waiting(request, timeout))

    def pending(
        self, *, response: type[Resp], metadata: type[Meta]
    ) -> Iterator[OperationHandle[Resp, Meta]]:
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
        for found in self._driver.walk(flow):
            yield self._handle(found, response, metadata)

    def close(self) -> None:
        """Free the connections, if they were made here; nobody waits here any more."""
        self._state.close()
        self._transport.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _handle(
        self,
        known: KnownOperation,
        response: type[Resp],
        metadata: type[Meta],
    ) -> OperationHandle[Resp, Meta]:
        return OperationHandle(
            known,
            response=response,
            metadata=metadata,
            state=self._state,
            driver=self._driver,
        )

    def _ask(self, request: Any) -> Operation:
        return single.read(self._driver.run(single.single(self._state.config, request)))

    def _tell(self, request: Any) -> None:
        self._driver.run(single.single(self._state.config, request))


class Pager:
    """The operations of a list, fetched page by page as they are needed."""

    def __init__(self, client: Client, request: ListOperationsRequest) -> None:
        self._client = client
        self._request = request

    def pages(self) -> Iterator[ListOperationsResponse]:
        """The raw pages, one call each."""
        client = self._client
        yield from client._driver.walk(single.pages(client._state.config, self._request))

    def __iter__(self) -> Iterator[Operation]:
        for page in self.pages():
            yield from page.operations
