"""MCP's conformance suite: its ten task scenarios run against our server.

The suite does not score these scenarios, so the test reads the checks, not the exit code.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any, Final

import attrs
import pytest

pytest.importorskip("mcp")
pytest.importorskip("uvicorn")

from mcp.server.mcpserver import MCPServer

import lro
from lro.executors.threads import ThreadExecutor
from lro.mcp import TasksExtension
from lro.stores.memory import MemoryStore
from tests.full.mcp.served import served
from tests.services.npm import MCP_SUITE, node_modules
from tests.waiting import PATIENCE

SCENARIOS: Final = {
    "tasks-lifecycle": 9,
    "tasks-capability-negotiation": 5,
    "tasks-wire-fields": 4,
    "tasks-request-state-removal": 3,
    "tasks-mrtr-input": 4,
    "tasks-request-headers": 5,
    "tasks-dispatch-and-envelope": 9,
    "tasks-status-notifications": 1,
    "tasks-required-task-error": 3,
    "tasks-mrtr-composition": 2,
}
"""The number of checks in each scenario of the suite."""

_NO_INPUT: Final = "an operation never asks for input while it runs (google.longrunning has none)"
BASELINE: Final = {
    "sep-2663-tasks-get-status-input-required": _NO_INPUT,
    "tasks-mrtr-tasks-update-resumes": _NO_INPUT,
    "tasks-mrtr-partial-fulfillment": _NO_INPUT,
    "sep-2663-mrtr-synchronous-before-task-creation": _NO_INPUT,
    "tasks-status-notifications": "the suite skips it itself: its channel is to be rewritten",
}
"""The checks that fail, each with the reason for its failure."""


@attrs.frozen
class ComputeRequest:
    """The request of a computation: its duration and its label."""

    seconds: float = 0
    label: str = ""


@attrs.frozen
class ComputeResponse:
    """The result of a computation."""

    text: str = ""


def conformance_server(service: lro.Service, **options: Any) -> MCPServer[Any]:
    """Return a server with the tools that the suite expects, except tools that ask for input."""

    @service.method("conformance.v1.Tools.slow_compute")
    def slow_compute(request: ComputeRequest, job: lro.Job) -> ComputeResponse:
        job.sleep(request.seconds)
        return ComputeResponse(request.label)

    @service.method("conformance.v1.Tools.failing_job")
    def failing_job(_: lro.Empty, job: lro.Job) -> ComputeResponse:
        job.sleep(0.1)
        raise lro.StatusError(lro.Code.FAILED_PRECONDITION, "the job has failed")

    @service.method("conformance.v1.Tools.protocol_error_job")
    def protocol_error_job(_: lro.Empty, job: lro.Job) -> ComputeResponse:
        job.sleep(0.1)
        raise RuntimeError("a bug")

    methods: list[lro.Method[Any, Any, Any]] = [slow_compute, failing_job, protocol_error_job]
    extension = TasksExtension(
        service, methods, tool_name=lambda name: name.rpartition(".")[2], **options
    )
    server = MCPServer("conformance", extensions=[extension])

    @server.tool()
    def greet(name: str) -> str:
        return f"Hello, {name}!"

    return server


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_conformance_suite_finds_what_is_expected(scenario: str, tmp_path: Path) -> None:
    home = node_modules(MCP_SUITE)
    # Two scenarios call the same tool: one expects a refusal without tasks, one a result.
    needs = scenario == "tasks-required-task-error"
    options: dict[str, Any] = {"without_tasks": "refuse"} if needs else {}
    service = lro.Service(MemoryStore(), ThreadExecutor(4))
    with served(conformance_server(service, **options)) as caller, service:
        command = [
            str(home / "node_modules/.bin/node"),
            str(home / "node_modules/@modelcontextprotocol/conformance/dist/index.js"),
            *("server", "--url", f"{caller.client.base_url}/mcp".replace("//mcp", "/mcp")),
            *("--scenario", scenario, "--spec-version", "2026-07-28", "--force"),
            *("--output-dir", str(tmp_path)),
        ]
        run = subprocess.run(
            command, capture_output=True, text=True, timeout=PATIENCE, check=False, cwd=tmp_path
        )
    reports = list(tmp_path.glob("*/checks.json"))
    assert len(reports) == 1, run.stdout + run.stderr
    checks = json.loads(reports[0].read_text())
    assert len(checks) == SCENARIOS[scenario]
    failed = {one["id"]: one for one in checks if one["status"] != "SUCCESS"}
    assert failed.keys() <= BASELINE.keys(), failed
    passed = {one["id"] for one in checks if one["status"] == "SUCCESS"}
    assert not passed & BASELINE.keys(), "the baseline says too much"
