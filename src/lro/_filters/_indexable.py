"""Paths of a message that lead to one value, which an index can be made of."""

from __future__ import annotations

from typing import Final

import attrs

from lro._any import Json
from lro._errors import InvalidFilter
from lro._filters._parse import parse
from lro._filters._paths import FieldStep, KeyStep, Many, Place, Step, descend
from lro._filters._refusals import refusal
from lro._filters._tree import Comparison, Member, Op
from lro._filters._types import READ, Comparable, MessageType, ValueType, type_of_message

_ROOT: Final = "metadata"
_NOT_ONE: Final = (ValueType.OPAQUE, ValueType.MESSAGE, ValueType.STRUCT, ValueType.DYNAMIC)


@attrs.frozen
class Indexable:
    """The way to one value of a message, and how it is read."""

    steps: tuple[Step, ...]
    type: ValueType

    @property
    def names(self) -> tuple[str, ...]:
        """The fields and keys on the way."""
        return names_of(self.steps) or ()

    def value(self, payload: Json) -> Comparable | None:
        """What stands there; None if nothing does, or nothing of the type."""
        values = [payload]
        for step in self.steps:
            values = [found for value in values for found in step.values(value)]
        return READ[self.type](values[0]) if values else None

    def settles(self, value: Comparable | None) -> bool:
        """Whether every release reads it so: a number of an enum may get a name in a later one."""
        return self.type is not ValueType.ENUM or not isinstance(value, int)


def indexable(path: str, message_type: MessageType) -> Indexable:
    """The place at a path, which is written as in filters, without ``metadata`` before it.

    Raises:
        InvalidFilter: It is no path of this type, or leads to anything but one scalar value.
    """
    no_path = refusal('it is no path, such as dataset or labels."a.b"', 0)
    try:
        tree = parse(f"{_ROOT}.{path}:*")
    except InvalidFilter:
        raise no_path from None
    if not isinstance(tree, Comparison) or not isinstance(tree.left, Member) or tree.op != Op.HAS:
        raise no_path
    start = Place(type=type_of_message(message_type.full_name), shape=message_type.shape)
    place = descend(start, tree.left.parts[1:], Op.EQUAL)
    if place.many is not Many.ONE or place.type in _NOT_ONE:
        raise refusal("it does not lead to one number, text, bool, enum or time", 0)
    return Indexable(place.steps, place.type)


def names_of(steps: tuple[Step, ...]) -> tuple[str, ...] | None:
    """The fields and keys on the way down; None if it is not just that."""
    if not all(isinstance(step, FieldStep | KeyStep) for step in steps):
        return None
    return tuple(step.key for step in steps if isinstance(step, FieldStep | KeyStep))
