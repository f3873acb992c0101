"""JSON of each kind of scalar and each well-known type, read and written (spec §1.9, §1.13)."""

from __future__ import annotations

import enum
import json
import math
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import attrs
import pytest

from lro import Duration, Empty, Int32, InvalidArgument, LroError, Struct, TypeRegistry
from lro.types import (
    BoolValue,
    FieldMask,
    Float,
    Int32Value,
    Int64,
    ListValue,
    StringValue,
    UInt32,
    UInt64,
    UInt64Value,
    Value,
)

TYPES = TypeRegistry()


class Color(enum.Enum):
    NONE = "none"
    RED = "red"


class Level(enum.IntEnum):
    LOW = 0
    HIGH = 5


@attrs.frozen
class One:
    """A message with a field of each scalar kind, all without presence."""

    text: str = ""
    raw: bytes = b""
    flag: bool = False
    small: Int32 = 0
    big: Int64 = 0
    plain: int = 0
    usmall: UInt32 = 0
    ubig: UInt64 = 0
    single: Float = 0.0
    double: float = 0.0
    color: Color = Color.NONE
    level: Level = Level.LOW


READ = [  # the vectors and the tests with protobuf messages have more forms
    ("text", "a\u2028\U0001f600", "a\u2028\U0001f600"),
    ("raw", "AP-_", b"\x00\xff\xbf"),
    *((name, form, 42) for name in ("small", "usmall", "big", "ubig", "plain")
      for form in (42, "42", 42.0, "42.0", "4.2e1", "4.2E+1", "420e-1")),
    ("big", "9007199254740993.0", 2**53 + 1), ("plain", "9007199254740993.0", 2**53 + 1),
    ("plain", -(2**63), -(2**63)), ("plain", str(2**63 - 1), 2**63 - 1), ("plain", 1e3, 1000),
    ("big", "-9.223372036854775808e18", -(2**63)),
    ("double", "3", 3.0),
    ("single", "-Infinity", -math.inf), ("single", "NaN", math.nan), ("double", "NaN", math.nan),
    ("color", "RED", Color.RED), ("color", 1, Color.RED),
    ("level", "HIGH", Level.HIGH), ("level", 5, Level.HIGH),
]  # fmt: skip


@pytest.mark.parametrize(("name", "value", "wanted"), READ)
def test_scalar_is_read_in_every_accepted_form(name, value, wanted):
    """A scalar is read in every form that spec §1.9 accepts."""
    found = getattr(TYPES.load({name: value}, One), name)
    assert (repr(found), type(found)) == (repr(wanted), type(wanted))


PRINTED = [
    ("text", "a", "a"), ("flag", True, True), ("raw", b"a", "YQ=="),
    ("raw", bytearray(b"a"), "YQ=="), ("small", 5, 5), ("usmall", 5, 5), ("big", 5, "5"),
    ("big", -(2**63), "-9223372036854775808"),
    ("plain", 5, 5), ("plain", -5, -5), ("plain", Level.HIGH, 5),
    ("plain", 2**53 - 1, 2**53 - 1), ("plain", 1 - 2**53, 1 - 2**53),
    ("plain", 2**53, "9007199254740992"), ("plain", -(2**53), "-9007199254740992"),
    ("plain", -(2**63), "-9223372036854775808"),
    ("ubig", 2**64 - 1, "18446744073709551615"), ("small", Level.HIGH, 5), ("big", Level.HIGH, "5"),
    ("double", 1.5, 1.5), ("double", 3, 3.0), ("double", math.inf, "Infinity"),
    ("double", -math.inf, "-Infinity"), ("double", math.nan, "NaN"), ("single", 0.1, 0.1),
    ("single", 16777216.0, 16777216.0), ("single", 3.4028235e38, 3.4028235e38),
    ("single", 1 / 3, 0.33333334), ("single", 7.038531e-26, 7.038531e-26),
    ("single", 1.3644169484905433e-05, 1.36441695e-05),
    ("single", math.inf, "Infinity"), ("color", Color.RED, "RED"), ("level", Level.HIGH, "HIGH"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "value", "wanted"), PRINTED)
def test_scalar_is_written_in_its_one_form(name, value, wanted):
    """A scalar is written in the one output form of spec §1.9."""
    assert TYPES.dump(One(**{name: value})) == {name: wanted}


UNPRINTABLE = [
    ("text", 5), ("text", None), ("text", "\ud800"), ("flag", 1), ("raw", "a"), ("small", "5"),
    ("small", True), ("small", 2**31), ("big", 2**63), ("ubig", -1), ("double", "1"),
    ("plain", "5"), ("plain", True), ("plain", 2**63), ("plain", 5.0),
    ("double", True), ("single", 1e39), ("color", "RED"), ("color", Level.HIGH), ("level", 5),
]  # fmt: skip


@pytest.mark.parametrize(("name", "value"), UNPRINTABLE)
def test_scalar_that_does_not_fit_its_type_is_not_written(name, value):
    """Writing a scalar that does not fit its type fails with an error that names the field."""
    with pytest.raises(LroError) as caught:
        TYPES.dump(One(**{name: value}))
    assert caught.value.path == name


def test_error_about_a_huge_number_does_not_print_its_digits():
    """A number that is too long for Python to print gets the usual error about its field."""
    with pytest.raises(LroError, match="a huge int"):
        TYPES.dump(One(big=10**5000))
    wrong = {"small": "1" * 500, "big": str(2**63), "level": "1", "double": 10**400}
    for name, value in wrong.items():
        with pytest.raises(InvalidArgument, match="got ") as caught:
            TYPES.load({name: value}, One)
        assert caught.value.field == name
        assert len(caught.value.description) < 200


FAR_WEST = timezone(timedelta(hours=-12))


@attrs.frozen
class Known:
    moment: datetime | None = None
    span: timedelta | None = None
    duration: Duration | None = None
    mask: FieldMask | None = None
    struct: Struct | None = None
    fields: Mapping[str, Any] = attrs.field(factory=dict)
    value: Value | None = None
    listed: ListValue | None = None
    small: Int32Value | None = None
    big: UInt64Value | None = None
    flag: BoolValue | None = None
    text: StringValue | None = None
    empty: Empty | None = None


KNOWN = [
    ("moment", datetime(2030, 1, 1, tzinfo=UTC), "2030-01-01T00:00:00Z"),
    ("span", timedelta(seconds=1.5), "1.500s"),
    ("duration", Duration(1, 5), "1.000000005s"),
    ("mask", FieldMask(("a_b", "c.d_e")), "aB,c.dE"),
    ("mask", FieldMask(), ""),
    ("struct", Struct({"a": [1, None, {"b": True}]}), {"a": [1, None, {"b": True}]}),
    ("struct", Struct(), {}),
    ("fields", {"a": None, "b": (1, 2)}, {"a": None, "b": [1, 2]}),
    ("value", Value(None), None),
    ("value", Value([1]), [1]),
    ("listed", ListValue([None, "a"]), [None, "a"]),
    ("small", Int32Value(0), 0),
    ("big", UInt64Value(0), "0"),
    ("flag", BoolValue(), False),
    ("text", StringValue(), ""),
    ("empty", Empty(), {}),
]


@pytest.mark.parametrize(("name", "value", "shown"), KNOWN)
def test_well_known_type_is_read_and_written(name, value, shown):
    assert TYPES.dump(Known(**{name: value})) == {name: shown}
    again = TYPES.load(json.loads(json.dumps({name: shown})), Known)
    assert getattr(again, name) == (shown if name == "fields" else value)


NOT_KNOWN = [
    ("moment", "2030-01-01"), ("moment", datetime(2030, 1, 1)), ("moment", 5),
    ("moment", datetime.max.replace(tzinfo=FAR_WEST)),
    ("span", "1.5s"), ("span", timedelta.max), ("duration", Duration(1, -1)),
    ("mask", FieldMask(("aB",))), ("mask", FieldMask(("a__b",))), ("mask", "a"),
    ("struct", Struct([1])), ("struct", {"a": 1}), ("struct", Struct({5: 1})),
    ("struct", Struct({"a": math.nan})), ("struct", Struct({"a": 10**400})),
    ("struct", Struct({"a": b"x"})), ("struct", Struct({"a": object()})),
    ("struct", Struct({"a": {"\ud800": 1}})), ("struct", Struct({"a": ["\ud800"]})),
    ("fields", [1]), ("fields", {"a": math.inf}), ("value", 5), ("value", Value({1, 2})),
    ("listed", [1]), ("listed", ListValue("ab")), ("listed", ListValue(5)),
    ("small", 5), ("small", Int32Value("5")), ("big", Int32Value(5)), ("empty", {}),
]  # fmt: skip


@pytest.mark.parametrize(("name", "value"), NOT_KNOWN)
def test_wrong_value_of_a_well_known_type_is_refused(name, value):
    """Writing a wrong value of a well-known type raises an LroError with the field's path."""
    with pytest.raises(LroError) as caught:
        TYPES.dump(Known(**{name: value}))
    assert caught.value.path.startswith(name)
