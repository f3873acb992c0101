"""The blocking client."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
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
from lro_client._calls import StartRequest, Transport
from lro_client._drive import Driver
from lro_client._handles import HandleBase, Meta, Resp, Update, register
from lro_client._policy import Polling, Retry
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
    each single call.
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
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._types = types or TypeRegistry()
        self._setting = _requests.setting(polling, retry, clock, call_seconds)
        if transport is None:
            transport = HttpTransport(
                http or httpx.Client(),
                base_url=base_url,
                routes=routes,
                types=self._types,
                own=http is None,
            )
        self._transport = transport
        self._driver = Driver(transport, sleep)

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
        reply = self._driver.run(_flows.single(self._setting, request))
        return self.operation(_flows.read(reply), response=response, metadata=metadata)

    def operation(
        self,
        operation: Operation | str,
        *,
        response: type[Resp],
        metadata: type[Meta],
    ) -> OperationHandle[Resp, Meta]:
        """A handle for an operation, or for a name that was kept; asks the server nothing."""
        if isinstance(operation, str):
            operation = Operation(name=operation)
        register(self._types, response, metadata)
        return OperationHandle(
            operation, response=response, metadata=metadata, types=self._types, client=self
        )

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

    def close(self) -> None:
        """Free the connections, if they were made here."""
        self._transport.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _ask(self, request: Anything) -> Operation:
        return _flows.read(self._driver.run(_flows.single(self._setting, request)))

    def _tell(self, request: Anything) -> None:
        self._driver.run(_flows.single(self._setting, request))


class Pager:
    """The operations of a list, fetched page by page as they are needed."""

    def __init__(self, client: Client, request: ListOperationsRequest) -> None:
        self._client = client
        self._request = request

    def pages(self) -> Iterator[ListOperationsResponse]:
        """The raw pages, one call each."""
        client = self._client
        yield from client._driver.walk(_flows.pages(client._setting, self._request))

    def __iter__(self) -> Iterator[Operation]:
        for page in self.pages():
            yield from page.operations


class OperationHandle(HandleBase[Resp, Meta]):
    """An operation: cached values as properties, verbs as methods. Only verbs ask the server."""

    def __init__(
        self,
        operation: Operation,
        *,
        response: type[Resp] | None,
        metadata: type[Meta] | None,
        types: TypeRegistry,
        client: Client,
    ) -> None:
        super().__init__(operation, response=response, metadata=metadata, types=types)
        self._client = client

    def refresh(self) -> Operation:
        """Ask for the latest state, once.

        Raises:
            CallError: The call failed.
        """
        return self._seen(self._client.get(self.name))

    def wait(self, timeout: timedelta | float | None = None) -> Operation:
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
            client._driver.run(
                _flows.until_done(client._setting, self.name, known, _requests.seconds(timeout))
            )
        )

    def result(self, timeout: timedelta | float | None = None) -> Resp:
        """Wait as :meth:`wait` does, then give the response.

        Raises:
            OperationFailed: The operation ended with an error.
            OperationCancelled: It was cancelled.
            DecodingError: The response is not of the declared type.
            PollTimeout, OperationGone, CallError: As for :meth:`wait`.
        """
        self.wait(timeout)
        return self._result()

    def updates(
        self, timeout: timedelta | float | None = None, *, every: float = 1.0
    ) -> Iterator[Update[Meta]]:
        """Each changed state until the operation is done, looked for at most ``every`` seconds.

        Raises:
            PollTimeout, OperationGone, CallError: As for :meth:`wait`.
        """
        client = self._client
        flow = _flows.updates(
            client._setting, self.name, self._operation, _requests.seconds(timeout), every
        )
        for operation in client._driver.walk(flow):
            yield Update(self, self._seen(operation))

    def cancel(self) -> None:
        """Ask for the work to stop; what becomes of it, :meth:`result` tells.

        Raises:
            CallError: The call failed.
        """
        self._client.cancel(self.name)

    def delete(self) -> None:
        """Remove the record; does not stop the work.

        Raises:
            CallError: The call failed.
        """
        self._client.delete(self.name)
