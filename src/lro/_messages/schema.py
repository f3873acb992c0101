"""What a message looks like: fields, kinds and labels, and their values in JSON.

``lro._messages.shapes`` reads them off a class. The rules of presence are those of proto3, see
``docs/explanation/messages.md``:

- a field whose default is the zero of its type, or that has no default, is *implicit*: left out
  of JSON when zero, zero when it is missing;
- ``X | None``, and a field with any other default, has *presence*: missing means the default;
- ``list``/``tuple``/``Sequence`` are *repeated*, ``dict``/``Mapping`` are *maps*;
- a field without a default of a pydantic model or msgspec Struct is *explicit*: always written, as
  the library refuses a request without it.
"""

from __future__ import annotations

import base64
import binascii
import enum
import inspect
import math
import re
import struct
import typing
from collections.abc import Callable, Mapping
from decimal import Decimal, InvalidOperation
from typing import Annotated, Final, TypeVar

import attrs

from lro._base.arguments import check
from lro._base.errors import DeclarationError, InvalidArgument, all_of, got
from lro._base.status import Json, named

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


def message(
    full_name: str, *, aliases: tuple[str, ...] | list[str] = ()
) -> Callable[[type[T]], type[T]]:
    """Give a message class its full name, for example ``acme.images.v1.ResizeResponse``.

    A class decorator, put above ``@attrs.frozen`` or ``@dataclass``, or directly above a pydantic
    model, a msgspec Struct or a TypedDict. The name travels in the
    ``@type`` of every Any that packs such a message, so client and server must agree on it.

    ``aliases`` are the full names that the class had in earlier releases: a stored message of such
    a name is read as this class.

    Raises:
        DeclarationError: It is not such a name, or the decorator has no argument. Or an alias is
            no such name, or is given twice, or is the name itself.
    """
    check_full_name(full_name)
    return named(full_name, checked_aliases(full_name, aliases, check_full_name))


def checked_aliases(
    full_name: str, aliases: object, check_name: Callable[[str], object]
) -> tuple[str, ...]:
    """The aliases of a message class or a method as a tuple; ``check_name`` checks each.

    ``full_name`` is empty where the name is not known yet.

    Raises:
        DeclarationError: They are no tuple or list of such names, or one is given twice, or is the
            name itself.
    """
    fine = isinstance(aliases, (tuple, list)) and all(isinstance(one, str) for one in aliases)
    check("aliases", aliases, "a tuple of full names", fine=fine)
    names = tuple(typing.cast("tuple[str, ...]", aliases))
    for alias in names:
        check_name(alias)
        if names.count(alias) > 1:
            raise DeclarationError("aliases", f"have {alias} twice: give it once")
        if alias == full_name:
            text = f"{alias} is its present name: give the names of earlier releases only"
            raise DeclarationError("aliases", text)
    return names


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


NUMBER_KEY: Final = "lro.field_number"


def field_number(value: int) -> dict[str, object]:
    """Return field metadata that sets a field number: ``attrs.field(metadata=field_number(4))``.

    For a class whose fields have no metadata, put it in the annotation:
    ``Annotated[str, field_number(4)]``.
    """
    return {NUMBER_KEY: value}


class Label(enum.Enum):
    """How often a field holds a value, and whether an absent one differs from zero."""

    IMPLICIT = "implicit"
    OPTIONAL = "optional"
    REPEATED = "repeated"
    MAP = "map"


INT_KINDS: Final = frozenset({Kind.INT32, Kind.INT64, Kind.UINT32, Kind.UINT64})

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
    gives the shape of messages that have one of their own. ``explicit`` says that it is always
    written, and missed where it is not; ``read_only`` that it is written and never read;
    ``aliases`` are more spellings that are read. ``get`` takes it from a message where it is no
    attribute, ``lift`` makes the Python value of one that was read, ``lower`` the one written.
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
    explicit: bool = False
    read_only: bool = False
    aliases: tuple[str, ...] = ()
    get: Callable[[typing.Any], object] | None = None
    lift: Callable[[typing.Any], object] | None = None
    lower: Callable[[typing.Any], object] | None = None

    @property
    def has_zero(self) -> bool:
        """Whether the zero of its kind is one of its values."""
        return self.kind is not Kind.MESSAGE and self.lower is None

    @property
    def shape(self) -> Shape:
        """The shape of the messages that it holds, which have fields."""
        assert self.below is not None
        return self.below()


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
        aliases = {alias: field for field in self.fields for alias in field.aliases}
        # The JSON name counts most: it is what is written.
        object.__setattr__(self, "spellings", {**by_name, **aliases, **by_json})


def json_name(name: str) -> str:
    """The lowerCamelCase spelling of a field name, as protobuf computes it."""
    head, *rest = name.split("_")
    return head + "".join(part[:1].upper() + part[1:] for part in rest)


def docstring(thing: object) -> str:
    """What the author of a class or function wrote of it, as Markdown; empty without that."""
    text = vars(thing).get("__doc__") if isinstance(thing, type) else thing.__doc__
    # A dataclass without a docstring describes itself by its signature.
    if not text or (isinstance(thing, type) and text.startswith(f"{thing.__name__}(")):
        return ""
    return inspect.cleandoc(text).replace("``", "`")


@attrs.frozen(kw_only=True)
class Declared:
    """A field as its class declares it; what is empty follows from the name and the annotation."""

    name: str
    annotation: object
    default: object
    number: object = None
    json_name: str = ""
    aliases: tuple[str, ...] = ()
    explicit: bool = False
    read_only: bool = False
    get: Callable[[typing.Any], object] | None = None
    foreign: ForeignType | None = None


@attrs.frozen(kw_only=True)
class ForeignType:
    """A type that proto has not, as a field: its kind, and the two ways to and from that."""

    kind: Kind
    lift: Callable[[typing.Any], object]
    lower: Callable[[typing.Any], object]


Violations = list[tuple[str, InvalidArgument]]
"""What is wrong with the values of fields, and the names of these."""


def raise_all(wrong: Violations) -> None:
    """Raise one error that says all that is wrong, if anything is.

    Raises:
        InvalidArgument: Something is.
    """
    if wrong:
        raise all_of([error for _, error in wrong])


Make = Callable[[dict[str, object], Violations], object]
"""Makes a message of values by field name, or raises what is wrong, together with the violations.

Among the values are, as they came, those of the fields that the violations name.
"""


def _no_foreign(_: object) -> ForeignType | None:
    return None


def _no_form(_: object) -> bool:
    return False


def _no_constraint(_annotation: object, _kind: Kind) -> Callable[[typing.Any], object] | None:
    return None


@attrs.frozen(kw_only=True)
class Library:
    """What a library of classes knows of them.

    ``declared`` gives the fields of a class, and raises DeclarationError for one that no message
    can have, NameError for an annotation that names nothing. ``maker`` gives what makes messages
    of a class. ``foreign`` says how a type that proto has not is written in JSON, None if it is
    not. ``rewrites`` says whether a type is written in a form of its own, though proto has such a
    type. ``constraint`` gives what checks a single value, where the class itself does not.
    """

    declared: Callable[[typing.Any], list[Declared]]
    maker: Callable[[typing.Any, Shape], Make]
    foreign: Callable[[object], ForeignType | None] = _no_foreign
    rewrites: Callable[[object], bool] = _no_form
    constraint: Callable[[object, Kind], Callable[[typing.Any], object] | None] = _no_constraint


def simple_name(cls: type) -> str:
    """The name of a message class within its package; that of ``Page[Item]`` is Page_Item."""
    name = cls.__name__
    return name if name.isidentifier() else re.sub(r"\W+", "_", name).strip("_")


REQUIRED: Final = object()
"""The default of a field that has none."""
DYNAMIC: Final = object()
"""That of a field whose default depends on the message."""
NO_ANNOTATION: Final = object()


def marks_of(annotation: object) -> tuple[object, ...]:
    """What stands in an ``Annotated`` beside the type."""
    if typing.get_origin(annotation) is not Annotated:
        return ()
    base, *marks = typing.get_args(annotation)
    return (*marks_of(base), *marks)


def bare(annotation: object) -> typing.Any:
    """The type in an ``Annotated``, and that for which another name was made."""
    while True:
        if typing.get_origin(annotation) is Annotated:
            annotation = typing.get_args(annotation)[0]
        elif isinstance(annotation, typing.NewType):
            annotation = annotation.__supertype__
        else:
            return annotation


_JSON_KINDS: Final = {
    "string": Kind.STRING,
    "integer": Kind.INT64,
    "number": Kind.DOUBLE,
    "boolean": Kind.BOOL,
}


def foreign_kind(schema: Mapping[str, typing.Any]) -> Kind | None:
    """The kind of what a JSON Schema says: a scalar, or MESSAGE for any JSON value.

    None for a secret, which its library does not write.
    """
    if schema.get("writeOnly"):
        return None
    said = schema.get("type")
    return _JSON_KINDS.get(said, Kind.MESSAGE) if isinstance(said, str) else Kind.MESSAGE


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
        elif not isinstance(value, float) and type(value) is not int:
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
