"""Fields of plain type ``int``: numbers in JSON if they have at most 53 bits (spec §1.9)."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from typing import Annotated, Any, Literal, NewType, TypedDict

import pytest

pytest.importorskip("google.longrunning.operations_proto_pb2")

import attrs
import msgspec
import pydantic
from google.protobuf import json_format
from hypothesis import example, given, settings
from hypothesis import strategies as st

import lro
import lro.wire
from lro.http import MessageSchemas
from lro.types import Int64, UInt64
from lro.wire import dumps, loads

LARGEST = 2**53 - 1
INTS = st.integers(-(2**63), 2**63 - 1) | st.integers(-(2**54), 2**54) | st.integers(-9, 9)
Count = NewType("Count", int)
Wide = NewType("Wide", Int64)


@lro.message("acme.v1.Attrs")
@attrs.frozen
class Attrs:
    one: int = 0
    maybe: int | None = None
    many: list[int] = attrs.field(factory=list)
    by_name: dict[str, int] = attrs.field(factory=dict)
    below: Attrs | None = None
    fixed: Int64 = 0


@lro.message("acme.v1.Data")
@dataclasses.dataclass
class Data:
    one: int = 0
    maybe: int | None = None
    many: list[int] = dataclasses.field(default_factory=list)
    by_name: dict[str, int] = dataclasses.field(default_factory=dict)
    below: Data | None = None
    fixed: Int64 = 0


@lro.message("acme.v1.Model")
class Model(pydantic.BaseModel):
    one: int = 0
    maybe: int | None = None
    many: list[int] = []
    by_name: dict[str, int] = {}
    below: Model | None = None
    fixed: Int64 = 0


@lro.message("acme.v1.Struct")
class Struct(msgspec.Struct):
    one: int = 0
    maybe: int | None = None
    many: list[int] = []
    by_name: dict[str, int] = {}
    below: Struct | None = None
    fixed: Int64 = 0


@lro.message("acme.v1.Typed")
class Typed(TypedDict):
    one: int
    maybe: int | None
    many: list[int]
    by_name: dict[str, int]
    below: Typed | None
    fixed: Int64


CLASSES: list[Any] = [Attrs, Data, Model, Struct, Typed]
TYPES = lro.TypeRegistry(*CLASSES)

Fields = dict[str, Any]
FIELDS = st.fixed_dictionaries(
    {
        "one": INTS,
        "maybe": st.none() | INTS,
        "many": st.lists(INTS, max_size=3),
        "by_name": st.dictionaries(st.sampled_from("abc"), INTS, max_size=2),
        "fixed": INTS,
    }
)
EDGE: Fields = {"many": [-LARGEST - 1, -LARGEST, 0, LARGEST, LARGEST + 1], "fixed": 1}
EDGE |= {"one": LARGEST, "maybe": LARGEST + 1, "by_name": {"a": -LARGEST, "b": -(2**63)}}


def form(number: int) -> int | str:
    """Return the JSON form that a plain int has by the decision."""
    return number if abs(number) <= LARGEST else str(number)


def in_form(fields: Fields, write: Callable[[int], int | str]) -> Fields:
    """Return the JSON of these fields, without implicit zeros and absent fields."""
    shown = {"one": write(fields["one"])} if fields["one"] else {}
    if fields["maybe"] is not None:
        shown["maybe"] = write(fields["maybe"])
    shown |= {"many": [write(one) for one in fields["many"]]} if fields["many"] else {}
    if fields["by_name"]:
        shown["byName"] = {key: write(one) for key, one in fields["by_name"].items()}
    return shown | ({"fixed": str(fields["fixed"])} if fields["fixed"] else {})


@pytest.mark.parametrize("cls", CLASSES)
@given(outer=FIELDS, inner=FIELDS)
@example(outer=EDGE, inner=EDGE)
@settings(max_examples=30)
def test_plain_int_is_a_number_up_to_53_bits_and_read_from_both_forms(
    cls: Any, outer: Fields, inner: Fields
) -> None:
    """Any int of 64 bits is written in its form, and survives JSON text and binary form."""
    message = cls(**outer, below=cls(**inner, below=None))
    packed = TYPES.pack(message, cls)
    assert packed.payload == {**in_form(outer, form), "below": in_form(inner, form)}
    assert loads(dumps(packed.payload)) == packed.payload
    binary = lro.AnyMessage(packed.type_url, TYPES.binary_payload(packed))
    assert TYPES.to_json(binary) == TYPES.to_json(packed)
    both = [{**in_form(outer, way), "below": in_form(inner, way)} for way in (int, str)]
    for payload in [packed.payload, *both, binary.payload]:
        for strict in (True, False):
            found = lro.AnyMessage(packed.type_url, payload)
            assert TYPES.unpack(found, cls, strict=strict) == message


@given(fields=FIELDS)
@example(fields=EDGE)
@settings(max_examples=30)
def test_parser_of_protobuf_reads_both_forms_as_the_same_bytes(fields: Fields) -> None:
    """A client of Google reads the JSON of a plain int with protobuf's parser, without a loss."""
    packed = TYPES.pack(Attrs(**fields))
    wanted = TYPES.binary_payload(packed)
    for way in (form, int, str):
        message = TYPES.binary.message_class(packed.type_name)()
        json_format.Parse(json.dumps(in_form(fields, way)), message)
        assert message.SerializeToString(deterministic=True) == wanted


def test_messages_of_the_interface_have_no_plain_int() -> None:
    """Every named message of this library has the widths of its proto file."""
    types, checked = lro.TypeRegistry(), set()
    for module in (lro, lro.types, lro.wire):
        for name in module.__all__:
            cls = getattr(module, name)
            full_name = lro.types.full_name(cls) if isinstance(cls, type) else None
            if full_name is None or not lro.types.is_message_class(cls):
                continue
            if not types.knows(cls):
                types.register(cls)
            shape = types.codec(full_name).shape  # None for a message with a special form
            assert not [one.name for one in (shape.fields if shape else ()) if one.as_number]
            checked.add(full_name)
    assert {"lro.v1.OperationMetadata", "google.rpc.ErrorInfo"} <= checked


@pytest.mark.parametrize("cls", CLASSES)
def test_schema_describes_both_forms_of_a_plain_int(cls: Any) -> None:
    """A written message fits its output schema, and each readable form fits the input schema."""
    jsonschema = pytest.importorskip("jsonschema")
    schemas = MessageSchemas(TYPES, "#/$defs/")
    for top, ways in ((schemas.written(cls), [form]), (schemas.read(cls), [form, int, str])):
        check = jsonschema.Draft202012Validator({**top, "$defs": schemas.named})
        absent = {"one": 0, "maybe": None} if len(ways) > 1 else {}
        for way in ways:
            check.validate({**absent, **in_form(EDGE, way)})
        for wrong in (1.5, "a", True):
            assert not check.is_valid({**absent, "many": [wrong]})
    written = jsonschema.Draft202012Validator({**schemas.written(cls), "$defs": schemas.named})
    assert not written.is_valid({"one": LARGEST + 1})


@lro.message("acme.v1.Kinds")
class Kinds(pydantic.BaseModel):
    count: Count = Count(0)
    wide: Wide = Wide(0)
    positive: pydantic.PositiveInt = 1
    limited: Annotated[Int64, pydantic.Field(ge=0)] = 0
    assigned: Int64 = pydantic.Field(0, ge=0)
    unsigned: UInt64 = 0
    by_number: dict[int, str] = {}


def test_only_an_int_without_a_width_is_a_number() -> None:
    """Int64 and UInt64 are text even with constraints or a new name; map keys are text."""
    made = Kinds(count=Count(7), wide=Wide(7), positive=7, limited=7, assigned=7, unsigned=7)
    made.by_number[7] = "a"
    types = lro.TypeRegistry(Kinds)
    numbers = {"count": 7, "positive": 7, "byNumber": {"7": "a"}}
    assert types.dump(made) == numbers | dict.fromkeys(
        ("wide", "limited", "assigned", "unsigned"), "7"
    )
    assert types.load(types.dump(made), Kinds) == made


class Half(int):
    """An int of a class of its own."""


@pytest.mark.parametrize("cls", CLASSES)
def test_int_of_a_subclass_is_written_as_a_plain_number(cls: Any) -> None:
    """The value of a subclass of int is written as digits, even if its text is another one."""
    shown = TYPES.dump(cls(**{**EDGE, "one": Half(5), "below": None}), cls)
    assert json.dumps(shown).startswith('{"one": 5')


WRONG = [
    (1.5, "must be an int64, got 1.5"),
    ("1.5", "must be an int64, got '1.5'"),
    ("abc", "must be an int64, got 'abc'"),
    ("", "must be an int64, got ''"),
    (True, "must be an int64, got True"),
    (2**63, f"must be from {-(2**63)} to {2**63 - 1}, got {2**63}"),
    (str(-(2**63) - 1), f"must be from {-(2**63)} to {2**63 - 1}, got '{-(2**63) - 1}'"),
]


@pytest.mark.parametrize("cls", CLASSES)
@pytest.mark.parametrize(("value", "text"), WRONG)
def test_value_that_is_no_int64_is_refused(cls: Any, value: object, text: str) -> None:
    """A fraction, another text and a number beyond 64 bits are refused with the facts."""
    for name, json_name, path in (("one", "one", "one"), ("many", "many", "many[0]")):
        value_of_field = [value] if name == "many" else value
        with pytest.raises(lro.InvalidArgument) as caught:
            TYPES.load({json_name: value_of_field}, cls)
        assert (caught.value.field, caught.value.description) == (path, text)


@lro.message("acme.v1.Unions")
class Unions(pydantic.BaseModel):
    """Fields whose types only pydantic can read and write."""

    many: list[int] | None = None
    by_name: dict[str, list[int]] | None = None
    text: int | str = 0
    known: list[Literal[1152921504606846976]] | bool = False


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("number", [0, LARGEST, LARGEST + 1, 2**63 - 1, 2**70])
def test_integers_within_unions_are_numbers_up_to_53_bits_and_text_beyond(
    number: int, sign: int
) -> None:
    """JavaScript would change a larger number. A message that is read again is the same."""
    one = sign * number
    types = lro.TypeRegistry()
    types.register(Unions)
    message = Unions(many=[one, 1], by_name={"a": [one]})
    found = types.dump(message)
    wanted = one if abs(one) <= LARGEST else str(one)
    assert found["many"] == [wanted, 1]
    assert found["byName"] == {"a": [wanted]}
    assert types.load(found, Unions) == message


def test_integers_that_would_be_read_as_texts_stay_numbers() -> None:
    """A union with ``str`` reads a text as a text, and a literal refuses it."""
    types = lro.TypeRegistry()
    types.register(Unions)
    message = Unions(text=2**60, known=[2**60])
    found = types.dump(message)
    assert (found["text"], found["known"]) == (2**60, [2**60])
    assert types.load(found, Unions) == message
