"""The type registry, the shapes of message classes, and what cannot be either."""

from __future__ import annotations

import collections.abc
import dataclasses
import enum
import typing
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Annotated, Literal, Optional, TypedDict, Union

import attrs
import pydantic
import pytest

from lro import (
    Any,
    Code,
    DeclarationError,
    Empty,
    Float,
    Int32,
    Int64,
    InvalidArgument,
    LroError,
    Status,
    Struct,
    Timestamp,
    TypeRegistry,
    UInt32,
    UInt64,
    message,
    number,
)
from lro._messages.schema import Kind, Label
from lro._messages.shapes import shape_of
from lro.errors import EncodingError, MissingExtra, Unavailable, UnknownType
from lro.types import BadRequest, ErrorInfo, FieldViolation, RetryInfo, StringValue
from tests.filters.messages import Book

# -- registering ----------------------------------------------------------------------------------


@attrs.frozen
class Nameless:
    """Has no name."""

    text: str = ""


@message("acme.v1.Thing")
@attrs.frozen
class Thing:
    """Has one."""

    text: str = ""


def test_a_class_is_known_by_its_name():
    """And its name by the class; what is not registered is neither."""
    types = TypeRegistry(Thing)
    assert types.name_of(Thing) == "acme.v1.Thing"
    assert "acme.v1.Thing" in types
    assert types.knows(Thing)
    assert types.codec("acme.v1.Thing").python is Thing
    assert not types.knows(Nameless)
    for call in (lambda: types.codec("acme.v1.Other"), lambda: types.name_of(Nameless)):
        with pytest.raises(UnknownType, match="not registered"):
            call()


def test_the_usual_types_are_there():
    """The well-known ones and the error details (spec §1.14(2))."""
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


def test_a_class_may_be_named_when_it_is_registered():
    """Once; repeating that is harmless, another name is not."""
    types = TypeRegistry()
    assert types.register(Nameless, "acme.v1.Nameless") == "acme.v1.Nameless"
    assert types.register(Nameless) == "acme.v1.Nameless"
    assert types.register(Nameless, "acme.v1.Nameless") == "acme.v1.Nameless"
    with pytest.raises(DeclarationError, match=r"registered as acme\.v1\.Nameless, not as acme\."):
        types.register(Nameless, "acme.v1.Other")
    assert types.register(Thing, "acme.v1.Ignored") == "acme.v1.Thing"


@pytest.mark.parametrize("name", ["", "acme.", ".acme", "acme..v1", "1acme", "acme v1", "acmé.V"])
def test_a_name_has_a_form(name):
    """Dots between identifiers."""
    with pytest.raises(DeclarationError):
        TypeRegistry().register(Nameless, name)


def test_class_without_a_name_of_its_own_is_refused():
    """The text says how to give it one; the first class of a name keeps it."""
    types = TypeRegistry(Thing)
    with pytest.raises(DeclarationError, match=r"is the name of .*Thing.* already"):
        types.register(Nameless, "acme.v1.Thing")
    assert not types.knows(Nameless)
    with pytest.raises(DeclarationError, match=r"has no full name; decorate it: @lro\.message"):
        TypeRegistry(Nameless)


def test_a_subclass_does_not_inherit_the_name():
    """It is another message."""

    @attrs.frozen
    class More(Thing):
        more: str = ""

    with pytest.raises(DeclarationError):
        TypeRegistry(More)


# -- packing --------------------------------------------------------------------------------------


def test_packing():
    """A message, a span, a moment; an Any is passed through."""
    types = TypeRegistry(Thing)
    packed = types.pack(Thing("a"))
    assert packed == Any("type.googleapis.com/acme.v1.Thing", {"text": "a"})
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
def test_what_cannot_be_packed(thing, error):
    """It is named, with the field."""
    with pytest.raises(EncodingError, match=error):
        TypeRegistry(Thing).pack(thing)
    with pytest.raises(UnknownType):
        TypeRegistry().pack(Thing())


def test_unpacking():
    """Only as what it is, by the name after the last slash (spec §1.14(1))."""
    types = TypeRegistry(Thing, Book)
    packed = Any("some.host/path/acme.v1.Thing", {"text": "a", "more": 1})
    assert types.unpack(packed, Thing) == Thing("a") == types.unpack_any(packed)
    with pytest.raises(InvalidArgument, match="more: is not a field"):
        types.unpack(packed, Thing, strict=True)
    with pytest.raises(InvalidArgument, match=r"must be lrofix\.v1\.Book, got acme\.v1\.Thing"):
        types.unpack(packed, Book)
    with pytest.raises(InvalidArgument, match="got nothing"):
        types.unpack(Any(), Thing)
    with pytest.raises(UnknownType):
        types.unpack_any(Any("x/foreign.Type"))
    with pytest.raises(UnknownType):
        types.unpack(packed, Nameless)
    with pytest.raises((InvalidArgument, MissingExtra), match="binary form"):
        types.unpack(Any("x/acme.v1.Thing", b"\x0a"), Thing)


def test_checking():
    """The payload becomes canonical; the prefix of the URL stays (spec §1.14(1))."""
    types = TypeRegistry(Book)
    loose = Any("my.host/lrofix.v1.Book", {"page_count": "5", "title": ""})
    assert types.checked(loose) == Any("my.host/lrofix.v1.Book", {"pageCount": 5})
    with pytest.raises(InvalidArgument, match="not registered"):
        types.checked(Any("x/foreign.Type"))


@pytest.mark.parametrize(
    "url", ["lrofix.v1.Book", "", "x/", "x/.lrofix.v1.Book", "x/lrofix.v1.Stage"]
)
def test_urls_that_name_nothing(url):
    """No slash, no name, a leading dot, the name of an enum (spec §1.14(2))."""
    with pytest.raises(InvalidArgument):
        TypeRegistry(Book).from_json({"@type": url}, strict=True)


def test_an_empty_any():
    """No type, no payload; a payload without a type is not empty."""
    assert Any().empty
    assert not Any("x/a").empty
    assert not Any("", b"a").empty
    assert TypeRegistry().to_json(Any()) == {}
    assert TypeRegistry().from_json({}, strict=True) == Any()


def test_a_message_without_a_registered_name():
    """Requests of methods are read and written without one."""
    types = TypeRegistry()
    assert types.load({"text": "a"}, Nameless) == Nameless("a")
    assert types.load({"more": 1}, Nameless, strict=False) == Nameless()
    assert types.dump(Nameless("a")) == {"text": "a"}


def test_the_status_of_an_error():
    """Code, text and details, exactly one of them an ErrorInfo (spec §6.3)."""
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
    """Contains itself."""

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
def test_depth_is_bounded(make):
    """32 levels go; beyond that it is an error and no crash (spec §1.8(8))."""
    types = TypeRegistry(Nest)
    assert types.pack(make(32))
    for levels in (33, 100, 500):
        with pytest.raises(EncodingError, match="nested deeper than 32 levels"):
            types.pack(make(levels))


def test_a_ring_is_endless():
    """A list that contains itself is deeper than any limit."""
    ring = []
    ring.append(ring)
    with pytest.raises(EncodingError, match="nested deeper"):
        TypeRegistry().pack(Struct({"a": ring}))
    with pytest.raises(EncodingError, match="nested deeper"):
        TypeRegistry().dump(Struct({"a": ring}))


# -- classes of other libraries -------------------------------------------------------------------


class Model:
    """Like a pydantic model: it validates itself, and knows its JSON."""

    def __init__(self, **data):
        if not isinstance(data.get("count"), int):
            raise ValueError("count must be an int")
        self.data = data

    def model_dump(self):
        return dict(self.data)

    def __eq__(self, other):
        return isinstance(other, Model) and self.data == other.data


class ModelCodec:
    """What a user writes for such a library."""

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


def test_a_factory_makes_codecs():
    """For the classes that it knows; all others go on to the next."""
    types = TypeRegistry(Thing, factories=[models])
    assert types.register(Model, "acme.v1.Model") == "acme.v1.Model"
    packed = types.pack(Model(count=1))
    assert packed == Any("type.googleapis.com/acme.v1.Model", {"count": 1})
    assert types.unpack(packed, Model) == Model(count=1)
    assert types.dump(Model(count=1)) == {"count": 1}
    assert types.load({"count": 1}, Model) == Model(count=1)
    assert types.load({"count": 1, "x": 2}, Model, strict=False) == Model(count=1)
    with pytest.raises(InvalidArgument):
        types.load({"count": 1, "x": 2}, Model)
    assert types.pack(Thing("a")).payload == {"text": "a"}
    assert types.codec("acme.v1.Model").shape is None


@pytest.mark.parametrize("data", [{"count": 1, "x": float("nan")}, {"count": 1, "x": b""}])
def test_a_factory_is_not_trusted(data):
    """What is no JSON is refused when it is packed, not when it is stored or read."""
    types = TypeRegistry(factories=[models])
    types.register(Model, "acme.v1.Model")
    with pytest.raises(EncodingError):
        types.pack(Model(**data))


def test_a_codec_of_bytes():
    """The payload stays in binary form; there is no JSON of it."""

    class Binary(ModelCodec):
        def dump(self, message):
            return b"\x08\x01"

        def load(self, payload, *, strict):
            assert payload == b"\x08\x01"
            return Model(count=1)

    types = TypeRegistry(factories=[lambda cls: Binary(cls) if cls is Model else None])
    types.register(Model, "acme.v1.Model")
    packed = types.pack(Model(count=1))
    assert packed == Any("type.googleapis.com/acme.v1.Model", b"\x08\x01")
    assert types.unpack(packed, Model) == Model(count=1)
    with pytest.raises(EncodingError, match="has no JSON form"):
        types.dump(Model(count=1))
    with pytest.raises(EncodingError, match="binary form"):
        types.to_json(packed)


# -- shapes ---------------------------------------------------------------------------------------


class Color(enum.Enum):
    NONE = 0
    RED = 1


def made(annotation, default=attrs.NOTHING, **options):
    """A class with one field of this annotation."""
    field = attrs.field(default=default, type=annotation, **options)
    return attrs.make_class("Made", {"odd": field}, frozen=True)


LIST, DICT = attrs.Factory(list), attrs.Factory(dict)
SHAPES = [
    (str, "", Label.IMPLICIT, Kind.STRING, None),
    (bytes, b"", Label.IMPLICIT, Kind.BYTES, None),
    (bool, False, Label.IMPLICIT, Kind.BOOL, None),
    (Int32, 0, Label.IMPLICIT, Kind.INT32, None),
    (Int64, 0, Label.IMPLICIT, Kind.INT64, None),
    (UInt32, 0, Label.IMPLICIT, Kind.UINT32, None),
    (UInt64, 0, Label.IMPLICIT, Kind.UINT64, None),
    (Float, 0.0, Label.IMPLICIT, Kind.FLOAT, None),
    (float, 0.0, Label.IMPLICIT, Kind.DOUBLE, None),
    (float, 0, Label.IMPLICIT, Kind.DOUBLE, None),
    (Color, Color.NONE, Label.IMPLICIT, Kind.ENUM, None),
    (datetime | None, None, Label.OPTIONAL, Kind.MESSAGE, "google.protobuf.Timestamp"),
    (Optional[timedelta], None, Label.OPTIONAL, Kind.MESSAGE, "google.protobuf.Duration"),  # noqa: UP045 - the older spelling is read as well
    (Union[str, None], None, Label.OPTIONAL, Kind.STRING, None),  # noqa: UP007
    (Thing, Thing(), Label.OPTIONAL, Kind.MESSAGE, "acme.v1.Thing"),
    (dict[str, object], DICT, Label.IMPLICIT, Kind.MESSAGE, "google.protobuf.Struct"),
    (typing.Any, None, Label.OPTIONAL, Kind.MESSAGE, "google.protobuf.Value"),
    (Any | None, None, Label.OPTIONAL, Kind.MESSAGE, "google.protobuf.Any"),
    (tuple[str, ...], (), Label.REPEATED, Kind.STRING, None),
    (list[Int32], LIST, Label.REPEATED, Kind.INT32, None),
    (Sequence[Thing], (), Label.REPEATED, Kind.MESSAGE, "acme.v1.Thing"),
    (Mapping[str, Thing], DICT, Label.MAP, Kind.MESSAGE, "acme.v1.Thing"),
    (dict[bool, Annotated[int, "plain"]], DICT, Label.MAP, Kind.INT64, None),
    (str, "x", Label.OPTIONAL, Kind.STRING, None),
    (int, False, Label.OPTIONAL, Kind.INT64, None),
]


@pytest.mark.parametrize(("annotation", "default", "label", "kind", "name"), SHAPES)
def test_shape_of_a_field_is_that_of_its_annotation_and_default(
    annotation, default, label, kind, name
):
    """Its label, kind and message; and which key and container it has."""
    cls = made(annotation, default)
    (field,) = shape_of(cls).fields
    assert (field.number, field.label, field.kind, field.message_name) == (1, label, kind, name)
    assert field.key_kind is (
        None if label is not Label.MAP else Kind.BOOL if kind is Kind.INT64 else Kind.STRING
    )
    assert field.container is (list if default is LIST else tuple)
    nullable = type(None) in typing.get_args(annotation)
    assert field.nullable is nullable
    assert shape_of(cls) is shape_of(cls)


@pytest.mark.parametrize(
    ("name", "shown"),
    [("a", "a"), ("a_b", "aB"), ("page_count", "pageCount"), ("a__b", "aB"), ("a_1b", "a1b"),
     ("f_int32", "fInt32"), ("aB", "aB"), ("a_", "a")],
)  # fmt: skip
def test_names_in_json_are_those_of_protobuf(name, shown):
    """Both spellings are read."""
    cls = attrs.make_class("Made", {name: attrs.field(default="", type=str)}, frozen=True)
    assert TypeRegistry().dump(cls("x")) == {shown: "x"}
    assert {TypeRegistry().load({one: "x"}, cls) for one in (name, shown)} == {cls("x")}


def test_numbers_may_be_given():
    """For classes that must agree with a proto file."""

    @attrs.frozen
    class Numbered:
        name: str = attrs.field(default="", metadata=number(4))
        filter: str = attrs.field(default="", metadata=number(1))

    assert [(f.name, f.number) for f in shape_of(Numbered).fields] == [("name", 4), ("filter", 1)]


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
    (set[str] | None, "a set is one of texts, numbers or other scalars, and is not None"),
    (set[Empty], "a set is one of texts, numbers or other scalars, and is not None"),
    (collections.abc.Callable[[], int], "no proto field has the type"),
]


@pytest.mark.parametrize(("annotation", "why"), UNSUPPORTED)
def test_a_field_that_no_message_can_have(annotation, why):
    """The class and the field are named when it is registered."""
    cls = made(annotation)
    with pytest.raises(DeclarationError, match=why) as caught:
        TypeRegistry().register(cls, "acme.v1.Made")
    assert caught.value.subject == "Made.odd"


def test_a_wrong_field_further_below():
    """It is found when the outer class is registered, not by its first message."""
    inner = made(complex)

    @attrs.frozen
    class Outer:
        inner: object = None

    outer = attrs.make_class("Outer", {"inner": attrs.field(default=None, type=list[inner])})
    with pytest.raises(DeclarationError, match=r"Made\.odd"):
        TypeRegistry().register(outer, "acme.v1.Outer")


@pytest.mark.parametrize("numbers", [(1, 1), (0, 1), (2**29, 1), ("1", 2)])
def test_field_numbers_are_numbers(numbers):
    """Each once, within the range of proto."""
    fields = {
        f"f{place}": attrs.field(default="", type=str, metadata=number(value))
        for place, value in enumerate(numbers)
    }
    with pytest.raises(DeclarationError, match="is no field number"):
        shape_of(attrs.make_class("Made", fields))


@pytest.mark.parametrize("name", ["", "a-b", "1a", "a b", "a.b", "a\n", "\u00e9"])
def test_a_field_whose_name_no_proto_field_has(name):
    """A TypedDict may have any text as a key, and a model that is made by a call."""
    for made in (TypedDict("Made", {name: int}), pydantic.create_model("Made", **{name: (int, 0)})):
        with pytest.raises(DeclarationError, match="has ASCII letters, digits and underscores"):
            shape_of(made)
    with pytest.raises(DeclarationError, match="begins with a letter"):
        shape_of(attrs.make_class("Made", {"_odd": attrs.field(default="", type=str)}))


def test_an_annotation_that_names_nothing():
    """Said with the class."""

    @attrs.frozen
    class Lost:
        other: Missing = None  # noqa: F821 - that is the point

    with pytest.raises(DeclarationError, match="names nothing: name 'Missing'"):
        shape_of(Lost)
    with pytest.raises(DeclarationError, match="is not an attrs class, a dataclass"):
        shape_of(int)


def test_a_field_without_annotation():
    """Is named, with what it lacks."""
    untyped = attrs.make_class("Untyped", {"text": attrs.field(default="")})
    with pytest.raises(DeclarationError, match=r"^Untyped\.text: has no annotation"):
        shape_of(untyped)


@pytest.mark.parametrize("name", ["", "acme.", "1acme", 7, None])
def test_a_class_is_decorated_with_a_full_name(name):
    """Refused where it is written, not where the class is first used."""
    with pytest.raises(DeclarationError, match=rf"^{name!r}: is not a full name such as acme\."):
        message(name)


def test_the_decorator_needs_a_call():
    """``@lro.message`` alone would make a function of the class."""
    with pytest.raises(DeclarationError, match=r"^Model: write @lro\.message\(\"acme\."):
        message(Model)


def test_an_enum_without_members():
    """It has no zero; nothing can be read into it."""

    class Void(enum.Enum):
        pass

    (field,) = shape_of(made(Void)).fields
    assert field.zero is None


def test_a_dataclass_has_a_shape():
    """Fields that the constructor does not take are none of the message."""

    @dataclasses.dataclass
    class Plain:
        text: str
        number: int = dataclasses.field(default=0, metadata=number(7))
        hidden: int = dataclasses.field(default=0, init=False)

    Plain.__annotations__ = {"text": str, "number": int, "hidden": int}
    found = [(f.name, f.number, f.required) for f in shape_of(Plain).fields]
    assert found == [("text", 1, True), ("number", 7, False)]


def test_class_that_is_no_message_is_refused_with_the_way_out():
    """Even where its name is what is missing first; as is a TypedDict with such a field."""
    with pytest.raises(DeclarationError, match="int: is "):
        TypeRegistry().register(int)
    with pytest.raises(DeclarationError, match=r"its codec$"):
        TypeRegistry().register(int, "acme.v1.Number")
    with pytest.raises(DeclarationError, match="no proto field has the type"):
        shape_of(TypedDict("Odd", {"number": complex}))
