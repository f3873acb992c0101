"""One operation over HTTP, gRPC and MCP: the same in every field that they have in common."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any

import pytest

pytest.importorskip("mcp")
pytest.importorskip("uvicorn")
pytest.importorskip("grpc")

import grpc
from google.longrunning import operations_proto_pb2 as pb

import lro.grpc
import lro.wire
from lro.http import OperationsEdge
from lro.protobuf import operation_from_proto
from tests.grpc.serving import on_threads
from tests.http.counting_service import DOMAIN, ask, build
from tests.mcp.served import Serve
from tests.mcp.test_tasks import STATES

ENDED = {"completed", "failed", "cancelled"}


@pytest.mark.parametrize("state", STATES)
def test_http_grpc_and_mcp_agree(serve: Serve, state: str) -> None:
    counting = build()
    service = counting.service
    caller = serve(service)
    task_id = caller.call({"steps": 3}).result["taskId"]
    name = f"operations/{task_id}"
    STATES[state][0](counting, service.reporter(name))
    reply = OperationsEdge(service).handle(ask("GET", f"/v1/{name}"))
    over_http: dict[str, Any] = json.loads(reply.body)
    with (
        on_threads(lambda server: lro.grpc.add_to(server, service)) as target,
        grpc.insecure_channel(target) as channel,
    ):
        get = channel.unary_unary(
            "/google.longrunning.Operations/GetOperation",
            request_serializer=pb.GetOperationRequest.SerializeToString,
            response_deserializer=pb.Operation.FromString,
        )
        message = operation_from_proto(get(pb.GetOperationRequest(name=name)))
    assert lro.wire.operation_to_json(message, service.types) == over_http

    task = caller.task("tasks/get", task_id).result
    assert (over_http["name"], over_http.get("done", False)) == (name, task["status"] in ENDED)
    assert over_http.get("metadata") == task.get("_meta", {}).get(f"{DOMAIN}/metadata")
    response, error = None, task.get("error", {}).get("data")
    if result := task.get("result"):
        meta = result.get("_meta", {})
        error = meta.get(f"{DOMAIN}/status")
        if kind := meta.get(f"{DOMAIN}/response-type"):
            response = {"@type": kind, **result["structuredContent"]}
            assert json.loads(result["content"][0]["text"]) == result["structuredContent"]
    if task["status"] == "cancelled":  # a task has no place for the sentence
        error = over_http["error"]
        assert error["code"] == 1
    assert (over_http.get("response"), over_http.get("error")) == (response, error)

    described = service.describe(name)
    times = [datetime.fromisoformat(task[key]) for key in ("createdAt", "lastUpdatedAt")]
    assert times == [described.create_time, described.update_time]
