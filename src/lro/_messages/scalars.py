"""Values of scalar fields and enums, from JSON and to JSON (spec §1.8, §1.9)."""

from __future__ import annotations

import base64
import binascii
import enum
import math
import re
import struct
from collections.abc import Callable, Mapping
from typing import Final

from lro._base.errors import InvalidArgument, got
from lro._base.status import Json
from lro._messages.schema import Kind

_NUMBER_TEXT: Final = re.compile(r"-?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?", re.ASCII)
_LONGEST: Final = 400
"""Length of the longest quoted number that is read; the largest double has 309 digits."""
_URL_SAFE: Final = str.maketrans("-_", "+/")
_SPECIAL: Final[Mapping[str, float]] = {
    "NaN": math.nan,
    "Infinity": math.inf,
    "-Infinity": -math.inf,
}
_RANGES: Final[Mapping[Kind, tuple[int, int]]] = {
    Kind.INT32: (-(2**31), 2**31 - 1),
    Kind.UINT32: (0, 2**32 - 1),
    Kind.INT64: (-(2**63), 2**63 - 1),
    Kind.UINT64: (0, 2**64 - 1),
}

EXACT: Final = 2**53 - 1
"""The largest integer that every JSON parser reads exactly, even as a double."""

Loader = Callable[[Json], object]
Dumper = Callable[[object], Json]


def _wrong(wanted: str, value: object) -> InvalidArgument:
    return InvalidArgument("", f"must be {wanted}, got {got(value)}")


def is_text(value: str) -> bool:
    """True if a string has no unpaired surrogate."""
    if value.isascii():
        return True
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def load_string(value: Json) -> str:
    """Read a string without unpaired surrogates."""
    if type(value) is not str:
        raise _wrong("a string", value)
    if not (value.isascii() or is_text(value)):
        raise _wrong("text without unpaired surrogates", value)
    return value


def dump_string(value: object) -> str:
    """Write a string."""
    if type(value) is str:
        return load_string(value)
    if not isinstance(value, str):
        raise _wrong("a string", value)
    return load_string(str.__str__(value))  # str() would write an enum member as "Colour.RED"


def load_bool(value: Json) -> bool:
    """Read true or false, unquoted."""
    if type(value) is not bool:
        raise _wrong("true or false", value)
    return value


def dump_bool(value: object) -> Json:
    """Write a bool."""
    return value if type(value) is bool else _refuse("true or false", value)


def load_bytes(value: Json) -> bytes:
    """Read standard or URL-safe base64, with or without padding."""
    if type(value) is not str:
        raise _wrong("base64 text", value)
    bare = value.rstrip("=")
    padding = -len(bare) % 4
    if len(value) - len(bare) not in (0, padding):
        raise _wrong("base64 text", value)
    padded = bare.translate(_URL_SAFE) + "=" * padding
    try:
        return binascii.a2b_base64(padded, strict_mode=True)
    except ValueError:
        raise _wrong("base64 text", value) from None


def dump_bytes(value: object) -> Json:
    """Write standard base64 with padding."""
    if not isinstance(value, (bytes, bytearray, memoryview)):
        return _refuse("bytes", value)
    return base64.b64encode(value).decode("ascii")


def _integer(kind: Kind, largest: int | None = None) -> tuple[Loader, Dumper]:
    # Up to ``largest``, an integer is written as a number; a larger one as text. By default, only
    # integers of 32 bits are numbers.
    low, high = _RANGES[kind]
    wanted = f"an {kind.value}" if kind.value[0] == "i" else f"a {kind.value}"
    most = largest if largest is not None else -1 if high > 2**32 else high + 1

    def load(value: Json) -> int:
        number = value if type(value) is int else _whole(value)
        if number is None:
            raise _wrong(wanted, value)
        if not low <= number <= high:
            raise _wrong(f"from {low} to {high}", value)
        return number

    def dump(value: object) -> Json:
        if not isinstance(value, int) or value is True or value is False:
            return _refuse(wanted, value)
        if not low <= value <= high:
            _refuse(f"from {low} to {high}", value)
        number = int(value)
        return number if -most <= number <= most else str(number)

    return load, dump


def _whole(value: Json) -> int | None:
    if isinstance(value, str):
        if not _NUMBER_TEXT.fullmatch(value) or len(value) > _LONGEST:
            return None
        from decimal import Decimal, InvalidOperation

        try:
            exact = Decimal(value)  # a float would lose digits of long numbers
        except InvalidOperation:  # raised for an exponent of 20 digits, for instance
            return None
        # A number with more digits exceeds every range, and converting it to an int would take
        # long.
        small = exact.adjusted() < _LONGEST
        return int(exact) if small and exact == exact.to_integral_value() else None
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return None


def _floating(kind: Kind) -> tuple[Loader, Dumper]:
    def in_range(value: float | str) -> float | None:
        try:
            number = float(value)
        except OverflowError:
            return None
        return _single(number) if kind is Kind.FLOAT else number

    def load(value: Json) -> float:
        if isinstance(value, str):
            if value in _SPECIAL:
                return _SPECIAL[value]
            if not _NUMBER_TEXT.fullmatch(value):
                raise _wrong("a number", value)
        elif not isinstance(value, float) and type(value) is not int:
            raise _wrong("a number", value)
        number = in_range(value)
        if number is None or math.isinf(number):
            raise _wrong(f"within the range of {kind.value}", value)
        return number

    def dump(value: object) -> Json:
        if not isinstance(value, (float, int)) or isinstance(value, bool):
            return _refuse("a number", value)
        if isinstance(value, float) and not math.isfinite(value):
            return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
        number = in_range(value)
        if number is None or math.isinf(number):
            return _refuse(f"within the range of {kind.value}", value)
        return _shortest(number) if kind is Kind.FLOAT else number

    return load, dump


def _single(number: float) -> float:
    try:
        rounded: float = struct.unpack("<f", struct.pack("<f", number))[0]
    except OverflowError:
        return math.copysign(math.inf, number)
    return rounded


def _shortest(single: float) -> float:
    # Returns the number with the fewest decimal digits that identify the 32-bit number, as protobuf
    # prints it.
    for digits in (6, 7, 8):
        short = float(f"{single:.{digits}g}")
        if _single(short) == single:
            return short
    return float(f"{single:.9g}")


def _refuse(wanted: str, value: object) -> Json:
    raise _wrong(wanted, value)


LOADERS: Final[Mapping[Kind, Loader]] = {
    Kind.STRING: load_string,
    Kind.BOOL: load_bool,
    Kind.BYTES: load_bytes,
    **{kind: _integer(kind)[0] for kind in _RANGES},
    Kind.FLOAT: _floating(Kind.FLOAT)[0],
    Kind.DOUBLE: _floating(Kind.DOUBLE)[0],
}
DUMPERS: Final[Mapping[Kind, Dumper]] = {
    Kind.STRING: dump_string,
    Kind.BOOL: dump_bool,
    Kind.BYTES: dump_bytes,
    **{kind: _integer(kind)[1] for kind in _RANGES},
    Kind.FLOAT: _floating(Kind.FLOAT)[1],
    Kind.DOUBLE: _floating(Kind.DOUBLE)[1],
}


dump_plain_int: Final[Dumper] = _integer(Kind.INT64, EXACT)[1]
"""Writes a plain ``int``: a number if every JSON parser reads it exactly, otherwise text."""


def enum_numbers(cls: type[enum.Enum]) -> Mapping[int, enum.Enum]:
    """Return members by proto number: the value in an int enum, else the position in the class."""
    if issubclass(cls, int):
        return {int(member.value): member for member in cls}
    return dict(enumerate(cls))


def enum_loader(
    names: Mapping[str, object], of_number: Callable[[int], object | None], unknown: object
) -> Loader:
    """Return the reader of an enum's names and numbers (spec §1.9).

    ``names`` has the values by name; ``of_number`` finds the value of a number. An unknown name or
    number is read as ``unknown``, or refused if ``unknown`` is None.
    """

    def load(value: Json) -> object:
        if isinstance(value, str):
            member = names.get(value)
        elif type(value) is int:
            member = of_number(value)
        else:
            raise _wrong(f"one of {', '.join(names)}", value)
        if member is None:
            if unknown is None:
                raise _wrong(f"one of {', '.join(names)}", value)
            return unknown
        return member

    return load


def enum_codec(cls: type[enum.Enum], unknown: object) -> tuple[Loader, Dumper]:
    """Return the reader of a Python enum (see :func:`enum_loader`), and the writer of its names."""
    names = dict(cls.__members__)

    def dump(value: object) -> Json:
        if isinstance(value, cls):
            return value.name
        return _refuse(f"one of {', '.join(names)}", value)

    return enum_loader(names, enum_numbers(cls).get, unknown), dump
