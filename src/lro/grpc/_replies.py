"""Replies of the gRPC edge: operations as bytes, errors with their details (spec §12.2)."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Iterator
from typing import Final, TypeAlias
from urllib.parse import quote

import attrs
import grpc
from google.longrunning import operations_proto_pb2 as pb
from google.protobuf.any_pb2 import Any as AnyProto
from google.rpc.error_details_pb2 import ErrorInfo
from google.rpc.status_pb2 import Status as StatusProto

from lro._base.status import Status
from lro._engine.service import Service
from lro._http.public_errors import disclosed
from lro._messages.registry import TypeRegistry
from lro._model.operation import Operation
from lro.protobuf import operation_to_proto, status_to_proto

log = logging.getLogger("lro")

STATUS_DETAILS: Final = "grpc-status-details-bin"
"""The trailer that holds a ``google.rpc.Status`` (spec §12.2)."""

MAX_MESSAGE: Final = 2000
MAX_DETAILS: Final = 4000
"""Bytes of a status message as it is sent, and of the trailer.

Clients refuse trailers of more than 8 KiB in all, and then see no error but that.
"""

_KEPT: Final = 1024
_KEPT_BYTES: Final = 16 * 1024
_CODES: Final = {code.value[0]: code for code in grpc.StatusCode}
_PRINTABLE: Final = "".join(map(chr, range(0x20, 0x7F))).replace("%", "")


@attrs.frozen
class Refusal:
    """An error as gRPC tells it: code, message, and the bytes of the trailer."""

    code: grpc.StatusCode
    message: str
    details: bytes

    @property
    def trailers(self) -> tuple[tuple[str, bytes]]:
        """The trailing metadata."""
        return ((STATUS_DETAILS, self.details),)


Answer: TypeAlias = bytes | Refusal
"""What a call is answered: the response message in binary form, or an error."""


class OperationWriter:
    """Operations in binary form.

    Those written lately are kept with their bytes, so that a poll for what has not changed converts
    nothing. A store gives the same object until the operation changes, so identity tells.
    """

    def __init__(self, types: TypeRegistry) -> None:
        self._types = types
        self._lock = threading.Lock()
        self._kept: dict[int, tuple[Operation, bytes]] = {}

    def operation(self, operation: Operation) -> bytes:
        """A ``google.longrunning.Operation``.

        Raises:
            UnknownType, EncodingError: It has a message without a binary form.
        """
        kept = self._kept.get(id(operation))
        if kept is not None:  # which keeps the object, so that its id cannot be another's
            return kept[1]
        written = operation_to_proto(operation, self._types).SerializeToString(deterministic=True)
        if len(written) <= _KEPT_BYTES:
            with self._lock:
                self._kept[id(operation)] = (operation, written)
                if len(self._kept) > _KEPT:
                    del self._kept[next(iter(self._kept))]
        return bytes(written)

    def operations(self, operations: Iterable[Operation]) -> list[bytes]:
        """Each of them as :meth:`operation` writes it.

        Raises:
            UnknownType, EncodingError: As for :meth:`operation`.
        """
        return [self.operation(one) for one in operations]

    def page(self, written: Iterable[bytes], token: str) -> bytes:
        """A ``google.longrunning.ListOperationsResponse`` of operations that are written."""
        made = pb.ListOperationsResponse(next_page_token=token)
        for one in written:
            made.operations.add().MergeFromString(one)
        return bytes(made.SerializeToString(deterministic=True))


def refusal(error: Exception, service: Service, *, asked: str) -> Refusal:
    """What a caller is told of an error: what the HTTP edge tells, code, message and details.

    ``asked`` is what the log calls the request.
    """
    types = service.types
    status = disclosed(error, types, service.domain, asked=asked).status
    message = _clipped(status.message)
    told = StatusProto(code=int(status.code), message=message)
    for detail in _details(status, types, asked):
        for form in (detail, *_shorter(detail)):
            if told.ByteSize() + form.ByteSize() <= MAX_DETAILS:
                told.details.append(form)
                break
    return Refusal(_CODES[told.code], message, told.SerializeToString(deterministic=True))


def _details(status: Status, types: TypeRegistry, asked: str) -> list[AnyProto]:
    try:
        return list(status_to_proto(status, types).details)
    except Exception as exc:  # a registered class that proto cannot say spoils all of them
        log.error("the details of the error of %s cannot be told: %s", asked, exc, exc_info=exc)
        return []


def _shorter(detail: AnyProto) -> Iterator[AnyProto]:
    if (
        detail.TypeName() == ErrorInfo.DESCRIPTOR.full_name
    ):  # which every error must have (spec §6.3(1))
        info = ErrorInfo.FromString(detail.value)
        info.ClearField("metadata")
        yield AnyProto(type_url=detail.type_url, value=info.SerializeToString())


def _clipped(message: str) -> str:
    if len(quote(message, safe=_PRINTABLE)) <= MAX_MESSAGE:
        return message
    text = message[: MAX_MESSAGE - 3]
    while len(quote(text, safe=_PRINTABLE)) > MAX_MESSAGE - 3:
        text = text[: len(text) * 3 // 4]
    return text + "..."
