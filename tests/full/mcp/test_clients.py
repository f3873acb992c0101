"""The SDK's client completes tasks in process, over HTTP and over stdio."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

pytest.importorskip("mcp")
pytest.importorskip("uvicorn")


from mcp.client import Client
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp.server.mcpserver import MCPServer
from mcp.shared.exceptions import MCPError

import lro
from lro.executors.asyncio import AsyncioExecutor
from lro.executors.inline import InlineExecutor
from lro.mcp import TasksExtension
from lro.stores.memory import MemoryStore
from lro.types import StringValue
from tests.full.mcp.polling import GetTask, Polling, Task, TaskParams
from tests.full.mcp.served import TOOL, Caller, served
from tests.http.counting_service import CountRequest, CountResponse, build
from tests.http.servers import HOST
from tests.services.processes import killed_at_end
from tests.waiting import until, until_async

ROOT = Path(__file__).resolve().parents[3]


def counting_server() -> tuple[lro.Service, MCPServer[Any]]:
    """Return a service and its MCP server; the test ends the service's operations."""
    counting = build()
    return counting.service, MCPServer("things", extensions=[TasksExtension(counting.service)])


def finish_all(service: lro.Service, caller: str = "") -> None:
    """Complete the caller's running operations."""
    wanted = lro.wire.ListOperationsRequest(filter="done=false")
    for one in service.list(wanted, caller=caller).operations:
        service.reporter(one.name).complete(CountResponse(total=3))


@pytest.mark.parametrize("transport", ["in process", "http"])
def test_client_of_the_sdk_completes_a_task(transport: str) -> None:
    service, server = counting_server()
    seen: list[str] = []

    def status(said: str) -> None:
        seen.append(said)
        finish_all(service)

    async def use(target: Any) -> None:
        async with Client(target, extensions=[Polling(status)]) as client:
            counted = await client.call_tool(TOOL, {"steps": 3})
            assert counted.structured_content == {"total": 3}

    if transport == "http":
        with served(server, json_response=False) as caller:
            asyncio.run(use(f"{caller.client.base_url}/mcp"))
    else:
        asyncio.run(use(server))
    assert seen == ["working", "completed"]


def test_client_completes_a_task_over_stdio(tmp_path: Path) -> None:
    arguments = ["-m", "tests.full.mcp.host", str(tmp_path / "operations.db")]
    program = StdioServerParameters(
        command=sys.executable, args=arguments, cwd=ROOT, env=dict(os.environ)
    )

    async def use() -> None:
        async with Client(stdio_client(program), extensions=[Polling()]) as client:
            done = await client.call_tool("Works_Work", {"text": "a"})
            assert done.structured_content == {"text": "A"}

    asyncio.run(use())


def test_caller_in_process_has_no_headers_and_no_scope() -> None:
    counting = build(owner_only=True)
    asked: list[Any] = []

    def authenticate(headers: Any, scope: Any) -> str:
        asked.append((dict(headers), scope))
        return "ann"

    extension = TasksExtension(counting.service, authenticate=authenticate)
    server = MCPServer("things", extensions=[extension])

    async def use() -> None:
        seen = Polling(lambda _: finish_all(counting.service, "ann"))
        async with Client(server, extensions=[seen]) as client:
            assert (await client.call_tool(TOOL, {})).structured_content == {"total": 3}

    asyncio.run(use())
    assert set(map(str, asked)) == {"({}, None)"}


@pytest.mark.parametrize("mode", ["legacy", "auto"])
def test_clients_of_earlier_revisions_get_handles_and_no_tasks(mode: Any) -> None:
    service = lro.Service(MemoryStore(), InlineExecutor(), maintenance=False)

    @service.method("acme.v1.Things.Say")
    def say(request: CountRequest) -> StringValue:
        return StringValue(request.label)

    slow = service.declare("acme.v1.Things.Count", request=CountRequest, response=CountResponse)
    server = MCPServer("things", extensions=[TasksExtension(service, [slow, say], wait=0)])

    async def use() -> None:
        async with Client(server, mode=mode) as client:
            said = await client.call_tool("Things_Say", {"label": "a"})
            assert said.content[0].text == '"a"'  # type: ignore[union-attr]
            assert said.structured_content == ("a" if mode == "auto" else None)
            handle = await client.call_tool(TOOL, {})
            task_id = handle.structured_content["operation"]
            finish_all(service)
            read = await client.call_tool("operations_get", {"id": task_id})
            assert read.structured_content == {"total": 3}
            asked = GetTask(params=TaskParams(task_id=task_id))
            with pytest.raises(MCPError) as refused:
                await client.session.send_request(asked, Task)
            assert refused.value.code == (-32021 if mode == "auto" else -32601)

    asyncio.run(use())
    service.close()


def test_work_on_the_event_loop_of_the_server_is_awaited_without_a_thread() -> None:
    async def use() -> None:
        service = lro.Service(MemoryStore(), AsyncioExecutor(loop="running"), maintenance=False)
        may_end = asyncio.Event()

        @service.method("acme.v1.Things.Wait")
        async def wait(request: CountRequest) -> CountResponse:
            await may_end.wait()
            return CountResponse(total=request.steps)

        server = MCPServer("things", extensions=[TasksExtension(service, [wait], wait=3600)])
        async with Client(server) as client:
            call = asyncio.create_task(client.call_tool("Things_Wait", {"steps": 3}))
            await until_async(lambda: service.edges.waiters.waiting)
            may_end.set()
            assert (await call).structured_content == {"total": 3}
        await asyncio.to_thread(service.close)

    asyncio.run(use())


@contextmanager
def running(file: Path, may_end: Path) -> Iterator[tuple[subprocess.Popen[str], Caller]]:
    """Run a server in its own process, and yield the process and a client of the server."""
    command = [sys.executable, "-m", "tests.full.mcp.host", str(file), str(may_end)]
    with killed_at_end(command, cwd=ROOT, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        address = f"http://{HOST}:{process.stdout.readline().strip()}"
        headers = {"Accept": "application/json, text/event-stream"}
        with httpx.Client(base_url=address, headers=headers, timeout=60) as client:
            yield process, Caller(client)


def test_another_process_ends_the_task_of_a_server_that_was_killed(tmp_path: Path) -> None:
    file, may_end = tmp_path / "operations.db", tmp_path / "may-end"
    with running(file, may_end) as (process, caller):
        task_id = caller.call({"text": "a"}, "Works_Work").result["taskId"]
        process.send_signal(signal.SIGKILL)
        process.wait()
    may_end.touch()
    with running(file, may_end) as (_, caller):
        task = until(
            lambda: caller.task("tasks/get", task_id).result, lambda one: one["status"] != "working"
        )
        assert task["status"] == "completed"
        assert task["result"]["structuredContent"] == {"text": "A"}
