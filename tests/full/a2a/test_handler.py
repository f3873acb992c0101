"""The options of the A2A handler and their effects: methods, hooks, parents and waits."""

from __future__ import annotations

import asyncio
import importlib
import logging
import sys
import threading
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import attrs
import pytest

pytest.importorskip("a2a")
pytest.importorskip("grpc")
pytest.importorskip("uvicorn")

from a2a.server.context import ServerCallContext
from a2a.types import GetExtendedAgentCardRequest, GetTaskRequest, Message, SendMessageRequest
from a2a.utils.errors import (
    ContentTypeNotSupportedError,
    ExtendedAgentCardNotConfiguredError,
    InternalError,
    InvalidParamsError,
    TaskNotFoundError,
)
from google.protobuf import json_format
from starlette.applications import Starlette
from starlette.authentication import AuthCredentials, AuthenticationBackend, SimpleUser
from starlette.middleware import Middleware
from starlette.middleware.authentication import AuthenticationMiddleware
from starlette.requests import HTTPConnection

import lro
from lro.a2a import SCHEMAS_URI, Handler, add_to, agent_card, routes
from lro.errors import DeclarationError, MissingExtra
from lro.stores.sqlite import SQLiteStore
from lro.webhooks import Webhooks
from tests.full.a2a.serving import CONTEXT, COUNT, REST, VERSION, make_agent, message
from tests.http.counting_service import (
    DOMAIN,
    CountRequest,
    CountResponse,
    CountService,
    Wrapped,
    build,
)
from tests.http.servers import asgi_inside
from tests.waiting import until_async

TEXT = [{"text": "7"}]
Made = tuple[CountService, Handler]


@pytest.fixture
def made() -> Iterator[Made]:
    """Return a counting service and its agent's handler."""
    counting, handler = make_agent(build())
    with counting.service:
        yield counting, handler


def send(handler: Handler, said: dict[str, Any], *, at_once: bool = True, **more: Any) -> Any:
    made = {"message": said, "configuration": {"returnImmediately": at_once}, **more}
    request = json_format.ParseDict(made, SendMessageRequest())
    return asyncio.run(handler.on_message_send(request, CONTEXT))


def get(handler: Handler, task_id: str, context: ServerCallContext = CONTEXT) -> Any:
    return asyncio.run(handler.on_get_task(GetTaskRequest(id=task_id), context))


def request_of(counting: CountService, task: Any) -> Any:
    """Return the stored request of a task's operation."""
    return counting.service.store.request(f"operations/{task.id}").payload


# -- declarations -----------------------------------------------------------------------------


def test_the_card_says_what_the_methods_are() -> None:
    """The agent card has a skill for each method, and both protocol versions (A2A 4.4)."""
    counting = build()

    @counting.service.method("acme.v1.Things.Double")
    def double(request: CountRequest) -> CountResponse:
        """Double a number.

        It takes long."""
        return CountResponse()

    said: dict[str, Any] = {"name": "n", "description": "d", "version": "1"}
    url = "https://agent.example/"
    card = agent_card(
        [counting.count, double], **said, url=url, grpc="agent.example:443", text=True
    )
    shown = json_format.MessageToDict(card)
    assert [
        (one["protocolVersion"], one["protocolBinding"], one["url"])
        for one in shown["supportedInterfaces"]
    ] == [
        (version, binding, url)
        for version in ("1.0", "0.3")
        for binding, url in [
            ("JSONRPC", "https://agent.example/a2a/jsonrpc"),
            ("HTTP+JSON", "https://agent.example/a2a/rest"),
            ("GRPC", "agent.example:443"),
        ]
    ]
    assert shown["defaultInputModes"] == ["application/json", "text/plain"]
    tags, text = ["acme.v1.Things"], "Double a number.\n\nIt takes long."
    assert shown["skills"] == [
        {"id": COUNT, "name": "Count", "description": f"Start {COUNT}.", "tags": tags},
        {"id": "acme.v1.Things.Double", "name": "Double", "description": text, "tags": tags},
    ]
    extension = shown["capabilities"]["extensions"][0]
    assert extension["uri"] == SCHEMAS_URI
    params = extension["params"]
    assert set(params) == {COUNT, "acme.v1.Things.Double", "$defs"}
    read = params[COUNT]["input"]["$ref"].removeprefix("#/$defs/")
    assert "steps" in params["$defs"][read]["properties"]
    none = agent_card([], **said, url="https://agent.example")
    assert (len(none.skills), len(none.capabilities.extensions[0].params.fields)) == (0, 0)


def test_invalid_option_of_the_agent_is_refused_at_construction() -> None:
    """A wrong option is refused when the agent is created; the error names the option."""
    counting, handler = make_agent(build())
    other = build()
    below = counting.service.declare(
        "acme.v1.Things.Below",
        request=CountRequest,
        response=CountResponse,
        options=lro.Options(parent=lambda request: "projects/p"),
    )
    pushing = agent_card(
        [counting.count], name="n", description="d", version="1", url="u", push=True
    )
    cases: list[tuple[dict[str, Any], str]] = [
        ({"service": 1}, "service: must be a Service"),
        ({"methods": []}, "methods: must be a list of methods, at least one"),
        ({"methods": [1]}, "methods: must be methods of the service"),
        ({"methods": [other.count]}, COUNT),
        ({"methods": [below]}, "without parent="),
        ({"card": {}}, "card: must be an AgentCard"),
        ({"wait": timedelta(-1)}, "wait"),
        ({"authenticate": 3}, "authenticate"),
        ({"read": 3}, "read"),
        ({"parent": 3}, "parent"),
        ({"webhooks": 3}, "webhooks: must be the Webhooks of the service"),
        ({"webhooks": Webhooks(formats={})}, "webhooks: must be given if the card promises"),
        ({"card": pushing}, "webhooks: must be given if the card promises"),
    ]
    given: Any = {"service": counting.service, "methods": [counting.count], "card": handler.card}
    for change, says in cases:
        with pytest.raises(DeclarationError, match=says.replace("(", "\\(")):
            Handler(**(given | change))
    Handler(**(given | {"methods": [below], "parent": lambda caller: "projects/p"}))
    for wrong in ({"max_request": 0}, {"trusted_origins": ["x"]}):
        with pytest.raises(DeclarationError):
            routes(handler, **wrong)  # type: ignore[arg-type]
    with pytest.raises(DeclarationError, match="a Handler"):
        routes(3)  # type: ignore[arg-type]
    with pytest.raises(DeclarationError, match="a Handler"):
        add_to(None, 3)  # type: ignore[arg-type]
    with pytest.raises(DeclarationError):
        agent_card([], name="", description="d", version="1", url="u")


@pytest.mark.parametrize("missing", ["a2a.server.routes", "sse_starlette", "starlette.routing"])
def test_missing_a2a_sdk_names_the_extra(missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a2a-sdk, the import fails with an error that names the extra to install."""
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(MissingExtra, match=r"pip install 'lro\[a2a\]'"):
        importlib.reload(lro.a2a)


def test_missing_grpc_names_the_extra(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without grpcio, ``add_to`` fails with an error that names the extra to install."""
    monkeypatch.delitem(sys.modules, "lro.a2a._rpcs", raising=False)
    monkeypatch.setitem(sys.modules, "a2a.server.request_handlers.grpc_handler", None)
    with pytest.raises(MissingExtra, match=r"pip install 'lro\[grpc\]'"):
        add_to(None, made[1])  # type: ignore[arg-type]


def test_agent_without_authentication_logs_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    """A warning is logged if callers are not authenticated and operations have no owners."""
    for owner_only, lines in ((False, 1), (True, 0)):
        caplog.clear()
        make_agent(build(owner_only=owner_only), authenticate=None)
        assert len([one for one in caplog.records if one.name == "lro"]) == lines


# -- messages ---------------------------------------------------------------------------------


def test_message_must_name_the_skill_if_there_are_several() -> None:
    """If an agent has several skills, the message's or request's metadata must name a skill."""
    counting = build()
    other = counting.service.declare(
        "acme.v1.Things.Other", request=CountRequest, response=CountResponse
    )
    _, handler = make_agent(counting, [counting.count, other])
    with pytest.raises(InvalidParamsError, match="must name the skill"):
        send(handler, message("1"))
    key, name = f"{DOMAIN}/method", "acme.v1.Things.Other"
    named: Any = {"metadata": {key: name}}
    for number, (said, more) in enumerate([(named, {}), ({}, named)]):
        task = send(handler, message(f"named-{number}", **said), **more)
        assert task.metadata[key] == name


def test_every_json_value_of_a_request_arrives_unchanged() -> None:
    """Every JSON value arrives unchanged; a number that a double may have rounded is refused."""

    @lro.message("acme.v1.AnyRequest")
    @attrs.frozen
    class AnyRequest:
        big: int = 0
        ratio: float = 0.0
        rest: dict[str, object] = attrs.field(factory=dict)

    counting = build()
    method = counting.service.declare(
        "acme.v1.Things.Any", request=AnyRequest, response=CountResponse
    )
    _, handler = make_agent(counting, [method])
    rest = {"a": [1, 2.5, True, None, "x", 1e300], "b": {"c": {}}, "d": False}
    task = send(handler, message(data={"big": "9007199254740993", "ratio": 1e300, "rest": rest}))
    assert request_of(counting, task) == {"big": "9007199254740993", "ratio": 1e300, "rest": rest}
    # In a data part every number is a double (google.protobuf.Value).
    for number, big in enumerate((3, 3.0, "3", 2**53 - 1)):
        task = send(handler, message(f"big-{number}", {"big": big}))
        assert request_of(counting, task) == {"big": int(big)}
    for lost in (2**53, -(2**53), 2**60):
        with pytest.raises(InvalidParamsError, match="rounded on its way: send a text"):
            send(handler, message("3", {"big": lost}))


def test_nan_in_a_request_is_refused(made: Made) -> None:
    """NaN, which can arrive only over gRPC, is refused."""
    request = json_format.ParseDict({"message": message()}, SendMessageRequest())
    inner = request.message.parts[0].data.struct_value
    inner.fields["rest"].list_value.values.add().number_value = float("nan")
    with pytest.raises(InvalidParamsError, match=r"rest\[0\]: must be a finite number, got nan"):
        asyncio.run(made[1].on_message_send(request, CONTEXT))


def test_text_message_is_read_by_the_application_hook() -> None:
    """A hook, which may be a coroutine, reads text messages; its errors become refusals."""
    counting = build()

    def read(said: Message) -> tuple[Any, Any]:
        text = said.parts[0].text
        if text == "bad":
            raise lro.InvalidArgument("text", "must be a number")
        if text == "file":
            raise lro.errors.UnsupportedMediaType("message.parts", "must be a text")
        return (counting.count, CountRequest(steps=int(text))) if text != "none" else (None, None)

    async def aread(said: Message) -> tuple[Any, Any]:
        await asyncio.sleep(0)
        return read(said)

    for hook in (read, aread):
        _, handler = make_agent(counting, read=hook)
        key = hook.__name__
        parts = [*TEXT, {"data": {"steps": 1}}, {"data": {"steps": 2}}]  # the text part is ignored
        for steps, said in ((1, parts), (7, TEXT)):
            task = send(handler, message(f"{key}-{steps}", parts=said))
            assert request_of(counting, task) == {"steps": steps}
        for text, error in (
            ("bad", InvalidParamsError),
            ("file", ContentTypeNotSupportedError),
            ("none", InternalError),
            ("x", InternalError),
        ):
            with pytest.raises(error):
                send(handler, message(f"{key}-{text}", parts=[{"text": text}]))


# -- waiting ----------------------------------------------------------------------------------


def test_send_message_waits_for_the_end() -> None:
    """SendMessage waits for the end of the task, and blocks no thread meanwhile (A2A 3.2.2)."""

    async def used() -> None:
        counting, handler = make_agent(build())
        request = json_format.ParseDict({"message": message()}, SendMessageRequest())
        before = threading.active_count()
        answers = [
            asyncio.create_task(handler.on_message_send(request, CONTEXT)) for _ in range(20)
        ]
        await until_async(lambda: counting.service.edges.waiters.waiting, lambda count: count == 20)
        assert threading.active_count() - before < 20
        name = counting.service.list(lro.wire.ListOperationsRequest()).operations[0].name
        counting.finish(name)
        tasks = await asyncio.gather(*answers)
        assert {(task.id, len(task.artifacts)) for task in tasks} == {(name.rpartition("/")[2], 1)}

    asyncio.run(used())


@pytest.mark.parametrize(
    ("options", "wait"),
    [
        ({}, timedelta(0)),
        ({"max_wait": timedelta(0)}, None),
        ({"verbs": []}, None),
        ({"limits": lro.Limits(waits=1)}, None),
    ],
)
def test_unfinished_task_is_returned_at_the_time_limit(
    options: Any, wait: timedelta | None
) -> None:
    """A task that has not ended is returned at the time limit, or at once if waits are off."""
    counting, handler = make_agent(build(**options), wait=wait)
    with counting.service.edges.waiters._waits.take(""):
        task = send(handler, message(), at_once=False)
    assert not task.artifacts


# -- callers ----------------------------------------------------------------------------------


class Backend(AuthenticationBackend):
    """An authentication backend that trusts a header."""

    async def authenticate(self, conn: HTTPConnection) -> Any:
        name = conn.headers.get("x-user")
        return (AuthCredentials(["all"]), SimpleUser(name)) if name else None


def test_the_user_of_a_middleware_is_the_caller() -> None:
    """The caller is the middleware's user; calls without a user get 401 if tasks have owners."""
    _, handler = make_agent(build(owner_only=True), authenticate=None)
    app = Starlette(
        routes=routes(handler), middleware=[Middleware(AuthenticationMiddleware, backend=Backend())]
    )
    body = {"message": message(), "configuration": {"returnImmediately": True}}

    with asgi_inside(app) as ask:

        def call(user: str, *request: str, **more: Any) -> Any:
            return ask(*request, headers=VERSION | {"x-user": user}, **more)

        task = call("ann", "POST", f"{REST}/message:send", json=body).json()["task"]
        path = f"{REST}/tasks/{task['id']}"
        found = [call(user, "GET", path).status_code for user in ("ann", "eve", "")]
    assert found == [200, 404, 401]


def test_calls_without_a_user_share_tasks_without_owners() -> None:
    """If operations have no owners, a call without a user can read every task."""
    counting, handler = make_agent(build(), authenticate=None)
    task_id = counting.start().rpartition("/")[2]
    assert get(handler, task_id, ServerCallContext()).id == task_id


def test_authenticate_hook_may_use_the_sdk_context() -> None:
    async def authenticate(headers: Any, context: ServerCallContext) -> str:
        assert context.tenant == "t"
        return str(headers["x-caller"])

    counting, handler = make_agent(build(owner_only=True), authenticate=authenticate)
    task_id = counting.start(caller="ann").rpartition("/")[2]
    context = ServerCallContext(state={"headers": {"x-caller": "ann"}}, tenant="t")
    assert get(handler, task_id, context).id == task_id


def test_task_ids_leave_out_the_parent() -> None:
    counting, handler = make_agent(build(), parent=lambda caller: f"users/{caller}")
    task = send(handler, message())
    assert counting.service.get(f"users/ann/operations/{task.id}")
    assert get(handler, task.id).id == task.id
    name = counting.start()
    with pytest.raises(TaskNotFoundError):
        get(handler, name.rpartition("/")[2])


# -- cards, errors and processes ---------------------------------------------------------------


def test_the_extended_card_is_not_configured(made: Made) -> None:
    """An agent that announces an extended card but has none refuses the call (A2A 3.3.4)."""
    _, handler = made
    handler.card.capabilities.extended_agent_card = True
    with pytest.raises(ExtendedAgentCardNotConfiguredError):
        asyncio.run(handler.on_get_extended_agent_card(GetExtendedAgentCardRequest(), CONTEXT))


def test_store_error_is_logged_and_hidden_from_the_caller(caplog: pytest.LogCaptureFixture) -> None:
    """An error of the store is logged; the caller learns only that the server failed."""

    def fail() -> None:
        raise ZeroDivisionError("secret")

    counting, handler = make_agent(build(Wrapped(fail, "find", "get")))
    name = counting.start()
    caplog.set_level(logging.ERROR)
    with pytest.raises(InternalError) as caught:
        get(handler, name.rpartition("/")[2])
    assert caught.value.message == "the server failed internally"
    assert any("A2A GetTask" in one.message for one in caplog.records)


def test_a_verb_that_is_switched_off_is_not_supported() -> None:
    counting, handler = make_agent(build(verbs=[]))
    task_id = counting.start().rpartition("/")[2]
    with asgi_inside(Starlette(routes=routes(handler))) as ask:
        for method, path in (("GET", "/tasks"), ("POST", f"/tasks/{task_id}:cancel")):
            reply = ask(method, REST + path, headers=VERSION)
            assert reply.status_code == 400
            assert reply.json()["error"]["details"][0]["reason"] == "UNSUPPORTED_OPERATION"


def test_the_card_comes_first_and_may_be_cached(made: Made) -> None:
    """The card takes precedence over other routes and has all required fields (A2A 4.4.1, 8.2)."""
    with asgi_inside(Starlette(routes=routes(made[1], jsonrpc="/", rest=""))) as ask:
        reply = ask("GET", "/.well-known/agent-card.json")
        assert ask("GET", "/anything/else").status_code == 404
    card = reply.json()
    assert card["name"] == "Counter"
    required = {"name", "description", "supportedInterfaces", "version", "capabilities", "skills"}
    assert required | {"defaultInputModes", "defaultOutputModes"} <= set(card)
    assert reply.headers["cache-control"] == "public, max-age=60"
    assert reply.headers["etag"]


def test_any_process_can_answer_for_a_task(tmp_path: Path) -> None:
    """A task has no state besides its operation's record, so another process can answer."""
    path = tmp_path / "operations.db"
    counting, handler = make_agent(build(SQLiteStore(path)))
    task = send(handler, message())
    counting.service.close(0)
    counting, handler = make_agent(build(SQLiteStore(path)))
    assert get(handler, task.id) == task
    assert send(handler, message()).id == task.id
    counting.finish(f"operations/{task.id}")
    assert get(handler, task.id).artifacts
    counting.service.close(0)
