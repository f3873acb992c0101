"""An MCP server over HTTP, and raw requests to that server; replies are kept for schema tests."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import attrs
import httpx
from mcp.server.mcpserver import MCPServer
from mcp_types import CallToolResult

from tests.full.mcp.polling import TASKS, CreatedTask, Task
from tests.http.servers import HOST, uvicorn_serving

VERSION: Final = "2026-07-28"
METHOD: Final = "acme.v1.Things.Count"
TOOL: Final = "Things_Count"

REPLIES: Final[list[tuple[str, dict[str, Any]]]] = []
"""Replies since the last schema test, as (RPC, result) or ("error", error)."""


@attrs.frozen
class Reply:
    """A reply's HTTP status and JSON-RPC message."""

    status: int
    message: Mapping[str, Any]

    @property
    def result(self) -> dict[str, Any]:
        """The reply's result, without the metadata that the SDK adds about the server."""
        assert self.status == 200, self.message
        result = dict(self.message["result"])
        meta = {key: one for key, one in result.pop("_meta").items() if "modelcontext" not in key}
        return {**result, "_meta": meta} if meta else result

    @property
    def error(self) -> Mapping[str, Any]:
        """The reply's JSON-RPC error."""
        found: Mapping[str, Any] = self.message["error"]
        return found

    @property
    def refusal(self) -> tuple[int, int]:
        """The reply's HTTP status and the code of its JSON-RPC error."""
        return self.status, self.error["code"]


def envelope(*, declared: bool = True, **more: Any) -> dict[str, Any]:
    """Return the ``_meta`` of a request; with ``declared``, the client supports tasks."""
    extensions: dict[str, Any] = {"extensions": {TASKS: {}}} if declared else {}
    return {
        "io.modelcontextprotocol/protocolVersion": VERSION,
        "io.modelcontextprotocol/clientCapabilities": extensions,
        **more,
    }


class Caller:
    """A client that sends single requests of revision 2026-07-28."""

    def __init__(self, client: httpx.Client) -> None:
        self.client = client
        self._ids = itertools.count(1)

    def ask(
        self,
        rpc: str,
        params: Mapping[str, Any] | None = None,
        *,
        meta: Mapping[str, Any] | None = None,
        headers: Mapping[str, str | None] | None = None,
    ) -> Reply:
        """Send a request; a header whose value is None is left out."""
        asked = {**(params or {}), "_meta": envelope() if meta is None else meta}
        names = {
            "MCP-Protocol-Version": VERSION,
            "Mcp-Method": rpc,
            "Mcp-Name": asked.get("name", asked.get("taskId")),
            **(headers or {}),
        }
        sent = {key: each for key, each in names.items() if isinstance(each, str)}
        body = {"jsonrpc": "2.0", "id": next(self._ids), "method": rpc, "params": asked}
        reply = self.client.post("/mcp", json=body, headers=sent)
        message = reply.json()
        assert message["id"] == body["id"]
        if "result" in message:
            check(rpc, message["result"])
        else:
            REPLIES.append(("error", message["error"]))
        return Reply(reply.status_code, message)

    def call(
        self,
        arguments: Mapping[str, Any] | None = None,
        tool: str = TOOL,
        *,
        declared: bool = True,
        meta: Mapping[str, Any] | None = None,
        headers: Mapping[str, str | None] | None = None,
    ) -> Reply:
        """Call a tool with these arguments."""
        said = envelope(declared=declared, **(meta or {}))
        params = {"name": tool, "arguments": arguments or {}}
        return self.ask("tools/call", params, meta=said, headers=headers)

    def task(self, rpc: str, task_id: object, **options: Any) -> Reply:
        """Send a ``tasks/get``, ``tasks/update`` or ``tasks/cancel`` request."""
        more: dict[str, Any] = {"inputResponses": {}} if rpc == "tasks/update" else {}
        return self.ask(rpc, {"taskId": task_id, **more}, **options)


def check(rpc: str, result: dict[str, Any]) -> None:
    """Validate a result with the client SDK's models, and keep the result for the schema test."""
    assert isinstance(result["resultType"], str)
    if rpc == "tools/call":
        (CreatedTask if result["resultType"] == "task" else CallToolResult).model_validate(result)
    elif rpc == "tasks/get":
        assert "ttlMs" in result  # the field is required, and null means unlimited
        Task.model_validate(result)
    REPLIES.append((rpc, result))


@contextlib.contextmanager
def served(server: MCPServer[Any], *, json_response: bool = True) -> Iterator[Caller]:
    """Serve an MCP server on a real socket, and yield a client of the server."""
    app = server.streamable_http_app(json_response=json_response)
    with uvicorn_serving(app) as port:
        accepted = {"Accept": "application/json, text/event-stream"}
        with httpx.Client(base_url=f"http://{HOST}:{port}", headers=accepted) as client:
            yield Caller(client)


Serve = Callable[..., Caller]
"""A function that serves a service through a TasksExtension with these options."""
