"""Google's own clients of the Operations interface call our servers over gRPC and REST."""

from __future__ import annotations

import asyncio
import contextlib
import warnings
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import attrs
import pytest

pytest.importorskip("grpc")
pytest.importorskip("google.auth")
pytest.importorskip("requests")

with warnings.catch_warnings():
    # google-api-core suggests a package, which would only lengthen gRPC error messages.
    warnings.filterwarnings("ignore", "Please install grpcio-status", ImportWarning)
    from google.api_core import exceptions, operation, operation_async, operations_v1
    from google.api_core.future import polling
    from google.api_core.retry import AsyncRetry
import grpc
import grpc.aio
from google.auth.credentials import AnonymousCredentials
from google.protobuf import duration_pb2, json_format, struct_pb2, wrappers_pb2
from google.rpc import error_details_pb2, status_pb2

import lro
from lro.asgi import OperationsApp
from lro.executors.inline import InlineExecutor
from lro.protobuf import operation_to_proto
from lro.stores.memory import MemoryStore
from tests.grpc.serving import serving
from tests.http.counting_service import DOMAIN, details_of
from tests.http.servers import HOST, uvicorn_serving

pytestmark = pytest.mark.filterwarnings("ignore:Please install grpcio-status:ImportWarning")

QUICK = polling.DEFAULT_POLLING.with_delay(initial=0.001, maximum=0.001, multiplier=1.0)


def still_running(error: BaseException) -> bool:
    """Return whether Google's async future raised this error because it still polls."""
    return type(error).__name__ == "_OperationNotComplete"


AQUICK = AsyncRetry(still_running, initial=0.001, maximum=0.001, multiplier=1.0)


@attrs.frozen
class Served:
    """A service whose method has well-known types, and Google's blocking client for it."""

    service: lro.Service
    method: lro.Method[lro.Struct, lro.types.StringValue, lro.Struct]
    client: Any
    address: str = ""

    def start(self, parent: str = "projects/p", **metadata: object) -> Any:
        """Start an operation and return it as a protobuf message."""
        started = self.method.start(lro.Struct(), parent=parent, metadata=lro.Struct(metadata))
        return operation_to_proto(started.operation, self.service.types)

    def complete(self, started: Any, value: str) -> None:
        assert self.service.reporter(started.name).complete(lro.types.StringValue(value))

    def run(self, steps: Callable[[Any], Awaitable[Any]]) -> Any:
        """Run a coroutine function with Google's async client and return its result."""

        async def call() -> Any:
            async with grpc.aio.insecure_channel(self.address) as channel:
                return await steps(operations_v1.OperationsAsyncClient(channel))

        return asyncio.run(call())


@contextlib.contextmanager
def rest(service: lro.Service) -> Iterator[tuple[Any, str]]:
    """Serve the service with uvicorn; yield Google's REST client and an empty address."""
    with uvicorn_serving(OperationsApp(service, parents=["projects/*"]), lifespan="off") as port:
        transport = operations_v1.OperationsRestTransport(
            host=f"http://{HOST}:{port}", credentials=AnonymousCredentials()
        )
        yield operations_v1.AbstractOperationsClient(transport=transport), ""
        transport._session.close()


@contextlib.contextmanager
def over_grpc(kind: str, service: lro.Service) -> Iterator[tuple[Any, str]]:
    """Serve the service on this kind of server; yield Google's gRPC client and the address."""
    with serving(kind, service) as address, grpc.insecure_channel(address) as channel:
        yield operations_v1.OperationsClient(channel), address


@pytest.fixture(scope="module", params=["rest", "threads", "asyncio"])
def served(request: pytest.FixtureRequest) -> Iterator[Served]:
    """A service over REST or on a gRPC server, with Google's client for it."""
    service = lro.Service(MemoryStore(), InlineExecutor(), maintenance=False, domain=DOMAIN)
    method = service.declare(
        "acme.v1.Things.Name",
        request=lro.Struct,
        response=lro.types.StringValue,
        metadata=lro.Struct,
    )
    kind = request.param
    with service, rest(service) if kind == "rest" else over_grpc(kind, service) as (client, at):
        yield Served(service, method, client, at)


@pytest.fixture
def client(served: Served) -> Any:
    """Google's blocking client."""
    return served.client


def future(started: Any, client: Any, result_type: Any = wrappers_pb2.StringValue) -> Any:
    """Return Google's future for an operation; the future polls every millisecond."""
    types = {"metadata_type": struct_pb2.Struct, "polling": QUICK}
    return operation.from_gapic(started, client, result_type, **types)


def info_of(error: Any) -> Any:
    """Return the reason, domain and metadata of an error that the client raised."""
    if hasattr(error.response, "json"):
        info = details_of(error.response.json())["ErrorInfo"]
        if not isinstance(error.details[0], dict):  # older clients leave details undecoded
            assert (error.reason, error.domain) == (info["reason"], DOMAIN)
            assert error.metadata == info.get("metadata", {})
        return info["reason"], info["domain"], info.get("metadata", {})
    trailers = dict(error.response.trailing_metadata())
    status = status_pb2.Status.FromString(trailers["grpc-status-details-bin"])
    found = error_details_pb2.ErrorInfo()
    assert status.details[0].Unpack(found)
    return found.reason, found.domain, dict(found.metadata)


def afuture(started: Any, client: Any) -> Any:
    types = {"metadata_type": struct_pb2.Struct, "retry": AQUICK}
    return operation_async.from_gapic(started, client, wrappers_pb2.StringValue, **types)


def test_google_client_gets_metadata_and_later_the_response(served: Served, client: Any) -> None:
    """Google's client gets an operation's metadata, and its response once the operation is done."""
    started = served.start(percent=5.5)
    assert client.get_operation(started.name) == started
    served.complete(started, "ann")
    done = client.get_operation(started.name)
    value = wrappers_pb2.StringValue()
    assert done.response.Unpack(value)
    assert (done.done, value.value) == (True, "ann")


def test_google_client_lists_all_pages(served: Served, client: Any) -> None:
    """Google's pager reads all pages of a filtered list and finds each match once."""
    started = [served.start("projects/many", number=number) for number in range(7)]
    wanted = "metadata.number >= 2 AND NOT metadata.number = 4"
    over_rest = not served.address  # only the REST client can set a page size
    more = {"page_size": 2} if over_rest else {}
    pages = list(client.list_operations("projects/many", wanted, **more).pages)
    lists = [[*(page.operations if over_rest else page)] for page in pages]
    assert [len(one) for one in lists] == ([2, 2] if over_rest else [4])
    assert {one.name for found in lists for one in found} == {
        one.name for number, one in enumerate(started) if number not in (0, 1, 4)
    }
    assert list(client.list_operations("projects/none", "")) == []


def test_google_client_cancels_and_deletes(served: Served, client: Any) -> None:
    """The work sees a cancel by Google's client; after a delete, Get answers NOT_FOUND."""
    started = served.start()
    client.cancel_operation(started.name)
    assert served.service.reporter(started.name).cancel_requested
    client.delete_operation(started.name)
    with pytest.raises(exceptions.NotFound, match="there is no operation") as gone:
        client.get_operation(started.name)
    assert info_of(gone.value) == ("OPERATION_NOT_FOUND", DOMAIN, {"name": started.name})


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        (lambda client: list(client.list_operations("projects/p", "a AND")), "INVALID_FILTER"),
        (lambda client: client.get_operation("projects/-/operations/x"), "INVALID_OPERATION_NAME"),
    ],
)
def test_google_client_raises_its_class_for_the_code(client: Any, call: Any, reason: str) -> None:
    """Google's client raises the exception class of the error's code, with our details."""
    with pytest.raises(exceptions.BadRequest) as refused:
        call(client)
    assert info_of(refused.value)[0] == reason
    assert refused.value.message


def test_future_returns_the_typed_result(served: Served, client: Any) -> None:
    """Google's future has typed metadata while the work runs, and then the typed result."""
    started = served.start(percent=1)
    found = future(started, client)
    reporter = served.service.reporter(started.name)
    assert not found.done()
    assert json_format.MessageToDict(found.metadata) == {"percent": 1}
    shown = {"percent": 50, "tags": ["a", None, {}]}
    assert reporter.report(lro.Struct(shown))
    assert not found.done()
    assert json_format.MessageToDict(found.metadata) == shown
    assert reporter.complete(lro.types.StringValue(""), metadata=lro.Struct({"percent": 100}))
    assert found.result(timeout=120) == wrappers_pb2.StringValue(value="")
    assert json_format.MessageToDict(found.metadata) == {"percent": 100}
    assert not found.cancelled()


def test_future_raises_the_error_of_the_operation(served: Served, client: Any) -> None:
    """Google's future raises the class of the operation's error code, with its details."""
    started = served.start()
    error = lro.errors.PermissionDenied("not you")
    assert served.service.reporter(started.name).fail(error, domain=DOMAIN)
    with pytest.raises(exceptions.PermissionDenied, match="not you") as failed:
        future(started, client).result(timeout=120)
    (status,) = failed.value.errors
    assert (status.code, len(status.details)) == (7, 1)
    assert status.details[0].TypeName() == "google.rpc.ErrorInfo"


def test_cancelled_future_cancels_the_operation(served: Served, client: Any) -> None:
    """Google's future cancels its operation, and is cancelled itself once the work has stopped."""
    started = served.start()
    found = future(started, client)
    assert found.cancel()
    assert not found.cancelled()
    assert served.service.reporter(started.name).acknowledge_cancel()
    assert found.cancelled()
    with pytest.raises(exceptions.GoogleAPICallError):
        found.result(timeout=120)
    assert not found.cancel()


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
def test_protobuf_reads_each_well_known_type(
    served: Served, client: Any, response: Any, wanted: Any
) -> None:
    """Google's client reads each well-known type of ours as the protobuf class of that type."""
    method = served.service.declare(
        f"acme.v1.Things.Get{type(response).__name__}",
        request=lro.Struct,
        response=type(response),
        metadata=lro.Struct,
    )
    started = method.start(lro.Struct(), parent="projects/p")
    assert served.service.reporter(started.name).complete(response)
    found = future(client.get_operation(started.name), client, type(wanted))
    assert found.result(timeout=120) == wanted


@pytest.mark.parametrize("served", ["threads", "asyncio"], indirect=True)
def test_async_google_client_gets_lists_cancels_and_deletes(served: Served) -> None:
    """Google's async client gets, lists, cancels and deletes; a deleted operation is not found."""
    started = [served.start("projects/async") for _ in range(3)]

    async def steps(client: Any) -> None:
        assert await client.get_operation(started[0].name) == started[0]
        pager = await client.list_operations("projects/async", "")
        assert {one.name async for one in pager} == {one.name for one in started}
        await client.cancel_operation(started[0].name)
        await client.delete_operation(started[1].name)
        with pytest.raises(exceptions.NotFound):
            await client.get_operation(started[1].name)

    served.run(steps)
    assert served.service.reporter(started[0].name).cancel_requested


@pytest.mark.parametrize("served", ["threads", "asyncio"], indirect=True)
def test_async_futures_return_results_and_raise_errors(served: Served) -> None:
    """Google's async futures return typed results, raise errors and can be cancelled."""
    good, bad, stopped = (served.start(percent=1) for _ in range(3))

    async def steps(client: Any) -> None:
        found = afuture(good, client)
        assert not await found.done()
        served.complete(good, "carol")
        assert (await found.result(timeout=120)).value == "carol"
        assert found.metadata["percent"] == 1
        served.service.reporter(bad.name).fail(lro.StatusError(lro.Code.ABORTED, "not now"))
        with pytest.raises(exceptions.GoogleAPICallError, match="not now"):
            await afuture(bad, client).result(timeout=120)
        found = afuture(stopped, client)
        assert await found.cancel()
        served.service.reporter(stopped.name).acknowledge_cancel()
        assert await found.cancelled()
        with pytest.raises(exceptions.GoogleAPICallError):
            await found.result(timeout=120)

    served.run(steps)
