"""Read untrusted JSON strictly, and show it safely."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable
from typing import Final

_SHOWN: Final = 160
_MOST_LEVELS: Final = 100


def shown(value: object) -> str:
    """Return a value as JSON in ASCII, shortened, so that it cannot control a terminal."""
    text = json.dumps(value, default=repr, separators=(",", ":"))
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def repeated(texts: Iterable[str]) -> list[str]:
    """Return the texts that occur more than once, in the order of their first occurrence."""
    return [text for text, count in Counter(texts).items() if count > 1]


def read_json(payload: bytes) -> tuple[object, tuple[str, ...]]:
    """Return the value of a JSON text, and the defects that a strict parser would refuse.

    Null fields are left out, because in ProtoJSON they mean fields that are not set.

    Raises:
        ValueError: The text is not JSON in UTF-8, has unpaired surrogates, or is nested too deeply.
    """
    notes: list[str] = []

    def pairs(found: list[tuple[str, object]]) -> dict[str, object]:
        made = dict(found)
        if len(made) < len(found):
            twice = repeated(name for name, _ in found)[0]
            notes.append(f"the key {shown(twice)} stands twice in one object")
        return {name: one for name, one in made.items() if one is not None}

    def constant(name: str) -> object:
        notes.append(f"{name} is not JSON")
        return None

    def number(digits: str, kind: type[int] | type[float]) -> object:
        if math.isinf(float(digits)):
            cut = digits if len(digits) <= _SHOWN else f"a number of {len(digits)} digits"
            notes.append(f"{cut} is beyond what JSON readers keep")
            return 0
        return kind(digits)

    try:
        text = payload.decode("utf-8")
        value = json.loads(
            text,
            object_pairs_hook=pairs,
            parse_constant=constant,
            parse_int=lambda digits: number(digits, int),
            parse_float=lambda digits: number(digits, float),
        )
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if _depth(value) > _MOST_LEVELS:  # Python could not compare or print the value
        raise ValueError("it is nested too deeply")
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise ValueError("it has an unpaired surrogate") from None
    return value, tuple(notes)


def _depth(value: object) -> int:
    level, deepest = [value], 0
    while level := [inner for one in level for inner in _inside(one)]:
        deepest += 1
    return deepest


def _inside(value: object) -> Iterable[object]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()
