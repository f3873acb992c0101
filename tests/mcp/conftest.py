"""Servers with the extension, and the schemas of its specification over all that they reply."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

import lro
from tests.services.npm import node_modules, run_node

if TYPE_CHECKING:
    from tests.mcp.served import Serve

SCHEMAS: Final = "@modelcontextprotocol/ext-tasks@0.2.2"
"""Of the repository of the specification: schemas of its messages, for zod."""

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
    return int(run_node(node_modules(SCHEMAS), JUDGE, str(path)))


@pytest.fixture(autouse=True, scope="module")
def all_replies_fit(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Judge the replies of each module, where there is npm; one test skips itself elsewhere."""
    from tests.mcp.served import REPLIES

    REPLIES.clear()
    yield
    if REPLIES and shutil.which("npm"):
        judged(REPLIES, tmp_path_factory.mktemp("judged"))


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Serves a service over HTTP, by an extension with the given options, until the test ends."""
    from lro.mcp import TasksExtension
    from mcp.server.mcpserver import MCPServer
    from tests.mcp.served import Caller, served

    with ExitStack() as stack:

        def made(service: lro.Service, *methods: Any, **options: Any) -> Caller:
            extension = TasksExtension(service, methods or None, **options)
            return stack.enter_context(served(MCPServer("things", extensions=[extension])))

        yield made
