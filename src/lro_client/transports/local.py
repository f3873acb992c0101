"""Calls straight into a service of this process: for tests, and for servers that are clients."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import aclosing
from typing import Final

from lro import (
    Any,
    CancelOperationRequest,
    DeleteOperationRequest,
    GetOperationRequest,
    ListOperationsRequest,
    LroError,
    MethodNotSupported,
    Operation,
    Service,
    WaitOperationRequest,
)
from lro_client._calls import (
    BatchGetOperationsRequest,
    Call,
    Reply,
    StartRequest,
    WatchOperationsRequest,
)
from lro_client._errors import CallError

_MANY: Final = 1_000_000
"""Within a process a wait costs no connection, so that each may have a call for itself."""

_SIGN_SECONDS: Final = 10.0
"""How often a stream gives a sign of life."""


class LocalTransport:
    """Calls a service in this thread. ``caller`` is who its hooks are told is calling."""

    batches = True
    calls_at_once = _MANY

    def __init__(self, service: Service, *, caller: str = "") -> None:
        self._service = service
        self._caller = caller

    def send(self, call: Call) -> Reply:
        """The service's reply."""
        try:
            return self._send(call)
        except LroError as exc:
            status = self._service.types.status_of(exc, self._service.domain)
            raise CallError(call.verb, status) from exc

    def close(self) -> None:
        """Nothing to free: the service is not the transport's."""

    def _send(self, call: Call) -> Reply:
        service, caller, request = self._service, self._caller, call.request
        if isinstance(request, StartRequest):
            operation = service.start(
                request.target,
                self._message(request.message),
                request_id=request.request_id,
                validate_only=request.validate_only,
                caller=caller,
            )
            return Reply(operation)
        if isinstance(request, ListOperationsRequest):
            return Reply(service.list(request, caller=caller))
        if isinstance(request, WaitOperationRequest):
            return Reply(service.wait(request.name, request.timeout, caller=caller))
        if isinstance(request, CancelOperationRequest):
            service.cancel(request.name, caller=caller)
            return Reply(None)
        if isinstance(request, DeleteOperationRequest):
            service.delete(request.name, caller=caller)
            return Reply(None)
        if isinstance(request, GetOperationRequest):
            return Reply(service.get(request.name, caller=caller))
        if isinstance(request, BatchGetOperationsRequest):
            return Reply(service.batch_get(request.names, caller=caller))
        raise MethodNotSupported(call.verb)  # only an event loop can watch

    def _message(self, message: object) -> object:
        return self._service.types.unpack_any(message) if isinstance(message, Any) else message


class AsyncLocalTransport:
    """Calls a service from an event loop; a Wait holds no thread."""

    batches = True
    calls_at_once = _MANY

    def __init__(self, service: Service, *, caller: str = "") -> None:
        self._service = service
        self._caller = caller
        self._blocking = LocalTransport(service, caller=caller)

    async def send(self, call: Call) -> Reply:
        """The service's reply."""
        request = call.request
        if not isinstance(request, WaitOperationRequest):
            return await asyncio.to_thread(self._blocking.send, call)
        try:
            found = await self._service.await_(request.name, request.timeout, caller=self._caller)
        except LroError as exc:
            status = self._service.types.status_of(exc, self._service.domain)
            raise CallError(call.verb, status) from exc
        return Reply(found)

    async def stream(self, call: Call, sink: Callable[[Operation | str | None], object]) -> None:
        """Give ``sink`` each operation that has changed, or the name of one that is gone."""
        assert isinstance(call.request, WatchOperationsRequest)
        try:
            watching = await self._service.watch(call.request.names, caller=self._caller)
            async with aclosing(watching.batches(_SIGN_SECONDS)) as batches:
                async for batch in batches:
                    for one in batch:
                        sink(one if isinstance(one, Operation) else one.name)
                    sink(None)
        except LroError as exc:
            status = self._service.types.status_of(exc, self._service.domain)
            raise CallError(call.verb, status) from exc

    async def close(self) -> None:
        """Nothing to free: the service is not the transport's."""
