"""Paths of a message that lead to one value, which an index can be made of."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import attrs

from lro._base.any import Json
from lro._base.errors import InvalidFilter
from lro._filters.parse import parse
from lro._filters.paths import FieldStep, KeyStep, Many, Place, Step, descend
from lro._filters.prefilter import ABSENT, digest, key_value
from lro._filters.refusals import refusal
from lro._filters.tree import Comparison, Member, Op
from lro._filters.types import READ, Comparable, MessageType, ValueType, type_of_message

_ROOT: Final = "metadata"
_NOT_ONE: Final = (ValueType.OPAQUE, ValueType.MESSAGE, ValueType.STRUCT, ValueType.DYNAMIC)


@attrs.frozen
class Indexable:
    """The way to one value of a message, how it is read, and the key that stands for it.

    ``numbers`` are those of an enum's names, which may change; ``kind`` is what else must stay as
    it is in the next release, lest values that were hashed by this one be taken for others.
    """

    steps: tuple[Step, ...]
    type: ValueType
    kind: str
    numbers: Mapping[str, object] | None

    @property
    def names(self) -> tuple[str, ...]:
        """The fields and keys on the way."""
        return names_of(self.steps) or ()

    @property
    def key(self) -> str:
        """The name of its key."""
        return "k" + digest("\0".join((*self.names, self.type.value, self.kind)))

    def value_in(self, payload: Json) -> str | None:
        """What the key is for a message; None if every release of the program must look for itself.

        Such is a value of an enum that has no name yet.
        """
        values = [payload]
        for step in self.steps:
            if isinstance(step, FieldStep):  # what is not there may be another default tomorrow
                step = attrs.evolve(step, has_default=False)
            values = [found for value in values for found in step.values(value)]
        found = READ[self.type](values[0]) if values else None
        return ABSENT if found is None else self.value_of(found)

    def value_of(self, found: Comparable) -> str | None:
        """What the key is for a value; None as for :meth:`value_in`."""
        if self.numbers is None:
            return key_value(found)
        number = self.numbers.get(str(found)) if isinstance(found, str) else None
        return None if number is None else key_value(str(number))


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
    assert place.field is not None  # there is a way
    kind = f"{place.field.kind.value} {place.field.message_name or ''}"
    return Indexable(place.steps, place.type, kind, _numbers(place))


def _numbers(place: Place) -> Mapping[str, object] | None:
    if place.type is not ValueType.ENUM or place.field is None:
        return None
    return {name: member.value for name, member in place.field.python.__members__.items()}


def names_of(steps: tuple[Step, ...]) -> tuple[str, ...] | None:
    """The fields and keys on the way down; None if it is not just that."""
    if not all(isinstance(step, FieldStep | KeyStep) for step in steps):
        return None
    return tuple(step.key for step in steps if isinstance(step, FieldStep | KeyStep))
