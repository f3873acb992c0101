"""Request bodies of the HTTP edge (spec §5.9)."""

from __future__ import annotations

from email.message import Message
from typing import Final

from lro._any import Json
from lro._errors import InvalidArgument, MalformedRequest, UnsupportedMediaType
from lro._jsontext import loads_strict
from lro._operation import CancelOperationRequest, WaitOperationRequest
from lro._types import TypeRegistry

_Request = CancelOperationRequest | WaitOperationRequest
_REQUESTS: Final[dict[str, type[_Request]]] = {
    "CancelOperation": CancelOperationRequest,
    "WaitOperation": WaitOperationRequest,
}


def media_type(content_type: str) -> tuple[str, str]:
    """The media type of a Content-Type header and its charset, in lower case; "" for none."""
    header = Message()
    header["content-type"] = content_type
    charset = header.get_param("charset", "")
    return header.get_content_type(), str(charset).lower()


def read_object(content_type: str | None, body: bytes) -> dict[str, Json]:
    """The JSON object of a body; an empty or blank one is ``{}``.

    Raises:
        UnsupportedMediaType: The header says something else than JSON in UTF-8.
        MalformedRequest: The body is no JSON object.
    """
    if not body.strip():
        return {}
    if content_type is not None:
        kind, charset = media_type(content_type)
        if kind != "application/json" or charset not in ("", "utf-8", "utf8"):
            wanted = "must be application/json in UTF-8"
            raise UnsupportedMediaType("Content-Type", f"{wanted}, got {content_type[:100]!r}")
    try:
        value = loads_strict(body)
    except UnicodeDecodeError:
        raise MalformedRequest("body", "is not UTF-8") from None
    except ValueError as exc:
        raise MalformedRequest("body", f"is not JSON: {exc}") from None
    if not isinstance(value, dict):
        raise MalformedRequest("body", "must be a JSON object")
    return value


def read_request(
    rpc: str, path_name: str, content_type: str | None, body: bytes, types: TypeRegistry
) -> _Request:
    """The request of ``:cancel`` or ``:wait``: the body's fields and the path's name.

    Raises:
        UnsupportedMediaType, MalformedRequest: As :func:`read_object`; or a field is unknown, of
            the wrong type, or a name that is not the path's.
    """
    fields = read_object(content_type, body)
    try:
        request: _Request = types.load(fields, _REQUESTS[rpc])
    except InvalidArgument as exc:
        raise MalformedRequest(exc.field, exc.description) from None
    if request.name not in ("", path_name):
        raise MalformedRequest("name", f"must be that of the path, {path_name!r}")
    if isinstance(request, WaitOperationRequest):
        return WaitOperationRequest(path_name, request.timeout)
    return CancelOperationRequest(path_name)
