"""JSON text (RFC 8259, spec §1.8): the only module that chooses a JSON library.

The standard library defines which texts and values are valid. With the extra ``fast``, orjson is
used where it agrees with the standard library. Values that orjson refuses or may treat differently
go to the standard library, so the extra changes no result.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from typing import Any, Final, NoReturn

from lro._base.status import Json

try:
    import orjson
except ImportError:  # the extra "fast" is not installed
    orjson = None  # type: ignore[assignment]

_OPTIONS: Final = (
    0 if orjson is None else orjson.OPT_PASSTHROUGH_DATACLASS | orjson.OPT_PASSTHROUGH_DATETIME
)

MAX_DEPTH: Final = 100
"""The deepest nesting of objects and lists that is read or written (spec §1.8(8))."""

MAX_MESSAGE_DEPTH: Final = 32
"""The deepest nesting of a packed message (spec §1.8(8)).

In binary form an object in a Struct takes three levels, and protobuf reads at most 100. With this
limit, every message with a JSON form also has a readable binary form, even inside the few levels
that replies and stores add.
"""

_AS_BRACES: Final = bytes.maketrans(b"[]", b"{}")
_NO_BRACKETS: Final = bytes(set(range(256)) - set(b'[]{}"'))
_LONG_TEXT: Final = 50_000
_DIGITS: Final = bytes.maketrans(b"123456789", b"000000000")
_LONG_NUMBER: Final = b"0" * 19
"""An integer of this many digits may exceed 64 bits, and orjson would read it as a float."""
_BEYOND_DOUBLE: Final = b"0" * 309
_EXPONENT: Final = re.compile(rb"0e-?0+(?:[,\]}]|\Z)")
"""Matches an exponent, in a text whose digits are all replaced by 0.

orjson and the standard library write numbers with an exponent differently.
"""
MAX_LISTS: Final = 100_000
"""The most lists in a request: parsing them takes about 50 ms, during which the GIL is held."""

MAX_VALUES: Final = 2_000_000
"""The most values in a JSON text. A comma counts as one; an object, list, string or key as two.

A byte of JSON can take many bytes of memory, so a limit of bytes does not bound memory.
"""
_OF_MANY_BYTES: Final = 2
_TOKENS: Final = re.compile(rb'(?P<comma>,)|[\[{]|"(?:[^"\\]++|\\.)*+"?+', re.DOTALL)
"""Matches one token.

An unterminated string is a token too. Otherwise each escaped quote in it would start a new scan.
"""


def dumps(value: Json) -> bytes:
    """Write a JSON value as compact UTF-8 text, which can be read again.

    Pass only JSON values: orjson may write an enum member or a UUID, which the standard library
    refuses. The value is not checked, because a check would take four times as long as writing.

    Raises:
        ValueError: The value is nested too deeply, or has a number or text that is invalid in JSON.
        TypeError: The value contains something that is not a JSON value.
    """
    if orjson is not None:
        try:
            text: bytes = orjson.dumps(value, option=_OPTIONS)
        except TypeError:  # raised for integers over 64 bits, for instance
            return _standard_dumps(value)
        # orjson writes null for NaN and infinity, and very small and large numbers in its own form.
        # Here and below, find() takes a quarter of the time of ``in``, which first tries to read
        # the bytes that it looks for as a number, and drops the error.
        if text.find(b"null") < 0 and text.find(b"0.0000") < 0:
            zeros = text.translate(_DIGITS)
            if zeros.find(b"0e") < 0 or _EXPONENT.search(zeros) is None:
                return text
    return _standard_dumps(value)


def canonical(value: Json) -> bytes:
    """Write a JSON value as text with sorted members, so that equal values have equal texts."""
    return json.dumps(value, sort_keys=True).encode()


def dumps_bounded(value: Json) -> bytes:
    """Write a value like :func:`dumps`, but refuse a value nested too deeply for :func:`loads`.

    Raises:
        ValueError, TypeError: As for :func:`dumps`; or the value is nested too deeply.
    """
    text = dumps(value)
    _check_depth(text, value)
    return text


def loads(data: bytes | str) -> Json:
    """Read one JSON text as a client reads replies: if a key is repeated, its last value wins.

    Raises:
        ValueError: The text is not JSON in UTF-8, is nested too deeply, or has too many values.
    """
    if len(data) > MAX_VALUES // _OF_MANY_BYTES:
        check_values(data.encode(errors="surrogatepass") if isinstance(data, str) else data)
    value = _parsed(data)
    _check_depth(data, value)
    return value


def check_values(data: bytes, most: int = MAX_VALUES) -> None:
    """Check that a JSON text has at most ``most`` values, as :data:`MAX_VALUES` counts them.

    Raises:
        ValueError: The text has more values.
    """
    openings = data.count(b"[") + data.count(b"{")
    if _OF_MANY_BYTES * openings + data.count(b'"') + data.count(b",") <= most:
        return
    count = 0
    for found in _TOKENS.finditer(data):  # the count above included commas and brackets in strings
        count += 1 if found.lastgroup else _OF_MANY_BYTES
        if count > most:
            raise ValueError(f"it holds more than {most} values")


def reread(text: str) -> Json:
    """Read a text that :func:`dumps` wrote, without checking its depth.

    Raises:
        ValueError: The text is not JSON.
    """
    return _parsed(text)


def loads_strict(data: bytes | str) -> Json:
    """Read one JSON text as a server reads requests: equal keys are an error (spec §1.8(2)).

    Raises:
        ValueError: The text is not JSON in UTF-8, has a key twice, is nested too deeply, or has
            too many lists.
    """
    text = data.encode(errors="surrogatepass") if isinstance(data, str) else data
    flat = _flat_object(text)
    if flat is not None:
        return flat
    _check_lists(text)
    value = _standard_parsed(data, _STRICT)
    _check_depth(data, value)
    return value


def deeper_than(value: Json, limit: int) -> bool:
    """Return True if objects and lists are nested deeper than ``limit`` levels."""
    layer: list[Any] = [value]
    for _ in range(limit):
        # Compare classes, without isinstance: the value has only the plain classes of JSON.
        below: list[Any] = []
        for item in layer:
            kind = item.__class__
            if kind is dict:
                below.extend(item.values())
            elif kind is list:
                below.extend(item)
        if not below:
            return False
        layer = below
    return any(item.__class__ is dict or item.__class__ is list for item in layer)


def plain_copy(value: dict[Any, Any] | list[Any], limit: int | None = None) -> Json | None:
    """Copy a value of plain JSON data, at the speed of C.

    Return None for a value that JSON would change or refuse, such as a tuple, a NaN or a key that
    is not a text. Also return None for a value nested deeper than ``limit`` levels.
    """
    try:
        if orjson is None:
            raise TypeError
        text: bytes = orjson.dumps(value, option=_OPTIONS)
        copy: Json = orjson.loads(text)
    except (ValueError, TypeError):  # raised for integers over 64 bits, for instance
        try:
            text = _standard_dumps(value)
            if _BEYOND_DOUBLE in text.translate(_DIGITS):
                return None  # the value may have a number beyond the range of double
            copy = _standard_parsed(text)
        except (ValueError, TypeError):
            return None
    if copy != value or (limit is not None and _text_deeper_than(text, copy, limit)):
        return None
    return copy


_Pairs = list[tuple[str, Json]]


def _standard_dumps(value: Json) -> bytes:
    try:
        text = _ENCODER.encode(value)
    except RecursionError:
        raise _too_deep() from None
    return text.encode()


def _parsed(data: bytes | str) -> Json:
    if orjson is not None:
        try:
            text = data.encode() if isinstance(data, str) else data
            if text.translate(_DIGITS).find(_LONG_NUMBER) < 0:
                value: Json = orjson.loads(text)
                return value
        except ValueError:  # the standard library raises a clear error, or can read it
            pass
    return _standard_parsed(data)


def _standard_parsed(data: bytes | str, decoder: json.JSONDecoder | None = None) -> Json:
    try:
        text = data.decode() if isinstance(data, bytes) else data
        if text.startswith("\ufeff"):
            raise ValueError("it begins with a byte order mark")
        value: Json = (decoder or _PLAIN).decode(text)
    except RecursionError:
        raise _too_deep() from None
    except ValueError as exc:
        # The message is advice for developers, not for callers.
        if "set_int_max_str_digits" in str(exc):
            raise ValueError("it holds a number of too many digits") from None
        raise
    return value


def _flat_object(text: bytes) -> Json | None:
    # Reads an object of texts, bools and integers, as most requests are, in a third of the time
    # that the standard library takes. Returns None for any other JSON, and for integers over 64
    # bits, which orjson reads as floats. Each text has two quotes, and perhaps escaped ones: no key
    # is repeated if the JSON has no more quotes than the keys and values of the object have.
    if orjson is None or text.count(b"{") != 1 or text.find(b"[") >= 0:
        return None
    try:
        value = orjson.loads(text)
    except ValueError:  # the standard library raises a clear error, or can read it
        return None
    if value.__class__ is not dict:
        return None
    kinds = list(map(type, value.values()))
    if float in kinds or text.count(b'"') != 2 * (len(kinds) + kinds.count(str)):
        return None
    return value


def _unique(pairs: _Pairs) -> Json:
    found = dict(pairs)
    if len(found) != len(pairs):
        counts = Counter(key for key, _ in pairs)
        twice = next(key for key, count in counts.items() if count > 1)
        raise ValueError(f"the key {twice[:60]!r} stands twice in one object")
    return found


def _fraction(text: str) -> float:
    # A Python function, so that other threads can run while a body is read: 1 MB may have 260,000
    # fractions, and C code would read them all without a pause.
    return float(text)


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


# These coders are made once: making one takes longer than reading or writing a small message.
_ENCODER: Final = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))
_PLAIN: Final = json.JSONDecoder(parse_constant=_no_constant)
_STRICT: Final = json.JSONDecoder(
    object_pairs_hook=_unique, parse_float=_fraction, parse_constant=_no_constant
)


def _check_depth(text: bytes | str, value: Json) -> None:
    # Most texts have at most MAX_DEPTH brackets, and need no walk through the value. Long texts
    # have more brackets, and counting these would take as long as the walk.
    if len(text) < _LONG_TEXT:
        if isinstance(text, str):
            few = text.count("[") + text.count("{") <= MAX_DEPTH
        else:
            few = text.count(b"[") + text.count(b"{") <= MAX_DEPTH
        if few:
            return
    data = text.encode(errors="replace") if isinstance(text, str) else text
    if _text_deeper_than(data, value, MAX_DEPTH):
        raise _too_deep()


def _text_deeper_than(text: bytes, value: Json, limit: int) -> bool:
    # Returns the result of ``deeper_than`` for the value of a text, and is several times as fast
    # if the value has few levels.
    if b"\\" in text:
        text = text.replace(rb"\\", b"").replace(rb"\"", b"")
    # A string without brackets leaves a pair of quotes, which is removed.
    brackets = text.translate(_AS_BRACES, _NO_BRACKETS).replace(b'""', b"")
    if len(brackets) <= 2 * limit:
        return False
    for _ in range(min(limit, 8)):
        brackets = brackets.replace(b"{}", b"")  # removes the innermost level
        if not brackets:
            return False
    return deeper_than(value, limit)


def _check_lists(data: bytes) -> None:
    if data.count(b"[") > MAX_LISTS:  # strings may hold any number of brackets
        pieces = data.replace(rb"\\", b"").replace(rb"\"", b"").split(b'"')
        if sum(piece.count(b"[") for piece in pieces[::2]) > MAX_LISTS:
            raise ValueError(f"it holds more than {MAX_LISTS} lists")


def _too_deep() -> ValueError:
    return ValueError(f"it is nested deeper than {MAX_DEPTH} levels")
