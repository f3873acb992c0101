"""Google's own REST client of the Operations interface, against a served service."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from typing import Any

import attrs
import pytest

import lro
import lro.wire
from lro.asgi import OperationsApp
from lro.executors.inline import InlineExecutor
from lro.stores.memory import MemoryStore
from tests.http.counting_service import DOMAIN, details_of
from tests.http.servers import HOST, uvicorn_serving

pytest.importorskip("grpc", reason="google-api-core's client of operations imports it")
pytest.importorskip("google.auth")
pytest.importorskip("requests")

with warnings.catch_warnings():
    # google-api-core asks for a package that only gives gRPC errors more words.
    warnings.filterwarnings("ignore", "Please install grpcio-status", ImportWarning)
    from google.api_core import exceptions, operation, operations_v1
    from google.api_core.future import polling
from google.auth.credentials import AnonymousCredentials
from google.longrunning import operations_pb2
from google.protobuf import duration_pb2, json_format, struct_pb2, wrappers_pb2

QUICK = polling.DEFAULT_POLLING.with_delay(initial=0.001, maximum=0.001, multiplier=1.0)


@attrs.frozen
class Served:
    """A served service with a method of well-known types, and Google's client of it."""

    service: lro.Service
    method: lro.Method[lro.Struct, lro.types.StringValue, lro.Struct]
    client: Any
    url: str

    def start(self, parent: str = "projects/p", **metadata: object) -> Any:
        """A new operation, as a starting call of such a service returns it."""
        started = self.method.start(lro.Struct(), parent=parent, metadata=lro.Struct(metadata))
        shown = lro.wire.operation_to_json(started.operation, self.service.types)
        return json_format.ParseDict(shown, operations_pb2.Operation())

    def future(self, started: Any, result_type: Any = wrappers_pb2.StringValue) -> Any:
        """Google's future for an operation, which asks again every millisecond."""
        return operation.from_gapic(
            started, self.client, result_type, metadata_type=struct_pb2.Struct, polling=QUICK
        )


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    """A service behind uvicorn, with operations under projects."""
    service = lro.Service(MemoryStore(), InlineExecutor(), maintenance=False, domain=DOMAIN)
    method = service.declare(
        "acme.v1.Things.Name",
        request=lro.Struct,
        response=lro.types.StringValue,
        metadata=lro.Struct,
    )
    with uvicorn_serving(OperationsApp(service, parents=["projects/*"])) as port:
        url = f"http://{HOST}:{port}"
        transport = operations_v1.OperationsRestTransport(
            host=url, credentials=AnonymousCredentials()
        )
        client = operations_v1.AbstractOperationsClient(transport=transport)
        yield Served(service, method, client, url)
        transport._session.close()


def struct(message: Any) -> dict[str, Any]:
    """A Struct as a dict."""
    found: dict[str, Any] = json_format.MessageToDict(message)
    return found


def info_of(error: Any) -> Mapping[str, Any]:
    """The ErrorInfo of an error that the client has raised."""
    info = details_of(error.response.json())["ErrorInfo"]
    if not isinstance(error.details[0], dict):  # older clients leave the details as they came
        assert (error.reason, error.domain) == (info["reason"], DOMAIN)
        assert error.metadata == info.get("metadata", {})
    return info


def test_get(served: Served) -> None:
    """The operation as it was started, metadata and all, and then its response."""
    started = served.start(percent=5.5)
    assert served.client.get_operation(started.name) == started
    assert served.service.reporter(started.name).complete(lro.types.StringValue("ann"))
    done = served.client.get_operation(started.name)
    value = wrappers_pb2.StringValue()
    assert done.response.Unpack(value)
    assert (done.done, value.value) == (True, "ann")


def test_list_through_pages(served: Served) -> None:
    """The pager walks all pages of a filtered list, and finds each match once."""
    started = [served.start("projects/many", number=number) for number in range(7)]
    wanted = "metadata.number >= 2 AND NOT metadata.number = 4"
    pager = served.client.list_operations("projects/many", wanted, page_size=2)
    pages = [[one.name for one in page.operations] for page in pager.pages]
    assert [len(page) for page in pages] == [2, 2]
    assert {name for page in pages for name in page} == {
        one.name for number, one in enumerate(started) if number not in (0, 1, 4)
    }
    assert list(served.client.list_operations("projects/none", "")) == []


def test_cancel_and_delete(served: Served) -> None:
    """An empty body with a JSON media type, as this client sends it, is an empty request."""
    started = served.start()
    served.client.cancel_operation(started.name)
    assert served.service.reporter(started.name).cancel_requested
    served.client.delete_operation(started.name)
    with pytest.raises(exceptions.NotFound) as gone:
        served.client.get_operation(started.name)
    info = info_of(gone.value)
    assert (info["reason"], info["metadata"]) == ("OPERATION_NOT_FOUND", {"name": started.name})


@pytest.mark.parametrize(
    ("call", "error", "reason"),
    [
        (lambda client: client.list_operations("projects/p", "a AND"), None, "INVALID_FILTER"),
        (
            lambda client: client.list_operations("projects/p", "", page_token="x"),
            None,
            "INVALID_PAGE_TOKEN",
        ),
        (
            lambda client: client.get_operation("projects/-/operations/x"),
            None,
            "INVALID_OPERATION_NAME",
        ),
        (lambda client: client.get_operation("p/q/operations/x"), "NotFound", "ROUTE_NOT_FOUND"),
    ],
)
def test_errors_are_understood(served: Served, call: Any, error: str | None, reason: str) -> None:
    """The client reads status, message, reason and details off our error bodies."""
    with pytest.raises(getattr(exceptions, error or "BadRequest")) as refused:
        call(served.client)
    assert info_of(refused.value)["reason"] == reason
    assert refused.value.message


def test_a_future_of_a_success(served: Served) -> None:
    """It polls until done, shows typed metadata meanwhile, and gives the typed result."""
    started = served.start(percent=1)
    future = served.future(started)
    reporter = served.service.reporter(started.name)
    assert not future.done()
    assert struct(future.metadata) == {"percent": 1}
    assert reporter.report(lro.Struct({"percent": 50, "tags": ["a", None, {}]}))
    assert not future.done()
    assert struct(future.metadata) == {"percent": 50, "tags": ["a", None, {}]}
    assert reporter.complete(lro.types.StringValue(""), metadata=lro.Struct({"percent": 100}))
    assert future.result(timeout=120) == wrappers_pb2.StringValue(value="")
    assert struct(future.metadata) == {"percent": 100}
    assert not future.cancelled()


def test_a_future_of_a_failure(served: Served) -> None:
    """It raises the error of the operation's code, with the status and its details."""
    started = served.start()
    future = served.future(started)
    served.service.reporter(started.name).fail(
        lro.errors.PermissionDenied("not you"), domain=DOMAIN
    )
    with pytest.raises(exceptions.PermissionDenied, match="not you") as failed:
        future.result(timeout=120)
    (status,) = failed.value.errors
    assert (status.code, len(status.details)) == (7, 1)
    assert status.details[0].TypeName() == "google.rpc.ErrorInfo"


def test_a_future_that_is_cancelled(served: Served) -> None:
    """It asks for the cancellation, and finds out when the work has obeyed."""
    started = served.start()
    future = served.future(started)
    reporter = served.service.reporter(started.name)
    assert future.cancel()
    assert not future.cancelled()
    assert reporter.acknowledge_cancel()
    assert future.cancelled()
    with pytest.raises(exceptions.Cancelled):
        future.result(timeout=120)
    assert not future.cancel()


@pytest.mark.parametrize(
    ("response", "wanted"),
    [
        (lro.Duration(3, 500_000_000), duration_pb2.Duration(seconds=3, nanos=500_000_000)),
        (lro.Struct({"a": [1, "b"]}), json_format.ParseDict({"a": [1, "b"]}, struct_pb2.Struct())),
        (lro.types.Int64Value(2**62), wrappers_pb2.Int64Value(value=2**62)),
        (lro.types.BytesValue(b"\0\xff"), wrappers_pb2.BytesValue(value=b"\0\xff")),
        (lro.types.Value(None), struct_pb2.Value(null_value=0)),
    ],
)
def test_other_well_known_types(served: Served, response: Any, wanted: Any) -> None:
    """What the library calls a well-known type, protobuf reads as that very type."""
    method = served.service.declare(
        f"acme.v1.Things.Get{type(response).__name__}",
        request=lro.Struct,
        response=type(response),
        metadata=lro.Struct,
    )
    started = method.start(lro.Struct(), parent="projects/p")
    assert served.service.reporter(started.name).complete(response)
    future = served.future(served.client.get_operation(started.name), type(wanted))
    assert future.result(timeout=120) == wanted
