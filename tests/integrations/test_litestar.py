"""The integration into Litestar: handlers, guards, dependencies, errors, OpenAPI document."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Annotated, Any, TypeAlias, TypeVar

import pytest

pytest.importorskip("litestar")

from litestar import Litestar, Request, get, post
from litestar.exceptions import HTTPException, InternalServerException, PermissionDeniedException
from litestar.testing import TestClient

try:
    from litestar.di import NamedDependency
except ImportError:  # older versions inject dependencies by name alone
    NamedDependency = Annotated[TypeVar("T"), "by its name"]  # type: ignore[assignment,misc]

import lro
from lro.integrations.litestar import LitestarOperations, Operation, OperationsPlugin
from tests.integrations.checks import *  # noqa: F403
from tests.integrations.counting import (
    ANN,
    BOB,
    CHALLENGE,
    CONSOLE,
    OPTIONS,
    START,
    Counting,
    CountMetadata,
    CountRequest,
    CountResponse,
    name_of,
    reason,
    refused,
    served_by,
)

pytestmark = pytest.mark.filterwarnings(
    "ignore:.*(deprecated inferred style|without a body marker)"
)


def find_caller(request: Request[Any, Any, Any]) -> str:
    """Return the caller of a request."""
    if status := refused(request.headers):
        challenge = CHALLENGE if status == 401 else None
        raise HTTPException("not you", status_code=status, headers=challenge)
    return name_of(request.headers.get("authorization"))


async def find_caller_awaited(request: Request[Any, Any, Any]) -> str:
    """Return the caller of a request after reading its body, as a signature check would."""
    with contextlib.suppress(InternalServerException):  # the client has disconnected
        await request.body()
    return find_caller(request)


def plain(counting: Counting) -> Litestar:
    """Make an application whose ``caller`` is a plain function."""

    @post("/v1/shelves/{shelf:str}/things:count", status_code=200)
    async def start(
        shelf: str, operations: NamedDependency[LitestarOperations]
    ) -> Operation[CountResponse, CountMetadata]:
        assert (shelf, bool(operations.caller)) == ("a", True)
        return await operations.start(counting.count)

    plugin = OperationsPlugin(counting.service, starts=True, caller=find_caller, **OPTIONS)
    return Litestar([start], plugins=[plugin], logging_config=None)


def prefixed(counting: Counting) -> Litestar:
    """Make an application with a prefix, whose ``caller`` is a coroutine function."""

    @post("/v1/shelves/a/things:count", status_code=200)
    async def start(
        operations: NamedDependency[LitestarOperations],
    ) -> Operation[CountResponse, CountMetadata]:
        return await operations.start(counting.count)

    options = {"caller": find_caller_awaited, "prefix": "/api/b", **OPTIONS}
    plugin = OperationsPlugin(counting.service, starts=counting.starts, **options)
    return Litestar([start], plugins=[plugin], logging_config=None)


def unnamed(counting: Counting) -> Litestar:
    """Make an application with a console and no ``caller``."""
    plugin = OperationsPlugin(counting.service, console=CONSOLE)
    return Litestar(plugins=[plugin], logging_config=None)


served = served_by(plain=(plain, {"unnamed": unnamed}), prefixed=(prefixed, {"prefix": "/api/b"}))


def guarded(counting: Counting) -> Litestar:
    """Make an application with a guard, and a handler whose request body Litestar parses."""

    odd = {"none": None, "number": 7.5}

    def caller(request: Request[Any, Any, Any]) -> Any:
        token = request.headers.get("authorization", "")
        return odd[token] if token in odd else name_of(token)

    def guard(connection: Any, _: Any) -> None:
        if connection.headers.get("x-bad"):
            raise PermissionDeniedException("not you")

    plugin = OperationsPlugin(
        counting.service, starts=True, caller=caller, guards=[guard], parents=["projects/*"]
    )

    @post("/v1/read:count", status_code=200, exception_handlers=plugin.exception_handlers)
    async def start(
        data: CountRequest, operations: NamedDependency[LitestarOperations]
    ) -> Operation[CountResponse, CountMetadata]:
        return await operations.start(
            counting.count, data, parent="projects/p", metadata=CountMetadata(percent=1)
        )

    @get("/number")
    async def number(n: int) -> int:
        return n

    return Litestar([start, number], plugins=[plugin], logging_config=None)


Client: TypeAlias = TestClient[Litestar]


@pytest.fixture
def client(counting: Counting) -> Iterator[Client]:
    """A client for the application ``guarded``."""
    with TestClient(guarded(counting)) as found:
        found.headers.update(ANN)
        yield found


def test_body_that_litestar_reads_starts_an_operation(client: Client) -> None:
    """Litestar decodes the body into the method's request class, and the operation succeeds."""
    name = client.post("/v1/read:count", json={"steps": 3}).json()["name"]
    assert name.startswith("projects/p/operations/")
    assert client.post(f"/v1/{name}:wait").json()["response"]["total"] == 3


def test_validation_error_of_litestar_has_our_format(client: Client) -> None:
    """A refused start gets our format and names the field; other errors keep Litestar's format."""
    reply = client.post("/v1/read:count", json={"steps": "x"})
    assert reason(reply, 400) == "INVALID_ARGUMENT"
    assert reply.json()["error"]["details"][1]["fieldViolations"][0]["field"] == "steps"
    bad = client.post("/v1/read:count", content=b"{", headers={"content-type": "application/json"})
    assert reason(bad, 400) == "INVALID_ARGUMENT"
    assert "extra" in client.get("/number?n=x").json()


def test_refusals_of_guards_and_callers_have_our_form(client: Client) -> None:
    """A guard's error gets our format. If ``caller`` returns a float, the reply is INTERNAL."""
    bad = client.get("/v1/operations/x", headers={"x-bad": "1"})
    assert reason(bad, 403) == "PERMISSION_DENIED"
    number = client.get("/v1/operations/x", headers={"authorization": "number"})
    assert reason(number, 500) == "INTERNAL"
    unnamed = client.get("/v1/operations", headers={"authorization": "none"})
    assert (unnamed.status_code, unnamed.json()) == (200, {})


def test_document_has_the_operations_and_the_types_of_starts(client: Client) -> None:
    """The OpenAPI document has one POST for Cancel and Wait, which Litestar routes as one."""
    document = client.get("/schema/openapi.json").json()
    paths = document["paths"]
    assert {START, "/v1/operations", "/v1/operations:batchGet", "/v1/read:count"} <= set(paths)
    one = paths["/v1/operations/{operation}"]
    assert set(one) == {"get", "post", "delete"}
    assert "CancelOperation or WaitOperation" in one["post"]["summary"]
    assert "OperationBody" in str(one["get"]["responses"]["200"])
    schema = paths[START]["post"]["responses"]["200"]["content"]["application/json"]["schema"]
    name = schema["$ref"].rpartition("/")[2]
    assert "CountResponse" in str(document["components"]["schemas"][name])


def test_service_closes_before_what_the_application_closes(shared: Counting) -> None:
    """The service is already closed when the application's own lifespan cleans up."""
    import contextlib

    closed = []

    @contextlib.asynccontextmanager
    async def mine(app: Litestar) -> Any:
        yield
        with pytest.raises(lro.errors.Unavailable):
            shared.count.start(CountRequest())
        closed.append(app)

    plugin = OperationsPlugin(shared.service, starts=True)
    app = Litestar(lifespan=[mine], plugins=[plugin], logging_config=None)
    with TestClient(app) as client:
        name = client.post(START, json={"steps": 2}).json()["name"]
        assert client.get(f"/v1/{name}", headers=BOB).status_code == 200
    assert closed == [app]
