"""Every state and every error of A2A once, over all three bindings (A2A 4.1.3, 5.4).

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
from lro.executors.threads import ThreadExecutor
from lro.stores.memory import MemoryStore
from tests.a2a.serving import (
    COUNT,
    JSONRPC,
    REST,
    WAYS,
    Agent,
    Asked,
    Failed,
    message,
    serving,
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
    """Refuse a request as its label says."""
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
    """Allows each caller except bob."""
    if caller == "bob":
        raise lro.errors.PermissionDenied("not bob")


@pytest.fixture(scope="module")
def agent() -> Iterator[Agent]:
    """An agent whose tasks belong to their callers, and which has something to refuse."""
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
    """End well, with metadata."""
    response = CountResponse(total=2**31 - 1, quality=Quality.GOOD)
    worker.complete(response, metadata=CountMetadata(percent=100))


def fail(worker: lro.Reporter) -> None:
    """End with an error of the work."""
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
"""What the work does, the state, and the text beside it."""


@way
@pytest.mark.parametrize("case", STATES)
def test_each_state_is_shown_with_its_fields(agent: Agent, way: str, case: str) -> None:
    """A task is the operation that HTTP and gRPC show, field by field (A2A 4.1)."""
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
    wanted: dict[str, Any] = {
        "id": task_id,
        "contextId": task_id,
        "status": status,
        "metadata": metadata,
    }
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


# -- what a task does -------------------------------------------------------------------------


@pytest.fixture(scope="module")
def working() -> Iterator[Agent]:
    """An agent that counts by itself, from 100 steps on until it is cancelled."""
    service = lro.Service(MemoryStore(), ThreadExecutor(4), domain=DOMAIN, maintenance=False)

    @service.method(COUNT)
    def count(request: CountRequest, job: lro.Job) -> CountResponse:
        while request.steps >= 100:
            job.sleep(60)
        return CountResponse(total=request.steps)

    with serving(CountService(service, count)) as served:  # type: ignore[arg-type]
        yield served


@way
def test_a_task_goes_from_its_start_to_its_end(working: Agent, way: str) -> None:
    """Started, waited for, followed, read, listed, cancelled (A2A 3.1.1-3.1.5, 3.2, 3.4, 5.5)."""

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
        *(("2.0", (400, 400)), ("0.2", (400, 400)), ("x", (400, 400))),
    ],
)
def test_versions_are_distinguished(
    working: Agent, version: str | None, statuses: tuple[int, int]
) -> None:
    """Patches do not count, and no version is 0.3 (A2A 3.6)."""
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
    """A2A 9.1, 11.1, 14.1.1; streams are of events (9.4.2, 11.7)."""
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
    """A call that is refused, and with what."""

    verb: str
    fields: dict[str, Any]
    status: str
    reason: str
    says: str
    caller: str = "ann"


MISSING = "P7Ic2222222222222222222"
PUSH = {"taskId": "$running", "url": "https://client.example/push"}


def send(data: Any = None, configuration: Any = None, **more: Any) -> dict[str, Any]:
    """The request of a SendMessage, with an id that is new each time."""
    made = {"message": message("$new", data, **more)}
    return made | ({} if configuration is None else {"configuration": configuration})


TEXT = [{"text": "count to three"}]
NOT_FOUND = ("NOT_FOUND", "TASK_NOT_FOUND", "there is no task")
INVALID = ("INVALID_ARGUMENT", "INVALID_PARAMS")
UNSUPPORTED = ("FAILED_PRECONDITION", "UNSUPPORTED_OPERATION")
NO_PUSH = ("FAILED_PRECONDITION", "PUSH_NOTIFICATION_NOT_SUPPORTED", "Push")
NO_CONTENT = ("INVALID_ARGUMENT", "CONTENT_TYPE_NOT_SUPPORTED")
REFUSALS = {
    "get what is not there": Refusal("GetTask", {"id": MISSING}, *NOT_FOUND),
    "get by what is no id": Refusal("GetTask", {"id": "operations~1"}, *NOT_FOUND),
    "get another's": Refusal("GetTask", {"id": "$running"}, *NOT_FOUND, "eve"),
    "get what is forbidden": Refusal("GetTask", {"id": "$running"}, *NOT_FOUND, "bob"),
    "cancel what is not there": Refusal("CancelTask", {"id": MISSING}, *NOT_FOUND),
    "cancel another's": Refusal("CancelTask", {"id": "$running"}, *NOT_FOUND, "eve"),
    "cancel what has ended": Refusal(
        "CancelTask", {"id": "$done"}, "FAILED_PRECONDITION", "TASK_NOT_CANCELABLE", "has ended"
    ),
    "subscribe to what is not there": Refusal("SubscribeToTask", {"id": MISSING}, *NOT_FOUND),
    "subscribe to another's": Refusal("SubscribeToTask", {"id": "$running"}, *NOT_FOUND, "eve"),
    "subscribe to what has ended": Refusal(
        "SubscribeToTask", {"id": "$done"}, *UNSUPPORTED, "has ended"
    ),
    "follow up what is not there": Refusal("SendMessage", send(taskId=MISSING), *NOT_FOUND),
    "follow up another's": Refusal("SendMessage", send(taskId="$running"), *NOT_FOUND, "eve"),
    "follow up what has ended": Refusal(
        "SendMessage", send(taskId="$done"), *UNSUPPORTED, "has ended"
    ),
    "follow up what goes on": Refusal(
        "SendMessage", send(taskId="$running"), *UNSUPPORTED, "takes no further messages"
    ),
    "follow up in another context": Refusal(
        "SendMessage", send(taskId="$running", contextId="other"), *INVALID, "message.context_id"
    ),
    "start in a context": Refusal("SendMessage", send(contextId="mine"), *INVALID, "is not kept"),
    "start with a wrong field": Refusal(
        "SendMessage", send({"steps": "many"}), *INVALID, "steps: must be an int32, got 'many'"
    ),
    "start with an unknown field": Refusal(
        "SendMessage", send({"stepz": 1}), *INVALID, "is not a field of"
    ),
    "start with half a number": Refusal(
        "SendMessage", send({"steps": 1.5}), *INVALID, "steps: must be an int32, got 1.5"
    ),
    "start with no object": Refusal("SendMessage", send([1]), *INVALID, "must be"),
    "start an unknown skill": Refusal(
        "SendMessage",
        send(metadata={f"{DOMAIN}/method": "acme.v1.Other"}),
        *INVALID,
        f"must be one of {MEASURE}, got 'acme.v1.Other'",
    ),
    "name the skill by no text": Refusal(
        "SendMessage", send(metadata={f"{DOMAIN}/method": 3}), *INVALID, "got 3"
    ),
    "start again with another request": Refusal(
        "SendMessage", {"message": message("$used", {"steps": 4})}, *INVALID, "message.message_id"
    ),
    "start by text": Refusal(
        "SendMessage", send(parts=TEXT), *NO_CONTENT, "a message needs a data part"
    ),
    "start by another media type": Refusal(
        "SendMessage",
        send(parts=[{"data": {}, "mediaType": "application/xml"}]),
        *NO_CONTENT,
        "parts of 'application/xml' are not read; the agent reads application/json",
    ),
    "start with a push": Refusal(
        "SendMessage",
        send(configuration={"taskPushNotificationConfig": {"url": "https://client.example"}}),
        *NO_PUSH,
    ),
    "create a push": Refusal("CreateTaskPushNotificationConfig", PUSH, *NO_PUSH),
    "get a push": Refusal(
        "GetTaskPushNotificationConfig", {"taskId": "$running", "id": "p"}, *NO_PUSH
    ),
    "list pushes": Refusal("ListTaskPushNotificationConfigs", {"taskId": "$running"}, *NO_PUSH),
    "delete a push": Refusal(
        "DeleteTaskPushNotificationConfig", {"taskId": "$running", "id": "p"}, *NO_PUSH
    ),
    "get the extended card": Refusal("GetExtendedAgentCard", {}, *UNSUPPORTED, "no extended card"),
    "say no message": Refusal("SendMessage", {}, *INVALID, "Validation failed"),
    "say no parts": Refusal("SendMessage", send(parts=[]), *INVALID, "Validation failed"),
    "list a page of none": Refusal(
        "ListTasks", {"pageSize": 0}, *INVALID, "page_size: must be from 1 to 100, got 0"
    ),
    "list a page of 101": Refusal("ListTasks", {"pageSize": 101}, *INVALID, "page_size"),
    "list by a false token": Refusal("ListTasks", {"pageToken": "x"}, *INVALID, "page_token"),
    "list less than no history": Refusal(
        "ListTasks", {"historyLength": -1}, *INVALID, "history_length"
    ),
    "start what is forbidden": Refusal(
        "SendMessage", send(), "PERMISSION_DENIED", "PERMISSION_DENIED", "not bob", "bob"
    ),
    "list what is forbidden": Refusal(
        "ListTasks", {}, "PERMISSION_DENIED", "PERMISSION_DENIED", "not bob", "bob"
    ),
    "stream what is forbidden": Refusal(
        "SendStreamingMessage", send(), "PERMISSION_DENIED", "PERMISSION_DENIED", "not bob", "bob"
    ),
    "say no name": Refusal(
        "GetTask", {"id": MISSING}, "UNAUTHENTICATED", "UNAUTHENTICATED", "say who you are", ""
    ),
    "say a name that breaks the hook": Refusal(
        "GetTask", {"id": MISSING}, "INTERNAL", "INTERNAL", "the server failed", "mallory"
    ),
    "start what is busy": Refusal(
        "SendMessage", send({"label": "busy"}), "ABORTED", "TARGET_BUSY", ""
    ),
    "start what is too much": Refusal(
        "SendMessage", send({"label": "full"}), "RESOURCE_EXHAUSTED", "RESOURCE_EXHAUSTED", "much"
    ),
    "start what a rule of the application forbids": Refusal(
        "SendMessage", send({"label": "odd"}), *INVALID, "no odd ones"
    ),
    "start while away": Refusal(
        "SendMessage", send({"label": "away"}), "UNAVAILABLE", "UNAVAILABLE", "later"
    ),
    **{
        f"start with {said}": Refusal("SendMessage", send({"label": label}), *error, says)
        for said, label, error, says in (
            ("a long text", "long", ("ABORTED", "ABORTED"), "é"),
            ("a long text of a value", "long value", INVALID, "é"),
            ("half a character", "half", ("ABORTED", "ABORTED"), "half"),
            ("half a character of a value", "half value", INVALID, "half"),
        )
    },
}


AT_ONCE = {"configuration": {"returnImmediately": True}}
"""Makes a SendMessage answer before the end, which these tests bring about."""


@pytest.fixture(scope="module")
def ids(agent: Agent) -> dict[str, str]:
    """Ids of tasks and messages, by what stands for them in the table."""
    running, done = (agent.counting.start(caller="ann") for _ in range(2))
    agent.counting.finish(done)
    WAYS["rest"](agent, Asked("SendMessage", {"message": message("used")} | AT_ONCE))
    found = {"$running": running, "$done": done, "$used": "used"}
    return {place: name.rpartition("/")[2] for place, name in found.items()}


@way
@pytest.mark.parametrize("case", REFUSALS)
def test_each_error_is_said_alike_by_all_bindings(
    agent: Agent, ids: dict[str, str], way: str, case: str
) -> None:
    """Code, status, reason and sentence; nothing of what went wrong inside (A2A 3.3.2, 5.4)."""
    wanted = REFUSALS[case]
    text = json.dumps(wanted.fields)
    for place, found in (ids | {"$new": f"{way}-{case}"}).items():
        text = text.replace(place, found)
    fields = json.loads(text)
    refused = WAYS[way](agent, Asked(wanted.verb, fields, wanted.caller))
    assert isinstance(refused, Failed)
    assert (refused.status, refused.reason) == (wanted.status, wanted.reason)
    assert wanted.says in refused.message
    assert "secret" not in refused.message
    assert len(refused.message) <= 4000  # clients of gRPC refuse long trailers
    if refused.reason == "TASK_NOT_FOUND":  # whether it exists is not shown (A2A 13.1)
        task_id = fields.get("id") or fields["message"]["taskId"]
        assert refused.message == f"there is no task {task_id!r}"


def test_retry_and_challenge_stand_in_headers(agent: Agent) -> None:
    """What HTTP says beside the body (A2A 3.3.2: retry guidance, challenge)."""
    full = {"message": message("full", {"label": "full"})}
    call = {"jsonrpc": "2.0", "id": "x", "method": "SendMessage", "params": full}
    for path, body, status in ((f"{REST}/message:send", full, 429), (JSONRPC, call, 200)):
        reply = agent.http.post(path, json=body)
        assert (reply.status_code, reply.headers["retry-after"]) == (status, "7")
        reply = agent.http.post(path, json=body, headers={"x-caller": ""})
        assert (reply.status_code, reply.headers["www-authenticate"]) == (401, "Bearer")
