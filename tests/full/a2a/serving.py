"""An agent whose counting method starts operations that the test ends; a client per binding."""

from __future__ import annotations

import contextlib
import json
import socket
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any

import attrs
import grpc
import grpc.aio
import httpx
from a2a.server.context import ServerCallContext
from a2a.types import a2a_pb2, a2a_pb2_grpc
from google.protobuf import json_format
from google.rpc import status_pb2
from starlette.applications import Starlette

import lro
from lro.a2a import Handler, add_to, agent_card, routes
from lro.executors.threads import ThreadExecutor
from lro.stores.memory import MemoryStore
from tests.http.counting_service import DOMAIN, CountRequest, CountResponse, CountService, build
from tests.http.servers import HOST, uvicorn_serving

VERSION = {"A2A-Version": "1.0"}
REST = "/a2a/rest"
JSONRPC = "/a2a/jsonrpc"
COUNT = "acme.v1.Things.Count"
CONTEXT = ServerCallContext(state={"headers": {"x-caller": "ann"}})


def authenticate(headers: Mapping[str, str]) -> str | None:
    """Return the caller that a header names; refuse an empty name, and fail for "mallory"."""
    caller = headers.get("x-caller", "ann")
    if caller == "mallory":
        raise ZeroDivisionError("secret")
    if not caller:
        raise lro.errors.Unauthenticated("say who you are")
    return caller


def message(message_id: str = "m-1", data: Any = None, **more: Any) -> dict[str, Any]:
    """Return a message with a data part."""
    part = {"data": {"steps": 3} if data is None else data, "mediaType": "application/json"}
    return {"messageId": message_id, "role": "ROLE_USER", "parts": [part], **more}


def make_agent(
    counting: CountService | None = None,
    methods: Any = None,
    url: str = "",
    rpc: str = "",
    **more: Any,
) -> tuple[CountService, Handler]:
    """Return a counting service and its agent's handler; ``more`` has the handler's options."""
    counting = counting or build(owner_only=True)
    methods = methods or [counting.count]
    card = agent_card(
        methods,
        name="Counter",
        description="Counts things.",
        version="1.0.0",
        url=url or "http://agent.example",
        grpc=rpc,
        text="read" in more,
        push="webhooks" in more,
    )
    more.setdefault("authenticate", authenticate)
    return counting, Handler(counting.service, methods, card, **more)


@attrs.frozen
class Agent:
    """An agent on real sockets, with clients for each binding."""

    counting: CountService
    url: str
    rpc: str
    http: httpx.Client
    channel: Any

    @property
    def service(self) -> lro.Service:
        """The agent's service."""
        return self.counting.service


@contextlib.contextmanager
def reserved(option: int) -> Iterator[int]:
    """Reserve a port on which only a server that sets this socket option can listen."""
    with socket.socket() as line:
        line.setsockopt(socket.SOL_SOCKET, option, 1)
        line.bind((HOST, 0))
        yield line.getsockname()[1]


@contextlib.contextmanager
def serving(counting: CountService | None = None, **more: Any) -> Iterator[Agent]:
    """Serve an agent over all three bindings."""
    with (
        reserved(socket.SO_REUSEADDR) as port,
        reserved(socket.SO_REUSEPORT) as rpc_port,
        _serving(port, rpc_port, counting, more) as agent,
    ):
        yield agent


@contextlib.contextmanager
def _serving(
    port: int, rpc_port: int, counting: CountService | None, more: dict[str, Any]
) -> Iterator[Agent]:
    url, rpc = f"http://{HOST}:{port}", f"{HOST}:{rpc_port}"
    counting, handler = make_agent(counting, url=url, rpc=rpc, **more)

    @contextlib.asynccontextmanager
    async def lifespan(_: object) -> AsyncIterator[None]:
        server = grpc.aio.server()
        add_to(server, handler)
        server.add_insecure_port(rpc)
        await server.start()
        yield
        await server.stop(None)

    app = Starlette(routes=routes(handler), lifespan=lifespan)
    with (
        uvicorn_serving(app, port, lifespan="on"),
        httpx.Client(base_url=url, headers=VERSION, timeout=60) as http,
    ):
        http.get("/.well-known/agent-card.json").raise_for_status()  # the server is ready
        with grpc.insecure_channel(rpc) as channel:
            yield Agent(counting, url, rpc, http, channel)
        counting.service.close(0)


@contextlib.contextmanager
def working_agent() -> Iterator[Agent]:
    """Serve an agent whose method does the work; a count to 100 or more runs until cancelled."""
    service = lro.Service(MemoryStore(), ThreadExecutor(8), domain=DOMAIN, maintenance=False)

    @service.method(COUNT)
    def count(request: CountRequest, job: lro.Job) -> CountResponse:
        job.progress(0.5, "counting")
        while request.steps >= 100:
            job.sleep(60)
        return CountResponse(total=request.steps)

    with serving(CountService(service, count)) as served:  # type: ignore[arg-type]
        yield served


PROTOCOL = {
    "TASK_NOT_FOUND": (-32001, 404, "NOT_FOUND"),
    "TASK_NOT_CANCELABLE": (-32002, 400, "FAILED_PRECONDITION"),
    "PUSH_NOTIFICATION_NOT_SUPPORTED": (-32003, 400, "FAILED_PRECONDITION"),
    "UNSUPPORTED_OPERATION": (-32004, 400, "FAILED_PRECONDITION"),
    "CONTENT_TYPE_NOT_SUPPORTED": (-32005, 400, "INVALID_ARGUMENT"),
    "INVALID_PARAMS": (-32602, 400, "INVALID_ARGUMENT"),
}
"""For each reason of an error: the JSON-RPC code, HTTP status and status name (A2A 5.4)."""
OURS = {"TARGET_BUSY": "ABORTED", "HOOK_FAILED": "INTERNAL"}


@attrs.frozen
class Failed:
    """An error without the codes of its binding, so that errors of different bindings are equal."""

    reason: str
    message: str


def codes_of(reason: str) -> tuple[int, int, str]:
    """Return the codes of an error with this reason; only A2A's own reasons have A2A codes."""
    code = lro.Code[OURS.get(reason, reason)] if reason not in PROTOCOL else None
    return PROTOCOL[reason] if code is None else (-32603, code.http, code.name)


@attrs.frozen
class Asked:
    """A call: the verb, its request as JSON, and the caller."""

    verb: str
    fields: Mapping[str, Any] = attrs.field(factory=dict)
    caller: str = "ann"


def by_jsonrpc(agent: Agent, asked: Asked) -> Any:
    call = {"jsonrpc": "2.0", "id": 7, "method": asked.verb, "params": asked.fields}
    reply = agent.http.post(JSONRPC, json=call, headers={"x-caller": asked.caller})
    value = _first(reply)
    known = asked.caller not in ("", "mallory")  # the body is read for known callers only
    assert (value["jsonrpc"], value["id"]) == ("2.0", 7 if known else None)
    if "error" not in value:
        assert reply.status_code == 200
        return value["result"] or {}
    error = value["error"]
    reason = _reason(error["data"])
    code, http, _ = codes_of(reason)
    assert (reply.status_code, error["code"]) == (http if http in (401, 403) else 200, code)
    return Failed(reason, error["message"])


def _reason(details: Any) -> str:
    found = [one for one in details if one["@type"].endswith("/google.rpc.ErrorInfo")]
    assert len(found) == 1
    own = found[0]["reason"] not in PROTOCOL
    assert found[0]["domain"] == (DOMAIN if own else "a2a-protocol.org")
    return str(found[0]["reason"])


def _first(reply: httpx.Response) -> Any:
    if reply.headers["content-type"].startswith("text/event-stream"):
        data = next(line for line in reply.text.splitlines() if line.startswith("data: "))
        return json.loads(data.removeprefix("data: "))
    return reply.json()


_PATHS = {
    "SendMessage": ("POST", "/message:send"),
    "SendStreamingMessage": ("POST", "/message:stream"),
    "GetTask": ("GET", "/tasks/{id}"),
    "ListTasks": ("GET", "/tasks"),
    "CancelTask": ("POST", "/tasks/{id}:cancel"),
    "SubscribeToTask": ("GET", "/tasks/{id}:subscribe"),
    "GetExtendedAgentCard": ("GET", "/extendedAgentCard"),
    "CreateTaskPushNotificationConfig": ("POST", "/tasks/{taskId}/pushNotificationConfigs"),
    "ListTaskPushNotificationConfigs": ("GET", "/tasks/{taskId}/pushNotificationConfigs"),
    "GetTaskPushNotificationConfig": ("GET", "/tasks/{taskId}/pushNotificationConfigs/{id}"),
    "DeleteTaskPushNotificationConfig": ("DELETE", "/tasks/{taskId}/pushNotificationConfigs/{id}"),
}


def by_rest(agent: Agent, asked: Asked) -> Any:
    method, path = _PATHS[asked.verb]
    fields = dict(asked.fields)
    path = path.format(**fields)
    for name in ("id", "taskId"):
        if f"{{{name}}}" in _PATHS[asked.verb][1]:
            fields.pop(name)
    headers = {"x-caller": asked.caller}
    if method == "POST":
        reply = agent.http.post(REST + path, json=fields, headers=headers)
    else:
        query = {k: json.dumps(v) if isinstance(v, bool) else v for k, v in fields.items()}
        reply = agent.http.request(method, REST + path, params=query, headers=headers)
    value = _first(reply)
    if reply.status_code == 200:
        return value
    error = value["error"]
    reason = _reason(error["details"])
    assert (reply.status_code, error["status"]) == codes_of(reason)[1:]
    assert error["code"] == reply.status_code
    return Failed(reason, error["message"])


def by_grpc(agent: Agent, asked: Asked) -> Any:
    stub: Any = a2a_pb2_grpc.A2AServiceStub(agent.channel)
    request = {
        "SendStreamingMessage": "SendMessageRequest",
        "CreateTaskPushNotificationConfig": "TaskPushNotificationConfig",
    }.get(asked.verb, f"{asked.verb}Request")
    wanted = json_format.ParseDict(dict(asked.fields), getattr(a2a_pb2, request)())
    metadata = (("x-caller", asked.caller), ("a2a-version", "1.0"), ("blob-bin", b"\x00"))
    try:
        found = getattr(stub, asked.verb)(wanted, metadata=metadata, timeout=60)
        if asked.verb in ("SendStreamingMessage", "SubscribeToTask"):
            found = next(iter(found))
    except grpc.RpcError as exc:
        error: Any = exc
        trailers = dict(error.trailing_metadata())
        status = status_pb2.Status.FromString(trailers["grpc-status-details-bin"])
        details = [json_format.MessageToDict(one) for one in status.details]
        assert status.code == error.code().value[0]
        reason = _reason(details)
        assert error.code().name == codes_of(reason)[2]
        return Failed(reason, error.details())
    shown = json_format.MessageToDict(
        found, always_print_fields_with_no_presence=asked.verb == "ListTasks"
    )
    if asked.verb == "ListTasks" and not asked.fields.get("includeArtifacts"):
        for task in shown["tasks"]:
            assert task.pop("artifacts") == []
    return shown


WAYS = {"jsonrpc": by_jsonrpc, "rest": by_rest, "grpc": by_grpc}
