"""Convert calls to gRPC messages, and responses to replies (spec §12, §11.10)."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterable, Mapping
from typing import Any, Final
from urllib.parse import quote

import attrs
from google.longrunning import operations_proto_pb2 as pb
from google.protobuf.message import DecodeError
from google.rpc.status_pb2 import Status as StatusProto

from lro import (
    AnyMessage,
    Code,
    DeclarationError,
    InvalidArgument,
    LroError,
    Operation,
    Status,
    TypeRegistry,
)
from lro.errors import MethodNotSupported
from lro.protobuf import (
    StartOptions,
    check_values,
    from_proto,
    status_from_proto,
    to_proto,
    write_options,
)
from lro.types import RetryInfo
from lro.wire import (
    CancelOperationRequest,
    DeleteOperationRequest,
    ListOperationsRequest,
    RerunOperationRequest,
)
from lro_client._arguments import check_request_id
from lro_client._errors import (
    UNTRUSTED,
    CallError,
    check,
    decoded,
    empty_reply,
    too_late,
    unreadable,
)
from lro_client._flow.single import check_operation
from lro_client._flow.steps import (
    BatchGetOperationsRequest,
    Call,
    Reply,
    StartRequest,
    WatchOperationsRequest,
)

Metadata = Iterable[tuple[str, str | bytes]]

_EXTENSIONS: Final = (BatchGetOperationsRequest, WatchOperationsRequest, RerunOperationRequest)
"""Requests that only HTTP can carry (spec §3.11, §3.12)."""

_NO_METHOD: Final = "Method not found!"
"""The error message of grpcio's servers for a path that they do not serve."""
_METHOD: Final = re.compile(r"/([\w.]+)/(\w+)|([\w.]+)\.(\w+)", re.ASCII)
_SERVICE: Final = "/google.longrunning.Operations/"
_STATUS_DETAILS: Final = "grpc-status-details-bin"
_OWN_WORDS: Final = frozenset({"", "Deadline Exceeded"})
"""grpcio's error messages when the caller's own deadline expires."""

_UNCONNECTED: Final = "failed to connect to all addresses"
"""The beginning of grpcio's messages on failed connections."""

_TOO_LARGE: Final = re.compile(r"(CLIENT: )?Received message larger than max \(")
"""Matches grpcio's message for a reply that is too large.

Before grpcio 1.70, a server has the same message for a request that is too large.
"""

_PAIRS: Final = "pairs of a key in lower case and a text of ASCII (bytes for a key in -bin)"
_KEY: Final = re.compile(r"[0-9a-z_.-]+")
_TEXT: Final = re.compile(r"[\x20-\x7e]*")

_MAX_PAUSE_SECONDS: Final = 1e9


class GrpcCoder:
    """Converts calls to gRPC messages, and responses to replies, for blocking and async clients."""

    def __init__(self, metadata: Metadata, types: TypeRegistry) -> None:
        self._metadata = tuple(metadata)
        for pair in self._metadata:
            shown = pair[:1] if isinstance(pair, tuple | list) else pair  # a value may be secret
            check("metadata", shown, _PAIRS, fine=_is_pair(pair))
        self._types = types
        self._lock = threading.Lock()

    def encode(self, call: Call) -> tuple[str, bytes, tuple[tuple[str, str | bytes], ...]]:
        """Return the path of a call, its message and its metadata.

        Raises:
            CallError: The verb is an extension that only HTTP supports.
            DeclarationError: The message cannot be encoded.
        """
        try:
            path, payload = self._encode(call)
        except MethodNotSupported as exc:
            raise CallError(call.verb, Status(int(exc.status_code), str(exc))) from exc
        except InvalidArgument as exc:
            raise DeclarationError(exc.field or "request", exc.description) from exc
        except LroError as exc:
            raise DeclarationError("message", str(exc)) from exc
        metadata = (*self._metadata, *call.headers.items())
        name: str = getattr(call.request, "name", "")
        if name:
            metadata += (("x-goog-request-params", f"name={quote(name)}"),)
        return path, payload, metadata

    def _encode(self, call: Call) -> tuple[str, bytes]:
        request = call.request
        if isinstance(request, _EXTENSIONS):
            raise MethodNotSupported(call.verb)  # only HTTP supports these verbs (spec §3.11)
        if call.view != "BASIC":
            raise MethodNotSupported(f"{call.verb} with view={call.view} over gRPC")
        if isinstance(request, StartRequest):
            return _path(call), self._start(request)
        return _path(call), to_proto(request, self._types).SerializeToString()

    def _start(self, request: StartRequest) -> bytes:
        if isinstance(request.message, Mapping):
            wanted = (
                "an instance of a message class over gRPC, where a dict has no form (that of a"
                " TypedDict is packed by types.pack(message, cls), with the types of the client)"
            )
            raise InvalidArgument("message", f"must be {wanted}, got {request.message!r:.200}")
        check_request_id(request.request_id, only_uuid=True)
        with self._lock:  # because registering a class replaces the binary classes
            if not isinstance(request.message, AnyMessage):
                self._register(type(request.message), request.target)
            return start_to_binary(request, self._types)

    def _register(self, cls: type, target: str) -> None:
        if not self._types.knows(cls):
            package = target.strip("/").replace("/", ".").rsplit(".", 2)[0]
            self._types.register(cls, f"{package}.{cls.__name__}")

    def decode(self, call: Call, payload: bytes | None) -> Reply:
        """Return the reply of a response. ``payload`` is None if OK came without a message.

        Raises:
            CallError: The message is not a valid reply to the call.
        """
        if isinstance(call.request, (DeleteOperationRequest, CancelOperationRequest)):
            return Reply(None)
        if payload is None:
            raise empty_reply(call.verb, "OK without a message")
        listed = isinstance(call.request, ListOperationsRequest)
        cls: Any = pb.ListOperationsResponse if listed else pb.Operation
        try:
            check_values(payload, cls.DESCRIPTOR)
            proto = cls.FromString(payload)
        except (DecodeError, InvalidArgument) as exc:
            raise unreadable(call.verb, f"the reply is not what was asked for: {exc}") from exc
        found = from_proto(proto)
        if isinstance(found, Operation):
            check_operation(call, found)
        return Reply(found)

    def error(self, call: Call, error: Any) -> CallError:
        """Return the error of a call that has failed in grpcio."""
        code = Code.of(error.code().value[0])
        status = _embedded_status(error, code)
        if status is None:
            text = error.details() or ""
            if code is Code.DEADLINE_EXCEEDED and text in _OWN_WORDS:
                return too_late(call.verb, call.budget)
            if code is Code.RESOURCE_EXHAUSTED and _is_too_large(call, text):
                return unreadable(call.verb, f"the reply is too large: {text}")
            if text == _NO_METHOD:
                text = f"method not found: {_path(call)}"
            if text.startswith(_UNCONNECTED) and UNTRUSTED.search(text):
                return CallError(call.verb, Status(Code.FAILED_PRECONDITION, text))
            # Without status details: the connection failed, or a proxy or a simple server replied.
            passing = code in (Code.UNAVAILABLE, Code.DEADLINE_EXCEEDED)
            return CallError(call.verb, Status(code, text), passing=passing)
        return CallError(call.verb, status, retry_after=_retry_after(status))


def _is_pair(pair: object) -> bool:
    # These are grpcio's own rules, which it checks only when a call is made.
    if not isinstance(pair, tuple) or len(pair) != 2:
        return False
    key, value = pair
    if not isinstance(key, str) or not _KEY.fullmatch(key):
        return False
    if key.endswith("-bin"):
        return isinstance(value, bytes)
    return isinstance(value, str) and bool(_TEXT.fullmatch(value))


def start_to_binary(request: StartRequest, types: TypeRegistry) -> bytes:
    """Return the message of a start in binary form, with its options (spec §9.1, §9.7).

    If the message has a field with an option's name, the option is written to that field.

    Raises:
        UnknownType, EncodingError, DeclarationError: The message has no binary form.
        InvalidArgument: An option does not fit the message's field.
    """
    given = request.message
    packed = given if isinstance(given, AnyMessage) else types.pack(given)
    cls: Any = types.binary.message_class(packed.type_name)
    message = cls.FromString(types.binary_payload(packed))
    beside = {}
    for field in attrs.fields(StartOptions):
        value = getattr(request, field.name)
        if field.name not in cls.DESCRIPTOR.fields_by_name:
            beside[field.name] = value
        elif value:
            _set(message, field.name, value)
    return bytes(message.SerializeToString()) + write_options(StartOptions(**beside))


def _set(message: Any, name: str, value: str | bool) -> None:
    try:
        setattr(message, name, value)
    except (TypeError, ValueError) as exc:
        raise InvalidArgument(name, str(exc)) from exc


def _path(call: Call) -> str:
    if not isinstance(call.request, StartRequest):
        return _SERVICE + call.verb
    target = call.request.target
    found = _METHOD.fullmatch(target)
    if found is None:
        wanted = "must be package.Service.Method or /package.Service/Method over gRPC"
        raise InvalidArgument("target", f"{wanted}, got {target!r}")
    return f"/{found[1] or found[3]}/{found[2] or found[4]}"


def _embedded_status(error: Any, code: Code) -> Status | None:
    # Read as pairs, because dict() fails for the metadata of some versions of grpc.aio.
    pairs = error.trailing_metadata() or ()
    details = next((value for key, value in pairs if key == _STATUS_DETAILS), b"")
    try:
        status = status_from_proto(StatusProto.FromString(details))
    except DecodeError:
        return None
    return status if details and status.code == code else None  # codes must agree (spec §12.2)


def _is_too_large(call: Call, text: str) -> bool:
    found = _TOO_LARGE.search(text)
    # Only a start can be so large that a server refuses the request with this message.
    start = isinstance(call.request, StartRequest)
    return found is not None and (found[1] is not None or not start)


def _retry_after(status: Status) -> float | None:
    found = None
    for detail in decoded(status):
        if isinstance(detail, RetryInfo) and detail.retry_delay is not None:
            found = min(detail.retry_delay.total_seconds(), _MAX_PAUSE_SECONDS)
    return found


def unsent(call: Call, error: Exception) -> CallError:
    """Return the error of a call that could not be made."""
    return CallError(call.verb, Status(Code.INVALID_ARGUMENT, f"cannot be called: {error}"))
