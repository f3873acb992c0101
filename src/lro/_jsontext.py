"""JSON text: the one seam where a JSON library is chosen (RFC 8259, spec §1.8)."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Final, NoReturn

from lro._any import Json

try:
    import orjson
except ImportError:  # the extra "fast" is not installed
    orjson = None  # type: ignore[assignment]

MAX_DEPTH: Final = 100
"""Deepest nesting of objects and lists that is read (spec §1.8(8))."""


def _standard_dumps(value: Json) -> bytes:
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.encode()


def _fast_dumps(value: Json) -> bytes:
    try:
        return orjson.dumps(value)
    except TypeError:  # integers over 64 bits, and more: the standard library decides
        return _standard_dumps(value)


dumps: Final[Callable[[Json], bytes]] = _standard_dumps if orjson is None else _fast_dumps
"""The compact UTF-8 text of a JSON value.

Raises:
    ValueError, TypeError: The value holds something that JSON has not.
"""


def loads(data: bytes | str) -> Json:
    """Read one JSON text, as a client reads replies: fast; the last of equal keys wins.

    Raises:
        ValueError: The text is not JSON in UTF-8, or is nested too deeply.
    """
    if orjson is None:
        return _standard_loads(data, None)
    return _bounded(data, orjson.loads(data))  # orjson.JSONDecodeError is a ValueError


def loads_strict(data: bytes | str) -> Json:
    """Read one JSON text, as a server reads requests: equal keys are an error (spec §1.8(2)).

    Raises:
        ValueError: The text is not JSON in UTF-8, has a key twice, or is nested too deeply.
    """
    return _standard_loads(data, _unique)


_Pairs = list[tuple[str, Json]]


def _standard_loads(data: bytes | str, hook: Callable[[_Pairs], Json] | None) -> Json:
    try:
        text = data.decode() if isinstance(data, bytes) else data
        value: Json = json.loads(text, object_pairs_hook=hook, parse_constant=_no_constant)
    except RecursionError:
        raise ValueError(f"it is nested deeper than {MAX_DEPTH} levels") from None
    return _bounded(data, value)


def _unique(pairs: _Pairs) -> Json:
    found = dict(pairs)
    if len(found) != len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for place, key in enumerate(keys) if key in keys[:place])
        raise ValueError(f"the key {twice!r} stands twice in one object")
    return found


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _bounded(data: bytes | str, value: Json) -> Json:
    # Nearly every text has fewer brackets than the limit allows levels, and is not walked.
    brackets = (
        data.count(b"[") + data.count(b"{")
        if isinstance(data, bytes)
        else data.count("[") + data.count("{")
    )
    if brackets > MAX_DEPTH and _deeper_than(value, MAX_DEPTH):
        raise ValueError(f"it is nested deeper than {MAX_DEPTH} levels")
    return value


def _deeper_than(value: Json, limit: int) -> bool:
    layer: list[Json] = [value]
    for _ in range(limit + 1):
        below: list[Json] = []
        for item in layer:
            if isinstance(item, dict):
                below.extend(item.values())
            elif isinstance(item, list):
                below.extend(item)
        if not below:
            return False
        layer = below
    return True
