"""Describes message classes by their shapes, in which each field is a proto field.

The JSON codec, the filters and (with the extra ``protobuf``) the binary form use the same shape.
Separate modules read the classes of pydantic and msgspec, and TypedDicts.
"""

from __future__ import annotations

import collections.abc
import dataclasses
import enum
import functools
import re
import types
import typing
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Annotated, Any, Final, TypeGuard

import attrs

from lro._base.errors import DeclarationError, InvalidArgument, got
from lro._base.status import UNKNOWN, AnyMessage, declared_name
from lro._messages.schema import (
    ANY,
    DURATION,
    DYNAMIC,
    INT_KINDS,
    NO_ANNOTATION,
    NUMBER_KEY,
    REQUIRED,
    STRUCT,
    TIMESTAMP,
    VALUE,
    Declared,
    Field,
    ForeignType,
    Kind,
    Label,
    Library,
    Shape,
    bare,
    json_name,
    marks_of,
)

_ZERO: Final[Mapping[Kind, object]] = {
    Kind.STRING: "",
    Kind.BYTES: b"",
    Kind.BOOL: False,
    **dict.fromkeys(INT_KINDS, 0),
    Kind.FLOAT: 0.0,
    Kind.DOUBLE: 0.0,
}
_PLAIN: Final[Mapping[object, Kind]] = {
    str: Kind.STRING,
    bytes: Kind.BYTES,
    bool: Kind.BOOL,
    int: Kind.INT64,
    float: Kind.DOUBLE,
}
_PYTHON: Final = {kind: python for python, kind in _PLAIN.items()}
_LISTS: Final = (list, tuple, collections.abc.Sequence)
_SETS: Final = (set, frozenset, collections.abc.Set)
_MAPS: Final = (dict, collections.abc.Mapping)
_NAME: Final = re.compile("[A-Za-z][A-Za-z0-9_]*")
"""Matches valid names of proto fields."""
_KEY_KINDS: Final = INT_KINDS | {Kind.STRING, Kind.BOOL}


def library_of(cls: type) -> Library | None:
    """Return the library of a message class: pydantic, msgspec, typing (for a TypedDict), or None.

    Imports the library only if ``cls`` is one of its classes.
    """
    if "__pydantic_fields__" in vars(cls):
        from lro._messages import pydantic_models

        return pydantic_models.LIBRARY if pydantic_models.has_fields(cls) else None
    if hasattr(cls, "__struct_config__"):
        from lro._messages import msgspec_structs

        return msgspec_structs.LIBRARY
    if is_typed_dict(cls):
        from lro._messages import typed_dicts

        return typed_dicts.LIBRARY
    return None


def is_typed_dict(cls: object) -> TypeGuard[type]:
    """Return True for a TypedDict of ``typing`` or ``typing_extensions``."""
    return isinstance(cls, type) and issubclass(cls, dict) and hasattr(cls, "__required_keys__")


def is_message_class(cls: object) -> bool:
    """Return True for an attrs class, dataclass, pydantic model, msgspec Struct or TypedDict."""
    if not isinstance(cls, type):
        return False
    return attrs.has(cls) or library_of(cls) is not None or _is_dataclass(cls)


def _is_dataclass(cls: type) -> bool:
    return dataclasses.is_dataclass(cls) and "__pydantic_fields__" not in vars(cls)


def no_message(annotation: object) -> str:
    """Return a text that says why this is not a message class, and what to use instead."""
    kind = typing.get_origin(annotation) or annotation
    if kind in _MAPS:
        return "is not a message class; lro.Struct is the one for any JSON object"
    if kind in _LISTS:
        return "is not a message class; put the list in a field of one, such as items: list[str]"
    if not isinstance(annotation, type):
        return "is not a class"
    if hasattr(annotation, "__pydantic_root_model__"):
        return "has no fields in JSON, but one value; put it in a field of a model"
    if hasattr(annotation, "__fields__") and hasattr(annotation, "__validators__"):
        return "is a model of pydantic 1; message classes are those of pydantic 2"
    kinds = "an attrs class, a dataclass, a pydantic model, a msgspec Struct or a TypedDict"
    return f"is not {kinds}; write it as one, or give lro.TypeRegistry(factories=...) its codec"


@functools.cache
def shape_of(cls: type) -> Shape:
    """Return the shape of a message class.

    Raises:
        DeclarationError: ``cls`` is not a message class, or a field's type has no proto form.
    """
    if not is_message_class(cls):
        raise DeclarationError(_label(cls), no_message(cls))
    library = library_of(cls)
    try:
        declared = library.declared(cls) if library else _declared(cls)
    except NameError as exc:
        raise DeclarationError(_label(cls), f"has an unknown name in an annotation: {exc}") from exc
    fields: dict[int, Field] = {}
    spelled: set[str] = set()
    for place, said in enumerate(declared, start=1):
        name, in_json = said.name, said.json_name or json_name(said.name)
        where = _number_in(said, place)
        try:
            if not _is_number(where) or where in fields:
                raise _Unsupported(f"{where!r} is not a valid field number, or is already used")
            if not _NAME.fullmatch(name):
                wanted = "has ASCII letters, digits and underscores, and begins with a letter"
                raise _Unsupported(f"a field's name {wanted}")
            if in_json in spelled:
                raise _Unsupported(f"another field is called {in_json!r} in JSON")
            if in_json[:1] in ("@", "["):
                raise _Unsupported(f"a JSON name must not begin with '@' or '[', got {in_json!r}")
            spelled.add(in_json)
            if said.annotation is NO_ANNOTATION:
                raise _Unsupported("has no annotation, which is needed for the type of the field")
            fields[where] = _field(said, where, in_json, library)
        except _Unsupported as exc:
            raise DeclarationError(f"{_label(cls)}.{name}", str(exc)) from None
    return Shape(cls, tuple(fields.values()))


class _Unsupported(Exception):
    pass


def _is_number(value: object) -> TypeGuard[int]:
    # Protobuf reserves the numbers 19,000 to 19,999. The numbers 2046 and 2047 are those of the
    # option fields of a start (``lro._messages.protobuf.binary``).
    free = type(value) is int and 0 < value < 2**29 and not 19_000 <= value < 20_000
    return free and value not in (2046, 2047)


def _label(cls: type) -> str:
    return declared_name(cls) or str(getattr(cls, "__qualname__", repr(cls)))


def _declared(cls: type) -> list[Declared]:
    hints = typing.get_type_hints(cls, include_extras=True)
    return [
        Declared(
            name=name,
            annotation=hints.get(name, NO_ANNOTATION),
            default=default,
            number=extra.get(NUMBER_KEY),
            factory=factory,
        )
        for name, default, factory, extra in _defaults(cls)
    ]


def _defaults(cls: type) -> list[tuple[str, object, bool, Mapping[str, object]]]:
    # Returns names, defaults, whether a function makes the default, and metadata.
    if attrs.has(cls):
        own = [a for a in attrs.fields(cls) if a.init and not a.metadata.get(UNKNOWN)]
        return [(a.name, _attrs_default(a), _has_factory(a), a.metadata) for a in own]
    found: list[tuple[str, object, bool, Mapping[str, object]]] = []
    for f in dataclasses.fields(cls):
        default: object = f.default
        factory = f.default_factory is not dataclasses.MISSING
        if f.default_factory is not dataclasses.MISSING:
            default = f.default_factory()
        elif default is dataclasses.MISSING:
            default = REQUIRED
        if f.init:
            found.append((f.name, default, factory, f.metadata))
    return found


def _has_factory(attribute: attrs.Attribute[object]) -> bool:
    return isinstance(attribute.default, attrs.Factory)  # type: ignore[arg-type]  # a function to mypy


def _attrs_default(attribute: attrs.Attribute[object]) -> object:
    default = attribute.default
    if default is attrs.NOTHING:
        return REQUIRED
    if _has_factory(attribute):
        return DYNAMIC if default.takes_self else default.factory()  # type: ignore[attr-defined]
    return default


def _number_in(said: Declared, place: int) -> object:
    found = said.number
    for mark in marks_of(said.annotation):
        if found is None and isinstance(mark, dict):
            found = mark.get(NUMBER_KEY)
    return place if found is None else found


def _field(said: Declared, number: int, in_json: str, library: Library | None) -> Field:
    try:
        if said.foreign or (library and library.rewrites(said.annotation)):
            raise _Unsupported("is written by its library")
        inner, optional = _without_none(said.annotation)
        label, key_kind, value = _labelled(inner, optional=optional)
        kind, python, message_name, lift, lower = _value(value, library)
    except _Unsupported:
        foreign = said.foreign
        if foreign is None and library is not None:
            foreign = library.foreign(said.annotation)
        if foreign is None:
            raise
        optional, label, key_kind, inner, value = False, Label.OPTIONAL, None, None, None
        kind, python, message_name, lift, lower = _of_library(foreign)
    default = said.default
    zero: object = _zero(kind, python)
    chosen = lower is not None or said.explicit  # with ``lower``, the zero may be invalid
    if label is Label.OPTIONAL and not optional and (kind is not Kind.MESSAGE or python is dict):
        alike = default is REQUIRED or _same(default, zero)
        label = Label.IMPLICIT if alike and not chosen else Label.OPTIONAL
    return Field(
        name=said.name,
        json_name=in_json,
        number=number,
        label=label,
        kind=kind,
        python=python,
        as_number=kind is Kind.INT64 and not _has_width(value),
        key_kind=key_kind,
        below=functools.partial(shape_of, python) if is_message_class(python) else None,
        message_name=message_name,
        zero=zero,
        required=default is REQUIRED,
        nullable=optional,
        container=_container(inner),
        explicit=said.explicit,
        read_only=said.read_only,
        aliases=said.aliases,
        get=said.get,
        lift=lift,
        lower=lower,
        declared=said,
        value=value,
    )


def _labelled(annotation: object, *, optional: bool) -> tuple[Label, Kind | None, object]:
    inner = bare(annotation)
    origin = typing.get_origin(inner)
    if _is_bare(inner):
        raise _no_field(inner)
    if origin in _LISTS:
        if optional:
            raise _Unsupported("a repeated field cannot be None; use an empty one")
        return Label.REPEATED, None, _element(inner)
    if origin in _SETS:
        (value,) = typing.get_args(inner)
        if optional or _kind(value)[0] is Kind.MESSAGE:
            raise _Unsupported("a set must have scalars, such as texts or numbers, and not be None")
        return Label.REPEATED, None, value
    if origin in _MAPS and not _is_struct(inner):
        if optional:
            raise _Unsupported("a map cannot be None; use an empty one")
        key, value = typing.get_args(inner)
        key_kind = _kind(key)[0]
        if key_kind not in _KEY_KINDS or typing.get_origin(bare(key)) is typing.Literal:
            raise _Unsupported(f"{key!r} cannot be the key of a map")
        return Label.MAP, key_kind, value
    return Label.OPTIONAL, None, annotation


def _container(annotation: object) -> type:
    origin = typing.get_origin(bare(annotation))
    if origin in _SETS:
        return set if origin is set else frozenset
    return list if origin is list else tuple


_Value = tuple[
    Kind, Any, str | None, Callable[[Any], object] | None, Callable[[Any], object] | None
]
"""The attributes of a Field: kind, Python type, message name, ``lift`` and ``lower``."""


def _value(annotation: object, library: Library | None) -> _Value:
    try:
        if library and library.rewrites(annotation):
            raise _Unsupported("is written by its library")
        kind, python, message_name = _kind(annotation)
    except _Unsupported:
        foreign = None if library is None else library.foreign(annotation)
        if foreign is None:
            raise
        return _of_library(foreign)
    inner = bare(annotation)
    if typing.get_origin(inner) is typing.Literal:
        check = _one_of(typing.get_args(inner))
        return kind, str, None, check, check
    lift = library.constraint(annotation, kind) if library else None
    return kind, python, message_name, lift, None


def _of_library(foreign: ForeignType) -> _Value:
    kind = foreign.kind
    python, name = (object, VALUE) if kind is Kind.MESSAGE else (_PYTHON[kind], None)
    return kind, python, name, foreign.lift, foreign.lower


def _one_of(values: tuple[object, ...]) -> Callable[[Any], object]:
    wanted = f"one of {', '.join(map(repr, values))}"

    def check(value: object) -> object:
        if value not in values:
            raise InvalidArgument("", f"must be {wanted}, got {got(value)}")
        return value

    return check


def _same(default: object, zero: object) -> bool:
    # A float field may have an integer as its default: ``rate: float = 0``.
    alike = type(default) is type(zero) or (type(default), type(zero)) == (int, float)
    return alike and default == zero


def _without_none(annotation: object) -> tuple[object, bool]:
    if typing.get_origin(annotation) is Annotated:
        inner, optional = _without_none(bare(annotation))
        marks = marks_of(annotation)
        return Annotated[(inner, *marks)], optional
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        members = typing.get_args(annotation)
        rest = [member for member in members if member is not type(None)]
        if len(rest) != 1 or len(rest) == len(members):
            raise _Unsupported(f"a field has one type, or that type or None, not {annotation!r}")
        return rest[0], True
    return annotation, False


def _element(annotation: object) -> object:
    args = typing.get_args(annotation)
    if typing.get_origin(annotation) is tuple and (len(args) != 2 or args[1] is not Ellipsis):
        raise _Unsupported("a tuple must be of one type and any length: tuple[X, ...]")
    return args[0]


def _is_struct(annotation: object) -> bool:
    args = typing.get_args(annotation)
    return len(args) == 2 and args[0] is str and args[1] in (object, Any)


def _kind(annotation: object) -> tuple[Kind, object, str | None]:
    if typing.get_origin(annotation) is Annotated:
        base, *marks = typing.get_args(annotation)
        for mark in marks:
            if isinstance(mark, Kind):
                return mark, bare(base), None
        return _kind(base)
    if isinstance(annotation, typing.NewType):
        return _kind(annotation.__supertype__)
    if typing.get_origin(annotation) is typing.Literal:
        if all(isinstance(one, str) for one in typing.get_args(annotation)):
            return Kind.STRING, str, None
        raise _Unsupported(f"the values of a Literal are texts, not {annotation!r}; use an Enum")
    if annotation in _PLAIN:
        return _PLAIN[annotation], annotation, None
    if isinstance(annotation, type) and issubclass(annotation, enum.Enum):
        _check_enum(annotation)
        return Kind.ENUM, annotation, None
    if annotation is datetime or _is_checked_datetime(annotation):
        return Kind.MESSAGE, datetime, TIMESTAMP
    if annotation is timedelta:
        return Kind.MESSAGE, timedelta, DURATION
    if annotation in (object, Any):
        return Kind.MESSAGE, object, VALUE
    if typing.get_origin(annotation) in _MAPS and _is_struct(annotation):
        return Kind.MESSAGE, dict, STRUCT
    if annotation is AnyMessage:
        return Kind.MESSAGE, AnyMessage, ANY
    if is_message_class(annotation):
        return Kind.MESSAGE, annotation, declared_name(typing.cast(type, annotation))
    raise _no_field(annotation)


def _has_width(annotation: object) -> bool:
    # Returns True if the annotation has a width, such as Int64: then JSON has the form of protobuf.
    if typing.get_origin(annotation) is Annotated:
        base, *marks = typing.get_args(annotation)
        return any(isinstance(mark, Kind) for mark in marks) or _has_width(base)
    return isinstance(annotation, typing.NewType) and _has_width(annotation.__supertype__)


def _is_checked_datetime(annotation: object) -> bool:
    # Recognises pydantic's types without importing pydantic. The model itself runs the checks of
    # these types.
    where = getattr(annotation, "__module__", "")
    return where == "pydantic.types" and getattr(annotation, "__name__", "") in _CHECKED_DATETIMES


_CHECKED_DATETIMES: Final = ("AwareDatetime", "PastDatetime", "FutureDatetime")


def _is_bare(annotation: object) -> bool:
    kind = typing.get_origin(annotation) or annotation
    return kind in (*_LISTS, *_SETS, *_MAPS) and not typing.get_args(annotation)


def _no_field(annotation: object) -> _Unsupported:
    why = f"no proto field has the type {annotation!r}"
    if not _is_bare(annotation):
        if isinstance(annotation, type):
            why += f"; as a message, {annotation.__name__} {no_message(annotation)}"
    elif (typing.get_origin(annotation) or annotation) in (*_LISTS, *_SETS):
        why += "; a list needs the type of its elements, such as list[str]"
    else:
        why += "; a dict needs the types of its keys and values, such as dict[str, int]"
        why += " (dict[str, object] is any JSON object)"
    return _Unsupported(why)


def _check_enum(cls: type[enum.Enum]) -> None:
    if issubclass(cls, enum.Flag):
        raise _Unsupported(
            f"{cls.__name__} is a Flag, and a combination is not a value of a proto enum"
        )
    for name in cls.__members__:
        if not name.isascii() or name in ("option", "reserved"):
            raise _Unsupported(f"{cls.__name__} has a member {name!r}, which proto does not allow")
    alike = {member.name.replace("_", "").lower() for member in cls}
    if len(alike) < len(cls):
        raise _Unsupported(f"names in {cls.__name__} differ only by case and underscores")
    if not issubclass(cls, int):
        return  # the numbers of such an enum are the positions of its members
    values = [int(member.value) for member in cls]
    if not values or values[0] != 0:
        raise _Unsupported(f"the first member of {cls.__name__} must be 0, as for any proto3 enum")
    if not all(-(2**31) <= value < 2**31 for value in values):
        raise _Unsupported(f"a member of {cls.__name__} has more than 32 bits")


def _zero(kind: Kind, python: object) -> object:
    if kind is Kind.ENUM:
        members = list(typing.cast("type[enum.Enum]", python))
        return members[0] if members else None
    return {} if python is dict else _ZERO.get(kind)
