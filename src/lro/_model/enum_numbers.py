"""Enum values as numbers in what is about to be printed (spec §5.8(5)).

Clients made by Google's generator ask for ``alt=json;enum-encoding=int``, since they may be older
than the names of an enum. Packed messages hold enum values by name; the shape of their type says
which texts these are.
"""

from __future__ import annotations

import enum
import functools
from collections.abc import Mapping
from typing import cast

import attrs

from lro._base.any import WRAPPED_TYPES, Any, Json
from lro._base.status import Status
from lro._messages.registry import TypeRegistry
from lro._messages.scalars import enum_numbers
from lro._messages.schema import ANY, Field, Kind, Label, Shape, is_message_class
from lro._model.operation import Operation


def with_enum_numbers(operation: Operation, types: TypeRegistry) -> Operation:
    """The same operation with enum values of metadata, response and details as their numbers.

    Only messages in JSON form of registered types with a known shape are changed; a text which is
    no name of the field's enum stays as it is.
    """
    result = operation.result
    if isinstance(result, Status):
        result = attrs.evolve(result, details=tuple(_packed(one, types) for one in result.details))
    elif result is not None:
        result = _packed(result, types)
    metadata = operation.metadata
    if metadata is not None:
        metadata = _packed(metadata, types)
    return attrs.evolve(operation, metadata=metadata, result=result)


def _packed(packed: Any, types: TypeRegistry) -> Any:
    payload = types.readable(packed).payload
    if isinstance(payload, bytes):
        return packed
    return Any(packed.type_url, _payload(payload, packed.type_name, types))


def _payload(value: Json, type_name: str, types: TypeRegistry) -> Json:
    if type_name == ANY:
        return _any(value, types)
    shape = types.codec(type_name).shape if type_name in types else None
    return value if shape is None else _message(value, shape, types)


def _any(value: Json, types: TypeRegistry) -> Json:
    """The JSON form of an Any, ``@type`` and all."""
    if not isinstance(value, dict):
        return value
    url = value.get("@type")
    name = url.rpartition("/")[2] if isinstance(url, str) else ""
    if name == ANY:
        return {**value, "value": _any(value.get("value"), types)}
    return value if name in WRAPPED_TYPES else _payload(value, name, types)


def _message(value: Json, shape: Shape, types: TypeRegistry) -> Json:
    if not isinstance(value, dict):
        return value
    fields = shape.spellings
    return {
        key: _field(item, fields[key], types) if key in fields else item
        for key, item in value.items()
    }


def _field(value: Json, field: Field, types: TypeRegistry) -> Json:
    if field.kind is not Kind.ENUM and field.kind is not Kind.MESSAGE:
        return value
    if field.label is Label.REPEATED:
        return [_one(item, field, types) for item in value] if isinstance(value, list) else value
    if field.label is Label.MAP:
        items = value.items() if isinstance(value, dict) else ()
        return {key: _one(item, field, types) for key, item in items} or value
    return _one(value, field, types)


def _one(value: Json, field: Field, types: TypeRegistry) -> Json:
    if field.kind is Kind.ENUM:
        numbers = _numbers(cast("type[enum.Enum]", field.python))
        return numbers.get(value, value) if isinstance(value, str) else value
    if field.message_name == ANY:
        return _any(value, types)
    shape = _shape(field, types)
    return value if shape is None else _message(value, shape, types)


def _shape(field: Field, types: TypeRegistry) -> Shape | None:
    cls = field.python
    if types.knows(cls):
        return types.codec(types.name_of(cls)).shape
    return field.shape if field.below or is_message_class(cls) else None


@functools.cache
def _numbers(cls: type[enum.Enum]) -> Mapping[str, int]:
    """The number of each name, aliases included."""
    number = {member: place for place, member in enum_numbers(cls).items()}
    return {name: number[member] for name, member in cls.__members__.items()}
