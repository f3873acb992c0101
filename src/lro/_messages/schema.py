"""What a message class looks like as a message: its fields, kinds and labels.

One reading of a class serves the JSON codec, the filters and (with the protobuf extra) the binary
form. The rules of presence are those of proto3, see ``docs/explanation/messages.md``:

- a field whose default is the zero of its type, or that has no default, is *implicit*: left out
  of JSON when zero, zero when it is missing;
- ``X | None``, and a field with any other default, has *presence*: missing means the default;
- ``list``/``tuple``/``Sequence`` are *repeated*, ``dict``/``Mapping`` are *maps*.
"""

from __future__ import annotations

import base64
import binascii
import collections.abc
import dataclasses
import enum
import functools
import math
import re
import struct
import types
import typing
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from decimal import Decimal, InvalidOperation
from typing import Annotated, Final, TypeGuard, TypeVar

import attrs

from lro._base.errors import DeclarationError, InvalidArgument, got
from lro._base.status import UNKNOWN, Any, Json, declared_name, named

T = TypeVar("T")

_FULL_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*", re.ASCII)


def check_full_name(full_name: object) -> None:
    """Check the full name of a message type.

    Raises:
        DeclarationError: It is not a full name.
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


_NUMBER_KEY: Final = "lro.number"


def number(value: int) -> dict[str, object]:
    """Field metadata that fixes a field number: ``attrs.field(default="", metadata=number(4))``."""
    return {_NUMBER_KEY: value}


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
        where = extra.get(_NUMBER_KEY, place)
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
    # request (``lro._messages.protobuf.binary``).
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


_NUMBER_TEXT: Final = re.compile(r"-?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?", re.ASCII)
_LONGEST: Final = 400
"""Digits of the longest number in quotes that is read; the largest double has 309."""
_URL_SAFE: Final = str.maketrans("-_", "+/")
_SPECIAL: Final[Mapping[str, float]] = {
    "NaN": math.nan,
    "Infinity": math.inf,
    "-Infinity": -math.inf,
}
_RANGES: Final[Mapping[Kind, tuple[int, int]]] = {
    Kind.INT32: (-(2**31), 2**31 - 1),
    Kind.UINT32: (0, 2**32 - 1),
    Kind.INT64: (-(2**63), 2**63 - 1),
    Kind.UINT64: (0, 2**64 - 1),
}

Loader = Callable[[Json], object]
Dumper = Callable[[object], Json]


def _wrong(wanted: str, value: object) -> InvalidArgument:
    return InvalidArgument("", f"must be {wanted}, got {got(value)}")


def is_text(value: str) -> bool:
    """Whether a string has no unpaired surrogate."""
    if value.isascii():
        return True
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def load_string(value: Json) -> str:
    """A string without unpaired surrogates."""
    if type(value) is not str:
        raise _wrong("a string", value)
    if not (value.isascii() or is_text(value)):
        raise _wrong("text without unpaired surrogates", value)
    return value


def dump_string(value: object) -> Json:
    """The string itself."""
    if type(value) is str:
        return load_string(value)
    return load_string(str(value)) if isinstance(value, str) else _refuse("a string", value)


def load_bool(value: Json) -> bool:
    """True or false, unquoted."""
    if type(value) is not bool:
        raise _wrong("true or false", value)
    return value


def dump_bool(value: object) -> Json:
    """The truth value itself."""
    return value if type(value) is bool else _refuse("true or false", value)


def load_bytes(value: Json) -> bytes:
    """Standard or URL-safe base64, with or without padding, and nothing else."""
    if type(value) is not str:
        raise _wrong("base64 text", value)
    bare = value.rstrip("=")
    padding = -len(bare) % 4
    if len(value) - len(bare) not in (0, padding):
        raise _wrong("base64 text", value)
    padded = bare.translate(_URL_SAFE) + "=" * padding
    try:
        return binascii.a2b_base64(padded, strict_mode=True)
    except ValueError:
        raise _wrong("base64 text", value) from None


def dump_bytes(value: object) -> Json:
    """Standard base64 with padding."""
    if not isinstance(value, (bytes, bytearray, memoryview)):
        return _refuse("bytes", value)
    return base64.b64encode(value).decode("ascii")


def _integer(kind: Kind) -> tuple[Loader, Dumper]:
    low, high = _RANGES[kind]
    wanted = f"an {kind.value}" if kind.value[0] == "i" else f"a {kind.value}"
    quoted = kind in (Kind.INT64, Kind.UINT64)

    def load(value: Json) -> int:
        number = value if type(value) is int else _whole(value)
        if number is None:
            raise _wrong(wanted, value)
        if not low <= number <= high:
            raise _wrong(f"from {low} to {high}", value)
        return number

    def dump(value: object) -> Json:
        if not isinstance(value, int) or value is True or value is False:
            return _refuse(wanted, value)
        if not low <= value <= high:
            _refuse(f"from {low} to {high}", value)
        return str(int(value)) if quoted else int(value)

    return load, dump


def _whole(value: Json) -> int | None:
    if isinstance(value, str):
        if not _NUMBER_TEXT.fullmatch(value) or len(value) > _LONGEST:
            return None
        try:
            exact = Decimal(value)  # a float would change digits of long numbers
        except InvalidOperation:  # an exponent of twenty digits
            return None
        # Whatever is larger is out of every range, and too long to be written out.
        small = exact.adjusted() < _LONGEST
        return int(exact) if small and exact == exact.to_integral_value() else None
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return None


def _floating(kind: Kind) -> tuple[Loader, Dumper]:
    def in_range(value: float | str) -> float | None:
        try:
            number = float(value)
        except OverflowError:
            return None
        return _single(number) if kind is Kind.FLOAT else number

    def load(value: Json) -> float:
        if isinstance(value, str):
            if value in _SPECIAL:
                return _SPECIAL[value]
            if not _NUMBER_TEXT.fullmatch(value):
                raise _wrong("a number", value)
        elif type(value) is not float and type(value) is not int:
            raise _wrong("a number", value)
        number = in_range(value)
        if number is None or math.isinf(number):
            raise _wrong(f"within the range of {kind.value}", value)
        return number

    def dump(value: object) -> Json:
        if not isinstance(value, (float, int)) or isinstance(value, bool):
            return _refuse("a number", value)
        if isinstance(value, float) and not math.isfinite(value):
            return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
        number = in_range(value)
        if number is None or math.isinf(number):
            return _refuse(f"within the range of {kind.value}", value)
        return _shortest(number) if kind is Kind.FLOAT else number

    return load, dump


def _single(number: float) -> float:
    try:
        rounded: float = struct.unpack("<f", struct.pack("<f", number))[0]
    except OverflowError:
        return math.copysign(math.inf, number)
    return rounded


def _shortest(single: float) -> float:
    # The fewest decimal digits that give the same 32-bit number back, as protobuf prints it.
    for digits in (6, 7, 8):
        short = float(f"{single:.{digits}g}")
        if _single(short) == single:
            return short
    return float(f"{single:.9g}")


def _refuse(wanted: str, value: object) -> Json:
    raise _wrong(wanted, value)


LOADERS: Final[Mapping[Kind, Loader]] = {
    Kind.STRING: load_string,
    Kind.BOOL: load_bool,
    Kind.BYTES: load_bytes,
    **{kind: _integer(kind)[0] for kind in _RANGES},
    Kind.FLOAT: _floating(Kind.FLOAT)[0],
    Kind.DOUBLE: _floating(Kind.DOUBLE)[0],
}
DUMPERS: Final[Mapping[Kind, Dumper]] = {
    Kind.STRING: dump_string,
    Kind.BOOL: dump_bool,
    Kind.BYTES: dump_bytes,
    **{kind: _integer(kind)[1] for kind in _RANGES},
    Kind.FLOAT: _floating(Kind.FLOAT)[1],
    Kind.DOUBLE: _floating(Kind.DOUBLE)[1],
}


def enum_numbers(cls: type[enum.Enum]) -> Mapping[int, enum.Enum]:
    """Members by their proto number: the value of an int enum, else the place in the class."""
    if issubclass(cls, int):
        return {int(member.value): member for member in cls}
    return dict(enumerate(cls))


def enum_loader(
    names: Mapping[str, object], of_number: Callable[[int], object | None], unknown: object
) -> Loader:
    """The reader of an enum: names or numbers (spec §1.9).

    ``names`` are its values by name, ``of_number`` gives that of a number, if it has one.
    ``unknown`` is what an unknown one reads as; None refuses it.
    """

    def load(value: Json) -> object:
        if isinstance(value, str):
            member = names.get(value)
        elif type(value) is int:
            member = of_number(value)
        else:
            raise _wrong(f"one of {', '.join(names)}", value)
        if member is None:
            if unknown is None:
                raise _wrong(f"one of {', '.join(names)}", value)
            return unknown
        return member

    return load


def enum_codec(cls: type[enum.Enum], unknown: object) -> tuple[Loader, Dumper]:
    """Reader and writer of a Python enum: :func:`enum_loader`, and names out."""
    names = dict(cls.__members__)

    def dump(value: object) -> Json:
        if isinstance(value, cls):
            return value.name
        return _refuse(f"one of {', '.join(names)}", value)

    return enum_loader(names, enum_numbers(cls).get, unknown), dump
