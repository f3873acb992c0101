"""A peer over gRPC: grpcio's server for valid replies, and a frame proxy for invalid ones."""

from __future__ import annotations

import asyncio
from typing import Any, Final, NoReturn, TypeAlias

import attrs

from lro.errors import MissingExtra
from lro_conform.client._frames import (
    FramedConnection,
    FrameProxy,
    data_frame,
    goaway_frame,
    header_frame,
    reset_frame,
)
from lro_conform.client._frames import StreamError as StreamError
from lro_conform.client._listener import HOST, PeerListener, reset_connection
from lro_conform.client._steps import (
    Acknowledges,
    Answer,
    JsonObject,
    Lists,
    Performance,
    Refuses,
    SeenCall,
    Shows,
    Silent,
    Verb,
)

try:
    import grpc
    import grpc.aio
    from google.longrunning import operations_pb2
    from google.protobuf import any_pb2, json_format
    from google.rpc import error_details_pb2, status_pb2
except ImportError as exc:
    raise MissingExtra("judging a client over gRPC", "grpc") from exc

_Context: TypeAlias = "grpc.aio.ServicerContext[bytes, bytes]"

_SERVICE: Final = "/google.longrunning.Operations/"
_DETAILS: Final = "grpc-status-details-bin"
_RESPONSE_HEADERS: Final = {":status": "200", "content-type": "application/grpc"}
_UNKNOWN_FIELD: Final = b"\xba\xbe\x03\x03new"
"""Field 7143 of a message, with the text "new"."""
_LONG_SECONDS: Final = 3600.0
_UNKNOWN_MESSAGE: Final = b"\x0a\x03new"
"""A message of a type that only the server knows."""


def _packed(message: JsonObject) -> Any:
    """Return the ``Any`` of a message in JSON; unknown types get a fixed payload."""
    url = message["@type"]
    found = getattr(error_details_pb2, url.rpartition(".")[2], None)
    if found is None:
        return any_pb2.Any(type_url=url, value=_UNKNOWN_MESSAGE)
    fields = {name: value for name, value in message.items() if name != "@type"}
    value = json_format.ParseDict(fields, found(), ignore_unknown_fields=True)
    return any_pb2.Any(type_url=url, value=value.SerializeToString())


def _status(code: int, message: str, details: list[JsonObject]) -> Any:
    return status_pb2.Status(code=code, message=message, details=list(map(_packed, details)))


def operation_message(operation: JsonObject) -> bytes:
    """Return an operation in binary form, with an unknown field."""
    found = operations_pb2.Operation(
        name=operation.get("name", ""), done=operation.get("done", False)
    )
    for field in ("metadata", "response"):
        if operation.get(field) is not None:
            getattr(found, field).CopyFrom(_packed(operation[field]))
    if (error := operation.get("error")) is not None:
        details = error.get("details", [])
        found.error.CopyFrom(_status(error.get("code", 0), error.get("message", ""), details))
        found.error.SetInParent()
    message: bytes = found.SerializeToString()
    return message + _UNKNOWN_FIELD if "newField" in operation else message


def _page(answer: Lists) -> bytes:
    page = operations_pb2.ListOperationsResponse(next_page_token=answer.next_page_token)
    for one in answer.operations:
        page.operations.add().MergeFromString(operation_message(one))
    found: bytes = page.SerializeToString()
    return found


@attrs.define(eq=False)
class GrpcExchange:
    """One call, and the ways to answer it with inserted frames."""

    peer: GrpcPeer
    call: SeenCall
    connection: FramedConnection
    stream: int

    async def reset(self, error: StreamError) -> NoReturn:
        """End the stream with an error."""
        await self._send(reset_frame(self.stream, error))

    async def goaway(self) -> NoReturn:
        """Announce that the connection ends, and that the server has not processed this call."""
        await self._send(goaway_frame(self.stream - 2 if self.stream > 2 else 0))

    async def page_of_proxy(self, status: int) -> NoReturn:
        """Answer with an HTML page, as a proxy without gRPC support does."""
        headers = {":status": str(status), "content-type": "text/html"}
        body = data_frame(self.stream, b"<html>a proxy</html>", end=True)
        await self._send(header_frame(self.stream, headers), body)

    async def message(self, message: bytes, *, trailers: bool = True) -> NoReturn:
        """Answer with these bytes as the message, valid or not; end with OK if ``trailers``."""
        data = b"\x00" + len(message).to_bytes(4, "big") + message
        frames = [
            header_frame(self.stream, _RESPONSE_HEADERS),
            data_frame(self.stream, data, end=not trailers),
        ]
        if trailers:
            frames.append(header_frame(self.stream, {"grpc-status": "0"}, end=True))
        await self._send(*frames)

    async def no_message(self) -> NoReturn:
        """Answer with OK, but without a message."""
        await self._send(
            header_frame(self.stream, _RESPONSE_HEADERS | {"grpc-status": "0"}, end=True)
        )

    def reset_connection(self) -> None:
        """Reset the connection, so that the client gets an error from its socket."""
        reset_connection(self.connection.client)

    async def _send(self, *frames: bytes) -> NoReturn:
        await self.connection.send(*frames)
        self.peer.played.answered(self.call)
        await self.until_gone()

    async def until_gone(self) -> NoReturn:
        """Wait until the client has disconnected, so that the real server does not answer too."""
        while True:
            await asyncio.sleep(_LONG_SECONDS)


@attrs.define(eq=False)
class GrpcPeer:
    """A server for one operation, which answers calls as the script says.

    With ``mute`` it accepts connections, but sends nothing. Use it as an asynchronous context
    manager.
    """

    name: str
    played: Performance
    mute: bool = False
    listener: PeerListener = attrs.field(init=False)
    _proxy: FrameProxy = attrs.field(init=False)
    _server: Any = attrs.field(init=False)

    async def __aenter__(self) -> GrpcPeer:
        self._server = grpc.aio.server(options=[("grpc.max_send_message_length", -1)])
        self._server.add_generic_rpc_handlers((_Handler(self._called),))
        self._proxy = FrameProxy(self._server.add_insecure_port(f"{HOST}:0"), self.mute)
        await self._server.start()
        self.listener = PeerListener(self._proxy.serve, self.played.connect)
        await self.listener.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.listener.__aexit__()
        await self._server.stop(None)

    @property
    def address(self) -> str:
        """The address of the server, as ``host:port``."""
        return f"{HOST}:{self.listener.port}"

    async def _called(self, method: str, request: bytes, context: _Context) -> bytes:
        connection = self._proxy.latest
        assert connection is not None
        verb = Verb(method) if method in set(Verb) else Verb.OTHER
        page_token = ""
        if verb is Verb.LIST:
            page_token = operations_pb2.ListOperationsRequest.FromString(request).page_token
        sent = dict(context.invocation_metadata() or ())
        call, answer = self.played.take(verb, str(sent.get("authorization", "")), page_token)
        exchange = GrpcExchange(self, call, connection, connection.stream)
        reply = await self._answer(exchange, answer, context)
        self.played.answered(call)
        return reply

    async def _answer(self, exchange: GrpcExchange, answer: Answer, context: _Context) -> bytes:
        match answer:
            case Shows():
                await asyncio.sleep(answer.delay)
                return operation_message(answer.operation)
            case Refuses():
                await self._refuse(exchange, answer, context)
            case Lists():
                return _page(answer)
            case Acknowledges():
                return b""
        if not isinstance(answer, Silent):
            await answer(exchange)
        await exchange.until_gone()

    async def _refuse(self, exchange: GrpcExchange, answer: Refuses, context: _Context) -> NoReturn:
        if answer.initial:
            await context.send_initial_metadata((("x-peer", "scripted"),))
        status = _status(answer.code, answer.message, list(answer.details))
        trailers = ((_DETAILS, status.SerializeToString()),) if answer.details else ()
        code = next(one for one in grpc.StatusCode if one.value[0] == answer.code)
        self.played.answered(exchange.call)
        await context.abort(code, answer.message, trailers)


class _Handler(grpc.GenericRpcHandler):
    def __init__(self, called: Any) -> None:
        self._called = called

    def service(self, handler_call_details: Any) -> Any:
        method = handler_call_details.method.removeprefix(_SERVICE)

        async def behave(request: bytes, context: _Context) -> bytes:
            found: bytes = await self._called(method, request, context)
            return found

        return grpc.unary_unary_rpc_method_handler(behave)
