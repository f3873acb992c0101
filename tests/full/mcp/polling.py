"""A client of tasks, as an application writes it over the extension point of the SDK's client."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Final, Literal

from mcp.client.extension import ClaimContext, ClientExtension, ResultClaim
from mcp_types import CallToolResult, Request, RequestParams, Result
from pydantic import Field

TASKS: Final = "io.modelcontextprotocol/tasks"


class TaskFields(Result):
    """What is said of every task."""

    task_id: str = Field(alias="taskId")
    status: str
    created_at: str = Field(alias="createdAt")
    last_updated_at: str = Field(alias="lastUpdatedAt")
    ttl_ms: int | None = Field(alias="ttlMs")


class CreatedTask(TaskFields):
    """The answer that begins a task."""

    result_type: Literal["task"] = Field(alias="resultType")


class Task(TaskFields):
    """A task, and its outcome at the end."""

    result_type: Literal["complete"] = Field(alias="resultType")
    result: dict[str, Any] | None = None
    error: dict[str, Any] | None = None


class TaskParams(RequestParams):
    """Which task."""

    task_id: str = Field(serialization_alias="taskId")


class GetTask(Request[TaskParams, Literal["tasks/get"]]):
    """Asks for a task, and sends its id in the header as well."""

    method: Literal["tasks/get"] = "tasks/get"
    params: TaskParams
    name_param = "taskId"


class Polling(ClientExtension):
    """Asks for a task until it is over; ``seen`` is called with the status of each answer."""

    identifier = TASKS

    def __init__(self, seen: Callable[[str], object] = lambda _: None) -> None:
        self._seen = seen

    def claims(self) -> Sequence[ResultClaim[Any]]:
        """The results that this extension can finish."""
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
