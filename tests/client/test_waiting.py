"""If the server offers WaitOperation, it replaces polls and pauses (spec §11.2(4))."""

from __future__ import annotations

import httpx
import pytest
import respx
from hypothesis import given
from hypothesis import strategies as st

import lro
from lro_client import OperationGone, Polling, PollTimeout
from lro_client._flow import single
from lro_client._flow.poll_state import MARGIN_SECONDS
from lro_client._flow.polling import TICK_SECONDS
from lro_client.waits import wait_exponential
from tests.client.faces import Clock, Face
from tests.client.messages import (
    NAME,
    TYPES,
    ResizeResponse,
    body_of,
    page_of_a_proxy,
    refusal,
    reply,
    running,
    succeeded,
)
from tests.client.simulation import Simulation, call_error

PLAIN = Polling(jitter=0.0)
WAIT, GET = f"/v1/{NAME}:wait", f"/v1/{NAME}"


def test_held_waits_replace_polls_and_pauses(
    face: Face, clock: Clock, server: respx.Router
) -> None:
    """Each Wait is held for up to 20 s; until the operation ends, the next Wait follows at once."""
    answers = iter([running(), running(), succeeded()])

    def hold(_: httpx.Request) -> httpx.Response:
        clock.now += 20
        return reply(next(answers), retry_after="3")

    route = server.post(WAIT).mock(side_effect=hold)
    handle = face.client(clock=clock).operation(NAME, **TYPES)
    assert handle.result() == ResizeResponse(size_bytes=7)
    assert [body_of(call.request) for call in route.calls] == [{"timeout": "20s"}] * 3
    assert clock.sleeps == []


def test_wait_that_is_not_found_is_decided_by_a_get(
    face: Face, clock: Clock, server: respx.Router
) -> None:
    """After a Wait that is NOT_FOUND, a Get decides whether the operation is gone."""
    waits = server.post(WAIT).mock(return_value=refusal(lro.Code.NOT_FOUND))
    gets = server.get(GET).mock(return_value=refusal(lro.Code.NOT_FOUND, "no such operation"))
    client = face.client()
    for _ in range(2):
        with pytest.raises(OperationGone, match="no such operation") as caught:
            client.operation(NAME, **TYPES).result()
    assert caught.value.code is lro.Code.NOT_FOUND
    assert (waits.call_count, gets.call_count) == (2, 2)
    # An operation that is deleted or expires during the wait has its own final error (§11.5(5)).
    gets.mock(side_effect=[reply(running()), refusal(lro.Code.NOT_FOUND)])
    client = face.client(clock=clock, polling=Polling(wait_first=False))
    handle = client.operation(NAME, **TYPES)
    with pytest.raises(OperationGone):
        handle.wait()
    assert handle.operation == lro.Operation(name=NAME)


def test_first_successful_get_decides_after_a_not_found_wait() -> None:
    """If a Get succeeds after a Wait that was NOT_FOUND, the operation exists."""
    faults = [None, call_error(lro.Code.UNAVAILABLE), call_error(lro.Code.NOT_FOUND)]
    simulation = Simulation(ends_at=0, max_hold=60, fault=lambda _: faults.pop())
    known = single.ServerState()
    assert simulation.wait(PLAIN, server=known).done
    assert simulation.holds == [20.0, None, None]
    assert simulation.pauses == [0.5]
    assert not known.offers(single.WAIT, simulation.clock())


def test_get_follows_each_wait_that_a_proxy_cuts(
    face: Face, clock: Clock, server: respx.Router
) -> None:
    """After each failed Wait the client sends a Get, so that the wait can continue."""

    def cut(_: httpx.Request) -> httpx.Response:
        clock.now += 10
        return page_of_a_proxy(504)

    def state(_: httpx.Request) -> httpx.Response:
        return reply(succeeded() if clock.now > 1000 + 3600 else running())

    waits = server.post(WAIT).mock(side_effect=cut)
    gets = server.get(GET).mock(side_effect=state)
    handle = face.client(clock=clock, polling=PLAIN).operation(NAME, **TYPES)
    assert handle.result() == ResizeResponse(size_bytes=7)
    assert clock.now <= 1000 + 3600 + 31
    assert waits.call_count == gets.call_count


class AtOnce:
    """A server whose Wait answers at once, except for the call numbers in ``held``."""

    def __init__(self, clock: Clock, held: tuple[int, ...], **headers: str) -> None:
        self.clock, self.held, self.headers, self.calls = clock, held, headers, 0

    def __call__(self, _: httpx.Request) -> httpx.Response:
        self.calls += 1
        if self.calls in self.held:
            self.clock.now += 20
        return reply(succeeded() if self.calls == 9 else running(), **self.headers)


@pytest.mark.parametrize(("held", "pauses"), [((), 6), ((3,), 3), ((5,), 3), ((2, 4, 6, 8), 0)])
def test_third_immediate_wait_reply_makes_the_policy_pause(
    held: tuple[int, ...], pauses: int, face: Face, clock: Clock, server: respx.Router
) -> None:
    """After three immediate replies in a row the policy pauses; a held call resets the count.

    If the server recommends a pause with Retry-After, the client uses that pause.
    """
    polling = Polling(wait=wait_exponential(1.0, 1.0), jitter=0.0)
    for headers, seconds in (({}, 1.0), ({"retry_after": "4"}, 4.0)):
        answering = AtOnce(clock, held, **headers)
        server.post(WAIT).mock(side_effect=answering)
        clock.sleeps.clear()
        face.client(clock=clock, polling=polling).operation(NAME, **TYPES).wait()
        assert answering.calls == 9
        assert clock.sleeps == [seconds] * pauses


def test_policy_sets_how_long_a_call_is_held(face: Face, server: respx.Router) -> None:
    """The client sends ``hold_seconds`` of the policy as the timeout of a Wait."""
    route = server.post(WAIT).mock(return_value=reply(succeeded()))
    polling = Polling(hold_seconds=2.5)
    face.client(polling=polling, call_seconds=4.0).operation(NAME, **TYPES).wait()
    request = route.calls.last.request
    assert body_of(request) == {"timeout": "2.500s"}
    assert request.extensions["timeout"]["read"] == 6.5


@given(st.floats(0, 3600), st.floats(10, 60))
def test_held_wait_returns_when_the_operation_ends(ends_at: float, max_hold: float) -> None:
    """A wait returns when the operation ends, however long the server may hold a Wait."""
    simulation = Simulation(ends_at=ends_at, max_hold=max_hold)
    assert simulation.wait(Polling()).done
    assert simulation.now == pytest.approx(ends_at)
    assert len(simulation.asked) <= ends_at / min(max_hold, 20.0) + 2
    assert None not in simulation.holds


@given(st.floats(0, 100), st.floats(0, 100), st.floats(0, 0.15), st.booleans())
def test_a_wait_is_answered_before_the_deadline(
    ends_at: float, timeout: float, latency: float, waits: bool
) -> None:
    """Every Wait is answered before the deadline, and the last poll is a Get."""
    simulation = Simulation(ends_at=ends_at, max_hold=60 if waits else None, latency=latency)
    try:
        operation = simulation.wait(Polling(), timeout)
    except PollTimeout as exc:
        assert ends_at > timeout - TICK_SECONDS  # an end this close to the deadline may be missed
        assert timeout - 2e-6 <= simulation.now <= timeout + 2 * latency + 2e-6
        assert exc.polls == len(simulation.asked)
        assert isinstance(simulation.asked[-1][1].request, lro.wire.GetOperationRequest)
        assert exc.operation == lro.Operation(name=NAME)
    else:
        assert operation.done
    for when, call in simulation.asked:
        held = call.request
        if isinstance(held, lro.wire.WaitOperationRequest) and held.timeout is not None:
            assert when + held.timeout.total_seconds <= timeout - MARGIN_SECONDS + 1e-6
        assert when + call.budget <= timeout + 0.03 + 1e-6 or call.budget == 0.001


def test_get_is_sent_instead_of_wait_near_the_deadline() -> None:
    """Near the deadline the client sends only Gets."""
    simulation = Simulation(ends_at=9, max_hold=60)
    with pytest.raises(PollTimeout):
        simulation.wait(PLAIN, 0.2)
    assert simulation.holds == [None] * 5


@pytest.mark.parametrize("wait_first", [False, True])
@pytest.mark.parametrize("many", [False, True])
def test_reply_with_another_name_is_accepted(
    many: bool, wait_first: bool, face: Face, server: respx.Router
) -> None:
    """A handle keeps its name if replies have another name, for example with a project number."""
    server.route().mock(return_value=reply(succeeded(name="projects/123/operations/a")))
    client = face.client(polling=Polling(wait_first=wait_first))
    handle = client.operation("projects/p/operations/a", **TYPES)
    if many:
        assert client.group([face.inside(handle)]).results() == [ResizeResponse(7)]
    else:
        assert handle.result() == ResizeResponse(7)
    assert handle.name == "projects/p/operations/a"
    assert {call.request.url.path.partition(":")[0] for call in server.calls} == {
        "/v1/projects/p/operations/a"
    }
