"""Numbers, times and wildcards in filters are exact, and take bounded time for any text."""

from __future__ import annotations

import re
import struct
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.filters.every_field_kind import matches, refusal

MOST = "9" * 400


@pytest.mark.parametrize(
    "text",
    [
        *("", "-", "+1", "1.", ".5", "1e", "1e309", "1e-309", "0x1", "1_0", "٣", " 1", "NaN"),
        *("1\\n", "Infinity", f"{MOST}9", f"1e{'9' * 398}"),
    ],
)
def test_text_of_another_form_is_not_a_number(text: str) -> None:
    """A text that does not have the form of a number, or exceeds the limits, is refused."""
    assert refusal(f'metadata.limit = "{text}"').startswith("expected a number")


@given(st.floats(2**-60, 2**60, width=32).filter(lambda near: near > 0), st.integers(-3, 3))
def test_a_float_literal_is_rounded_once(near: float, steps: int) -> None:
    """A literal for a 32-bit float is rounded once, to the nearest float (ties to even)."""
    bits = struct.unpack("<i", struct.pack("<f", near))[0]
    above = struct.unpack("<f", struct.pack("<i", bits + 1))[0]
    number = (Fraction(near) + Fraction(above)) / 2 + Fraction(steps, 10**350)
    digits = f"{number.numerator * 10**350 // number.denominator:0351d}"
    wanted = near if steps < 0 or (steps == 0 and not bits & 1) else above
    assert matches(f"metadata.ratio = {digits[:-350]}.{digits[-350:]}", {"ratio": wanted})


@pytest.mark.parametrize("text", ["1e39", "1e300", MOST[1:]])
def test_too_large_numbers_are_infinite(text: str) -> None:
    """A number beyond the field's range counts as infinite, not as an error (spec §7.10(2))."""
    for sign, infinity in (("", "Infinity"), ("-", "-Infinity")):
        assert matches(f"metadata.ratio = {sign}{text}", {"ratio": infinity})
    assert matches(f"metadata.rate = {text}", {"rate": "Infinity"}) is (len(text) > 9)


@pytest.mark.parametrize(
    ("literal", "value", "found"),
    [
        ("1970-01-01T00:00:00.000000001Z", "1970-01-01T00:00:00.000000001Z", True),
        ("1970-01-01T00:00:00.000000001Z", "1970-01-01T00:00:00.000000002Z", False),
        ("1969-12-31T23:59:59.999999999Z", "1969-12-31T23:59:59.999999999Z", True),
        ("1970-01-01T01:00:00+01:00", "1970-01-01T00:00:00Z", True),
        ("1970-01-01T01:00:00+01:00", "1970-01-01T01:00:00Z", False),
        ("1970-01-01T00:00:00Z", "yesterday", False),
    ],
)
def test_times_compare_to_the_nanosecond(literal: str, value: str, found: bool) -> None:
    """Times are compared to the nanosecond, after their UTC offsets are applied."""
    assert matches(f"metadata.when:'{literal}'", {"when": [value]}) is found


PATTERNS = st.text("xz*", max_size=8)


@given(PATTERNS, st.text("xz", max_size=12))
def test_patterns_match_as_the_regular_expression_does(written: str, text: str) -> None:
    """A star in a pattern stands for any characters. Every other character stands for itself."""
    expression = ".*".join(map(re.escape, written.split("*")))
    if written != "":
        fits = bool(re.fullmatch(expression, text))
        assert matches(f'metadata.loose = "{written}"', {"loose": text}) is fits


@given(PATTERNS.filter(lambda text: text.strip("*")), st.lists(st.text("xz", max_size=4)))
def test_a_search_stays_within_one_string(written: str, strings: list[str]) -> None:
    expression = ".*".join(map(re.escape, written.split("*")))
    found = any(re.search(expression, text) for text in strings)
    assert matches(f'"{written}"', {"loose": list(strings)}) is found


def test_an_escaped_star_is_a_star() -> None:
    """An escaped star in a pattern matches only a star."""
    assert matches(r'metadata.loose = "x\*z*"', {"loose": "x*z!"})
    assert not matches(r'metadata.loose = "x\*z*"', {"loose": "xyz!"})
