"""Resolves paths in messages to steps through JSON values, and to index keys (spec §7.7)."""

from __future__ import annotations

import enum
import re
from collections.abc import Iterable, Mapping
from typing import Final, Protocol

import attrs

from lro._base.errors import InvalidFilter
from lro._base.status import Json
from lro._filters.parse import Comparison, Member, Op, Part, parse, refusal, shown
from lro._filters.prefilter import ABSENT, digest, key_value
from lro._filters.types import (
    READ,
    Comparable,
    MessageType,
    ValueType,
    default_of,
    enum_names,
    implicit,
    shape_below,
    type_of_field,
    type_of_message,
)
from lro._messages.schema import VALUE, Field, Kind, Label, Shape


class Step(Protocol):
    """One step down into a JSON value; it may lead to several values or none."""

    def values(self, value: Json) -> Iterable[Json]:
        """Return the values one step below ``value``."""
        ...


@attrs.frozen(kw_only=True, cache_hash=True)
class FieldStep:
    """A step to a field of a message, by JSON name; ``default`` replaces a missing field.

    Null is a value only for a Value; for all other fields it means unset (spec §1.8(3)).
    """

    key: str
    has_default: bool = False
    default: Json = None
    null: bool = False

    def values(self, value: Json) -> Iterable[Json]:
        """Return the field's value, its default, or nothing."""
        if not isinstance(value, dict):
            return ()
        found = value.get(self.key)
        if found is not None or (self.null and self.key in value):
            return (found,)
        return (self.default,) if self.has_default else ()


@attrs.frozen(cache_hash=True)
class KeyStep:
    """A step to the value under a key of a map."""

    key: str

    def values(self, value: Json) -> Iterable[Json]:
        """Return the key's value, or nothing."""
        return (value[self.key],) if isinstance(value, dict) and self.key in value else ()


@attrs.frozen
class EachStep:
    """A step to every element of a repeated field."""

    def values(self, value: Json) -> Iterable[Json]:
        """Return the elements of the list ``value``."""
        return value if isinstance(value, list) else ()


@attrs.frozen
class ListsStep:
    """A step through all nested lists in a Struct, which the operator ``:`` needs."""

    def values(self, value: Json) -> Iterable[Json]:
        """Return the value and all elements of nested lists in it."""
        found = [value]
        for one in found:  # the list grows in the loop
            if isinstance(one, list):
                found += one
        return found


@attrs.frozen(cache_hash=True)
class StructStep:
    """A step to the value under a key of a Struct."""

    key: str

    def values(self, value: Json) -> Iterable[Json]:
        """Return the value under the key, or nothing."""
        return (value[self.key],) if isinstance(value, dict) and self.key in value else ()


class Cardinality(enum.Enum):
    """The number of values at a place: one value, a list or a map."""

    ONE = "one"
    REPEATED = "repeated"
    MAP = "map"


@attrs.frozen(kw_only=True)
class Place:
    """The place that a path leads to: its steps and its type.

    ``shape`` is set for messages, ``names`` for enums, and ``key_kind`` for maps. ``default`` is
    the value of a missing scalar if ``implicit``. ``field`` is the last field of the path.
    """

    steps: tuple[Step, ...] = ()
    type: ValueType
    cardinality: Cardinality = Cardinality.ONE
    implicit: bool = False
    default: Json = None
    shape: Shape | None = None
    names: Mapping[str, str] | None = None
    key_kind: Kind | None = None
    field: Field | None = None


_CARDINALITIES: Final = {Label.REPEATED: Cardinality.REPEATED, Label.MAP: Cardinality.MAP}
_INTEGER: Final = re.compile(r"-?[0-9]{1,20}")
_RANGES: Final = {
    Kind.INT32: range(-(2**31), 2**31),
    Kind.INT64: range(-(2**63), 2**63),
    Kind.UINT32: range(2**32),
    Kind.UINT64: range(2**64),
}


def descend(place: Place, parts: Iterable[Part], op: Op) -> Place:
    """Return the place at the end of a path.

    Raises:
        InvalidFilter: See :func:`below`.
    """
    steps = list(place.steps)
    # The steps are collected in a list, because a path may have thousands of steps.
    for part in parts:
        place = below(attrs.evolve(place, steps=()), part, op)
        steps += place.steps
    return attrs.evolve(place, steps=tuple(steps))


def below(place: Place, part: Part, op: Op) -> Place:
    """Return the place to which one more part of the path leads.

    Raises:
        InvalidFilter: There is no such field, or filters cannot go below this place.
    """
    if place.cardinality is Cardinality.MAP:
        key = _map_key(place, part)
        return attrs.evolve(place, steps=(*place.steps, KeyStep(key)), cardinality=Cardinality.ONE)
    steps = place.steps
    if place.cardinality is Cardinality.REPEATED:
        if op is not Op.HAS:
            description = f"repeated fields can be traversed only with ':', not with {op.value!r}"
            raise refusal(description, part.position)
        if place.type is ValueType.MESSAGE:
            steps = (*steps, EachStep())
    if place.type in (ValueType.STRUCT, ValueType.DYNAMIC):
        lists = (ListsStep(),) if op is Op.HAS else ()
        return Place(steps=(*steps, *lists, StructStep(part.text)), type=ValueType.DYNAMIC)
    if place.type is not ValueType.MESSAGE:
        description = f"{shown(part.text)} cannot be below {place.type.value}"
        raise refusal(description, part.position)
    field = place.shape.spellings.get(part.text) if place.shape is not None else None
    if field is None:
        raise refusal(f"there is no field {shown(part.text)}", part.position)
    return _at_field(steps, field)


def _at_field(steps: tuple[Step, ...], field: Field) -> Place:
    type_ = type_of_field(field)
    has_default = implicit(field)
    default = default_of(field) if has_default else None
    null = field.message_name == VALUE and field.label is Label.OPTIONAL
    step = FieldStep(key=field.json_name, has_default=has_default, default=default, null=null)
    return Place(
        steps=(*steps, step),
        type=type_,
        cardinality=_CARDINALITIES.get(field.label, Cardinality.ONE),
        implicit=has_default,
        default=default,
        shape=shape_below(field) if type_ is ValueType.MESSAGE else None,
        names=enum_names(field) if type_ is ValueType.ENUM else None,
        key_kind=field.key_kind,
        field=field,
    )


def _map_key(place: Place, part: Part) -> str:
    # Returns the key in its JSON form (spec §1.8(7), §7.8(4)).
    kind, text = place.key_kind, part.text
    if kind is Kind.STRING:
        return text
    if kind is Kind.BOOL:
        if text in ("true", "false"):
            return text
        raise refusal(f"expected the key true or false, found {shown(text)}", part.position)
    number = int(text) if _INTEGER.fullmatch(text) else None
    if number is None or kind is None or number not in _RANGES[kind]:
        name = kind.value if kind else "no type"
        raise refusal(f"expected a key of type {name}, found {shown(text)}", part.position)
    return str(number)


_ROOT: Final = "metadata"
_NOT_ONE: Final = (ValueType.OPAQUE, ValueType.MESSAGE, ValueType.STRUCT, ValueType.DYNAMIC)


@attrs.frozen
class Indexable:
    """The place of an index: the steps to one value of a message, and how its key is made.

    ``numbers`` maps an enum's names to numbers, which are hashed because names can change. ``kind``
    must stay the same in later releases, so that hashes of this release keep their meaning.
    """

    steps: tuple[Step, ...]
    type: ValueType
    kind: str
    numbers: Mapping[str, object] | None

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the fields and keys in the steps."""
        return names_of(self.steps) or ()

    @property
    def key(self) -> str:
        """The name of the key."""
        return "k" + digest("\0".join((*self.names, self.type.value, self.kind)))

    def value_in(self, payload: Json) -> str | None:
        """Return the key's value for a message; None for an enum value without a name.

        Another release may have a name for the value, so each release must evaluate the value
        itself.
        """
        values = [payload]
        for step in self.steps:
            if isinstance(step, FieldStep):  # a later release may have another default
                step = attrs.evolve(step, has_default=False)
            values = [found for value in values for found in step.values(value)]
        found = READ[self.type](values[0]) if values else None
        return ABSENT if found is None else self.value_of(found)

    def value_of(self, found: Comparable) -> str | None:
        """Return the key's value for a value at the path; None as for :meth:`value_in`."""
        if self.numbers is None:
            return key_value(found)
        number = self.numbers.get(str(found)) if isinstance(found, str) else None
        return None if number is None else key_value(str(number))


def indexable(path: str, message_type: MessageType) -> Indexable:
    """Return the place of a path; the path is written as in filters, without ``metadata``.

    Raises:
        InvalidFilter: The type has no such path, or the path does not lead to one scalar value.
    """
    no_path = refusal('it is not a path such as dataset or labels."a.b"', 0)
    try:
        tree = parse(f"{_ROOT}.{path}:*")
    except InvalidFilter:
        raise no_path from None
    if not isinstance(tree, Comparison) or not isinstance(tree.left, Member) or tree.op != Op.HAS:
        raise no_path
    start = Place(type=type_of_message(message_type.full_name), shape=message_type.shape)
    place = descend(start, tree.left.parts[1:], Op.EQUAL)
    if place.cardinality is not Cardinality.ONE or place.type in _NOT_ONE:
        raise refusal("it does not lead to one number, text, bool, enum or time", 0)
    assert place.field is not None  # the path has a field
    kind = f"{place.field.kind.value} {place.field.message_name or ''}"
    return Indexable(place.steps, place.type, kind, _numbers(place))


def _numbers(place: Place) -> Mapping[str, object] | None:
    if place.type is not ValueType.ENUM or place.field is None:
        return None
    return {name: member.value for name, member in place.field.python.__members__.items()}


def names_of(steps: tuple[Step, ...]) -> tuple[str, ...] | None:
    """Return the fields and keys of the steps; None if any step is of another kind."""
    if not all(isinstance(step, FieldStep | KeyStep) for step in steps):
        return None
    return tuple(step.key for step in steps if isinstance(step, FieldStep | KeyStep))
