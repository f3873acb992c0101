"""Messages of the protocol: MCP revision 2026-07-28 and its tasks extension (SEP-2663).

All names that may still change in the extension are in this module.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, TypeAlias

from mcp.shared.exceptions import MCPError
from mcp.shared.inbound import MCP_NAME_HEADER, decode_header_value
from mcp_types import (
    CLIENT_CAPABILITIES_META_KEY,
    HEADER_MISMATCH,
    INTERNAL_ERROR,
    INVALID_PARAMS,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    MISSING_REQUIRED_CLIENT_CAPABILITY,
    RequestParams,
)
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import Field

from lro.types import Json

__all__ = ["INTERNAL_ERROR", "INVALID_PARAMS", "INVALID_REQUEST", "METHOD_NOT_FOUND"]

TASKS: Final = "io.modelcontextprotocol/tasks"
GET: Final = "tasks/get"
UPDATE: Final = "tasks/update"
CANCEL: Final = "tasks/cancel"
VERSIONS: Final = frozenset(MODERN_PROTOCOL_VERSIONS)
"""Revisions with the extension; tasks of earlier revisions differ, and are not supported."""
READ_TOOL: Final = "operations_get"
"""Default name of the tool that reads an operation for clients without tasks."""
CANCEL_TOOL: Final = "operations_cancel"
"""Default name of the tool that cancels an operation for clients without tasks."""

Result: TypeAlias = dict[str, Any]


class ToolsRefusal(MCPError):
    """An MCP error that this library answers with; applications do not raise it."""


class TaskParams(RequestParams):
    """Parameters of ``tasks/get`` and ``tasks/cancel``."""

    task_id: str = Field(alias="taskId")


class UpdateParams(TaskParams):
    """Parameters of ``tasks/update``."""

    input_responses: dict[str, Any] = Field(alias="inputResponses")


def declares_tasks(params: Mapping[str, Any] | None, version: str) -> bool:
    """Return True if the client declares in this request that it supports tasks."""
    found: object = params if version in VERSIONS else None
    for key in ("_meta", CLIENT_CAPABILITIES_META_KEY, "extensions", TASKS):
        found = found.get(key) if isinstance(found, Mapping) else None
    return isinstance(found, Mapping)


def meta_of(params: Mapping[str, Any] | None, key: str) -> object:
    """Return a value in the ``_meta`` of a request; None if it is missing."""
    meta = (params or {}).get("_meta")
    return meta.get(key) if isinstance(meta, Mapping) else None


def missing_capability() -> ToolsRefusal:
    """Return the error for a client that does not declare tasks."""
    return ToolsRefusal(
        MISSING_REQUIRED_CLIENT_CAPABILITY,
        f"this needs a client that declares the extension {TASKS}",
        {"requiredCapabilities": {"extensions": {TASKS: {}}}},
    )


def check_name_header(headers: Mapping[str, str], task_id: str) -> None:
    """Check that the header ``Mcp-Name``, meant for proxies, has the same task id as the body.

    A request without the header passes, because a common client sends none (fastmcp-tasks 4.1).

    Raises:
        ToolsRefusal: The ids differ (SEP-2243, and SEP-2663 for ``tasks/*``).
    """
    given = headers.get(MCP_NAME_HEADER)
    if given is not None and decode_header_value(given) != task_id:
        text = f"the header {MCP_NAME_HEADER} must have the taskId of the request"
        raise ToolsRefusal(HEADER_MISMATCH, text)


def acknowledged() -> Result:
    """Return the result of ``tasks/update`` and ``tasks/cancel``."""
    return {"resultType": "complete"}


def task(
    task_id: str,
    status: str,
    *,
    created_at: str,
    updated_at: str,
    ttl_ms: int | None,
    poll_ms: int,
    message: str = "",
) -> Result:
    """Return the fields that every task has; ``ttl_ms`` counts from the creation of the task."""
    return {
        "taskId": task_id,
        "status": status,
        **({"statusMessage": message} if message else {}),
        "createdAt": created_at,
        "lastUpdatedAt": updated_at,
        "ttlMs": ttl_ms,
        "pollIntervalMs": poll_ms,
    }


def created(shown: Result) -> Result:
    """Return the result of a ``tools/call`` that started a task."""
    return {"resultType": "task", **shown}


def detailed(shown: Result, outcome: Result, meta: Mapping[str, Json]) -> Result:
    """Return the result of ``tasks/get``; ``outcome`` is empty before the end of the task."""
    return {"resultType": "complete", **shown, **outcome, **_meta(meta)}


def completed(result: Result) -> Result:
    """Return the outcome of a task with the result of its tool."""
    return {"result": result}


def failed(error: MCPError) -> Result:
    """Return the outcome of a task that failed by a fault of the server."""
    shown: Result = {"code": error.code, "message": error.message}
    return {"error": shown if error.data is None else {**shown, "data": error.data}}


NO_VALUE: Final = object()
"""Stands for no structured content, because null would be a value of the content."""


def tool_result(
    text: str,
    structured: object = NO_VALUE,
    *,
    is_error: bool = False,
    meta: Mapping[str, Json] | None = None,
) -> Result:
    """Return the result of a tool: a text, left out if empty, and the same content as data."""
    return {
        "resultType": "complete",
        "content": [{"type": "text", "text": text}] if text else [],
        **({} if structured is NO_VALUE else {"structuredContent": structured}),
        "isError": is_error,
        **_meta(meta or {}),
    }


def as_of(version: str, result: Result) -> Result:
    """Return a tool's result without structured content that this revision does not allow."""
    if version in VERSIONS or isinstance(result.get("structuredContent", {}), dict):
        return result
    return {key: each for key, each in result.items() if key != "structuredContent"}


def _meta(meta: Mapping[str, Json]) -> Result:
    return {"_meta": dict(meta)} if meta else {}
