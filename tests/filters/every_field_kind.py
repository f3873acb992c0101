"""A message with kinds of fields that the vectors lack, and helpers that compile its filters."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from datetime import datetime

import attrs
import pytest

from lro import AnyMessage, Int32, Struct, TypeRegistry, message
from lro._filters.filter import Filter, compile_filter
from lro._filters.types import MessageType
from lro.errors import InvalidFilter
from lro.types import BytesValue, FieldMask, Float, Int64, Json, ListValue, UInt32, Value
from tests.filters.messages import Row, types, url

NAME = "acme.v1.Everything"


@message("acme.v1.Node")
@attrs.frozen
class Node:
    label: str = ""
    below: Node | None = None
    links: tuple[Node, ...] = ()


class Colour(enum.Enum):
    RED = 0
    GREEN = 1
    VERT = GREEN


@message(NAME)
@attrs.frozen
class Everything:
    """A message with the kinds of fields that the vectors' messages lack."""

    value: Value | None = None
    loose: object | None = None
    listed: ListValue | None = None
    values: tuple[Value, ...] = ()
    structs: tuple[Struct, ...] = ()
    lists: tuple[ListValue, ...] = ()
    by_key: Mapping[str, Value] = attrs.field(factory=dict)
    flags: Mapping[bool, str] = attrs.field(factory=dict)
    by_id: Mapping[UInt32, str] = attrs.field(factory=dict)
    by_long: Mapping[Int64, Node] = attrs.field(factory=dict)
    open: Mapping[str, object] = attrs.field(factory=dict)
    colour: Colour = Colour.RED
    maybe: Colour | None = None
    limit: Int32 = 5
    ratio: Float = 0.0
    rate: float = 0.0
    ratios: tuple[Float, ...] = ()
    blob: BytesValue | None = None
    raw: bytes | None = None
    blobs: tuple[bytes, ...] = ()
    mask: FieldMask | None = None
    packed: tuple[AnyMessage, ...] = ()
    node: Node | None = None
    when: tuple[datetime, ...] = ()


EVERYTHING = types([NAME], TypeRegistry(Everything))


def compiled(
    text: str, metadata: Sequence[MessageType] = EVERYTHING, response: Sequence[MessageType] = ()
) -> Filter:
    """Compile a filter for metadata of these types."""
    return compile_filter(text, metadata=metadata, response=response)


def matches(text: str, payload: Json | bytes) -> bool:
    """Return whether the filter matches an operation with this metadata, which may be malformed."""
    return compiled(text).matches(Row(metadata=AnyMessage(url(NAME), payload)))


def refused(text: str, metadata: Sequence[MessageType] = EVERYTHING) -> InvalidFilter:
    """Return the message of the error about a filter that does not fit the types."""
    with pytest.raises(InvalidFilter) as caught:
        compiled(text, metadata)
    return caught.value


def refusal(text: str, metadata: Sequence[MessageType] = EVERYTHING) -> str:
    return refused(text, metadata).description


def deep_list(depth: int, inner: Json = "innermost") -> Json:
    """Return ``inner`` inside ``depth`` nested lists."""
    for _ in range(depth):
        inner = [inner]
    return inner
