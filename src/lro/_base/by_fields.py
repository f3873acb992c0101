"""Equality, hash and repr of attrs classes, written once instead of generated for each class.

Generating and compiling these methods takes more than half of the time that attrs needs for a
class. A service loads more than a hundred classes, and few of them are ever compared or printed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import attrs


class ByFields:
    """The base of attrs classes with ``eq=False, repr=False``, whose methods read all fields.

    A class with this base is made in less than half the time. Its values are compared, hashed and
    shown as those of other attrs classes, but a comparison takes longer.
    """

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        if other.__class__ is not self.__class__:
            return NotImplemented
        fields = _fields(self)
        return all(getattr(self, one.name) == getattr(other, one.name) for one in fields if one.eq)

    def __hash__(self) -> int:
        return hash((self.__class__, *_hashed(self)))

    def __repr__(self) -> str:
        shown = ", ".join(
            f"{one.name}={(one.repr if callable(one.repr) else repr)(getattr(self, one.name))}"
            for one in _fields(self)
            if one.repr
        )
        return f"{self.__class__.__qualname__.rpartition('>.')[2]}({shown})"


def _fields(value: Any) -> tuple[attrs.Attribute[Any], ...]:
    found: tuple[attrs.Attribute[Any], ...] = attrs.fields(value.__class__)
    return found


def _hashed(value: ByFields) -> Iterator[object]:
    for one in _fields(value):
        if one.eq if one.hash is None else one.hash:
            yield getattr(value, one.name)
