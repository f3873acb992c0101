"""Request bodies of the HTTP edge (spec §5.9)."""

from __future__ import annotations

import re
from typing import Final, TypeVar

from lro._base.any import Json
from lro._base.errors import (
    InvalidArgument,
    InvalidTimeout,
    MalformedRequest,
    UnsupportedMediaType,
    got,
)
from lro._messages.json_text import dumps, loads_strict
from lro._messages.registry import TypeRegistry
from lro._messages.schema import Shape, json_name
from lro._model.names import parse_names
from lro._model.operation import (
    BatchGetOperationsRequest,
    CancelOperationRequest,
    WaitOperationRequest,
)

T = TypeVar("T", str, bool)

MAX_CONTENT_TYPE: Final = 200
"""Longest Content-Type, in characters (spec §5.9(6))."""

MANY_BYTES: Final = 64 * 1024
"""Bytes from which on a body is read in a thread, and not on an event loop."""

_Request = CancelOperationRequest | WaitOperationRequest
_REQUESTS: Final[dict[str, type[_Request]]] = {
    "CancelOperation": CancelOperationRequest,
    "WaitOperation": WaitOperationRequest,
}
_PARAMETER: Final = re.compile(r';[ \t]*([^\s;="]+)=("(?:[^"\\]|\\.)*"|[^;"]*)')
_SURROGATE: Final = re.compile(rb"\\u[dD][89a-fA-F]")
_WANTED: Final[dict[type, str]] = {str: "text", bool: "true or false"}


def media_type(content_type: str) -> tuple[str, str]:
    """The media type of a Content-Type header and its charset, in lower case; "" for none.

    Raises:
        UnsupportedMediaType: The header is longer than any that is taken.
    """
    if len(content_type) > MAX_CONTENT_TYPE:
        why = f"must have at most {MAX_CONTENT_TYPE} characters, got {len(content_type)}"
        raise UnsupportedMediaType("Content-Type", why)
    kind = content_type.partition(";")[0].strip().lower()
    for name, value in _PARAMETER.findall(content_type):
        if name.lower() == "charset":
            return kind, value.strip(' \t"').lower()
    return kind, ""


def read_object(content_type: str | None, body: bytes) -> dict[str, Json]:
    """The JSON object of a body; an empty or blank one is ``{}``.

    An empty Content-Type counts as a missing one: in WSGI the two are the same.

    Raises:
        UnsupportedMediaType: The header says something else than JSON in UTF-8, or is too long.
        MalformedRequest: The body is not a JSON object.
    """
    kind, charset = media_type(content_type) if content_type else ("", "")
    if not body.strip():
        return {}
    if content_type and (kind != "application/json" or charset not in ("", "utf-8", "utf8")):
        wanted = "must be application/json in UTF-8"
        raise UnsupportedMediaType("Content-Type", f"{wanted}, got {content_type[:100]!r}")
    value = _read_json(body)
    if not isinstance(value, dict):
        raise MalformedRequest("body", "must be a JSON object")
    return value


def _read_json(body: bytes) -> Json:
    try:
        value = loads_strict(body)
    except UnicodeDecodeError:
        raise MalformedRequest("body", "is not UTF-8") from None
    except ValueError as exc:
        raise MalformedRequest("body", f"is not JSON: {exc}") from None
    if _SURROGATE.search(body):
        # No field takes half a character (spec §1.9), and keys and Structs are refused it here:
        # what holds one could not be stored, or quoted in an error.
        try:
            dumps(value)
        except UnicodeEncodeError:
            raise MalformedRequest("body", "has an unpaired surrogate") from None
    return value


def read_request(
    rpc: str, path_name: str, content_type: str | None, body: bytes, types: TypeRegistry
) -> _Request:
    """The request of ``:cancel`` or ``:wait``: the body's fields and the path's name.

    Raises:
        UnsupportedMediaType, MalformedRequest: As :func:`read_object`; or a field is unknown, of
            the wrong type, or a name that is not the path's.
        InvalidTimeout: The timeout is not a duration.
    """
    fields = read_object(content_type, body)
    try:
        request: _Request = types.load(fields, _REQUESTS[rpc])
    except InvalidArgument as exc:
        refusal = InvalidTimeout if exc.field == "timeout" else MalformedRequest
        raise refusal(exc.field, exc.description) from None
    if request.name not in ("", path_name):
        raise MalformedRequest("name", f"must be that of the path, {path_name!r}")
    if isinstance(request, WaitOperationRequest):
        return WaitOperationRequest(path_name, request.timeout)
    return CancelOperationRequest(path_name)


def read_names(
    parent: str, content_type: str | None, body: bytes, types: TypeRegistry
) -> tuple[str, ...]:
    """The names that ``:batchGet`` and ``:watch`` ask for, each once (spec §3.11).

    All stand under the parent of the path: a proxy may have let the call pass by its path.

    Raises:
        UnsupportedMediaType, MalformedRequest: As :func:`read_object`; or a field is unknown or of
            the wrong type, or there are no names, or too many.
        InvalidOperationName, InvalidParent: One of the names is malformed, or of another parent.
    """
    fields = read_object(content_type, body)
    try:
        request = types.load(fields, BatchGetOperationsRequest)
    except InvalidArgument as exc:
        raise MalformedRequest(exc.field, exc.description) from None
    return parse_names(request.names, parent)


def take_field(
    fields: dict[str, Json], name: str, kind: type[T], default: T, shape: Shape | None
) -> T:
    """Take a field that is the library's own out of a body, by its JSON or proto name.

    It stays for a message whose ``shape`` has it too, as AIP-155 has a request's ``request_id``.

    Raises:
        InvalidArgument: The field is of another kind.
    """
    spelling = json_name(name)
    key = spelling if fields.get(spelling) is not None else name
    value = fields.get(key)
    if shape is None or name not in shape.spellings:
        for taken in {spelling, key}:
            fields.pop(taken, None)
    if value is None:
        return default
    if not isinstance(value, kind):
        raise InvalidArgument(name, f"must be {_WANTED[kind]}, got {got(value)}")
    return value
