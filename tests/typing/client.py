"""Types of both clients: results and metadata have the classes that a call names."""

# Each expected error has an ignore comment; mypy and pyright report unused comments.
# pyright: reportUnnecessaryTypeIgnoreComment=true

from __future__ import annotations

from typing import Any, assert_type

import httpx
from google.cloud import redis_v1

import lro
import lro.wire
import lro_client
from lro.wire import BatchGetOperationsResponse
from lro_client import (
    AsyncClient,
    AsyncOperationHandle,
    CallError,
    Client,
    OperationFailed,
    OperationHandle,
    Polling,
    PollTimeout,
    Retry,
)
from lro_client.transports import (
    AsyncHttpTransport,
    AsyncLocalTransport,
    AsyncTransport,
    HttpTransport,
    LocalTransport,
    Transport,
)
from lro_client.waits import wait_exponential, wait_proportional
from tests.typing.messages import Keys, Model, ResizeMetadata, ResizeRequest, ResizeResponse, Struct

Handle = OperationHandle[ResizeResponse, ResizeMetadata]
AsyncHandle = AsyncOperationHandle[ResizeResponse, ResizeMetadata]


def starting(client: Client) -> None:
    """``start`` and ``operation`` return a handle with the classes that are passed."""
    started = client.start(
        "/v1/images:resize", ResizeRequest(), response=ResizeResponse, metadata=ResizeMetadata
    )
    assert_type(started, OperationHandle[ResizeResponse, ResizeMetadata])
    resumed = client.operation("operations/a", response=ResizeResponse, metadata=ResizeMetadata)
    assert_type(resumed, OperationHandle[ResizeResponse, ResizeMetadata])


def without_classes(client: Client) -> None:
    """Without a class, a response or metadata is a dict of JSON."""
    started = client.start("/v1/images:resize", {"source": "a"})
    assert_type(started, OperationHandle[dict[str, Any], dict[str, Any]])
    assert_type(started.result(), dict[str, Any])
    resumed = client.operation("operations/a")
    assert_type(resumed.metadata, dict[str, Any] | None)
    half = client.start("/v1/images:resize", {}, response=ResizeResponse)
    assert_type(half, OperationHandle[ResizeResponse, dict[str, Any]])
    assert_type(client.operation("operations/a", response=ResizeResponse).result(), ResizeResponse)


def with_a_class_of_metadata_only(client: Client) -> None:
    """With a class of metadata only, the response is a dict."""
    started = client.start("/v1/images:resize", {}, metadata=ResizeMetadata)
    assert_type(started, OperationHandle[dict[str, Any], ResizeMetadata])
    resumed = client.operation("operations/a", metadata=ResizeMetadata)
    assert_type(resumed.result(), dict[str, Any])
    assert_type(resumed.metadata, ResizeMetadata | None)


def with_classes_of_every_kind(client: Client) -> None:
    """A handle can have message classes of each supported library."""
    one = client.start("/v1/images:resize", Model(), response=Struct, metadata=Model)
    assert_type(one.result(), Struct)
    assert_type(one.metadata, Model | None)
    two = client.operation("operations/a", response=Keys, metadata=redis_v1.OperationMetadata)
    assert_type(two.result(), Keys)
    assert_type(two.metadata, redis_v1.OperationMetadata | None)


async def without_classes_async(client: AsyncClient) -> None:
    """Without a class, an async client's response or metadata is a dict."""
    started = await client.start("/v1/images:resize", {"source": "a"})
    assert_type(started, AsyncOperationHandle[dict[str, Any], dict[str, Any]])
    half = await client.start("/v1/images:resize", {}, response=ResizeResponse)
    assert_type(half, AsyncOperationHandle[ResizeResponse, dict[str, Any]])
    assert_type(client.operation("operations/a").metadata, dict[str, Any] | None)
    known = client.operation("operations/a", metadata=ResizeMetadata)
    assert_type(known, AsyncOperationHandle[dict[str, Any], ResizeMetadata])
    other = await client.start("/v1/images:resize", {}, metadata=ResizeMetadata)
    assert_type(other, AsyncOperationHandle[dict[str, Any], ResizeMetadata])


async def starting_async(client: AsyncClient) -> None:
    """An async client returns an async handle with the classes that are passed."""
    started = await client.start(
        "/v1/images:resize", ResizeRequest(), response=ResizeResponse, metadata=ResizeMetadata
    )
    assert_type(started, AsyncOperationHandle[ResizeResponse, ResizeMetadata])
    resumed = client.operation("operations/a", response=ResizeResponse, metadata=ResizeMetadata)
    assert_type(resumed, AsyncOperationHandle[ResizeResponse, ResizeMetadata])


def handles(handle: Handle) -> None:
    """A handle's result has the response class; its metadata may be None."""
    assert_type(handle.result(), ResizeResponse)
    assert_type(handle.result(timeout=60), ResizeResponse)
    assert_type(handle.metadata, ResizeMetadata | None)
    assert_type(handle.wait(), lro.Operation)
    assert_type(handle.refresh(), lro.Operation)
    assert_type(handle.done, bool)
    assert_type(handle.name, str)
    for update in handle.updates():
        assert_type(update.metadata, ResizeMetadata | None)
        assert_type(update.operation, lro.Operation)


async def handles_async(handle: AsyncHandle) -> None:
    """An async handle has the same types as a blocking handle, and can be awaited."""
    assert_type(await handle.result(), ResizeResponse)
    assert_type(await handle, ResizeResponse)
    assert_type(handle.metadata, ResizeMetadata | None)
    assert_type(await handle.wait(), lro.Operation)
    assert_type(await handle.refresh(), lro.Operation)
    async for update in handle.updates():
        assert_type(update.metadata, ResizeMetadata | None)


def metadata_may_be_missing(handle: Handle) -> None:
    """Using metadata without a check for None is an error."""
    _ = handle.metadata.percent  # type: ignore[union-attr]


def a_result_is_not_another_class(handle: Handle) -> None:
    """A result cannot be assigned to a variable of another class."""
    wrong: ResizeRequest = handle.result()  # type: ignore[assignment]
    del wrong


def verbs(client: Client) -> None:
    """The verbs of the client accept a name or a whole request message."""
    assert_type(client.get("operations/a"), lro.Operation)
    assert_type(client.get(lro.wire.GetOperationRequest("operations/a")), lro.Operation)
    assert_type(client.wait("operations/a", timeout=2.5), lro.Operation)
    assert_type(client.get("operations/a", view="FULL").description, lro.OperationDescription)
    assert_type(client.batch_get(["operations/a"]), BatchGetOperationsResponse)
    client.get("operations/a", view="full")  # type: ignore[arg-type]
    client.get(lro.wire.WaitOperationRequest())  # type: ignore[arg-type]
    for operation in client.list("projects/p", "done = true", page_size=5):
        assert_type(operation, lro.Operation)
    for page in client.list().pages():
        assert_type(page, lro.wire.ListOperationsResponse)


async def verbs_async(client: AsyncClient) -> None:
    """The verbs of the async client have the same types as the blocking verbs."""
    assert_type(await client.get("operations/a"), lro.Operation)
    assert_type(await client.wait("operations/a", timeout=2.5), lro.Operation)
    assert_type(await client.batch_get({"operations/a"}, view="FULL"), BatchGetOperationsResponse)
    async for operation in client.list("projects/p", "done = true", page_size=5):
        assert_type(operation, lro.Operation)
    async for page in client.list().pages():
        assert_type(page, lro.wire.ListOperationsResponse)


def contexts() -> None:
    """A client is a context manager that returns itself."""
    with Client("http://localhost:8000") as client:
        assert_type(client, Client)


async def fetched() -> str:
    """Return a token."""
    return "a1"


def credentials() -> None:
    """A token is a text or a function; only an async client accepts a coroutine function."""
    Client("http://localhost:8000", token="a1", headers={"x-team": "films"})
    Client("http://localhost:8000", token=lambda: "a1")
    Client("http://localhost:8000", token=fetched)  # type: ignore[arg-type]
    Client("http://localhost:8000", auth=("ann", "a1"))
    Client("http://localhost:8000", auth=httpx.BasicAuth("ann", "a1"))
    AsyncClient("http://localhost:8000", token=lambda: "a1")
    AsyncClient("http://localhost:8000", token=fetched)


def errors(failed: OperationFailed, call: CallError, timeout: PollTimeout) -> None:
    """The attributes of errors have types."""
    assert_type(failed.code, lro.Code)
    assert_type(failed.details(), tuple[object, ...])
    assert_type(call.http_status, int | None)
    assert_type(timeout.operation, lro.Operation | None)


def transports(service: lro.Service, http: HttpTransport, other: AsyncHttpTransport) -> None:
    """A blocking client needs a blocking transport, an async client an async one."""
    blocking: tuple[Transport, ...] = (LocalTransport(service), http)
    awaiting: tuple[AsyncTransport, ...] = (AsyncLocalTransport(service), other)
    Client(transport=blocking[0])
    AsyncClient(transport=awaiting[0])
    Client(transport=awaiting[0])  # type: ignore[arg-type]


def policies() -> None:
    """Waits of policies can be added. A wait may be any function of a retry state."""
    Polling(wait=wait_proportional() + wait_exponential(0.5))
    Polling(wait=lambda state: float(state.attempt_number))
    Retry(codes=frozenset({lro.Code.ABORTED}), wait=wait_exponential())
    Polling(wait=5)  # type: ignore[arg-type]


def misspelt() -> None:
    """A misspelt name is reported, although names are loaded lazily."""
    lro_client.PollTimeuot  # type: ignore[attr-defined]  # noqa: B018 - the name is the test
    lro.Servce  # type: ignore[attr-defined]  # noqa: B018 - the name is the test
