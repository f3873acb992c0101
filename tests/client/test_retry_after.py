"""Retry-After, the recommended polling interval: parsing and use (spec §11.3, §5.13)."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from email.utils import format_datetime

import httpx
import pytest
import respx
from hypothesis import given, settings
from hypothesis import strategies as st

import lro
from lro_client import Polling, Routes
from lro_client.transports import Call
from lro_client.transports._http_coding import HttpCoder
from tests.client.faces import Clock, Face
from tests.client.messages import NAME, TYPES, page_of_a_proxy, reply, running, succeeded
from tests.client.simulation import Simulation, call_error

NOW = datetime(2030, 5, 1, 12, 0, tzinfo=UTC)
CALL = Call(request=lro.wire.GetOperationRequest(NAME), budget=1.0)
CODER = HttpCoder(Routes(), lro.TypeRegistry(), now=NOW.timestamp)


def read(**headers: str) -> float | None:
    """Return the pause that the client reads from these headers at the time NOW."""
    answer = reply(running(), **headers)
    return CODER.decode(CALL, answer, answer.content).retry_after


def date(seconds: float) -> str:
    """Return the HTTP date of NOW plus this number of seconds."""
    return format_datetime(NOW + timedelta(seconds=seconds), usegmt=True)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("5", 5.0),
        (" 5 ", 5.0),
        ("005", 5.0),
        ("0", 0.0),
        ("86400", 86400.0),
        ("9" * 400, 1e9),
        (date(90), 90.0),
        (date(0), 0.0),
        (date(-90), -90.0),
        ("Fri, 31 Dec 9999 23:59:59 GMT", 1e9),
        (format_datetime((NOW + timedelta(seconds=9)).astimezone(timezone(timedelta(hours=2)))), 9),
        ("Wed, 01 May 2030 12:00:07 -0000", 7.0),
        ("Wed, 32 May 2030 12:00:00 GMT", None),
        *[(text, None) for text in ("", "-5", "+5", "1.5", "1e3", "5s", "5, 6", "soon")],
    ],
)
def test_retry_after_is_seconds_or_a_date(text: str, seconds: float | None) -> None:
    """A date in Retry-After is compared with the local clock; any other text is ignored."""
    assert read(retry_after=text) == seconds
    assert read() is None


@given(st.text(st.characters(min_codepoint=32, max_codepoint=255, exclude_characters="\x7f")))
def test_any_text_in_retry_after_is_accepted(text: str) -> None:
    answer = httpx.Response(200, json=running(), headers=[(b"retry-after", text.encode("latin-1"))])
    found = CODER.decode(CALL, answer, answer.content).retry_after
    assert found is None or found <= 1e9


@settings(max_examples=50)
@given(
    st.tuples(
        st.sampled_from(["Wed, ", ""]),
        st.integers(-5, 10**12).map(str),
        st.sampled_from([" May ", " Foo ", "-"]),
        st.integers(-1, 10**12).map(str),
        st.sampled_from([" 12:00:00", " 99:99", ""]),
        st.sampled_from([" GMT", " +9999", " -99999999", " EST", ""]),
    ).map("".join)
)
def test_impossible_dates_in_retry_after_are_ignored(text: str) -> None:
    """A date in Retry-After that does not exist is ignored."""
    found = read(retry_after=text)
    assert found is None or found <= 1e9


def test_retry_after_date_is_relative_to_the_date_header() -> None:
    """With a Date header, the clocks of client and server need not agree."""
    assert read(retry_after=date(3600 + 8), date=date(3600)) == 8.0
    assert read(retry_after=date(8), date="today") == 8.0


@pytest.mark.parametrize(
    ("headers", "pause"),
    [
        ({"retry_after": "7"}, 7.0),
        ({"retry_after": date(100 + 9), "date": date(100)}, 9.0),
        ({"retry_after": "0"}, 0.05),
        ({"retry_after": date(91), "date": date(100)}, 0.05),
        ({"retry_after": "soon"}, 0.05),
        ({"retry_after": "90"}, 30.0),
    ],
)
def test_retry_after_is_the_next_pause(
    headers: dict[str, str], pause: float, face: Face, clock: Clock, server: respx.Router
) -> None:
    """The next pause follows Retry-After, within the bounds of the policy."""
    answers = [reply(succeeded()), reply(running(), **headers)]
    server.get().mock(side_effect=lambda _: answers.pop())
    polling = Polling(wait_first=False, jitter=0.0, max_retry_after=30.0)
    face.client(clock=clock, polling=polling).operation(NAME, **TYPES).wait()
    assert clock.sleeps == [pause]


@pytest.mark.parametrize(("bound", "pause"), [(None, 600.0), (60.0, 60.0), (0.0, 0.5)])
def test_retry_after_of_a_failed_poll_is_bounded_too(
    bound: float | None, pause: float, face: Face, clock: Clock, server: respx.Router
) -> None:
    """The policy limits the pause that the reply to a failed poll asks for."""
    answers = [reply(succeeded()), page_of_a_proxy(503, retry_after="600")]
    server.get().mock(side_effect=lambda _: answers.pop())
    polling = Polling(wait_first=False, max_retry_after=bound)
    face.client(clock=clock, polling=polling).operation(NAME, **TYPES).wait()
    assert clock.sleeps == [pause]


def test_retry_after_replaces_one_pause_of_the_policy() -> None:
    """Retry-After replaces one pause. The proportional policy counts that time as elapsed."""
    fault = call_error(lro.Code.UNAVAILABLE, retry_after=80.0)
    simulation = Simulation(ends_at=101, fault=lambda now: fault if now == 0 else None)
    simulation.wait(Polling(wait_first=False, jitter=0.0))
    assert simulation.pauses == [80.0, 20.0, 20.0]
