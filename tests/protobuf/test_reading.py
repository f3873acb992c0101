"""The JSON that protobuf messages accept and refuse (spec §1.8 to §1.14)."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta

import attrs
import pytest
from google.api import field_behavior_pb2
from google.protobuf import descriptor_pb2, struct_pb2

from lro import AnyMessage, Empty, Int32, InvalidArgument, Struct, TypeRegistry, message
from lro.protobuf import register_file_set
from lro.types import (
    BoolValue,
    BytesValue,
    DoubleValue,
    FieldMask,
    Float,
    FloatValue,
    Int32Value,
    Int64Value,
    ListValue,
    StringValue,
    UInt32,
    UInt32Value,
    UInt64,
    UInt64Value,
    Value,
)
from tests.protobuf.fixtures import Color, file_set


@message("acme.v1.Every")
@attrs.frozen
class Every:
    """A message with each kind of field that attrs and protobuf classes share."""

    text: str = ""
    raw: bytes = b""
    flag: bool = False
    small: Int32 = 0
    big: int = 0
    small_count: UInt32 = 0
    big_count: UInt64 = 0
    single: Float = 0.0
    double: float = 0.0
    color: Color = Color.UNSPECIFIED
    maybe: int | None = None
    maybe_color: Color | None = None
    moment: datetime | None = None
    span: timedelta | None = None
    mask: FieldMask | None = None
    struct: Struct | None = None
    fields: Mapping[str, object] | None = None
    value: Value | None = None
    anything: object = None
    listed: ListValue | None = None
    a_string: StringValue | None = None
    a_bool: BoolValue | None = None
    a_bytes: BytesValue | None = None
    an_int32: Int32Value | None = None
    an_int64: Int64Value | None = None
    a_uint32: UInt32Value | None = None
    a_uint64: UInt64Value | None = None
    a_float: FloatValue | None = None
    a_double: DoubleValue | None = None
    empty: Empty | None = None
    packed: AnyMessage | None = None
    inner: Every | None = None
    inners: tuple[Every, ...] = ()
    texts: list[str] = attrs.field(factory=list)
    moments: tuple[datetime, ...] = ()
    numbers: tuple[Int32, ...] = ()
    large: tuple[int, ...] = ()
    values: tuple[Value, ...] = ()
    colors: tuple[Color, ...] = ()
    by_name: Mapping[str, Every] = attrs.field(factory=dict)
    by_number: Mapping[int, str] = attrs.field(factory=dict)
    by_flag: Mapping[bool, Color] = attrs.field(factory=dict)
    value_of: Mapping[str, Value] = attrs.field(factory=dict)


ATTRS = TypeRegistry(Every)
EVERY = ATTRS.binary.message_class("acme.v1.Every")
KINDS = [(ATTRS, Every), (TypeRegistry(EVERY), EVERY)]

REFUSED = [  # the test vectors have more refused values, and accepted values
    ("raw", "!!!!"), ("raw", "YQ=x"), ("raw", "é"), ("raw", 5),
    ("color", 1.5), ("color", True), ("color", "1"), ("color", 1.0),
    ("colors", [0, "1"]), ("byFlag", {"true": 1.5}), ("byFlag", {"1": 0}),
    ("inner", []), ("inner", 0), ("inners", {}), ("inners", [[]]), ("inners", [None]),
    ("byName", []), ("byName", {"a": ""}), ("byName", {"a": None}),
    ("double", True), ("double", "1e400"), ("double", 10**400), ("double", "nan"), ("double", ""),
    ("double", " 1"), ("double", "0x1"), ("double", "1_000"), ("single", 3.5e38), ("single", "inf"),
    ("small", "1_000"), ("small", "\t1"), ("small", "+1"), ("small", "5."), ("small", "\u0661"),
    ("small", True), ("small", 2**31), ("small", "1e99999999999"),
    ("small", "1e99999999999999999999"), ("bigCount", -1),
    ("big", 2**63), ("big", str(2**63)), ("big", "\u0663"), ("large", [str(2**63)]),
    ("smallCount", "-1"), ("byNumber", {"+1": ""}), ("byNumber", {" 1": ""}),
    ("byNumber", {"": ""}),
    ("flag", "true"), ("text", "\ud800"), ("text", b"x"), ("texts", ["a", None]), ("texts", "a"),
    ("large", [1, True]), ("large", ["1", "x"]), ("numbers", (1,)), ("moments", [5]),
    ("moments", ["2024-02-30T00:00:00Z"]),
    ("span", "1.0123456789s"), ("span", "+1s"), ("span", "1e3s"), ("span", "\u0661s"),
    ("span", ".5s"), ("span", "1.s"), ("span", "--1s"), ("moment", "2024-01-01T00:00:00+24:00"),
    ("moment", "2024-1-1T00:00:00Z"), ("moment", "2024-01-01t00:00:00Z"),
    ("moment", "2024-01-01T00:00:00z"), ("moment", "2024-01-01T00:00:00.1234567890Z"),
    ("moment", "2024-01-01T00:00:60Z"), ("moment", "2024-01-01T00:00:00"),
    ("moment", "0001-01-01T00:00:00+01:00"), ("mask", "a_b"), ("mask", "\ud800"),
    ("struct", {"a": float("inf")}), ("struct", {"\ud800": 1}), ("fields", ""),
    ("value", "\ud800"), ("anything", float("inf")), ("listed", [["\ud800"]]), ("aBool", "true"),
    ("anInt32", "1_0"), ("aBytes", "!"), ("aFloat", 1e39), ("aDouble", "1e400"),
    ("empty", []), ("empty", {"a": 1}), ("packed", []), ("packed", {"@type": None}),
    ("packed", {"@type": "google.protobuf.Empty"}), ("packed", {"@type": "x/"}),
    ("packed", {"@type": "x/acme.v1.Every.ByNameEntry"}), ("packed", {"@type": "x/.acme.v1.Every"}),
    ("packed", {"@type": "x\ud800/acme.v1.Every"}), ("packed", {"@type": "x/acme.v1.Every\ud800"}),
    ("packed", {"@type": "x/google.protobuf.Duration", "value": "1s", "more": 1}),
    ("packed", {"@type": "x/google.protobuf.Any"}),
    ("packed", {"@type": "x/google.protobuf.Empty", "value": {"a": 1}}),
    ("packed", {"@type": "x/acme.v1.Every", "inner": {"color": 1.5}}),
    ("unknown", 1), ("by_Name", {}), ("[acme.v1.extension]", 1), ("\ud800", 1),
]  # fmt: skip


@pytest.mark.parametrize(("key", "value"), REFUSED, ids=lambda one: ascii(one)[:60])
def test_json_that_attrs_classes_refuse_is_refused_at_the_same_path(key, value):
    """Attrs and protobuf classes refuse a value at the same path, nested or not."""
    for whole in ({key: value}, {"inner": {"byName": {"x": {key: value}}}}):
        paths = set()
        for types, cls in KINDS:
            with pytest.raises(InvalidArgument) as caught:
                types.load(whole, cls)
            paths.add(caught.value.field)
        assert len(paths) == 1


FILES = """
file {
  name: "three.proto" package: "acme.v3" syntax: "proto3"
  dependency: ["google/protobuf/struct.proto", "two.proto"]
  message_type {
    name: "Odd"
    oneof_decl { name: "choice" }
    field { name: "left" number: 1 type: TYPE_STRING oneof_index: 0 }
    field { name: "right" number: 2 type: TYPE_MESSAGE type_name: ".acme.v3.Odd" oneof_index: 0 }
    field { name: "nothing" number: 3 type: TYPE_ENUM type_name: ".google.protobuf.NullValue"
            oneof_index: 0 }
    field { name: "whatever" number: 4 type: TYPE_MESSAGE type_name: ".google.protobuf.Value"
            oneof_index: 0 }
    field { name: "first" json_name: "second" number: 5 type: TYPE_STRING }
    field { name: "second" json_name: "third" number: 6 type: TYPE_STRING }
    field { name: "nulls" number: 7 type: TYPE_ENUM type_name: ".google.protobuf.NullValue"
            label: LABEL_REPEATED }
    field { name: "open" number: 8 type: TYPE_ENUM type_name: ".acme.v3.Size" }
    field { name: "zig_zag" number: 9 type: TYPE_SINT32 }
    field { name: "two" number: 10 type: TYPE_MESSAGE type_name: ".acme.v2.Two" }
    field { name: "struct" number: 11 type: TYPE_MESSAGE type_name: ".google.protobuf.Struct" }
  }
  enum_type { name: "Size" value { name: "SMALL" number: 0 } }
}
file {
  name: "two.proto" package: "acme.v2" syntax: "proto2"
  message_type {
    name: "Two"
    field { name: "needed" number: 1 type: TYPE_STRING label: LABEL_REQUIRED }
    field { name: "closed" number: 2 type: TYPE_ENUM type_name: ".acme.v2.Level" }
    field { name: "grouped" number: 3 type: TYPE_GROUP type_name: ".acme.v2.Two.Grouped" }
    nested_type { name: "Grouped" field { name: "text" number: 1 type: TYPE_STRING } }
    extension_range { start: 100 end: 200 }
  }
  enum_type { name: "Level" value { name: "LOW" number: 1 } }
  extension { name: "one" number: 100 type: TYPE_INT32 extendee: ".acme.v2.Two" }
  extension { name: "many" number: 101 type: TYPE_INT32 label: LABEL_REPEATED
              extendee: ".acme.v2.Two" }
  extension { name: "nested" number: 102 type: TYPE_MESSAGE type_name: ".acme.v2.Two"
              extendee: ".acme.v2.Two" }
}
"""
"""A proto3 file with a one-of and odd JSON names; a proto2 file with groups and extensions."""


@pytest.fixture(scope="module")
def types():
    """A registry of the messages in ``FILES``."""
    made = TypeRegistry()
    register_file_set(made, file_set(FILES))
    return made


def shown(types, name, value, *, strict=True):
    """Read a JSON value as the message of this name; return the message's JSON."""
    return types.dump(types.codec(name).load(value, strict=strict))


@pytest.mark.parametrize(
    ("value", "printed"),
    [
        *(
            (value, value)
            for value in (
                {"left": ""},
                {"nothing": None},
                {"whatever": None},
                {"second": "a", "third": "b"},
                {"two": {"needed": "a", "grouped": {"text": "b"}}},
                {"two": {"needed": "", "[acme.v2.nested]": {"needed": ""}}},
            )
        ),
        ({"left": None, "right": {}}, {"right": {}}),
        ({"nothing": "NULL_VALUE"}, {"nothing": None}),
        ({"nulls": [None, 0]}, {"nulls": [None, None]}),
        ({"first": "a"}, {"second": "a"}),
        ({"open": 7, "zigZag": "-1"}, {"open": 7, "zigZag": -1}),
        ({"two": {"needed": "", "closed": 1}}, {"two": {"needed": "", "closed": "LOW"}}),
        (
            {"two": {"needed": "", "[acme.v2.one]": "1"}},
            {"two": {"needed": "", "[acme.v2.one]": 1}},
        ),
    ],
)
def test_json_of_fields_that_only_proto_has(types, value, printed):
    """One-ofs, nulls, custom JSON names, groups and extensions are read (spec §1.8)."""
    assert shown(types, "acme.v3.Odd", value) == printed


def test_extension_with_several_values_is_read(types):
    """A repeated extension is read. It is not printed here: old protobuf omits the brackets."""
    value = {"two": {"needed": "", "[acme.v2.many]": [1, 2]}}
    message = types.codec("acme.v3.Odd").load(value, strict=True)
    found = {
        field.full_name: list(values)
        for field, values in message.two.ListFields()
        if field.is_extension
    }
    assert found == {"acme.v2.many": [1, 2]}


@pytest.mark.parametrize(
    ("value", "field", "said"),
    [
        ({"left": "", "right": {}}, "right", "cannot be set together with left"),
        ({"right": {"nothing": None, "whatever": None}}, "right.whatever", "together with nothing"),
        ({"open": 2**31}, "open", "one of SMALL"),
        ({"nulls": ["x"]}, "nulls[0]", "one of NULL_VALUE"),
        ({"zig_zag": 1, "zigZag": None}, "zig_zag", "given twice, in both spellings"),
        ({"two": {"needed": "", "closed": 0}}, "two.closed", "one of LOW"),
        ({"two": {}}, "two.needed", "is required"),
        ({"two": {"needed": "", "[acme.v2.many]": [1.5]}}, "two[acme.v2.many][0]", "an int32"),
        ({"two": {"needed": "", "[acme.v2.none]": 1}}, "two[acme.v2.none]", "not a field of Two"),
        ({"two": {"needed": "", "[\ud800]": 1}}, "two[\ud800]", "not a field of Two"),
        ({"[acme.v2.one]": 1}, "[acme.v2.one]", "is not a field of Odd"),
    ],
)
def test_json_of_fields_that_only_proto_has_is_refused(types, value, field, said):
    """An invalid one-of, enum, extension or required field is an error with the field's path."""
    with pytest.raises(InvalidArgument, match=said) as refused:
        types.codec("acme.v3.Odd").load(value, strict=True)
    assert refused.value.field == field


def test_unknown_names_are_dropped_for_clients(types):
    """A client drops unknown fields and enum names but keeps enum numbers (spec §1.8(5))."""
    value = {"open": "HUGE", "nulls": ["x", None], "unknown": 1, "left": "a"}
    assert shown(types, "acme.v3.Odd", value, strict=False) == {"nulls": [None], "left": "a"}
    assert shown(types, "acme.v3.Odd", {"open": 9}, strict=False) == {"open": 9}
    level = {"needed": "", "closed": "UNKNOWN", "[acme.v2.none]": 1}
    assert shown(types, "acme.v2.Two", level, strict=False) == {"needed": ""}
    for wrong in ({"open": 1.5}, {"left": 1}, {"left": "", "right": {}}):
        with pytest.raises(InvalidArgument):
            types.codec("acme.v3.Odd").load(wrong, strict=False)


def test_extension_of_another_message_is_an_unknown_field():
    types = TypeRegistry(descriptor_pb2.FieldOptions, descriptor_pb2.MethodOptions)
    value = {"[google.api.field_behavior]": ["REQUIRED"], "deprecated": True}
    options = types.load(value, descriptor_pb2.FieldOptions)
    assert list(options.Extensions[field_behavior_pb2.field_behavior]) == [2]
    assert options.deprecated
    with pytest.raises(InvalidArgument, match="is not a field of MethodOptions"):
        types.load(value, descriptor_pb2.MethodOptions)


def test_message_too_deep_for_the_binary_form_is_refused(types):
    """A Struct of 32 levels is read; a Struct of 1,000 levels is refused (spec §1.8(8))."""
    value = {}
    for _ in range(32):
        value = {"a": value}
    assert shown(types, "acme.v3.Odd", {"struct": value}) == {"struct": value}
    for _ in range(1000):
        value = {"a": value}
    for whole in ({"struct": value}, {"right": {"struct": {"a": value}}}):
        with pytest.raises(InvalidArgument, match="nested too deeply"):
            types.codec("acme.v3.Odd").load(whole, strict=True)


@pytest.mark.parametrize(
    ("cls", "value"),
    [
        (struct_pb2.Struct, {"a": [1.5, None]}),
        (struct_pb2.ListValue, [{}, [], "a"]),
        (struct_pb2.Value, None),
        (struct_pb2.Value, {"a": {"b": []}}),
    ],
)
def test_registered_well_known_protobuf_class_is_returned(cls, value):
    """A well-known type whose protobuf class is registered is read as the protobuf class."""
    types = TypeRegistry(cls)
    found = types.load(value, cls)
    assert type(found) is cls
    assert types.dump(found) == value
