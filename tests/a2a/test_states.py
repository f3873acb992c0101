"""Every state and every error of A2A once, over all three bindings (A2A 4.1.3, 5.4)."""

from __future__ import annotations

import threading
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
from tests.a2a.serving import COUNT, WAYS, Agent, Asked, Failed, message, serving
from tests.http.counting_service import (
    DOMAIN,
    NOW,
    CountMetadata,
    CountRequest,
    CountResponse,
    CountService,
    build,
)

way = pytest.mark.parametrize("way", WAYS)
STAMP = NOW.isoformat().replace("+00:00", "Z")
METADATA = "type.googleapis.com/acme.v1.CountMetadata"
RESPONSE = "type.googleapis.com/acme.v1.CountResponse"


@pytest.fixture(scope="module")
def agent() -> Iterator[Agent]:
    """An agent whose tasks belong to their callers."""
    with serving() as served:
        yield served


def start(agent: Agent, **options: Any) -> str:
    """The name of a new operation of ann."""
    return agent.counting.start(caller="ann", **options)


def the_status(agent: Agent, name: str) -> Any:
    """The error of an operation as HTTP shows it."""
    operation = agent.service.get(name, caller="ann")
    return lro.wire.operation_to_json(operation, agent.service.types)["error"]


def nothing(agent: Agent, name: str) -> None:
    """Leave the operation as it is."""


def report(agent: Agent, name: str) -> None:
    """Report metadata."""
    agent.service.reporter(name).report(CountMetadata(percent=40))


def ask_to_stop(agent: Agent, name: str) -> None:
    """Ask for the work to stop, which it does not yet."""
    agent.service.cancel(name, caller="ann")


def succeed(agent: Agent, name: str) -> None:
    """End well."""
    agent.counting.finish(name, total=2**31 - 1)


def finish_without(agent: Agent, name: str) -> None:
    """End without a result."""
    agent.service.reporter(name).finish()


def fail(agent: Agent, name: str) -> None:
    """End with an error of the work."""
    agent.service.reporter(name).fail(lro.StatusError(lro.Code.DATA_LOSS, "lost it", why="LOST"))


def stop(agent: Agent, name: str) -> None:
    """End as cancelled."""
    ask_to_stop(agent, name)
    agent.service.reporter(name).acknowledge_cancel()


STATES: dict[str, tuple[Callable[[Agent, str], None], dict[str, Any], Any]] = {
    "submitted": (nothing, {"state": "TASK_STATE_SUBMITTED"}, None),
    "reported": (report, {"state": "TASK_STATE_SUBMITTED"}, None),
    "cancel requested": (
        ask_to_stop,
        {"state": "TASK_STATE_SUBMITTED", "parts": [{"text": "cancellation requested"}]},
        None,
    ),
    "completed": (
        succeed,
        {"state": "TASK_STATE_COMPLETED"},
        {"data": {"total": 2**31 - 1}, "metadata": {"@type": RESPONSE}},
    ),
    "completed without a result": (finish_without, {"state": "TASK_STATE_COMPLETED"}, None),
    "failed": (fail, {"state": "TASK_STATE_FAILED", "parts": "lost it"}, None),
    "canceled": (
        stop,
        {"state": "TASK_STATE_CANCELED", "parts": "the operation was cancelled"},
        None,
    ),
}


@way
@pytest.mark.parametrize("case", STATES)
def test_each_state_is_shown_with_its_fields(agent: Agent, way: str, case: str) -> None:
    """A task is the operation, field by field (A2A 4.1)."""
    act, said, artifact = STATES[case]
    name = start(agent)
    act(agent, name)
    task_id = name.rpartition("/")[2]

    task = WAYS[way](agent, Asked("GetTask", {"id": task_id}))

    status: dict[str, Any] = {"state": said["state"], "timestamp": STAMP}
    parts = said.get("parts")
    if isinstance(parts, str):
        data = {"data": the_status(agent, name), "mediaType": "application/json"}
        parts = [{"text": parts}, data]
    if parts is not None:
        status["message"] = {
            "messageId": f"{task_id}-status",
            "contextId": task_id,
            "taskId": task_id,
            "role": "ROLE_AGENT",
            "parts": parts,
        }
    metadata: dict[str, Any] = {f"{DOMAIN}/method": COUNT}
    if case == "reported":
        metadata[f"{DOMAIN}/metadata"] = {"@type": METADATA, "percent": 40}
    wanted: dict[str, Any] = {
        "id": task_id,
        "contextId": task_id,
        "status": status,
        "metadata": metadata,
    }
    if artifact is not None:
        part = {**artifact, "mediaType": "application/json"}
        wanted["artifacts"] = [{"artifactId": "response", "name": "response", "parts": [part]}]
    assert task == wanted


@way
def test_work_that_has_begun_is_working(way: str) -> None:
    """A claim makes of a submitted task one that is worked on (A2A 4.1.3)."""
    begun, go_on = threading.Event(), threading.Event()
    service = lro.Service(MemoryStore(), ThreadExecutor(1), domain=DOMAIN, maintenance=False)

    @service.method("acme.v1.Things.Hold")
    def hold(request: CountRequest) -> CountResponse:
        begun.set()
        assert go_on.wait(60)
        return CountResponse()

    with serving(CountService(service, hold)) as agent:  # type: ignore[arg-type]
        asked = {"message": message(way), "configuration": {"returnImmediately": True}}
        first = WAYS[way](agent, Asked("SendMessage", asked))["task"]
        assert first["status"]["state"] in ("TASK_STATE_SUBMITTED", "TASK_STATE_WORKING")
        assert begun.wait(60)
        second = WAYS[way](agent, Asked("GetTask", {"id": first["id"]}))
        assert second["status"]["state"] == "TASK_STATE_WORKING"
        go_on.set()


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
        f"must be one of {COUNT}, got 'acme.v1.Other'",
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
}


def refuse(request: CountRequest) -> None:
    """Refuse a request as its label says."""
    if request.label == "full":
        raise lro.errors.ResourceExhausted("too much to do", timedelta(seconds=7))
    if request.label == "odd":
        raise lro.StatusError(lro.Code.INVALID_ARGUMENT, "no odd ones")
    if request.label == "away":
        raise lro.errors.Unavailable("come later")


def authorize(caller: str, verb: str, name: str) -> None:
    """Allows each caller except bob."""
    if caller == "bob":
        raise lro.errors.PermissionDenied("not bob")


@pytest.fixture(scope="module")
def refusing() -> Iterator[tuple[Agent, dict[str, str]]]:
    """An agent that has something to refuse, and ids for it."""
    counting = build(owner_only=True, authorize=authorize)
    options = lro.Options(
        validate=refuse, exclusive_target=lambda request: "it" if request.label == "busy" else ""
    )
    service = counting.service
    method = service.declare(
        "acme.v1.Things.Measure",
        request=CountRequest,
        response=CountResponse,
        metadata=CountMetadata,
        options=options,
    )
    method.start(CountRequest(label="busy"), caller="ann")
    with serving(CountService(service, method), methods=[method]) as agent:
        running = agent.counting.start(caller="ann")
        done = agent.counting.start(caller="ann")
        agent.counting.finish(done)
        WAYS["rest"](agent, Asked("SendMessage", {"message": message("used")} | AT_ONCE))
        ids = {"$running": running.rpartition("/")[2], "$done": done.rpartition("/")[2]}
        yield agent, ids | {"$used": "used"}


AT_ONCE = {"configuration": {"returnImmediately": True}}
"""Makes a SendMessage answer before the end, which these tests bring about."""


def filled(value: Any, places: dict[str, str]) -> Any:
    """A request with its ids in it."""
    if isinstance(value, dict):
        return {key: filled(one, places) for key, one in value.items()}
    if isinstance(value, list):
        return [filled(one, places) for one in value]
    if isinstance(value, str):
        return places.get(value, value).replace(COUNT, "acme.v1.Things.Measure")
    return value


@way
@pytest.mark.parametrize("case", REFUSALS)
def test_each_error_is_said_alike_by_all_bindings(
    refusing: tuple[Agent, dict[str, str]], way: str, case: str
) -> None:
    """Code, status, reason and sentence; nothing of what went wrong inside (A2A 3.3.2, 5.4)."""
    agent, ids = refusing
    wanted = REFUSALS[case]
    fields = filled(wanted.fields, ids | {"$new": f"{way}-{case}"})
    found = WAYS[way](agent, Asked(wanted.verb, fields, wanted.caller))
    assert isinstance(found, Failed)
    assert (found.status, found.reason) == (wanted.status, wanted.reason)
    assert wanted.says.replace(COUNT, "acme.v1.Things.Measure") in found.message
    assert "secret" not in found.message


def test_retry_and_challenge_stand_in_headers(refusing: tuple[Agent, dict[str, str]]) -> None:
    """What HTTP says beside the body (A2A 3.3.2: retry guidance, challenge)."""
    agent, _ = refusing
    full = {"message": message("full", {"label": "full"})}
    call = {"jsonrpc": "2.0", "id": "x", "method": "SendMessage", "params": full}
    replies = [
        agent.http.post("/a2a/rest/message:send", json=full),
        agent.http.post("/a2a/jsonrpc", json=call),
    ]
    assert [(one.status_code, one.headers["retry-after"]) for one in replies] == [
        (429, "7"),
        (200, "7"),
    ]
    for path in ("/a2a/rest/tasks", "/a2a/jsonrpc"):
        kind = "GET" if path.endswith("tasks") else "POST"
        reply = agent.http.request(
            kind, path, headers={"x-caller": ""}, json=call if kind == "POST" else None
        )
        assert (reply.status_code, reply.headers["www-authenticate"]) == (401, "Bearer")


def test_another_callers_task_is_not_found_in_the_same_words(agent: Agent) -> None:
    """Whether it exists is not shown (A2A 13.1)."""
    task_id = start(agent).rpartition("/")[2]
    other = task_id[:-1] + ("A" if task_id[-1] != "A" else "B")
    for ask in WAYS.values():
        theirs = ask(agent, Asked("GetTask", {"id": task_id}, "eve"))
        missing = ask(agent, Asked("GetTask", {"id": other}, "eve"))
        assert attrs.evolve(theirs, message=theirs.message.replace(task_id, other)) == missing
