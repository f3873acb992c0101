"""Convert A2A messages to requests of methods (A2A 4.1.4, 4.1.6)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, Final

from a2a.types import Message, Part, SendMessageRequest
from a2a.utils.errors import ContentTypeNotSupportedError
from a2a.utils.proto_utils import validate_proto_required_fields
from google.protobuf.message import Message as ProtoMessage
from google.protobuf.struct_pb2 import Struct, Value

from lro import Method
from lro.errors import InvalidArgument, got
from lro.types import Json

_EXACT: Final = 2**53
"""Below this number, a double can represent every integer exactly."""


class _Rounded(float):
    """A whole number that may have lost digits, so it must not be accepted as an integer.

    Every number in a data part is a double (google.protobuf.Value).
    """

    def is_integer(self) -> bool:
        return False

    def __repr__(self) -> str:
        return f"{float(self)} (rounded on its way: send a text)"


def json_of(value: Value, path: str = "") -> Json:
    """Return the JSON value of a part's data, with exact whole numbers as integers.

    Raises:
        InvalidArgument: A number is infinite or not a number.
    """
    kind = value.WhichOneof("kind")
    if kind == "struct_value":
        return object_of(value.struct_value, path)
    if kind == "list_value":
        values = value.list_value.values
        return [json_of(one, f"{path}[{place}]") for place, one in enumerate(values)]
    if kind == "number_value":
        return _number(value.number_value, path)
    if kind == "string_value":
        return value.string_value
    return value.bool_value if kind == "bool_value" else None


def object_of(struct: Struct, path: str = "") -> dict[str, Json]:
    """Return the JSON object of a Struct, with values as from :func:`json_of`.

    Raises:
        InvalidArgument: As for :func:`json_of`.
    """
    return {
        key: json_of(one, f"{path}.{key}" if path else key) for key, one in struct.fields.items()
    }


def _number(number: float, path: str) -> Json:
    if not math.isfinite(number):
        raise InvalidArgument(path, f"must be a finite number, got {number}")
    if not number.is_integer():
        return number
    return int(number) if abs(number) < _EXACT else _Rounded(number)


def check_required(params: ProtoMessage) -> None:
    """Raise the SDK's error if a message lacks a required field (A2A 5.7).

    The SDK checks value by value: a megabyte of parts would block the event loop for many seconds.
    So the SDK checks a copy without the parts, in which no field is required.
    """
    outline = params
    if isinstance(params, SendMessageRequest) and params.HasField("message"):
        outline = SendMessageRequest()
        outline.CopyFrom(params)
        outline.ClearField("metadata")
        outline.message.ClearField("metadata")
        del outline.message.parts[1:]
        for part in outline.message.parts:
            part.Clear()
    validate_proto_required_fields(outline)


def check_media_types(parts: Iterable[Part], modes: frozenset[str]) -> None:
    """Raise the SDK's error if the agent does not take the media type of a part (A2A 3.1.1)."""
    for part in parts:
        kind = part.media_type.partition(";")[0].strip().lower()
        if kind and kind not in modes:
            raise not_supported(f"parts of {got(part.media_type)} are not read", modes)


def not_supported(why: str, modes: frozenset[str]) -> ContentTypeNotSupportedError:
    """Return the error for a message with content that the agent does not read."""
    text = f"{why}; the agent reads {', '.join(sorted(modes))}"
    return ContentTypeNotSupportedError(message=text)


def data_of(message: Message) -> Value | None:
    """Return the data of the first data part of a message; None if it has no data part."""
    return next((part.data for part in message.parts if part.HasField("data")), None)


def chosen(
    methods: Mapping[str, Method[Any, Any, Any]], key: str, *said: Struct
) -> Method[Any, Any, Any]:
    """Return the method that ``key`` of the metadata names, or else the only method.

    Raises:
        InvalidArgument: The name is unknown, or is missing although there are several methods.
    """
    named = next((struct.fields[key] for struct in said if key in struct.fields), None)
    known = ", ".join(methods)
    if named is None:
        if len(methods) == 1:
            return next(iter(methods.values()))
        wanted = f"must name the skill that the message is for, as {key!r}: one of {known}"
        raise InvalidArgument("message.metadata", wanted)
    method = methods.get(named.string_value)
    if method is None:
        given = got(named.string_value or json_of(named, key))
        raise InvalidArgument(f"message.metadata.{key}", f"must be one of {known}, got {given}")
    return method
