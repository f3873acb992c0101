"""Starts of operations: their requests, and when these are retried (§9.1, §9.7, §11.5(4))."""

from __future__ import annotations

import uuid
from typing import Any

import httpx
import pytest
import respx

import lro
from lro_client import CallError
from tests.client.faces import Clock, Face
from tests.client.messages import (
    NAME,
    TYPES,
    OwnRequest,
    ResizeRequest,
    ResizeResponse,
    body_of,
    packed,
    refusal,
    reply,
    running,
    succeeded,
)

TARGET = "/v1/images:resize"
REQUEST = ResizeRequest(source="a.png", widths=(10, 2**40))
BODY = {"source": "a.png", "widths": [10, 2**40]}
ID = str(uuid.UUID(int=7))


def test_start_posts_the_message_as_json_to_the_path(face: Face, server: respx.Router) -> None:
    """A start posts the message as JSON to the method's path, and returns a handle."""
    route = server.post(TARGET).mock(return_value=reply(running(5)))
    handle = face.client().start(TARGET, REQUEST, **TYPES)
    request = route.calls.last.request
    assert body_of(request) == BODY
    assert request.headers["content-type"] == "application/json"
    assert (handle.name, handle.done, handle.metadata.percent) == (NAME, False, 5)
    assert route.call_count == 1


def test_start_sends_request_id_and_validate_only(face: Face, server: respx.Router) -> None:
    route = server.post(TARGET).mock(return_value=reply(running()))
    face.client().start(TARGET, REQUEST, **TYPES, request_id=ID, validate_only=True)
    expected = {**BODY, "requestId": ID, "validateOnly": True}
    assert body_of(route.calls.last.request) == expected


def test_validated_start_has_no_name(face: Face, server: respx.Router) -> None:
    """The operation of a dry run is done; reading its result makes no call (spec §9.7)."""
    answer = {"done": True, "response": packed("google.protobuf.Empty")}
    server.post(TARGET).mock(return_value=reply(answer))
    types = {**TYPES, "response": lro.Empty}
    handle = face.client().start(TARGET, REQUEST, **types, validate_only=True)
    assert (handle.name, handle.done) == ("", True)
    assert handle.result() == lro.Empty()
    with pytest.raises(lro.DeclarationError, match="name: must be a text that is not empty"):
        handle.refresh()


def test_operation_that_a_start_returns_done_is_not_polled(
    face: Face, server: respx.Router
) -> None:
    """An operation that is done in the reply to a start is never polled (§9.8, §11.2(1))."""
    server.post(TARGET).mock(return_value=reply(succeeded(9)))
    assert face.client().start(TARGET, REQUEST, **TYPES).result() == ResizeResponse(size_bytes=9)
    assert len(server.calls) == 1


@pytest.mark.parametrize("validate_only", [False, True])
@pytest.mark.parametrize("fault", [refusal(lro.Code.UNAVAILABLE), httpx.ConnectError("no")])
def test_start_without_a_request_id_is_not_retried(
    fault: Any, validate_only: bool, face: Face, clock: Clock, server: respx.Router
) -> None:
    """A start whose reply was lost may have started an operation, so it is not repeated."""
    route = server.post(TARGET).mock(side_effect=[fault])
    with pytest.raises(CallError) as caught:
        face.client(clock=clock).start(TARGET, REQUEST, **TYPES, validate_only=validate_only)
    assert caught.value.code is lro.Code.UNAVAILABLE
    assert (route.call_count, clock.sleeps) == (1, [])


def test_start_with_a_request_id_is_retried(face: Face, clock: Clock, server: respx.Router) -> None:
    """The server recognizes a repeated request id, so the client sends the same bytes again."""
    faults: list[Any] = [httpx.ReadError("lost"), refusal(lro.Code.UNAVAILABLE), reply(running())]
    route = server.post(TARGET).mock(side_effect=faults)
    assert face.client(clock=clock).start(TARGET, REQUEST, **TYPES, request_id=ID).name == NAME
    assert clock.sleeps == [0.5, 1.0]
    assert len({call.request.content for call in route.calls}) == 1


OWN: list[Any] = [
    {"requestId": ID},
    {"request_id": ID},
    OwnRequest(ID),
    lro.AnyMessage("type.googleapis.com/acme.v1.Own", {"requestId": ID}),
    lro.Struct({"request_id": ID}),
]


@pytest.mark.parametrize("message", OWN, ids=["json", "proto", "class", "any", "struct"])
@pytest.mark.parametrize("given", ["", ID])
def test_request_id_in_the_message_counts_as_the_request_id(
    given: str, message: Any, face: Face, clock: Clock, server: respx.Router
) -> None:
    """A request id in the message is sent only once, and makes the start retryable."""
    faults: list[Any] = [httpx.ReadError("lost"), reply(running())]
    route = server.post(TARGET).mock(side_effect=faults)
    client = face.client(clock=clock)
    client.start(TARGET, message, **TYPES, request_id=given)
    with pytest.raises(lro.DeclarationError, match=f"request_id: must be .*'{ID}', got"):
        client.start(TARGET, message, request_id="00000000-0000-4000-8000-000000000009")
    assert [body_of(call.request) for call in route.calls] == [{"requestId": ID}] * 2


def test_validate_only_of_the_message_is_used(face: Face, server: respx.Router) -> None:
    """``validate_only`` of the message is sent. Two spellings of a field are refused (§1.8(2))."""
    route = server.post(TARGET).mock(return_value=reply({"done": True}))
    face.client().start(TARGET, OwnRequest("", True))
    for both in ({"requestId": ID, "request_id": ID}, {"validateOnly": 0, "validate_only": True}):
        for message in (both, lro.Struct(both), lro.AnyMessage("x/a.B", both)):
            with pytest.raises(lro.DeclarationError, match="stands in the message twice"):
                face.client().start(TARGET, message)
    assert [body_of(call.request) for call in route.calls] == [{"validateOnly": True}]


@pytest.mark.parametrize("code", [lro.Code.ABORTED, lro.Code.RESOURCE_EXHAUSTED])
def test_refused_start_is_not_retried(
    code: lro.Code, face: Face, clock: Clock, server: respx.Router
) -> None:
    """A start that the server refuses is not retried, even with a request id."""
    route = server.post(TARGET).mock(return_value=refusal(code, "busy"))
    with pytest.raises(CallError, match="busy") as caught:
        face.client(clock=clock).start(TARGET, REQUEST, **TYPES, request_id=ID)
    assert caught.value.code is code
    assert route.call_count == 1
