"""Ways to break the handmade gRPC server: changes to its servicer, and interceptors."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final, TypeAlias

import attrs
import grpc
from google.longrunning import operations_proto_pb2 as pb
from google.protobuf.empty_pb2 import Empty
from google.rpc.code_pb2 import Code

from tests.conform.handmade import DETAILS, Operations, Refused

Change: TypeAlias = Callable[[Operations], None]
"""Breaks a servicer."""


@attrs.frozen
class Handles(grpc.ServerInterceptor):
    """Handles the bytes of a method's calls; ``handle`` can forward them to the server."""

    method: str
    handle: Callable[[bytes, Any, Callable[[bytes], bytes]], bytes]

    def intercept_service(self, continuation: Any, call: Any) -> Any:
        inner = continuation(call)
        if not call.method.endswith(f"/{self.method}"):
            return inner

        def behaviour(payload: bytes, context: Any) -> bytes:
            def forward(payload: bytes) -> bytes:
                reply = inner.unary_unary(inner.request_deserializer(payload), context)
                return bytes(inner.response_serializer(reply))

            return self.handle(payload, context, forward)

        return grpc.unary_unary_rpc_method_handler(behaviour)


def refuses(trailers: Callable[[Refused], list[bytes]], message: str = "{}") -> Change:
    """Refuse calls with these trailers, and with a message made from this format."""

    def refuse(context: Any, error: Refused) -> None:
        context.set_trailing_metadata([(DETAILS, one) for one in trailers(error)])
        context.abort(grpc.StatusCode[Code.Name(error.code)], message.format(error.message))

    return lambda servicer: setattr(servicer, "refuse", refuse)


def reads(change: Callable[[Any], object]) -> Change:
    """Change operations when they are read."""

    def broke(servicer: Operations) -> None:
        read = servicer._read

        def changed(name: str) -> Any:
            operation = read(name)
            change(operation)
            return operation

        servicer._read = changed  # type: ignore[method-assign]

    return broke


def calls(method: str, handle: Callable[[Any, Any, Callable[[Any, Any], Any]], Any]) -> Change:
    """Handle the calls of a method; ``handle`` can forward them to the servicer."""

    def broke(servicer: Operations) -> None:
        inner = getattr(servicer, method)
        setattr(servicer, method, lambda request, context: handle(request, context, inner))

    return broke


def lists(asks: Callable[[Any], object], gives: Callable[[Any], object] = id) -> Change:
    """Change list requests before they are read, and pages before they are sent."""

    def handle(request: Any, context: Any, forward: Callable[[Any, Any], Any]) -> Any:
        asks(request)
        page = forward(request, context)
        gives(page)
        return page

    return calls("ListOperations", handle)


def status(error: Refused, **changes: Any) -> bytes:
    return bytes(attrs.evolve(error, **changes).status.SerializeToString())


def broken_info(error: Refused) -> list[bytes]:
    found = error.status
    found.details[0].value = b"\xff"
    return [found.SerializeToString()]


def unknown_that_crash(servicer: Operations) -> None:
    read = servicer._read
    servicer._read = lambda name: read(servicer._works[name].operation.name)  # type: ignore[method-assign]


def too_short(request: Any, context: Any, forward: Callable[[Any, Any], Any]) -> Any:
    if request.timeout.seconds > context.time_remaining():
        context.abort(grpc.StatusCode.FAILED_PRECONDITION, "the deadline is too short")
    return forward(request, context)


def outlasting(request: Any, context: Any, forward: Callable[[Any, Any], Any]) -> Any:
    time.sleep(1.5)
    return forward(request, context)


def known_alone(payload: bytes, context: Any, forward: Callable[[bytes], bytes]) -> bytes:
    request = pb.GetOperationRequest.FromString(payload)
    request.DiscardUnknownFields()
    if request.SerializeToString() != payload:
        context.abort(grpc.StatusCode.INVALID_ARGUMENT, "a field is not known")
    return forward(payload)


def breaks_for_good() -> Handles:
    seen: list[bytes] = []

    def handle(payload: bytes, context: Any, forward: Callable[[bytes], bytes]) -> bytes:
        seen.append(payload)
        if b"\xff\xff\xff" in seen:
            context.abort(grpc.StatusCode.UNAVAILABLE, "broken")
        return forward(payload)

    return Handles("GetOperation", handle)


GRPC_FAULTS: Final[dict[str, list[Change | Handles]]] = {
    "grpc.status-details": [
        refuses(lambda error: [status(error, code=Code.INTERNAL)]),
        refuses(lambda error: [status(error)], "{}!"),
        refuses(lambda error: [status(error)] * 2),
    ],
    "grpc.status-details errors.error-info": [refuses(lambda _: [b"\xff\xff"])],
    "errors.error-info": [refuses(broken_info)],
    "errors.error-info errors.message": [refuses(lambda _: [], "")],
    "names.unknown errors.no-defect": [unknown_that_crash],
    "names.empty": [
        calls(
            "GetOperation",
            lambda request, context, forward: (
                forward(request, context) if request.name else pb.Operation(name="operations/x")
            ),
        )
    ],
    "grpc.deadline": [
        calls(
            "WaitOperation",
            lambda request, context, forward: (
                setattr(context, "time_remaining", lambda: None) or forward(request, context)
            ),
        ),
        calls("WaitOperation", too_short),
    ],
    "result.success": [reads(lambda one: one.done and one.ClearField("response"))],
    "result.none-before-done": [reads(lambda one: one.done or one.response.Pack(Empty()))],
    "result.error-code": [
        reads(lambda one: one.HasField("error") and one.error.ClearField("code"))
    ],
    "any.types": [reads(lambda one: one.metadata.ClearField("type_url"))],
    "pages.bad-token": [lists(lambda one: one.ClearField("page_token"))],
    "pages.walk": [lists(id, lambda one: one.ClearField("next_page_token"))],
    "pages.size": [lists(lambda one: setattr(one, "page_size", min(one.page_size, 0)))],
    "delete.gone": [calls("DeleteOperation", lambda *_: Empty())],
    "wait.timeout": [calls("WaitOperation", outlasting)],
    "grpc.unknown-method": [Handles("LroConformUnknown", lambda *_: b"")],
    "grpc.malformed": [
        Handles(
            "GetOperation",
            lambda payload, _, forward: b"" if payload == b"\xff\xff\xff" else forward(payload),
        ),
        breaks_for_good(),
    ],
    "grpc.unknown-field": [Handles("GetOperation", known_alone)],
    "replies.readable": [Handles("ListOperations", lambda *_: b"\xff\xff\xff")],
    "cancel.empty": [
        Handles("CancelOperation", lambda *_: pb.Operation(name="x").SerializeToString())
    ],
}
"""All ways to break the server, by the ids of the checks that must fail."""
