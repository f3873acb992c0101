"""The reference server over gRPC, with the same operations as over HTTP."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("grpc")
pytest.importorskip("google.longrunning.operations_proto_pb2")

from examples.analysis.messages import AnalysisMetadata, ScoreRequest, ScoreResponse
from examples.analysis.methods import PACKAGE
from lro_client import Client
from lro_client.transports.grpc import GrpcTransport
from tests.full.examples.conftest import encoded
from tests.full.examples.serving import SERVE, Process
from tests.waiting import PATIENCE


def test_operation_is_started_awaited_and_listed_over_grpc(tmp_path: Path) -> None:
    """An operation is started, awaited and listed over gRPC, and HTTP shows the same operation."""
    request = ScoreRequest(image=encoded("camera.png"))
    kinds = {"response": ScoreResponse, "metadata": AnalysisMetadata}
    with Process(*SERVE, f"sqlite:///{tmp_path / 'operations.db'}", "--grpc", "0") as process:
        assert process.popen.stdout is not None
        address = process.popen.stdout.readline().strip().removeprefix("grpc://")
        with Client(transport=GrpcTransport(address)) as client:
            operation = client.start(f"/{PACKAGE}/Score", request, **kinds)
            found = operation.result(timeout=PATIENCE)
            assert operation.metadata.verb == "score"
            assert operation.metadata.stage == "DONE"
            assert operation.name in [one.name for one in client.list()]
        same = process.get(operation.name)["response"]
    assert same["overall"] == pytest.approx(found.overall)
