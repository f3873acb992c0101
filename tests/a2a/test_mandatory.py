"""What A2A 1.0 demands of an agent ("MUST"), each by its section, over each binding.

The requirements are those that the TCK of A2A checks, as far as they concern an agent whose tasks
are operations. It never asks for input or for credentials, answers no Message, and has no other
card. What is demanded of push notifications and of lists is in modules of its own.
"""

from __future__ import annotations

import json
import re
import threading
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import attrs
import pytest

pytest.importorskip("a2a")
pytest.importorskip("grpc")
pytest.importorskip("uvicorn")

import lro
from lro.executors.threads import ThreadExecutor
from lro.stores.memory import MemoryStore
from tests.a2a.serving import JSONRPC, REST, WAYS, Agent, Asked, Failed, message, serving
from tests.http.counting_service import DOMAIN, CountRequest, CountResponse, CountService

MISSING = "P7Ic2222222222222222222"
TERMINAL = "TASK_STATE_COMPLETED"


@attrs.frozen
class Side:
    """An agent by one of its bindings."""

    agent: Agent
    way: str
    go_on: threading.Event

    def __call__(self, verb: str, **fields: Any) -> Any:
        """What the agent answers."""
        return WAYS[self.way](self.agent, Asked(verb, fields))

    def send(self, steps: int = 1, *, at_once: bool = False, **more: Any) -> Any:
        """The task of a new message, or the error; with 100 steps and more it goes on."""
        said = message(str(uuid.uuid4()), {"steps": steps}, **more)
        found = self("SendMessage", message=said, configuration={"returnImmediately": at_once})
        return found if isinstance(found, Failed) else found["task"]

    def refused(self, found: Any, reason: str) -> None:
        """Check that this is the error of that reason."""
        assert isinstance(found, Failed)
        assert found.reason == reason


@pytest.fixture(scope="module")
def served() -> Iterator[tuple[Agent, threading.Event]]:
    """An agent that counts, and what lets long countings end."""
    service = lro.Service(MemoryStore(), ThreadExecutor(16), domain=DOMAIN, maintenance=False)
    go_on = threading.Event()

    @service.method("acme.v1.Things.Count")
    def count(request: CountRequest, job: lro.Job) -> CountResponse:
        while request.steps >= 100 and not go_on.wait(0.01):
            job.progress(0.5)  # a cancel arrives here
        return CountResponse(total=request.steps)

    with serving(CountService(service, count)) as agent:  # type: ignore[arg-type]
        yield agent, go_on
        go_on.set()


@pytest.fixture(params=WAYS)
def side(request: pytest.FixtureRequest, served: tuple[Agent, threading.Event]) -> Side:
    """Each binding in turn."""
    agent, go_on = served
    return Side(agent, request.param, go_on)


def blocking(side: Side) -> None:
    """SendMessage answers a task that has ended, with its artifacts."""
    task = side.send()
    assert (task["status"]["state"], len(task["artifacts"])) == (TERMINAL, 1)


def not_blocking(side: Side) -> None:
    """SendMessage answers at once where that is asked for."""
    task = side.send(100, at_once=True)
    assert task["status"]["state"] in ("TASK_STATE_SUBMITTED", "TASK_STATE_WORKING")


def to_terminal(side: Side) -> None:
    """A task that has ended takes no message."""
    side.refused(side.send(taskId=side.send()["id"]), "UNSUPPORTED_OPERATION")


def media_type(side: Side) -> None:
    """Other media types are refused."""
    part = {"raw": "AAAA", "mediaType": "application/x-unsupported"}
    side.refused(side.send(parts=[part]), "CONTENT_TYPE_NOT_SUPPORTED")


def streamed(side: Side) -> None:
    """A stream begins with the task."""
    first = side("SendStreamingMessage", message=message(f"{side.way}-stream"))
    assert "id" in first.get("result", first)["task"]


def current(side: Side) -> None:
    """GetTask answers the task that SendMessage has answered."""
    task = side.send()
    assert side("GetTask", id=task["id"]) == task


def not_found(side: Side) -> None:
    """Each verb says of what is not there that it is not there."""
    for verb in ("GetTask", "CancelTask", "SubscribeToTask"):
        side.refused(side(verb, id=MISSING), "TASK_NOT_FOUND")
    side.refused(side.send(taskId=MISSING), "TASK_NOT_FOUND")


def canceled(side: Side) -> None:
    """CancelTask answers the task."""
    task = side.send(100, at_once=True)
    assert side("CancelTask", id=task["id"])["id"] == task["id"]


def cancel_over(side: Side) -> None:
    """What has ended cannot be cancelled."""
    side.refused(side("CancelTask", id=side.send()["id"]), "TASK_NOT_CANCELABLE")


def subscribe_over(side: Side) -> None:
    """What has ended cannot be subscribed to."""
    side.refused(side("SubscribeToTask", id=side.send()["id"]), "UNSUPPORTED_OPERATION")


def checked(side: Side) -> None:
    """Required fields are looked at first."""
    for given in ({}, {"message": {}}, {"message": {**message(), "parts": []}}):
        side.refused(side("SendMessage", **given), "INVALID_PARAMS")
    side.refused(
        side("GetTask", id="") if side.way != "rest" else side.send(parts=[]), "INVALID_PARAMS"
    )


def no_push(side: Side) -> None:
    """The card promises none."""
    given = {"taskId": side.send()["id"], "url": "https://a.example"}
    side.refused(
        side("CreateTaskPushNotificationConfig", **given), "PUSH_NOTIFICATION_NOT_SUPPORTED"
    )


def no_extended_card(side: Side) -> None:
    """The card promises none."""
    side.refused(side("GetExtendedAgentCard"), "UNSUPPORTED_OPERATION")


def new_context(side: Side) -> None:
    """A context that is made is shown."""
    assert side.send()["contextId"]


def foreign_context(side: Side) -> None:
    """A context that is not kept is refused, not replaced."""
    side.refused(side.send(contextId="mine"), "INVALID_PARAMS")


def new_ids(side: Side) -> None:
    """Each task has an id of its own."""
    assert side.send()["id"] != side.send()["id"]


def mismatch(side: Side) -> None:
    """A context that is not the task's is refused."""
    side.refused(side.send(taskId=side.send()["id"], contextId="other"), "INVALID_PARAMS")


def history(side: Side) -> None:
    """Never more than was asked for."""
    task = side("GetTask", id=side.send()["id"], historyLength=1)
    assert len(task.get("history", [])) <= 1


def forms(side: Side) -> None:
    """Names in camel case, enums as texts, times in UTC, all that is required."""
    task = side.send()
    assert {"id", "contextId", "status", "artifacts"} <= set(task)
    assert set(task["status"]) == {"state", "timestamp"}
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{3})?Z", task["status"]["timestamp"])
    (artifact,) = task["artifacts"]
    assert artifact["artifactId"]
    assert set(artifact["parts"][0]) == {"data", "metadata", "mediaType"}


def paged(side: Side) -> None:
    """A cursor, all fields on each page, and the empty text at the end."""
    side.send()
    side.send()
    page = side("ListTasks", pageSize=1)
    assert set(page) == {"tasks", "nextPageToken", "pageSize", "totalSize"}
    assert page["nextPageToken"]
    assert side("ListTasks", pageSize=100)["nextPageToken"] == ""


MUST: dict[str, tuple[str, Callable[[Side], None]]] = {
    "CORE-SEND-001": ("3.1.1", blocking),
    "CORE-SEND-002": ("3.1.1", to_terminal),
    "CORE-SEND-003": ("3.1.1", media_type),
    "CORE-STREAM-001": ("3.1.2", streamed),
    "CORE-GET-001": ("3.1.3", current),
    "CORE-GET-002": ("3.1.3", not_found),
    "CORE-LIST-002": ("3.1.4", paged),
    "CORE-CANCEL-001": ("3.1.5", canceled),
    "CORE-CANCEL-002": ("3.1.5", cancel_over),
    "STREAM-SUB-003": ("3.1.6", subscribe_over),
    "CORE-EXECUTION-MODE-002": ("3.2.2", not_blocking),
    "CORE-HIST-002": ("3.2.4", history),
    "CORE-ERR-002": ("3.3.2", checked),
    "CORE-CAP-001": ("3.3.4", no_push),
    "CORE-CAP-003": ("3.3.4", no_extended_card),
    "CORE-MULTI-001a": ("3.4.1", new_context),
    "CORE-MULTI-002a": ("3.4.1", foreign_context),
    "CORE-MULTI-003": ("3.4.2", new_ids),
    "CORE-MULTI-006": ("3.4.3", mismatch),
    "DM-SERIAL": ("4.1, 5.5-5.7", forms),
}
"""By the name that the TCK has for it: the section, and the check."""


@pytest.mark.parametrize("requirement", MUST)
def test_each_requirement_is_met_over_each_binding(side: Side, requirement: str) -> None:
    """The section is in the table."""
    section, check = MUST[requirement]
    assert section
    check(side)


def test_the_card_declares_all_that_is_required(served: tuple[Agent, threading.Event]) -> None:
    """A2A 4.4.1, 8.1-8.3: fields, interfaces with binding, version and URL."""
    card = served[0].http.get("/.well-known/agent-card.json").json()
    required = {"name", "description", "supportedInterfaces", "version", "capabilities", "skills"}
    assert required | {"defaultInputModes", "defaultOutputModes"} <= set(card)
    for one in card["supportedInterfaces"]:
        assert set(one) == {"url", "protocolBinding", "protocolVersion"}
    for skill in card["skills"]:
        assert {"id", "name", "description", "tags"} <= set(skill)


@pytest.mark.parametrize(
    ("version", "served_as"), [("1.0", "1.0"), ("1.0.7", "1.0"), ("", "0.3"), (None, "0.3")]
)
def test_versions_are_distinguished(
    served: tuple[Agent, threading.Event], version: str | None, served_as: str
) -> None:
    """A2A 3.6: patches do not count, and no version is 0.3."""
    headers = {} if version is None else {"A2A-Version": version}
    http = served[0].http
    if version is None:
        http = type(http)(base_url=http.base_url)
    replies = {
        "1.0": http.get(f"{REST}/tasks/{MISSING}", headers=headers),
        "0.3": http.get(f"{REST}/v1/tasks/{MISSING}", headers=headers),
    }
    found = {number: reply.status_code for number, reply in replies.items()}
    assert found[served_as] == 404
    assert found["0.3" if served_as == "1.0" else "1.0"] == 400
    if version is None:
        http.close()


def test_replies_have_their_media_types(served: tuple[Agent, threading.Event]) -> None:
    """A2A 9.1, 11.1, 14.1.1; streams are of events (9.4.2, 11.7)."""
    http = served[0].http
    call = {"jsonrpc": "2.0", "id": 1, "method": "ListTasks", "params": {}}
    body = {"message": message("media")}
    rpc = {**call, "method": "SendStreamingMessage", "params": {"message": message("media-2")}}
    own = {"content-type": "application/a2a+json"}
    kinds = [
        http.get(f"{REST}/tasks"),
        http.post(JSONRPC, json=call),
        http.post(f"{REST}/message:stream", json=body),
        http.post(JSONRPC, json=rpc),
        http.post(f"{REST}/message:send", content=json.dumps(body), headers=own),
    ]
    assert [one.headers["content-type"].partition(";")[0] for one in kinds] == [
        "application/a2a+json",
        "application/json",
        "text/event-stream",
        "text/event-stream",
        "application/a2a+json",
    ]
