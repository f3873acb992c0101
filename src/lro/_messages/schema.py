"""What a message class looks like as a message: its fields, kinds and labels.

One reading of a class serves the JSON codec, the filters and (with the protobuf extra) the binary
form. The rules of presence are those of proto3, see ``docs/explanation/messages.md``:

- a field whose default is the zero of its type, or that has no default, is *implicit*: left out
  of JSON when zero, zero when it is missing;
- ``X | None``, and a field with any other default, has *presence*: missing means the default;
- ``list``/``tuple``/``Sequence`` are *repeated*, ``dict``/``Mapping`` are *maps*.
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
from typing import Annotated, Final, TypeGuard, TypeVar

import attrs

from lro._base.any import UNKNOWN, Any, declared_name, named
from lro._base.errors import DeclarationError

T = TypeVar("T")

_FULL_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*", re.ASCII)


def check_full_name(full_name: object) -> None:
    """Do nothing for the full name of a message type.

    Raises:
        DeclarationError: It is none.
    """
    if isinstance(full_name, str) and _FULL_NAME.fullmatch(full_name):
        return
    if isinstance(full_name, type):
        wanted = 'write @lro.message("acme.images.v1.ResizeRequest"), with the full name'
        raise DeclarationError(full_name.__qualname__, wanted)
    wanted = "is not a full name such as acme.images.v1.ResizeRequest"
    raise DeclarationError(repr(full_name), wanted)


def message(full_name: str) -> Callable[[type[T]], type[T]]:
    """Give a message class its full name, for example ``acme.images.v1.ResizeResponse``.

    A class decorator, put above ``@attrs.frozen`` or ``@dataclass``. The name travels in the
    ``@type`` of every Any that packs such a message, so client and server must agree on it.

    Raises:
        DeclarationError: It is not such a name, or the decorator has no argument.
    """
    check_full_name(full_name)

    return named(full_name)


class Kind(enum.Enum):
    """The type of one value of a field, in proto's terms."""

    STRING = "string"
    BYTES = "bytes"
    BOOL = "bool"
    INT32 = "int32"
    INT64 = "int64"
    UINT32 = "uint32"
    UINT64 = "uint64"
    FLOAT = "float"
    DOUBLE = "double"
    ENUM = "enum"
    MESSAGE = "message"


Int32 = Annotated[int, Kind.INT32]
"""An integer of 32 bits: a JSON number. Plain ``int`` is an int64: a decimal string in JSON."""
Int64 = Annotated[int, Kind.INT64]
UInt32 = Annotated[int, Kind.UINT32]
UInt64 = Annotated[int, Kind.UINT64]
Float = Annotated[float, Kind.FLOAT]
"""A floating-point number of 32 bits. Plain ``float`` is a double."""


_NUMBER: Final = "lro.number"


def number(value: int) -> dict[str, object]:
    """Field metadata that fixes a field number: ``attrs.field(default="", metadata=number(4))``."""
    return {_NUMBER: value}


class Label(enum.Enum):
    """How often a field holds a value, and whether an absent one differs from zero."""

    IMPLICIT = "implicit"
    OPTIONAL = "optional"
    REPEATED = "repeated"
    MAP = "map"


INT_KINDS: Final = frozenset({Kind.INT32, Kind.INT64, Kind.UINT32, Kind.UINT64})

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
_LISTS: Final = (list, tuple, collections.abc.Sequence)
_MAPS: Final = (dict, collections.abc.Mapping)
_KEY_KINDS: Final = INT_KINDS | {Kind.STRING, Kind.BOOL}

DURATION: Final = "google.protobuf.Duration"
TIMESTAMP: Final = "google.protobuf.Timestamp"
STRUCT: Final = "google.protobuf.Struct"
VALUE: Final = "google.protobuf.Value"
ANY: Final = "google.protobuf.Any"


@attrs.frozen(kw_only=True)
class Field:
    """One field of a message.

    ``python`` is the Python type of one value (of an element, of a map's value), ``message_name``
    the full name of a message kind where it has a fixed one (the well-known types), ``zero`` what
    an implicit field is when it is missing, ``required`` that the class itself has no default,
    ``nullable`` that None says absent, ``container`` what a repeated field is read as, ``below``
    gives the shape of messages that are not attrs classes.
    """

    name: str
    json_name: str
    number: int
    label: Label
    kind: Kind
    python: typing.Any
    key_kind: Kind | None = None
    message_name: str | None = None
    zero: object = None
    required: bool = False
    nullable: bool = False
    container: type = tuple
    below: Callable[[], Shape] | None = None

    @property
    def shape(self) -> Shape:
        """The shape of the messages that it holds, if these have fields."""
        return shape_of(self.python) if self.below is None else self.below()


@attrs.frozen
class Shape:
    """All fields of a message class, in declared order."""

    python: type
    fields: tuple[Field, ...]
    spellings: Mapping[str, Field] = attrs.field(init=False, eq=False, repr=False)
    """Field by JSON name and by original name (spec §1.8(2))."""

    def __attrs_post_init__(self) -> None:
        by_json = {field.json_name: field for field in self.fields}
        by_name = {field.name: field for field in self.fields}
        # The JSON name counts more: it is what is written.
        object.__setattr__(self, "spellings", {**by_name, **by_json})


def json_name(name: str) -> str:
    """The lowerCamelCase spelling of a field name, as protobuf computes it."""
    head, *rest = name.split("_")
    return head + "".join(part[:1].upper() + part[1:] for part in rest)


def is_message_class(cls: object) -> bool:
    """True for attrs classes and dataclasses."""
    return isinstance(cls, type) and (attrs.has(cls) or dataclasses.is_dataclass(cls))


def no_message(annotation: object) -> str:
    """Why this is not a message class, and what to write instead."""
    kind = typing.get_origin(annotation) or annotation
    if kind in _MAPS:
        return "is no message class; lro.Struct is the one for any JSON object"
    if kind in _LISTS:
        return "is no message class; put the list into a field of one, such as items: list[str]"
    if not isinstance(annotation, type):
        return "is no class"
    instead = "write it as one, or give a codec factory: lro.TypeRegistry(factories=...)"
    return f"is neither an attrs class nor a dataclass; {instead}"


@functools.cache
def shape_of(cls: type) -> Shape:
    """The shape of an attrs class or dataclass.

    Raises:
        DeclarationError: The class is neither, or a field has a type that no proto field has.
    """
    if not is_message_class(cls):
        raise DeclarationError(_label(cls), no_message(cls))
    try:
        hints = typing.get_type_hints(cls, include_extras=True)
    except NameError as exc:
        raise DeclarationError(_label(cls), f"has an annotation that names nothing: {exc}") from exc
    fields: dict[int, Field] = {}
    spelled: set[str] = set()
    for place, (name, default, extra) in enumerate(_defaults(cls), start=1):
        where = extra.get(_NUMBER, place)
        try:
            if not _is_number(where) or where in fields:
                raise _Unsupported(f"{where!r} is no field number that is still free")
            if name.startswith("_") or not name.isascii():
                raise _Unsupported("a field's name is ASCII, and cannot begin with an underscore")
            if json_name(name) in spelled:
                raise _Unsupported(f"another field is called {json_name(name)!r} in JSON")
            spelled.add(json_name(name))
            if name not in hints:
                raise _Unsupported("has no annotation, which says the type of the field")
            fields[where] = _field(name, where, hints[name], default)
        except _Unsupported as exc:
            raise DeclarationError(f"{_label(cls)}.{name}", str(exc)) from None
    return Shape(cls, tuple(fields.values()))


_REQUIRED: Final = object()
_DYNAMIC: Final = object()


class _Unsupported(Exception):
    pass


def _is_number(value: object) -> TypeGuard[int]:
    # From 19,000 on, a thousand are protobuf's own; two are those of what a start says beside its
    # request (``lro._messages.protobuf.starts``).
    free = type(value) is int and 0 < value < 2**29 and not 19_000 <= value < 20_000
    return free and value not in (2046, 2047)


def _label(cls: type) -> str:
    return declared_name(cls) or str(getattr(cls, "__qualname__", repr(cls)))


_Declared = tuple[str, object, Mapping[str, object]]


def _defaults(cls: type) -> list[_Declared]:
    if attrs.has(cls):
        own = [a for a in attrs.fields(cls) if a.init and not a.metadata.get(UNKNOWN)]
        return [(a.name, _attrs_default(a), a.metadata) for a in own]
    found: list[_Declared] = []
    for f in dataclasses.fields(cls):
        default: object = f.default
        if f.default_factory is not dataclasses.MISSING:
            default = f.default_factory()
        elif default is dataclasses.MISSING:
            default = _REQUIRED
        if f.init:
            found.append((f.name, default, f.metadata))
    return found


def _attrs_default(attribute: attrs.Attribute[object]) -> object:
    default = attribute.default
    if default is attrs.NOTHING:
        return _REQUIRED
    if isinstance(default, attrs.Factory):  # type: ignore[arg-type]  # a function to mypy
        return _DYNAMIC if default.takes_self else default.factory()  # type: ignore[attr-defined]
    return default


def _field(name: str, number: int, annotation: object, default: object) -> Field:
    inner, optional = _without_none(annotation)
    origin = typing.get_origin(inner)
    key_kind = None
    label = Label.OPTIONAL
    if _is_bare(inner):
        raise _no_field(inner)
    if origin in _LISTS:
        if optional:
            raise _Unsupported("a repeated field cannot be None; use an empty one")
        label, value = Label.REPEATED, _element(inner)
    elif origin in _MAPS and not _is_struct(inner):
        if optional:
            raise _Unsupported("a map cannot be None; use an empty one")
        key, value = typing.get_args(inner)
        label, key_kind = Label.MAP, _kind(key)[0]
        if key_kind not in _KEY_KINDS:
            raise _Unsupported(f"{key!r} cannot be the key of a map")
    else:
        value = inner
    kind, python, message_name = _kind(value)
    zero: object = _zero(kind, python)
    if label is Label.OPTIONAL and not optional and (kind is not Kind.MESSAGE or python is dict):
        label = Label.IMPLICIT if default is _REQUIRED or _same(default, zero) else Label.OPTIONAL
    return Field(
        name=name,
        json_name=json_name(name),
        number=number,
        label=label,
        kind=kind,
        python=python,
        key_kind=key_kind,
        message_name=message_name,
        zero=zero,
        required=default is _REQUIRED,
        nullable=optional,
        container=list if origin is list else tuple,
    )


def _same(default: object, zero: object) -> bool:
    # Like any number, a float may be declared with an integer: ``rate: float = 0``.
    alike = type(default) is type(zero) or (type(default), type(zero)) == (int, float)
    return alike and default == zero


def _without_none(annotation: object) -> tuple[object, bool]:
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
    return len(args) == 2 and args[0] is str and args[1] in (object, typing.Any)


def _kind(annotation: object) -> tuple[Kind, object, str | None]:
    if typing.get_origin(annotation) is Annotated:
        base, *marks = typing.get_args(annotation)
        for mark in marks:
            if isinstance(mark, Kind):
                return mark, base, None
        return _kind(base)
    if annotation in _PLAIN:
        return _PLAIN[annotation], annotation, None
    if isinstance(annotation, type) and issubclass(annotation, enum.Enum):
        _check_enum(annotation)
        return Kind.ENUM, annotation, None
    if annotation is datetime:
        return Kind.MESSAGE, datetime, TIMESTAMP
    if annotation is timedelta:
        return Kind.MESSAGE, timedelta, DURATION
    if annotation in (object, typing.Any):
        return Kind.MESSAGE, object, VALUE
    if typing.get_origin(annotation) in _MAPS and _is_struct(annotation):
        return Kind.MESSAGE, dict, STRUCT
    if annotation is Any:
        return Kind.MESSAGE, Any, ANY
    if is_message_class(annotation):
        return Kind.MESSAGE, annotation, declared_name(typing.cast(type, annotation))
    raise _no_field(annotation)


def _is_bare(annotation: object) -> bool:
    kind = typing.get_origin(annotation) or annotation
    return kind in (*_LISTS, *_MAPS) and not typing.get_args(annotation)


def _no_field(annotation: object) -> _Unsupported:
    why = f"no proto field has the type {annotation!r}"
    if not _is_bare(annotation):
        if isinstance(annotation, type):
            why += "; a message in a field is an attrs class or a dataclass"
    elif (typing.get_origin(annotation) or annotation) in _LISTS:
        why += "; a list needs the type of its elements, such as list[str]"
    else:
        why += "; a dict needs the types of its keys and values, such as dict[str, int]"
        why += " (dict[str, object] is any JSON object)"
    return _Unsupported(why)


def _check_enum(cls: type[enum.Enum]) -> None:
    if issubclass(cls, enum.Flag):
        raise _Unsupported(f"{cls.__name__} is a Flag: a combination is no value of a proto enum")
    for name in cls.__members__:
        if not name.isascii() or name in ("option", "reserved"):
            raise _Unsupported(f"no value of a proto enum is called {name!r}, as in {cls.__name__}")
    alike = {member.name.replace("_", "").lower() for member in cls}
    if len(alike) < len(cls):
        raise _Unsupported(f"names in {cls.__name__} differ by case and underscores alone")
    if not issubclass(cls, int):
        return  # numbered as its members stand
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
