"""Types of fields in filters, and readers of their JSON values (spec §7.9).

Only the functions at the end of this module use shapes.
"""

from __future__ import annotations

import enum
import math
import re
import struct
import typing
from collections.abc import Callable, Mapping
from datetime import datetime
from fractions import Fraction
from typing import Final, TypeAlias

import attrs

from lro._base.errors import InvalidArgument
from lro._base.status import WRAPPED_TYPES, Json
from lro._filters.parse import Member
from lro._messages.schema import Field, Kind, Label, Shape
from lro._messages.times import Duration, Timestamp, parse_duration, parse_timestamp

MAX_NUMBER_LENGTH: Final = 400
MAX_EXPONENT: Final = 308
SEPARATOR: Final = "\ud800"
"""Separates the searched strings: a lone surrogate, which no pattern can contain."""

_NUMBER: Final = re.compile(r"-?[0-9]+(?:\.[0-9]+)?(?:[eE]([+-]?[0-9]+))?")
_NANO: Final = 10**9


def is_number(text: str) -> bool:
    """Return True for a number in the form of spec §7.10(2) and within its limits."""
    match = _NUMBER.fullmatch(text) if len(text) <= MAX_NUMBER_LENGTH else None
    return match is not None and abs(int(match[1] or 0)) <= MAX_EXPONENT


def exact(text: str) -> int | Fraction:
    """Return the exact number. :func:`is_number` bounds its size."""
    number = Fraction(text)
    return number.numerator if number.denominator == 1 else number


def double(number: float | Fraction) -> float:
    """Return a number as a 64-bit float, infinite if it is too large."""
    try:
        return float(number)
    except OverflowError:
        return math.inf if number > 0 else -math.inf


def single(number: float) -> float:
    """Return the nearest 32-bit float."""
    try:
        rounded: float = struct.unpack("<f", struct.pack("<f", number))[0]
    except OverflowError:
        return math.inf if number > 0 else -math.inf
    return rounded


def single_literal(text: str) -> float:
    """Return the 32-bit float nearest to a number, rounded once.

    Rounding to 64 bits first could give the midpoint of two 32-bit floats, which would then be
    rounded wrongly. So round to odd: an inexact 64-bit value becomes the neighbour with an odd last
    bit, which is never a midpoint.
    """
    near = float(text)
    number = Fraction(text)
    if math.isfinite(near) and Fraction(near) != number:
        bits: int = struct.unpack("<q", struct.pack("<d", near))[0]
        if not bits & 1:
            near = math.nextafter(near, math.inf if number > near else -math.inf)
    return single(near)


def duration(text: str) -> int | None:
    """Return the nanoseconds of a duration's JSON form; None for any other text (spec §1.11)."""
    try:
        return _nanoseconds(parse_duration(text))
    except InvalidArgument:
        return None


def timestamp(text: str) -> int | None:
    """Return the nanoseconds since 1970 of a timestamp's JSON form, or None (spec §1.12)."""
    try:
        return _nanoseconds(parse_timestamp(text))
    except InvalidArgument:
        return None


def moment(value: datetime) -> int:
    """Return the nanoseconds since 1970 of a datetime with a time zone."""
    return _nanoseconds(Timestamp.from_datetime(value))


def _nanoseconds(value: Duration | Timestamp) -> int:
    return value.seconds * _NANO + value.nanos


@attrs.frozen
class Pattern:
    """A text with wildcards: the pieces before, between and after the stars."""

    pieces: tuple[str, ...]

    @classmethod
    def of(cls, literal: Member) -> Pattern:
        """Return the pattern of a literal; without stars it has one piece."""
        text, pieces, start = literal.text, [], 0
        for star in literal.stars:
            pieces.append(text[start:star])
            start = star + 1
        return cls((*pieces, text[start:]))

    def for_search(self) -> Pattern:
        """Return the pattern for :meth:`occurs_in` and casefolded text."""
        return Pattern(tuple(piece.casefold() for piece in self.pieces if piece) or ("",))

    def matches(self, text: str) -> bool:
        """Return True if the whole text matches; one pass puts each piece as early as possible."""
        head, *middle = self.pieces
        if not middle:
            return text == head
        tail = middle.pop()
        end = len(text) - len(tail)
        if len(head) > end or not text.startswith(head) or not text.endswith(tail):
            return False
        return _in_order(middle, text, len(head), end)

    def occurs_in(self, joined: str) -> bool:
        """Return True if the pattern matches inside one of the strings that SEPARATOR joins."""
        head, *rest = self.pieces
        start = joined.find(head)
        while rest and start >= 0:
            end = joined.find(SEPARATOR, start)
            end = len(joined) if end < 0 else end
            if _in_order(rest, joined, start + len(head), end):
                return True
            # Skip this string: after a later match of the first piece, the other pieces would have
            # less text to match. Go on with the next string that has the second piece.
            following = joined.find(rest[0], end + 1)
            if following < 0:
                return False
            start = joined.find(head, joined.rfind(SEPARATOR, end, following) + 1)
        return start >= 0


def _in_order(pieces: list[str], text: str, at: int, end: int) -> bool:
    for piece in pieces:
        at = text.find(piece, at, end)
        if at < 0:
            return False
        at += len(piece)
    return True


@attrs.frozen
class MessageType:
    """A message type of metadata or a response: its full name and its fields.

    The shape is ignored for a well-known type with a special JSON form. Without a shape, filters
    cannot test the fields of the message.
    """

    full_name: str
    shape: Shape | None


class ValueType(enum.Enum):
    """The types of left sides in spec §7.9; each type allows different tests."""

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
    METHOD_NAME = "the name of a method"
    # Filters can test only the presence of such a value.
    OPAQUE = "bytes, a field mask or a packed message"
    MESSAGE = "a message"
    STRUCT = "a Struct"
    DYNAMIC = "a dynamic value"  # a value in a Struct has a type of its own

    @property
    def ordered(self) -> bool:
        """True if the type supports ``<``, ``<=``, ``>`` and ``>=``."""
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
"""A value for comparison, read from a record or converted from a literal."""

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
    ValueType.METHOD_NAME: _text,
    ValueType.OPAQUE: _text,
}
"""Readers of a JSON value by type, which return None for a value of another type."""


def type_of_message(full_name: str) -> ValueType:
    """Return the type of messages of this name: a special type for well-known types."""
    return _WELL_KNOWN.get(full_name, ValueType.MESSAGE)


def type_of_field(field: Field) -> ValueType:
    """Return the type of one value of a field: of an element, or of a map's value."""
    if field.kind is Kind.MESSAGE:
        return type_of_message(field.message_name or "")
    return _SCALARS[field.kind]


def shape_below(field: Field) -> Shape:
    """Return the shape of the messages in a message field."""
    return field.shape


def enum_names(field: Field) -> Mapping[str, str]:
    """Return the names of an enum field, mapped to the names used in JSON (aliases differ)."""
    members = typing.cast("type[enum.Enum]", field.python).__members__
    return {name: member.name for name, member in members.items()}


def implicit(field: Field) -> bool:
    """Return True for a scalar whose absence means its default."""
    return field.label is Label.IMPLICIT and field.kind is not Kind.MESSAGE


def default_of(field: Field) -> Json:
    """Return the JSON form of the value of a missing implicit field."""
    zero = field.zero
    if isinstance(zero, enum.Enum):
        return zero.name
    return zero if isinstance(zero, str | bool | int | float) else ""
