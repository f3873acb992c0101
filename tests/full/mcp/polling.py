"""A client of MCP tasks, as an application can write it with the SDK's extension API."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Final, Literal

from mcp.client.extension import ClaimContext, ClientExtension, ResultClaim
from mcp_types import CallToolResult, Request, RequestParams, Result
from pydantic import Field

TASKS: Final = "io.modelcontextprotocol/tasks"


class TaskFields(Result):
    """The fields that every task has."""

    task_id: str = Field(alias="taskId")
    status: str
    created_at: str = Field(alias="createdAt")
    last_updated_at: str = Field(alias="lastUpdatedAt")
    ttl_ms: int | None = Field(alias="ttlMs")


class CreatedTask(TaskFields):
    """The result that reports a new task."""

    result_type: Literal["task"] = Field(alias="resultType")


class Task(TaskFields):
    """A task, with its result or error once it has ended."""

    result_type: Literal["complete"] = Field(alias="resultType")
    result: dict[str, Any] | None = None
    error: dict[str, Any] | None = None


class TaskParams(RequestParams):
    """The parameters of a request about a task."""

    task_id: str = Field(serialization_alias="taskId")


class GetTask(Request[TaskParams, Literal["tasks/get"]]):
    """A ``tasks/get`` request, which sends the task's ID in a header too."""

    method: Literal["tasks/get"] = "tasks/get"
    params: TaskParams
    name_param = "taskId"


class Polling(ClientExtension):
    """An extension that polls a task until it has ended, and calls ``seen`` with each status."""

    identifier = TASKS

    def __init__(self, seen: Callable[[str], object] = lambda _: None) -> None:
        self._seen = seen

    def claims(self) -> Sequence[ResultClaim[Any]]:
        """Return the kinds of results that this extension handles."""
        return [ResultClaim(result_type="task", model=CreatedTask, resolve=self._resolve)]

    async def _resolve(self, created: CreatedTask, ctx: ClaimContext) -> CallToolResult:
        while True:
            asked = GetTask(params=TaskParams(task_id=created.task_id))
            task = await ctx.session.send_request(asked, Task)
            self._seen(task.status)
            if task.status == "completed":
                return CallToolResult.model_validate(task.result)
            assert task.status == "working", task
            await asyncio.sleep(0)
