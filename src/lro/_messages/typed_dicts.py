"""TypedDicts as message classes, whose messages are dicts.

An optional key (``NotRequired``, ``total=False``) is a field with presence. Any other key is a
field without a default.
"""

from __future__ import annotations

import typing
from collections.abc import Callable
from typing import Any, Final

from lro._base.errors import InvalidArgument
from lro._messages.schema import (
    DYNAMIC,
    REQUIRED,
    Declared,
    Library,
    Make,
    Shape,
    Violations,
    raise_all,
)

_MARKS: Final = ("Required", "NotRequired", "ReadOnly")


def declared(cls: type) -> list[Declared]:
    """Return the keys as fields; ``NotRequired`` is also honoured in string annotations."""
    needed: frozenset[str] = cls.__required_keys__  # type: ignore[attr-defined]  # of a TypedDict
    found = []
    for name, hint in typing.get_type_hints(cls, include_extras=True).items():
        annotation, marks = _unmarked(hint)
        required = "NotRequired" not in marks and (name in needed or "Required" in marks)
        found.append(
            Declared(
                name=name,
                annotation=annotation,
                default=REQUIRED if required else DYNAMIC,
                get=_getter(name) if required else _optional_getter(name),
            )
        )
    return found


def maker(_cls: type, _shape: Shape) -> Make:
    """Return a function that makes a message: the dict itself."""

    def make(known: dict[str, object], wrong: Violations) -> object:
        raise_all(wrong)
        return known

    return make


LIBRARY: Final = Library(declared=declared, maker=maker)


def _unmarked(hint: object) -> tuple[object, set[str]]:
    marks = set()
    # In some versions of Python, ``typing`` lacks qualifiers that ``typing_extensions`` has.
    while (name := getattr(typing.get_origin(hint), "_name", None)) in _MARKS:
        marks.add(str(name))
        hint = typing.get_args(hint)[0]
    return hint, marks


def _getter(name: str) -> Callable[[Any], object]:
    def get(message: dict[str, object]) -> object:
        try:
            return message[name]
        except KeyError:
            raise InvalidArgument("", "is required") from None

    return get


def _optional_getter(name: str) -> Callable[[Any], object]:
    return lambda message: message.get(name)
