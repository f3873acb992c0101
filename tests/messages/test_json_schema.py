"""JSON Schemas of messages: output schemas for written messages, input schemas for requests."""

from __future__ import annotations

import contextlib
import enum
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

import attrs
import pytest
from hypothesis import given, settings

import lro
from lro import Empty, Struct, Timestamp
from lro._messages.json_schema import MessageSchemas
from lro._messages.schema import Shape
from lro._messages.shapes import shape_of
from lro.errors import InvalidArgument
from tests.filters.messages import Book, ExportMetadata
from tests.messages.scalars_message import METADATA, SCALARS, Scalars

jsonschema = pytest.importorskip("jsonschema")

TYPES = lro.TypeRegistry(Scalars, ExportMetadata, Book)


def validator(make: typing.Callable[[MessageSchemas], Any], types=TYPES):
    """Return a validator for the schema that ``make`` returns."""
    schemas = MessageSchemas(types, "#/$defs/")
    schema = make(schemas)
    jsonschema.Draft202012Validator.check_schema({**schema, "$defs": schemas.named})
    return jsonschema.Draft202012Validator({**schema, "$defs": schemas.named})


def schema_of(cls: type, *, reading: bool = False, types=TYPES) -> Any:
    """Return the schema of a class that refers to no other class."""
    schemas = MessageSchemas(types)
    reference = schemas.read(cls) if reading else schemas.written(cls)
    return schemas.named[reference["$ref"].removeprefix("#/components/schemas/")]


READ = validator(lambda schemas: schemas.read(Scalars))
CHECKS = {
    cls: [
        validator(lambda schemas, cls=cls: schemas.written(cls)),
        validator(lambda schemas, cls=cls: schemas.read(cls)),
    ]
    for cls in (Scalars, ExportMetadata)
}


@given(SCALARS | METADATA)
@settings(max_examples=50)
def test_written_message_fits_input_and_output_schema(message: Scalars | ExportMetadata) -> None:
    """A written message fits its output schema, and also its input schema."""
    for check in CHECKS[type(message)]:
        check.validate(TYPES.dump(message))


READABLE = [
    {}, {"flags": {"true": "x"}, "byId": {"-5": "y"}}, {"value": None},
    {"value": [1, {"x": None}], "wInt64": 7, "wDouble": "Infinity", "list": [1, "x"]},
    *({name: None} for name in ("fInt32", "fInt64", "words", "pairs", "fStage", "maybe")),
    *({"fInt64": value} for value in (5, "5", -5, "-9223372036854775808")),
    *({"fUint32": value} for value in (5, "5", 2**32 - 1, 5.0)),
    *({"fDouble": value} for value in (1, 1.5, "1.5", "1e3", "NaN", "-Infinity")),
    *({"fBytes": value} for value in ("", "AA==", "AA", "_-8=", "_-8", "AAAA")),
    *({"fStage": value} for value in ("STAGE_UNSPECIFIED", 0, 1)),
]  # fmt: skip
REFUSED = [
    [], {"unheardOf": 1}, {"fString": 5}, {"words": "x"}, {"words": [None]}, {"pairs": {"x": None}},
    {"flags": {"yes": "x"}}, {"byId": {"x": "y"}}, {"list": {}}, {"wInt64": "x"},
    *({"fInt32": value} for value in ("x", "", 1.5, True, 2**31, [])),
    *({"fUint64": value} for value in (-1, "-1", {})),
    *({"fDouble": value} for value in ("x", "nan", True)),
    *({"fBytes": value} for value in ("A", "AAA==", "AA=", "A A=", "é", 5)),
    *({"fStage": value} for value in ("NO_SUCH", 99, True, 1.5)),
    *({"fBool": value} for value in ("true", 0)),
]  # fmt: skip


@pytest.mark.parametrize(
    ("value", "wanted"), [*((one, True) for one in READABLE), *((one, False) for one in REFUSED)]
)
def test_value_fits_the_schema_if_it_is_read(value: Any, wanted: bool) -> None:
    """The input schema accepts quoted numbers, enum numbers, all forms of base64, and null."""
    with contextlib.nullcontext() if wanted else pytest.raises(InvalidArgument):
        TYPES.load(value, Scalars)
    assert READ.is_valid(value) is wanted


@lro.message("acme.v1.Tree")
@attrs.frozen
class Tree:
    """A tree of ``labels``.

    It ends at leaves.
    """

    label: str = ""
    children: tuple[Tree, ...] = ()


def test_message_that_contains_itself_refers_to_itself() -> None:
    types = lro.TypeRegistry(Tree)
    schema = schema_of(Tree, types=types)
    assert schema["description"] == "A tree of `labels`.\n\nIt ends at leaves."
    assert schema["properties"]["children"]["items"] == {
        "$ref": "#/components/schemas/acme.v1.Tree"
    }
    read = validator(lambda schemas: schemas.read(Tree), types)
    assert read.is_valid({"children": [{"children": [{"label": "x"}]}]})
    assert not read.is_valid({"children": [{"children": [{"label": 5}]}]})


class Colour(enum.Enum):
    """What it looks like."""

    RED = "red"


@dataclass
class Wheel:
    size: lro.Int32 = 0


@lro.message("acme.v1.Car")
@attrs.frozen(kw_only=True)
class Car:
    wheel: Wheel
    colour: Colour = Colour.RED
    when: datetime | None = None
    took: timedelta | None = None
    rest: Mapping[str, object] = attrs.field(factory=dict)
    any: lro.types.AnyMessage | None = None


def test_class_without_a_full_name_is_in_the_package_of_its_container() -> None:
    """A class without a full name is named in the package of the class that contains it."""
    types = lro.TypeRegistry(Car)
    schemas = MessageSchemas(types)
    schemas.written(Car)
    schemas.read(Car)
    names = {"acme.v1.Car", "acme.v1.Wheel", "acme.v1.Colour", "google.protobuf.Any"}
    assert set(schemas.named) == names | {"acme.v1.Car.Input", "acme.v1.Wheel.Input"}
    assert "description" not in schemas.named["acme.v1.Wheel"]
    assert schemas.named["acme.v1.Colour"] == {
        "description": "What it looks like.",
        "type": "string",
        "enum": ["RED"],
    }


def test_message_field_without_a_default_is_required_in_the_input_schema() -> None:
    """The input schema requires a message field without a default; the output schema does not."""
    types = lro.TypeRegistry(Car)
    assert schema_of(Car, reading=True, types=types)["required"] == ["wheel"]
    assert "required" not in schema_of(Car, types=types)
    read = validator(lambda schemas: schemas.read(Car), types)
    for value, fine in (({}, False), ({"wheel": None}, False), ({"wheel": {}}, True)):
        assert read.is_valid(value) is fine
        if not fine:
            with pytest.raises(InvalidArgument):
                types.load(value, Car)


def test_two_classes_of_one_name_get_two_schemas() -> None:
    """If two classes have the same name, a number is added to the name of the second schema."""

    def other() -> type:
        @attrs.frozen
        class Wheel:
            spokes: str = ""

        return Wheel

    @lro.message("acme.v1.Bike")
    @attrs.frozen
    class Bike:
        front: Wheel | None = None
        back: Any = None

    Bike.__annotations__.update(front=Wheel | None, back=other() | None)
    schemas = MessageSchemas(lro.TypeRegistry(Bike))
    schemas.written(Bike)
    fields = typing.cast("Any", schemas.named["acme.v1.Bike"])["properties"]
    assert fields["front"] == {"$ref": "#/components/schemas/acme.v1.Wheel"}
    assert fields["back"] == {"$ref": "#/components/schemas/acme.v1.Wheel2"}


def test_class_with_an_unknown_shape_is_an_open_object() -> None:
    @lro.message("acme.v1.Closed")
    class Closed:
        """Only its codec knows it."""

    @attrs.frozen
    class ClosedCodec:
        python: type = Closed
        shape: Shape | None = None

        def dump(self, message: object) -> Any:
            return {}

        def load(self, payload: object, *, strict: bool) -> object:
            return Closed()

    types = lro.TypeRegistry(
        Closed, factories=[lambda cls: ClosedCodec() if cls is Closed else None]
    )
    schema = {"description": "Only its codec knows it.", "type": "object"}
    assert schema_of(Closed, types=types) == schema_of(Closed, reading=True, types=types) == schema


@pytest.mark.parametrize(
    ("message", "printed"),
    [
        (Empty(), {"@type": "type.googleapis.com/google.protobuf.Empty"}),
        (Timestamp(0), {"value": "1970-01-01T00:00:00Z"}),
        (Struct({"x": 1}), {"value": {"x": 1}}),
        (Scalars(f_int64=5), {"fInt64": "5"}),
    ],
)
def test_written_any_fits_its_schema(message: object, printed: dict[str, object]) -> None:
    packed = TYPES.to_json(TYPES.pack(message))
    assert isinstance(packed, dict)
    assert printed.items() <= packed.items()
    check = validator(lambda schemas: schemas.packed(type(message)))
    check.validate(packed)
    assert not check.is_valid(printed | {"@type": 5})


def test_schema_of_a_registered_class_comes_from_its_codec() -> None:
    """The schema of a protobuf message describes its fields like those of an attrs class."""
    pytest.importorskip("google.rpc.error_details_pb2")
    from google.rpc.error_details_pb2 import BadRequest

    types = lro.TypeRegistry()
    types.register(BadRequest)
    schemas = MessageSchemas(types)
    reference = schemas.written(BadRequest)
    schema = typing.cast("Any", schemas.named["google.rpc.BadRequest"])
    assert reference == {"$ref": "#/components/schemas/google.rpc.BadRequest"}
    items = schema["properties"]["fieldViolations"]["items"]
    assert items == {"$ref": "#/components/schemas/google.rpc.BadRequest.FieldViolation"}
    assert shape_of(Tree).fields[0].name == "label"


class Said:
    """A mark that describes a field, such as ``typing_extensions.Doc`` or pydantic's ``Field``."""

    def __init__(self, **said: Any) -> None:
        self.__dict__.update(said)


class Speed(enum.Enum):
    """How fast."""

    SLOW = "slow"
    QUICK = "quick"


@lro.message("acme.v1.Described")
@attrs.frozen
class Described:
    """Fields with descriptions and defaults."""

    title: typing.Annotated[str, Said(documentation="The title.", examples=["a", "b"])] = ""
    tags: typing.Annotated[list[str], Said(description="Short words.", examples=[["a"]])] = ()
    speed: typing.Annotated[Speed, Said(description="The speed.")] = Speed.QUICK
    part: typing.Annotated[Tree, Said(description="A part.")] = attrs.field(factory=Tree)
    mode: typing.Literal["fast", "best"] = "best"
    other: typing.Literal["fast", "best"] | None = None
    kinds: tuple[typing.Literal["a", "b"], ...] = ()
    steps: typing.Annotated[int, Said(ge=1)] = 3  # attrs does not check the limit
    many: int = 2**53
    wide: lro.types.Int64 = 7
    rate: float = 0.5
    endless: float = float("inf")
    made: str = attrs.field(factory=lambda: "random")
    at: timedelta = timedelta(seconds=1)


@dataclass
class DescribedByDataclass:
    """Defaults of a dataclass."""

    mode: str = "best"
    made: str = field(default_factory=lambda: "random")


def test_schema_says_what_the_class_says_of_its_fields() -> None:
    """Descriptions, examples, choices and constant defaults are in the schemas of a message."""
    for reading in (True, False):
        fields = schema_of(Described, reading=reading)["properties"]
        assert fields["title"]["description"] == "The title."
        assert fields["title"]["examples"] == ["a", "b"]
        assert fields["tags"]["description"] == "Short words."
        assert "examples" not in fields["tags"]  # only scalars are examples
        assert fields["speed"]["description"] == "The speed."
        assert fields["part"]["description"] == "A part."
        choices = ["fast", "best"]
        assert fields["mode"]["enum"] == [*choices, *([None] if reading else [])]
        assert fields["other"]["enum"] == [*choices, *([None] if reading else [])]
        assert fields["kinds"]["items"]["enum"] == ["a", "b"]
        assert fields["steps"].get("minimum") != 1
        found = {name: one["default"] for name, one in fields.items() if "default" in one}
        assert found == {
            "speed": "QUICK",
            "mode": "best",
            "steps": 3,
            "many": str(2**53),
            "wide": "7",
            "rate": 0.5,
        }
        described = schema_of(DescribedByDataclass, reading=reading)["properties"]
        assert described["mode"]["default"] == "best"
        assert "default" not in described["made"]


def test_described_message_fits_its_schemas() -> None:
    types = lro.TypeRegistry(Described)
    read = validator(lambda schemas: schemas.read(Described), types)
    for check in (read, validator(lambda schemas: schemas.written(Described), types)):
        check.validate(types.dump(Described()))
    for fine in ({}, {"mode": None, "speed": None, "steps": None}, {"mode": "fast"}):
        read.validate(fine)
        types.load(fine, Described)
    for bad in ({"mode": "slow"}, {"kinds": ["c"]}):
        assert not read.is_valid(bad)
        with pytest.raises(InvalidArgument):
            types.load(bad, Described)


def limited_by_pydantic() -> type:
    """Return a model with limits."""
    pydantic = pytest.importorskip("pydantic")
    element = typing.Annotated[int, pydantic.Field(ge=1, description="of an element")]
    return pydantic.create_model(
        "Limited",
        url=(str, pydantic.Field(description="The URL.", min_length=1, pattern="^h")),
        pages=(int, pydantic.Field(5, ge=1, le=100, multiple_of=5)),
        rate=(float | None, pydantic.Field(None, gt=0, lt=1)),
        sizes=(list[element], pydantic.Field([], max_length=3)),
        either=(int | str, pydantic.Field(3, description="One of two types.")),
        made=(str, pydantic.Field(default_factory=lambda: "random")),
        wrong=(lro.Int32, pydantic.Field(7, le=5)),  # pydantic does not check a default
    )


def limited_by_msgspec() -> type:
    """Return a Struct with the same limits."""
    msgspec = pytest.importorskip("msgspec")
    meta = msgspec.Meta
    url = typing.Annotated[str, meta(description="The URL.", min_length=1, pattern="^h")]
    pages = typing.Annotated[int, meta(ge=1, le=100, multiple_of=5)]
    rate = typing.Annotated[float, meta(gt=0, lt=1)] | None
    made = msgspec.field(default_factory=lambda: "random")
    fields = [
        *(("url", url), ("pages", pages, 5), ("rate", rate, None)),
        ("sizes", list[typing.Annotated[int, meta(ge=1)]], msgspec.field(default_factory=list)),
        *(("either", int | str, 3), ("made", str, made)),
        ("wrong", typing.Annotated[lro.Int32, meta(le=5)], 7),
    ]
    return msgspec.defstruct("Limited", fields)


@pytest.mark.parametrize("make", [limited_by_pydantic, limited_by_msgspec])
def test_limits_that_a_class_checks_are_in_the_schema_of_requests(
    make: typing.Callable[[], type],
) -> None:
    cls = make()
    types = lro.TypeRegistry()
    fields = schema_of(cls, reading=True, types=types)["properties"]
    assert fields["url"]["description"] == "The URL."
    read = validator(lambda schemas: schemas.read(cls), types)
    fine = {"url": "http", "pages": 10, "rate": 0.5, "sizes": [1], "wrong": 5}
    read.validate(fine)
    types.load(fine, cls)
    bad = [{"url": ""}, {"url": "ftp"}, *({"pages": value} for value in (0, 7, 105))]
    for wrong in (*bad, {"rate": 0}, {"rate": 1}, {"sizes": [0]}, {"wrong": 6}):
        assert not read.is_valid({**fine, **wrong}), wrong
        with pytest.raises(InvalidArgument):
            types.load({**fine, **wrong}, cls)
    assert (fields["pages"]["default"], fields["either"]["default"]) == (5, 3)
    assert "default" not in fields["made"]
    written = validator(lambda schemas: schemas.written(cls), types)
    written.validate(types.dump(cls(url="http")))


def test_parameter_has_the_description_of_its_field() -> None:
    schemas = MessageSchemas(TYPES)
    for name in ("title", "tags"):
        shown = schemas.field(shape_of(Described).spellings[name], "acme.v1")
        assert shown["description"]


def test_field_of_a_protobuf_message_has_no_description() -> None:
    source_context = pytest.importorskip("google.protobuf.source_context_pb2")
    types = lro.TypeRegistry()
    types.register(source_context.SourceContext)
    schema = schema_of(source_context.SourceContext, types=types)
    assert schema["properties"] == {"fileName": {"type": "string"}}
