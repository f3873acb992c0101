"""Replies fit the specification's schemas, and the tools' schemas fit the arguments they take."""

from __future__ import annotations

import enum
import json
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import attrs
import pytest

pytest.importorskip("mcp")
pytest.importorskip("uvicorn")

import jsonschema  # type: ignore[import-untyped]
import pydantic
from mcp.server.mcpserver import MCPServer

import lro
from lro.mcp import TasksExtension
from tests.full.mcp.served import REPLIES, envelope, served
from tests.full.mcp.test_tasks import AT_STARTS, RPCS, STATES, refusing
from tests.full.mcp.test_tools import tool
from tests.http.counting_service import DOMAIN, CountRequest, CountResponse, build
from tests.services.npm import MCP, node_modules, run_node

JUDGE: Final = """
import { readFileSync } from "node:fs";
import * as v2 from "@modelcontextprotocol/ext-tasks/core/v2";
const schemas = {
  "error": v2.ErrorV2Schema,
  "tools/call": v2.CallToolResultV2Schema,
  "tools/call task": v2.CreateTaskResultV2Schema,
  "tools/list": v2.ToolV2Schema,
  "tasks/get": v2.GetTaskResultV2Schema,
  "tasks/update": v2.UpdateTaskResultV2Schema,
  "tasks/cancel": v2.CancelTaskResultV2Schema,
};
const wrong = {};
JSON.parse(readFileSync(process.argv[2], "utf8")).forEach(([rpc, result], place) => {
  const schema = schemas[result.resultType === "task" ? `${rpc} task` : rpc];
  try {
    for (const one of rpc === "tools/list" ? result.tools : [result]) schema.parse(one);
    if (rpc === "tasks/get" && result.status === "completed")
      v2.CallToolResultV2Schema.parse(result.result);
  } catch (error) { wrong[place] = `${rpc}: ${error.message}`; }
});
console.log(JSON.stringify(wrong));
"""
NEEDED: Final = {
    "error": "code",
    "tools/call": "content",
    "tools/list": "tools",
    "tasks/get": "taskId",
    "tasks/update": "resultType",
    "tasks/cancel": "resultType",
}
"""For each RPC, a field that all its replies must have."""


def misfits(replies: list[tuple[str, dict[str, Any]]], folder: Path) -> dict[str, str]:
    """Return the schema errors of these replies, by the reply's index."""
    path = folder / "replies.json"
    path.write_text(json.dumps(replies))
    found: dict[str, str] = json.loads(run_node(node_modules(MCP), JUDGE, str(path)))
    return found


def kind_of(rpc: str, result: dict[str, Any]) -> tuple[Any, ...]:
    """Return a key that is the same for replies with the same fields."""
    return rpc, *(result.get(key) for key in ("resultType", "status", "isError", "code"))


def test_each_reply_fits_the_schemas_of_the_specification(tmp_path: Path) -> None:
    """Replies in all states and for all errors fit the schemas; a missing field is detected."""
    node_modules(MCP)
    REPLIES.clear()
    counting = build()
    methods = [counting.count, refusing(counting.service)]
    extension = TasksExtension(counting.service, methods, wait=0)
    with served(MCPServer("things", extensions=[extension])) as caller:
        caller.ask("tools/list")
        for state, (act, _) in STATES.items():
            known = {f"{DOMAIN}/request-id": state}
            task_id = caller.call(meta=known).result["taskId"]
            act(counting, counting.service.reporter(f"operations/{task_id}"))
            for declared in (True, False):
                caller.call(meta=known, declared=declared)  # repeats the start in this state
                caller.call({"id": task_id}, "operations_get", declared=declared)
            for rpc in RPCS:
                caller.task(rpc, task_id)
        for reason in [*AT_STARTS, "none of these"]:
            for declared in (True, False):
                caller.call({"label": reason}, "Things_Refuse", declared=declared)
        caller.call({"steps": "many"})
        for rpc in (*RPCS, "tasks/list"):
            caller.task(rpc, "2a7c")
            caller.task(rpc, "2a7c", meta=envelope(declared=False))
        caller.task("tasks/get", "2a7c", headers={"Mcp-Name": "other"})
    assert misfits(REPLIES, tmp_path) == {}
    kinds = {kind_of(*reply): reply for reply in REPLIES}
    assert len(kinds) >= 16, kinds.keys()
    broken = []
    for rpc, result in kinds.values():
        needed = "taskId" if result.get("resultType") == "task" else NEEDED[rpc]
        broken.append((rpc, {key: one for key, one in result.items() if key != needed}))
    assert misfits(broken, tmp_path).keys() == {str(place) for place in range(len(broken))}


class Colour(enum.Enum):
    """The colour of a painting."""

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


def test_tool_schemas_match_the_messages() -> None:
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


class Painted(pydantic.BaseModel):
    """What to paint, in the words of pydantic."""

    url: str = pydantic.Field(description="The URL of the picture.", examples=["https://a.example"])
    copies: int = pydantic.Field(1, ge=1, le=9, description="The number of copies.")
    mode: Literal["fast", "best"] = pydantic.Field("fast", description="Speed or quality.")
    colour: Colour = pydantic.Field(Colour.RED, description="The main colour.")


def test_tool_schema_has_descriptions_limits_defaults_and_choices() -> None:
    """A model sees what the request class says about each argument."""
    fields = tool(Painted, CountResponse)["inputSchema"]["properties"]
    said = {name: one["description"] for name, one in fields.items()}
    assert said == {name: one.description for name, one in Painted.model_fields.items()}
    assert fields["url"]["examples"] == ["https://a.example"]
    limits = {key: fields["copies"][key] for key in ("minimum", "maximum", "default")}
    assert limits == {"minimum": 1, "maximum": 9, "default": 1}
    assert fields["mode"]["enum"] == ["fast", "best", None]
    assert fields["colour"]["anyOf"][0]["enum"] == ["NONE", "RED"]
    assert (fields["mode"]["default"], fields["colour"]["default"]) == ("fast", "RED")


@lro.message("acme.v1.Part")
@attrs.frozen
class Part:
    """A part."""

    mine: Annotated[Node, pydantic.Field(description="My node.")] = attrs.field(factory=Node)
    more: Annotated[Part | None, pydantic.Field(description="The next part.")] = None


def test_description_of_a_field_wins_over_that_of_its_class() -> None:
    written = tool(CountRequest, Part, without_tasks="refuse")["outputSchema"]["properties"]
    assert written["mine"]["description"] == "My node."
    assert written["more"] == {"type": "object", "description": "The next part."}
