"""Removes the fields of a message whose values equal the defaults of its class."""

from __future__ import annotations

from typing import cast

from lro._base.status import Json
from lro._messages.json_text import canonical
from lro._messages.registry import TypeRegistry
from lro._messages.schema import Field, Label, Shape


def without_defaults(payload: Json, cls: type, types: TypeRegistry) -> Json:
    """Return the JSON of a message without the fields whose values equal the class's defaults.

    Two releases of a class give the same result for a caller's request, even if the class has more
    fields or different defaults in the newer release.
    """
    codec = types.codec(types.name_of(cls))
    return payload if codec.shape is None else _sparse(payload, codec.shape, types)


def _sparse(message: Json, shape: Shape, types: TypeRegistry) -> Json:
    payload = cast("dict[str, Json]", message)  # a class with a shape is written as an object
    defaults = _defaults(payload, shape, types)
    return {
        name: _below(value, shape.spellings.get(name), types)
        for name, value in payload.items()
        if name not in defaults or not _same(value, defaults[name])
    }


def _same(one: Json, other: Json) -> bool:
    return one == other and canonical(one) == canonical(other)  # in Python, True equals 1 and 1.0


def _below(value: Json, field: Field | None, types: TypeRegistry) -> Json:
    if field is None or field.below is None:
        return value
    shape = field.shape
    if field.label is Label.REPEATED and isinstance(value, list):
        return [_sparse(one, shape, types) for one in value]
    if field.label is Label.MAP and isinstance(value, dict):
        return {key: _sparse(one, shape, types) for key, one in value.items()}
    return _sparse(value, shape, types)


def _defaults(payload: dict[str, Json], shape: Shape, types: TypeRegistry) -> dict[str, Json]:
    """Return the default values of a class by field; empty if the class raises an error."""
    fields = shape.spellings
    said = {name: one for name, one in payload.items() if name in fields and fields[name].required}
    try:
        found = types.dump(types.load(said, shape.python), shape.python)
    except Exception:  # checks in the application's class may raise any error
        return {}
    shown = cast("dict[str, Json]", found)
    return {name: one for name, one in shown.items() if name not in said}
