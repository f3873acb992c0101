"""The words of the protocol: MCP revision 2026-07-28 and its tasks extension (SEP-2663).

All names that the extension's text may still change are in this module.
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
"""The revisions that have the extension: earlier ones have other tasks, which are not built."""
READ_TOOL: Final = "operations_get"
"""The tool by which a model reads an operation where its client knows no tasks, by default."""

Result: TypeAlias = dict[str, Any]


class ToolsRefusal(MCPError):
    """An error that this library answers, as against one that an application raised."""


class TaskParams(RequestParams):
    """What ``tasks/get`` and ``tasks/cancel`` ask for."""

    task_id: str = Field(alias="taskId")


class UpdateParams(TaskParams):
    """What ``tasks/update`` brings."""

    input_responses: dict[str, Any] = Field(alias="inputResponses")


def declares_tasks(params: Mapping[str, Any] | None, version: str) -> bool:
    """Whether the client says in this request that it knows tasks."""
    found: object = params if version in VERSIONS else None
    for key in ("_meta", CLIENT_CAPABILITIES_META_KEY, "extensions", TASKS):
        found = found.get(key) if isinstance(found, Mapping) else None
    return isinstance(found, Mapping)


def meta_of(params: Mapping[str, Any] | None, key: str) -> object:
    """The value of a key in the ``_meta`` of a request; None without one."""
    meta = (params or {}).get("_meta")
    return meta.get(key) if isinstance(meta, Mapping) else None


def missing_capability() -> ToolsRefusal:
    """The error for a client that does not say that it knows tasks."""
    return ToolsRefusal(
        MISSING_REQUIRED_CLIENT_CAPABILITY,
        f"this needs a client that declares the extension {TASKS}",
        {"requiredCapabilities": {"extensions": {TASKS: {}}}},
    )


def check_name_header(headers: Mapping[str, str], task_id: str) -> None:
    """Check that the header by which proxies route has the id of the task, as the body has it.

    A request without the header passes: a client that is in use sends none (fastmcp-tasks 4.1),
    and what a proxy has not read cannot have misled it.

    Raises:
        ToolsRefusal: It has another one (SEP-2243, and SEP-2663 for ``tasks/*``).
    """
    given = headers.get(MCP_NAME_HEADER)
    if given is not None and decode_header_value(given) != task_id:
        text = f"the header {MCP_NAME_HEADER} must have the taskId of the request"
        raise ToolsRefusal(HEADER_MISMATCH, text)


def acknowledged() -> Result:
    """The answer to ``tasks/update`` and ``tasks/cancel``."""
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
    """What is said of a task whatever its status; ``ttl_ms`` counts from its creation."""
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
    """The answer to ``tools/call`` when it has begun a task."""
    return {"resultType": "task", **shown}


def detailed(shown: Result, outcome: Result, meta: Mapping[str, Json]) -> Result:
    """The answer to ``tasks/get``; ``outcome`` is what there is at the end of the task."""
    return {"resultType": "complete", **shown, **outcome, **_meta(meta)}


def completed(result: Result) -> Result:
    """The outcome of a task that has the result of its tool."""
    return {"result": result}


def failed(error: MCPError) -> Result:
    """The outcome of a task that its server could not finish."""
    shown: Result = {"code": error.code, "message": error.message}
    return {"error": shown if error.data is None else {**shown, "data": error.data}}


NO_VALUE: Final = object()
"""Stands for the structured content of a tool that has none; null is a value."""


def tool_result(
    text: str,
    structured: object = NO_VALUE,
    *,
    is_error: bool = False,
    meta: Mapping[str, Json] | None = None,
) -> Result:
    """The result of a tool: a text, which is left out if empty, and the same as data."""
    return {
        "resultType": "complete",
        "content": [{"type": "text", "text": text}] if text else [],
        **({} if structured is NO_VALUE else {"structuredContent": structured}),
        "isError": is_error,
        **_meta(meta or {}),
    }


def as_of(version: str, result: Result) -> Result:
    """The result of a tool in a revision: the structured content of earlier ones is an object."""
    if version in VERSIONS or isinstance(result.get("structuredContent", {}), dict):
        return result
    return {key: each for key, each in result.items() if key != "structuredContent"}


def _meta(meta: Mapping[str, Json]) -> Result:
    return {"_meta": dict(meta)} if meta else {}
