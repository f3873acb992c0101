"""The shape of a message: fields, kinds and labels.

``lro._messages.shapes`` reads the shape of a class. The rules of presence are those of proto3, see
``docs/explanation/messages.md``:

- a field without a default, or whose default is the zero of its type, is *implicit*: not written
  if it is zero, and zero if it is missing;
- ``X | None``, and a field with any other default, has *presence*: missing means the default;
- ``list``, ``tuple`` and ``Sequence`` are *repeated*, ``dict`` and ``Mapping`` are *maps*;
- in a pydantic model or msgspec Struct, a field without a default is *explicit*: always written,
  because the library refuses a request without the field.
"""

from __future__ import annotations

import enum
import inspect
import re
import typing
from collections.abc import Callable, Mapping
from typing import Annotated, Final, TypeVar

import attrs

from lro._base.arguments import check
from lro._base.by_fields import ByFields
from lro._base.errors import DeclarationError, InvalidArgument, all_of
from lro._base.status import named

T = TypeVar("T")

_FULL_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*", re.ASCII)


def check_full_name(full_name: object) -> None:
    """Check the full name of a message type.

    Raises:
        DeclarationError: The value is not a full name.
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

    Put this class decorator above ``@attrs.frozen`` or ``@dataclass``, or directly above a pydantic
    model, a msgspec Struct or a TypedDict. An Any that contains such a message has this name in its
    ``@type``, so client and server must agree on the name.

    ``aliases`` are the full names that the class had in earlier releases. A stored message with
    one of these names is read as this class.

    Raises:
        DeclarationError: The name or an alias is not a full name, an alias is given twice or is
            the name itself, or the decorator has no argument.
    """
    check_full_name(full_name)
    return named(full_name, checked_aliases(full_name, aliases, check_full_name))


def checked_aliases(
    full_name: str, aliases: object, check_name: Callable[[str], object]
) -> tuple[str, ...]:
    """Return the aliases of a message class or a method as a tuple; ``check_name`` checks each.

    ``full_name`` is empty if the name is not known yet.

    Raises:
        DeclarationError: The aliases are not a tuple or list of names, or an alias is given twice
            or is the name itself.
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
"""An integer of 32 bits, a JSON number."""
Int64 = Annotated[int, Kind.INT64]
"""An integer of 64 bits, in JSON decimal digits in a string, as protobuf prints it.

Plain ``int`` is also an int64, but in JSON it is a number if it has at most 53 bits.
"""
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
    """The multiplicity and presence of a field."""

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


@attrs.frozen(kw_only=True, eq=False, repr=False)
class Field(ByFields):
    """One field of a message.

    - ``python``: the Python type of one value (of an element, or of a map's value);
    - ``as_number``: a plain ``int``, which JSON writes as a number if it has at most 53 bits;
    - ``message_name``: the full name of the message type, for well-known types;
    - ``zero``: the value of a missing implicit field;
    - ``required``: the class has no default; ``nullable``: None means absent;
    - ``container``: the type of a repeated field; ``below``: returns the shape of its messages;
    - ``explicit``: always written, and required in requests; ``read_only``: written, never read;
    - ``aliases``: further spellings that are read;
    - ``get``: reads the field from a message, if it is not an attribute;
    - ``lift`` and ``lower``: convert a value after reading and before writing;
    - ``declared``: the field as its class declares it; ``value``: the annotation of one value, None
      if the library of the class writes the field.
    """

    name: str
    json_name: str
    number: int
    label: Label
    kind: Kind
    python: typing.Any
    as_number: bool = False
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
    declared: Declared | None = None
    value: object = None

    @property
    def has_zero(self) -> bool:
        """True if the kind's zero is a valid value of the field."""
        return self.kind is not Kind.MESSAGE and self.lower is None

    @property
    def shape(self) -> Shape:
        """The shape of the messages in this field."""
        assert self.below is not None
        return self.below()


@attrs.frozen(eq=False, repr=False)
class Shape(ByFields):
    """All fields of a message class, in declared order."""

    python: type
    fields: tuple[Field, ...]
    spellings: Mapping[str, Field] = attrs.field(init=False, eq=False, repr=False)
    """Fields by JSON name, original name and alias (spec §1.8(2))."""

    def __attrs_post_init__(self) -> None:
        by_json = {field.json_name: field for field in self.fields}
        by_name = {field.name: field for field in self.fields}
        aliases = {alias: field for field in self.fields for alias in field.aliases}
        # The JSON name comes last and wins, because it is the name that is written.
        object.__setattr__(self, "spellings", {**by_name, **aliases, **by_json})


def json_name(name: str) -> str:
    """Return the lowerCamelCase spelling of a field name, as protobuf computes it."""
    head, *rest = name.split("_")
    return head + "".join(part[:1].upper() + part[1:] for part in rest)


def docstring(thing: object) -> str:
    """Return the docstring of a class or function as Markdown, or an empty text."""
    text = vars(thing).get("__doc__") if isinstance(thing, type) else thing.__doc__
    # Python gives a dataclass without a docstring its signature as docstring.
    if not text or (isinstance(thing, type) and text.startswith(f"{thing.__name__}(")):
        return ""
    return inspect.cleandoc(text).replace("``", "`")


@attrs.frozen(kw_only=True, eq=False, repr=False)
class Declared(ByFields):
    """A field as its class declares it; an empty attribute follows from name and annotation.

    ``about`` are the marks that describe the field, as those of an ``Annotated`` do. With
    ``limited``, the class refuses values beyond the limits in the annotation. ``factory`` means
    that a function has made the default.
    """

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
    about: tuple[object, ...] = ()
    limited: bool = False
    factory: bool = False


@attrs.frozen(kw_only=True, eq=False, repr=False)
class ForeignType(ByFields):
    """The stored form of a type without a proto equivalent (UUID, Decimal): kind and converters."""

    kind: Kind
    lift: Callable[[typing.Any], object]
    lower: Callable[[typing.Any], object]


Violations = list[tuple[str, InvalidArgument]]
"""Field names, each with the error of its value."""


def raise_all(wrong: Violations) -> None:
    """Raise one error that has all violations. Do nothing if the list is empty.

    Raises:
        InvalidArgument: There are violations.
    """
    if wrong:
        raise all_of([error for _, error in wrong])


Make = Callable[[dict[str, object], Violations], object]
"""Makes a message from values by field name.

If there are violations, all of them are raised, together with errors that the class finds. A wrong
value is also among the values, as it was sent.
"""


def _no_foreign(_: object) -> ForeignType | None:
    return None


def _no_form(_: object) -> bool:
    return False


def _no_constraint(_annotation: object, _kind: Kind) -> Callable[[typing.Any], object] | None:
    return None


@attrs.frozen(kw_only=True, eq=False, repr=False)
class Library(ByFields):
    """How message classes of one library (pydantic, msgspec, typing) are read.

    ``declared`` returns the fields of a class. It raises DeclarationError for a field that no
    message can have, and NameError for an annotation with an undefined name. ``maker`` returns the
    function that makes messages. ``foreign`` returns how a type without a proto equivalent is
    stored, or None for any other type. ``rewrites`` returns True for a type that proto has, but
    that the library writes in its own form. ``constraint`` returns a function that checks a single
    value against its annotation, or None if there is nothing to check.
    """

    declared: Callable[[typing.Any], list[Declared]]
    maker: Callable[[typing.Any, Shape], Make]
    foreign: Callable[[object], ForeignType | None] = _no_foreign
    rewrites: Callable[[object], bool] = _no_form
    constraint: Callable[[object, Kind], Callable[[typing.Any], object] | None] = _no_constraint


def simple_name(cls: type) -> str:
    """Return the name of a message class in its package: Page_Item for ``Page[Item]``."""
    name = cls.__name__
    return name if name.isidentifier() else re.sub(r"\W+", "_", name).strip("_")


REQUIRED: Final = object()
"""Marks a field without a default."""
DYNAMIC: Final = object()
"""Marks a default that is computed per message."""
NO_ANNOTATION: Final = object()


def marks_of(annotation: object) -> tuple[object, ...]:
    """Return the metadata of an ``Annotated``."""
    if typing.get_origin(annotation) is not Annotated:
        return ()
    base, *marks = typing.get_args(annotation)
    return (*marks_of(base), *marks)


def bare(annotation: object) -> typing.Any:
    """Return the type inside ``Annotated`` and ``NewType``."""
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
    """Return the kind that a JSON Schema describes: a scalar, or MESSAGE for any JSON value.

    Return None for a secret, which its library does not write.
    """
    if schema.get("writeOnly"):
        return None
    said = schema.get("type")
    return _JSON_KINDS.get(said, Kind.MESSAGE) if isinstance(said, str) else Kind.MESSAGE
