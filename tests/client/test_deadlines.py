"""A wait ends at its deadline, whatever a server does on a real socket (spec §11.4)."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest
import respx

import lro
from lro_client import NO_RETRY, CallError, Client, Polling, PollTimeout
from lro_client._flow import drivers
from tests.client.faces import Clock, Face
from tests.client.messages import NAME, TYPES, reply, running, succeeded
from tests.client.overshoot import cases
from tests.client.simulation import Simulation, call_error
from tests.client.sockets import (
    Behaviour,
    answering,
    dripping_body,
    dripping_chunks,
    dripping_headers,
    hinting,
    serving,
    silent,
)
from tests.waiting import starved_seconds, until

SLACK = 4.5
"""Seconds by which a wait may be late here. Spec §11.4 allows 50 ms; a busy machine needs more.

None of these servers ends a wait itself. The client's pauses that do not depend on a deadline last
at least 5 s, so a wait that ignores its deadline is noticed.
"""

ENDS_BEFORE = {"a gzip bomb", "redirects for ever"}
"""Scenarios in which a wait may end before its deadline."""

LARGE = ("15 MiB, just in time", "a gzip bomb")
"""Scenarios that need much memory, and so run only in tests/full."""


@pytest.mark.parametrize(
    ("transport", "scenario"),
    dict.fromkeys((one.transport, one.scenario) for one in cases() if one.scenario not in LARGE),
)
def test_waits_end_at_their_deadline_whatever_the_fault(transport: str, scenario: str) -> None:
    """The first and second waits for an operation or a group end at their deadlines."""
    check_deadline(transport, scenario)


def check_deadline(transport: str, scenario: str) -> None:
    """Check that each wait of the scenario ends neither too early nor too late."""
    for case in cases(scenario):
        if (case.transport, case.scenario) == (transport, scenario):
            before = starved_seconds()
            for late in case.measure(0.1):
                assert late / 1000 <= SLACK + starved_seconds() - before, case
                assert late >= -1 or scenario in ENDS_BEFORE, case


@pytest.mark.parametrize("behave", [silent, dripping_body, dripping_chunks])
def test_held_wait_is_cut_at_the_deadline_and_get_after_call_seconds(
    behave: Behaviour, face: Face
) -> None:
    """A held Wait is cut at the deadline of the wait; a Get is cut after ``call_seconds``."""
    with serving(behave) as url:
        handle = face.client(url).operation(NAME, **TYPES)
        began, before = time.perf_counter(), starved_seconds()
        with pytest.raises(PollTimeout) as late:
            handle.result(0.5)
        took = time.perf_counter() - began
        assert 0.499 <= took <= 0.5 + SLACK + starved_seconds() - before
        error = late.value
        assert (error.name, error.timeout) == (NAME, 0.5)
        assert error.polls >= 1
        assert error.last_error is not None
        assert error.last_error.verb == "WaitOperation"
        assert error.last_error.code is lro.Code.DEADLINE_EXCEEDED
        client = face.client(url, call_seconds=0.2)
        began, before = time.perf_counter(), starved_seconds()
        with pytest.raises(CallError) as caught:
            client.get(NAME)
        assert time.perf_counter() - began <= 0.2 + SLACK + starved_seconds() - before
        assert caught.value.code is lro.Code.DEADLINE_EXCEEDED


@pytest.mark.parametrize("behave", [dripping_headers, hinting])
def test_thread_of_a_call_ends_with_its_deadline(behave: Behaviour) -> None:
    drivers.CALL_THREADS.forget()  # drop the idle threads of other tests
    before = {*threading.enumerate()}
    with serving(behave) as url, Client(url, call_seconds=0.2, retry=NO_RETRY) as client:
        with pytest.raises(CallError, match=r"no complete answer within 0\.2 s"):
            client.get(NAME)
        until(lambda: "lro-client-call" not in {i.name for i in {*threading.enumerate()} - before})


def test_timeout_error_has_name_last_state_and_polls(
    face: Face, server: respx.Router, clock: Clock
) -> None:
    """PollTimeout has the name, last state and number of polls. The handle can wait again."""
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
    """A timeout of zero means one Get without a pause. A done operation returns its result."""
    route = server.get().mock(side_effect=[reply(running()), reply(succeeded())])
    client = face.client(clock=clock, polling=Polling(wait_first=wait_first))
    handle = client.operation(NAME, **TYPES)
    with pytest.raises(PollTimeout) as caught:
        handle.result(0)
    assert (caught.value.polls, route.call_count, clock.sleeps) == (1, 1, [])
    assert handle.result(0).size_bytes == 7


def test_timeout_may_be_negative_or_missing() -> None:
    """A negative timeout allows one poll; a wait without a timeout may last for a day."""
    polling = Polling(jitter=0.0, wait_first=False)
    simulation = Simulation(ends_at=9)
    with pytest.raises(PollTimeout):
        simulation.wait(Polling(), -5)
    assert (len(simulation.asked), simulation.pauses) == (1, [])
    assert Simulation(ends_at=86400).wait(Polling(jitter=0.0)).done
    simulation = Simulation(ends_at=9.99)
    assert simulation.wait(polling, 10).done
    assert simulation.now == pytest.approx(10)


def test_final_failure_at_the_deadline_is_raised_instead_of_the_timeout() -> None:
    """At the deadline, an error that is not retried is raised instead of the timeout."""
    simulation = Simulation(ends_at=9, fault=lambda _: call_error(lro.Code.PERMISSION_DENIED))
    with pytest.raises(CallError, match="PERMISSION_DENIED"):
        simulation.wait(Polling(), 0)


def test_poll_cut_by_the_deadline_raises_the_timeout() -> None:
    """A poll cut by the deadline raises PollTimeout, even if the policy allows no retries."""
    cut = call_error(lro.Code.DEADLINE_EXCEEDED, passing=True)
    strict = Polling(wait_first=False, retry=NO_RETRY)
    simulation = Simulation(ends_at=9, latency=1.03, fault=lambda _: cut)
    with pytest.raises(PollTimeout) as caught:
        simulation.wait(strict, 1)
    assert caught.value.last_error is cut


@pytest.fixture(autouse=True)
def no_thread_is_left(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Check that call threads end when their connections do."""
    monkeypatch.setattr(drivers, "MAX_IDLE_THREADS", 0)
    before = {*threading.enumerate()}
    yield
    for one in {*threading.enumerate()} - before:
        if one.name == "lro-client-call" and one.ident is not None:  # skip threads not started
            one.join(120)
            assert not one.is_alive()


@pytest.mark.parametrize("seconds", [1e10, 1e300])
def test_call_timeout_beyond_the_range_of_clocks_is_accepted(seconds: float, face: Face) -> None:
    """A call timeout that exceeds the range of the clocks is accepted."""
    with serving(answering("404 Not Found", "{}")) as url:
        client = face.client(url, call_seconds=seconds, retry=NO_RETRY)
        with pytest.raises(CallError) as caught:
            client.get(NAME)
    assert caught.value.http_status == 404
