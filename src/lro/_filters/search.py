"""The strings in a message that bare literals search (spec §7.6)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from lro._base.any import Json
from lro._filters.types import (
    MessageType,
    ValueType,
    shape_below,
    type_of_field,
    type_of_message,
)
from lro._messages.schema import Field, Label, Shape

_DYNAMIC: Final = (ValueType.STRUCT, ValueType.DYNAMIC)
_STRINGS: Final = (ValueType.TEXT, ValueType.ENUM)


def strings_in(payload: Json, message_type: MessageType) -> Iterator[str]:
    """Every string, name of an enum's value and string in a Struct, at any depth.

    Walks without recursion, so the nesting of the payload does not matter.
    """
    pending: list[tuple[Json, ValueType, Shape | None]] = [
        (payload, type_of_message(message_type.full_name), message_type.shape)
    ]
    while pending:
        value, type_, shape = pending.pop()
        if isinstance(value, str) and (type_ in _STRINGS or type_ in _DYNAMIC):
            yield value
        elif type_ in _DYNAMIC:
            pending += ((inner, ValueType.DYNAMIC, None) for inner in _members(value))
        elif shape is not None and isinstance(value, dict):
            for key, inner in value.items():
                field = shape.spellings.get(key)
                if field is not None:
                    pending += _of_field(field, inner)


def _of_field(field: Field, value: Json) -> Iterable[tuple[Json, ValueType, Shape | None]]:
    type_ = type_of_field(field)
    if type_ is ValueType.MESSAGE:
        shape = shape_below(field)
    elif type_ in _STRINGS or type_ in _DYNAMIC:
        shape = None
    else:
        return ()
    repeated = field.label in (Label.REPEATED, Label.MAP)
    return [(inner, type_, shape) for inner in (_members(value) if repeated else (value,))]


def _members(value: Json) -> Iterable[Json]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()
