"""The integration into Starlette: routes, callers, starts, start and stop."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("starlette")

from starlette.applications import Starlette
from starlette.authentication import AuthCredentials, AuthenticationBackend, SimpleUser
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.authentication import AuthenticationMiddleware
from starlette.requests import HTTPConnection, Request
from starlette.responses import Response
from starlette.routing import Mount, Route
from starlette.testclient import TestClient

from lro.integrations.starlette import StarletteOperations
from tests.integrations.checks import *  # noqa: F403
from tests.integrations.counting import (
    CHALLENGE,
    CONSOLE,
    OPTIONS,
    OWN,
    START,
    TOKENS,
    Counting,
    CountRequest,
    name_of,
    refused,
    served_by,
)


def refuse_some(request: Request) -> None:
    """Raise the HTTP exception that the request asks for."""
    if status := refused(request.headers):
        raise HTTPException(status, "not you", CHALLENGE if status == 401 else None)


def by_header(counting: Counting) -> Starlette:
    """Make an application with the routes at the top level and a plain function as ``caller``."""

    def caller(request: Request) -> str:
        refuse_some(request)
        return name_of(request.headers.get("authorization"))

    operations = StarletteOperations(counting.service, starts=True, caller=caller, **OPTIONS)

    async def start(request: Request) -> Response:
        return await operations.start(request, counting.count, target="")

    own = Route("/v1/shelves/{shelf}/things:count", start, methods=["POST"])
    return Starlette(routes=[own, *operations.routes], lifespan=counting.service.lifespan)


class Backend(AuthenticationBackend):
    """A backend for Starlette's authentication middleware."""

    async def authenticate(self, conn: HTTPConnection) -> Any:
        name = TOKENS.get(conn.headers.get("authorization", ""))
        return name and (AuthCredentials(["authenticated"]), SimpleUser(name))


def by_middleware(counting: Counting) -> Starlette:
    """Make an application with the routes in a mount and a middleware that finds the user."""

    async def caller(request: Request) -> str:
        refuse_some(request)
        if not request.user.is_authenticated:
            return name_of(None)
        return str(request.user.display_name)

    operations = StarletteOperations(
        counting.service, starts=counting.starts, caller=caller, **OPTIONS
    )

    async def start(request: Request) -> Response:
        return await operations.start(request, counting.count)

    return Starlette(
        routes=[Mount("/api ü", routes=operations.routes), Route(OWN, start, methods=["POST"])],
        middleware=[Middleware(AuthenticationMiddleware, backend=Backend())],
        lifespan=counting.service.lifespan,
    )


def unnamed(counting: Counting) -> Starlette:
    """Make an application with a console and no ``caller``."""
    return Starlette(routes=StarletteOperations(counting.service, console=CONSOLE).routes)


served = served_by(
    header=(by_header, {"unnamed": unnamed}),
    middleware=(by_middleware, {"prefix": "/api%20%C3%BC"}),
)


def test_form_already_read_by_the_endpoint_is_not_a_body(shared: Counting) -> None:
    """If an endpoint has read a form and passes a message, the body is not parsed as JSON."""
    operations = StarletteOperations(shared.service)

    async def start(request: Request) -> Response:
        async for _ in request.stream():
            pass
        return await operations.start(request, shared.count, CountRequest(steps=4))

    app = Starlette(routes=[Route(START, start, methods=["POST"]), *operations.routes])
    with TestClient(app) as client:
        name = client.post(START, content=b"steps=4").json()["name"]
        assert client.post(f"/v1/{name}:wait").json()["response"]["total"] == 4


@pytest.mark.parametrize("error", [StopIteration, SystemExit, GeneratorExit])
def test_caller_that_raises_an_exit_or_stop_answers_internal(
    counting: Counting, error: type[BaseException]
) -> None:
    def caller(request: Request) -> str:
        raise error

    app = Starlette(routes=StarletteOperations(counting.service, starts=True, caller=caller).routes)
    with TestClient(app) as client:
        assert client.get("/v1/operations").json()["error"]["status"] == "INTERNAL"
