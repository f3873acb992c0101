"""Converts API messages to messages of ``googleapis-common-protos`` and back (spec §1.2).

Nothing is lost: unknown fields are kept in ``unknown``, and the payload of an Any stays the same
bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

from google.longrunning import operations_proto_pb2 as pb
from google.protobuf import any_pb2
from google.protobuf.duration_pb2 import Duration as DurationProto
from google.protobuf.message import Message
from google.protobuf.unknown_fields import UnknownFieldSet
from google.rpc.status_pb2 import Status as StatusProto

from lro._base.errors import InvalidArgument, got
from lro._base.status import AnyMessage, Status
from lro._messages.registry import TypeRegistry
from lro._messages.times import Duration
from lro._model.operation import (
    CancelOperationRequest,
    DeleteOperationRequest,
    GetOperationRequest,
    ListOperationsRequest,
    ListOperationsResponse,
    Operation,
    OperationInfo,
    WaitOperationRequest,
)

M = TypeVar("M", bound=Message)


def operation_to_proto(operation: Operation, types: TypeRegistry) -> pb.Operation:
    """Convert an operation to a ``google.longrunning.Operation``.

    Raises:
        UnknownType: Metadata, response or a detail is JSON, and its type is not registered.
        EncodingError: Metadata, response or a detail has no binary form.
    """
    made = pb.Operation(name=operation.name, done=operation.done)
    if operation.metadata is not None:
        any_to_proto(operation.metadata, types, made.metadata)
    result = operation.result
    if isinstance(result, AnyMessage):
        any_to_proto(result, types, made.response)
    elif result is not None:
        made.error.CopyFrom(status_to_proto(result, types))
    return _with_unknown(made, operation.unknown)


def operation_from_proto(proto: pb.Operation) -> Operation:
    """Convert a ``google.longrunning.Operation`` to an operation."""
    which = proto.WhichOneof("result")
    result: AnyMessage | Status | None = None
    if which == "response":
        result = any_from_proto(proto.response)
    elif which == "error":
        result = status_from_proto(proto.error)
    return Operation(
        name=proto.name,
        metadata=any_from_proto(proto.metadata) if proto.HasField("metadata") else None,
        done=proto.done,
        result=result,
        unknown=_unknown(proto),
    )


def status_to_proto(status: Status, types: TypeRegistry) -> StatusProto:
    """Convert a status to a ``google.rpc.Status``.

    Raises:
        UnknownType, EncodingError: As for :func:`operation_to_proto`.
    """
    made = StatusProto(code=int(status.code), message=status.message)
    for detail in status.details:
        any_to_proto(detail, types, made.details.add())
    return _with_unknown(made, status.unknown)


def status_from_proto(proto: StatusProto) -> Status:
    """Convert a ``google.rpc.Status`` to a status."""
    details = tuple(any_from_proto(detail) for detail in proto.details)
    return Status(proto.code, proto.message, details, unknown=_unknown(proto))


def any_to_proto(packed: AnyMessage, types: TypeRegistry, into: any_pb2.Any) -> None:
    """Write an Any into a protobuf Any.

    Raises:
        UnknownType, EncodingError: As for :func:`operation_to_proto`.
    """
    into.SetInParent()  # present, even if it is empty
    into.type_url = packed.type_url
    into.value = types.binary_payload(packed)


def any_from_proto(proto: any_pb2.Any) -> AnyMessage:
    """Convert a protobuf Any to an Any with the same payload."""
    if not proto.type_url and not proto.value:
        return AnyMessage()
    return AnyMessage(proto.type_url, proto.value)


def to_proto(message: object, types: TypeRegistry) -> Any:
    """Convert an API message to a protobuf message.

    Raises:
        InvalidArgument: The argument is not an API message, or a text in it is not valid Unicode.
        UnknownType, EncodingError: As for :func:`operation_to_proto`.
    """
    if isinstance(message, Operation):
        return operation_to_proto(message, types)
    if isinstance(message, Status):
        return status_to_proto(message, types)
    if isinstance(message, ListOperationsResponse):
        made = pb.ListOperationsResponse(next_page_token=message.next_page_token)
        for one in message.operations:
            made.operations.append(operation_to_proto(one, types))
        return _with_unknown(made, message.unknown)
    if type(message) not in _PLAIN:
        raise InvalidArgument("", f"must be a message of google.longrunning, got {got(message)}")
    proto, fields = _PLAIN[type(message)]
    values = {name: getattr(message, name) for name in fields}
    timeout = values.get("timeout")
    if isinstance(timeout, Duration):
        values["timeout"] = DurationProto(seconds=timeout.seconds, nanos=timeout.nanos)
    try:
        plain = proto(**values)
    except (ValueError, TypeError) as exc:
        raise InvalidArgument("", str(exc)) from exc
    return _with_unknown(plain, message.unknown)  # type: ignore[attr-defined]  # all of them have it


def from_proto(proto: Message) -> Any:
    """Convert a protobuf message to an API message.

    Raises:
        InvalidArgument: The argument is not an API message.
    """
    name = proto.DESCRIPTOR.full_name
    if name in _RICH:
        return _RICH[name](proto)
    if name not in _OF_NAME:
        raise InvalidArgument("", f"must be a message of google.longrunning, got {name}")
    cls, fields = _OF_NAME[name]
    values = {field: getattr(proto, field) for field in fields}
    if "timeout" in values:
        timeout = values["timeout"]
        present = proto.HasField("timeout")
        values["timeout"] = Duration(timeout.seconds, timeout.nanos) if present else None
    return cls(**values, unknown=_unknown(proto))


def _page(proto: pb.ListOperationsResponse) -> ListOperationsResponse:
    return ListOperationsResponse(
        tuple(operation_from_proto(one) for one in proto.operations),
        proto.next_page_token,
        unknown=_unknown(proto),
    )


_LIST_FIELDS: Final = ("name", "filter", "page_size", "page_token")
_PLAIN: Final[Mapping[type, tuple[type[Message], tuple[str, ...]]]] = {
    GetOperationRequest: (pb.GetOperationRequest, ("name",)),
    ListOperationsRequest: (pb.ListOperationsRequest, _LIST_FIELDS),
    CancelOperationRequest: (pb.CancelOperationRequest, ("name",)),
    DeleteOperationRequest: (pb.DeleteOperationRequest, ("name",)),
    WaitOperationRequest: (pb.WaitOperationRequest, ("name", "timeout")),
    OperationInfo: (pb.OperationInfo, ("response_type", "metadata_type")),
}
_OF_NAME: Final = {
    proto.DESCRIPTOR.full_name: (cls, fields) for cls, (proto, fields) in _PLAIN.items()
}
_RICH: Final[Mapping[str, Callable[[Any], object]]] = {
    "google.longrunning.Operation": operation_from_proto,
    "google.longrunning.ListOperationsResponse": _page,
    "google.rpc.Status": status_from_proto,
}


def _unknown(proto: Message) -> bytes:
    if not len(UnknownFieldSet(proto)):
        return b""
    rest = type(proto)()
    rest.CopyFrom(proto)
    for field, _ in rest.ListFields():
        rest.ClearField(field.name)
    return bytes(rest.SerializeToString())


def _with_unknown(proto: M, unknown: bytes) -> M:
    if unknown:
        proto.MergeFromString(unknown)
    return proto
