"""Failed polls: temporary failures are retried, and all others raised (spec §11.5(2), (3))."""

from __future__ import annotations

import functools

import httpx
import pytest
import respx
from hypothesis import given
from hypothesis import strategies as st

import lro
from lro_client import CallError, OperationGone, Polling, PollTimeout, Retry
from lro_client.waits import wait_exponential
from tests.client.faces import Clock, Face
from tests.client.messages import (
    NAME,
    TYPES,
    ResizeResponse,
    page_of_a_proxy,
    refusal,
    reply,
    running,
    succeeded,
)
from tests.client.simulation import Simulation, call_error

PLAIN = Polling(jitter=0.0, wait_first=False)
JSON = {"content-type": "application/json; charset=utf-8"}
WHOLE = b'{"name": "operations/abc", "done": true}'

PASSING = {
    **{f"page {http}": page_of_a_proxy(http) for http in (408, 429, 500, 502, 503, 504)},
    **{
        code.name: refusal(code)
        for code in (
            lro.Code.UNAVAILABLE,
            lro.Code.DEADLINE_EXCEEDED,
            lro.Code.RESOURCE_EXHAUSTED,
            lro.Code.INTERNAL,
        )
    },
    "cut reply": httpx.Response(200, content=WHOLE[:-5], headers=JSON),
    "empty reply": httpx.Response(200, content=b"", headers=JSON),
    "cut error": httpx.Response(503, content=b'{"error": {"code"', headers=JSON),
    "empty error": httpx.Response(502),
    "refused": httpx.ConnectError("refused"),
    "slow to connect": httpx.ConnectTimeout("slow"),
    "reset": httpx.ReadError("reset"),
    "disconnected": httpx.RemoteProtocolError("disconnected"),
    "slow": httpx.ReadTimeout("slow"),
    "spoilt": httpx.DecodingError("bad gzip"),
}


@pytest.mark.parametrize("wait_first", [False, True])
def test_retryable_fault_of_a_poll_is_polled_again(
    wait_first: bool, face: Face, clock: Clock, server: respx.Router
) -> None:
    """A poll that fails temporarily is repeated after a delay, and the caller gets the result."""
    client = face.client(clock=clock, polling=Polling(wait_first=wait_first))
    for kind, fault in PASSING.items():
        server.route().mock(side_effect=[fault, fault, reply(succeeded())])
        clock.sleeps.clear()
        assert client.operation(NAME, **TYPES).result() == ResizeResponse(size_bytes=7), kind
        # An empty reply to a Wait does not count as a failure, but is checked by a Get.
        nonsense = wait_first and kind == "empty reply"
        assert clock.sleeps == ([0.5] if nonsense else [0.5, 1.0]), kind
        if nonsense:  # the client has stopped using Wait
            client = face.client(clock=clock, polling=Polling(wait_first=wait_first))


FINAL = {
    **{
        code.name: refusal(code)
        for code in lro.Code
        if code.name not in (*PASSING, "OK", "NOT_FOUND")
    },
    **{f"page {http}": page_of_a_proxy(http) for http in (302, 400, 401, 403, 407, 410, 501, 505)},
    "login page": httpx.Response(200, html="<form>"),
    "no operation": reply([]),
    "redirect loop": httpx.TooManyRedirects("loop"),
    "no scheme": httpx.UnsupportedProtocol("no scheme"),
}
del FINAL["page 505"]  # counts as INTERNAL (spec §11.8(2)), which is retried


def test_final_fault_of_a_poll_is_raised_at_once(
    face: Face, clock: Clock, server: respx.Router
) -> None:
    handle = face.client(clock=clock, polling=PLAIN).operation(NAME, **TYPES)
    for number, (kind, fault) in enumerate(FINAL.items(), 1):
        route = server.get().mock(side_effect=[fault])
        with pytest.raises(CallError):
            handle.result()
        assert (route.call_count, clock.sleeps) == (number, []), kind


def failing(*moments: tuple[float, float], error: CallError | None = None) -> Simulation:
    """Simulate an operation of one hour, whose server fails during these spans of time."""
    fault = error or call_error(lro.Code.UNAVAILABLE)

    def away(now: float) -> CallError | None:
        return fault if any(since <= now < until for since, until in moments) else None

    return Simulation(ends_at=3600, fault=away)


def test_failures_for_ten_minutes_end_the_wait() -> None:
    """Ten minutes after the first failure in a row, the wait raises the last failure."""
    for since, slack in ((300, 30), (0, 10)):
        simulation = failing((since, 9999))
        with pytest.raises(CallError) as caught:
            simulation.wait(PLAIN)
        assert caught.value.code is lro.Code.UNAVAILABLE
        assert since + 600 <= simulation.now < since + 600 + slack
    busy = failing((0, 9999), error=call_error(lro.Code.UNAVAILABLE, retry_after=99_999.0))
    with pytest.raises(CallError):
        busy.wait(PLAIN)
    assert (busy.now, busy.pauses) == (600, [600.0])
    stranger = failing((0, 9999), error=call_error(lro.Code.UNAVAILABLE, passing=True))
    with pytest.raises(CallError):
        stranger.wait(PLAIN)  # this server never replied, so the address may be wrong
    assert 60 <= stranger.now < 70
    assert simulation.pauses[:6] == [0.5, 1.0, 2.0, 4.0, 8.0, 10.0]
    assert set(simulation.pauses[5:]) == {10.0}
    retry = Retry(attempts=None, patience_seconds=5.0)  # the policy allows only 5 s of failures
    with pytest.raises(CallError):
        (simulation := failing((0, 9999))).wait(Polling(wait_first=False, retry=retry))
    assert simulation.pauses == [0.5, 1.0, 2.0, 4.0]


def test_a_good_reply_resets_the_failures() -> None:
    """After a good reply, the ten minutes and the delays start again."""
    away = [(float(n), n + 400.0) for n in range(0, 3600, 450)]
    simulation = failing(*away)
    assert simulation.wait(PLAIN).done
    assert simulation.pauses.count(0.5) == len(away)


def test_policy_can_limit_the_failures_in_a_row() -> None:
    """A policy can limit the number of failures in a row; a good reply resets the count."""
    faults = [call_error(lro.Code.UNAVAILABLE)] * 4 + [None] + [call_error(lro.Code.ABORTED)] * 2
    simulation = Simulation(ends_at=3600, fault=lambda _: faults.pop())
    retry = Retry(
        codes=frozenset({lro.Code.UNAVAILABLE, lro.Code.ABORTED}),
        wait=wait_exponential(1.0, 1.0),
        attempts=3,
    )
    with pytest.raises(CallError) as caught:
        simulation.wait(Polling(jitter=0.0, wait_first=False, retry=retry))
    assert caught.value.code is lro.Code.UNAVAILABLE
    assert simulation.pauses == [1.0, 1.0, 0.5, 1.0, 1.0]
    assert len(faults) == 1


def test_failures_are_retried_until_the_deadline_of_the_wait() -> None:
    """A wait with a deadline retries failures until the deadline, even after ten minutes."""
    simulation = failing((5, 9999))
    with pytest.raises(PollTimeout) as caught:
        simulation.wait(PLAIN, 1800)
    assert simulation.now == pytest.approx(1800)
    error = caught.value
    assert error.last_error is not None
    assert error.last_error.code is lro.Code.UNAVAILABLE
    assert error.operation == lro.Operation(name=NAME)
    assert error.polls == len(simulation.asked)
    assert str(error) == (
        f"operations/abc was not done within 1800 s and {error.polls} polls; "
        "the last poll failed: GetOperation failed with UNAVAILABLE: no"
    )
    with pytest.raises(PollTimeout) as caught:
        failing((5, 50)).wait(PLAIN, 100)
    assert caught.value.last_error is None  # a good reply clears the error
    assert "failed" not in str(caught.value)


@given(st.floats(0, 3000), st.floats(0, 590))
def test_wait_continues_after_a_short_outage(since: float, length: float) -> None:
    """After an outage of less than ten minutes, the wait continues within one pause."""
    fault = call_error(lro.Code.INTERNAL)
    simulation = Simulation(
        ends_at=since, fault=lambda now: fault if since <= now < since + length else None
    )
    assert simulation.wait(PLAIN).done
    assert simulation.now <= since + max(length + 10.0, 20.0)


def test_error_page_of_a_proxy_is_retried_without_retryable_codes(
    face: Face, clock: Clock, server: respx.Router
) -> None:
    """A policy without retryable codes still retries a proxy's error page, but no other error."""
    answers = [refusal(lro.Code.INTERNAL), reply(running()), page_of_a_proxy(500)]
    server.get().mock(side_effect=lambda _: answers.pop())
    retry = Retry(codes=frozenset(), transport=True)
    polling = Polling(jitter=0.0, wait_first=False, retry=retry)
    with pytest.raises(CallError, match="INTERNAL"):
        face.client(clock=clock, polling=polling).operation(NAME, **TYPES).wait()
    assert clock.sleeps == [0.5, 0.125]


@pytest.mark.parametrize("wait_first", [False, True])
def test_not_found_just_after_the_start_is_polled_for_ten_seconds(
    wait_first: bool, face: Face, clock: Clock, server: respx.Router
) -> None:
    """Another replica may not know a new operation yet, so polls continue for 10 s (§11.5(2))."""
    known_at, said = clock.now + 1.0, []

    def answer(request: httpx.Request) -> httpx.Response:
        if request.url.path == "/v1/x:start":
            return reply(running())
        said.append(clock.now >= known_at)
        return reply(succeeded()) if said[-1] else refusal(lro.Code.NOT_FOUND, "was not found")

    server.route().mock(side_effect=answer)
    client = face.client(clock=clock, polling=Polling(wait_first=wait_first))
    begin = functools.partial(client.start, "/v1/x:start", {}, **TYPES)
    assert begin().result() == ResizeResponse(size_bytes=7)
    for verb in ("refresh", "cancel", "delete"):  # single calls, which have their own retries
        known_at = clock.now + 1.0
        getattr(begin(), verb)()
        with face.entering(begin()):
            known_at = clock.now + 1.0
        assert said[-1]
    known_at, began = clock.now + 99.0, clock.now
    with pytest.raises(CallError, match="NOT_FOUND"):  # there was no earlier attempt
        begin().delete()
    with pytest.raises(OperationGone):
        begin().result()
    assert 10 <= clock.now - began < 30
    with pytest.raises(OperationGone):  # another client started the operation
        client.operation("operations/other", **TYPES).result()
    known_at = clock.now
    begin().delete()
    known_at = began = clock.now + 99.0
    with pytest.raises(OperationGone):  # this client has seen the operation before
        client.operation(NAME, **TYPES).result()
    assert clock.now + 99.0 == began
