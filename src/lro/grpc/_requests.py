"""Requests of the gRPC edge: binary form in, messages of the interface out (spec §1.4, §1.7)."""

from __future__ import annotations

import typing
from typing import Final, TypeVar

from google.longrunning import operations_proto_pb2 as pb
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass

from lro._base.any import Any, type_url
from lro._base.errors import InvalidArgument, MalformedRequest, PartialSuccessNotSupported, got
from lro._messages.protobuf.starts import StartOptions, read_options
from lro._messages.registry import TypeRegistry
from lro._model.operation import ListOperationsRequest, WaitOperationRequest
from lro.protobuf import from_proto

M = TypeVar("M", bound=Message)
T = TypeVar("T", str, bool)

_PARTIAL_SUCCESS: Final = 5


def read_name(cls: type[Message], payload: bytes) -> str:
    """The name in a request that has nothing else.

    Raises:
        MalformedRequest: The bytes are no such request.
    """
    name: str = _parsed(cls, payload).name  # type: ignore[attr-defined]  # each of these has one
    return name


def read_list(payload: bytes) -> ListOperationsRequest:
    """The request of ListOperations.

    Raises:
        MalformedRequest: The bytes are no such request.
        PartialSuccessNotSupported: It asks for ``return_partial_success`` (spec §1.6(2)).
    """
    found: ListOperationsRequest = from_proto(_parsed(pb.ListOperationsRequest, payload))
    # Older versions of the package do not have the field; its number is read in any case.
    asked: typing.Any = _parsed(_PARTIAL, payload)
    if asked.return_partial_success:
        raise PartialSuccessNotSupported()
    return found


def read_wait(payload: bytes) -> WaitOperationRequest:
    """The request of WaitOperation.

    Raises:
        MalformedRequest: The bytes are no such request.
    """
    found: WaitOperationRequest = from_proto(_parsed(pb.WaitOperationRequest, payload))
    return found


def read_start(
    payload: bytes, cls: type[typing.Any], types: TypeRegistry
) -> tuple[typing.Any, StartOptions]:
    """The request message of a method, and what is said beside it.

    Raises:
        InvalidArgument: The bytes are no such message, or one that the class does not allow.
        DeclarationError: The registered classes say what proto cannot say.
    """
    name = types.name_of(cls)
    said = _parsed(types.binary.message_class(name), payload)
    message = types.unpack(Any(type_url(name), payload), cls, strict=True)
    beside = read_options(payload)
    request_id = _own(said, "request_id", beside.request_id)
    validate_only = _own(said, "validate_only", beside.validate_only)
    return message, StartOptions(request_id, validate_only)


def _own(message: Message, name: str, beside: T) -> T:
    """What a message says in a field of this name that its class has, else what is said beside."""
    if name not in message.DESCRIPTOR.fields_by_name:
        return beside
    found = getattr(message, name)
    if not isinstance(found, type(beside)):
        raise InvalidArgument(name, f"must be a {type(beside).__name__}, got {got(found)}")
    return found


def _parsed(cls: type[M], payload: bytes) -> M:
    try:
        return cls.FromString(payload)
    except DecodeError:
        text = f"{len(payload)} bytes are no {cls.DESCRIPTOR.full_name} in binary form"
        raise MalformedRequest("", text) from None


def _partial() -> type[Message]:
    file = FileDescriptorProto(name="lro/partial.proto", package="lro", syntax="proto3")
    message = file.message_type.add(name="ListOperationsRequest")
    message.field.add(
        name="return_partial_success",
        number=_PARTIAL_SUCCESS,
        type=FieldDescriptorProto.TYPE_BOOL,
        label=FieldDescriptorProto.LABEL_OPTIONAL,
    )
    pool = DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    return GetMessageClass(pool.FindMessageTypeByName("lro.ListOperationsRequest"))


_PARTIAL: Final = _partial()
