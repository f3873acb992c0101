"""JSON Schemas of messages: output schemas for written messages, input schemas for requests."""

from __future__ import annotations

import contextlib
import enum
import typing
from collections.abc import Mapping
from dataclasses import dataclass
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
