"""Google's own client of operations (google-api-core, REST) against the reference server.

It reads an Any only if the type is in protobuf's default pool, so the two messages that it meets
here get a descriptor, as their ``.proto`` file would give them.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from types import SimpleNamespace

import pytest
from google.auth.credentials import AnonymousCredentials
from google.protobuf import descriptor_pb2, descriptor_pool, json_format, message_factory
from google.rpc import error_details_pb2

from examples.analysis.messages import ExtractRequest, Image, ScoreRequest
from tests.full.examples.conftest import encoded, flat
from tests.full.examples.serving import Server, listening, slow_request

pytest.importorskip("grpc", reason="google-api-core's operations client needs grpcio")
with warnings.catch_warnings():
    warnings.filterwarnings("ignore", "Please install grpcio-status", ImportWarning)
    from google.api_core import exceptions
    from google.api_core.future.polling import POLLING_PREDICATE
    from google.api_core.operation import Operation, from_gapic
    from google.api_core.operations_v1 import AbstractOperationsClient
    from google.api_core.operations_v1.transports.rest import OperationsRestTransport
    from google.api_core.retry import Retry

PACKAGE = "lro.examples.analysis.v1"
CAMERA = ScoreRequest(image=encoded("camera.png"))
SMALL = ScoreRequest(image=flat(16, 16))
CUT = ScoreRequest(image=Image(content=encoded("camera.png").content[:60_000]))
ERROR_TYPES = (error_details_pb2.ErrorInfo, error_details_pb2.BadRequest)
""" Imported, they are in the pool: an operation that failed has them in its error."""
FIELDS = {
    "AnalysisMetadata": """
        Timestamp create_time, Timestamp start_time, Timestamp end_time, string target, string verb,
        string stage, int32 progress_percent, int32 work_done, int32 work_total,
        bool cancel_requested, string status_message, string api_version
    """,
    "ScoreResponse": """
        double scale, int32 image_width, int32 image_height, double overall, double sharpness,
        double cleanness, double contrast, double exposure, double blur, double noise_sigma,
        double contrast_range, double clipped_fraction, double entropy_bits, double colorfulness,
        double mean_luminance
    """,
}


@pytest.fixture(scope="session")
def classes() -> SimpleNamespace:
    """The protobuf classes of the two messages, known to the default pool."""
    file = descriptor_pb2.FileDescriptorProto(
        name="lro/examples/analysis/v1/some.proto",
        package=PACKAGE,
        syntax="proto3",
        dependency=["google/protobuf/timestamp.proto"],
    )
    for name, fields in FIELDS.items():
        message = file.message_type.add(name=name)
        for number, field in enumerate(fields.split(","), start=1):
            kind, field_name = field.split()
            added = message.field.add(name=field_name, number=number, label=1)
            if kind == "Timestamp":
                added.type, added.type_name = added.TYPE_MESSAGE, ".google.protobuf.Timestamp"
            else:
                added.type = added.Type.Value(f"TYPE_{kind.upper()}")
    pool = descriptor_pool.Default()
    pool.AddSerializedFile(file.SerializeToString())
    found = {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{PACKAGE}.{name}"))
        for name in FIELDS
    }
    return SimpleNamespace(**found)


@pytest.fixture(scope="module")
def client(server: Server, classes: SimpleNamespace) -> Iterator[AbstractOperationsClient]:
    """Google's client, on a real socket."""
    with listening(server) as url:
        transport = OperationsRestTransport(host=url, credentials=AnonymousCredentials())
        yield AbstractOperationsClient(transport=transport)


@pytest.fixture
def future(
    server: Server, client: AbstractOperationsClient, classes: SimpleNamespace
) -> Callable[[str], Operation]:
    """Futures of operations by name, which ask often."""
    polling = Retry(predicate=POLLING_PREDICATE, initial=0.02, maximum=0.1, timeout=240)

    def of(name: str) -> Operation:
        operation = client.get_operation(name)
        result, metadata = classes.ScoreResponse, classes.AnalysisMetadata
        return from_gapic(operation, client, result, metadata_type=metadata, polling=polling)

    return of


def start(server: Server, parent: str, request: object = SMALL, verb: str = "score") -> str:
    """The name of a new operation."""
    name: str = server.start(verb, request, params={"parent": parent})["name"]
    return name


def test_get(server: Server, client: AbstractOperationsClient, classes: SimpleNamespace) -> None:
    """A record is an Operation of theirs, with metadata and response in it."""
    name = start(server, "projects/get", CAMERA)
    server.finish(name)
    found = client.get_operation(name)
    metadata, response = classes.AnalysisMetadata(), classes.ScoreResponse()
    assert (found.name, found.done, found.WhichOneof("result")) == (name, True, "response")
    assert found.metadata.Unpack(metadata)
    assert found.response.Unpack(response)
    assert (metadata.verb, metadata.stage, metadata.progress_percent) == ("score", "DONE", 100)
    assert metadata.create_time.ToDatetime() <= metadata.end_time.ToDatetime()
    assert response.overall == pytest.approx(98.06, rel=0.01)


def test_list(server: Server, client: AbstractOperationsClient) -> None:
    """A project's operations come page by page, the newest first."""
    names = [start(server, "projects/list") for _ in range(5)]
    for name in names:
        server.finish(name)
    pager = client.list_operations("projects/list", "", page_size=2)
    pages = [[operation.name for operation in page.operations] for page in pager.pages]
    assert [len(page) for page in pages] == [2, 2, 1]
    assert [name for page in pages for name in page] == names[::-1]


def test_list_by_a_filter(server: Server, client: AbstractOperationsClient) -> None:
    """A filter goes with every page; one that is wrong is refused with its reason."""
    done = [start(server, "projects/filter") for _ in range(3)]
    failed = start(server, "projects/filter", CUT)
    for name in (*done, failed):
        server.finish(name)
    wanted = 'metadata.verb = "score" AND state() = SUCCEEDED'
    found = client.list_operations("projects/filter", wanted, page_size=2)
    assert [operation.name for operation in found] == done[::-1]
    with pytest.raises(exceptions.BadRequest) as refused:
        client.list_operations("projects/filter", "metadata.speed > 3")
    assert (refused.value.reason, refused.value.domain) == ("INVALID_FILTER", "analysis.test")


def test_delete(server: Server, client: AbstractOperationsClient) -> None:
    """A deleted record is gone, for delete too."""
    name = start(server, "projects/delete")
    server.finish(name)
    client.delete_operation(name)
    for call in (client.get_operation, client.delete_operation, client.cancel_operation):
        with pytest.raises(exceptions.NotFound) as gone:
            call(name)
        assert gone.value.reason == "OPERATION_NOT_FOUND"


def test_a_future_of_a_result(server: Server, future: Callable[[str], Operation]) -> None:
    """The future waits for the response and decodes it; so with the metadata."""
    waiting = future(start(server, "projects/future", CAMERA))
    assert waiting.result(timeout=240).overall == pytest.approx(98.06, rel=0.01)
    assert waiting.done()
    assert not waiting.cancelled()
    assert waiting.metadata.target.startswith("images/b0793d2a")
    assert (waiting.metadata.stage, waiting.metadata.work_done) == ("DONE", 7)


def test_a_future_of_a_failure(server: Server, future: Callable[[str], Operation]) -> None:
    """An operation's error is raised as the exception of its code."""
    waiting = future(start(server, "projects/future", CUT))
    with pytest.raises(exceptions.InvalidArgument, match="cannot be decoded"):
        waiting.result(timeout=240)
    assert waiting.metadata.stage == "FAILED"


def test_a_future_is_cancelled(server: Server, future: Callable[[str], Operation]) -> None:
    """Cancel with its empty body arrives, and the future ends as cancelled."""
    waiting = future(start(server, "projects/future", slow_request(32), "track"))
    assert waiting.cancel()
    with pytest.raises(exceptions.Cancelled):
        waiting.result(timeout=240)
    assert waiting.cancelled()
    assert (waiting.metadata.stage, waiting.metadata.cancel_requested) == ("CANCELLED", True)
    assert not waiting.cancel()


def test_a_type_without_descriptor(server: Server, client: AbstractOperationsClient) -> None:
    """Protobuf cannot read an Any of a type that is not registered."""
    name = start(server, "projects/unknown", ExtractRequest(image=flat(1, 1)), "extract")
    server.finish(name)
    with pytest.raises(json_format.ParseError, match="ExtractResponse"):
        client.get_operation(name)


def test_operations_of_the_root(server: Server, classes: SimpleNamespace) -> None:
    """With the http rules of the public proto it reads operations without a project, too."""
    rules = {
        f"google.longrunning.Operations.{verb}Operation{s}": [{"method": method, "uri": uri}]
        for verb, s, method, uri in [
            ("Get", "", "get", "/v1/{name=operations/**}"),
            ("List", "s", "get", "/v1/{name=operations}"),
            ("Delete", "", "delete", "/v1/{name=operations/**}"),
        ]
    }
    name = server.start("score", SMALL)["name"]
    server.finish(name)
    with listening(server) as url:
        transport = OperationsRestTransport(
            host=url, credentials=AnonymousCredentials(), http_options=rules
        )
        client = AbstractOperationsClient(transport=transport)
        assert client.get_operation(name).done
        listed = client.list_operations("operations", 'metadata.verb = "score"')
        assert name in [operation.name for operation in listed]
        client.delete_operation(name)
        with pytest.raises(exceptions.NotFound):
            client.get_operation(name)
