"""Calls straight into a service of this process: for tests, and for servers that are clients."""

from __future__ import annotations

import asyncio

from lro import (
    CancelOperationRequest,
    DeleteOperationRequest,
    GetOperationRequest,
    ListOperationsRequest,
    LroError,
    MethodNotSupported,
    Service,
    WaitOperationRequest,
)
from lro_client._calls import Call, Reply, StartRequest
from lro_client._errors import CallError


class LocalTransport:
    """Calls a service in this thread. ``caller`` is who its hooks are told is calling."""

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
                request.message,
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
        raise MethodNotSupported(call.verb)  # an extension of HTTP (spec §3.11)


class AsyncLocalTransport:
    """Calls a service from an event loop; a Wait holds no thread."""

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

    async def close(self) -> None:
        """Nothing to free: the service is not the transport's."""
