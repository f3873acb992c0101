"""JSON text: the one seam where a JSON library is chosen (RFC 8259, spec §1.8)."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from typing import Any as Anything
from typing import Final, NoReturn

from lro._any import Json

try:
    import orjson
except ImportError:  # the extra "fast" is not installed
    orjson = None  # type: ignore[assignment]

MAX_DEPTH: Final = 100
"""Deepest nesting of objects and lists that is read or written (spec §1.8(8))."""

MAX_MESSAGE_DEPTH: Final = 45
"""Deepest nesting of a packed message.

Replies and stores put a few levels around it, and a Struct takes two of protobuf's hundred for
each of its own.
"""

_DOUBLE_DIGITS: Final = 308


def dumps(value: Json) -> bytes:
    """The compact UTF-8 text of a JSON value. What is written here can be read again.

    Raises:
        ValueError: The value is nested too deeply, or holds a number or text that JSON has not.
        TypeError: It holds something that is no JSON value.
    """
    return _fast_dumps(value)


def dumps_bounded(value: Json) -> bytes:
    """The same for what is kept and read again: also refused if :func:`loads` would refuse it.

    Raises:
        ValueError, TypeError: As for :func:`dumps`; or the value is nested too deeply.
    """
    text = dumps(value)
    _check_depth(text, value)
    return text


def loads(data: bytes | str) -> Json:
    """Read one JSON text, as a client reads replies: fast; the last of equal keys wins.

    Raises:
        ValueError: The text is not JSON in UTF-8, or is nested too deeply.
    """
    if orjson is None:
        return _standard_loads(data, None)
    value: Json = orjson.loads(data)  # orjson.JSONDecodeError is a ValueError
    _check_depth(data, value)
    return value


def reread(text: str) -> Json:
    """Read a text that :func:`dumps` wrote, without a look at how deep it is.

    Raises:
        ValueError: The text is not JSON.
    """
    value: Json = json.loads(text) if orjson is None else orjson.loads(text)
    return value


def loads_strict(data: bytes | str) -> Json:
    """Read one JSON text, as a server reads requests: equal keys are an error (spec §1.8(2)).

    Raises:
        ValueError: The text is not JSON in UTF-8, has a key twice, or is nested too deeply.
    """
    return _standard_loads(data, _unique)


def deeper_than(value: Json, limit: int) -> bool:
    """Whether objects and lists are nested in more than ``limit`` levels."""
    layer: list[Anything] = [value]
    for _ in range(limit):
        # Types are compared, not asked: what is looked at came from JSON or was just made for it.
        below: list[Anything] = []
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


def plain_copy(value: dict[Anything, Anything] | list[Anything]) -> Json | None:
    """An equal copy of a value that is JSON data through and through, at the speed of C.

    None for any other value, and for None: a tuple, a NaN or a key that is no text comes back
    from JSON as something else, if it comes back at all.
    """
    try:
        text = dumps(value)
        copy: Json = json.loads(text, parse_int=_short_int) if orjson is None else loads(text)
    except (ValueError, TypeError):
        return None
    return copy if copy == value else None


def _short_int(digits: str) -> int:
    if len(digits) > _DOUBLE_DIGITS:
        raise ValueError("a number of so many digits may be beyond the range of double")
    return int(digits)


_Pairs = list[tuple[str, Json]]


def _standard_dumps(value: Json) -> bytes:
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    except RecursionError:
        raise _too_deep() from None
    return text.encode()


def _fast_dumps(value: Json) -> bytes:
    if orjson is None:
        return _standard_dumps(value)
    try:
        return orjson.dumps(value)
    except TypeError:  # integers over 64 bits, and more: the standard library decides
        return _standard_dumps(value)


def _standard_loads(data: bytes | str, hook: Callable[[_Pairs], Json] | None) -> Json:
    try:
        text = data.decode() if isinstance(data, bytes) else data
        value: Json = json.loads(text, object_pairs_hook=hook, parse_constant=_no_constant)
    except RecursionError:
        raise _too_deep() from None
    except ValueError as exc:
        if "set_int_max_str_digits" in str(exc):  # advice for us, not for callers
            raise ValueError("it holds a number of too many digits") from None
        raise
    _check_depth(data, value)
    return value


def _unique(pairs: _Pairs) -> Json:
    found = dict(pairs)
    if len(found) != len(pairs):
        counts = Counter(key for key, _ in pairs)
        twice = next(key for key, count in counts.items() if count > 1)
        raise ValueError(f"the key {twice[:60]!r} stands twice in one object")
    return found


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _check_depth(text: bytes | str, value: Json) -> None:
    # Nearly every text has fewer brackets than the limit allows levels, and is not walked.
    if isinstance(text, bytes):
        brackets = text.count(b"[") + text.count(b"{")
    else:
        brackets = text.count("[") + text.count("{")
    if brackets > MAX_DEPTH and deeper_than(value, MAX_DEPTH):
        raise _too_deep()


def _too_deep() -> ValueError:
    return ValueError(f"it is nested deeper than {MAX_DEPTH} levels")
