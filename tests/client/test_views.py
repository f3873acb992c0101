"""BatchGet and views: the client's calls, and how it reads the replies (spec §3.11)."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import httpx
import pytest
import respx

import lro
from lro.adapters import FailedAttempt
from lro_client import CallError, UnreadableReply
from lro_client.testing import Fault, ScriptedServer
from tests.client.faces import Clock, Face
from tests.client.messages import NAME, page_of_a_proxy, refusal, reply

OTHER = "projects/p/operations/x"
MOMENT = "2030-01-02T03:04:05.678Z"
SHOWN = {
    "state": "IN_PROGRESS",
    "method": "acme.v1.Images.Resize",
    "createTime": MOMENT,
    "updateTime": "2030-01-02T03:04:06Z",
    "startTime": MOMENT,
    "cancelRequested": True,
    "attempt": 2,
    "failedAttempts": 1,
    "dueTime": MOMENT,
    "beginBefore": MOMENT,
    "priority": -5,
    "origin": "schedule nightly",
    "failures": [
        {"attempt": 1, "time": MOMENT, "error": "ConnectionError", "text": "a\u0007<b>", "new": 1}
    ],
    "workerHost": "worker-1",
    "workerPid": 4_000_000_000,
    "addedLater": {"x": 1},
}
CREATED = datetime(2030, 1, 2, 3, 4, 5, 678_000, UTC)
WANTED = lro.OperationDescription(
    state="IN_PROGRESS",
    method="acme.v1.Images.Resize",
    create_time=CREATED,
    update_time=datetime(2030, 1, 2, 3, 4, 6, tzinfo=UTC),
    start_time=CREATED,
    cancel_requested=True,
    attempt=2,
    failed_attempts=1,
    due_time=CREATED,
    begin_before=CREATED,
    priority=-5,
    origin="schedule nightly",
    failures=(FailedAttempt(1, CREATED, "ConnectionError", "a\x07<b>"),),
    worker_host="worker-1",
    worker_pid=4_000_000_000,
)
TOO_LARGE = {
    "@type": "type.googleapis.com/google.rpc.ErrorInfo",
    "reason": "BATCH_TOO_LARGE",
    "domain": "acme.test",
}


def echo(request: httpx.Request) -> httpx.Response:
    """Answer with the requested operations; names that contain "none" are missing."""
    names = json.loads(request.content)["names"]
    found = [{"name": name, "done": True} for name in names if "none" not in name]
    return reply({"operations": found, "missing": [name for name in names if "none" in name]})


def asked(server: respx.Router) -> list[tuple[str, list[str]]]:
    """Return the path and the names of each call."""
    requests = [call.request for call in server.calls]
    return [(one.url.path, json.loads(one.content)["names"]) for one in requests]


FULL = {"name": NAME, "description": SHOWN}
WHOLE = lro.Operation(name=NAME, description=WANTED)


def test_view_is_a_parameter_of_get_list_and_batch_get(face: Face, server: respx.Router) -> None:
    """With the view FULL, operations have a description with all fields that this client knows."""
    server.get(f"/v1/{NAME}").mock(return_value=reply(FULL))
    listed = reply({"operations": [FULL], "nextPageToken": "t"}), reply({"operations": [FULL]})
    server.get("/v1/operations").mock(side_effect=listed)
    server.post("/v1/operations:batchGet").mock(return_value=reply({"operations": [FULL]}))
    client = face.client()
    assert client.get(NAME, view="FULL") == WHOLE
    assert list(client.list(filter="done", view="FULL")) == [WHOLE, WHOLE]
    assert client.batch_get([NAME], view="FULL").operations == (WHOLE,)
    sent = [call.request.url.query.decode() for call in server.calls]
    full = "view=FULL"
    assert sent == [full, f"filter=done&{full}", f"filter=done&pageToken=t&{full}", full]


def test_basic_view_is_not_sent(face: Face, server: respx.Router) -> None:
    """The view BASIC is not sent, because it is the default, and servers may have no views."""
    server.post().mock(side_effect=echo)
    server.get().mock(return_value=reply({"name": NAME}))
    client = face.client()
    assert client.get(NAME, view="BASIC").description == lro.OperationDescription()
    client.batch_get([NAME])
    assert [str(call.request.url.query, "ascii") for call in server.calls] == ["", ""]


def test_server_without_the_view_gives_the_operation(face: Face, server: respx.Router) -> None:
    """If the server does not support the view, the description of the operation is empty."""
    server.get().mock(return_value=reply({"name": NAME, "description": None}))
    assert face.client().get(NAME, view="FULL") == lro.Operation(name=NAME)


def test_names_are_read_with_one_call_per_collection(face: Face, server: respx.Router) -> None:
    """Each collection takes one call with unique names; results have the order of the names."""
    server.post().mock(side_effect=echo)
    names = [OTHER, NAME, "projects/p/operations/none", OTHER, "operations/a/operations/b"]
    found = face.client().batch_get(names)
    assert [one.name for one in found.operations] == [OTHER, NAME, "operations/a/operations/b"]
    assert found.missing == ("projects/p/operations/none",)
    assert asked(server) == [
        ("/v1/projects/p/operations:batchGet", [OTHER, "projects/p/operations/none"]),
        ("/v1/operations:batchGet", [NAME, "operations/a/operations/b"]),
    ]


def test_more_than_a_thousand_names_take_several_calls(face: Face, server: respx.Router) -> None:
    """A call takes at most 1000 names, and the caller gets one result for all names."""
    server.post().mock(side_effect=echo)
    names = [f"operations/{number}" for number in range(2001)]
    found = face.client().batch_get(iter(names))
    assert [one.name for one in found.operations] == names
    assert [len(some) for _, some in asked(server)] == [1000, 1000, 1]


def test_batch_get_that_is_too_large_is_halved(face: Face, server: respx.Router) -> None:
    """A call that is refused as too large is halved until it is accepted."""

    def few(request: httpx.Request) -> httpx.Response:
        if len(json.loads(request.content)["names"]) > 2:
            return refusal(lro.Code.RESOURCE_EXHAUSTED, "too large", TOO_LARGE)
        return echo(request)

    server.post().mock(side_effect=few)
    names = [f"operations/{number}" for number in range(7)]
    assert [one.name for one in face.client().batch_get(names).operations] == names
    assert [len(some) for _, some in asked(server)] == [7, 3, 1, 2, 4, 2, 2]


def because(code: lro.Code, reason: str) -> httpx.Response:
    """Return an error response whose ErrorInfo has this reason."""
    return refusal(code, "so it is", {**TOO_LARGE, "reason": reason})


@pytest.mark.parametrize(
    ("names", "answer"),
    [
        ([NAME], because(lro.Code.RESOURCE_EXHAUSTED, "BATCH_TOO_LARGE")),  # cannot be halved
        (
            [NAME, "operations/b"],
            refusal(lro.Code.RESOURCE_EXHAUSTED, "so it is"),
        ),  # an overload, not a limit of size
        ([NAME], because(lro.Code.UNIMPLEMENTED, "METHOD_NOT_SUPPORTED")),  # no such method
        ([NAME], because(lro.Code.NOT_FOUND, "OPERATION_NOT_FOUND")),  # a hook hides the operation
        (["jobs/a"], refusal(lro.Code.INVALID_ARGUMENT, "so it is")),  # the name has no collection
    ],
)
def test_refusal_with_another_reason_is_raised_after_one_call(
    names: list[str], answer: httpx.Response, face: Face, server: respx.Router
) -> None:
    """A refusal for another reason than size reaches the caller, and no second call is made."""
    server.post().mock(return_value=answer)
    with pytest.raises(CallError, match="so it is") as caught:
        face.client().batch_get(names)
    assert caught.value.code.name == answer.json()["error"]["status"]
    assert "has no BatchGet" not in str(caught.value)
    [(path, first)] = asked(server)
    assert (path, first) == ("/v1/operations:batchGet", names)


NOT_FOUND = {"code": 404, "message": "Method not found.", "status": "NOT_FOUND"}
ROUTE = {**TOO_LARGE, "reason": "ROUTE_NOT_FOUND"}
LACKING = {
    "page": page_of_a_proxy(404),
    "error of Google": reply({"error": NOT_FOUND}, 404),
    "other release": refusal(lro.Code.NOT_FOUND, "nothing is served at ...", ROUTE),
    "method not allowed": page_of_a_proxy(405),
    "not implemented": page_of_a_proxy(501),
    "unimplemented": refusal(lro.Code.UNIMPLEMENTED, "no such thing"),
}


@pytest.mark.parametrize("kind", LACKING)
def test_server_without_batch_get_is_unimplemented(
    kind: str, face: Face, server: respx.Router
) -> None:
    """If BatchGet is missing, the error says so after one call, whatever the server answers."""
    server.post().mock(return_value=LACKING[kind])
    with pytest.raises(CallError, match="the server has no BatchGet") as caught:
        face.client().batch_get([NAME])
    assert caught.value.code is lro.Code.UNIMPLEMENTED
    assert caught.value.http_status == LACKING[kind].status_code
    assert len(server.calls) == 1


@pytest.mark.parametrize(
    "body",
    [
        [],
        {},
        {"operations": 5},
        {"operations": [5], "missing": [NAME]},
        {"operations": [], "missing": [5]},
        {"operations": [], "missing": ["operations/other"]},
        {"operations": [{**FULL, "name": "operations/other"}]},
    ],
)
def test_reply_about_other_names_is_unreadable(body: Any, face: Face, server: respx.Router) -> None:
    """A reply that is invalid or about names that were not requested raises UnreadableReply."""
    server.post().mock(return_value=reply(body))
    with pytest.raises(UnreadableReply, match="is not what was asked for"):
        face.client().batch_get([NAME])


@pytest.mark.parametrize(
    "odd",
    [
        5,
        "made by ann",
        [SHOWN],
        *(
            {**SHOWN, **wrong}
            for wrong in (
                {"createTime": "yesterday"},
                {"attempt": "many"},
                {"state": 5},
                {"failures": {"attempt": 1}},
                {"workerPid": -1},
            )
        ),
    ],
)
def test_other_description_of_a_foreign_server_is_ignored(
    odd: Any, face: Face, server: respx.Router
) -> None:
    """A description in another form is ignored, but the other fields of the operation are read."""
    value = {"name": NAME, "done": True, "description": odd}
    server.get(f"/v1/{NAME}").mock(return_value=reply(value))
    server.get("/v1/operations").mock(return_value=reply({"operations": [value]}))
    server.post().mock(return_value=reply({"operations": [value]}))
    client, wanted = face.client(), lro.Operation(name=NAME, done=True)
    assert client.get(NAME) == wanted
    assert list(client.list()) == [wanted]
    assert client.batch_get([NAME], view="FULL").operations == (wanted,)


def test_batch_get_is_retried_if_unavailable(face: Face) -> None:
    server = ScriptedServer(batch_get=True)
    server.operation(NAME, ends_after=2.0, response=None)
    server.fault(Fault(status=503), verb="BatchGetOperations", calls={1})
    http = face.http(transport=server.transport)
    clock: Clock = server.clock
    client = face.client(server.url, http=http, clock=clock)
    found = client.batch_get([NAME], view="FULL")
    assert found.operations[0].description.state == "IN_PROGRESS"
    clock.advance(5.0)
    found = client.batch_get([NAME, "operations/none"], view="FULL")
    assert (found.operations[0].description.state, found.missing) == (
        "SUCCEEDED",
        ("operations/none",),
    )
    assert [call.status for call in server.calls] == [503, 200, 200]
