"""JSON Schemas (2020-12) of message classes, made from their shapes.

A class has two schemas. The schema for writing describes canonical ProtoJSON. The schema for
reading describes all accepted input: quoted numbers, names and numbers of enum values, null for an
absent field.
"""

from __future__ import annotations

import enum
import inspect
import math
import re
import typing
from collections.abc import Mapping
from typing import Final, TypeGuard

from lro._base.status import WRAPPED_TYPES, Json, declared_name
from lro._messages.registry import TypeRegistry, protobuf_name
from lro._messages.scalars import EXACT, enum_numbers
from lro._messages.schema import (
    ANY,
    DURATION,
    INT_KINDS,
    STRUCT,
    TIMESTAMP,
    VALUE,
    Declared,
    Field,
    Kind,
    Label,
    Shape,
    bare,
    docstring,
    marks_of,
)
from lro._messages.shapes import is_message_class, shape_of

Schema = dict[str, Json]

_CHAR: Final = "[A-Za-z0-9+/_-]"
_BASE64: Final = f"^({_CHAR}{{4}})*({_CHAR}{{2}}(==)?|{_CHAR}{{3}}=?)?$"
"""Matches base64, standard or URL-safe, with or without padding."""
_NUMBER: Final = r"-?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?"
_NO_NUMBER: Final = "NaN|-?Infinity"


def _integer(kind: Kind, low: int, high: int, *, quoted: bool) -> tuple[Schema, Schema]:
    text: Schema = {"format": kind.value, "pattern": "^-?[0-9]+$" if low else "^[0-9]+$"}
    bounds: Schema = {"minimum": low, "maximum": high}
    read: Schema = {"type": ["integer", "string"], **text, **bounds}
    if quoted:
        return {"type": "string", **text}, read
    return {"type": "integer", "format": kind.value, **bounds}, read


def _floating(kind: Kind) -> tuple[Schema, Schema]:
    either: Schema = {"type": ["number", "string"], "format": kind.value}
    written: Schema = {**either, "pattern": f"^({_NO_NUMBER})$"}
    return written, {**either, "pattern": f"^({_NUMBER}|{_NO_NUMBER})$"}


def _both(schema: Schema) -> tuple[Schema, Schema]:
    return schema, schema


_SCALARS: Final[Mapping[Kind, tuple[Schema, Schema]]] = {
    Kind.STRING: _both({"type": "string"}),
    Kind.BYTES: (
        {"type": "string", "contentEncoding": "base64"},
        {"type": "string", "contentEncoding": "base64", "pattern": _BASE64},
    ),
    Kind.BOOL: _both({"type": "boolean"}),
    Kind.INT32: _integer(Kind.INT32, -(2**31), 2**31 - 1, quoted=False),
    Kind.INT64: _integer(Kind.INT64, -(2**63), 2**63 - 1, quoted=True),
    Kind.UINT32: _integer(Kind.UINT32, 0, 2**32 - 1, quoted=False),
    Kind.UINT64: _integer(Kind.UINT64, 0, 2**64 - 1, quoted=True),
    Kind.FLOAT: _floating(Kind.FLOAT),
    Kind.DOUBLE: _floating(Kind.DOUBLE),
}
"""Schemas for writing and for reading, by the kind of a field."""

_PLAIN_INT: Final[tuple[Schema, Schema]] = (
    {
        "anyOf": [
            {"type": "integer", "format": "int64", "minimum": -EXACT, "maximum": EXACT},
            _SCALARS[Kind.INT64][False],
        ]
    },
    _SCALARS[Kind.INT64][True],
)
"""Schemas for writing and for reading of a plain ``int``."""

_NUMBER_LIMITS: Final = {
    "ge": "minimum",
    "gt": "exclusiveMinimum",
    "le": "maximum",
    "lt": "exclusiveMaximum",
    "multiple_of": "multipleOf",
}
_LIMITS: Final[Mapping[Kind, Mapping[str, str]]] = {
    Kind.STRING: {"min_length": "minLength", "max_length": "maxLength", "pattern": "pattern"},
    **dict.fromkeys((*INT_KINDS, Kind.FLOAT, Kind.DOUBLE), _NUMBER_LIMITS),
}
"""Names of limits in pydantic, msgspec and annotated_types, each with its name in a schema."""

_ODD: Final = re.compile(r"[^A-Za-z0-9._-]")
"""Characters that the key of an OpenAPI component cannot have."""
_NO_WORD: Final = re.compile(r"[\W_]+")

DURATION_SCHEMA: Final[Schema] = {"type": "string", "pattern": r"^-?[0-9]{1,12}(\.[0-9]{1,9})?s$"}
_EMPTY: Final = "google.protobuf.Empty"
_SPECIAL: Final[Mapping[str, tuple[Schema, Schema]]] = {
    DURATION: _both(DURATION_SCHEMA),
    TIMESTAMP: _both({"type": "string", "format": "date-time"}),
    "google.protobuf.FieldMask": _both({"type": "string", "pattern": "^[^_]*$"}),
    STRUCT: _both({"type": "object"}),
    VALUE: _both({}),
    "google.protobuf.ListValue": _both({"type": "array", "items": {}}),
    _EMPTY: ({"type": "object"}, {"type": "object", "additionalProperties": False}),
    ANY: _both(
        {
            "type": "object",
            "properties": {"@type": {"type": "string", "pattern": "/"}},
            "required": ["@type"],
        }
    ),
    **{
        f"google.protobuf.{kind.name.title().replace('Uint', 'UInt')}Value": _SCALARS[kind]
        for kind in _SCALARS
    },
}
"""Schemas for writing and for reading of well-known types, by full name."""


def or_null(schema: Schema) -> Schema:
    """Return a schema that also accepts null."""
    if not schema:
        return schema
    kinds, choices, values = (schema.get(key) for key in ("type", "anyOf", "enum"))
    if isinstance(choices, list):
        return {**schema, "anyOf": [*choices, {"type": "null"}]}
    if kinds is None:
        return {"anyOf": [schema, {"type": "null"}]}
    more: Schema = {"enum": [*values, None]} if isinstance(values, list) else {}
    known = kinds if isinstance(kinds, list) else [kinds]
    return {**schema, "type": [*known, "null"], **more}


class MessageSchemas:
    """Makes the schemas of message classes: named object schemas that refer to each other.

    ``named`` has these object schemas by name. A reference to a schema is ``prefix``, followed by
    the schema's name. A class without a full name gets a name in the package of the message that
    contains it.
    """

    plain_int: tuple[Schema, Schema] = _PLAIN_INT
    """The schemas for writing and for reading of a plain ``int``."""

    def __init__(self, types: TypeRegistry, prefix: str = "#/components/schemas/") -> None:
        self.named: dict[str, Json] = {}
        self._types = types
        self._prefix = prefix
        self._references: dict[object, Schema] = {}

    def written(self, cls: type) -> Schema:
        """Return the schema of a message that is written as JSON."""
        return self._top(cls, reading=False)

    def read(
        self,
        cls: type,
        suffix: str = ".Input",
        more: Mapping[str, Json] | None = None,
        without: frozenset[str] = frozenset(),
    ) -> Schema:
        """Return the schema of the JSON values that are read as a message.

        ``more`` has further properties; a field of the same name replaces a property. ``without``
        has the JSON names of fields to omit. If ``more`` or ``without`` is given, ``suffix`` must
        distinguish the schema's name from the name of the plain message's schema.
        """
        return self._top(cls, reading=True, suffix=suffix, more=more, without=without)

    def field(self, field: Field, package: str) -> Schema:
        """Return the schema for reading one field; ``package`` is the package of its message."""
        one = self._one(field, package, reading=True)
        shown: Schema = {"type": "array", "items": one} if field.label is Label.REPEATED else one
        return {**shown, **_about(field)}

    def packed(self, cls: type) -> Schema:
        """Return the schema of an Any with a message of this class, in JSON (spec §1.10)."""
        written = self.written(cls)
        if self._types.knows(cls) and self._types.name_of(cls) in WRAPPED_TYPES:
            return {"allOf": [self.any(), {"type": "object", "properties": {"value": written}}]}
        return {"allOf": [self.any(), written]}

    def is_message(self, cls: object) -> TypeGuard[type]:
        """Return True for a message class, registered or not."""
        return isinstance(cls, type) and (self._types.knows(cls) or is_message_class(cls))

    def any(self) -> Schema:
        """Return the schema of the JSON form of an Any."""
        return self.add(ANY, _SPECIAL[ANY][0])

    def add(self, name: str, schema: Schema) -> Schema:
        """Store a schema under a name, and return a reference to it."""
        self.named[name] = schema
        return {"$ref": f"{self._prefix}{name}"}

    def _top(
        self,
        cls: type,
        *,
        reading: bool,
        suffix: str = "",
        more: Mapping[str, Json] | None = None,
        without: frozenset[str] = frozenset(),
    ) -> Schema:
        name = self._types.name_of(cls) if self._types.knows(cls) else ""
        shape = self._types.codec(name).shape if name else shape_of(cls)
        if shape is not None:
            return self._message(cls, shape, "", suffix, more or {}, without, reading=reading)
        if more:
            return self._own(cls, name + suffix, {"type": "object", "properties": dict(more)})
        if name in _SPECIAL:
            return _SPECIAL[name][reading]
        return self._own(cls, name + suffix, {"type": "object"})

    def _own(self, cls: type, name: str, schema: Schema) -> Schema:
        text = docstring(cls)
        return self.add(name, {"description": text, **schema} if text else schema)

    def _message(
        self,
        cls: type,
        shape: Shape,
        package: str,
        suffix: str,
        more: Mapping[str, Json],
        without: frozenset[str] = frozenset(),
        *,
        reading: bool,
    ) -> Schema:
        key = (cls, suffix, without)
        found = self._references.get(key)
        if found is not None:
            return found
        name = self._free(self._name(cls, package), suffix)
        # Stored first, because a message may contain itself.
        reference = self._references[key] = self.add(name, {})
        package = name.removesuffix(suffix).rpartition(".")[0]
        shown = [field for field in shape.fields if field.json_name not in without]
        fields: dict[str, Json] = {
            field.json_name: self._field(field, package, reading=reading) for field in shown
        }
        schema: Schema = {"type": "object", "properties": {**more, **fields}}
        if reading:
            needed: list[Json] = [field.json_name for field in shown if _needed(field)]
            schema |= {"required": needed} if needed else {}
            schema["additionalProperties"] = False
        self._own(cls, name, schema)
        return reference

    def _name(self, cls: type, package: str) -> str:
        if self._types.knows(cls):
            return self._types.name_of(cls)
        full_name = declared_name(cls) or protobuf_name(cls)
        return full_name or f"{package}.{_ODD.sub('_', cls.__name__)}".lstrip(".")

    def _free(self, name: str, suffix: str) -> str:
        taken = {*map(_folded, self.named)}
        number, free = 1, name + suffix
        while _folded(free) in taken:
            number += 1
            free = f"{name}{number}{suffix}"
        return free

    def _field(self, field: Field, package: str, *, reading: bool) -> Schema:
        one = self._one(field, package, reading=reading)
        if field.label is Label.REPEATED:
            one = {"type": "array", "items": one}
        elif field.label is Label.MAP:
            one = {"type": "object", "additionalProperties": one, **_keys(field)}
        shown = or_null(one) if reading and not _needed(field) else one
        return {**shown, **_about(field)}

    def _one(self, field: Field, package: str, *, reading: bool) -> Schema:
        if field.as_number:
            return _limited(self.plain_int[reading], field, reading=reading)
        if field.kind in _SCALARS:
            return _limited(_SCALARS[field.kind][reading], field, reading=reading)
        if field.kind is Kind.ENUM:
            return self._enum(field, package, reading=reading)
        name = field.message_name or ""
        if name == ANY:
            return self.any()
        if name in _SPECIAL:
            return _SPECIAL[name][reading]
        suffix = ".Input" if reading else ""
        return self._message(field.python, field.shape, package, suffix, {}, reading=reading)

    def _enum(self, field: Field, package: str, *, reading: bool) -> Schema:
        cls = field.python
        numbers = enum_numbers(cls)
        reference = self._references.get(cls)
        if reference is None:
            name = self._free(self._name(cls, package), "")
            names: list[Json] = list(cls.__members__)
            reference = self._own(cls, name, {"type": "string", "enum": names})
            self._references[cls] = reference
        if not reading:
            return reference
        return {"anyOf": [reference, {"type": "integer", "enum": list(numbers)}]}


def _folded(name: str) -> str:
    # Code generators may drop every character of a name except letters and digits.
    return _NO_WORD.sub("", name).lower()


def _needed(field: Field) -> bool:
    # If a field that is not needed is missing, its value is zero, None or its default.
    return field.required and field.label is Label.OPTIONAL and not field.nullable


def _keys(field: Field) -> Schema:
    if field.key_kind is Kind.STRING:
        return {}
    if field.key_kind is Kind.BOOL:
        return {"propertyNames": {"enum": ["true", "false"]}}
    return {"propertyNames": {"pattern": "^-?[0-9]+$"}}


def _about(field: Field) -> Schema:
    """Return what the class says about a field: its description, examples and default."""
    said = field.declared
    if said is None:
        return {}
    single = field.label in (Label.OPTIONAL, Label.IMPLICIT)
    marks = (*said.about, *marks_of(said.annotation), *(marks_of(field.value) if single else ()))
    found: Schema = {}
    for mark in marks:
        for name in ("description", "documentation"):  # typing_extensions.Doc has the latter
            text = getattr(mark, name, None)
            if isinstance(text, str) and text:
                found.setdefault("description", inspect.cleandoc(text))
        examples = getattr(mark, "examples", None)
        if isinstance(examples, list) and examples and all(map(_is_simple, examples)):
            found.setdefault("examples", [*examples])
    default = _default(field, said) if single and not said.factory else None
    return found if default is None else {**found, "default": default}


def _default(field: Field, said: Declared) -> Json:
    """Return the value in JSON of a missing field, None if that is zero, null or not a scalar."""
    default = said.default
    if field.label is Label.IMPLICIT:
        return None
    if field.kind is Kind.ENUM:
        return default.name if isinstance(default, enum.Enum) else None
    if not _is_simple(default):
        return None
    quoted = field.kind in (Kind.INT64, Kind.UINT64) and not field.as_number
    return str(default) if quoted or _is_beyond(default) else default


def _is_simple(value: object) -> TypeGuard[str | int | float]:
    return isinstance(value, (str, int)) or (isinstance(value, float) and math.isfinite(value))


def _is_beyond(value: object) -> bool:
    return isinstance(value, int) and abs(value) > EXACT


def _limited(schema: Schema, field: Field, *, reading: bool) -> Schema:
    """Add the choices of a Literal, and the limits that the class checks when it reads a value.

    A default may be beyond the limits, so the schema for writing does not have them.
    """
    inner, said = bare(field.value), field.declared
    if typing.get_origin(inner) is typing.Literal:
        return {**schema, "enum": [*typing.get_args(inner)]}
    names = _LIMITS.get(field.kind)
    if not reading or names is None or said is None or not said.limited or field.lower is not None:
        return schema
    found = dict(schema)
    for mark in marks_of(field.value):
        # A Field of pydantic inside of a list keeps its limits as marks of its own.
        for one in (mark, *getattr(mark, "metadata", ())):
            for name, key in names.items():
                limit = getattr(one, name, None)
                if _is_simple(limit):
                    found[key] = limit
    return found
