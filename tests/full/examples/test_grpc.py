"""The reference server over gRPC: our client, Google's futures, messages of a generated client."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("grpc")
pytest.importorskip("grpc_tools")
pytest.importorskip("google.longrunning.operations_proto_pb2")

import grpc
import grpc_tools
from google.longrunning import operations_pb2_grpc as pb_grpc
from google.longrunning import operations_proto_pb2 as pb

from examples.analysis.messages import (
    AnalysisMetadata,
    Image,
    ScoreRequest,
    ScoreResponse,
)
from examples.analysis.methods import PACKAGE, register
from lro import Service, TypeRegistry, protobuf
from lro.executors.inline import InlineExecutor
from lro.stores.memory import MemoryStore
from lro.wire import status_to_json
from lro_client import Client, OperationFailed
from lro_client.transports.grpc import GrpcTransport
from tests.full.examples.conftest import encoded
from tests.full.examples.serving import SERVE, Process
from tests.googleapis import write_googleapis

with warnings.catch_warnings():
    warnings.filterwarnings("ignore", "Please install grpcio-status", ImportWarning)
    from google.api_core.operation import from_gapic
    from google.api_core.operation_async import from_gapic as from_gapic_async
    from google.api_core.operations_v1 import OperationsAsyncClient, OperationsClient

SCORE = f"/{PACKAGE}/Score"
CAMERA = ScoreRequest(image=encoded("camera.png"))
CUT = ScoreRequest(image=Image(content=encoded("camera.png").content[:60_000]))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Process, str]]:
    """A server process that speaks both, and where it listens for gRPC."""
    store = tmp_path_factory.mktemp("grpc") / "operations.db"
    with Process(*SERVE, f"sqlite:///{store}", "--grpc", "0") as process:
        assert process.popen.stdout is not None
        yield process, process.popen.stdout.readline().strip().removeprefix("grpc://")


def printed_classes(*names: str) -> dict[str, Any]:
    """Protobuf classes of the proto files that the service prints."""
    with Service(MemoryStore(), InlineExecutor(), maintenance=False) as service:
        register(service)
        types = TypeRegistry()
        protobuf.register_file_set(types, protobuf.descriptor_set(service))
    package = PACKAGE.rpartition(".")[0]
    return {name: types.codec(f"{package}.{name}").python for name in names}


def test_our_client_over_grpc(server: tuple[Process, str]) -> None:
    """Started, waited for and listed over gRPC; the same operation over HTTP."""
    process, address = server
    with Client(transport=GrpcTransport(address)) as client:
        operation = client.start(SCORE, CAMERA, response=ScoreResponse, metadata=AnalysisMetadata)
        found = operation.result(timeout=240)
        assert isinstance(found, ScoreResponse)
        assert operation.metadata is not None
        assert operation.metadata.stage == "DONE"
        assert operation.name in [one.name for one in client.list()]
    assert process.get(operation.name)["response"]["overall"] == pytest.approx(found.overall)


def test_an_analysis_that_fails(server: tuple[Process, str]) -> None:
    """Its error is the one over HTTP: code, message and details."""
    process, address = server
    types = TypeRegistry()
    with Client(transport=GrpcTransport(address)) as client:
        operation = client.start(SCORE, CUT, response=ScoreResponse, metadata=AnalysisMetadata)
        with pytest.raises(OperationFailed) as caught:
            operation.result(timeout=240)
    error = caught.value.operation.error
    assert error is not None
    assert error.details
    assert status_to_json(error, types) == process.get(operation.name)["error"]


def test_googles_async_future(server: tuple[Process, str]) -> None:
    """The same on an event loop; WaitOperation by the raw stub, with a timeout and a deadline."""
    _, address = server

    async def main() -> tuple[Any, Any]:
        async with grpc.aio.insecure_channel(address) as channel:
            stub = pb_grpc.OperationsStub(channel)
            call = channel.unary_unary(SCORE, response_deserializer=pb.Operation.FromString)
            begun = await call(types.binary_payload(types.pack(CAMERA)), timeout=240)
            future = from_gapic_async(
                begun,
                OperationsAsyncClient(channel),
                protobuf_classes["ScoreResponse"],
                metadata_type=protobuf_classes["AnalysisMetadata"],
            )
            request = pb.WaitOperationRequest(name=begun.name, timeout={"seconds": 30})
            waited = await stub.WaitOperation(request, timeout=240)
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await stub.WaitOperation(pb.WaitOperationRequest(name="operations/missing"))
            assert refused.value.code() is grpc.StatusCode.NOT_FOUND
            return waited, await future.result(timeout=240)

    types = TypeRegistry(ScoreRequest)
    protobuf_classes = printed_classes("ScoreResponse", "AnalysisMetadata")
    waited, found = asyncio.run(main())
    assert waited.done
    assert 0 < found.overall <= 100


def test_a_generated_client_decodes_real_replies(
    server: tuple[Process, str], tmp_path: Path
) -> None:
    """The printed file compiles, and a program made of it alone reads what the server says."""
    process, address = server
    name = process.start("score", CAMERA)["name"]
    process.until(name)
    with Service(MemoryStore(), InlineExecutor(), maintenance=False) as service:
        register(service)
        sources = protobuf.proto_sources(service)
    for path, text in sources.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    own = Path(grpc_tools.__file__).parent / "_proto"
    folders = [f"-I{tmp_path}", f"-I{own}", write_googleapis(tmp_path), f"--python_out={tmp_path}"]
    command = [sys.executable, "-m", "grpc_tools.protoc", *folders, *sources]
    done = subprocess.run(command, capture_output=True, text=True)
    assert not done.returncode, done.stderr
    module = tmp_path / next(iter(sources)).replace(".proto", "_pb2.py")
    program = f"""
import importlib.util, sys
spec = importlib.util.spec_from_file_location("made", {str(module)!r})
made = importlib.util.module_from_spec(spec)
spec.loader.exec_module(made)
import grpc
from google.longrunning import operations_proto_pb2 as pb
channel = grpc.insecure_channel({address!r})
get = channel.unary_unary(
    "/google.longrunning.Operations/GetOperation", pb.GetOperationRequest.SerializeToString,
    pb.Operation.FromString)
operation = get(pb.GetOperationRequest(name={name!r}), timeout=240)
found = made.ScoreResponse()
assert operation.response.Unpack(found)
print(0 < found.overall <= 100, found.image_width)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("True 512\n", "")


def test_googles_future_reads_a_generated_clients_messages(
    server: tuple[Process, str], tmp_path: Path
) -> None:
    """The request and the result are messages of the proto files that the service prints."""
    _, address = server
    classes = printed_classes("ScoreRequest", "ScoreResponse", "AnalysisMetadata")
    request = classes["ScoreRequest"](image={"content": encoded("camera.png").content})
    with grpc.insecure_channel(address) as channel:
        call = channel.unary_unary(
            SCORE,
            request_serializer=classes["ScoreRequest"].SerializeToString,
            response_deserializer=pb.Operation.FromString,
        )
        operations = OperationsClient(channel)
        future = from_gapic(
            call(request, timeout=240),
            operations,
            classes["ScoreResponse"],
            metadata_type=classes["AnalysisMetadata"],
        )
        found = future.result(timeout=240)
        assert 0 < found.overall <= 100
        assert future.metadata.stage == "DONE"
        assert next(one.name for one in operations.list_operations("operations", ""))
        operations.delete_operation(future.operation.name)
