"""Ways to break the handmade server over gRPC: a servicer of its own, or an interceptor."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final, TypeVar

import attrs
import grpc
from google.longrunning import operations_proto_pb2 as pb
from google.protobuf.empty_pb2 import Empty
from google.rpc.code_pb2 import Code

from lro_conform.server._starts import StartKind
from tests.conform.handmade import DETAILS, Operations, Refused


@attrs.frozen
class GrpcFault:
    """A way to break the server, and the checks that must find it."""

    name: str
    found_by: tuple[str, ...]
    servicer: type[Operations] = Operations
    interceptor: Callable[[], Any] | None = None


GRPC_FAULTS: Final[list[GrpcFault]] = []
S = TypeVar("S", bound=type[Operations])
T = TypeVar("T", bound=type[grpc.ServerInterceptor])


def servicer(*found_by: str) -> Callable[[S], S]:
    """Add a broken servicer to the faults."""

    def add(made: S) -> S:
        GRPC_FAULTS.append(GrpcFault(made.__name__, found_by, servicer=made))
        return made

    return add


def interceptor(*found_by: str) -> Callable[[T], T]:
    """Add an interceptor, which breaks a correct servicer, to the faults."""

    def add(made: T) -> T:
        GRPC_FAULTS.append(GrpcFault(made.__name__, found_by, interceptor=made))
        return made

    return add


@servicer("grpc.status-details")
class DetailsOfAnotherCode(Operations):
    def refuse(self, context: Any, error: Refused) -> None:
        other = attrs.evolve(error, code=Code.INTERNAL).status.SerializeToString()
        context.set_trailing_metadata([(DETAILS, other)])
        context.abort(grpc.StatusCode[Code.Name(error.code)], error.message)


@servicer("grpc.status-details")
class DetailsOfAnotherMessage(Operations):
    def refuse(self, context: Any, error: Refused) -> None:
        context.set_trailing_metadata([(DETAILS, error.status.SerializeToString())])
        context.abort(grpc.StatusCode[Code.Name(error.code)], f"{error.message}!")


@servicer("grpc.status-details", "errors.error-info")
class DetailsThatAreNone(Operations):
    def refuse(self, context: Any, error: Refused) -> None:
        context.set_trailing_metadata([(DETAILS, b"\xff\xff")])
        context.abort(grpc.StatusCode[Code.Name(error.code)], error.message)


@servicer("grpc.status-details")
class DetailsTwice(Operations):
    def refuse(self, context: Any, error: Refused) -> None:
        context.set_trailing_metadata([(DETAILS, error.status.SerializeToString())] * 2)
        context.abort(grpc.StatusCode[Code.Name(error.code)], error.message)


@servicer("errors.error-info")
class ErrorInfoThatIsNone(Operations):
    def refuse(self, context: Any, error: Refused) -> None:
        status = error.status
        status.details[0].value = b"\xff"
        context.set_trailing_metadata([(DETAILS, status.SerializeToString())])
        context.abort(grpc.StatusCode[Code.Name(error.code)], error.message)


@servicer("errors.error-info", "errors.message")
class ErrorsWithoutDetails(Operations):
    def refuse(self, context: Any, error: Refused) -> None:
        context.abort(grpc.StatusCode[Code.Name(error.code)], "")


@servicer("names.unknown", "errors.no-defect")
class UnknownNamesThatCrash(Operations):
    def _read(self, name: str) -> Any:
        if name not in self._works:
            raise KeyError(name)
        return super()._read(name)


@servicer("names.empty")
class EmptyNames(Operations):
    def GetOperation(self, request: Any, context: Any) -> Any:
        if not request.name:
            return pb.Operation(name="operations/x")
        return super().GetOperation(request, context)


@servicer("grpc.deadline")
class WaitsBeyondDeadlines(Operations):
    def WaitOperation(self, request: Any, context: Any) -> Any:
        context.time_remaining = lambda: None
        return super().WaitOperation(request, context)


@servicer("grpc.deadline")
class WaitsThatFailBeforeDeadlines(Operations):
    def WaitOperation(self, request: Any, context: Any) -> Any:
        if request.timeout.seconds > context.time_remaining():
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, "the deadline is too short")
        return super().WaitOperation(request, context)


@servicer("result.success")
class EndsWithoutResult(Operations):
    def _read(self, name: str) -> Any:
        operation = super()._read(name)
        if operation.done:
            operation.ClearField("response")
            operation.ClearField("error")
        return operation


@servicer("result.none-before-done")
class ResponsesBeforeTheEnd(Operations):
    def _read(self, name: str) -> Any:
        operation = super()._read(name)
        if not operation.done:
            operation.response.Pack(Empty())
        return operation


@servicer("result.error-code")
class FailuresWithCodeZero(Operations):
    def _read(self, name: str) -> Any:
        operation = super()._read(name)
        if operation.HasField("error"):
            operation.error.code = 0
        return operation


@servicer("any.types")
class MetadataWithoutType(Operations):
    def start(self, kind: StartKind) -> Any:
        operation = super().start(kind)
        operation.metadata.type_url = ""
        return operation


@servicer("pages.negative-size")
class NegativePageSizes(Operations):
    def ListOperations(self, request: Any, context: Any) -> Any:
        request.page_size = max(request.page_size, 0)
        return super().ListOperations(request, context)


@servicer("pages.bad-token")
class TokensThatAreNotChecked(Operations):
    def ListOperations(self, request: Any, context: Any) -> Any:
        if request.page_token not in self._tokens:
            request.page_token = ""
        return super().ListOperations(request, context)


@servicer("cancel.code")
class CancelledAndRemoved(Operations):
    def CancelOperation(self, request: Any, context: Any) -> Any:
        return self.DeleteOperation(pb.DeleteOperationRequest(name=request.name), context)


@servicer("delete.gone")
class DeletesThatRemoveNothing(Operations):
    def DeleteOperation(self, request: Any, context: Any) -> Any:
        return Empty()


@servicer("wait.timeout")
class WaitsThatOutlastTheirTimeout(Operations):
    def WaitOperation(self, request: Any, context: Any) -> Any:
        time.sleep(1.5)
        return super().WaitOperation(request, context)


def raw(function: Callable[[bytes], bytes]) -> Any:
    """A handler that reads and writes bytes."""
    return grpc.unary_unary_rpc_method_handler(lambda payload, context: function(payload))


@interceptor("grpc.unknown-method")
class UnknownMethodsThatSucceed(grpc.ServerInterceptor):
    def intercept_service(self, continuation: Any, call: Any) -> Any:
        if call.method.endswith("LroConformUnknown"):
            return raw(lambda payload: b"")
        return continuation(call)


@interceptor("grpc.malformed")
class MalformedBytesThatAreAccepted(grpc.ServerInterceptor):
    def intercept_service(self, continuation: Any, call: Any) -> Any:
        handler = continuation(call)
        if not call.method.endswith("/GetOperation"):
            return handler

        def behaviour(payload: bytes, context: Any) -> bytes:
            if payload == b"\xff\xff\xff":
                return b""
            request = pb.GetOperationRequest.FromString(payload)
            return bytes(handler.unary_unary(request, context).SerializeToString())

        return grpc.unary_unary_rpc_method_handler(behaviour)


@interceptor("grpc.malformed")
class MalformedBytesThatLeaveItBroken(grpc.ServerInterceptor):
    broken = False

    def intercept_service(self, continuation: Any, call: Any) -> Any:
        handler = continuation(call)
        if not call.method.endswith("/GetOperation"):
            return handler

        def behaviour(payload: bytes, context: Any) -> bytes:
            self.broken = self.broken or payload == b"\xff\xff\xff"
            if self.broken:
                context.abort(grpc.StatusCode.UNAVAILABLE, "broken")
            request = pb.GetOperationRequest.FromString(payload)
            return bytes(handler.unary_unary(request, context).SerializeToString())

        return grpc.unary_unary_rpc_method_handler(behaviour)


@interceptor("grpc.unknown-field")
class UnknownFieldsThatAreRefused(grpc.ServerInterceptor):
    def intercept_service(self, continuation: Any, call: Any) -> Any:
        handler = continuation(call)
        if not call.method.endswith("/GetOperation"):
            return handler

        def behaviour(payload: bytes, context: Any) -> bytes:
            request = pb.GetOperationRequest.FromString(payload)
            request.DiscardUnknownFields()
            if request.SerializeToString() != payload:
                context.abort(grpc.StatusCode.INVALID_ARGUMENT, "a field is not known")
            return bytes(handler.unary_unary(request, context).SerializeToString())

        return grpc.unary_unary_rpc_method_handler(behaviour)


@interceptor("replies.readable")
class RepliesThatAreNoMessages(grpc.ServerInterceptor):
    def intercept_service(self, continuation: Any, call: Any) -> Any:
        if call.method.endswith("/ListOperations"):
            return raw(lambda payload: b"\xff\xff\xff")
        return continuation(call)


@interceptor("cancel.empty")
class CancelThatAnswersAnOperation(grpc.ServerInterceptor):
    def intercept_service(self, continuation: Any, call: Any) -> Any:
        if call.method.endswith("/CancelOperation"):
            return raw(lambda payload: pb.Operation(name="x").SerializeToString())
        return continuation(call)
