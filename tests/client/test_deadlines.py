"""Deadlines are hard, whatever a server does on a real socket (spec §11.4)."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
import respx

import lro
from lro_client import NO_RETRY, CallError, ClientError, Polling, PollTimeout
from lro_client._flow import drivers
from tests.client.faces import Clock, Face
from tests.client.messages import NAME, TYPES, reply, running, succeeded
from tests.client.overshoot import Case, cases, main
from tests.client.simulation import Simulation, call_error
from tests.client.sockets import (
    Behaviour,
    answering,
    closing,
    closing_later,
    cutting,
    dripping_body,
    dripping_chunks,
    dripping_headers,
    resetting,
    serving,
    silent,
)

SLACK = 20.0
"""Within 50 ms by the specification; a loaded machine may need more.

None of these servers ends by itself.
"""

BEHAVIOURS = {
    "never answers": silent,
    "drips headers": dripping_headers,
    "drips a body": dripping_body,
    "drips chunks": dripping_chunks,
    "503": answering("503 Service Unavailable"),
    "503, ask in an hour": answering("503 Service Unavailable\r\nRetry-After: 3600"),
    "429, by a proxy": answering("429 Too Many Requests", "<h1>429</h1>"),
    "closes at once": closing,
    "closes later": closing_later,
    "resets": resetting,
    "cuts a body": cutting,
    "not done": answering("200 OK", '{"name": "operations/abc"}'),
    "not done, ask in an hour": answering("200 OK\r\nRetry-After: 3600", '{"name": "x"}'),
}


def wait(face: Face, behave: Behaviour, timeout: float, **options: Any) -> tuple[Any, float]:
    """The error that a wait ends with, and the seconds that it took."""
    with serving(behave) as url:
        handle = face.client(url, **options).operation(NAME, **TYPES)
        began = time.perf_counter()
        with pytest.raises(ClientError) as caught:
            handle.result(timeout)
        return caught.value, time.perf_counter() - began


@pytest.mark.parametrize("timeout", [0.0, 0.1])
@pytest.mark.parametrize("behave", BEHAVIOURS.values(), ids=BEHAVIOURS)
def test_it_returns_in_time(behave: Behaviour, timeout: float, face: Face) -> None:
    """Neither too late nor too early, with what was seen, and without cancelling anything."""
    error, took = wait(face, behave, timeout)
    assert isinstance(error, PollTimeout)
    assert timeout - 0.001 <= took <= timeout + SLACK
    assert (error.name, error.timeout) == (NAME, timeout)
    assert error.polls >= 1


def case_name(case: Case) -> str:
    """The name of a case."""
    many = "many" if case.many else "one"
    return f"{case.scenario}-{case.transport}-{case.face}-{many}"


ENDS_BEFORE = {"a gzip bomb", "redirects for ever"}
"""What is no reason to wait until the deadline."""


@pytest.mark.parametrize(
    "case",
    [case for case in cases() if case.many or case.scenario not in BEHAVIOURS],
    ids=case_name,
)
def test_no_fault_outlasts_the_deadline(case: Case) -> None:
    """Over both transports, for one operation and for many, and for those who wait again."""
    for late in case.measure(0.1):
        assert late <= SLACK * 1000
        assert late >= -1 or case.scenario in ENDS_BEFORE


def test_the_table_of_overshoots(capsys: pytest.CaptureFixture[str]) -> None:
    """The long form says by how many milliseconds."""
    main(["--rounds", "1", "--only", "closes at once"])
    first, *rows, worst = capsys.readouterr().out.splitlines()
    assert first.startswith("scenario")
    assert len(rows) == 4
    assert worst.startswith(f"the worst of {len(rows)} cases: ")


@pytest.mark.parametrize("behave", [silent, dripping_body])
def test_a_wait_in_flight_is_cut(behave: Behaviour, face: Face) -> None:
    """So is a call that the server was asked to hold."""
    error, took = wait(face, behave, 0.5)
    assert isinstance(error, PollTimeout)
    assert took <= 0.5 + SLACK
    assert error.last_error is not None
    assert error.last_error.verb == "WaitOperation"
    assert error.last_error.code is lro.Code.DEADLINE_EXCEEDED


@pytest.mark.parametrize("behave", [silent, dripping_body, dripping_chunks])
def test_a_single_call_is_bounded(behave: Behaviour, face: Face) -> None:
    """Without a deadline each call has a bound of its own, for its body, too."""
    with serving(behave) as url:
        client = face.client(url, call_seconds=0.2)
        began = time.perf_counter()
        with pytest.raises(CallError) as caught:
            client.get(NAME)
        assert time.perf_counter() - began <= 0.2 + SLACK
        assert caught.value.code is lro.Code.DEADLINE_EXCEEDED


def test_what_is_left_behind_ends(face: Face) -> None:
    """A call that was given up at the deadline does not go on for ever."""
    with serving(dripping_body) as url:
        with pytest.raises(PollTimeout):
            face.client(url).operation(NAME, **TYPES).result(0.1)
        calls = [one for one in threading.enumerate() if one.name == "lro-client-call"]
        for call in calls:
            call.join(120)
        assert not any(call.is_alive() for call in calls)


def test_the_error_has_what_is_needed_to_go_on(
    face: Face, server: respx.Router, clock: Clock
) -> None:
    """The last state, the number of polls, the name; waiting again is possible."""
    state = running(60)
    route = server.get().mock(side_effect=lambda _: reply(state))
    client = face.client(clock=clock, polling=Polling(wait_first=False))
    handle = client.operation(NAME, **TYPES)
    with pytest.raises(PollTimeout, match=r"was not done within 0\.1 s and \d+ polls?$") as caught:
        handle.wait(0.1)
    error = caught.value
    assert error.operation is not None
    assert error.operation.metadata is not None
    assert error.last_error is None
    assert error.polls == route.call_count
    assert {call.request.method for call in server.calls} == {"GET"}
    state = succeeded()
    assert handle.result(0.1).size_bytes == 7


@pytest.mark.parametrize("wait_first", [False, True])
def test_a_timeout_of_zero_is_one_poll(
    wait_first: bool, face: Face, server: respx.Router, clock: Clock
) -> None:
    """It looks once, pausing nowhere; an operation that is done is a result."""
    route = server.get().mock(side_effect=[reply(running()), reply(succeeded())])
    client = face.client(clock=clock, polling=Polling(wait_first=wait_first))
    handle = client.operation(NAME, **TYPES)
    with pytest.raises(PollTimeout) as caught:
        handle.result(0)
    assert (caught.value.polls, route.call_count, clock.sleeps) == (1, 1, [])
    assert handle.result(0).size_bytes == 7


def test_a_negative_timeout_is_over_at_once() -> None:
    """It is no error, and no reason to wait."""
    simulation = Simulation(ends_at=9)
    with pytest.raises(PollTimeout):
        simulation.wait(Polling(), -5)
    assert len(simulation.asked) == 1
    assert simulation.pauses == []


def test_no_timeout_is_not_a_timeout() -> None:
    """Without one there is no hidden total."""
    simulation = Simulation(ends_at=86400)
    assert simulation.wait(Polling(jitter=0.0)).done


def test_a_pause_ends_at_the_deadline() -> None:
    """There one last poll is made, which may find the end."""
    simulation = Simulation(ends_at=9.99)
    assert simulation.wait(Polling(jitter=0.0, wait_first=False), 10).done
    assert simulation.now == pytest.approx(10)


def test_a_final_failure_at_the_deadline() -> None:
    """A failure that does not pass is raised, rather than the deadline."""
    simulation = Simulation(ends_at=9, fault=lambda _: call_error(lro.Code.PERMISSION_DENIED))
    with pytest.raises(CallError, match="PERMISSION_DENIED"):
        simulation.wait(Polling(), 0)


def test_a_poll_cut_by_the_deadline() -> None:
    """With the strictest policy, too, the deadline is raised instead of the cut call."""
    cut = call_error(lro.Code.DEADLINE_EXCEEDED, passing=True)
    strict = Polling(wait_first=False, retry=NO_RETRY)
    simulation = Simulation(ends_at=9, latency=1.03, fault=lambda _: cut)
    with pytest.raises(PollTimeout) as caught:
        simulation.wait(strict, 1)
    assert caught.value.last_error is cut


@pytest.fixture(autouse=True)
def no_thread_is_left(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What a deadline leaves behind ends with the connection."""
    monkeypatch.setattr(drivers, "MAX_IDLE_THREADS", 0)
    before = {*threading.enumerate()}
    yield
    for one in {*threading.enumerate()} - before:
        if one.name == "lro-client-call" and one.ident is not None:  # else it begins only now
            one.join(120)
            assert not one.is_alive()


@pytest.mark.parametrize("seconds", [1e10, 1e300])
def test_a_call_may_take_longer_than_clocks_reach(seconds: float, face: Face) -> None:
    """It is as a call of three years."""
    with serving(answering("404 Not Found", "{}")) as url:
        client = face.client(url, call_seconds=seconds, retry=NO_RETRY)
        with pytest.raises(CallError) as caught:
            client.get(NAME)
    assert caught.value.http_status == 404
