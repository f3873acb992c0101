"""The integration into FastAPI: routes, dependencies, errors, ``/docs``, start and stop."""

import contextlib
import dataclasses
import enum
import sqlite3
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Annotated, Any

import httpx
import pytest

pytest.importorskip("fastapi")

from fastapi import Depends, FastAPI, Header, HTTPException, Request
from fastapi.security import OAuth2PasswordBearer
from fastapi.testclient import TestClient
from pydantic import BaseModel, ConfigDict
from starlette.requests import ClientDisconnect

import lro
from lro.executors.inline import InlineExecutor
from lro.executors.threads import ThreadExecutor
from lro.integrations.fastapi import FastAPIOperations, Operation, RequestOperations
from lro.stores.memory import MemoryStore
from lro.stores.sqlite import SQLiteStore
from tests.http.servers import uvicorn_serving
from tests.integrations.checks import *  # noqa: F403
from tests.integrations.counting import (
    ANN,
    BOX,
    CHALLENGE,
    CONSOLE,
    PARENTS,
    START,
    Counting,
    CountMetadata,
    CountRequest,
    CountResponse,
    build,
    name_of,
    reason,
    refused,
    served_by,
)


def found_caller(request: Request, authorization: str | None) -> str:
    """Return the caller that the request's token names."""
    if status := refused(request.headers):
        raise HTTPException(status, "not you", CHALLENGE if status == 401 else None)
    return name_of(authorization)


def by_header(counting: Counting) -> FastAPI:
    """Make an app with a plain dependency and an endpoint without a body parameter."""

    def caller(request: Request, authorization: Annotated[str | None, Header()] = None) -> str:
        return found_caller(request, authorization)

    operations = FastAPIOperations(counting.service, caller=caller, **PARENTS)
    router = operations.router(starts=True, console=CONSOLE)

    Here = Annotated[RequestOperations, Depends(operations)]

    @router.post("/v1/shelves/{shelf}/things:count")
    async def start(shelf: str, here: Here) -> Operation[CountResponse, CountMetadata]:
        assert shelf == "a"
        return await here.start(counting.count)

    app = FastAPI()
    app.include_router(router)
    return app


def by_user(counting: Counting) -> FastAPI:
    """Make an app with a ``yield`` dependency, a prefix and an endpoint beside the router."""

    async def user(request: Request) -> AsyncIterator[str]:
        with contextlib.suppress(ClientDisconnect):
            await request.body()  # as a dependency that checks signatures does
        yield found_caller(request, request.headers.get("authorization"))

    async def caller(user: Annotated[str, Depends(user)]) -> str:
        return user

    operations = FastAPIOperations(counting.service, caller=caller, **PARENTS)
    app = FastAPI()
    app.add_exception_handler(lro.LroError, operations.refuse)
    router = operations.router(starts=counting.starts, console=CONSOLE)
    app.include_router(router, prefix="/api/{tenant}")

    @app.post("/v1/shelves/a/things:count")
    async def start(here: Annotated[RequestOperations, Depends(operations)]) -> Any:
        return await here.start(counting.count)

    return app


def unnamed(counting: Counting) -> FastAPI:
    """Make an application with a console and no ``caller``."""
    app = FastAPI()
    app.include_router(FastAPIOperations(counting.service).router(console=CONSOLE))
    return app


served = served_by(
    header=(by_header, {"unnamed": unnamed}), user=(by_user, {"prefix": "/api/ü%20b"})
)


class CountBody(BaseModel):
    """A request body that FastAPI parses."""

    model_config = ConfigDict(extra="forbid")
    steps: int
    requestId: str = ""


oauth2 = OAuth2PasswordBearer("token")


def with_models(counting: Counting) -> FastAPI:
    """Make an app with endpoints on the router and beside it; FastAPI parses some bodies."""

    async def caller(token: Annotated[str, Depends(oauth2)]) -> str | None:
        if token == "none":
            return None
        if token == "teapot":
            raise HTTPException(418, "short and stout", {"x-pot": "tea"})
        if token == "away":
            raise HTTPException(303, headers={"location": "/"})
        return name_of(f"Bearer {token}") if token != "float" else 7.5  # type: ignore[return-value]

    operations = FastAPIOperations(counting.service, caller=caller, parents=["projects/*"])
    Here = Annotated[RequestOperations, Depends(operations)]
    router = operations.router(starts=True, tags=["work"])
    other_counting = build()
    other_counting.service.close()
    app = FastAPI()

    @router.post("/v1/read:count")
    async def start(body: CountBody, here: Here, n: int = 0) -> Operation[CountBody, CountMetadata]:
        where = {"parent": "projects/p", "target": "things/a"}
        request, metadata = CountRequest(body.steps), CountMetadata(percent=1)
        started = await here.start(counting.count, request, **where, metadata=metadata)
        assert started.name == started.operation.name
        return started  # type: ignore[return-value]

    @router.post("/v1/form:count")
    async def start_form(request: Request, here: Here) -> Operation[CountResponse, CountMetadata]:
        await request.body()
        return await here.start(counting.count, CountRequest(1))

    @router.post("/v1/other:count")
    async def other(here: Here) -> Operation[CountResponse, CountMetadata]:
        return await here.start(other_counting.count)

    @app.post("/beside")
    async def beside(here: Here) -> Any:
        return await here.start(counting.count)

    @app.get("/number")
    def number(n: int) -> int:
        return n

    app.include_router(router)
    return app


@pytest.fixture
def client(counting: Counting) -> TestClient:
    """A client for the application ``with_models``, without its lifespan."""
    return TestClient(with_models(counting), headers=ANN, raise_server_exceptions=False)


def violations(reply: Any) -> list[str]:
    """Return the fields that an error reply names as invalid."""
    (found,) = [one for one in reply.json()["error"]["details"] if "fieldViolations" in one]
    return [one["field"] for one in found["fieldViolations"]]


def test_body_that_fastapi_reads_starts_an_operation(client: TestClient) -> None:
    """A start gets message, parent and metadata from the endpoint, the request ID from the body."""
    body = {"steps": 3, "requestId": "6f1c3b62-3c5e-4a53-9c1f-2b7f9a4d1e01"}
    first, again = (client.post("/v1/read:count", json=body).json() for _ in "ab")
    assert first["name"].startswith("projects/p/operations/")
    assert first["name"] == again["name"]
    assert client.post(f"/v1/{first['name']}:wait").json()["response"]["total"] == 3


def test_validation_error_of_fastapi_has_our_format(client: TestClient) -> None:
    """If FastAPI refuses a request, the reply has our format and names every invalid field."""
    reply = client.post("/v1/read:count?n=x", json={"steps": "x", "colour": 1})
    assert reason(reply, 400) == "INVALID_ARGUMENT"
    assert sorted(violations(reply)) == ["colour", "n", "steps"]
    bad = client.post("/v1/read:count", content=b"{", headers={"content-type": "application/json"})
    assert reason(bad, 400) == "MALFORMED_REQUEST"
    text = client.post("/v1/read:count", content=b"{}", headers={"content-type": "text/plain"})
    assert reason(text, 415) == "UNSUPPORTED_MEDIA_TYPE"
    assert violations(client.post("/v1/read:count")) == ["body"]
    assert violations(client.post("/v1/read:count?n=x", json={"steps": 1})) == ["n"]
    assert client.get("/number?n=x").status_code == 422  # FastAPI's own format


def test_own_fields_of_a_body_that_is_not_an_object_are_ignored(client: TestClient) -> None:
    """If the endpoint passes a message to ``start``, the body need not be a JSON object."""
    for content, kind in [(b"[1]", "application/json"), (b"a=1", "text/plain"), (b"", "")]:
        headers = {"content-type": kind} if kind else {}
        reply = client.post("/v1/form:count", content=content, headers=headers)
        assert reply.status_code == 200, reply.text


def test_unknown_method_is_a_fault_of_the_server(client: TestClient) -> None:
    """An endpoint that starts another service's method answers INTERNAL."""
    assert reason(client.post("/v1/other:count", json={}), 500) == "INTERNAL"


def test_start_in_a_plain_endpoint_says_that_it_must_be_async(
    counting: Counting, caplog: pytest.LogCaptureFixture
) -> None:
    """A ``def`` endpoint cannot await a start: the log names the cure, and nothing is started."""
    operations = FastAPIOperations(counting.service, caller=lambda: "ann")
    app, router = FastAPI(), operations.router()

    @router.post("/plain")
    def plain(here: Annotated[RequestOperations, Depends(operations)]) -> Any:
        return here.start(counting.count, CountRequest(1))

    app.include_router(router)
    reply = TestClient(app).post("/plain", json={})
    assert reason(reply, 500) == "INTERNAL"
    assert "the endpoint at /plain must be declared with `async def`" in caplog.text
    assert counting.service.list(lro.wire.ListOperationsRequest(), caller="ann").operations == ()


def test_endpoint_whose_errors_would_not_reach_callers_is_refused(counting: Counting) -> None:
    """An endpoint beside the router fails at its first call if the exception handler is missing."""
    client = TestClient(with_models(counting), headers=ANN)
    with pytest.raises(lro.DeclarationError, match=r"add_exception_handler\(lro.LroError"):
        client.post("/beside", json={"steps": 1})


@pytest.mark.parametrize(
    ("token", "status", "found"),
    [
        ("", 401, "UNAUTHENTICATED"),
        ("Bearer teapot", 400, "FAILED_PRECONDITION"),
        ("Bearer float", 500, "INTERNAL"),
    ],
)
def test_refusals_of_a_dependency_have_our_form(
    client: TestClient, token: str, status: int, found: str
) -> None:
    for path in ("/v1/operations/x", "/v1/operations"):
        reply = client.get(path, headers={"authorization": token})
        assert reason(reply, status) == found
        if status == 401:
            assert reply.headers["www-authenticate"] == "Bearer"
        if "teapot" in token:
            assert reply.headers["x-pot"] == "tea"


def test_dependency_may_redirect_or_return_no_name(client: TestClient) -> None:
    """A redirect by the dependency is sent unchanged; None means a caller without a name."""
    client.follow_redirects = False
    away, unnamed = (
        client.get("/v1/operations", headers={"authorization": f"Bearer {name}"})
        for name in ("away", "none")
    )
    assert (away.status_code, away.headers["location"]) == (303, "/")
    assert (unnamed.status_code, unnamed.json()) == (200, {})


def test_owner_only_service_without_caller_is_refused(counting: Counting) -> None:
    """If ``caller`` is missing for an owner-only service, a DeclarationError names the option."""
    with pytest.raises(lro.DeclarationError, match="caller: is needed"):
        FastAPIOperations(counting.service)


def test_dependency_that_gives_a_user_is_refused_at_once(counting: Counting) -> None:
    """A caller that is annotated with a model is refused by name; a number is a name."""

    def user() -> CountBody:
        return CountBody(steps=1)

    with pytest.raises(lro.DeclarationError, match=r"^caller: must return a text, a whole number"):
        FastAPIOperations(counting.service, caller=user)

    def user_id(user: Annotated[CountBody, Depends(user)]) -> int:
        return user.steps

    app = FastAPI()
    operations = FastAPIOperations(counting.service, caller=user_id)
    app.include_router(operations.router(starts=True))
    with TestClient(app) as client:
        name = client.post(START, json={"steps": 1}).json()["name"]
        assert counting.service.store.get(name).caller == "1"


def references(part: Any) -> Iterator[str]:
    """Yield the schemas that a part of an OpenAPI document refers to."""
    if isinstance(part, dict):
        if isinstance(part.get("$ref"), str):
            yield part["$ref"].removeprefix("#/components/schemas/")
        part = list(part.values())
    if isinstance(part, list):
        for one in part:
            yield from references(one)


def checked(app: FastAPI) -> dict[str, Any]:
    """Return the application's OpenAPI document; check that it is valid and its references resolve.

    A duplicate operation ID fails too: FastAPI warns of it, and warnings are errors in tests.
    """
    document: dict[str, Any] = TestClient(app).get("/openapi.json").json()
    pytest.importorskip("openapi_spec_validator").validate(document)
    assert set(references(document)) <= set(document["components"]["schemas"])
    ids = {call["operationId"] for calls in document["paths"].values() for call in calls.values()}
    for calls in document["paths"].values():
        for call in calls.values():
            links = call["responses"].get("200", {}).get("links", {})
            assert {link["operationId"] for link in links.values()} <= ids
    return document


def schema_of(document: dict[str, Any], part: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of the JSON content of a request body or reply."""
    (reference,) = references(part["content"]["application/json"])
    found: dict[str, Any] = document["components"]["schemas"][reference]
    return found


def test_document_has_every_route_and_the_messages_of_starts(counting: Counting) -> None:
    """The OpenAPI document has the verbs, and the starts with types, links and security scheme."""
    app = with_models(counting)
    document = checked(app)
    paths = document["paths"]
    assert {"/number", "/v1/read:count", START, "/v1/operations"} <= set(paths)
    assert "/v1/projects/{project}/operations/{operation}:wait" in paths
    get, start = paths["/v1/operations/{operation}"]["get"], paths[START]["post"]
    assert get["security"] == start["security"] == [{"OAuth2PasswordBearer": []}]
    assert [one["name"] for one in get["parameters"]] == ["operation", "view"]
    assert get["tags"] == ["work"]
    reply = paths["/v1/read:count"]["post"]["responses"]
    assert "422" not in reply
    assert "lro__CountBody" in str(schema_of(document, reply["200"])["properties"]["response"])
    assert "steps" in document["components"]["schemas"]["lro__CountBody"]["properties"]
    assert list(references(reply["default"])) == ["lro__Error"]
    asked = schema_of(document, start["requestBody"])
    assert asked["description"] == "A request to count some steps."
    assert set(asked["properties"]) == {"steps", "label", "requestId", "validateOnly"}
    at_box = paths[BOX]["post"]
    assert [one["name"] for one in at_box["parameters"]] == ["label", "Idempotency-Key", "Prefer"]
    assert "label" not in schema_of(document, at_box["requestBody"])["properties"]
    for call in (start, paths["/v1/form:count"]["post"]):
        assert "Prefer" in [one["name"] for one in call["parameters"]]
        reply = call["responses"]["200"]
        headers = {"Operation-Id", "Retry-After", "Preference-Applied"}
        assert set(reply["headers"]) == headers
        assert set(call["responses"]["202"]["headers"]) == headers | {"Location"}
        assert set(reply["links"]) == {"get", "cancel", "wait", "delete"}
        types = ["acme__v1__CountResponse", "acme__v1__CountMetadata"]
        fields = schema_of(document, reply)["properties"]
        for name, kind in zip(("response", "metadata"), types, strict=True):
            assert kind in references(fields[name])
        assert list(references(call["x-aep-long-running-operation"])) == types
    assert TestClient(app).get("/docs").status_code == 200


class Page(BaseModel):
    """A page."""

    page_count: int = 0
    next_page: "Page | None" = None


@dataclasses.dataclass
class Book:
    """A book."""

    pages: list[Page] = dataclasses.field(default_factory=list)


class Error(BaseModel):
    """The application's own ``Error``."""

    why: str = ""


@pytest.fixture
def service() -> Iterator[lro.Service]:
    """A service without methods."""
    with lro.Service(MemoryStore(), InlineExecutor()) as made:
        yield made


def test_document_shows_messages_of_every_kind(service: lro.Service) -> None:
    """The OpenAPI document has schemas of (recursive) Pydantic models, dataclasses and protobuf."""
    protobuf = pytest.importorskip("google.rpc.error_details_pb2")

    @service.method("acme.v1.Books.Print", path="/v1/books:print")
    def print_book(request: Book) -> Page:
        return Page(page_count=len(request.pages))

    @service.method("acme.v1.Books.Help", path="/v1/books:help")
    def help_reader(request: protobuf.Help) -> None:
        """Help a reader.

        At length.
        """

    router = FastAPIOperations(service).router(starts=True)
    app = FastAPI()

    @router.post("/v1/pages:print", openapi_extra={"x-own": 1, "responses": {"200": {"x-a": 2}}})
    async def own(page: Page) -> Operation[Page, Error]:
        raise NotImplementedError

    @app.post("/v1/beside:print")
    async def beside(error: Error) -> Operation[Page, Any]:
        raise NotImplementedError

    app.include_router(router)
    document = checked(app)
    paths, schemas = document["paths"], document["components"]["schemas"]
    book = schema_of(document, paths["/v1/books:print"]["post"]["requestBody"])
    assert list(references(book["properties"]["pages"])) == ["acme__v1__Page__Input"]
    page = schemas["acme__v1__Page__Input"]["properties"]
    assert list(references(page["nextPage"])) == ["acme__v1__Page__Input"]
    assert schemas["acme__v1__Page"]["properties"]["pageCount"]["type"] == "integer"
    help_call = paths["/v1/books:help"]["post"]
    assert (help_call["summary"], help_call["description"]) == ("Help a reader.", "At length.")
    assert "links" in schema_of(document, help_call["requestBody"])["properties"]
    own_call = paths["/v1/pages:print"]["post"]
    assert own_call["x-own"] == 1
    assert {"content", "headers", "links", "x-a"} < set(own_call["responses"]["200"])
    assert "page_count" in schema_of(document, own_call["requestBody"])["properties"]
    beside_call = paths["/v1/beside:print"]["post"]
    reply = schema_of(document, beside_call["responses"]["200"])
    assert "lro__Page" in references(reply["properties"]["response"])
    assert "why" in schema_of(document, beside_call["requestBody"])["properties"]
    assert "error" in schemas["lro__Error"]["properties"]


class Tag(enum.Enum):
    """A tag."""

    BOX = "box"


def test_routers_of_one_application_have_distinct_operation_ids(counting: Counting) -> None:
    """A router's operation IDs begin with its first tag, and get a number if they are taken."""
    operations = FastAPIOperations(counting.service, caller=lambda: "ann")
    app = FastAPI()
    app.include_router(operations.router(starts={"/v1/a:count": counting.box}), prefix="/a")
    app.include_router(operations.router(starts=True, tags=[], prefix="/b"), prefix="/c")
    app.include_router(operations.router(tags=[Tag.BOX, "more"]), prefix="/d", tags=["all"])
    paths = checked(app)["paths"]
    found = {
        path: call["operationId"]
        for path, calls in paths.items()
        for method, call in calls.items()
        if path.endswith("/operations/{operation}") and method == "get"
    }
    assert found == {
        "/a/v1/operations/{operation}": "Operations_Get",
        "/c/b/v1/operations/{operation}": "Operations_Get_2",
        "/d/v1/operations/{operation}": "box_Get",
    }
    assert paths["/d/v1/operations"]["get"]["tags"] == ["all", "box", "more"]
    box, start = (paths[path]["post"] for path in ("/a/v1/a:count", f"/c/b{BOX}"))
    assert [*references(box["requestBody"])] != [*references(start["requestBody"])]
    assert start["responses"]["200"]["links"]["get"]["operationId"] == "Operations_Get_2"


def test_document_has_only_verbs_of_the_service() -> None:
    service = lro.Service(MemoryStore(), InlineExecutor(), verbs=["GetOperation"])
    app = FastAPI()
    app.include_router(FastAPIOperations(service).router())
    (calls,) = checked(app)["paths"].values()
    assert list(calls) == ["get"]
    assert TestClient(app).post("/v1/operations/a:wait").status_code == 501
    service.close()


def turn(request: Page) -> Page:
    """Add a page."""
    return Page(page_count=request.page_count + 1)


def test_request_class_may_be_the_body_that_fastapi_reads(service: lro.Service) -> None:
    """If a request class is an endpoint's body, FastAPI parses it; the request ID is honoured."""
    method = service.method("acme.v1.Books.Turn", path="/v1/pages:turn")(turn)
    operations = FastAPIOperations(service)
    router = operations.router(starts=True)
    Here = Annotated[RequestOperations, Depends(operations)]

    @router.post("/v1/own:turn")
    async def own(page: Page, here: Here) -> Operation[Page, lro.OperationMetadata]:
        return await here.start(method, page)

    app = FastAPI()
    app.include_router(router)
    document, client = checked(app), TestClient(app)
    replies = [
        document["paths"][f"/v1/{one}:turn"]["post"]["responses"]["200"] for one in ("own", "pages")
    ]
    assert schema_of(document, replies[0]) is schema_of(document, replies[1])
    body = {"page_count": 1, "requestId": "6f1c3b62-3c5e-4a53-9c1f-2b7f9a4d1e01"}
    first, again = (client.post("/v1/own:turn", json=body).json() for _ in "ab")
    assert first["name"] == again["name"]
    assert client.get(f"/v1/{first['name']}").json()["response"]["pageCount"] == 2
    ours = client.post("/v1/pages:turn", json={"pageCount": 1}).json()
    assert client.get(f"/v1/{ours['name']}").json()["response"]["pageCount"] == 2


def test_start_within_a_transaction_is_there_once_it_commits(tmp_path: Path) -> None:
    """A start in a transaction leaves no operation after a rollback, and runs after a commit."""
    file = tmp_path / "shop.db"
    service = lro.Service(SQLiteStore(file), ThreadExecutor())
    method = service.method("acme.v1.Books.Turn")(turn)
    operations = FastAPIOperations(service)
    router = operations.router()
    Here = Annotated[RequestOperations, Depends(operations)]

    @router.post("/v1/own:turn")
    async def own(here: Here, commit: bool) -> Operation[Page, lro.OperationMetadata]:
        with contextlib.closing(sqlite3.connect(file)) as db:
            db.execute("BEGIN")
            started = await here.start(method, Page(page_count=1), within=db)
            db.commit() if commit else db.rollback()
        return started

    app = FastAPI()
    app.include_router(router)
    with TestClient(app) as client:
        lost, kept = (
            client.post("/v1/own:turn", params={"commit": commit}).json()["name"]
            for commit in (False, True)
        )
        done = client.post(f"/v1/{kept}:wait", json={"timeout": "60s"}).json()
        assert done["response"]["pageCount"] == 2
        assert client.get(f"/v1/{lost}").status_code == 404


class Batch(BaseModel):
    rows: int
    sizes: list[int] = []
    limit: int | None = None


class Tally(BaseModel):
    total: int
    by_name: dict[str, int] = {}
    digits: lro.types.Int64 = 0


def test_int_of_a_model_is_a_number_in_replies_and_in_the_document() -> None:
    """Over HTTP, an int up to 53 bits is a number, and a repeated start may give it as text."""
    service = lro.Service(MemoryStore(), ThreadExecutor())

    @service.method("acme.v1.Batches.Sum", path="/v1/batches:sum")
    def add_up(batch: Batch) -> Tally:
        total = batch.rows + sum(batch.sizes)
        return Tally(total=total, by_name={"rows": batch.rows}, digits=total)

    app = FastAPI()
    app.include_router(FastAPIOperations(service).router(starts=True))
    with uvicorn_serving(app) as port, httpx.Client(base_url=f"http://127.0.0.1:{port}") as client:

        def start(rows: Any, number: int, status: int = 200) -> Any:
            body = {"rows": rows, "requestId": f"00000000-0000-4000-8000-{number:012}"}
            reply = client.post("/v1/batches:sum", json=body)
            assert reply.status_code == status, reply.text
            return reply.json()

        def response(rows: Any, number: int) -> Any:
            name = start(rows, number)["name"]
            found = client.post(f"/v1/{name}:wait", json={"timeout": "60s"}).json()["response"]
            return {key: value for key, value in found.items() if key != "@type"}

        assert response(3, 1) == {"total": 3, "byName": {"rows": 3}, "digits": "3"}
        large = str(2**53)
        assert response(large, 2) == {"total": large, "byName": {"rows": large}, "digits": large}
        assert start(3, 1)["name"] == start("3", 1)["name"] == start(3.0, 1)["name"]
        assert "was used before with another request" in start("4", 1, 400)["error"]["message"]
        assert "rows: must be an int64, got 1.5" in start(1.5, 3, 400)["error"]["message"]
        schemas = client.get("/openapi.json").json()["components"]["schemas"]
    text = {"type": "string", "format": "int64", "pattern": "^-?[0-9]+$"}
    number, names = {"type": "integer", "format": "int64"}, {"type": "object"}
    shown = schemas["acme__v1__Tally"]["properties"]  # FastAPI writes names so
    assert shown["digits"] == text
    assert number.items() <= shown["total"].items()
    assert "decimal digits in a string" in shown["total"]["description"]
    assert shown["byName"] == {**names, "additionalProperties": shown["total"]}
    read = schemas["acme__v1__Batch__Start"]["properties"]
    assert read["rows"]["anyOf"] == [{"type": "integer"}, {"type": "string"}]
    assert read["limit"]["anyOf"] == [{"type": one} for one in ("integer", "string", "null")]
