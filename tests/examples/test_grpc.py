"""The reference server over gRPC: our client, Google's futures, messages of a generated client."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("grpc")
pytest.importorskip("google.longrunning.operations_proto_pb2")

import grpc
from google.longrunning import operations_proto_pb2 as pb

from examples.analysis.messages import (
    AnalysisMetadata,
    ExtractRequest,
    ScoreRequest,
    ScoreResponse,
)
from examples.analysis.methods import PACKAGE, register
from lro import Service, TypeRegistry, protobuf
from lro.executors.inline import InlineExecutor
from lro.stores.memory import MemoryStore
from lro_client import Client, OperationFailed
from lro_client.transports.grpc import GrpcTransport
from tests.examples.conftest import encoded, flat
from tests.examples.serving import SERVE, Process

with warnings.catch_warnings():
    warnings.filterwarnings("ignore", "Please install grpcio-status", ImportWarning)
    from google.api_core.operation import from_gapic
    from google.api_core.operations_v1 import OperationsClient

SCORE = f"/{PACKAGE}/Score"
CAMERA = ScoreRequest(image=encoded("camera.png"))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Process, str]]:
    """A server process that speaks both, and where it listens for gRPC."""
    store = tmp_path_factory.mktemp("grpc") / "operations.db"
    with Process(*SERVE, f"sqlite:///{store}", "--grpc", "0") as process:
        assert process.popen.stdout is not None
        yield process, process.popen.stdout.readline().strip().removeprefix("grpc://")


def test_our_client_over_grpc(server: tuple[Process, str]) -> None:
    """Started, waited for and listed over gRPC; the same operation over HTTP."""
    process, address = server
    with Client(transport=GrpcTransport(address)) as client:
        operation = client.start(SCORE, CAMERA, response=ScoreResponse, metadata=AnalysisMetadata)
        found = operation.result(timeout=60)
        assert isinstance(found, ScoreResponse)
        assert operation.metadata is not None
        assert operation.metadata.stage == "DONE"
        assert operation.name in [one.name for one in client.list()]
    assert process.get(operation.name)["response"]["overall"] == pytest.approx(found.overall)


def test_an_analysis_that_fails(server: tuple[Process, str]) -> None:
    """Its error is the one that HTTP tells, details and all."""
    process, address = server
    with Client(transport=GrpcTransport(address)) as client:
        request = ExtractRequest(image=flat(16, 16))
        operation = client.start(
            f"{PACKAGE}.Extract", request, response=ScoreResponse, metadata=AnalysisMetadata
        )
        try:
            operation.wait(timeout=60)
            error = operation.operation.error
        except OperationFailed as exc:
            error = exc.operation.error
    shown = process.get(operation.name)
    assert ("error" in shown) == (error is not None)
    if error is not None:
        assert shown["error"]["code"] == error.code


def test_googles_future_reads_a_generated_clients_messages(
    server: tuple[Process, str], tmp_path: Path
) -> None:
    """The request and the result are messages of the proto files that the service prints."""
    _, address = server
    with Service(MemoryStore(), InlineExecutor(), upkeep=False) as service:
        register(service)
        types = TypeRegistry()
        protobuf.register_file_set(types, protobuf.descriptor_set(service))
    package = PACKAGE.rpartition(".")[0]
    classes = {
        name: types.codec(f"{package}.{name}").python
        for name in ("ScoreRequest", "ScoreResponse", "AnalysisMetadata")
    }
    request = classes["ScoreRequest"](image={"content": encoded("camera.png").content})
    with grpc.insecure_channel(address) as channel:
        call = channel.unary_unary(
            SCORE,
            request_serializer=classes["ScoreRequest"].SerializeToString,
            response_deserializer=pb.Operation.FromString,
        )
        operations = OperationsClient(channel)
        future = from_gapic(
            call(request, timeout=60),
            operations,
            classes["ScoreResponse"],
            metadata_type=classes["AnalysisMetadata"],
        )
        found = future.result(timeout=60)
        assert 0 < found.overall <= 100
        assert future.metadata.stage == "DONE"
        assert next(one.name for one in operations.list_operations("operations", ""))
        operations.delete_operation(future.operation.name)
