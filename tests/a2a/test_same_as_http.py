"""The same operation over HTTP, gRPC and A2A: they agree field by field."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import attrs
import httpx
import pytest

pytest.importorskip("a2a")
pytest.importorskip("uvicorn")
pytest.importorskip("grpc")

import grpc
from google.longrunning import operations_proto_pb2 as pb

import lro
import lro.wire
from lro.asgi import OperationsApp
from lro.grpc import add_to
from lro.protobuf import operation_from_proto
from tests.a2a.serving import COUNT, WAYS, Agent, Asked, serving
from tests.grpc.serving import on_threads
from tests.http.counting_service import (
    DOMAIN,
    CountMetadata,
    CountResponse,
    Quality,
    build,
)
from tests.http.servers import HOST, uvicorn_serving

STATE_OF = {
    "TASK_STATE_COMPLETED": "response",
    "TASK_STATE_FAILED": "error",
    "TASK_STATE_CANCELED": "error",
}


@attrs.frozen
class Sides:
    """One service, and three ways to see its operations."""

    agent: Agent
    by_http: Callable[[str], Any]
    by_grpc: Callable[[str], Any]


@pytest.fixture(scope="module")
def sides() -> Iterator[Sides]:
    """The edges of one service."""
    with serving(build()) as agent:
        service = agent.service
        with (
            uvicorn_serving(OperationsApp(service), lifespan="off") as port,
            httpx.Client(base_url=f"http://{HOST}:{port}") as http,
            on_threads(lambda server: add_to(server, service)) as address,
            grpc.insecure_channel(address) as channel,
        ):
            get = channel.unary_unary("/google.longrunning.Operations/GetOperation")

            def by_grpc(name: str) -> Any:
                request = pb.GetOperationRequest(name=name).SerializeToString()
                found = pb.Operation.FromString(get(request, timeout=60))
                return lro.wire.operation_to_json(operation_from_proto(found), service.types)

            yield Sides(agent, lambda name: http.get(f"/v1/{name}").json(), by_grpc)


def as_operation(task: Any) -> Any:
    """The JSON of the operation that a task shows."""
    said: dict[str, Any] = {"name": f"operations/{task['id']}"}
    assert task["metadata"][f"{DOMAIN}/method"] == COUNT
    if f"{DOMAIN}/metadata" in task["metadata"]:
        said["metadata"] = task["metadata"][f"{DOMAIN}/metadata"]
    state = task["status"]["state"]
    if state in STATE_OF:
        said["done"] = True
    for part in (part for one in task.get("artifacts", ()) for part in one["parts"]):
        said["response"] = {**part["metadata"], **part["data"]}
    if STATE_OF.get(state) == "error":
        text, data = task["status"]["message"]["parts"]
        said["error"] = data["data"]
        assert text["text"] == said["error"]["message"]
    return said


def succeed(reporter: Any) -> None:
    """A result and metadata."""
    metadata = CountMetadata(percent=100)
    reporter.complete(CountResponse(total=7, quality=Quality.GOOD), metadata=metadata)


def fail(reporter: Any) -> None:
    """An error with details."""
    details = (lro.types.Help(links=()), lro.types.LocalizedMessage("de", "nein"))
    reporter.fail(lro.StatusError(lro.Code.OUT_OF_RANGE, "no", details, why="FAR"))


def stop(reporter: Any) -> None:
    """Cancelled."""
    reporter.acknowledge_cancel()


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("act", [lambda reporter: None, succeed, fail, stop])
def test_all_sides_show_the_same(sides: Sides, way: str, act: Callable[[Any], None]) -> None:
    """What A2A shows is the whole operation."""
    name = sides.agent.counting.start()
    if act is stop:
        sides.agent.service.cancel(name)
    act(sides.agent.service.reporter(name))
    task = WAYS[way](sides.agent, Asked("GetTask", {"id": name.rpartition("/")[2]}))
    assert as_operation(task) == sides.by_http(name) == sides.by_grpc(name)
