"""Transports that call a service in this process, for tests and for code inside the server."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import aclosing
from typing import Any, Final

import lro
from lro import AnyMessage, LroError, Operation
from lro.errors import MethodNotSupported
from lro.wire import (
    CancelOperationRequest,
    DeleteOperationRequest,
    GetOperationRequest,
    ListOperationsRequest,
    RerunOperationRequest,
    WaitOperationRequest,
)
from lro_client._errors import CallError, check
from lro_client._flow.steps import (
    BatchGetOperationsRequest,
    Call,
    Reply,
    StartRequest,
    WatchOperationsRequest,
)

__all__ = ["AsyncLocalTransport", "LocalTransport"]

_MANY: Final = 1_000_000
"""Maximum number of calls at once: in practice, there is no limit.

Within a process a call needs no connection, so each Wait can be a separate call.
"""

_SIGN_SECONDS: Final = 10.0
"""Seconds between two keep-alives of a stream."""


def _check(service: object, caller: object) -> None:
    check("service", service, "an lro.Service", fine=isinstance(service, lro.Service))
    fine = isinstance(caller, str | int) and not isinstance(caller, bool)
    check("caller", caller, 'a text or a whole number, "" for a caller without a name', fine=fine)


class LocalTransport:
    """Calls a service in the current thread.

    ``caller`` is the name that the service's hooks receive, a text or a whole number.

    Raises:
        DeclarationError: ``service`` is not a Service, or its ``authorize`` is async.
    """

    batches = True
    calls_at_once = _MANY

    def __init__(self, service: lro.Service, *, caller: str | int = "") -> None:
        _check(service, caller)
        service.edges.access.check_plain("LocalTransport")
        self._service = service
        self._caller = caller

    def send(self, call: Call) -> Reply:
        """Call the service, and return its reply.

        Raises:
            CallError: The call failed.
        """
        service, request = self._service, call.request
        try:
            if isinstance(request, WaitOperationRequest):
                return Reply(service.wait(request.name, request.timeout, caller=self._caller))
            verb, arguments = _wanted(service, call)
            return Reply(getattr(service, verb)(**arguments, caller=self._caller))
        except LroError as exc:
            status = service.types.status_of(exc, service.domain)
            raise CallError(call.verb, status) from exc

    def close(self) -> None:
        """Do nothing: the transport does not own the service."""


def _wanted(service: lro.Service, call: Call) -> tuple[str, dict[str, Any]]:
    """Return the service's method for a call, and its arguments without the caller."""
    request = call.request
    if isinstance(request, StartRequest):
        return "start", {
            "full_name": request.target,
            "request": _message(service, request),
            "request_id": request.request_id,
            "validate_only": request.validate_only,
        }
    if isinstance(request, ListOperationsRequest):
        return "list", {"request": request, "view": call.view}
    if isinstance(request, CancelOperationRequest):
        return "cancel", {"name": request.name}
    if isinstance(request, DeleteOperationRequest):
        return "delete", {"name": request.name}
    if isinstance(request, RerunOperationRequest):
        return "rerun", {"name": request.name, "request_id": request.request_id}
    if isinstance(request, GetOperationRequest):
        return "get", {"name": request.name, "view": call.view}
    if isinstance(request, BatchGetOperationsRequest):
        return "batch_get", {"names": request.names, "view": call.view}
    raise MethodNotSupported(call.verb)  # Watch needs an event loop


def _message(service: lro.Service, request: StartRequest) -> object:
    """Return the message of a start. A dict is read as JSON, as in a call over HTTP."""
    message, spec = request.message, service.edges.specs.get(request.target)
    if isinstance(message, AnyMessage):
        return service.types.unpack_any(message)
    if isinstance(message, Mapping) and spec is not None:
        return service.types.load(dict(message), spec.request)
    return message


class AsyncLocalTransport:
    """Calls a service from an event loop. A Wait does not block a thread.

    Raises:
        DeclarationError: ``service`` is not a Service.
    """

    batches = True
    calls_at_once = _MANY

    def __init__(self, service: lro.Service, *, caller: str | int = "") -> None:
        _check(service, caller)
        self._service = service
        self._caller = caller

    async def send(self, call: Call) -> Reply:
        """Call the service, and return its reply.

        Raises:
            CallError: The call failed.
        """
        service, request, caller = self._service, call.request, self._caller
        try:
            if isinstance(request, WaitOperationRequest):
                return Reply(await service.wait_async(request.name, request.timeout, caller=caller))
            verb, arguments = _wanted(service, call)
            return Reply(await getattr(service, f"{verb}_async")(**arguments, caller=caller))
        except LroError as exc:
            status = service.types.status_of(exc, service.domain)
            raise CallError(call.verb, status) from exc

    async def stream(self, call: Call, sink: Callable[[Operation | str | None], object]) -> None:
        """Call ``sink`` with each operation that changed, or the name of a missing operation.

        Raises:
            CallError: The call failed.
        """
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
        """Do nothing: the transport does not own the service."""
