"""Durations and timestamps: the cases in the vectors, and further cases."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lro import Duration, InvalidArgument, Timestamp
from lro._messages.times import (
    datetime_text,
    duration_text,
    parse_datetime,
    parse_timestamp,
    timestamp_text,
)
from lro.wire import parse_duration
from tests.vector_files import by_id, vectors

CASES = vectors("duration_timestamp_json")["cases"]
KINDS = {
    "Duration": (Duration, parse_duration, duration_text),
    "Timestamp": (Timestamp, parse_timestamp, timestamp_text),
}


def cases(*modes):
    return pytest.mark.parametrize("case", [c for c in CASES if c["mode"] in modes], ids=by_id)


@cases("roundtrip", "parse")
def test_times_are_read_from_json(case):
    """A duration or timestamp in JSON is read as the seconds and nanoseconds of the case."""
    cls, parse, _ = KINDS[case["type"]]
    assert parse(case.get("input", case["json"])) == cls(case["seconds"], case["nanos"])


@cases("roundtrip", "parse", "print")
def test_times_are_written_as_json(case):
    cls, _, text = KINDS[case["type"]]
    assert text(cls(case["seconds"], case["nanos"])) == case["json"]


@cases("parse_error")
def test_invalid_times_are_refused(case):
    """Reading an invalid duration or timestamp fails with an error that quotes the text."""
    with pytest.raises(InvalidArgument, match="got"):
        KINDS[case["type"]][1](case["input"])


@cases("print_error")
def test_times_out_of_range_are_not_printed(case):
    """Writing a duration or timestamp that is out of range raises an error."""
    cls, _, text = KINDS[case["type"]]
    with pytest.raises(ValueError, match="not a valid"):
        text(cls(case["seconds"], case["nanos"]))


def test_every_mode_of_the_vectors_is_used():
    """Each mode in the file of vectors is handled in this module."""
    modes = {"roundtrip", "parse", "print", "parse_error", "print_error"}
    assert {case["mode"] for case in CASES} == modes


@given(st.timedeltas(timedelta(days=-3_652_500), timedelta(days=3_652_500)))
def test_timedeltas_survive_a_round_trip(span):
    """A timedelta is unchanged after a round trip through Duration and its JSON form."""
    assert parse_duration(duration_text(Duration.from_timedelta(span))).to_timedelta() == span


MOMENTS = st.datetimes(timezones=st.just(UTC))


@given(MOMENTS)
def test_datetimes_survive_a_round_trip(moment):
    """A datetime is unchanged after a round trip through its JSON form; both printers agree."""
    text = timestamp_text(Timestamp.from_datetime(moment))
    assert text == datetime_text(moment)
    assert parse_datetime(text) == moment


@given(st.integers(-62_135_596_800, 253_402_300_799), st.integers(0, 999_999_999))
def test_every_valid_timestamp_survives(seconds, nanos):
    """A valid timestamp is written and read again without losing a nanosecond."""
    moment = Timestamp(seconds, nanos)
    assert moment.valid
    assert parse_timestamp(timestamp_text(moment)) == moment


def test_other_offsets_print_as_utc():
    """A timestamp with another UTC offset is written in UTC, ending in Z (spec §1.12)."""
    india = timezone(timedelta(hours=5, minutes=30))
    assert datetime_text(datetime(2030, 1, 1, 5, 30, tzinfo=india)) == "2030-01-01T00:00:00Z"
    milliseconds = datetime(2030, 1, 1, 5, 30, 0, 1000, tzinfo=india)
    assert datetime_text(milliseconds) == "2030-01-01T00:00:00.001Z"


@pytest.mark.parametrize("convert", [datetime_text, Timestamp.from_datetime])
def test_a_naive_datetime_is_refused(convert):
    """A datetime without a time zone is refused; the error says what to use instead."""
    with pytest.raises(ValueError, match=r"use datetime\.now\(UTC\)"):
        convert(datetime(2030, 1, 1))


@pytest.mark.parametrize("cls", [Duration, Timestamp])
def test_times_are_in_order_of_seconds_and_nanoseconds(cls):
    """Times of one class have an order, as numbers have; a duration and a timestamp have none."""
    early, later, late = cls(-1, 5), cls(1, 2), cls(1, 3)
    assert sorted([late, early, later]) == [early, later, late]
    assert early < later <= later < late
    assert late > later >= later > early
    other = Duration if cls is Timestamp else Timestamp
    with pytest.raises(TypeError):
        _ = early < other(1)
    with pytest.raises(TypeError):
        _ = late >= other(1)


def test_nanoseconds_are_cut_to_microseconds():
    """Digits beyond microseconds are cut off: a duration towards zero, a timestamp downwards."""
    assert Duration(1, 999_999_999).to_timedelta() == timedelta(seconds=1, microseconds=999_999)
    assert Duration(0, -1_999).to_timedelta() == timedelta(microseconds=-1)
    moment = Timestamp(-1, 999_999_999).to_datetime()
    assert moment == datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC)
    assert Duration(1, 500_000_000).total_seconds == 1.5


def test_long_input_is_shortened_in_the_error():
    """The error about a text of a million characters does not repeat the whole text."""
    for parse in (parse_duration, parse_timestamp):
        with pytest.raises(InvalidArgument) as caught:
            parse("9" * 1_000_000)
        assert len(caught.value.description) < 200


@pytest.mark.parametrize("digits", ["0" * 5000 + "1", "9" * 5000])
def test_duration_of_thousands_of_digits_is_read_or_refused(digits):
    """A duration may have thousands of leading zeros, but not thousands of other digits."""
    try:
        found = parse_duration(digits + "s")
    except InvalidArgument as exc:
        assert "within 315576000000 s" in exc.description
    else:
        assert found == Duration(1, 0)
