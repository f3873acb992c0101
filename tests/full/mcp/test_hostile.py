"""Malformed requests get protocol errors: no HTTP 500, no traceback, no exception text."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

pytest.importorskip("mcp")
pytest.importorskip("uvicorn")

from hypothesis import given, settings
from hypothesis import strategies as st
from mcp.server.mcpserver import MCPServer
from mcp.shared.exceptions import MCPError

import lro
from lro.executors.inline import InlineExecutor
from lro.mcp import TasksExtension
from lro.stores.memory import MemoryStore
from lro.types import AnyMessage, Struct
from tests.full.mcp.polling import TASKS
from tests.full.mcp.served import METHOD, TOOL, VERSION, Caller, Serve, envelope, served
from tests.http.counting_service import CountRequest, CountResponse

CODES = {-32700, -32600, -32601, -32602, -32603, -32020, -32021, -32022}
TOOLS = (TOOL, "Things_Keep", "operations_get", "operations_cancel")
REQUESTS = ("tools/call", "tasks/get", "tasks/update", "tasks/cancel")

texts = st.text(max_size=20) | st.sampled_from(["\ud800", "\x00", "é", "=?base64?w6Q=?=", "a/b"])
scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from([2**63, -(2**64), 10**400, 1e308, float("inf"), float("nan")])
    | st.floats()
    | texts
)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=12,
)


@pytest.fixture(scope="module")
def anyone() -> Iterator[Caller]:
    """Yield a client of a server whose methods end at once; every caller is accepted."""
    service = lro.Service(MemoryStore(), InlineExecutor(), maintenance=False)

    @service.method(METHOD)
    def count(request: CountRequest) -> CountResponse:
        return CountResponse(total=request.steps)

    @service.method("acme.v1.Things.Keep")
    def keep(request: Struct) -> Struct:
        return request

    def authenticate(headers: Any) -> str:
        return str(headers.get("x-caller", ""))

    extension = TasksExtension(service, authenticate=authenticate)
    with served(MCPServer("things", extensions=[extension])) as caller:
        yield caller
    service.close()


def send(caller: Caller, body: Any, **headers: Any) -> httpx.Response:
    """Send a body, which may be invalid, in Python's JSON with NaN and lone surrogates."""
    method = body.get("method") if isinstance(body, dict) else None
    sent = {
        "Content-Type": "application/json",
        "MCP-Protocol-Version": VERSION,
        "Mcp-Method": method if isinstance(method, str) else "tools/call",
        **headers,
    }
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return caller.client.post("/mcp", content=content, headers=sent)


def rpc(method: str, meta: Any = None, **params: Any) -> dict[str, Any]:
    """Return the JSON-RPC body of a request."""
    asked = {**params, "_meta": envelope() if meta is None else meta}
    return {"jsonrpc": "2.0", "id": 1, "method": method, "params": asked}


def call_of(tool: str, arguments: Any, declared: bool) -> tuple[Any, dict[str, Any]]:
    """Return a tool call and its headers."""
    meta = envelope(declared=declared)
    return rpc("tools/call", meta, name=tool, arguments=arguments), {"Mcp-Name": tool}


def meta_of(method: str, capabilities: Any, key: Any, depth: int) -> tuple[Any, dict[str, Any]]:
    """Return a request with any capabilities and any request ID, and its headers."""
    for name in [TASKS, "extensions"][:depth]:
        capabilities = {name: capabilities}
    meta = {
        "io.modelcontextprotocol/protocolVersion": VERSION,
        "io.modelcontextprotocol/clientCapabilities": capabilities,
        "lro.local/request-id": key,
    }
    name = TOOL if method == "tools/call" else "2a7c"
    return rpc(method, meta, **SAID), {"Mcp-Name": name}


SAID = {"name": TOOL, "arguments": {"steps": 1}, "taskId": "2a7c", "inputResponses": {}}
methods = st.sampled_from(REQUESTS)
requests: Any = st.one_of(
    st.builds(call_of, st.sampled_from(TOOLS), values, st.booleans()),
    st.tuples(
        st.builds(rpc, st.sampled_from(REQUESTS[1:]), taskId=values, inputResponses=values),
        st.just({}),
    ),
    st.builds(meta_of, methods, values, values, st.integers(0, 3)),
    st.tuples(
        st.builds(lambda method: rpc(method, **SAID), methods),
        st.fixed_dictionaries(
            {
                "Mcp-Name": st.text(
                    st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=30
                ),
                "X-Caller": st.text(
                    st.characters(min_codepoint=33, max_codepoint=255), max_size=30
                ).map(lambda text: text.encode("latin-1")),
            }
        ),
    ),
    st.tuples(values, st.just({})),
)


def check_refusal_or_result(reply: httpx.Response) -> None:
    """Check that a reply follows the protocol and reveals nothing about an exception."""
    assert reply.status_code in (200, 202, 400, 404), reply.text
    assert "Traceback" not in reply.text
    if reply.status_code == 202:
        return
    message = reply.json()
    if "error" in message:
        assert message["error"]["code"] in CODES
        assert "Error" not in message["error"]["message"]
        assert message["error"]["code"] != -32603, message
    else:
        assert message["result"]["resultType"] in ("complete", "task")


@settings(max_examples=150)
@given(request=requests)
def test_any_request_gets_a_reply_of_the_protocol(anyone: Caller, request: Any) -> None:
    """Requests with arbitrary arguments, IDs, capabilities, headers or bodies get valid replies."""
    body, headers = request
    check_refusal_or_result(send(anyone, body, **headers))


@pytest.mark.parametrize(
    "kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=a"]
)
def test_content_types_of_web_forms_are_refused(anyone: Caller, kind: str) -> None:
    """A content type that web pages may send to other sites without a CORS preflight is refused."""
    body, headers = call_of(TOOL, {"steps": 1}, True)
    assert send(anyone, body, **headers).json()["result"]
    refused = send(anyone, body, **headers, **{"Content-Type": kind})
    assert 400 <= refused.status_code < 500
    assert '"result"' not in refused.text


@pytest.mark.parametrize("depth", [50, 99, 200, 900, 100_000])
def test_deep_arguments_get_a_result_or_a_refusal(anyone: Caller, depth: int) -> None:
    body, headers = call_of(TOOLS[1], {"a": "DEEP"}, True)
    content = json.dumps(body).replace('"DEEP"', "[" * depth + "]" * depth).encode()
    check_refusal_or_result(send(anyone, content, **headers))


def test_lone_surrogate_in_arguments_is_an_error_of_the_tool(anyone: Caller) -> None:
    body, headers = call_of(TOOL, {"label": "\ud800"}, True)
    result = send(anyone, body, **headers).json()["result"]
    assert result["isError"] is True
    assert result["content"][0]["text"].startswith("arguments: are not JSON")


def test_refusals_are_no_faults_of_the_server(
    anyone: Caller, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR):
        for params in ({"taskId": "\ud800"}, {"taskId": 7}, {}, {"taskId": "x" * 100_000}):
            assert send(anyone, rpc("tasks/get", **params)).status_code == 400
    assert not caplog.records


def test_lone_surrogate_in_a_request_id_is_an_error_of_the_client(anyone: Caller) -> None:
    meta = {**envelope(), "lro.local/request-id": "\ud800"}
    reply = send(anyone, rpc("tools/call", meta, **SAID), **{"Mcp-Name": TOOL})
    error = reply.json()["error"]
    assert (error["code"], error["message"]) == (-32602, "request_id: has half a character")


NO_JSON: Any = object()
DETAILS = (
    AnyMessage("type.googleapis.com/acme.v1.Note", {"secret": NO_JSON}),
    AnyMessage("type.googleapis.com/acme.v1.Note", {"secret": "\ud800"}),
    AnyMessage("type.googleapis.com/acme.v1.Secret", b"\xff"),
)


def call_in_a_session(caller: Caller) -> tuple[int, Any]:
    """Call the tool in a session of an earlier revision; return the HTTP status and the message."""
    hello = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {}}
    hello["clientInfo"] = {"name": "old", "version": "1"}
    body = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": hello}
    session = caller.client.post("/mcp", json=body).headers["mcp-session-id"]
    headers = {"Mcp-Session-Id": session, "MCP-Protocol-Version": "2025-06-18"}
    begun = {"jsonrpc": "2.0", "method": "notifications/initialized"}
    caller.client.post("/mcp", json=begun, headers=headers)
    call = {"name": TOOL, "arguments": {"steps": 1}}
    body = {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": call}
    reply = caller.client.post("/mcp", json=body, headers=headers)
    return reply.status_code, reply.json()


def call_alone(caller: Caller) -> tuple[int, Any]:
    """Call the tool as a client that supports tasks; return the HTTP status and the message."""
    reply = caller.call({"steps": 1})
    return reply.status, reply.message


CALLS = (call_alone, call_in_a_session)


def check_internal(found: tuple[int, Any], text: str = "the server failed internally") -> None:
    """Check that a reply reports an internal error and nothing else."""
    status, message = found
    assert (status, message["error"]["code"]) == (200, -32603)
    assert message["error"]["message"] == text
    assert "ecret" not in json.dumps(message)


@pytest.mark.parametrize("call", CALLS)
def test_a_detail_without_a_json_form_is_a_fault_of_the_server(
    serve: Serve, call: Callable[[Caller], Any]
) -> None:
    """A detail without a JSON form becomes an internal error; the SDK would reply HTTP 500."""
    here, detail = "", DETAILS[0]

    def fail(where: str) -> None:
        if where == here:
            raise lro.errors.StatusError(lro.Code.INVALID_ARGUMENT, "no", (detail,))

    def authenticate(headers: Any) -> str:
        fail("authenticate")
        return "ann"

    service = lro.Service(MemoryStore(), InlineExecutor(), maintenance=False)

    @service.method(METHOD, validate=lambda request: fail("validate"))
    def count(request: CountRequest) -> CountResponse:
        fail("work")
        return CountResponse()

    caller = serve(service, authenticate=authenticate)
    for detail in DETAILS:
        for here in ("authenticate", "validate", "work"):
            if here == "work" and not isinstance(
                detail.payload, bytes
            ):  # the record has this text, not the detail
                check_internal(call(caller), "the result of the method cannot be encoded")
            else:
                check_internal(call(caller))


def test_metadata_without_a_json_form_is_a_fault_of_the_server(serve: Serve) -> None:
    service = lro.Service(MemoryStore(), InlineExecutor(), maintenance=False)
    count = service.declare(
        METHOD, request=CountRequest, response=CountResponse, metadata=lro.types.AnyMessage
    )
    caller = serve(service)
    name = count.start(CountRequest(), metadata=DETAILS[1]).name
    reply = caller.task("tasks/get", name.rpartition("/")[2])
    check_internal((reply.status, reply.message))


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("error", [RuntimeError("secret"), MCPError(-32602, "secret")])
def test_error_text_of_a_hook_or_a_store_is_hidden(
    serve: Serve, call: Callable[[Caller], Any], error: Exception
) -> None:
    """The text of an error in a hook or a store is hidden, even if the error is an MCPError."""
    reads: list[str] = []

    class Store(MemoryStore):
        def get(self, name: str) -> Any:
            reads.append(name)
            raise error

    def authenticate(headers: Any) -> str:
        if not reads:
            raise error
        return "ann"

    service = lro.Service(Store(), InlineExecutor(), maintenance=False)
    service.declare(METHOD, request=CountRequest, response=CountResponse)
    caller = serve(service, authenticate=authenticate)
    check_internal(call(caller))
    reads.append("")
    check_internal(call(caller))
    assert len(reads) > 1
