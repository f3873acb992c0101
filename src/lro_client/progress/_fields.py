"""The fields of a metadata message, whatever it is made of: JSON, an attrs class, protobuf."""

from __future__ import annotations

import enum
import math
import re
import typing
from collections.abc import Callable, Iterable, Mapping
from typing import Final
from unicodedata import category

from lro import Any, LroError, Struct, TypeRegistry
from lro.types import Json

Lookup = Callable[[str], object]
"""The value of a field by its name in snake_case; None where there is none."""

_SNAKE: Final = re.compile(r"_([a-z0-9])")
_UNSET: Final = "_UNSPECIFIED"
"""How the names of enum values end that say nothing (AIP-126)."""
_CONTROLS: Final = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
"""Also what turns the direction of text around, and what nobody sees."""


def lookup(metadata: object, types: TypeRegistry | None) -> Lookup | None:
    """How to look into a message; None for what has no fields.

    A packed message in binary form is looked into by ``types``, where its class is known.
    """
    if isinstance(metadata, Any):
        metadata = _payload(metadata, types)
    if isinstance(metadata, Struct):
        metadata = metadata.fields
    if isinstance(metadata, Mapping):
        return _in_mapping(metadata)
    if metadata is None or isinstance(metadata, (str, bytes, int, float, list, tuple)):
        return None
    return _in_object(metadata)


def _payload(packed: Any, types: TypeRegistry | None) -> Json | bytes:
    if types is None or not isinstance(packed.payload, bytes):
        return packed.payload
    try:
        return types.json_payload(packed)
    except LroError:
        return packed.payload


def _in_mapping(fields: Mapping[typing.Any, object]) -> Lookup:
    def look(name: str) -> object:
        found = fields.get(_camel(name))
        return fields.get(name) if found is None else found

    return look


def _in_object(message: typing.Any) -> Lookup:
    # By attribute, as this is what messages of every library have: attrs, dataclasses, protobuf,
    # pydantic, msgspec.
    descriptor = getattr(message, "DESCRIPTOR", None)

    def look(name: str) -> object:
        found: object = getattr(message, name, None)
        if found is None or descriptor is None:
            return found
        return _in_protobuf(message, descriptor, name, found)

    return look


def _in_protobuf(message: typing.Any, descriptor: typing.Any, name: str, value: object) -> object:
    field = descriptor.fields_by_name.get(name)
    if field is None or (field.has_presence and not message.HasField(name)):
        return None  # an attribute that is no field, or a field that was not set
    if field.enum_type is not None and isinstance(value, int):
        known = field.enum_type.values_by_number.get(value)
        return None if known is None else known.name
    return value


def _camel(name: str) -> str:
    return _SNAKE.sub(lambda low: low[1].upper(), name)


def number(value: object) -> float | None:
    """A finite number, also one that JSON has as a text (spec §1.9); None for anything else."""
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    try:
        found = float(value)
    except (ValueError, OverflowError):
        return None
    return found if math.isfinite(found) else None


def text(value: object) -> str:
    """One line of plain text, without control characters; empty for what is no text."""
    if isinstance(value, enum.Enum):
        value = value.name
    if not isinstance(value, str) or value.endswith(_UNSET):
        return ""
    return one_line(value)


def one_line(value: str) -> str:
    """A text from elsewhere as it may stand in a line of a terminal."""
    if not value.isprintable():
        value = "".join(" " if category(one) in _CONTROLS else one for one in value)
    return " ".join(value.split())


def first_number(look: Lookup, names: Iterable[str]) -> float | None:
    """The first of these fields that holds a number which is not negative."""
    for name in names:
        found = number(look(name))
        if found is not None and found >= 0:
            return found
    return None
