"""The RPCs of the gRPC edge, for servers with threads and with asyncio (spec §12)."""

from __future__ import annotations

import abc
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, Generic, Protocol, TypeAlias, TypeVar

import attrs
from google.longrunning import operations_proto_pb2 as pb

from lro._base.arguments import check_instance, check_plain_function
from lro._base.errors import OperationNotFound, RequestTooLarge, ResourceExhausted, Unavailable
from lro._engine.access import INTERFACE, Hook, application_call, ask_caller
from lro._engine.flow import Flow, InThreads, flow_of
from lro._engine.limits import ReplyReservation
from lro._engine.listing import Listing
from lro._engine.methods import Method
from lro._engine.service import Service
from lro._engine.starting import StartSettings
from lro._http import exchange as http
from lro._http.exchange import Wait, make_large
from lro._http.starts import start_of_size
from lro._model.operation import Operation, is_small
from lro.grpc._messages import (
    Answer,
    OperationWriter,
    read_list,
    read_name,
    read_start,
    read_wait,
    refusal,
)

Req = TypeVar("Req")

DEFAULT_MAX_REQUEST: Final = 1024 * 1024

MAX_PAGE: Final = 4 * 1024 * 1024
"""Maximum bytes of a page with several operations: the default limit of gRPC clients."""

SERVICE: Final = "google.longrunning.Operations"

Authenticate: TypeAlias = http.Authenticate
"""The hook that returns the caller's name for the call's metadata (keys in lower case).

A function with two required arguments also gets the call's ``grpc.ServicerContext``. The rules are
those of ``lro.http.Authenticate``. Binary metadata (``-bin``) is left out. An asyncio server calls
plain functions in a thread, and awaits coroutine functions; a threaded server refuses coroutine
functions.
"""

Exchange: TypeAlias = Flow[Answer]
"""The flow of steps that answers a call, like the flows of :mod:`lro.http`."""


class Context(Protocol):
    """The part of a call's context that both threaded and asyncio servers offer."""

    def invocation_metadata(self) -> Iterable[tuple[str, str | bytes]] | None:
        """The metadata that the caller sent."""
        ...

    def time_remaining(self) -> float | None:
        """Seconds to the deadline; None without a deadline."""
        ...


@attrs.frozen(kw_only=True)
class StartMethod(Generic[Req]):
    """A method that callers can start over gRPC.

    ``parent`` takes the request and the call's metadata (keys in lower case), and returns the
    parent of the new operation. ``metadata`` takes the request and returns the first metadata.
    """

    method: Method[Req, Any, Any]
    parent: Callable[[Req, Mapping[str, str]], str] | None = None
    metadata: Callable[[Req], object] | None = None

    def __attrs_post_init__(self) -> None:
        check_instance("method", self.method, Method, "a method of a service")
        for name, function in (("parent", self.parent), ("metadata", self.metadata)):
            if function is not None:
                check_plain_function(name, function)


class Rpc(abc.ABC):
    """One RPC of the edge. ``holds`` is True if the RPC waits for an operation."""

    def __init__(
        self,
        service: Service,
        name: str,
        writer: OperationWriter,
        authenticate: Hook | None,
        max_request: int,
    ) -> None:
        self.service = service
        self.name = name
        self.holds = False
        self._writer = writer
        self._hook = authenticate
        self._max_request = max_request

    def exchange(self, payload: bytes, context: Context, most: float | None = None) -> Exchange:
        """Answer a call; every failure becomes a refusal.

        ``most`` is the maximum number of seconds to wait for an operation.
        """
        try:
            return (yield from self._answer(payload, context, most))
        except Exception as exc:
            return refusal(exc, self.service, asked=self.name)

    @abc.abstractmethod
    def _answer(self, payload: bytes, context: Context, most: float | None, /) -> Exchange: ...

    def _caller(self, context: Context) -> Flow[str]:
        if self._hook is None:
            return ""
        return (yield from ask_caller(self._hook, texts_of(context), context))

    def _check_size(self, payload: bytes) -> None:
        if len(payload) > self._max_request:
            raise RequestTooLarge("request", f"must have at most {self._max_request} bytes")

    def _shown(self, operation: Operation, *, started: bool = False) -> Exchange:
        """Reply with an operation; a large operation is read again when a large reply is allowed.

        The caller can see the operation: this is not checked again. Callers must not keep the
        operation, so that it is freed while the call waits for that.
        If ``started``, the call started the operation, and succeeds even if that read fails.
        """
        if is_small(operation):
            return self._writer.operation(operation)
        bare = Operation(name=operation.name)
        del operation
        try:
            return (
                yield from make_large(
                    self.service,
                    lambda _: self._writer.operation(
                        self.service.edges.access.read(bare.name, None)
                    ),
                    self.service.edges.limits.page_bytes,
                )
            )
        except (OperationNotFound, ResourceExhausted, Unavailable):
            if not started:
                raise
            return self._writer.operation(bare)


def texts_of(context: Context) -> dict[str, str]:
    """Return the text metadata of a call; the values of a repeated key are joined by commas."""
    found: dict[str, str] = {}
    for key, value in context.invocation_metadata() or ():
        if isinstance(value, str):
            name = key.lower()
            found[name] = f"{found[name]}, {value}" if name in found else value
    return found


class OperationsRpc(Rpc):
    """One of the five verbs over operations (spec §3)."""

    def __init__(
        self,
        service: Service,
        verb: str,
        writer: OperationWriter,
        authenticate: Hook | None = None,
        max_request: int = DEFAULT_MAX_REQUEST,
    ) -> None:
        super().__init__(service, f"{SERVICE}/{verb}", writer, authenticate, max_request)
        self.holds = verb == "WaitOperation"
        self._verb = verb
        self._verbs: Mapping[str, Callable[[bytes, float | None, str], Exchange]] = {
            "GetOperation": self._get,
            "ListOperations": self._list,
            "DeleteOperation": self._delete,
            "CancelOperation": self._cancel,
            "WaitOperation": self._wait,
        }

    def _answer(self, payload: bytes, context: Context, most: float | None, /) -> Exchange:
        self.service.edges.access.require(self._verb)
        caller = yield from self._caller(context)
        self._check_size(payload)
        left = context.time_remaining() if self.holds else None
        if most is not None:
            left = most if left is None else min(left, most)
        return (yield from self._verbs[self._verb](payload, left, caller))

    def _get(self, payload: bytes, _: float | None, caller: str) -> Exchange:
        name = read_name(pb.GetOperationRequest, payload)
        found = flow_of(self.service.get)(name, caller=caller)
        return (yield from self._shown((yield from found)))

    def _list(self, payload: bytes, _: float | None, caller: str) -> Exchange:
        wanted = read_list(payload)
        # Use none of the few threads that make replies, which a blocking hook must not occupy.
        begin = self.service.edges.begin_list(wanted, caller=caller)
        listing: Listing = yield InThreads(begin)

        def listed(reserved: ReplyReservation) -> bytes:
            most = min(reserved.bytes, MAX_PAGE)
            while True:
                found, token = listing.page(most, self._writer.operations)
                written = self._writer.page(found, token)
                # A message may be longer in binary form than in JSON.
                if len(written) <= MAX_PAGE or len(found) < 2:
                    return written
                most //= 2

        return (yield from make_large(self.service, listed, self.service.edges.limits.least_bytes))

    def _delete(self, payload: bytes, _: float | None, caller: str) -> Exchange:
        name = read_name(pb.DeleteOperationRequest, payload)
        yield from flow_of(self.service.delete)(name, caller=caller)
        return b""

    def _cancel(self, payload: bytes, _: float | None, caller: str) -> Exchange:
        name = read_name(pb.CancelOperationRequest, payload)
        yield from flow_of(self.service.cancel)(name, caller=caller)
        return b""

    def _wait(self, payload: bytes, left: float | None, caller: str) -> Exchange:
        wait = Wait(self.service, read_wait(payload), left, caller)
        return (yield from self._shown((yield wait)))


class StartRpc(Rpc):
    """The RPC of a method that callers can start; the reply is an Operation."""

    def __init__(
        self,
        service: Service,
        name: str,
        writer: OperationWriter,
        start: StartMethod[Any] | None = None,
        authenticate: Hook | None = None,
        max_request: int = DEFAULT_MAX_REQUEST,
    ) -> None:
        super().__init__(service, name, writer, authenticate, max_request)
        self._parent = start.parent if start else None
        self._metadata = start.metadata if start else None
        self._request = service.edges.specs[name].request
        self._begin = service.edges.start_flow(name)

    def _answer(self, payload: bytes, context: Context, _: float | None, /) -> Exchange:
        caller = yield from self._caller(context)
        self._check_size(payload)
        flow = start_of_size(self.service, self._start(payload, context, caller), len(payload))
        return (yield from self._shown((yield from flow), started=True))

    def _start(self, payload: bytes, context: Context, caller: str) -> Flow[Operation]:
        message, beside = read_start(payload, self._request, self.service.types)
        parent: Any = ""
        if self._parent is not None:
            parent = yield application_call("parent", self._parent, message, texts_of(context))
        metadata: object = None
        if self._metadata is not None:
            metadata = yield application_call("metadata", self._metadata, message)
        options = StartSettings(
            request_id=beside.request_id,
            validate_only=beside.validate_only,
            parent=parent,
            metadata=metadata,
            caller=caller,
            headers=texts_of(context),
            sent=lambda: payload,
            only_uuid=True,
        )
        return (yield from self._begin(message, options))


def operations_rpcs(service: Service, **options: Any) -> dict[str, Rpc]:
    """Return the five verbs by their paths; ``options`` are those of :class:`OperationsRpc`."""
    return {f"/{SERVICE}/{verb}": OperationsRpc(service, verb, **options) for verb in INTERFACE}
