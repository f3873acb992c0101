"""The integration into FastAPI: routes, dependencies, errors, ``/docs``, start and stop."""

from collections.abc import AsyncIterator, Iterator
from typing import Annotated, Any

import pytest

pytest.importorskip("fastapi")

from fastapi import Depends, FastAPI, Header, HTTPException, Request
from fastapi.security import OAuth2PasswordBearer
from fastapi.testclient import TestClient
from pydantic import BaseModel, ConfigDict

import lro
from lro.integrations.fastapi import Operation, Operations, RequestOperations
from tests.integrations.checks import *  # noqa: F403
from tests.integrations.counting import (
    ANN,
    BOB,
    OPTIONS,
    START,
    Counting,
    CountMetadata,
    CountRequest,
    CountResponse,
    Served,
    build,
    name_of,
    serving,
)


def by_header(counting: Counting) -> FastAPI:
    """A plain dependency; the endpoint leaves the body to the library."""

    def caller(authorization: Annotated[str | None, Header()] = None) -> str:
        return name_of(authorization)

    operations = Operations(counting.service, caller=caller, **OPTIONS)
    router = operations.router(starts=True)

    @router.post("/v1/shelves/{shelf}/things:count")
    async def start(
        shelf: str, here: Annotated[RequestOperations, Depends(operations)]
    ) -> Operation[CountResponse, CountMetadata]:
        assert shelf == "a"
        return await here.start(counting.count)

    app = FastAPI()
    app.include_router(router)
    return app


def by_user(counting: Counting) -> FastAPI:
    """A dependency with ``yield``, below a prefix; an endpoint on the application."""

    async def user(request: Request) -> AsyncIterator[str]:
        yield name_of(request.headers.get("authorization"))

    async def caller(user: Annotated[str, Depends(user)]) -> str:
        return user

    operations = Operations(counting.service, caller=caller, **OPTIONS)
    app = FastAPI()
    app.add_exception_handler(lro.LroError, operations.refuse)
    app.include_router(operations.router(starts=counting.starts), prefix="/api/{tenant}")

    @app.post("/v1/shelves/a/things:count")
    async def start(here: Annotated[RequestOperations, Depends(operations)]) -> Any:
        return await here.start(counting.count)

    return app


@pytest.fixture(params=["header", "user"], scope="module")
def served(request: pytest.FixtureRequest) -> Iterator[Served]:
    """An application behind uvicorn."""
    if request.param == "header":
        with serving(by_header) as found:
            yield found
    else:
        with serving(by_user, prefix="/api/ü%20b") as found:
            yield found


class CountBody(BaseModel):
    """A body that FastAPI reads."""

    model_config = ConfigDict(extra="forbid")
    steps: int
    requestId: str = ""


oauth2 = OAuth2PasswordBearer("token")


def with_models(counting: Counting) -> FastAPI:
    """Endpoints whose bodies FastAPI reads, on the router and beside it."""

    async def caller(token: Annotated[str, Depends(oauth2)]) -> str | None:
        if token == "none":
            return None
        if token == "teapot":
            raise HTTPException(418, "short and stout", {"x-pot": "tea"})
        if token == "away":
            raise HTTPException(303, headers={"location": "/"})
        return name_of(f"Bearer {token}") if token != "number" else 7  # type: ignore[return-value]

    operations = Operations(counting.service, caller=caller, parents=["projects/*"])
    router = operations.router(starts=True, tags=["work"])
    other_counting = build()
    other_counting.service.close()
    app = FastAPI()

    @router.post("/v1/read:count")
    async def start(
        body: CountBody, here: Annotated[RequestOperations, Depends(operations)], n: int = 0
    ) -> Operation[CountBody, CountMetadata]:
        started = await here.start(
            counting.count,
            CountRequest(body.steps),
            parent="projects/p",
            target="things/a",
            metadata=CountMetadata(percent=1),
        )
        assert started.name == started.operation.name
        return started  # type: ignore[return-value]

    @router.post("/v1/form:count")
    async def start_form(
        request: Request, here: Annotated[RequestOperations, Depends(operations)]
    ) -> Operation[CountResponse, CountMetadata]:
        await request.body()
        return await here.start(counting.count, CountRequest(1))

    @router.post("/v1/other:count")
    async def other(
        here: Annotated[RequestOperations, Depends(operations)],
    ) -> Operation[CountResponse, CountMetadata]:
        return await here.start(other_counting.count)

    @app.post("/beside")
    async def beside(here: Annotated[RequestOperations, Depends(operations)]) -> Any:
        return await here.start(counting.count)

    @app.get("/number")
    def number(n: int) -> int:
        return n

    app.include_router(router)
    return app


@pytest.fixture
def counting() -> Iterator[Counting]:
    """A service."""
    found = build()
    yield found
    found.service.close()


@pytest.fixture
def client(counting: Counting) -> TestClient:
    """The application with models, without its lifespan."""
    return TestClient(with_models(counting), headers=ANN, raise_server_exceptions=False)


def reason(reply: Any, status: int) -> str:
    """The reason of an error of ours."""
    assert reply.status_code == status, reply.text
    return str(reply.json()["error"]["details"][0]["reason"])


def violations(reply: Any) -> list[str]:
    """The fields that an error of ours names."""
    (found,) = [one for one in reply.json()["error"]["details"] if "fieldViolations" in one]
    return [one["field"] for one in found["fieldViolations"]]


def test_body_that_fastapi_reads_starts_an_operation(client: TestClient) -> None:
    """Parent, target and first metadata are the endpoint's, the request id is the body's."""
    body = {"steps": 3, "requestId": "6f1c3b62-3c5e-4a53-9c1f-2b7f9a4d1e01"}
    first, again = (client.post("/v1/read:count", json=body).json() for _ in "ab")
    assert first["name"].startswith("projects/p/operations/")
    assert first["name"] == again["name"]
    done = client.post(f"/v1/{first['name']}:wait").json()
    assert done["response"]["total"] == 3


def test_what_fastapi_refuses_has_our_form_on_the_router(client: TestClient) -> None:
    """Every wrong field is named; malformed JSON and media types are as at the edge."""
    reply = client.post("/v1/read:count?n=x", json={"steps": "x", "colour": 1})
    assert reason(reply, 400) == "INVALID_ARGUMENT"
    assert sorted(violations(reply)) == ["colour", "n", "steps"]
    bad = client.post("/v1/read:count", content=b"{", headers={"content-type": "application/json"})
    assert reason(bad, 400) == "MALFORMED_REQUEST"
    text = client.post("/v1/read:count", content=b"{}", headers={"content-type": "text/plain"})
    assert reason(text, 415) == "UNSUPPORTED_MEDIA_TYPE"
    empty = client.post("/v1/read:count")
    assert violations(empty) == ["body"]


def test_own_fields_of_a_body_that_is_not_an_object_are_ignored(client: TestClient) -> None:
    """The application has read the message elsewhere."""
    for content, kind in [(b"[1]", "application/json"), (b"a=1", "text/plain"), (b"", "")]:
        headers = {"content-type": kind} if kind else {}
        reply = client.post("/v1/form:count", content=content, headers=headers)
        assert reply.status_code == 200, reply.text


def test_unknown_method_is_a_fault_of_the_server(client: TestClient) -> None:
    """A mistake of the application shows in the log, and not to callers."""
    reply = client.post("/v1/other:count", json={})
    assert reason(reply, 500) == "INTERNAL"


def test_wrong_query_alone_is_named(client: TestClient) -> None:
    """Where the body is fine."""
    reply = client.post("/v1/read:count?n=x", json={"steps": 1})
    assert violations(reply) == ["n"]


def test_other_endpoints_keep_the_form_of_fastapi(client: TestClient) -> None:
    """A 422 of the application's own stays one."""
    assert client.get("/number?n=x").status_code == 422


def test_endpoint_whose_errors_would_not_reach_callers_is_refused(counting: Counting) -> None:
    """The mistake shows at the first call, not at the first error."""
    client = TestClient(with_models(counting), headers=ANN)
    with pytest.raises(lro.DeclarationError, match=r"add_exception_handler\(lro.LroError"):
        client.post("/beside", json={"steps": 1})


@pytest.mark.parametrize(
    ("token", "status", "found"),
    [
        ("", 401, "UNAUTHENTICATED"),
        ("Bearer teapot", 400, "FAILED_PRECONDITION"),
        ("Bearer number", 500, "INTERNAL"),
    ],
)
def test_refusals_of_a_dependency_have_our_form(
    client: TestClient, token: str, status: int, found: str
) -> None:
    """Whatever the dependency raises, with its headers."""
    for path in ("/v1/operations/x", "/v1/operations"):
        reply = client.get(path, headers={"authorization": token})
        assert reason(reply, status) == found
        if status == 401:
            assert reply.headers["www-authenticate"] == "Bearer"
        if "teapot" in token:
            assert reply.headers["x-pot"] == "tea"


def test_redirect_of_a_dependency_stays_one(client: TestClient) -> None:
    """Only errors are put into our form."""
    reply = client.get(
        "/v1/operations", headers={"authorization": "Bearer away"}, follow_redirects=False
    )
    assert (reply.status_code, reply.headers["location"]) == (303, "/")


def test_caller_without_a_name_sees_operations_without_owner(client: TestClient) -> None:
    """None is a caller without a name."""
    reply = client.get("/v1/operations", headers={"authorization": "Bearer none"})
    assert (reply.status_code, reply.json()) == (200, {})


def test_service_closes_with_the_application(counting: Counting) -> None:
    """The router brings its lifespan along; what the application opens is closed later."""
    app = with_models(counting)
    with TestClient(app, headers=ANN) as client:
        assert client.post(START, json={}).status_code == 200
    assert counting.service.waiting == 0
    with pytest.raises(lro.errors.Unavailable):
        counting.count.start(CountRequest())


def test_service_without_callers_needs_no_dependency() -> None:
    """Where all callers may do everything."""
    counting = build(owner_only=False, authorize=None)
    operations = Operations(counting.service)
    app = FastAPI()
    app.include_router(operations.router(starts=True))
    client = TestClient(app)
    name = client.post(START, json={"steps": 2}).json()["name"]
    assert client.get(f"/v1/{name}", headers=BOB).status_code == 200
    counting.service.close()


def test_owner_only_service_without_caller_is_refused(counting: Counting) -> None:
    """The error names the option of the integration."""
    with pytest.raises(lro.DeclarationError, match="caller: is needed"):
        Operations(counting.service)


def test_document_has_every_route_beside_the_applications_own(client: TestClient) -> None:
    """The verbs, the starts with their types, the lock of OAuth2."""
    document = client.get("/openapi.json").json()
    paths = document["paths"]
    assert {"/number", "/v1/read:count", START, "/v1/operations"} <= set(paths)
    assert "/v1/projects/{project}/operations/{operation}:wait" in paths
    get = paths["/v1/operations/{operation}"]["get"]
    assert get["security"] == [{"OAuth2PasswordBearer": []}]
    assert [one["name"] for one in get["parameters"]] == ["operation"]
    assert get["tags"] == ["work"]
    reply = paths["/v1/read:count"]["post"]["responses"]
    assert "422" not in reply
    ref = reply["200"]["content"]["application/json"]["schema"]["$ref"].rpartition("/")[2]
    schemas = document["components"]["schemas"]
    assert "/CountBody" in str(schemas[ref]["properties"]["response"])
    assert client.get("/docs").status_code == 200
