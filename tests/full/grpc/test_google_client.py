"""Google's own clients of the Operations interface, sync and async, against our gRPC servers."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import attrs
import pytest

pytest.importorskip("grpc")
pytest.importorskip("google.auth")

with warnings.catch_warnings():
    # google-api-core asks for a package that only gives gRPC errors more words.
    warnings.filterwarnings("ignore", "Please install grpcio-status", ImportWarning)
    from google.api_core import exceptions, operation, operation_async, operations_v1
    from google.api_core.future import polling
    from google.api_core.retry import AsyncRetry
import grpc
import grpc.aio
from google.longrunning import operations_proto_pb2 as pb
from google.protobuf import struct_pb2, wrappers_pb2
from google.rpc import error_details_pb2, status_pb2

import lro
from lro.executors.inline import InlineExecutor
from lro.protobuf import operation_to_proto
from lro.stores.memory import MemoryStore
from tests.grpc.serving import serving

pytestmark = pytest.mark.filterwarnings("ignore:Please install grpcio-status:ImportWarning")

QUICK = polling.DEFAULT_POLLING.with_delay(initial=0.001, maximum=0.001, multiplier=1.0)


def still_running(error: BaseException) -> bool:
    """What the asynchronous future raises while it polls."""
    return type(error).__name__ == "_OperationNotComplete"


AQUICK = AsyncRetry(still_running, initial=0.001, maximum=0.001, multiplier=1.0)


@attrs.frozen
class Served:
    """A served service with a method of well-known types."""

    service: lro.Service
    method: lro.Method[lro.Struct, lro.types.StringValue, lro.Struct]
    address: str

    def start(self, parent: str = "projects/p", **metadata: object) -> Any:
        """A new operation, as a starting call of such a service returns it."""
        started = self.method.start(lro.Struct(), parent=parent, metadata=lro.Struct(metadata))
        return operation_to_proto(started.operation, self.service.types)

    def complete(self, started: Any, value: str) -> None:
        assert self.service.reporter(started.name).complete(lro.types.StringValue(value))

    def run(self, steps: Callable[[Any], Awaitable[Any]]) -> Any:
        """What a coroutine gives that gets Google's asynchronous client."""

        async def call() -> Any:
            async with grpc.aio.insecure_channel(self.address) as channel:
                return await steps(operations_v1.OperationsAsyncClient(channel))

        return asyncio.run(call())


@pytest.fixture(scope="module", params=["threads", "asyncio"])
def served(request: pytest.FixtureRequest) -> Iterator[Served]:
    """A service on each kind of server."""
    service = lro.Service(MemoryStore(), InlineExecutor(), maintenance=False, domain="acme.example")
    method = service.declare(
        "acme.v1.Things.Name",
        request=lro.Struct,
        response=lro.types.StringValue,
        metadata=lro.Struct,
    )
    with serving(request.param, service) as address:
        yield Served(service, method, address)
    service.close()


@pytest.fixture(scope="module")
def client(served: Served) -> Iterator[Any]:
    """Google's blocking client."""
    with grpc.insecure_channel(served.address) as channel:
        yield operations_v1.OperationsClient(channel)


def future(started: Any, client: Any) -> Any:
    """Google's future for an operation, which asks again every millisecond."""
    types = {"metadata_type": struct_pb2.Struct, "polling": QUICK}
    return operation.from_gapic(started, client, wrappers_pb2.StringValue, **types)


def afuture(started: Any, client: Any) -> Any:
    """Its asynchronous twin."""
    types = {"metadata_type": struct_pb2.Struct, "retry": AQUICK}
    return operation_async.from_gapic(started, client, wrappers_pb2.StringValue, **types)


def test_get(served: Served, client: Any) -> None:
    """The operation as it was started, metadata and all, and then its response."""
    started = served.start(percent=5.5)
    assert client.get_operation(started.name) == started
    served.complete(started, "ann")
    done = client.get_operation(started.name)
    value = wrappers_pb2.StringValue()
    assert done.response.Unpack(value)
    assert (done.done, value.value) == (True, "ann")


def test_list_through_pages(served: Served, client: Any) -> None:
    """The pager walks all pages of a filtered list, and finds each match once."""
    started = [served.start("projects/many", number=number) for number in range(7)]
    wanted = "metadata.number >= 2 AND NOT metadata.number = 4"
    pager = client.list_operations("projects/many", wanted)
    assert {one.name for one in pager} == {
        one.name for number, one in enumerate(started) if number not in (0, 1, 4)
    }
    assert list(client.list_operations("projects/none", "")) == []
    request = pb.ListOperationsRequest(name="projects/many", page_size=3)
    with grpc.insecure_channel(served.address) as channel:
        ask = channel.unary_unary(
            "/google.longrunning.Operations/ListOperations",
            pb.ListOperationsRequest.SerializeToString,
            pb.ListOperationsResponse.FromString,
        )
        first = ask(request)
        request.page_token = first.next_page_token
        second = ask(request)
    assert (len(first.operations), len(second.operations)) == (3, 3)
    assert not {one.name for one in first.operations} & {one.name for one in second.operations}


def test_cancel_and_delete(served: Served, client: Any) -> None:
    """Both reach the operation; after a delete it is not found."""
    started = served.start()
    client.cancel_operation(started.name)
    assert served.service.reporter(started.name).cancel_requested
    client.delete_operation(started.name)
    with pytest.raises(exceptions.NotFound, match="there is no operation") as caught:
        client.get_operation(started.name)
    trailers = dict(caught.value.response.trailing_metadata())
    status = status_pb2.Status.FromString(trailers["grpc-status-details-bin"])
    info = error_details_pb2.ErrorInfo()
    assert status.details[0].Unpack(info)
    assert (info.reason, info.domain) == ("OPERATION_NOT_FOUND", "acme.example")


def test_errors_are_understood(served: Served, client: Any) -> None:
    """The client raises its own class for each code."""
    with pytest.raises(exceptions.InvalidArgument, match="filter"):
        list(client.list_operations("projects/p", "a AND"))
    with pytest.raises(exceptions.InvalidArgument, match="names no operation"):
        client.get_operation("projects/-/operations/x")


def test_a_future_of_a_success(served: Served, client: Any) -> None:
    """It polls until done, shows typed metadata meanwhile, and gives the typed result."""
    started = served.start(percent=1)
    found = future(started, client)
    assert not found.done()
    assert found.metadata["percent"] == 1
    assert served.service.reporter(started.name).report(lro.Struct({"percent": 60}))
    assert not found.done()
    assert found.metadata["percent"] == 60
    served.complete(started, "bob")
    assert found.result(timeout=120).value == "bob"


def test_a_future_of_a_failure(served: Served, client: Any) -> None:
    """The error that the work ended with is raised."""
    started = served.start()
    error = lro.StatusError(lro.Code.FAILED_PRECONDITION, "no such thing")
    assert served.service.reporter(started.name).fail(error)
    with pytest.raises(exceptions.GoogleAPICallError, match="no such thing") as caught:
        future(started, client).result(timeout=120)
    assert caught.value.code in (400, 9)  # of either numbering, by version


def test_a_future_that_is_cancelled(served: Served, client: Any) -> None:
    """Cancelling asks; the future is cancelled once the work has stopped."""
    started = served.start()
    found = future(started, client)
    assert found.cancel()
    assert served.service.reporter(started.name).acknowledge_cancel()
    with pytest.raises(exceptions.GoogleAPICallError):
        found.result(timeout=120)
    assert found.cancelled()


def test_the_asynchronous_client(served: Served) -> None:
    """Get, list through pages, cancel, delete, and a missing operation."""
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


def test_asynchronous_futures(served: Served) -> None:
    """They give the typed result, typed metadata, the error, and the cancellation."""
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
