"""The client of fastmcp-tasks, which is independent of this library, completes tasks."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

pytest.importorskip("mcp")
pytest.importorskip("uvicorn")
pytest.importorskip("fastmcp_tasks")

import fastmcp
from fastmcp.exceptions import ToolError
from fastmcp_tasks.client import TasksClientExtension, call_tool_task

import lro
from lro.mcp import TasksExtension
from tests.full.mcp.served import TOOL, served
from tests.full.mcp.test_clients import counting_server, finish_all


@pytest.mark.parametrize("transport", ["in process", "http"])
def test_client_of_fastmcp_completes_tasks(transport: str) -> None:
    service, server = counting_server()

    async def use(target: Any) -> None:
        # fastmcp-tasks registers its extension for every client of fastmcp.
        async with fastmcp.Client(target) as client:
            assert TasksClientExtension.identifier == TasksExtension.identifier
            task = await call_tool_task(client, TOOL, {"steps": 3})
            assert (await task.status()).status == "working"
            finish_all(service)
            assert (await task.wait()).ttl_ms
            assert (await task.result()).structured_content == {"total": 3}

            stopped = await call_tool_task(client, TOOL, {"steps": 3})
            await stopped.cancel()
            assert (await stopped.status()).status_message == "cancellation requested"
            assert service.reporter(f"operations/{stopped.task_id}").acknowledge_cancel()
            with pytest.raises(ToolError, match="was cancelled"):
                await stopped.result()

            failed = await call_tool_task(client, TOOL, {"steps": 3})
            error = lro.Status(lro.Code.ABORTED, "nothing to count")
            service.reporter(f"operations/{failed.task_id}").fail(error)
            with pytest.raises(ToolError, match="nothing to count"):
                await failed.result()

    if transport == "http":
        with served(server, json_response=False) as caller:
            asyncio.run(use(f"{caller.client.base_url}/mcp"))
    else:
        asyncio.run(use(server))
