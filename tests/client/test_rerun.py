"""Reruns of an operation's work, over each transport and with retries (spec §3.12)."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
import respx

import lro
from lro.errors import StatusError
from lro.http import VERBS
from lro.wire import RerunOperationRequest
from lro_client import CallError
from tests.client.faces import Clock, Face
from tests.client.messages import (
    NAME,
    ResizeRequest,
    ResizeResponse,
    body_of,
    refusal,
    reply,
    running,
)
from tests.client.real_service import WAYS, Harness

KEY = uuid.UUID(int=7)
OFFERING = {"verbs": (*VERBS, "RerunOperation")}


def failed(harness: Harness) -> str:
    """Return the name of an operation that has failed."""
    harness.say(StatusError(lro.Code.UNAVAILABLE, "away"))
    handle = harness.resize.start(ResizeRequest(source="a.png"))
    handle.wait(timeout=10)
    return handle.name


@pytest.mark.parametrize("harness", [OFFERING], indirect=True)
@pytest.mark.parametrize("way", list(WAYS.values()), ids=list(WAYS))
def test_rerun_starts_failed_work_again_over_each_transport(
    harness: Harness, face: Face, way: Any, request: pytest.FixtureRequest
) -> None:
    """A rerun returns a new operation. A rerun with the same request id returns that operation."""
    client = way(harness, face, lambda: request.getfixturevalue("listening")).client()
    name = failed(harness)
    harness.say(ResizeResponse(7))
    again = client.rerun(name, request_id=KEY)
    assert again.name != name
    assert client.operation(again, response=ResizeResponse).result(timeout=10).size_bytes == 7
    assert client.rerun(RerunOperationRequest(name, str(KEY))).name == again.name
    with pytest.raises(CallError, match="that of a success is not kept") as caught:
        client.rerun(again.name)
    assert caught.value.code is lro.Code.FAILED_PRECONDITION


def test_rerun_is_refused_by_servers_without_it(harness: Harness, face: Face) -> None:
    client = WAYS["in process"](harness, face, lambda: pytest.fail("no sockets")).client()
    with pytest.raises(CallError) as caught:
        client.rerun(failed(harness))
    assert caught.value.code is lro.Code.UNIMPLEMENTED


def test_rerun_is_retried(face: Face, server: respx.Router, clock: Clock) -> None:
    """A server starts a repeated rerun once, with the request id of the call or without one."""
    server.post(f"/v1/{NAME}:rerun").side_effect = [
        refusal(lro.Code.UNAVAILABLE),
        reply(running(name="operations/new")),
        refusal(lro.Code.UNAVAILABLE),
        reply(running(name="operations/new")),
    ]
    client = face.client(clock=clock)
    assert client.rerun(NAME, request_id=KEY).name == "operations/new"
    assert [body_of(call.request) for call in server.calls] == [{"requestId": str(KEY)}] * 2
    assert client.rerun(NAME).name == "operations/new"
    assert [body_of(call.request) for call in server.calls][2:] == [{}, {}]
    for wrong in ({"request_id": "x\n"}, {"request_id": 1}):
        with pytest.raises(lro.DeclarationError):
            client.rerun(NAME, **wrong)
    with pytest.raises(TypeError):
        client.rerun(RerunOperationRequest(NAME), request_id=KEY)
