"""Push notifications: configurations, payloads, and hidden secrets (A2A 3.1.7, 4.3)."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest

pytest.importorskip("a2a")
pytest.importorskip("grpc")
pytest.importorskip("uvicorn")

from a2a.types import StreamResponse
from google.protobuf import json_format

import lro
from lro.a2a import PUSH, PushFormat
from lro.stores.sqlite import SQLiteStore
from lro.webhooks import Endpoint, Webhooks
from tests.full.a2a.serving import WAYS, Agent, Asked, Failed, message, serving
from tests.http.counting_service import DOMAIN, NOW, CountService, build
from tests.webhooks.receivers import Receiver, Reply, receiver
from tests.work_messages import WorkRequest, WorkResponse

SECRET = "whsec_" + "A" * 32
OTHERS = ("c1134588", "c30356212")  # callers whose blake2b digests share the first 6 bytes
CREATE = "CreateTaskPushNotificationConfig"


@attrs.frozen
class Pushing:
    """An agent that sends push notifications, its webhooks, and a receiver."""

    agent: Agent
    webhooks: Webhooks
    to: Receiver

    def ask(self, way: str, verb: str, caller: str = "ann", **fields: Any) -> Any:
        return WAYS[way](self.agent, Asked(verb, fields, caller))

    def start(self, config: Any = None) -> Any:
        """Start a task of the caller ann, and return the task's ID or the error."""
        configuration = {"returnImmediately": True}
        if config is not None:
            configuration["taskPushNotificationConfig"] = config
        made = {"message": message(str(uuid.uuid4())), "configuration": configuration}
        found = self.ask("jsonrpc", "SendMessage", **made)
        return found if isinstance(found, Failed) else found["task"]["id"]

    def end(self, task_id: str) -> None:
        """End the task, and send the notifications that are due."""
        self.agent.counting.finish(f"operations/{task_id}")
        self.webhooks.run_due()


def pushing_service(
    store: Any = None, *, owner_only: bool = True, authorize: Any = None, **options: Any
) -> tuple[CountService, Webhooks]:
    """Return a service whose webhooks use the push format and may be sent over http."""
    types = lro.TypeRegistry()
    formats = {PUSH: PushFormat(types, DOMAIN)}
    options = {"allow_private": True, "allow_http": True, "ports": None} | options
    webhooks = Webhooks(formats=formats, **options)
    more = {"owner_only": owner_only, "authorize": authorize}
    return build(store, types=types, webhooks=webhooks, **more), webhooks


@pytest.fixture
def pushing(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Pushing]:
    """Serve an agent with push notifications, on a memory store or the store a test names."""
    sqlite = getattr(request, "param", "memory") == "sqlite"
    store = SQLiteStore(tmp_path / "operations.db", clock=lambda: NOW) if sqlite else None
    counting, webhooks = pushing_service(store)
    with serving(counting, webhooks=webhooks) as agent, receiver() as to:
        yield Pushing(agent, webhooks, to)


each_store = pytest.mark.parametrize("pushing", ["memory", "sqlite"], indirect=True)


@each_store
def test_end_is_pushed_to_the_configuration_of_the_start(pushing: Pushing) -> None:
    """A push has a StreamResponse with the task as body, and secrets in headers (A2A 4.3.3)."""
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
    """The notification of a large task has no artifacts; GetTask returns them."""
    service = pushing.agent.service
    method = service.declare("acme.v1.Things.Write", request=WorkRequest, response=WorkResponse)
    name = method.start(WorkRequest()).name
    service.reporter(name).complete(WorkResponse(text="x" * 20_000))
    operation = service.get(name, view="FULL")
    event: Any = None
    kind, body = PushFormat(service.types, DOMAIN)(
        operation, Endpoint(url="https://a.example"), event
    )
    assert kind == "application/a2a+json"
    assert "artifacts" not in json.loads(body)["task"]


@each_store
@pytest.mark.parametrize("way", WAYS)
def test_configurations_of_a_running_task_can_be_changed(pushing: Pushing, way: str) -> None:
    """Configurations can be created, replaced, listed and deleted; secrets stay hidden."""
    task_id = pushing.start()
    url = pushing.to.url
    given = {"taskId": task_id, "id": "mine", "url": url, "token": "t0ken"}
    shown = {"taskId": task_id, "id": "mine", "url": url}
    before = pushing.agent.service.get(f"operations/{task_id}", view="FULL", caller="ann")
    assert pushing.ask(way, CREATE, **given) == shown
    again = pushing.ask(way, CREATE, **given)
    other = pushing.ask(way, CREATE, taskId=task_id, url=url)
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
    after = pushing.agent.service.get(f"operations/{task_id}", view="FULL", caller="ann")
    assert after == before
    pushing.end(task_id)
    assert [json.loads(one.body)["task"]["id"] for one in pushing.to.all()] == [task_id]


def test_invalid_push_url_is_refused(pushing: Pushing) -> None:
    """In every binding an invalid URL is refused, with the name of the configuration's field."""
    for way in WAYS:
        task_id, config = pushing.start(), "task_push_notification_config"
        for number in range(10):
            pushing.ask(way, CREATE, taskId=task_id, url=f"{pushing.to.url}/{number}")
        for more, says in (
            ({"url": "ftp://a.example"}, f"{config}.url: must be an absolute http or https URL"),
            ({"url": pushing.to.url}, f"{config}: must be at most 10 endpoints"),
            ({"id": "x" * 111}, f"{config}.id: must have at most 110 characters"),
        ):
            given = {"taskId": task_id, "id": "x", "url": pushing.to.url, **more}
            found = pushing.ask(way, CREATE, **given)
            assert (found.reason, found.message) == ("INVALID_PARAMS", says)
    assert pushing.start({"url": "no"}).reason == "INVALID_PARAMS"


def test_another_callers_configurations_are_not_found(pushing: Pushing) -> None:
    task_id = pushing.start({"url": pushing.to.url, "id": "mine"})
    one = {"taskId": task_id, "id": "mine"}
    for way in WAYS:
        for verb, fields in (
            (CREATE, {"taskId": task_id, "url": pushing.to.url}),
            ("GetTaskPushNotificationConfig", one),
            ("ListTaskPushNotificationConfigs", {"taskId": task_id}),
            ("DeleteTaskPushNotificationConfig", one),
        ):
            found = pushing.ask(way, verb, "eve", **fields)
            said = ("TASK_NOT_FOUND", f"there is no task '{task_id}'")
            assert (found.reason, found.message) == said


@pytest.mark.parametrize("may", [{"GetOperation"}, {"GetOperation", "CancelOperation"}])
def test_callers_of_one_task_have_configurations_of_their_own(may: set[str]) -> None:
    """A read-only caller cannot change a configuration; nobody sees another caller's URL."""

    def authorize(caller: str, verb: str, name: str) -> bool:
        return caller == "ann" or verb in may

    counting, webhooks = pushing_service(owner_only=False, authorize=authorize)
    with serving(counting, webhooks=webhooks) as agent, receiver() as to, receiver() as evil:
        pushing = Pushing(agent, webhooks, to)
        task_id = pushing.start({"url": f"{to.url}/?key=s3cret", "id": "mine"})
        one = {"taskId": task_id, "id": "mine"}
        for way in WAYS:
            listed = pushing.ask(way, "ListTaskPushNotificationConfigs", "bob", taskId=task_id)
            found = pushing.ask(way, "GetTaskPushNotificationConfig", "bob", **one)
            assert "s3cret" not in f"{listed} {found}"
            removed = pushing.ask(way, "DeleteTaskPushNotificationConfig", "bob", **one)
            created = pushing.ask(way, CREATE, "bob", **one, url=evil.url)
            if len(may) == 1:
                assert [removed.reason, created.reason] == ["TASK_NOT_FOUND"] * 2
            else:
                assert (removed, created["url"]) == ({}, evil.url)
            kept = pushing.ask(way, "GetTaskPushNotificationConfig", **one)
            assert kept["url"] == f"{to.url}/?key=s3cret"
        pushing.end(task_id)
        assert (len(to.all()), len(evil.all())) == (1, len(may) - 1)


@pytest.mark.parametrize(("token", "most"), [("t", 5), ('"' * 4096, 3)], ids=["places", "bytes"])
def test_other_callers_use_at_most_half_of_a_tasks_configurations(token: str, most: int) -> None:
    """Together, callers who did not start a task can use at most half of its configurations."""
    counting, webhooks = pushing_service(owner_only=False)
    with serving(counting, webhooks=webhooks) as agent, receiver() as to:
        pushing = Pushing(agent, webhooks, to)
        task_id = pushing.start()

        def ask(caller: str, id: object) -> Any:
            given = {"taskId": task_id, "id": str(id), "url": to.url, "token": token}
            return pushing.ask("rest", CREATE, caller, **given)

        found = [ask(caller, id) for id in range(4) for caller in OTHERS]
        refused = [one for one in found if isinstance(one, Failed)]
        assert found[most:] == refused
        assert {one.reason for one in refused} == {"INVALID_PARAMS"}
        assert "from other callers than its starter" in refused[0].message
        again = [ask(OTHERS[0], 0), *(ask("ann", id) for id in range(3))]
        assert [one for one in again if isinstance(one, Failed)] == []


def test_a_task_that_has_ended_takes_no_configuration(pushing: Pushing) -> None:
    """An ended task takes no new configuration, but an existing one can be deleted."""
    task_id = pushing.start({"url": pushing.to.url, "id": "mine"})
    pushing.agent.counting.finish(f"operations/{task_id}")
    found = pushing.ask("rest", CREATE, taskId=task_id, url=pushing.to.url)
    assert (found.reason, "has ended" in found.message) == ("UNSUPPORTED_OPERATION", True)
    pushing.ask("rest", "DeleteTaskPushNotificationConfig", taskId=task_id, id="mine")
    pushing.webhooks.run_due()
    assert pushing.to.all() == []


@each_store
@pytest.mark.parametrize("during", [True, False], ids=["during a push", "after a push"])
def test_a_deleted_configuration_is_not_pushed_to_again(pushing: Pushing, during: bool) -> None:
    """A failed push does not restore a deleted configuration; other pushes stay pending."""
    task_id = pushing.start({"url": pushing.to.url, "id": "mine"})
    pushing.ask("rest", CREATE, taskId=task_id, id="kept", url=f"{pushing.to.url}/kept")

    def delete(_: object) -> Reply:
        pushing.ask("rest", "DeleteTaskPushNotificationConfig", taskId=task_id, id="mine")
        return Reply(500)

    pushing.to.script = delete if during else lambda _: Reply(500)
    pushing.end(task_id)
    delete(None)
    listed = pushing.ask("rest", "ListTaskPushNotificationConfigs", taskId=task_id)
    assert [one["id"] for one in listed["configs"]] == ["kept"]
    assert len(pushing.webhooks.pending_of(f"operations/{task_id}")) == 1
    assert len(pushing.to.all()) == 2
    pushing.webhooks.retry(f"operations/{task_id}")
    pushing.webhooks.run_due()
    assert [one.path for one in pushing.to.all()] == ["/hook/kept"]


def test_endpoints_of_the_application_are_not_configurations(pushing: Pushing) -> None:
    """Clients can neither see nor delete the webhook endpoints of the application."""
    endpoint = Endpoint(url=pushing.to.url, id="own", secrets=(SECRET,))
    counting = pushing.agent.counting
    task_id = counting.start(caller="ann", notify=[endpoint]).rpartition("/")[2]
    one = {"taskId": task_id, "id": "own"}
    assert pushing.ask("rest", "ListTaskPushNotificationConfigs", taskId=task_id) == {}
    assert pushing.ask("rest", "DeleteTaskPushNotificationConfig", **one) == {}
    pushing.end(task_id)
    assert len(pushing.to.all()) == 1


@pytest.mark.parametrize("looked_up", [True, False])
def test_configuration_replaces_no_endpoint_of_the_application(looked_up: bool) -> None:
    with receiver() as to:
        own = Endpoint(url=f"{to.url}/own", id="own", secrets=(SECRET,))
        options: dict[str, Any] = {"lookup": lambda *_: [own]} if looked_up else {}
        counting, webhooks = pushing_service(**options)
        with serving(counting, webhooks=webhooks) as agent:
            name = counting.start(caller="ann", notify=[] if looked_up else [own])
            given = {"taskId": name.rpartition("/")[2], "id": "own", "url": f"{to.url}/client"}
            found = WAYS["rest"](agent, Asked(CREATE, given))
            assert found == given
            counting.finish(name)
            webhooks.run_due()
        assert sorted(one.path for one in to.all()) == ["/hook/client", "/hook/own"]
