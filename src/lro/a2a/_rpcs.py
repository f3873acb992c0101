"""The gRPC services of A2A, with a check of each call before the SDK reads its request (A2A 10)."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Mapping
from typing import Any

import attrs
import grpc
import grpc.aio
from a2a.compat.v0_3 import a2a_v0_3_pb2, a2a_v0_3_pb2_grpc
from a2a.compat.v0_3.grpc_handler import CompatGrpcHandler
from a2a.server.context import ServerCallContext
from a2a.server.request_handlers.grpc_handler import (
    DefaultGrpcServerCallContextBuilder,
    GrpcHandler,
)
from a2a.types import a2a_pb2, a2a_pb2_grpc
from a2a.utils.errors import A2AError
from google.protobuf.message_factory import GetMessageClass

from lro.a2a._handler import Handler
from lro.a2a._refusals import CALL, A2ACall, refuse
from lro.errors import RequestTooLarge
from lro.protobuf import check_values, parsed


def add_guarded(
    server: grpc.aio.Server, handler: Handler, *, max_request: int, max_values: int
) -> None:
    """Add the services of A2A 1.0 and 0.3 to a server."""
    builder = _ContextBuilder()
    new: Any = a2a_pb2_grpc  # both modules are generated without annotations
    old: Any = a2a_v0_3_pb2_grpc
    for made, add, file in (
        (GrpcHandler(handler, builder), new.add_A2AServiceServicer_to_server, a2a_pb2),
        (CompatGrpcHandler(handler, builder), old.add_A2AServiceServicer_to_server, a2a_v0_3_pb2),
    ):
        add(made, _Guard(server, handler, builder, made, file, max_request, max_values))


class _ContextBuilder(DefaultGrpcServerCallContextBuilder):
    """Put the :class:`A2ACall` of a checked request into the SDK's context of the call."""

    def __init__(self) -> None:
        self.calls: dict[Any, A2ACall] = {}
        """Calls in progress, by their gRPC contexts."""

    def build(self, context: Any) -> ServerCallContext:
        made = super().build(context)
        made.state[CALL] = self.calls.get(context)
        return made


@attrs.frozen(eq=False)
class _Guard:
    """Takes the place of a server: it adds the SDK's RPCs to the real server, each with a check."""

    _server: grpc.aio.Server
    _handler: Handler
    _builder: _ContextBuilder
    _servicer: GrpcHandler | CompatGrpcHandler
    _file: Any
    _max_request: int
    _max_values: int

    def add_generic_rpc_handlers(self, handlers: Any) -> None:
        """Do nothing, because the SDK adds the same RPCs a second time, by name."""

    def add_registered_method_handlers(self, service: str, handlers: Mapping[str, Any]) -> None:
        """Add RPCs to the real server."""
        guarded = {verb: self._guarded(verb, one) for verb, one in handlers.items()}
        made = grpc.method_handlers_generic_handler(service, guarded)
        self._server.add_generic_rpc_handlers((made,))

    def _guarded(self, verb: str, rpc: Any) -> Any:
        (service,) = self._file.DESCRIPTOR.services_by_name.values()
        request = service.methods_by_name[verb].input_type

        async def unary(payload: bytes, context: Any) -> Any:
            async with self._call(payload, context, request) as found:
                return await rpc.unary_unary(found, context)

        async def stream(payload: bytes, context: Any) -> AsyncIterator[Any]:
            async with (
                self._call(payload, context, request) as found,
                contextlib.aclosing(rpc.unary_stream(found, context)) as replies,
            ):
                async for one in replies:
                    yield one

        made: Any = grpc  # the annotations of grpc do not allow coroutines
        if rpc.response_streaming:
            return made.unary_stream_rpc_method_handler(stream, None, rpc.response_serializer)
        return made.unary_unary_rpc_method_handler(unary, None, rpc.response_serializer)

    @contextlib.asynccontextmanager
    async def _call(self, payload: bytes, rpc: Any, request: Any) -> AsyncIterator[Any]:
        context = self._builder.build(rpc)
        try:
            caller = await self._handler.identify(context)
            if len(payload) > self._max_request:
                raise RequestTooLarge("request", f"must have at most {self._max_request} bytes")
            check_values(payload, request, self._max_values)
            found = parsed(GetMessageClass(request), payload)
        except Exception as exc:
            try:
                await refuse(exc, context, self._handler.service, "a call of A2A")
            except A2AError as error:
                await self._servicer.abort_context(error, rpc)
            raise
        self._builder.calls[rpc] = A2ACall(caller)
        try:
            yield found
        finally:
            del self._builder.calls[rpc]
