"""Python values as the literals and path steps of filters (spec §7.1, §7.10, §7.11).

A subclass may show itself as anything, also as more than one value. So each is written by the
methods of the class that it comes from: never by ``str()``, a format or a method of its own.
"""

from __future__ import annotations

import enum
import math
import re
from collections.abc import Mapping
from datetime import datetime, timedelta
from decimal import Context, Decimal
from typing import Final, TypeAlias

from lro import Code, Duration, Timestamp, TypeRegistry
from lro.errors import EncodingError

Plain: TypeAlias = (
    str | bool | int | float | Decimal | datetime | timedelta | Timestamp | Duration | enum.Enum
)
"""What has a literal."""

_ALLOWED: Final = (
    "str, bool, int, float, Decimal, datetime, timedelta, lro.Timestamp, lro.Duration,"
    " a member of an enum"
)
_KEYWORDS: Final = frozenset({"AND", "OR", "NOT"})
_IDENTIFIER: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SURROGATE: Final = re.compile("[\ud800-\udfff]")
_ESCAPES: Final[Mapping[int, str]] = {
    **{code: f"\\u{code:04x}" for code in (*range(0x20), 0x7F)},
    **{ord(char): "\\" + char for char in '"\\'},
    ord("\n"): "\\n",
    ord("\r"): "\\r",
    ord("\t"): "\\t",
}
_STAR: Final[Mapping[int, str]] = {ord("*"): "\\*"}
_LEAST_EXPONENT: Final = -308
"""No smaller one is in the language (spec §7.10(2)), but there are smaller floats."""
_EXACT: Final = Context(prec=40)
_JSON: Final = TypeRegistry()


def literal(value: Plain) -> str:
    """A value as a filter writes it.

    Raises:
        TypeError: It is not a value of filters.
        ValueError: It cannot be written, or is out of the range of its type.
    """
    match value:
        case Code():
            return str(value.value)  # error.code is a number, not an enum
        case enum.Enum() if value.name and not isinstance(value, enum.Flag):
            name = text_of(value.name, "an enum's member with a text as its name")
            return name if is_name(name) else f'"{escaped(name)}"'
        case bool():
            return "true" if value else "false"
        case str():
            return f'"{escaped(value)}"'
        case int():
            return int.__repr__(value)
        case float() | Decimal():
            return _number(value)
        case datetime() | timedelta() | Timestamp() | Duration():
            return _time(value)
    raise not_a_value(value)


def not_a_value(value: object) -> TypeError:
    """The error for a value that has no literal."""
    found = f"{value!r} of type {type(value).__name__}"
    wanted = f"a filter compares with {_ALLOWED} or a call, not with {found}"
    return TypeError(f"{wanted}; what is absent is found by ~x.exists(), several by x.one_of()")


def text_of(value: str, wanted: str = "a text") -> str:
    """The same text as a plain str.

    Raises:
        TypeError: It is not a text; ``wanted`` says what should stand here.
    """
    if not isinstance(value, str):
        raise TypeError(f"expected {wanted}, got {value!r} of type {type(value).__name__}")
    return str.__str__(value)


def pattern(text: str) -> str:
    """A string all of whose stars are wildcards."""
    return f'"{_unstarred(text)}"'


def escaped(text: str) -> str:
    """What stands between double quotes for this text, stars included.

    Raises:
        TypeError: It is not a text.
        ValueError: It holds half of a surrogate pair.
    """
    return _unstarred(text).translate(_STAR)


def step(key: str | int) -> str:
    """One step of a path, quoted unless it is a plain name; stars mean nothing in it.

    Raises:
        TypeError, ValueError: As :func:`escaped`.
    """
    if isinstance(key, int):
        return f'"{str(key).lower() if isinstance(key, bool) else int.__repr__(key)}"'
    name = text_of(key)
    return name if is_name(name) else f'"{_unstarred(name)}"'


def is_name(text: str) -> bool:
    """Whether a text may stand unquoted, for every service: no keyword in any letter case."""
    return bool(_IDENTIFIER.fullmatch(text)) and text.upper() not in _KEYWORDS


def _unstarred(text: str) -> str:
    text = text_of(text)
    half = _SURROGATE.search(text)
    if half:
        raise ValueError(f"half of a surrogate pair at {half.start()} cannot be written: {text!r}")
    return text.translate(_ESCAPES)


def _number(value: float | Decimal) -> str:
    if not (Decimal.is_finite(value) if isinstance(value, Decimal) else math.isfinite(value)):
        raise ValueError(f"a filter compares only with finite numbers, got {value!r}")
    if isinstance(value, Decimal):
        return Decimal.__str__(value)
    text = float.__repr__(value)
    digits, _, exponent = text.partition("e")
    if not exponent or int(exponent) >= _LEAST_EXPONENT:
        return text
    shifted = _EXACT.scaleb(Decimal(digits), int(exponent) - _LEAST_EXPONENT)
    return f"{shifted:f}e{_LEAST_EXPONENT}"


def _time(value: datetime | timedelta | Timestamp | Duration) -> str:
    if isinstance(value, datetime):
        plain: Timestamp | Duration = Timestamp.from_datetime(_aware(value))
    elif isinstance(value, timedelta):
        plain = Duration.from_timedelta(timedelta.__add__(value, timedelta()))
    elif isinstance(value, Timestamp):
        plain = Timestamp(_whole(value.seconds), _whole(value.nanos))
    else:
        plain = Duration(_whole(value.seconds), _whole(value.nanos))
    try:
        text = _JSON.dump(plain)
    except EncodingError as exc:
        raise ValueError(str(exc)) from None
    return str(text) if isinstance(plain, Duration) else f'"{text}"'


def _aware(value: datetime) -> datetime:
    """The same moment as a plain datetime, whose time zone is its offset."""
    plain = datetime.fromisoformat(datetime.isoformat(value))
    if plain.tzinfo is None:
        raise ValueError(
            f"{value!r} has no time zone, or one that gives no offset: an aware datetime is wanted,"
            " such as datetime.now(UTC)"
        )
    return plain


def _whole(value: int) -> int:
    if not isinstance(value, int):
        raise TypeError(f"seconds and nanos are whole numbers, got {value!r}")
    return int.__int__(value)
