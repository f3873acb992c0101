"""Numbers, times and wildcards: exact, and in bounded time whatever the text."""

from __future__ import annotations

import math
import re
import struct
from datetime import UTC, datetime
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lro._filters.parse import Member, Part
from lro._filters.types import (
    SEPARATOR,
    Pattern,
    double,
    duration,
    exact,
    is_number,
    moment,
    single,
    single_literal,
    timestamp,
)


@pytest.mark.parametrize(
    "text",
    [
        "0",
        "-1",
        "007",
        "1.5",
        "-0.0",
        "1e308",
        "1E-308",
        "2.5e+3",
        "9" * 400,
        "1e" + "0" * 390 + "7",
    ],
)
def test_these_are_numbers(text: str) -> None:
    """The form of spec §7.10(2), up to 400 characters and an exponent of 308."""
    assert is_number(text)
    assert exact(text) == Fraction(text)


@pytest.mark.parametrize(
    "text",
    [
        *(
            "",
            "-",
            "+1",
            "1.",
            ".5",
            "1e",
            "1e309",
            "1e-309",
            "0x1",
            "1_0",
            "٣",
            " 1",
            "1\n",
            "NaN",
        ),
        *("Infinity", "9" * 401, "1e" + "9" * 398),
    ],
)
def test_these_are_not_numbers(text: str) -> None:
    """Other forms, and what exceeds the limits."""
    assert not is_number(text)


@given(st.integers() | st.fractions())
def test_whole_numbers_become_integers(number: int | Fraction) -> None:
    """An exact literal is an integer if it can be one."""
    text = str(number) if isinstance(number, int) else f"{float(number):.20f}"
    assert isinstance(exact(text), int) == (Fraction(text).denominator == 1)


@given(st.floats(width=32, allow_nan=False, allow_infinity=False), st.integers(-3, 3))
def test_a_float_literal_is_rounded_once(near: float, steps: int) -> None:
    """The nearest 32-bit float of a decimal beside the middle of two, ties to the even one."""
    bits = struct.unpack("<i", struct.pack("<f", near))[0]
    if not 0 <= bits < 0x7F7FFFFE:
        return
    above = struct.unpack("<f", struct.pack("<i", bits + 1))[0]
    middle = (Fraction(near) + Fraction(above)) / 2
    number = middle + Fraction(steps, 2**1200)
    digits = 1210 if steps else 160
    text = f"{number.numerator * 10**digits // number.denominator:0{digits + 1}d}"
    text = f"{text[:-digits]}.{text[-digits:]}"
    wanted = near if steps < 0 or (steps == 0 and not bits & 1) else above
    assert single_literal(text) == wanted


def test_too_large_numbers_are_infinite() -> None:
    """Overflow of the field's range is no error (spec §7.10(2))."""
    assert single_literal("1e39") == math.inf
    assert single_literal("-1e300") == -math.inf
    assert single_literal("9" * 400) == math.inf
    assert double(10**400) == math.inf
    assert double(-(10**400)) == -math.inf
    assert single(1e39) == math.inf


def test_times_compare_to_the_nanosecond() -> None:
    """Text and datetime give the same number; offsets are applied; negative durations too."""
    assert timestamp("1970-01-01T00:00:00.000000001Z") == 1
    assert timestamp("1969-12-31T23:59:59.999999999Z") == -1
    assert timestamp("1970-01-01T01:00:00+01:00") == 0
    assert timestamp("yesterday") is None
    assert moment(datetime(1970, 1, 2, 0, 0, 0, 5, tzinfo=UTC)) == 86_400 * 10**9 + 5_000
    assert duration("-0.5s") == -500_000_000
    assert duration("1.000000001s") == 1_000_000_001
    assert duration("5") is None
    assert duration("9" * 8000 + "s") is None


def pattern(text: str) -> Pattern:
    """The pattern in which every star is a wildcard."""
    stars = tuple(index for index, char in enumerate(text) if char == "*")
    return Pattern.of(Member((Part(text, True, stars),)))


@given(st.text("ab*", max_size=10), st.text("ab", max_size=12))
def test_patterns_match_as_the_regular_expression_does(written: str, text: str) -> None:
    """A star is any run of characters, everything else itself."""
    expression = ".*".join(map(re.escape, written.split("*")))
    assert pattern(written).matches(text) == bool(re.fullmatch(expression, text))
    assert pattern(written).occurs_in(text) == bool(re.search(expression, text))


@given(st.text("ab*", max_size=5), st.lists(st.text("ab", max_size=4), min_size=1, max_size=5))
def test_a_search_stays_within_one_string(written: str, strings: list[str]) -> None:
    """Joined strings are searched as if one after the other."""
    found = any(pattern(written).occurs_in(text) for text in strings)
    assert pattern(written).occurs_in(SEPARATOR.join(strings)) == found


def test_an_escaped_star_is_a_star() -> None:
    """Only the stars that are marked as wildcards are."""
    plain = Pattern.of(Member((Part("a*b*", True, (3,)),)))
    assert plain.matches("a*b!")
    assert not plain.matches("axb!")


def test_many_stars_take_one_pass() -> None:
    """What would take a backtracking matcher for ever is answered at once."""
    text = "a" * 100_000
    assert not pattern("*a" * 4000 + "*b").matches(text)
    assert not pattern("*" * 8000 + "b").matches(text)
    assert not pattern("a*" * 4000 + "b").occurs_in(text)
    assert pattern("a*" * 4000 + "a").matches(text)
