"""Every state and every error of A2A once, in all three bindings (A2A 4.1.3, 5.4).

Comments name the requirements ("MUST") of the TCK of A2A, as far as they concern an agent whose
tasks are operations: it never asks for input or credentials, answers no Message, and has one card.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import attrs
import pytest

pytest.importorskip("a2a")
pytest.importorskip("grpc")
pytest.importorskip("uvicorn")

import lro
import lro.wire
from tests.full.a2a.serving import (
    JSONRPC,
    REST,
    WAYS,
    Agent,
    Asked,
    Failed,
    message,
    serving,
    working_agent,
)
from tests.http.counting_service import (
    DOMAIN,
    NOW,
    CountMetadata,
    CountRequest,
    CountResponse,
    CountService,
    Quality,
    build,
)
from tests.waiting import until

way = pytest.mark.parametrize("way", WAYS)
STAMP = NOW.isoformat().replace("+00:00", "Z")
MEASURE = "acme.v1.Things.Measure"
SUBMITTED, WORKING, COMPLETED = (
    f"TASK_STATE_{name}" for name in ("SUBMITTED", "WORKING", "COMPLETED")
)


def refuse(request: CountRequest) -> None:
    """Refuse a request with the error that its label names."""
    errors = {
        "full": lro.errors.ResourceExhausted("too much to do", timedelta(seconds=7)),
        "odd": lro.StatusError(lro.Code.INVALID_ARGUMENT, "no odd ones"),
        "away": lro.errors.Unavailable("come later"),
        "long": lro.StatusError(lro.Code.ABORTED, "é\n" * 50_000),
        "long value": ValueError("é\n" * 50_000),
        "half": lro.StatusError(lro.Code.ABORTED, "half \ud800"),
        "half value": ValueError("half \ud800"),
    }
    if request.label in errors:
        raise errors[request.label]


def authorize(caller: str, verb: str, name: str) -> None:
    """Allow every caller except "bob"."""
    if caller == "bob":
        raise lro.errors.PermissionDenied("not bob")


@pytest.fixture(scope="module")
def agent() -> Iterator[Agent]:
    """Serve an agent whose tasks have owners, and whose method can refuse requests."""
    service = build(owner_only=True, authorize=authorize).service
    method = service.declare(
        MEASURE,
        request=CountRequest,
        response=CountResponse,
        metadata=CountMetadata,
        options=lro.Options(
            validate=refuse,
            exclusive_target=lambda request: "it" if request.label == "busy" else "",
        ),
    )
    method.start(CountRequest(label="busy"), caller="ann")
    with serving(CountService(service, method), methods=[method]) as served:
        yield served


def succeed(worker: lro.Reporter) -> None:
    """Complete the operation with a response and metadata."""
    response = CountResponse(total=2**31 - 1, quality=Quality.GOOD)
    worker.complete(response, metadata=CountMetadata(percent=100))


def fail(worker: lro.Reporter) -> None:
    """Fail the operation with an error of the work."""
    details = (lro.types.Help(links=()), lro.types.LocalizedMessage("de", "nein"))
    worker.fail(lro.StatusError(lro.Code.DATA_LOSS, "lost it", details, why="LOST"))


STATES: dict[str, tuple[Callable[[lro.Reporter], object], str, str]] = {
    "submitted": (lambda worker: None, "SUBMITTED", ""),
    "reported": (lambda worker: worker.report(CountMetadata(percent=40)), "SUBMITTED", ""),
    "cancel requested": (lambda worker: None, "SUBMITTED", "cancellation requested"),
    "completed": (succeed, "COMPLETED", ""),
    "completed without a result": (lambda worker: worker.finish(), "COMPLETED", ""),
    "failed": (fail, "FAILED", "lost it"),
    "canceled": (
        lambda worker: worker.acknowledge_cancel(),
        "CANCELED",
        "the operation was cancelled",
    ),
}
"""For each case: an action of the worker, the expected state, and the text of the status."""


@way
@pytest.mark.parametrize("case", STATES)
def test_each_state_is_shown_with_its_fields(agent: Agent, way: str, case: str) -> None:
    """A task in each state has the same fields as the operation over HTTP and gRPC (A2A 4.1)."""
    act, state, said = STATES[case]
    service, name = agent.service, agent.counting.start(caller="ann")
    if case.startswith("cancel"):
        service.cancel(name, caller="ann")
    act(service.reporter(name))
    shown = lro.wire.operation_to_json(service.get(name, caller="ann"), service.types)
    task_id = name.rpartition("/")[2]
    metadata = {f"{DOMAIN}/method": MEASURE}
    if "metadata" in shown:
        metadata[f"{DOMAIN}/metadata"] = shown["metadata"]
    status: dict[str, Any] = {"state": f"TASK_STATE_{state}", "timestamp": STAMP}
    wanted: Any = {"id": task_id, "contextId": task_id, "status": status, "metadata": metadata}
    parts: list[Any] = [{"text": said}] if said else []
    if "error" in shown:
        parts.append({"data": shown["error"], "mediaType": "application/json"})
    if parts:
        status["message"] = {
            "messageId": f"{task_id}-status",
            "contextId": task_id,
            "taskId": task_id,
            "role": "ROLE_AGENT",
            "parts": parts,
        }
    if case == "completed":
        data: Any = dict(shown["response"])
        part = {"metadata": {"@type": data.pop("@type")}, "data": data}
        part["mediaType"] = "application/json"
        wanted["artifacts"] = [{"artifactId": "response", "name": "response", "parts": [part]}]
    assert WAYS[way](agent, Asked("GetTask", {"id": task_id})) == wanted
    assert ("metadata" in shown) == (case in ("reported", "completed"))


# -- tasks ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def working() -> Iterator[Agent]:
    """Serve an agent whose method does the work."""
    with working_agent() as served:
        yield served


@way
def test_a_task_goes_from_its_start_to_its_end(working: Agent, way: str) -> None:
    """A task is started, awaited, streamed, read, listed and cancelled (A2A 3.1.1-3.1.5, 5.5)."""

    def ask(verb: str, **fields: Any) -> Any:
        return WAYS[way](working, Asked(verb, fields))

    def send(steps: int, verb: str = "SendMessage", **configuration: Any) -> Any:
        said = message(str(uuid.uuid4()), {"steps": steps})
        return ask(verb, message=said, configuration=configuration)["task"]

    ended = send(1)  # CORE-SEND-001
    assert set(ended) == {"id", "contextId", "status", "artifacts", "metadata"}  # DM-SERIAL
    assert ended["contextId"] == ended["id"]  # CORE-MULTI-001a
    assert set(ended["status"]) == {"state", "timestamp"}
    assert ended["status"]["state"] == COMPLETED
    assert re.fullmatch(r"[\d-]{10}T[\d:]{8}(\.\d{3})?Z", ended["status"]["timestamp"])
    assert len(ended["artifacts"]) == 1
    assert ask("GetTask", id=ended["id"], historyLength=1) == ended  # CORE-GET-001, CORE-HIST-002
    begun = send(100, returnImmediately=True)  # CORE-EXECUTION-MODE-002
    assert begun["status"]["state"] in (SUBMITTED, WORKING)
    assert begun["id"] != ended["id"]  # CORE-MULTI-003
    until(lambda: ask("GetTask", id=begun["id"])["status"]["state"], lambda one: one == WORKING)
    streamed = send(1, "SendStreamingMessage")  # CORE-STREAM-001
    page = ask("ListTasks", pageSize=1)  # CORE-LIST-002
    assert set(page) == {"tasks", "nextPageToken", "pageSize", "totalSize"}
    assert page["tasks"][0]["id"] == streamed["id"]
    assert page["nextPageToken"]
    assert ask("ListTasks", pageSize=100)["nextPageToken"] == ""
    assert ask("CancelTask", id=begun["id"])["id"] == begun["id"]  # CORE-CANCEL-001


@pytest.mark.parametrize(
    ("version", "statuses"),
    [
        *(("1.0", (404, 400)), ("1.0.7", (404, 400)), ("", (400, 404)), (None, (400, 404))),
        *(("0.3.1", (400, 404)), ("2.0", (400, 400)), ("0.2", (400, 400)), ("x", (400, 400))),
    ],
)
def test_protocol_version_selects_the_form_of_replies(
    working: Agent, version: str | None, statuses: tuple[int, int]
) -> None:
    """The version header selects the form of replies; a missing header means 0.3 (A2A 3.6)."""
    replies = []
    for path in ("/", "/v1/"):
        request = working.http.build_request("GET", f"{REST}{path}tasks/{MISSING}")
        del request.headers["a2a-version"]
        if version is not None:
            request.headers["a2a-version"] = version
        replies.append(working.http.send(request))
    assert tuple(one.status_code for one in replies) == statuses
    if statuses[0] == 400:
        assert replies[0].json()["error"]["details"][0]["reason"] == "VERSION_NOT_SUPPORTED"


def test_replies_have_their_media_types(working: Agent) -> None:
    """Replies have the media types of A2A 9.1, 11.1 and 14.1.1; streams use SSE (A2A 9.4.2)."""
    http = working.http
    call = {"jsonrpc": "2.0", "id": 1, "method": "ListTasks", "params": {}}
    body = {"message": message("media")}
    rpc = {**call, "method": "SendStreamingMessage", "params": {"message": message("media-2")}}
    own = {"content-type": "application/a2a+json"}
    replies = [
        http.get(f"{REST}/tasks"),
        http.post(f"{REST}/message:send", content=json.dumps(body), headers=own),
        http.post(JSONRPC, json=call),
        http.post(f"{REST}/message:stream", json=body),
        http.post(JSONRPC, json=rpc),
    ]
    assert [one.headers["content-type"].partition(";")[0] for one in replies] == [
        *("application/a2a+json", "application/a2a+json", "application/json"),
        *("text/event-stream", "text/event-stream"),
    ]


# -- errors -----------------------------------------------------------------------------------


@attrs.frozen
class Refusal:
    """A call that is refused, with the reason and text of the error."""

    verb: str
    fields: dict[str, Any]
    reason: str
    says: str
    caller: str = "ann"


MISSING = "P7Ic2222222222222222222"
RUNNING, ENDED = {"id": "$running"}, {"id": "$done"}
PUSH_OF = {"taskId": "$running", "id": "p"}
TEXT = [{"text": "count to three"}]
XML = [{"data": {}, "mediaType": "application/xml"}]
PUSH = {"taskPushNotificationConfig": {"url": "https://client.example"}}
NOT_FOUND = ("TASK_NOT_FOUND", "there is no task")
INVALID, UNSUPPORTED = "INVALID_PARAMS", "UNSUPPORTED_OPERATION"
NO_PUSH = ("PUSH_NOTIFICATION_NOT_SUPPORTED", "Push")
NO_CONTENT = "CONTENT_TYPE_NOT_SUPPORTED"
FORBIDDEN = ("PERMISSION_DENIED", "not bob", "bob")
METHOD = f"{DOMAIN}/method"


def sent(reason: str, says: str, caller: str = "ann", data: Any = None, **more: Any) -> Refusal:
    """Return a SendMessage that is refused, with a message ID that is new in each call."""
    configuration = more.pop("configuration", {})
    fields = {"message": message("$new", data, **more), "configuration": configuration}
    return Refusal("SendMessage", fields, reason, says, caller)


def labelled(label: str, reason: str, says: str) -> Refusal:
    """Return a SendMessage that the application refuses, for the reason in the label."""
    return sent(reason, says, data={"label": label})


REFUSALS = {
    **{
        f"{verb} of {said}": Refusal(verb, fields, *NOT_FOUND, caller)
        for verb in ("GetTask", "CancelTask", "SubscribeToTask")
        for said, fields, caller in (
            ("what is not there", {"id": MISSING}, "ann"),
            ("what is no id", {"id": "operations~1"}, "ann"),
            ("another's", RUNNING, "eve"),
            ("what is forbidden", RUNNING, "bob"),
        )
    },
    # CORE-CANCEL-002, STREAM-SUB-003
    "cancel what has ended": Refusal("CancelTask", ENDED, "TASK_NOT_CANCELABLE", "has ended"),
    "subscribe to what has ended": Refusal("SubscribeToTask", ENDED, UNSUPPORTED, "has ended"),
    # CORE-SEND-002, CORE-MULTI-002a, CORE-MULTI-006
    "follow up what is not there": sent(*NOT_FOUND, taskId=MISSING),
    "follow up another's": sent(*NOT_FOUND, "eve", taskId="$running"),
    "follow up what has ended": sent(UNSUPPORTED, "has ended", taskId="$done"),
    "follow up what goes on": sent(UNSUPPORTED, "takes no further", taskId="$running"),
    "another context": sent(INVALID, "message.context_id", taskId="$running", contextId="other"),
    "start in a context": sent(INVALID, "is not kept", contextId="mine"),
    "wrong field": sent(INVALID, "steps: must be an int32, got 'many'", data={"steps": "many"}),
    "unknown field": sent(INVALID, "is not a field of", data={"stepz": 1}),
    "half a number": sent(INVALID, "steps: must be an int32, got 1.5", data={"steps": 1.5}),
    "no object": sent(INVALID, "must be", data=[1]),
    "unknown skill": sent(INVALID, f"must be one of {MEASURE}, got 'X'", metadata={METHOD: "X"}),
    "skill that is no text": sent(INVALID, "got 3", metadata={METHOD: 3}),
    "another request with the same id": Refusal(
        "SendMessage", {"message": message("$used", {"steps": 4})}, INVALID, "message.message_id"
    ),
    # CORE-SEND-003
    "text": sent(NO_CONTENT, "a message needs a data part", parts=TEXT),
    "xml": sent(NO_CONTENT, "/xml' are not read; the agent reads application/json", parts=XML),
    # CORE-CAP-001, CORE-CAP-003
    "start with a push": sent(*NO_PUSH, configuration=PUSH),
    "create a push": Refusal(
        "CreateTaskPushNotificationConfig", {**PUSH_OF, "url": "https://client.example"}, *NO_PUSH
    ),
    "get a push": Refusal("GetTaskPushNotificationConfig", PUSH_OF, *NO_PUSH),
    "list pushes": Refusal("ListTaskPushNotificationConfigs", {"taskId": "$running"}, *NO_PUSH),
    "delete a push": Refusal("DeleteTaskPushNotificationConfig", PUSH_OF, *NO_PUSH),
    "extended card": Refusal("GetExtendedAgentCard", {}, UNSUPPORTED, "no extended card"),
    # CORE-ERR-002
    "no message": Refusal("SendMessage", {}, INVALID, "Validation failed"),
    "no parts": sent(INVALID, "Validation failed", parts=[]),
    "page of none": Refusal("ListTasks", {"pageSize": 0}, INVALID, "must be from 1 to 100, got 0"),
    "page of 101": Refusal("ListTasks", {"pageSize": 101}, INVALID, "page_size"),
    "false token": Refusal("ListTasks", {"pageToken": "x"}, INVALID, "page_token"),
    "less than no history": Refusal("ListTasks", {"historyLength": -1}, INVALID, "history_length"),
    "start what is forbidden": sent(*FORBIDDEN),
    "list what is forbidden": Refusal("ListTasks", {}, *FORBIDDEN),
    "stream what is forbidden": attrs.evolve(sent(*FORBIDDEN), verb="SendStreamingMessage"),
    "no name": Refusal("GetTask", {"id": MISSING}, "UNAUTHENTICATED", "say who you are", ""),
    "broken hook": Refusal("GetTask", {"id": MISSING}, "INTERNAL", "the server failed", "mallory"),
    "busy target": labelled("busy", "TARGET_BUSY", ""),
    "full": labelled("full", "RESOURCE_EXHAUSTED", "too much"),
    "rule of the application": labelled("odd", INVALID, "no odd ones"),
    "away": labelled("away", "UNAVAILABLE", "later"),
    "a long text": labelled("long", "ABORTED", "é"),
    "a long text of a value": labelled("long value", INVALID, "é"),
    "half a character": labelled("half", "ABORTED", "half"),
    "half a character of a value": labelled("half value", INVALID, "half"),
}


AT_ONCE = {"configuration": {"returnImmediately": True}}
"""Makes SendMessage return before the end of the task, because the tests end the task."""


@pytest.fixture(scope="module")
def ids(agent: Agent) -> dict[str, str]:
    """Return the IDs of tasks and messages, by their placeholders in the table."""
    running, done = (agent.counting.start(caller="ann") for _ in range(2))
    agent.counting.finish(done)
    WAYS["rest"](agent, Asked("SendMessage", {"message": message("used")} | AT_ONCE))
    found = {"$running": running, "$done": done, "$used": "used"}
    return {place: name.rpartition("/")[2] for place, name in found.items()}


@way
@pytest.mark.parametrize("case", REFUSALS)
def test_each_error_is_the_same_in_all_bindings(
    agent: Agent, ids: dict[str, str], way: str, case: str
) -> None:
    """Each error has the same code, reason and text in all bindings (A2A 3.3.2, 5.4)."""
    wanted = REFUSALS[case]
    text = json.dumps(wanted.fields)
    for place, found in (ids | {"$new": f"{way}-{case}"}).items():
        text = text.replace(place, found)
    fields = json.loads(text)
    refused = WAYS[way](agent, Asked(wanted.verb, fields, wanted.caller))
    assert isinstance(refused, Failed)
    assert refused.reason == wanted.reason
    assert wanted.says in refused.message
    assert "secret" not in refused.message
    assert len(refused.message) <= 4000  # gRPC clients refuse long trailers
    if refused.reason == "TASK_NOT_FOUND":  # whether the task exists stays hidden (A2A 13.1)
        task_id = fields.get("id") or fields["message"]["taskId"]
        assert refused.message == f"there is no task {task_id!r}"


def test_retry_after_and_challenge_are_http_headers(agent: Agent) -> None:
    """Over HTTP, errors have headers for the retry delay and the challenge (A2A 3.3.2)."""
    full = {"message": message("full", {"label": "full"})}
    call = {"jsonrpc": "2.0", "id": "x", "method": "SendMessage", "params": full}
    data = {"data": {"label": "full"}}
    said = {"messageId": "full", "role": "ROLE_USER", "content": [{"data": data}]}
    old = {"kind": "message", "role": "user", "parts": [{"kind": "data", **data}], "messageId": "f"}
    old_call = {**call, "method": "message/stream", "params": {"message": old}}
    for path, body, status, version in (
        (f"{REST}/message:send", full, 429, "1.0"),
        (JSONRPC, call, 200, "1.0"),
        (f"{REST}/v1/message:send", {"message": said}, 429, "0.3"),
        (f"{REST}/v1/message:stream", {"message": said}, 429, "0.3"),
        (JSONRPC, old_call, 200, "0.3"),
    ):
        headers = {"a2a-version": version}
        reply = agent.http.post(path, json=body, headers=headers)
        assert (reply.status_code, reply.headers["retry-after"]) == (status, "7")
        assert "too much" in reply.json()["error"]["message"]
        reply = agent.http.post(path, json=body, headers={**headers, "x-caller": ""})
        assert (reply.status_code, reply.headers["www-authenticate"]) == (401, "Bearer")


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", f"tasks/{MISSING}:subscribe", 404),
        ("POST", f"tasks/{MISSING}:subscribe", 404),
        ("POST", "message:stream", 400),
        ("GET", f"tasks/{MISSING}?historyLength=abc", 400),
        ("GET", f"tasks/{MISSING}?historyLength=9999999999", 400),
    ],
)
def test_errors_of_version_0_3_are_returned_over_http(
    agent: Agent, method: str, path: str, status: int
) -> None:
    """Version 0.3 gets proper HTTP errors; without our code, the SDK breaks off or replies 500."""
    body = None if method == "GET" else {"message": {"content": 3}}
    reply = agent.http.request(
        method, f"{REST}/v1/{path}", json=body, headers={"a2a-version": "0.3"}
    )
    assert (reply.status_code, reply.json()["error"]["code"]) == (status, status)
