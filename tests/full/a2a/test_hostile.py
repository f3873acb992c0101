"""Malformed calls get protocol errors, never a server error."""

from __future__ import annotations

import asyncio
import functools
import json
import logging
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("a2a")
pytest.importorskip("uvicorn")
pytest.importorskip("grpc")

import grpc
from a2a.compat.v0_3 import a2a_v0_3_pb2 as old_pb2
from a2a.types import a2a_pb2, a2a_pb2_grpc
from a2a.utils.errors import InvalidParamsError
from a2a.utils.proto_utils import validate_proto_required_fields
from google.protobuf import json_format
from starlette.applications import Starlette

import lro
from lro.a2a import DEFAULT_MAX_REQUEST, routes
from lro.a2a._messages import check_required
from tests.full.a2a.serving import (
    JSONRPC,
    REST,
    VERSION,
    WAYS,
    Agent,
    Asked,
    by_grpc,
    make_agent,
    message,
    serving,
)
from tests.http.counting_service import build
from tests.http.servers import asgi_inside
from tests.waiting import PATIENCE, until_async

VERBS = [
    *("SendMessage", "SendStreamingMessage", "GetTask", "ListTasks", "CancelTask"),
    *("SubscribeToTask", "GetExtendedAgentCard", "CreateTaskPushNotificationConfig"),
    *("message/send", "message/stream", "tasks/get", "tasks/cancel", "tasks/resubscribe"),
]


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    """Hide the SDK's log lines about bad input."""
    caplog.set_level(logging.CRITICAL)


@pytest.fixture(scope="module")
def call() -> Iterator[Callable[..., httpx.Response]]:
    """Return a function that calls an agent in this process; SendMessage returns at once."""
    counting, handler = make_agent(build(verbs=["ListOperations"]))
    with asgi_inside(Starlette(routes=routes(handler))) as ask:
        yield lambda *request, headers={}, **more: ask(*request, headers=VERSION | headers, **more)
    counting.service.close(0)


def check(reply: httpx.Response) -> None:
    """Check that a reply is a result, or an error whose code blames the request."""
    assert reply.status_code in (200, 400, 404, 405, 413, 415), reply.text
    assert "Traceback" not in reply.text
    if reply.headers["content-type"].startswith("application/") and reply.content:
        error = reply.json().get("error", {})
        assert error.get("code") not in (-32603, 500), reply.text


text = st.text(st.characters(codec=None), max_size=20)
numbers = st.integers(-(2**70), 2**70) | st.floats()
json_values = st.recursive(
    st.none() | st.booleans() | numbers | text,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(text, inner, max_size=4),
    max_leaves=12,
)
FIELDS = [
    *("messageId", "role", "parts", "metadata", "taskId", "contextId", "extensions", "data"),
    *("text", "raw", "url", "mediaType", "message", "configuration", "id", "tenant", "kind"),
    *("historyLength", "pageSize", "pageToken", "status", "statusTimestampAfter", "steps"),
]
shaped = st.recursive(
    json_values | st.sampled_from(["ROLE_USER", "user", "x", "application/json"]),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(FIELDS), inner, max_size=5)
    ),
    max_leaves=20,
)


@st.composite
def messages(draw: st.DrawFn) -> Any:
    """Return a request whose message has arbitrary values in some fields."""
    made = message(draw(text) or "m", draw(shaped))
    for name in draw(st.lists(st.sampled_from([*made, "taskId", "contextId", "metadata"]))):
        made[name] = draw(shaped)
    return {"message": made} | ({"configuration": draw(shaped)} if draw(st.booleans()) else {})


def encoded(value: Any) -> bytes:
    """Encode a value in Python's JSON, which allows NaN and lone surrogates."""
    return json.dumps(value).encode("utf-8", "surrogatepass")


def of_json_rpc(verb: str, params: Any, request_id: Any) -> Any:
    """Return a JSON-RPC call, whose ID may be invalid."""
    body = {"jsonrpc": "2.0", "id": request_id, "method": verb, "params": params}
    headers = {"A2A-Version": "0.3" if "/" in verb else "1.0"}
    return "POST", JSONRPC, {"content": encoded(body), "headers": headers}


ids = st.text(st.characters(codec="utf-8", exclude_characters="/?#"), min_size=1, max_size=30)
tasks = ids.map(lambda task_id: f"{REST}/tasks/{quote(task_id, safe='')}")
queries = st.dictionaries(
    st.sampled_from(FIELDS), st.text(st.characters(codec="utf-8")), max_size=3
).map(lambda query: {"params": query})
sends = [JSONRPC, *(f"{REST}/{path}" for path in ("message:send", "message:stream"))]
bodies = st.binary(max_size=80) | (messages() | shaped).map(encoded)
requests: Any = st.one_of(
    st.builds(of_json_rpc, st.sampled_from(VERBS), messages() | shaped, shaped),
    st.tuples(
        st.just("POST"),
        st.sampled_from([*sends, f"{REST}/v1/message:send"]),
        bodies.map(lambda body: {"content": body}),
    ),
    st.tuples(st.just("GET"), tasks | st.just(f"{REST}/tasks"), queries),
    st.tuples(st.just("GET"), tasks.map("{}:subscribe".format), queries),
    st.tuples(st.just("POST"), tasks.map("{}:cancel".format), queries),
)


@settings(max_examples=250)
@given(requests)
def test_any_request_is_answered(call: Callable[..., httpx.Response], request: Any) -> None:
    """Requests with arbitrary bodies, messages, IDs or queries get a valid reply."""
    method, path, more = request
    check(call(method, path, **more))


@pytest.mark.parametrize(
    ("body", "code", "says"),
    [
        (b"", -32700, "is not JSON"),
        (b"{", -32700, "is not JSON"),
        (b"\xff", -32700, "is not UTF-8"),
        (b'{"a": 1, "a": 2}', -32700, "is not JSON"),
        (b'{"id": "\\ud800"}', -32700, "an unpaired surrogate"),
        (b'{"id": NaN}', -32700, "is not JSON"),
        (b"[" * 5000 + b"]" * 5000, -32700, "is not JSON"),
        (b" " * (DEFAULT_MAX_REQUEST + 1), -32600, "at most 1048576 bytes"),
        (b"[%s0]" % (b"0," * 25_000), -32600, "more than 25000 values"),
        (b"[]", -32600, "Invalid"),
        (b"3", -32600, "Invalid"),
        (b'{"jsonrpc": "1.0", "id": 7, "method": "GetTask"}', -32600, "2.0"),
        (b'{"jsonrpc": "2.0", "id": 7, "method": "Nope"}', -32601, "not found"),
        (b'{"jsonrpc": "2.0", "id": 7, "method": "GetTask", "params": {}}', -32602, "failed"),
        (b'{"jsonrpc": "2.0", "id": 7, "method": "GetTask", "params": {"id": 3}}', -32602, ""),
    ],
)
def test_invalid_call_of_json_rpc_gets_its_error_code(
    call: Callable[..., httpx.Response], body: bytes, code: int, says: str
) -> None:
    """An invalid JSON-RPC call gets the error code of JSON-RPC for its fault (A2A 9.5)."""
    reply = call("POST", JSONRPC, content=body)
    value = reply.json()
    assert (value["jsonrpc"], value["error"]["code"]) == ("2.0", code)
    assert says in value["error"]["message"]
    assert value["id"] == (7 if b'"id": 7' in body else None)
    assert reply.status_code == (413 if says[:7] in ("at most", "more th") else 200)


def test_other_media_types_and_sites_are_refused(call: Callable[..., httpx.Response]) -> None:
    """A request with a wrong media type or from another site is refused; its body is not parsed."""
    for kind in ("text/plain", "application/json; charset=latin-1", "x" * 300):
        reply = call("POST", JSONRPC, content=b"{}", headers={"content-type": kind})
        assert (reply.status_code, reply.json()["error"]["code"]) == (200, -32005)
        reply = call("POST", f"{REST}/message:send", content=b"{}", headers={"content-type": kind})
        assert reply.status_code == 415
    site = {"sec-fetch-site": "cross-site", "origin": "https://evil.example"}
    reply = call("POST", JSONRPC, json={}, headers=site)
    assert (reply.status_code, reply.json()["error"]["code"]) == (403, -32600)
    assert call("POST", f"{REST}/message:send", json={}, headers=site).status_code == 403
    assert call("GET", f"{REST}/tasks", headers=site).status_code == 200


def left(path: str, body: object, stays: Callable[[lro.Service], bool]) -> list[str]:
    """Call the path, and disconnect once ``stays`` returns true; return the ASGI message types."""
    counting, handler = make_agent(build(), wait=timedelta(minutes=5))
    app = Starlette(routes=routes(handler))
    kind, version = (b"content-type", b"application/json"), (b"a2a-version", b"1.0")
    scope = {"type": "http", "method": "POST", "path": path, "raw_path": path.encode()}
    scope |= {"headers": [kind, version], "query_string": b"", "scheme": "http"}
    pending = [] if body is None else [{"type": "http.request", "body": json.dumps(body).encode()}]
    seen: list[str] = []

    async def receive() -> Any:
        if not pending:
            await until_async(lambda: stays(counting.service))
        found = pending.pop() if pending else {"type": "http.disconnect"}
        seen.append(found["type"])
        return found

    async def send(message: Any) -> None:
        seen.append(message["type"])

    asyncio.run(asyncio.wait_for(app(scope, receive, send), PATIENCE))
    assert counting.service.edges.waiters.waiting == 0
    counting.service.close(0)
    return seen


@pytest.mark.parametrize("path", [JSONRPC, f"{REST}/message:send"])
def test_disconnected_caller_ends_its_wait(path: str) -> None:
    """A disconnect ends the caller's wait, which frees the wait's slot; the task continues."""
    body: Any = {"message": message()}
    if path == JSONRPC:
        body = {"jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": body}
    assert left(path, None, lambda service: True) == ["http.disconnect"]
    heard = left(path, body, lambda service: service.edges.waiters.waiting == 1)
    assert heard[:2] == ["http.request", "http.disconnect"]


# -- gRPC -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def agent() -> Iterator[Agent]:
    """Serve an agent on real sockets."""
    with serving(build(verbs=["ListOperations"])) as served:
        yield served


@settings(max_examples=40)
@given(st.binary(max_size=60), st.sampled_from(["SendMessage", "GetTask", "ListTasks"]))
def test_any_bytes_over_grpc_are_answered(agent: Agent, sent: bytes, verb: str) -> None:
    """Arbitrary bytes over gRPC get a result, or an error that blames the request."""
    method = agent.channel.unary_unary(f"/lf.a2a.v1.A2AService/{verb}")
    try:
        method(sent, timeout=60)
    except grpc.RpcError as exc:
        error: Any = exc
        assert error.code().name in {"INVALID_ARGUMENT", "NOT_FOUND", "FAILED_PRECONDITION"}, error


def refused(agent: Agent, service: str, sent: bytes) -> Any:
    """Send these bytes as a SendMessage over gRPC, and return the error of the call."""
    with pytest.raises(grpc.RpcError) as caught:
        agent.channel.unary_unary(f"/{service}.A2AService/SendMessage")(sent, timeout=60)
    return caught.value


@pytest.mark.parametrize(
    ("service", "many"),
    [
        ("lf.a2a.v1", a2a_pb2.SendMessageRequest(message={"parts": [a2a_pb2.Part()] * 9000})),
        ("a2a.v1", old_pb2.SendMessageRequest(request={"content": [old_pb2.Part()] * 9000})),
    ],
)
def test_request_of_too_many_values_is_refused_over_grpc(
    agent: Agent, service: str, many: Any
) -> None:
    """A request with too many values or bytes is refused over gRPC before it is parsed."""
    large = b"\0" * (DEFAULT_MAX_REQUEST + 1)
    for sent, says in ((many.SerializeToString(), "25000 values"), (large, "1048576 bytes")):
        error = refused(agent, service, sent)
        assert (error.code().name, says in error.details()) == ("INVALID_ARGUMENT", True)


def test_caller_is_authenticated_once_before_the_request_is_read() -> None:
    """An invalid request of an unauthenticated caller gets 401, not a validation error."""
    asked: list[object] = []

    def authenticate(headers: object) -> str:
        asked.append(headers)
        raise lro.errors.Unauthenticated("say who you are")

    with serving(authenticate=authenticate) as agent:
        for path in (JSONRPC, *(f"{REST}{version}/message:stream" for version in ("", "/v1"))):
            assert agent.http.post(path, content=b"{" * 2_000_000).status_code == 401
        for service in ("lf.a2a.v1", "a2a.v1"):
            error = refused(agent, service, b"\xff" * 2_000_000)
            assert error.code() is grpc.StatusCode.UNAUTHENTICATED
    assert len(asked) == 5
    with serving(authenticate=lambda headers: asked.append(headers)) as agent:
        for ask in WAYS.values():
            ask(agent, Asked("ListTasks"))
    assert len(asked) == 8


@pytest.mark.parametrize("way", WAYS)
def test_deep_data_is_refused(agent: Agent, way: str) -> None:
    nested = functools.reduce(lambda inner, _: [inner], range(40), [None])
    refused = WAYS[way](agent, Asked("SendMessage", {"message": message(way, {"rest": nested})}))
    assert refused.reason == "INVALID_PARAMS"


def test_another_version_over_grpc_is_refused(agent: Agent) -> None:
    """A request of an unsupported version is refused; patch numbers are ignored (A2A 3.6)."""
    stub: Any = a2a_pb2_grpc.A2AServiceStub(agent.channel)
    for version in ("2.0", "99", "1x", "0.2", "", "0.3.0", "1.0.1"):
        metadata = (("a2a-version", version),)
        with pytest.raises(grpc.RpcError) as caught:
            stub.GetTask(a2a_pb2.GetTaskRequest(id="x"), metadata=metadata, timeout=60)
        error: Any = caught.value
        wanted = "NOT_FOUND" if version in ("", "0.3.0", "1.0.1") else "FAILED_PRECONDITION"
        assert error.code().name == wanted


def test_large_part_is_not_validated_value_by_value(monkeypatch: pytest.MonkeyPatch) -> None:
    """The SDK's slow check of required fields gets a message without most of its large values."""
    sizes = []

    def checked(params: Any) -> None:
        sizes.append(params.ByteSize())
        validate_proto_required_fields(params)

    monkeypatch.setattr("lro.a2a._messages.validate_proto_required_fields", checked)
    params = a2a_pb2.SendMessageRequest()
    json_format.ParseDict({"message": message(data=[0] * 50_000)}, params)
    for struct in (params.metadata, params.message.metadata, params.message.parts[0].metadata):
        struct.update({"x": "y" * 50_000})
    for _ in range(50_000):
        params.message.parts.add()
    before = params.ByteSize()
    check_required(params)
    assert (params.ByteSize(), len(params.message.parts)) == (before, 50_001)
    assert sizes[0] < 100
    for field in ("parts", "message_id", "role"):
        params.message.ClearField(field)
        with pytest.raises(InvalidParamsError) as caught:
            check_required(params)
        assert f"message.{field}" in str(caught.value.data)


def test_large_message_starts_a_task(agent: Agent) -> None:
    """A large message is read and stored in a thread."""
    data = {"steps": 3, "label": "x" * 70_000}
    found = [
        WAYS[way](agent, Asked("SendMessage", {"message": message(way, data)})) for way in WAYS
    ]
    states = {one["task"]["status"]["state"] for one in found}
    assert states == {"TASK_STATE_SUBMITTED"}
    bad = {"steps": "?", "label": "x" * 70_000}
    refused = by_grpc(agent, Asked("SendMessage", {"message": message("bad", bad)}))
    assert refused.reason == "INVALID_PARAMS"
