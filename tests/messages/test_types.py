"""The type registry, the shapes of message classes, and invalid classes."""

from __future__ import annotations

import collections.abc
import dataclasses
import enum
import typing
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Literal, TypedDict

import attrs
import pydantic
import pytest

from lro import (
    AnyMessage,
    Code,
    DeclarationError,
    Empty,
    InvalidArgument,
    LroError,
    Status,
    Struct,
    Timestamp,
    TypeRegistry,
    message,
)
from lro._messages.shapes import shape_of
from lro.errors import EncodingError, MissingExtra, Unavailable, UnknownType
from lro.types import BadRequest, ErrorInfo, FieldViolation, RetryInfo, StringValue, field_number
from tests.filters.messages import Book

# -- registering ----------------------------------------------------------------------------------


@attrs.frozen
class Nameless:
    """A class without a full name."""

    text: str = ""


@message("acme.v1.Thing")
@attrs.frozen
class Thing:
    """A class with a full name."""

    text: str = ""


def test_registered_class_is_found_by_its_name():
    """A class is found by its name and the name by its class; other classes are unknown."""
    types = TypeRegistry(Thing)
    assert types.name_of(Thing) == "acme.v1.Thing"
    assert "acme.v1.Thing" in types
    assert types.knows(Thing)
    assert types.codec("acme.v1.Thing").python is Thing
    assert not types.knows(Nameless)
    for call in (lambda: types.codec("acme.v1.Other"), lambda: types.name_of(Nameless)):
        with pytest.raises(UnknownType, match="not registered"):
            call()


def test_well_known_types_and_error_details_are_registered():
    """The well-known types and the error details are registered (spec §1.14(2))."""
    well_known = "Any Duration Timestamp FieldMask Struct Value ListValue Empty"
    wrappers = "Bool Bytes Double Float Int32 Int64 String UInt32 UInt64"
    details = "ErrorInfo RetryInfo BadRequest ResourceInfo PreconditionFailure"
    details += " Help LocalizedMessage DebugInfo QuotaFailure RequestInfo"
    types = TypeRegistry()
    for name in (
        *(f"google.protobuf.{name}" for name in well_known.split()),
        *(f"google.protobuf.{name}Value" for name in wrappers.split()),
        *(f"google.rpc.{name}" for name in details.split()),
    ):
        assert name in types


def test_class_may_get_its_name_at_registration():
    """A class may be registered again under the same name, but not under another name."""
    types = TypeRegistry()
    assert types.register(Nameless, "acme.v1.Nameless") == "acme.v1.Nameless"
    assert types.register(Nameless) == "acme.v1.Nameless"
    assert types.register(Nameless, "acme.v1.Nameless") == "acme.v1.Nameless"
    with pytest.raises(DeclarationError, match=r"registered as acme\.v1\.Nameless, not as acme\."):
        types.register(Nameless, "acme.v1.Other")
    assert types.register(Thing, "acme.v1.Ignored") == "acme.v1.Thing"
    with pytest.raises(DeclarationError, match=r"is the name of .*Thing.* already"):
        TypeRegistry(Thing).register(Nameless, "acme.v1.Thing")
    assert TypeRegistry().load({"text": "a"}, Nameless) == Nameless("a")  # as in request bodies
    assert TypeRegistry().dump(Nameless("a")) == {"text": "a"}


# -- packing --------------------------------------------------------------------------------------


def test_values_are_packed_by_type():
    """Messages, durations and times can be packed; an AnyMessage is passed through."""
    types = TypeRegistry(Thing)
    packed = types.pack(Thing("a"))
    assert packed == AnyMessage("type.googleapis.com/acme.v1.Thing", {"text": "a"})
    assert types.pack(packed) is packed
    assert types.pack(timedelta(seconds=1)).payload == "1s"
    moment = types.pack(datetime(2030, 1, 1, tzinfo=UTC))
    assert types.unpack(moment, Timestamp) == Timestamp(1893456000)
    assert types.unpack(types.pack(StringValue("x")), StringValue) == StringValue("x")
    assert types.unpack(types.pack(Empty()), Empty) == Empty()


@pytest.mark.parametrize(
    ("thing", "error"),
    [
        (Thing(text=5), "acme.v1.Thing: field text must be a string, got 5"),
        (datetime(2030, 1, 1), "has no time zone"),
        (timedelta.max, "not a valid duration"),
    ],
)
def test_unregistered_value_is_not_packed(thing, error):
    with pytest.raises(EncodingError, match=error):
        TypeRegistry(Thing).pack(thing)
    with pytest.raises(UnknownType):
        TypeRegistry().pack(Thing())


def test_message_is_unpacked_only_as_its_type():
    """A message is unpacked only if the last part of its type URL matches (spec §1.14(1))."""
    types = TypeRegistry(Thing, Book)
    packed = AnyMessage("some.host/path/acme.v1.Thing", {"text": "a", "more": 1})
    assert types.unpack(packed, Thing) == Thing("a") == types.unpack_any(packed)
    with pytest.raises(InvalidArgument, match="more: is not a field"):
        types.unpack(packed, Thing, strict=True)
    with pytest.raises(InvalidArgument, match=r"must be lrofix\.v1\.Book, got acme\.v1\.Thing"):
        types.unpack(packed, Book)
    with pytest.raises(InvalidArgument, match="got nothing"):
        types.unpack(AnyMessage(), Thing)
    with pytest.raises(UnknownType):
        types.unpack_any(AnyMessage("x/foreign.Type"))
    with pytest.raises(UnknownType):
        types.unpack(packed, Nameless)
    with pytest.raises((InvalidArgument, MissingExtra), match="binary form"):
        types.unpack(AnyMessage("x/acme.v1.Thing", b"\x0a"), Thing)
    # ``checked`` makes the payload canonical, and keeps the prefix of the type URL.
    loose = AnyMessage("my.host/lrofix.v1.Book", {"page_count": "5", "title": ""})
    assert types.checked(loose) == AnyMessage("my.host/lrofix.v1.Book", {"pageCount": 5})
    with pytest.raises(InvalidArgument, match="not registered"):
        types.checked(AnyMessage("x/foreign.Type"))
    # An Any is empty if it has neither a type nor a payload.
    assert [one.empty for one in (AnyMessage(), AnyMessage("x/a"), AnyMessage("", b"a"))] == [
        True,
        False,
        False,
    ]
    assert types.to_json(AnyMessage()) == {}
    assert types.from_json({}, strict=True) == AnyMessage()


def test_status_of_an_error_has_code_message_and_one_error_info():
    """A status has a code, a message and details with exactly one ErrorInfo (spec §6.3)."""
    types = TypeRegistry()
    status = types.status_of(InvalidArgument("page_size", "is odd"), "acme.test")
    assert (status.code, status.message) == (Code.INVALID_ARGUMENT, "page_size: is odd")
    info, bad = (types.unpack_any(detail) for detail in status.details)
    assert info == ErrorInfo("INVALID_ARGUMENT", "acme.test", {"field": "page_size"})
    assert bad == BadRequest((FieldViolation("page_size", "is odd"),))
    status = types.status_of(Unavailable("later", timedelta(seconds=2)), "acme.test")
    assert types.unpack_any(status.details[1]) == RetryInfo(timedelta(seconds=2))
    assert types.status_of(LroError(), "") == Status(
        Code.INTERNAL, "", (types.pack(ErrorInfo("INTERNAL")),)
    )


# -- depth ----------------------------------------------------------------------------------------


@message("acme.v1.Nest")
@attrs.frozen
class Nest:
    """A message with a field of its own type."""

    inner: Nest | None = None


def nested(levels):
    found = Nest()
    for _ in range(levels - 1):
        found = Nest(found)
    return found


def lists(levels):
    found = []
    for _ in range(levels - 1):
        found = [found]
    return found


@pytest.mark.parametrize(
    "make", [lambda levels: nested(levels), lambda levels: Struct({"a": lists(levels - 1)})]
)
def test_message_deeper_than_32_levels_is_refused(make):
    """A message with 32 levels is packed; a deeper one raises an error (spec §1.8(8))."""
    types = TypeRegistry(Nest)
    assert types.pack(make(32))
    for levels in (33, 100, 500):
        with pytest.raises(EncodingError, match="nested deeper than 32 levels"):
            types.pack(make(levels))
    ring = []
    ring.append(ring)  # a list that contains itself
    for write in (types.pack, types.dump):
        with pytest.raises(EncodingError, match="nested deeper"):
            write(Struct({"a": ring}))


# -- classes of other libraries -------------------------------------------------------------------


class Model:
    """A class like a pydantic model: it validates itself, and converts itself to JSON."""

    def __init__(self, **data):
        if not isinstance(data.get("count"), int):
            raise ValueError("count must be an int")
        self.data = data

    def model_dump(self):
        return dict(self.data)

    def __eq__(self, other):
        return isinstance(other, Model) and self.data == other.data


class ModelCodec:
    """A codec for ``Model`` classes, as an application may write for a library."""

    shape = None

    def __init__(self, python):
        self.python = python

    def dump(self, message):
        return message.model_dump()

    def load(self, payload, *, strict):
        if strict and set(payload) - {"count"}:
            raise InvalidArgument("", "has unknown fields")
        try:
            return self.python(count=payload.get("count"))
        except ValueError as exc:
            raise InvalidArgument("count", str(exc)) from None


def models(cls):
    return ModelCodec(cls) if issubclass(cls, Model) else None


def test_codec_factory_is_used_for_the_classes_it_knows():
    """A codec factory is used only for the classes it knows."""
    types = TypeRegistry(Thing, factories=[models])
    assert types.register(Model, "acme.v1.Model") == "acme.v1.Model"
    packed = types.pack(Model(count=1))
    assert packed == AnyMessage("type.googleapis.com/acme.v1.Model", {"count": 1})
    assert types.unpack(packed, Model) == Model(count=1)
    assert types.dump(Model(count=1)) == {"count": 1}
    assert types.load({"count": 1}, Model) == Model(count=1)
    assert types.load({"count": 1, "x": 2}, Model, strict=False) == Model(count=1)
    with pytest.raises(InvalidArgument):
        types.load({"count": 1, "x": 2}, Model)
    assert types.pack(Thing("a")).payload == {"text": "a"}
    assert types.codec("acme.v1.Model").shape is None
    for wrong in (float("nan"), b""):  # values without JSON are refused when they are packed
        with pytest.raises(EncodingError):
            types.pack(Model(count=1, x=wrong))


def test_payload_of_a_binary_codec_cannot_be_written_as_json():
    """A payload that the codec writes as bytes stays binary; writing it as JSON fails."""
    codec = ModelCodec(Model)
    codec.dump = lambda message: b"\x08\x01"
    codec.load = lambda payload, *, strict: Model(count=payload[1])
    types = TypeRegistry(factories=[lambda cls: codec if cls is Model else None])
    types.register(Model, "acme.v1.Model")
    packed = types.pack(Model(count=1))
    assert packed == AnyMessage("type.googleapis.com/acme.v1.Model", b"\x08\x01")
    assert types.unpack(packed, Model) == Model(count=1)
    for write, value in ((types.dump, Model(count=1)), (types.to_json, packed)):
        with pytest.raises(EncodingError, match=r"has no JSON form|binary form"):
            write(value)


# -- shapes ---------------------------------------------------------------------------------------


class Color(enum.Enum):
    NONE = 0
    RED = 1


def made(annotation, default=attrs.NOTHING, **options):
    """Return a class with one field of this annotation."""
    field = attrs.field(default=default, type=annotation, **options)
    return attrs.make_class("Made", {"odd": field}, frozen=True)


LIST, DICT = attrs.Factory(list), attrs.Factory(dict)


@pytest.mark.parametrize(
    ("name", "shown"),
    [("a", "a"), ("a_b", "aB"), ("page_count", "pageCount"), ("a__b", "aB"), ("a_1b", "a1b"),
     ("f_int32", "fInt32"), ("aB", "aB"), ("a_", "a")],
)  # fmt: skip
def test_json_names_of_fields_are_those_of_protobuf(name, shown):
    cls = attrs.make_class("Made", {name: attrs.field(default="", type=str)}, frozen=True)
    assert TypeRegistry().dump(cls("x")) == {shown: "x"}
    assert {TypeRegistry().load({one: "x"}, cls) for one in (name, shown)} == {cls("x")}


UNSUPPORTED = [
    (complex, "no proto field has the type"),
    (Literal[1], "the values of a Literal are texts, not .*; use an Enum"),
    (Literal["a", 1], "the values of a Literal are texts"),
    (int | str, "a field has one type, or that type or None"),
    (int | str | None, "a field has one type, or that type or None"),
    (tuple[int, str], "a tuple must be of one type and any length"),
    (tuple[int], "a tuple must be of one type and any length"),
    (list, "no proto field has the type .*; a list needs the type of its elements"),
    (typing.List, "no proto field has the type .*; a list needs the type of its elements"),  # noqa: UP006
    (list[list], "no proto field has the type .*; a list needs the type of its elements"),
    (dict, "no proto field has the type .*; a dict needs the types of its keys and values"),
    (typing.Dict, "no proto field has the type .*; a dict needs the types of its keys"),  # noqa: UP006
    (list[dict], r"no proto field .*\(dict\[str, object\] is any JSON object\)"),
    (Model, "; as a message, Model is not an attrs class, a dataclass, a pydantic model"),
    (list[str] | None, "a repeated field cannot be None"),
    (Mapping[str, int] | None, "a map cannot be None"),
    (list[list[str]], "no proto field has the type"),
    (list[str | None], "no proto field has the type"),
    (dict[float, str], "cannot be the key of a map"),
    (dict[Thing, str], "cannot be the key of a map"),
    (set, "no proto field has the type .*; a list needs the type of its elements"),
    (set[str] | None, "a set must have scalars, such as texts or numbers, and not be None"),
    (set[Empty], "a set must have scalars, such as texts or numbers, and not be None"),
    (collections.abc.Callable[[], int], "no proto field has the type"),
]


@pytest.mark.parametrize(("annotation", "why"), UNSUPPORTED)
def test_unsupported_type_of_a_field_is_refused(annotation, why):
    """Registering a class with an unsupported field fails; the error names class and field."""
    cls = made(annotation)
    with pytest.raises(DeclarationError, match=why) as caught:
        TypeRegistry().register(cls, "acme.v1.Made")
    assert caught.value.subject == "Made.odd"
    outer = attrs.make_class("Outer", {"inner": attrs.field(default=None, type=list[cls])})
    with pytest.raises(DeclarationError, match=r"Made\.odd"):  # the error names the inner class
        TypeRegistry().register(outer, "acme.v1.Outer")


@pytest.mark.parametrize(
    "field", [lambda default, **more: attrs.field(default=default, **more), dataclasses.field]
)
def test_field_numbers_may_be_given(field):
    """A class can set its field numbers, to match a proto file."""

    class Numbered:
        name: str = field(default="", metadata=field_number(4))
        filter: str = field(default="", metadata=field_number(1))

    Numbered.__annotations__ = {"name": str, "filter": str}
    made = (dataclasses.dataclass if field is dataclasses.field else attrs.frozen)(Numbered)
    assert [(f.name, f.number) for f in shape_of(made).fields] == [("name", 4), ("filter", 1)]


def numbered(*numbers):
    """Return a class whose fields have these numbers."""
    fields = {
        f"f{place}": attrs.field(default="", type=str, metadata=field_number(value))
        for place, value in enumerate(numbers)
    }
    return attrs.make_class("Made", fields)


@attrs.frozen
class Lost:
    other: Missing = None  # noqa: F821 - that is the point


@attrs.frozen
class More(Thing):
    """A subclass, which does not inherit the full name of its base."""


DECLARATIONS = [
    *((TypeRegistry().register, (Nameless, name), "full name")
      for name in ("", "acme.", ".acme", "acme..v1", "1acme", "acme v1", "acm\u00e9.V")),
    (TypeRegistry, (Nameless,), r"has no full name; decorate it: @lro\.message"),
    (TypeRegistry, (More,), "has no full name"),
    *((message, (name,), rf"^{name!r}: is not a full name such as acme\.")
      for name in ("", "acme.", "1acme", 7, None)),
    (message, (Model,), r"^Model: write @lro\.message\(\"acme\."),
    (TypeRegistry().register, (int,), "int: is "),
    (TypeRegistry().register, (int, "acme.v1.Number"), "its codec$"),
    (shape_of, (TypedDict("Odd", {"number": complex}),), "no proto field has the type"),
    (shape_of, (Lost,), "has an unknown name in an annotation: name 'Missing'"),
    (shape_of, (int,), "is not an attrs class, a dataclass"),
    (shape_of, (attrs.make_class("Untyped", {"text": attrs.field(default="")}),),
     r"^Untyped\.text: has no annotation"),
    *((shape_of, (numbered(*numbers),), "is not a valid field number")
      for numbers in ((1, 1), (0, 1), (2**29, 1), ("1", 2))),
    *((shape_of, (made,), "has ASCII letters, digits and underscores")
      for name in ("", "a-b", "1a", "a b", "a.b", "a\n", "\u00e9")
      for made in (TypedDict("Made", {name: int}),
                   pydantic.create_model("Made", **{name: (int, 0)}))),
    (shape_of, (attrs.make_class("Made", {"_odd": attrs.field(default="", type=str)}),),
     "begins with a letter"),
]  # fmt: skip


@pytest.mark.parametrize(("declare", "arguments", "why"), DECLARATIONS)
def test_invalid_declaration_is_refused_with_advice(declare, arguments, why):
    """Invalid names, numbers, annotations and classes are refused with advice in the error."""
    with pytest.raises(DeclarationError, match=why):
        declare(*arguments)


def test_enum_without_members_accepts_no_value():
    """A field whose enum has no members has no zero value, and any value is refused."""
    (field,) = shape_of(made(enum.Enum("Void", []))).fields
    assert field.zero is None
