"""Reads requests of the gRPC edge, and writes replies and errors in binary form (spec §12.2)."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Iterator
from typing import Any, Final, TypeAlias, TypeVar
from urllib.parse import quote

import attrs
import grpc
from google.longrunning import operations_proto_pb2 as pb
from google.protobuf.any_pb2 import Any as AnyProto
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass
from google.rpc.error_details_pb2 import ErrorInfo
from google.rpc.status_pb2 import Status as StatusProto

from lro._base.errors import (
    EncodingError,
    InvalidArgument,
    MalformedRequest,
    PartialSuccessNotSupported,
    UnknownType,
    got,
)
from lro._base.status import AnyMessage, Status, type_url
from lro._engine.service import Service
from lro._http.responses import public_error, with_stand_ins
from lro._messages.protobuf.binary import StartOptions, read_options
from lro._messages.registry import TypeRegistry
from lro._model.operation import ListOperationsRequest, Operation, WaitOperationRequest
from lro.protobuf import from_proto, operation_to_proto, status_to_proto

M = TypeVar("M", bound=Message)
T = TypeVar("T", str, bool)

_PARTIAL_SUCCESS: Final = 5


def read_name(cls: type[Message], payload: bytes) -> str:
    """Return the operation name in a request that has only the field ``name``.

    Raises:
        MalformedRequest: The bytes are not such a request.
    """
    name: str = _parsed(cls, payload).name  # type: ignore[attr-defined]  # each of these has one
    return name


def read_list(payload: bytes) -> ListOperationsRequest:
    """Read the request of ListOperations.

    Raises:
        MalformedRequest: The bytes are not such a request.
        PartialSuccessNotSupported: ``return_partial_success`` is set (spec §1.6(2)).
    """
    found: ListOperationsRequest = from_proto(_parsed(pb.ListOperationsRequest, payload))
    # Older versions of the protobuf package lack the field, so it is read by its number.
    asked: Any = _parsed(_PARTIAL, payload)
    if asked.return_partial_success:
        raise PartialSuccessNotSupported()
    return found


def read_wait(payload: bytes) -> WaitOperationRequest:
    """Read the request of WaitOperation.

    Raises:
        MalformedRequest: The bytes are not such a request.
    """
    found: WaitOperationRequest = from_proto(_parsed(pb.WaitOperationRequest, payload))
    return found


def read_start(payload: bytes, cls: type[Any], types: TypeRegistry) -> tuple[Any, StartOptions]:
    """Read a method's request message, and the options of the start in the same bytes.

    Raises:
        InvalidArgument: The bytes are not such a message, or its class refuses the values.
        DeclarationError: Proto cannot express the registered classes.
    """
    name = types.name_of(cls)
    said = _parsed(types.binary.message_class(name), payload)
    message = types.unpack(AnyMessage(type_url(name), payload), cls, strict=True)
    beside = read_options(payload)
    request_id = _own(said, "request_id", beside.request_id)
    validate_only = _own(said, "validate_only", beside.validate_only)
    return message, StartOptions(request_id, validate_only)


def _own(message: Message, name: str, beside: T) -> T:
    """Return the value of a field, or ``beside`` if the message's class has no such field."""
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
        text = f"{len(payload)} bytes are not a {cls.DESCRIPTOR.full_name} in binary form"
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


log = logging.getLogger("lro")

STATUS_DETAILS: Final = "grpc-status-details-bin"
"""The trailer that holds a ``google.rpc.Status`` (spec §12.2)."""

MAX_MESSAGE: Final = 2000
MAX_DETAILS: Final = 4000
"""Maximum bytes of a status message in its encoded form, and of the trailer.

Clients refuse trailers of more than 8 KiB in all, and then do not see the error.
"""

_KEPT: Final = 1024
_KEPT_BYTES: Final = 16 * 1024
_CODES: Final = {code.value[0]: code for code in grpc.StatusCode}
_PRINTABLE: Final = "".join(map(chr, range(0x20, 0x7F))).replace("%", "")


@attrs.frozen
class Refusal:
    """An error as gRPC sends it: code, message, and the bytes of the trailer."""

    code: grpc.StatusCode
    message: str
    details: bytes

    @property
    def trailers(self) -> tuple[tuple[str, bytes]]:
        """The trailing metadata."""
        return ((STATUS_DETAILS, self.details),)


Answer: TypeAlias = bytes | Refusal
"""The reply to a call: the response message in binary form, or an error."""


class OperationWriter:
    """Write operations in binary form.

    The bytes of recent operations are cached, so a poll of an unchanged operation converts nothing.
    A store returns the same object until the operation changes, so the cache compares identities.
    """

    def __init__(self, types: TypeRegistry, domain: str) -> None:
        self._types = types
        self._domain = domain
        self._lock = threading.Lock()
        self._kept: dict[int, tuple[Operation, bytes]] = {}

    def operation(self, operation: Operation, *, alone: bool = True) -> bytes:
        """Write a ``google.longrunning.Operation``; if ``alone``, the reply has no other operation.

        An ErrorInfo replaces a message without a binary form (spec §1.14(3)).

        Raises:
            MessageUnreadable: The operation is ``alone``, and its response has no binary form.
        """
        kept = self._kept.get(id(operation))
        if kept is not None:  # the cache keeps the object alive, so its id is unique
            return kept[1]
        types, shown = self._types, operation
        try:
            made = operation_to_proto(operation, types)
        except (UnknownType, EncodingError):
            shown = with_stand_ins(
                operation, types, types.binary_payload, self._domain, alone=alone
            )
            made = operation_to_proto(shown, types)
        written = made.SerializeToString(deterministic=True)
        if shown is operation and len(written) <= _KEPT_BYTES:
            with self._lock:
                self._kept[id(operation)] = (operation, written)
                if len(self._kept) > _KEPT:
                    del self._kept[next(iter(self._kept))]
        return bytes(written)

    def operations(self, operations: Iterable[Operation]) -> list[bytes]:
        """Write each of these operations for one reply that contains all of them."""
        return [self.operation(one, alone=False) for one in operations]

    def page(self, written: Iterable[bytes], token: str) -> bytes:
        """Make a ``google.longrunning.ListOperationsResponse`` of operations in binary form."""
        made = pb.ListOperationsResponse(next_page_token=token)
        for one in written:
            made.operations.add().MergeFromString(one)
        return bytes(made.SerializeToString(deterministic=True))


def refusal(error: Exception, service: Service, *, asked: str) -> Refusal:
    """Return the error that a caller gets: code, message and details, as over HTTP.

    ``asked`` is the name of the request in the log.
    """
    types = service.types
    status = public_error(error, types, service.domain, asked=asked).status
    message = clipped(status.message)
    made = StatusProto(code=int(status.code), message=message)
    for detail in _details(status, types, asked):
        for form in (detail, *_shorter(detail)):
            if made.ByteSize() + form.ByteSize() <= MAX_DETAILS:
                made.details.append(form)
                break
    return Refusal(_CODES[made.code], message, made.SerializeToString(deterministic=True))


def _details(status: Status, types: TypeRegistry, asked: str) -> list[AnyProto]:
    try:
        return list(status_to_proto(status, types).details)
    except Exception as exc:  # proto cannot express a registered class
        log.error(
            "the details of the error of %s cannot be described: %s", asked, exc, exc_info=exc
        )
        return []


def _shorter(detail: AnyProto) -> Iterator[AnyProto]:
    if detail.TypeName() == ErrorInfo.DESCRIPTOR.full_name:  # every Status needs it (spec §6.3(1))
        info = ErrorInfo.FromString(detail.value)
        info.ClearField("metadata")
        yield AnyProto(type_url=detail.type_url, value=info.SerializeToString())


def clipped(message: str) -> str:
    """Cut a text so that it takes at most MAX_MESSAGE bytes as a status message."""
    if len(quote(message, safe=_PRINTABLE)) <= MAX_MESSAGE:
        return message
    text = message[: MAX_MESSAGE - 3]
    while len(quote(text, safe=_PRINTABLE)) > MAX_MESSAGE - 3:
        text = text[: len(text) * 3 // 4]
    return text + "..."
