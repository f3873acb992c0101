"""Durations and timestamps, exact to the nanosecond, and their JSON forms (spec §1.11, §1.12)."""

from __future__ import annotations

import functools
import re
from datetime import UTC, datetime, timedelta
from typing import Final

import attrs

from lro._base.by_fields import ByFields
from lro._base.errors import InvalidArgument
from lro._base.status import named

_NANO: Final = 1_000_000_000
_MAX_SECONDS: Final = 315_576_000_000
_MIN_TIME: Final = -62_135_596_800
_MAX_TIME: Final = 253_402_300_799
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_TWO: Final = tuple(f"{number:02}" for number in range(60))
"""The texts ``00`` to ``59``, for formatting in half the time of ``datetime.isoformat``."""
_DURATION: Final = re.compile(r"(-?)([0-9]+)(?:\.([0-9]{1,9}))?s", re.ASCII)
_PLAIN_MOMENT: Final = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(?:\.[0-9]{3}(?:[0-9]{3})?)?Z", re.ASCII
)
"""Matches timestamps in this module's form, which the standard library reads correctly."""
_TIMESTAMP: Final = re.compile(
    r"([0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2})(?:\.([0-9]{1,9}))?"
    r"(?:Z|([+-])([0-9]{2}):([0-9]{2}))",
    re.ASCII,
)


@functools.total_ordering
class _Ordered(ByFields):
    __slots__ = ()
    seconds: int
    nanos: int

    def __lt__(self, other: object) -> bool:
        if not isinstance(other, self.__class__):
            return NotImplemented
        return (self.seconds, self.nanos) < (other.seconds, other.nanos)


@named("google.protobuf.Duration")
@attrs.frozen(eq=False, repr=False)
class Duration(_Ordered):
    """``google.protobuf.Duration``: a span of time. It is validated when it is used.

    ``seconds`` and ``nanos`` have the same sign; see :attr:`valid` (spec §1.11(1)).
    """

    seconds: int = 0
    nanos: int = 0

    @property
    def valid(self) -> bool:
        """True if the range and sign rules hold."""
        in_range = abs(self.seconds) <= _MAX_SECONDS and abs(self.nanos) < _NANO
        return in_range and not (self.seconds * self.nanos < 0)

    @property
    def total_seconds(self) -> float:
        """The span in seconds, as a float."""
        return self.seconds + self.nanos / _NANO

    def to_timedelta(self) -> timedelta:
        """Return the span as a timedelta, cut to whole microseconds (towards zero)."""
        micros = abs(self.nanos) // 1000
        return timedelta(seconds=self.seconds, microseconds=micros if self.nanos >= 0 else -micros)

    @classmethod
    def from_timedelta(cls, span: timedelta) -> Duration:
        """Make a Duration that exactly equals a timedelta."""
        micros = span // timedelta(microseconds=1)
        sign = -1 if micros < 0 else 1
        seconds, rest = divmod(abs(micros), 1_000_000)
        return cls(sign * seconds, sign * rest * 1000)


@named("google.protobuf.Timestamp")
@attrs.frozen(eq=False, repr=False)
class Timestamp(_Ordered):
    """``google.protobuf.Timestamp``: seconds since 1970 in UTC, and non-negative nanoseconds."""

    seconds: int = 0
    nanos: int = 0

    @property
    def valid(self) -> bool:
        """True if the time is in the years 1 to 9999 and ``nanos`` is from 0 to 999,999,999."""
        return _MIN_TIME <= self.seconds <= _MAX_TIME and 0 <= self.nanos < _NANO

    def to_datetime(self) -> datetime:
        """Return the time as a datetime in UTC, cut to whole microseconds."""
        return _EPOCH + timedelta(seconds=self.seconds, microseconds=self.nanos // 1000)

    @classmethod
    def from_datetime(cls, moment: datetime) -> Timestamp:
        """Make a Timestamp that exactly equals a datetime with a time zone.

        Raises:
            ValueError: The datetime has no time zone.
        """
        if moment.tzinfo is None:
            raise ValueError(f"{moment!r} has no time zone; use datetime.now(UTC)")
        micros = (moment - _EPOCH) // timedelta(microseconds=1)
        seconds, rest = divmod(micros, 1_000_000)
        return cls(seconds, rest * 1000)


def duration_text(span: Duration) -> str:
    """Return the JSON form, for example ``1.500s``, with 0, 3, 6 or 9 decimals, as needed.

    Raises:
        ValueError: The duration is not valid.
    """
    if not span.valid:
        raise ValueError(f"{span.seconds} s and {span.nanos} ns are not a valid duration")
    sign = "-" if span.seconds < 0 or span.nanos < 0 else ""
    return f"{sign}{abs(span.seconds)}{_fraction(abs(span.nanos))}s"


def parse_duration(value: object) -> Duration:
    """Read the JSON form of a duration.

    Raises:
        InvalidArgument: The value is not a string of this form, or is out of range.
    """
    found = _DURATION.fullmatch(value) if isinstance(value, str) else None
    if found is None:
        raise InvalidArgument("", f"must be a duration such as '1.5s', got {_short(value)}")
    sign = -1 if found[1] else 1
    # Numbers over 12 digits are out of range, and int() of thousands of digits is slow or fails.
    whole = found[2].lstrip("0") or "0"
    seconds = int(whole) if len(whole) <= 12 else _MAX_SECONDS + 1
    span = Duration(sign * seconds, sign * _nanos(found[3]))
    if not span.valid:
        raise InvalidArgument("", f"must be within 315576000000 s, got {_short(value)}")
    return span


def timestamp_text(moment: Timestamp) -> str:
    """Return the JSON form in UTC, for example ``2030-01-02T03:04:05.678Z``.

    Raises:
        ValueError: The timestamp is not valid.
    """
    if not moment.valid:
        raise ValueError(f"{moment.seconds} s and {moment.nanos} ns are not a valid timestamp")
    whole = (_EPOCH + timedelta(seconds=moment.seconds)).isoformat()[:-6]
    return f"{whole}{_fraction(moment.nanos)}Z"


def datetime_text(moment: datetime) -> str:
    """Return the JSON form of a datetime with a time zone, always in UTC.

    Raises:
        ValueError: The datetime has no time zone.
    """
    if moment.tzinfo is not UTC:
        if moment.tzinfo is None:
            raise ValueError(f"{moment!r} has no time zone; use datetime.now(UTC)")
        moment = moment.astimezone(UTC)
    year, micros = moment.year, moment.microsecond
    fraction = ""
    if micros:
        fraction = f".{micros:06}" if micros % 1000 else f".{micros // 1000:03}"
    return (
        f"{year if year > 999 else f'{year:04}'}-{_TWO[moment.month]}-{_TWO[moment.day]}"
        f"T{_TWO[moment.hour]}:{_TWO[moment.minute]}:{_TWO[moment.second]}{fraction}Z"
    )


def parse_timestamp(value: object) -> Timestamp:
    """Read the JSON form of a timestamp.

    Raises:
        InvalidArgument: The value is not a string of this form, not a date, or out of range.
    """
    found = _TIMESTAMP.fullmatch(value) if isinstance(value, str) else None
    if found is None:
        wanted = "must be a timestamp such as '2030-01-02T03:04:05Z'"
        raise InvalidArgument("", f"{wanted}, got {_short(value)}")
    try:
        local = datetime.fromisoformat(found[1]).replace(tzinfo=UTC)
    except ValueError as exc:
        raise InvalidArgument("", f"is not a valid timestamp: {exc}, got {_short(value)}") from None
    hours, minutes = int(found[4] or 0), int(found[5] or 0)
    if hours > 23 or minutes > 59:
        raise InvalidArgument("", f"has an impossible offset, got {_short(value)}")
    offset = (hours * 3600 + minutes * 60) * (-1 if found[3] == "-" else 1)
    seconds = (local - _EPOCH) // timedelta(seconds=1) - offset
    moment = Timestamp(seconds, _nanos(found[2]))
    if not moment.valid:
        raise InvalidArgument("", f"must be in the years 1 to 9999 UTC, got {_short(value)}")
    return moment


def parse_datetime(value: object) -> datetime:
    """Read the JSON form of a timestamp as a datetime in UTC, cut to whole microseconds.

    Raises:
        InvalidArgument: As for :func:`parse_timestamp`.
    """
    if isinstance(value, str) and _PLAIN_MOMENT.fullmatch(value):
        try:
            return datetime.fromisoformat(value)
        except ValueError:
            pass  # an invalid day or hour: the error is raised below
    return parse_timestamp(value).to_datetime()


def _fraction(nanos: int) -> str:
    if not nanos:
        return ""
    digits = f"{nanos:09d}"
    if digits.endswith("000000"):
        return "." + digits[:3]
    return "." + (digits[:6] if digits.endswith("000") else digits)


def _nanos(digits: str | None) -> int:
    return int(digits.ljust(9, "0")) if digits else 0


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
