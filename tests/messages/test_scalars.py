"""Each kind of scalar in JSON, both ways (spec §1.9)."""

from __future__ import annotations

import enum
import math

import attrs
import pytest

from lro import Float, Int32, InvalidArgument, LroError, TypeRegistry, UInt32, UInt64

TYPES = TypeRegistry()


class Color(enum.Enum):
    NONE = "none"
    RED = "red"


class Level(enum.IntEnum):
    LOW = 0
    HIGH = 5


@attrs.frozen
class One:
    """Each kind of scalar, implicit."""

    text: str = ""
    raw: bytes = b""
    flag: bool = False
    small: Int32 = 0
    big: int = 0
    usmall: UInt32 = 0
    ubig: UInt64 = 0
    single: Float = 0.0
    double: float = 0.0
    color: Color = Color.NONE
    level: Level = Level.LOW


READ = [  # more forms are in the vectors, and where messages of protobuf are read
    ("text", "a\u2028\U0001f600", "a\u2028\U0001f600"),
    ("raw", "AP-_", b"\x00\xff\xbf"),
    *((name, form, 42) for name in ("small", "usmall", "big", "ubig")
      for form in (42, "42", 42.0, "42.0", "4.2e1", "4.2E+1", "420e-1")),
    ("big", "9007199254740993.0", 2**53 + 1),
    ("big", "-9.223372036854775808e18", -(2**63)),
    ("double", "3", 3.0),
    ("single", "-Infinity", -math.inf), ("single", "NaN", math.nan), ("double", "NaN", math.nan),
    ("color", "RED", Color.RED), ("color", 1, Color.RED),
    ("level", "HIGH", Level.HIGH), ("level", 5, Level.HIGH),
]  # fmt: skip


@pytest.mark.parametrize(("name", "value", "wanted"), READ)
def test_a_scalar_is_read(name, value, wanted):
    """Every accepted form of spec §1.9."""
    found = getattr(TYPES.load({name: value}, One), name)
    assert (repr(found), type(found)) == (repr(wanted), type(wanted))


PRINTED = [
    ("text", "a", "a"), ("flag", True, True), ("raw", b"a", "YQ=="),
    ("raw", bytearray(b"a"), "YQ=="), ("small", 5, 5), ("usmall", 5, 5), ("big", 5, "5"),
    ("big", -(2**63), "-9223372036854775808"),
    ("ubig", 2**64 - 1, "18446744073709551615"), ("small", Level.HIGH, 5), ("big", Level.HIGH, "5"),
    ("double", 1.5, 1.5), ("double", 3, 3.0), ("double", math.inf, "Infinity"),
    ("double", -math.inf, "-Infinity"), ("double", math.nan, "NaN"), ("single", 0.1, 0.1),
    ("single", 16777216.0, 16777216.0), ("single", 3.4028235e38, 3.4028235e38),
    ("single", 1 / 3, 0.33333334), ("single", 7.038531e-26, 7.038531e-26),
    ("single", 1.3644169484905433e-05, 1.36441695e-05),
    ("single", math.inf, "Infinity"), ("color", Color.RED, "RED"), ("level", Level.HIGH, "HIGH"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "value", "wanted"), PRINTED)
def test_a_scalar_is_printed(name, value, wanted):
    """The one output form of spec §1.9."""
    assert TYPES.dump(One(**{name: value})) == {name: wanted}


UNPRINTABLE = [
    ("text", 5), ("text", None), ("text", "\ud800"), ("flag", 1), ("raw", "a"), ("small", "5"),
    ("small", True), ("small", 2**31), ("big", 2**63), ("ubig", -1), ("double", "1"),
    ("double", True), ("single", 1e39), ("color", "RED"), ("color", Level.HIGH), ("level", 5),
]  # fmt: skip


@pytest.mark.parametrize(("name", "value"), UNPRINTABLE)
def test_a_scalar_is_not_printed(name, value):
    """A field that holds what its type does not allow is named."""
    with pytest.raises(LroError) as caught:
        TYPES.dump(One(**{name: value}))
    assert caught.value.path == name


def test_a_number_of_thousands_of_digits_is_not_written_out():
    """Python refuses to, and the error must not fail with that."""
    with pytest.raises(LroError, match="a huge int"):
        TYPES.dump(One(big=10**5000))
    for name, value in (("small", "1" * 500), ("ubig", 2**64), ("level", "1"), ("double", 10**400)):
        with pytest.raises(InvalidArgument, match="got ") as caught:
            TYPES.load({name: value}, One)
        assert caught.value.field == name
        assert len(caught.value.description) < 200
