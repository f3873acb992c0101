"""What a literal says: numbers, times, durations, and text with wildcards (spec §7.10, §7.11).

Times and durations are whole numbers of nanoseconds here, so that they compare exactly.
"""

from __future__ import annotations

import math
import re
import struct
from datetime import datetime
from fractions import Fraction
from typing import Final

import attrs

from lro._base.errors import InvalidArgument
from lro._filters.tree import Member
from lro._messages.times import Duration, Timestamp, parse_duration, parse_timestamp

MAX_NUMBER_LENGTH: Final = 400
MAX_EXPONENT: Final = 308
SEPARATOR: Final = "\ud800"
"""Joins the strings that are searched: a lone surrogate, which no pattern can hold."""

_NUMBER: Final = re.compile(r"-?[0-9]+(?:\.[0-9]+)?(?:[eE]([+-]?[0-9]+))?")
_NANO: Final = 10**9


def is_number(text: str) -> bool:
    """True for a number by spec §7.10(2), within its limits."""
    match = _NUMBER.fullmatch(text) if len(text) <= MAX_NUMBER_LENGTH else None
    return match is not None and abs(int(match[1] or 0)) <= MAX_EXPONENT


def exact(text: str) -> int | Fraction:
    """The number, exactly. Its size is bounded by that of :func:`is_number`."""
    number = Fraction(text)
    return number.numerator if number.denominator == 1 else number


def double(number: float | Fraction) -> float:
    """A number as a 64-bit float; infinite where it is too large for one."""
    try:
        return float(number)
    except OverflowError:
        return math.inf if number > 0 else -math.inf


def single(number: float) -> float:
    """The 32-bit float nearest to a 64-bit one."""
    try:
        rounded: float = struct.unpack("<f", struct.pack("<f", number))[0]
    except OverflowError:
        return math.inf if number > 0 else -math.inf
    return rounded


def single_literal(text: str) -> float:
    """The 32-bit float nearest to a number, rounded once.

    Rounding to 64 bits on the way could land on the middle between two floats and then go the
    wrong way. So the way goes by round-to-odd: an inexact 64-bit value takes the neighbour with
    an odd last bit, which is never such a middle.
    """
    near = float(text)
    number = Fraction(text)
    if math.isfinite(near) and Fraction(near) != number:
        bits: int = struct.unpack("<q", struct.pack("<d", near))[0]
        if not bits & 1:
            near = math.nextafter(near, math.inf if number > near else -math.inf)
    return single(near)


def duration(text: str) -> int | None:
    """The nanoseconds of a duration's JSON form, or None if it is none (spec §1.11)."""
    try:
        return _nanoseconds(parse_duration(text))
    except InvalidArgument:
        return None


def timestamp(text: str) -> int | None:
    """The nanoseconds since 1970 of a timestamp's JSON form, or None (spec §1.12)."""
    try:
        return _nanoseconds(parse_timestamp(text))
    except InvalidArgument:
        return None


def moment(value: datetime) -> int:
    """The nanoseconds since 1970 of an aware datetime."""
    return _nanoseconds(Timestamp.from_datetime(value))


def _nanoseconds(value: Duration | Timestamp) -> int:
    return value.seconds * _NANO + value.nanos


@attrs.frozen
class Pattern:
    """Text with wildcards: what stands before, between and after the stars."""

    pieces: tuple[str, ...]

    @classmethod
    def of(cls, literal: Member) -> Pattern:
        """The pattern that a literal writes; without stars it is one piece."""
        text, pieces, start = literal.text, [], 0
        for star in literal.stars:
            pieces.append(text[start:star])
            start = star + 1
        return cls((*pieces, text[start:]))

    def for_search(self) -> Pattern:
        """The pattern for :meth:`occurs_in` and text whose letter case was folded away."""
        return Pattern(tuple(piece.casefold() for piece in self.pieces if piece) or ("",))

    def matches(self, text: str) -> bool:
        """True if the whole text matches. Takes one pass: each piece at its first place."""
        head, *middle = self.pieces
        if not middle:
            return text == head
        tail = middle.pop()
        end = len(text) - len(tail)
        if len(head) > end or not text.startswith(head) or not text.endswith(tail):
            return False
        return _in_order(middle, text, len(head), end)

    def occurs_in(self, joined: str) -> bool:
        """True if some part of one of the strings matches, which are joined by SEPARATOR."""
        head, *rest = self.pieces
        start = joined.find(head)
        while rest and start >= 0:
            end = joined.find(SEPARATOR, start)
            end = len(joined) if end < 0 else end
            if _in_order(rest, joined, start + len(head), end):
                return True
            # Further on in the same string less would follow; and in a string that has not the next
            # piece there is no need to look for the first one.
            following = joined.find(rest[0], end + 1)
            if following < 0:
                return False
            start = joined.find(head, joined.rfind(SEPARATOR, end, following) + 1)
        return start >= 0


def _in_order(pieces: list[str], text: str, at: int, end: int) -> bool:
    for piece in pieces:
        at = text.find(piece, at, end)
        if at < 0:
            return False
        at += len(piece)
    return True
