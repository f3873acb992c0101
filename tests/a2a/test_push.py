"""Push notifications: configurations, what is sent, and what is never shown (A2A 3.1.7, 4.3)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest

pytest.importorskip("a2a")
pytest.importorskip("grpc")
pytest.importorskip("uvicorn")

from google.protobuf import json_format

import lro
from a2a.server.context import ServerCallContext
from a2a.types import StreamResponse, TaskPushNotificationConfig
from lro.a2a import PUSH, Handler, PushFormat, agent_card
from lro.errors import DeclarationError
from lro.stores.sqlite import SQLiteStore
from lro.webhooks import Endpoint, Webhooks
from tests.a2a.serving import WAYS, Agent, Asked, Failed, make_agent, message, serving
from tests.http.counting_service import DOMAIN, NOW, CountService, build
from tests.webhooks.receivers import Receiver, receiver
from tests.work_messages import WorkRequest, WorkResponse

SECRET = "whsec_" + "A" * 32
CONTEXT = ServerCallContext(state={"headers": {"x-caller": "ann"}})


@attrs.frozen
class Pushing:
    """An agent that pushes, its webhooks, and a receiver."""

    agent: Agent
    webhooks: Webhooks
    to: Receiver

    def ask(self, way: str, verb: str, caller: str = "ann", **fields: Any) -> Any:
        """What a binding answers."""
        return WAYS[way](self.agent, Asked(verb, fields, caller))

    def start(self, config: Any = None, **more: Any) -> str:
        """The id of a new task of ann."""
        configuration = {"returnImmediately": True}
        if config is not None:
            configuration["taskPushNotificationConfig"] = config
        made = {"message": message(**more), "configuration": configuration}
        found = self.ask("jsonrpc", "SendMessage", **made)
        return found if isinstance(found, Failed) else str(found["task"]["id"])

    def end(self, task_id: str) -> None:
        """End the task, and send what that owes."""
        self.agent.counting.finish(f"operations/{task_id}")
        self.webhooks.run_due()


def pushing_service(store: Any = None, **options: Any) -> tuple[CountService, Webhooks]:
    """A service whose ends are pushed, also to http."""
    types = lro.TypeRegistry()
    formats = {PUSH: PushFormat(types, DOMAIN)}
    options = {"allow_private": True, "allow_http": True, "ports": None} | options
    webhooks = Webhooks(formats=formats, **options)
    return build(store, types=types, owner_only=True, webhooks=webhooks), webhooks


@pytest.fixture(params=["memory", "sqlite"])
def pushing(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Pushing]:
    """An agent that pushes, on either store."""
    sqlite = request.param == "sqlite"
    store = SQLiteStore(tmp_path / "operations.db", clock=lambda: NOW) if sqlite else None
    counting, webhooks = pushing_service(store)
    with serving(counting, webhooks=webhooks) as agent, receiver() as to:
        yield Pushing(agent, webhooks, to)


def test_the_end_is_pushed_to_where_the_start_asked_for(pushing: Pushing) -> None:
    """A StreamResponse with the task, the token, and the credentials (A2A 4.3.3)."""
    authentication = {"scheme": "Bearer", "credentials": "s3cret"}
    config = {"url": pushing.to.url, "token": "t0ken", "authentication": authentication}
    task_id = pushing.start(config)
    pushing.end(task_id)
    got = pushing.to.next()
    assert got.headers["content-type"] == "application/a2a+json"
    assert got.headers["x-a2a-notification-token"] == "t0ken"
    assert got.headers["authorization"] == "Bearer s3cret"
    assert json_format.Parse(got.body, StreamResponse()).task.id == task_id
    assert json.loads(got.body) == {"task": pushing.ask("rest", "GetTask", id=task_id)}


def test_a_large_task_is_pushed_without_its_artifacts(pushing: Pushing) -> None:
    """GetTask gives them."""
    service = pushing.agent.service
    method = service.declare("acme.v1.Things.Write", request=WorkRequest, response=WorkResponse)
    name = method.start(WorkRequest()).name
    service.reporter(name).complete(WorkResponse(text="x" * 20_000))
    described = service.describe(name)
    event: Any = None
    kind, body = PushFormat(service.types, DOMAIN)(
        described, Endpoint(url="https://a.example"), event
    )
    assert kind == "application/a2a+json"
    assert "artifacts" not in json.loads(body)["task"]


@pytest.mark.parametrize("way", WAYS)
def test_configurations_come_and_go_while_the_task_goes_on(pushing: Pushing, way: str) -> None:
    """Created, shown without secrets, replaced, listed, deleted (A2A 3.1.7-3.1.10)."""
    task_id = pushing.start()
    url = pushing.to.url
    given = {"taskId": task_id, "id": "mine", "url": url, "token": "t0ken"}
    shown = {"taskId": task_id, "id": "mine", "url": url}
    before = pushing.agent.service.describe(f"operations/{task_id}", caller="ann")
    assert pushing.ask(way, "CreateTaskPushNotificationConfig", **given) == shown
    again = pushing.ask(way, "CreateTaskPushNotificationConfig", **given)
    other = pushing.ask(way, "CreateTaskPushNotificationConfig", taskId=task_id, url=url)
    assert (again, other["url"], other["id"][:3]) == (shown, url, "ep_")
    one = {"taskId": task_id, "id": "mine"}
    assert pushing.ask(way, "GetTaskPushNotificationConfig", **one) == shown
    listed = pushing.ask(way, "ListTaskPushNotificationConfigs", taskId=task_id)
    assert listed["configs"] == [shown, other]
    for _ in range(2):
        assert pushing.ask(way, "DeleteTaskPushNotificationConfig", **one) == {}
    gone = pushing.ask(way, "GetTaskPushNotificationConfig", **one)
    assert (gone.reason, gone.message) == (
        "TASK_NOT_FOUND",
        "there is no push notification config 'mine'",
    )
    assert pushing.agent.service.describe(f"operations/{task_id}", caller="ann") == before
    pushing.end(task_id)
    assert [json.loads(one.body)["task"]["id"] for one in pushing.to.all()] == [task_id]


@pytest.mark.parametrize("way", WAYS)
def test_what_cannot_be_pushed_to_is_refused(pushing: Pushing, way: str) -> None:
    """By the rules of webhooks; the field is that of the configuration."""
    task_id = pushing.start()
    many = {"url": "ftp://a.example", "id": "x", "taskId": task_id}
    found = pushing.ask(way, "CreateTaskPushNotificationConfig", **many)
    assert found.reason == "INVALID_PARAMS"
    text = "task_push_notification_config.url: must be an absolute http or https URL"
    assert found.message == text
    for number in range(10):
        pushing.ask(
            way,
            "CreateTaskPushNotificationConfig",
            taskId=task_id,
            url=f"{pushing.to.url}/{number}",
        )
    found = pushing.ask(
        way, "CreateTaskPushNotificationConfig", taskId=task_id, url=f"{pushing.to.url}/more"
    )
    assert found.message == "task_push_notification_config: must be at most 10 endpoints"
    bad = pushing.start({"url": "no"}, message_id="bad")
    assert isinstance(bad, Failed)
    assert bad.reason == "INVALID_PARAMS"


@pytest.mark.parametrize("way", WAYS)
def test_another_callers_configurations_are_not_found(pushing: Pushing, way: str) -> None:
    """As their tasks."""
    task_id = pushing.start({"url": pushing.to.url, "id": "mine"})
    one = {"taskId": task_id, "id": "mine"}
    for verb, fields in (
        ("CreateTaskPushNotificationConfig", {"taskId": task_id, "url": pushing.to.url}),
        ("GetTaskPushNotificationConfig", one),
        ("ListTaskPushNotificationConfigs", {"taskId": task_id}),
        ("DeleteTaskPushNotificationConfig", one),
    ):
        found = pushing.ask(way, verb, "eve", **fields)
        assert (found.reason, found.message) == ("TASK_NOT_FOUND", f"there is no task '{task_id}'")


def test_a_task_that_has_ended_takes_no_configuration(pushing: Pushing) -> None:
    """It has nothing to push any more; what it has can be deleted."""
    task_id = pushing.start({"url": pushing.to.url, "id": "mine"})
    pushing.agent.counting.finish(f"operations/{task_id}")
    found = pushing.ask(
        "rest", "CreateTaskPushNotificationConfig", taskId=task_id, url=pushing.to.url
    )
    assert (found.reason, "has ended" in found.message) == ("UNSUPPORTED_OPERATION", True)
    pushing.ask("rest", "DeleteTaskPushNotificationConfig", taskId=task_id, id="mine")
    pushing.webhooks.run_due()
    assert pushing.to.all() == []


def test_endpoints_of_the_application_are_not_configurations(pushing: Pushing) -> None:
    """Clients neither see nor delete them."""
    endpoint = Endpoint(url=pushing.to.url, id="own", secrets=(SECRET,))
    counting = pushing.agent.counting
    task_id = counting.start(caller="ann", notify=[endpoint]).rpartition("/")[2]
    one = {"taskId": task_id, "id": "own"}
    assert pushing.ask("rest", "ListTaskPushNotificationConfigs", taskId=task_id) == {}
    assert pushing.ask("rest", "DeleteTaskPushNotificationConfig", **one) == {}
    pushing.end(task_id)
    assert len(pushing.to.all()) == 1


@pytest.mark.parametrize("looked_up", [True, False])
def test_a_configuration_takes_the_place_of_no_endpoint_of_the_application(looked_up: bool) -> None:
    """Whatever id a client gives it: both are notified."""
    with receiver() as to:
        own = Endpoint(url=f"{to.url}/own", id="own", secrets=(SECRET,))
        options: dict[str, Any] = {"lookup": lambda *_: [own]} if looked_up else {}
        counting, webhooks = pushing_service(**options)
        with serving(counting, webhooks=webhooks) as agent:
            name = counting.start(caller="ann", notify=[] if looked_up else [own])
            given = {"taskId": name.rpartition("/")[2], "id": "own", "url": f"{to.url}/client"}
            found = WAYS["rest"](agent, Asked("CreateTaskPushNotificationConfig", given))
            assert found == given
            counting.finish(name)
            webhooks.run_due()
        assert sorted(one.path for one in to.all()) == ["/hook/client", "/hook/own"]


def test_long_ids_of_configurations_are_refused(pushing: Pushing) -> None:
    """The field is that of the configuration."""
    given = {"taskId": pushing.start(), "url": pushing.to.url, "id": "x" * 121}
    found = pushing.ask("rest", "CreateTaskPushNotificationConfig", **given)
    assert found.message == "task_push_notification_config.id: must have at most 120 characters"


def test_the_card_promises_push_if_there_are_webhooks() -> None:
    """Neither without the other (A2A 3.3.4)."""
    counting, webhooks = pushing_service()
    for push, given in ((True, None), (False, webhooks), (True, 3)):
        card = agent_card(
            [counting.count], name="n", description="d", version="1", url="u", push=push
        )
        with pytest.raises(DeclarationError, match="webhooks"):
            Handler(counting.service, [counting.count], card, webhooks=given)  # type: ignore[arg-type]
    counting.service.close(0)


def test_addresses_within_are_refused() -> None:
    """The guard of webhooks is that of A2A 13.2."""
    counting, webhooks = pushing_service(allow_private=False, allow_http=False)
    _, handler = make_agent(counting, webhooks=webhooks)
    task_id = counting.start(caller="ann").rpartition("/")[2]
    for url in ("https://127.0.0.1/x", "https://[::1]/", "http://a.example/"):
        config = TaskPushNotificationConfig(task_id=task_id, url=url)
        with pytest.raises(Exception, match="task_push_notification_config"):
            asyncio.run(handler.on_create_task_push_notification_config(config, CONTEXT))
    counting.service.close(0)
