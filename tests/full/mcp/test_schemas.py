"""The schemas of the specification fit what servers reply, and those of tools what they take."""

from __future__ import annotations

import enum
import json
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import attrs
import pytest

pytest.importorskip("mcp")
pytest.importorskip("uvicorn")

import jsonschema  # type: ignore[import-untyped]
from mcp.server.mcpserver import MCPServer

import lro
from lro.mcp import TasksExtension
from tests.http.counting_service import CountRequest, CountResponse, build
from tests.mcp.served import REPLIES, served
from tests.mcp.test_tasks import STATES
from tests.mcp.test_tools import tool
from tests.services.npm import MCP, node_modules, run_node

JUDGE: Final = """
import { readFileSync } from "node:fs";
import * as v2 from "@modelcontextprotocol/ext-tasks/core/v2";
const schemas = {
  "tools/call": v2.CallToolResultV2Schema,
  "tools/call task": v2.CreateTaskResultV2Schema,
  "tools/list": null,
  "tasks/get": v2.GetTaskResultV2Schema,
  "tasks/update": v2.UpdateTaskResultV2Schema,
  "tasks/cancel": v2.CancelTaskResultV2Schema,
};
let judged = 0;
for (const [rpc, result] of JSON.parse(readFileSync(process.argv[2], "utf8"))) {
  const results = rpc === "tools/list" ? result.tools : [result];
  const key = result.resultType === "task" ? `${rpc} task` : rpc;
  const schema = rpc === "tools/list" ? v2.ToolV2Schema : schemas[key];
  for (const one of schema ? results : []) { schema.parse(one); judged += 1; }
  if (rpc === "tasks/get" && result.status === "completed")
    v2.CallToolResultV2Schema.parse(result.result);
}
console.log(judged);
"""


def judged(replies: list[tuple[str, dict[str, Any]]], folder: Path) -> int:
    """How many of these replies have a schema; all of them fit."""
    path = folder / "replies.json"
    path.write_text(json.dumps(replies))
    return int(run_node(node_modules(MCP), JUDGE, str(path)))


def test_replies_fit_the_schemas_of_the_specification(tmp_path: Path) -> None:
    node_modules(MCP)
    REPLIES.clear()
    counting = build()
    server = MCPServer("things", extensions=[TasksExtension(counting.service, wait=0)])
    with served(server) as caller:
        caller.ask("tools/list")
        for act, _ in STATES.values():
            task_id = caller.call().result["taskId"]
            act(counting, counting.service.reporter(f"operations/{task_id}"))
            caller.task("tasks/get", task_id)
            caller.task("tasks/update", task_id)
            caller.task("tasks/cancel", task_id)
            caller.call({"id": task_id}, "operations.get", declared=False)
        caller.call(declared=False)
        caller.call({"steps": "many"})
    assert len(REPLIES) > 4 * len(STATES)
    assert judged(REPLIES, tmp_path) == len(REPLIES) + 1  # two tools are listed in one reply


def test_a_reply_that_does_not_fit_is_found(tmp_path: Path) -> None:
    node_modules(MCP)
    with pytest.raises(AssertionError, match="taskId"):
        judged([("tasks/get", {"resultType": "complete", "status": "working"})], tmp_path)


class Colour(enum.Enum):
    """An enum."""

    NONE = 0
    RED = 1


@lro.message("acme.v1.Node")
@attrs.frozen
class Node:
    """A part of a tree."""

    label: str = ""
    below: tuple[Node, ...] = ()


@lro.message("acme.v1.Painting")
@attrs.frozen
class Painting:
    """What to paint."""

    colour: Colour
    class_: str = ""
    at: datetime | None = None
    tree: Node | None = None
    copy: lro.Int32 = 0


def test_schemas_say_what_is_read_and_written() -> None:
    made = tool(Painting, CountResponse, without_tasks="refuse")
    assert made["description"] == "What to paint."
    schema = made["inputSchema"]
    assert list(schema["properties"]) == ["colour", "class", "at", "tree", "copy"]
    assert "$ref" not in json.dumps(made)
    tree = schema["properties"]["tree"]["anyOf"][0]
    assert tree["properties"]["below"]["items"] == {"type": "object"}
    good = {"colour": "RED", "class": "a", "at": "2030-01-01T00:00:00Z", "copy": 3}
    jsonschema.validate({**good, "tree": {"label": "x", "below": [{"label": "y"}]}}, schema)
    for bad in ({"colour": "BLUE"}, {"copy": 2**31}, {"tree": {"other": 1}}, {"at": 7}):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate({**good, **bad}, schema)
    assert made["outputSchema"]["properties"]["total"]["format"] == "int32"


def test_output_schema_has_both_answers_where_there_is_a_handle() -> None:
    schema = tool(CountRequest, CountResponse)["outputSchema"]
    assert schema["type"] == "object"
    for fine in ({"total": 3}, {"operation": "2a7c"}, {}):
        jsonschema.validate(fine, schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"total": "many", "operation": "2a7c"}, schema)
