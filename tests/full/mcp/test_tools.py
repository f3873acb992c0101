"""Methods as tools: names, schemas, and results for clients without tasks."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import logging
import re
import socket
import sys
from datetime import timedelta
from typing import Any

import pytest

pytest.importorskip("mcp")
pytest.importorskip("uvicorn")


from mcp.client import Client
from mcp.server.mcpserver import MCPServer

import lro
from lro.executors.inline import InlineExecutor
from lro.mcp import TasksExtension
from lro.stores.memory import MemoryStore
from lro.types import ErrorInfo, Struct, TypeRegistry
from tests.full.mcp.served import TOOL, Serve, envelope, served
from tests.http.counting_service import (
    DOMAIN,
    CountMetadata,
    CountRequest,
    CountResponse,
    CountService,
    build,
)
from tests.http.servers import HOST
from tests.waiting import until, until_async


def tools_of(extension: TasksExtension) -> dict[str, dict[str, Any]]:
    """Return the tools that a client finds on a server with this extension."""

    async def listed() -> dict[str, dict[str, Any]]:
        async with Client(MCPServer("things", extensions=[extension])) as client:
            tools = (await client.list_tools()).tools
        return {one.name: one.model_dump(by_alias=True, exclude_none=True) for one in tools}

    return asyncio.run(listed())


def tool(request: type, response: type, **options: Any) -> dict[str, Any]:
    """Return the tool of a method with these messages."""
    service = lro.Service(MemoryStore(), InlineExecutor(), maintenance=False)
    service.declare("acme.v1.Things.Made", request=request, response=response)
    return tools_of(TasksExtension(service, **options))["Things_Made"]


def test_messages_of_any_form_have_open_schemas() -> None:
    for response in (lro.types.Empty, lro.AnyMessage, lro.types.ListValue, lro.types.StringValue):
        assert "outputSchema" not in tool(CountRequest, response)
    assert tool(Struct, CountResponse)["inputSchema"]["properties"] == {}


@pytest.mark.parametrize("request_class", [lro.types.ListValue, lro.types.StringValue])
def test_request_type_that_is_not_a_json_object_is_refused(request_class: type) -> None:
    with pytest.raises(lro.DeclarationError, match=r"methods: .* as in acme\.v1\.Things\.Made"):
        tool(request_class, CountResponse)


def test_function_describes_its_tool_and_the_server_has_other_tools() -> None:
    service = lro.Service(MemoryStore(), InlineExecutor(), maintenance=False)

    @service.method("acme.v1.Things.Double")
    def double(request: CountRequest) -> CountResponse:
        """Double it.

        At once.
        """
        return CountResponse(total=2 * request.steps)

    options: dict[str, Any] = {"tool_name": lambda name: name.rpartition(".")[2].lower()}
    server = MCPServer("things", extensions=[TasksExtension(service, [double], **options)])

    @server.tool()
    def greet(name: str) -> str:
        return f"Hello, {name}!"

    async def use() -> None:
        async with Client(server) as client:
            tools = {one.name: one for one in (await client.list_tools()).tools}
            assert list(tools) == ["double", "operations_get", "operations_cancel", "greet"]
            assert tools["double"].description == "Double it.\n\nAt once."
            doubled = await client.call_tool("double", {"steps": 4})
            assert doubled.structured_content == {"total": 8}
            greeted = await client.call_tool("greet", {"name": "Ann"})
            assert greeted.structured_content == {"result": "Hello, Ann!"}

    asyncio.run(use())


def test_tool_names_fit_the_apis_of_models(caplog: pytest.LogCaptureFixture) -> None:
    """Tool names fit the limits of model APIs: short if unique, cut at the front if too long."""
    service = lro.Service(MemoryStore(), InlineExecutor(), maintenance=False)
    long = f"acme.v1.{'Very' * 20}.Long"
    for name in ("acme.v1.Things.Count", "acme.v2.Things.Count", "acme.v1.Other.Count", long):
        service.declare(name, request=CountRequest, response=CountResponse)
    found = list(tools_of(TasksExtension(service)))
    assert found == [
        *("acme_v1_Things_Count", "acme_v2_Things_Count", "Other_Count"),
        f"{long.replace('.', '_')[-64:]}",
        *("operations_get", "operations_cancel"),
    ]
    assert all(re.fullmatch("[A-Za-z0-9_-]{1,64}", one) for one in found)
    assert "most clients take only names" not in caplog.text
    lenient = TasksExtension(service, tool_name=str, read_tool="read", cancel_tool="stop.it")
    assert list(tools_of(lenient))[4:] == ["read", "stop.it"]
    assert caplog.text.count("most clients take only names") == 5


def test_names_of_tools_differ_also_where_what_differs_is_cut() -> None:
    full_names = [f"acme.{version}.{'Very' * 16}.Long" for version in ("v1", "v2", "v3")]

    def names(chosen: list[str]) -> list[str]:
        service = lro.Service(MemoryStore(), InlineExecutor(), maintenance=False)
        for name in chosen:
            service.declare(name, request=CountRequest, response=CountResponse)
        return list(tools_of(TasksExtension(service)))[:-2]

    found = names(full_names)
    assert len(set(found)) == 3
    assert all(re.fullmatch("[A-Za-z0-9_-]{64}", one) for one in found)
    assert names(full_names[::-1]) == found[::-1]


def test_tool_cannot_be_called_outside_of_the_protocol() -> None:
    server = MCPServer("things", extensions=[TasksExtension(build().service)])
    with pytest.raises(Exception, match="only there for clients of MCP"):
        asyncio.run(server.call_tool(TOOL, {}))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"methods": []}, "methods: are none"),
        ({"methods": 3}, "methods: must be a sequence of methods"),
        ({"methods": ["Count"]}, "methods: must be a sequence of methods"),
        ({"tool_name": "count"}, "tool_name: "),
        ({"tool_name": lambda _: 3}, "tool_name: must be names of 1 to 128"),
        ({"tool_name": lambda _: "two words"}, "tool_name: must be names of 1 to 128"),
        (
            {"tool_name": lambda _: "operations_get"},
            "tool_name: acme.v1.Things.Count and the tool for operations would both be named",
        ),
        ({"tool_name": lambda _: "x" * 129}, "tool_name: must be names of 1 to 128"),
        (
            {"tool_name": lambda _: "same"},
            "tool_name: acme.v1.Things.Other and acme.v1.Things.Count would both be named 'same'",
        ),
        ({"read_tool": "two words"}, "read_tool: must be names of 1 to 128"),
        ({"read_tool": "Things_Count"}, "tool_name: acme.v1.Things.Count and the tool for"),
        ({"cancel_tool": "two words"}, "cancel_tool: must be names of 1 to 128"),
        ({"cancel_tool": "operations_get"}, "cancel_tool: must be names of 1 to 128"),
        ({"cancel_tool": "Things_Count"}, "tool_name: acme.v1.Things.Count and the tool for"),
        ({"wait": -1}, "wait: must be seconds from 0"),
        ({"without_tasks": "wait"}, "without_tasks: must be 'handle' or 'refuse'"),
        ({"poll_seconds": 0}, "poll_seconds: "),
        ({"authenticate": "ann"}, "authenticate: "),
        ({"parent": "people/ann"}, "parent: "),
        ({"service": None}, "service: must be a Service"),
        ({"service": build(owner_only=True).service}, "authenticate: is needed"),
        ({"methods": [build().count]}, "acme.v1.Things.Count: is not declared by this service"),
        ({"methods": None, "places": True}, "parent: is needed, since acme.v1.Things.Placed"),
    ],
)
def test_invalid_option_of_the_tools_is_refused(options: dict[str, Any], said: str) -> None:
    service = build().service
    service.declare("acme.v1.Things.Other", request=CountRequest, response=CountResponse)
    if options.pop("places", False):
        placed = lro.Options(parent=lambda _: "places/a")
        service.declare(
            "acme.v1.Things.Placed", request=CountRequest, response=CountResponse, options=placed
        )
    with pytest.raises(lro.DeclarationError) as refused:
        TasksExtension(**{"service": service, **options})
    assert str(refused.value).startswith(said)


def test_extension_without_authenticate_logs_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "lro"):
        TasksExtension(build().service)
        assert [one.levelname for one in caplog.records] == ["WARNING"]
        caplog.clear()
        TasksExtension(build().service, authenticate=lambda _: "ann")
        TasksExtension(build(owner_only=True).service, authenticate=lambda _: "ann")
    assert not caplog.records


def test_client_without_tasks_polls_with_a_handle(serve: Serve) -> None:
    counting = build()
    caller = serve(counting.service, wait=0)
    handle = caller.call({"steps": 3}, declared=False).result
    task_id = handle["structuredContent"]["operation"]
    text = handle["content"][0]["text"]
    assert not handle["isError"]
    assert task_id in text
    assert "operations_get" in text
    again = {"id": task_id}
    assert caller.call(again, "operations_get", declared=False).result == handle
    assert caller.call(again, "operations_get").result == handle  # also for clients with tasks
    counting.finish(f"operations/{task_id}")
    done = caller.call(again, "operations_get", declared=False).result
    assert done["structuredContent"] == {"total": 3}


def test_text_for_a_model_has_the_progress(serve: Serve) -> None:
    """The text that a client without tasks gets says how far the work is, if that is known."""
    counting = build()
    own = counting.declare("acme.v1.Things.Own", metadata=lro.OperationMetadata)
    caller = serve(counting.service, wait=0)

    def text(operation_id: str) -> str:
        shown = caller.call({"id": operation_id}, "operations_get", declared=False).result
        said: str = shown["content"][0]["text"]
        assert "Call the tool operations_get" in said
        assert "operations_cancel to stop it" in said
        return said.partition(" Call the tool")[0]

    plain, named = (
        caller.call({"steps": 3}, tool, declared=False).result["structuredContent"]["operation"]
        for tool in (TOOL, "Things_Own")
    )
    assert text(plain) == f"The work goes on as operation {plain}."
    assert text(named) == f"The work goes on as operation {named}."
    reporter = counting.service.reporter(f"operations/{named}")
    reporter.report(lro.OperationMetadata(progress_percent=40, status_message="reading"))
    assert text(named).endswith(" Its progress: 40 % done, reading.")
    reporter.report(lro.OperationMetadata(status_message="reading"))
    assert text(named).endswith(" reading.")
    counting.service.reporter(f"operations/{plain}").report(CountMetadata(percent=7))
    assert text(plain).endswith(' Its metadata: {"percent":7}.')
    assert own.spec.full_name == "acme.v1.Things.Own"


def test_long_or_unreadable_metadata_are_not_for_a_model(serve: Serve) -> None:
    """Metadata of a thousand characters, or without a JSON form, are left out of the text."""
    counting = build()
    counting.declare("acme.v1.Things.Free", metadata=lro.AnyMessage)
    caller = serve(counting.service, wait=0)
    started = caller.call({"steps": 3}, "Things_Free", declared=False).result
    operation_id = started["structuredContent"]["operation"]
    reporter = counting.service.reporter(f"operations/{operation_id}")
    for metadata in (
        TypeRegistry().pack(Struct({"text": "x" * 1000})),
        lro.AnyMessage("acme.v1.Unknown", b"\xff"),
    ):
        reporter.report(metadata)
        shown = caller.call({"id": operation_id}, "operations_get", declared=False).result
        begin = f"The work goes on as operation {operation_id}. Call the tool"
        assert shown["content"][0]["text"].startswith(begin)


def test_cancel_tool_asks_the_work_to_stop(serve: Serve) -> None:
    """The tool says whether the work has stopped, goes on for now, or had ended before."""
    counting = build()
    caller = serve(counting.service, wait=0)
    names = [counting.start() for _ in range(3)]
    ids = [{"id": name.removeprefix("operations/")} for name in names]
    counting.finish(names[2])

    asked = caller.call(ids[0], "operations_cancel", declared=False).result
    assert counting.service.reporter(names[0]).cancel_requested
    assert asked["content"][0]["text"].startswith(f"Operation {ids[0]['id']} was asked to stop")
    assert asked["structuredContent"] == {"operation": ids[0]["id"]}
    counting.service.reporter(names[0]).acknowledge_cancel()
    stopped = caller.call(ids[0], "operations_cancel").result
    assert stopped["content"][0]["text"] == f"Operation {ids[0]['id']} was cancelled."
    assert stopped["isError"] is False
    ended = caller.call(ids[2], "operations_cancel", declared=False).result
    assert ended["structuredContent"] == {"total": 3}
    assert not counting.service.reporter(names[1]).cancel_requested


@pytest.mark.parametrize("tool", ["operations_get", "operations_cancel"])
def test_tools_for_operations_have_none_for_another_id(tool: str, serve: Serve) -> None:
    caller = serve(build().service)
    for arguments in ({}, {"id": 3}, {"id": "2a7c"}, {"id": "a/b"}, {"id": None}):
        refused = caller.call(arguments, tool, declared=False).result
        assert refused["isError"] is True
        assert refused["content"][0]["text"].startswith("task not found")


def test_read_tool_shows_how_the_work_ended(serve: Serve, counting: CountService) -> None:
    caller = serve(counting.service, wait=0)
    names = [counting.start() for _ in range(3)]
    counting.service.cancel(names[0])
    counting.service.reporter(names[0]).acknowledge_cancel()
    counting.service.reporter(names[1]).finish()
    info = TypeRegistry().pack(ErrorInfo(reason="WORKER_LOST", domain=DOMAIN))
    counting.service.reporter(names[2]).fail(lro.Status(lro.Code.ABORTED, "lost", (info,)))
    ids = [{"id": name.removeprefix("operations/")} for name in names]
    cancelled, empty, lost = (caller.call(one, "operations_get", declared=False) for one in ids)
    assert cancelled.result["isError"] is True
    assert cancelled.result["content"][0]["text"] == "the operation was cancelled"
    assert empty.result == {"resultType": "complete", "content": [], "isError": False}
    assert lost.refusal == (200, -32603)


def test_server_that_refuses_clients_without_tasks_starts_nothing(serve: Serve) -> None:
    counting = build()
    caller = serve(counting.service, without_tasks="refuse")
    assert caller.call(declared=False).refusal == (400, -32021)
    assert not counting.service.list(lro.wire.ListOperationsRequest()).operations
    assert caller.call().result["resultType"] == "task"
    tools = caller.ask("tools/list").result["tools"]
    assert [one["name"] for one in tools] == [TOOL]
    for tool in ("operations_get", "operations_cancel"):
        assert caller.call({"id": "2a7c"}, tool).result["isError"] is True  # an SDK error


def test_client_without_tasks_is_given_the_result_that_comes_in_time() -> None:
    counting = build(max_wait=timedelta(hours=1))
    server = MCPServer("things", extensions=[TasksExtension(counting.service, wait=3600)])

    async def use() -> None:
        async with Client(server) as client:
            for tool_name in (TOOL, "operations_get"):
                arguments: dict[str, Any] = {"steps": 3}
                if tool_name != TOOL:
                    arguments = {"id": counting.start().removeprefix("operations/")}
                call = asyncio.create_task(client.call_tool(tool_name, arguments))
                await until_async(lambda: counting.service.edges.waiters.waiting)
                listed = counting.service.list(lro.wire.ListOperationsRequest(filter="done=false"))
                counting.finish(listed.operations[0].name)
                assert (await call).structured_content == {"total": 3}

    asyncio.run(use())


@pytest.mark.parametrize("reason", ["max_wait", "stopping", "no verb"])
def test_client_without_tasks_gets_a_handle_where_it_cannot_wait(serve: Serve, reason: str) -> None:
    options: dict[str, dict[str, Any]] = {
        "max_wait": {"max_wait": timedelta(0)},
        "stopping": {},
        "no verb": {"verbs": ("GetOperation",)},
    }
    counting = build(**options[reason])
    if reason == "stopping":
        counting.service.edges.end_waits()
    handle = serve(counting.service, wait=3600).call(declared=False).result
    assert handle["structuredContent"]["operation"]


@pytest.mark.parametrize("json_response", [True, False])
def test_wait_ends_when_its_client_disconnects(json_response: bool) -> None:
    counting = build(max_wait=timedelta(hours=1))
    extension = TasksExtension(counting.service, wait=3600)
    server = MCPServer("things", extensions=[extension])
    params = {"name": TOOL, "arguments": {}, "_meta": envelope(declared=False)}
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params})
    with served(server, json_response=json_response) as caller:
        port = caller.client.base_url.port
        assert port is not None
        with socket.create_connection((HOST, port)) as line:
            head = (
                f"POST /mcp HTTP/1.1\r\nHost: {HOST}:{port}\r\nContent-Type: application/json\r\n"
                "Accept: application/json, text/event-stream\r\nMCP-Protocol-Version: 2026-07-28"
                f"\r\nMcp-Method: tools/call\r\nMcp-Name: {TOOL}\r\n"
                f"Content-Length: {len(body)}\r\n\r\n{body}"
            )
            line.sendall(head.encode())
            until(lambda: counting.service.edges.waiters.waiting, lambda count: count == 1)
        until(lambda: counting.service.edges.waiters.waiting, lambda count: count == 0)
        assert len(counting.service.list(lro.wire.ListOperationsRequest()).operations) == 1


def test_many_arguments_are_read_beside_the_event_loop(serve: Serve) -> None:
    counting = build()
    caller = serve(counting.service)
    created = caller.call({"steps": 3, "label": "x" * 100_000}).result
    assert created["resultType"] == "task"
    assert caller.call({"label": ["x" * 100_000]}).result["isError"] is True


def test_starts_carry_the_trace_of_their_request(serve: Serve, counting: CountService) -> None:
    seen: list[Any] = []

    start = counting.service.edges.start_flow

    def noted(name: str) -> Any:
        flow = start(name)

        def begin(message: Any, options: Any) -> Any:
            seen.append(dict(options.headers))
            return flow(message, options)

        return begin

    counting.service.edges.start_flow = noted  # type: ignore[method-assign, assignment]
    serve(counting.service).call(headers={"traceparent": "00-" + "a" * 32 + "-" + "b" * 16 + "-01"})
    assert seen[0]["traceparent"].startswith("00-aaaa")


def test_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mcp.server.extension", None)
    source = importlib.util.find_spec("lro.mcp")
    assert source is not None
    assert source.loader is not None
    with pytest.raises(lro.errors.MissingExtra) as caught:
        source.loader.exec_module(importlib.util.module_from_spec(source))
    assert str(caught.value) == "MCP needs the extra 'mcp': pip install 'lro[mcp]'"
