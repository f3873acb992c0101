"""If a Wait fails, is invalid or is never answered, the client uses a Get (spec §11.2(4))."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
import respx

import lro
from lro_client import NO_RETRY, CallError, Polling, PollTimeout
from lro_client._flow import polling, single
from lro_client._watch import strategy
from lro_client.testing import Fault, ScriptedServer
from tests.client.faces import Clock, Face
from tests.client.messages import (
    NAME,
    TYPES,
    ResizeResponse,
    packed,
    page_of_a_proxy,
    refusal,
    reply,
    running,
    succeeded,
)
from tests.client.test_groups import client_of, group_of

PLAIN = Polling(jitter=0.0)
WAIT, GET = f"/v1/{NAME}:wait", f"/v1/{NAME}"


def results(face: Face, client: Any, names: list[str], many: bool, timeout: Any = None) -> Any:
    """Return the results of operations, each through its own handle or all through a group."""
    if many:
        return group_of(face, client, names).results(timeout)
    return [client.operation(name, **TYPES).result(timeout) for name in names]


def offers_wait(face: Face, client: Any, clock: Clock) -> bool:
    state = face.inside(client)._state
    found: bool = state.config.server.offers(single.WAIT, clock())
    return found


USELESS = {
    "501": refusal(lro.Code.UNIMPLEMENTED),
    "501 of a proxy": page_of_a_proxy(501),
    "405": page_of_a_proxy(405, allow="GET"),
    "404 of the verb's path": page_of_a_proxy(404),
    "404 in our form": refusal(lro.Code.NOT_FOUND),
    "400": refusal(lro.Code.INVALID_ARGUMENT, "unknown route"),
    "400 of a proxy": page_of_a_proxy(400),
    "403": refusal(lro.Code.PERMISSION_DENIED),
    "a page": httpx.Response(200, html="<form>"),
    "no operation": reply([]),
    "no field": reply({}),
    "done without a result": reply({"name": NAME, "done": True}),
    "done with an empty result": reply({"name": NAME, "done": True, "response": {}}),
    "done with another type": reply(
        {"name": NAME, "done": True, "response": packed("acme.mock.v1.Nothing")}
    ),
}


@pytest.mark.parametrize("many", [False, True])
@pytest.mark.parametrize("answer", USELESS.values(), ids=USELESS)
def test_useless_wait_is_replaced_by_a_get_and_then_by_polling(
    answer: httpx.Response, many: bool, face: Face, clock: Clock, server: respx.Router
) -> None:
    """After a useless reply to a Wait, the client uses a Get, and then polls without extra pauses.

    A new client tries a Wait again.
    """
    waits = server.post(WAIT).mock(return_value=answer)
    answers = [succeeded(), running(), succeeded(), running()]
    server.get(GET).mock(side_effect=lambda _: reply(answers.pop()))
    client = face.client(clock=clock, polling=PLAIN)
    for _ in range(2):
        assert results(face, client, [NAME], many) == [ResizeResponse(size_bytes=7)]
    assert waits.call_count == 1
    assert not offers_wait(face, client, clock)
    if not many:
        assert clock.sleeps == [0.05, 0.05]
    server.get(GET).mock(return_value=reply(succeeded()))
    results(face, face.client(clock=clock, polling=PLAIN), [NAME], many)
    assert waits.call_count == 2


@pytest.mark.parametrize("many", [False, True])
def test_wait_without_a_result_is_accepted_if_a_get_confirms_it(
    many: bool, face: Face, clock: Clock, server: respx.Router
) -> None:
    """A Wait without a result is accepted if a Get confirms it (§2.5). Waits are used again."""
    waits = server.post(WAIT).mock(return_value=reply({"name": NAME, "done": True}))
    server.get(GET).mock(return_value=reply({"name": NAME, "done": True}))
    client = face.client(clock=clock, polling=PLAIN)
    for _ in range(2):
        assert results(face, client, [NAME], many) == [None]
    assert waits.call_count == 2
    assert offers_wait(face, client, clock)


def test_doubtful_wait_reply_is_shown_only_after_a_get_confirms_it(
    face: Face, clock: Clock, server: respx.Router
) -> None:
    """A Wait's reply that says "done" is shown only after a Get has confirmed it."""
    server.post(WAIT).mock(return_value=reply({"name": NAME, "done": True}))
    answers = [succeeded(), running(50), running(40)]
    server.get(GET).mock(side_effect=lambda _: reply(answers.pop()))
    handle = face.client(clock=clock, polling=PLAIN).operation(NAME, **TYPES)
    assert [update.done for update in handle.updates()] == [False, False, True]


def test_a_doubtful_reply_at_the_deadline_is_not_returned(
    face: Face, clock: Clock, server: Any
) -> None:
    """If no time is left for a confirming Get, the wait raises PollTimeout."""

    def slow(_: httpx.Request) -> httpx.Response:
        clock.now += 60
        return reply({"name": NAME, "done": True})

    server.post(WAIT).mock(side_effect=slow)
    with pytest.raises(PollTimeout):
        face.client(clock=clock, polling=PLAIN).operation(NAME, **TYPES).result(30)


def test_failure_of_the_confirming_get_is_raised(
    face: Face, clock: Clock, server: respx.Router
) -> None:
    """If the confirming Get fails too, the wait raises the error of the Get."""
    server.post(WAIT).mock(return_value=refusal(lro.Code.INVALID_ARGUMENT, "unknown route"))
    server.get(GET).mock(return_value=refusal(lro.Code.PERMISSION_DENIED, "not yours"))
    client = face.client(clock=clock, polling=PLAIN)
    with pytest.raises(CallError, match="GetOperation failed with PERMISSION_DENIED: not yours"):
        client.operation(NAME, **TYPES).result()
    assert offers_wait(face, client, clock)


def test_unavailable_wait_needs_no_confirming_get(
    face: Face, clock: Clock, server: respx.Router
) -> None:
    """UNAVAILABLE says nothing about Wait, so a policy without retries raises it at once."""
    server.post(WAIT).mock(return_value=refusal(lro.Code.UNAVAILABLE))
    client = face.client(clock=clock, polling=Polling(retry=NO_RETRY))
    with pytest.raises(CallError, match="UNAVAILABLE"):
        client.operation(NAME, **TYPES).result()
    assert len(server.calls) == 1


@pytest.fixture
def never_answers_waits() -> ScriptedServer:
    """A server that never answers a Wait; its operation ends after 5 s."""
    made = ScriptedServer()
    made.operation(NAME, ends_after=5.0, response=ResizeResponse(1))
    made.fault(Fault(seconds=1e9), verb="WaitOperation")
    return made


@pytest.mark.parametrize("many", [False, True])
@pytest.mark.parametrize(("timeout", "within"), [(None, 26.0), (120.0, 26.0), (15.0, 15.0)])
def test_wait_that_is_never_answered_is_replaced_by_a_get(
    timeout: float | None,
    within: float,
    many: bool,
    face: Face,
    never_answers_waits: ScriptedServer,
) -> None:
    """A Wait that is not answered is cancelled soon after its hold time; only Gets follow."""
    client, clock = client_of(face, never_answers_waits, polling=PLAIN), never_answers_waits.clock
    began = clock()
    assert results(face, client, [NAME], many, timeout) == [ResizeResponse(1)]
    assert clock() - began <= within
    assert [call.verb for call in never_answers_waits.calls].count("WaitOperation") == 1
    assert not offers_wait(face, client, clock)


@pytest.mark.parametrize("many", [False, True])
def test_wait_cut_after_little_time_may_be_used_again(
    many: bool, face: Face, never_answers_waits: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a Wait that was cut early, the client sends a Get, and may use Wait again later."""
    # Threads get this grace period on the real clock, however slow the machine, while the test's
    # clock may stand still or jump. It is shorter than the hold time of a Wait.
    for module in (polling, strategy):
        monkeypatch.setattr(module, "GRACE_SECONDS", 10.0)
    never_answers_waits.operation(NAME, ends_after=None)
    client, clock = client_of(face, never_answers_waits, polling=PLAIN), never_answers_waits.clock
    with pytest.raises(PollTimeout) as caught:
        results(face, client, [NAME], many, 0.6)
    assert caught.value.last_error is None
    assert {call.verb for call in never_answers_waits.calls} == {"WaitOperation", "GetOperation"}
    assert offers_wait(face, client, clock)


@pytest.mark.parametrize("many", [False, True])
def test_a_wait_that_never_waits_costs_no_more_than_polling(many: bool, face: Face) -> None:
    """If a server answers each Wait at once, a client makes at most three extra calls."""
    asked = []
    for offered in (False, True):
        server = ScriptedServer(wait=offered, max_hold=0.0)
        server.operation(NAME, ends_after=None)
        with pytest.raises(PollTimeout):
            results(face, client_of(face, server, polling=PLAIN), [NAME], many, 10.0)
        # A thread continues to poll until the waiting thread notices that the deadline has passed.
        asked.append(sum(call.at < 10.0 for call in server.calls))
    polled, waited = asked
    assert polled <= 30
    assert waited <= polled + 3


@pytest.mark.parametrize(
    ("many", "silent_since", "status", "code"),
    [
        (False, 9.99, None, None),  # the deadline came soon after the poll began
        (True, 9.99, None, None),
        (False, 9.99, 503, lro.Code.UNAVAILABLE),  # the server sent this error earlier
        (True, 9.99, 503, lro.Code.UNAVAILABLE),
        (False, 2.0, None, lro.Code.DEADLINE_EXCEEDED),  # the server had time to answer
    ],
)
def test_poll_cut_by_the_deadline_does_not_count_as_a_failure(
    many: bool,
    silent_since: float,
    status: int | None,
    code: lro.Code | None,
    face: Face,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A poll cut by the deadline is not reported as a failure, if the server had little time."""
    # Threads get this grace period on the real clock at a deadline, while the test's clock may
    # stand still. It is shorter than the one second after which a silent server is reported.
    for module in (polling, strategy):
        monkeypatch.setattr(module, "GRACE_SECONDS", 0.9)
    server = ScriptedServer(wait=False)
    server.operation(NAME, ends_after=None)
    server.fault(Fault(seconds=1e9), since=silent_since)
    if status is not None:
        server.fault(Fault(status=status), since=2.0)
    client = client_of(face, server, polling=PLAIN)
    with pytest.raises(PollTimeout) as caught:
        results(face, client, [NAME], many, 10.0)
    error = caught.value.last_error
    assert (error and error.code, error and error.http_status) == (code, status)
    assert ("failed" in str(caught.value)) is (error is not None)
