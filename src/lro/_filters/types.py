"""How filters see the types of fields, and how their JSON values are read (spec §7.9).

The functions at the end are all that filters know of where a shape comes from.
"""

from __future__ import annotations

import enum
import math
import re
import typing
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Final, TypeAlias

import attrs

from lro._base.any import WRAPPED_TYPES, Json
from lro._filters.literals import double, duration, single, timestamp
from lro._messages.schema import Field, Kind, Label, Shape


@attrs.frozen
class MessageType:
    """A message type that metadata or a response may have: its full name and its fields.

    The shape of a well-known type with a JSON form of its own is not looked at. Without a shape
    nothing below the message can be asked for.
    """

    full_name: str
    shape: Shape | None


class ValueType(enum.Enum):
    """The left types of spec §7.9, by what can be asked of a value."""

    TEXT = "text"
    INTEGER = "an integer"
    SINGLE = "a float"
    DOUBLE = "a double"
    BOOL = "a bool"
    ENUM = "an enum"
    TIMESTAMP = "a timestamp"
    DURATION = "a duration"
    MOMENT = "a time of the record"  # nanoseconds since 1970, not JSON text
    TYPE_NAME = "the name of a type"
    OPAQUE = "bytes, a field mask or a packed message"  # only presence can be asked
    MESSAGE = "a message"
    STRUCT = "a Struct"
    DYNAMIC = "a dynamic value"  # in a Struct: typed by what it holds

    @property
    def ordered(self) -> bool:
        """True if ``<`` and its like can be asked."""
        return self in _ORDERED

    @property
    def named(self) -> bool:
        """True for a message with fields or keys."""
        return self in (ValueType.MESSAGE, ValueType.STRUCT)


_ORDERED: Final = frozenset(
    {
        ValueType.TEXT,
        ValueType.INTEGER,
        ValueType.SINGLE,
        ValueType.DOUBLE,
        ValueType.TIMESTAMP,
        ValueType.DURATION,
        ValueType.MOMENT,
        ValueType.DYNAMIC,
    }
)
_SCALARS: Final[Mapping[Kind, ValueType]] = {
    Kind.STRING: ValueType.TEXT,
    Kind.BYTES: ValueType.OPAQUE,
    Kind.BOOL: ValueType.BOOL,
    Kind.INT32: ValueType.INTEGER,
    Kind.INT64: ValueType.INTEGER,
    Kind.UINT32: ValueType.INTEGER,
    Kind.UINT64: ValueType.INTEGER,
    Kind.FLOAT: ValueType.SINGLE,
    Kind.DOUBLE: ValueType.DOUBLE,
    Kind.ENUM: ValueType.ENUM,
}
_WELL_KNOWN: Final[Mapping[str, ValueType]] = {
    **dict.fromkeys(WRAPPED_TYPES, ValueType.OPAQUE),
    "google.protobuf.Duration": ValueType.DURATION,
    "google.protobuf.Timestamp": ValueType.TIMESTAMP,
    "google.protobuf.Struct": ValueType.STRUCT,
    "google.protobuf.Value": ValueType.DYNAMIC,
    "google.protobuf.ListValue": ValueType.DYNAMIC,
    "google.protobuf.BoolValue": ValueType.BOOL,
    "google.protobuf.DoubleValue": ValueType.DOUBLE,
    "google.protobuf.FloatValue": ValueType.SINGLE,
    "google.protobuf.Int32Value": ValueType.INTEGER,
    "google.protobuf.Int64Value": ValueType.INTEGER,
    "google.protobuf.UInt32Value": ValueType.INTEGER,
    "google.protobuf.UInt64Value": ValueType.INTEGER,
    "google.protobuf.StringValue": ValueType.TEXT,
}

Comparable: TypeAlias = "str | bool | int | float | Fraction"
"""What is compared: read from a record, or converted from a literal."""

_INTEGER: Final = re.compile(r"-?[0-9]{1,20}")
_SPECIAL: Final = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def _text(value: Json) -> str | None:
    return value if isinstance(value, str) else None


def _bool(value: Json) -> bool | None:
    return value if isinstance(value, bool) else None


def _integer(value: Json) -> int | None:
    if isinstance(value, str):
        return int(value) if _INTEGER.fullmatch(value) else None
    if isinstance(value, float):
        return int(value) if value.is_integer() else None
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _double(value: Json) -> float | None:
    if isinstance(value, str):
        return _SPECIAL.get(value)
    if isinstance(value, int | float) and not isinstance(value, bool):
        return double(value)
    return None


def _single(value: Json) -> float | None:
    number = _double(value)
    return None if number is None else single(number)


def _enum(value: Json) -> str | int | None:
    if isinstance(value, str):
        return value
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _timestamp(value: Json) -> int | None:
    return timestamp(value) if isinstance(value, str) else None


def _duration(value: Json) -> int | None:
    return duration(value) if isinstance(value, str) else None


READ: Final[Mapping[ValueType, Callable[[Json], Comparable | None]]] = {
    ValueType.TEXT: _text,
    ValueType.INTEGER: _integer,
    ValueType.SINGLE: _single,
    ValueType.DOUBLE: _double,
    ValueType.BOOL: _bool,
    ValueType.ENUM: _enum,
    ValueType.TIMESTAMP: _timestamp,
    ValueType.DURATION: _duration,
    ValueType.MOMENT: _integer,
    ValueType.TYPE_NAME: _text,
    ValueType.OPAQUE: _text,
}
"""Reads one JSON value as its type; None where it is not of that type."""


def type_of_message(full_name: str) -> ValueType:
    """What messages of this name are: of the well-known types, what their JSON form says."""
    return _WELL_KNOWN.get(full_name, ValueType.MESSAGE)


def type_of_field(field: Field) -> ValueType:
    """What one value of a field is: of its elements, or of the values of its map."""
    if field.kind is Kind.MESSAGE:
        return type_of_message(field.message_name or "")
    return _SCALARS[field.kind]


def shape_below(field: Field) -> Shape:
    """The shape of the messages in a message field."""
    return field.shape


def enum_names(field: Field) -> Mapping[str, str]:
    """The names of an enum field's values; an alias stands for the name that JSON prints."""
    members = typing.cast("type[enum.Enum]", field.python).__members__
    return {name: member.name for name, member in members.items()}


def implicit(field: Field) -> bool:
    """True for a scalar whose absence means its default."""
    return field.label is Label.IMPLICIT and field.kind is not Kind.MESSAGE


def default_of(field: Field) -> Json:
    """The JSON form of what an implicit field is when it is missing."""
    zero = field.zero
    if isinstance(zero, enum.Enum):
        return zero.name
    return zero if isinstance(zero, str | bool | int | float) else ""
