"""The integration into Quart: views, callers, decorators, start and stop."""

from __future__ import annotations

import functools
from typing import Any

import pytest

pytest.importorskip("quart")

import asyncio

from quart import Quart, Response, abort, redirect, request

from lro.integrations.quart import QuartOperations
from tests.integrations.checks import *  # noqa: F403
from tests.integrations.counting import (
    ANN,
    CONSOLE,
    OPTIONS,
    OWN,
    START,
    Counting,
    name_of,
    refused,
    served_by,
)


def caller() -> str:
    """Return the caller of the current request."""
    if status := refused(request.headers):
        abort(status, "not you")
    return name_of(request.headers.get("authorization"))


async def caller_awaited() -> str:
    """Return the caller of a request after reading its body, as a signature check would."""
    await request.get_data()
    return caller()


def plain(counting: Counting) -> Quart:
    """Make an application whose ``caller`` is a plain function."""
    operations = QuartOperations(counting.service, starts=True, caller=caller, **OPTIONS)
    app = Quart("plain")
    operations.init_app(app)

    @app.before_request
    async def look() -> None:
        await request.form

    @app.post("/v1/shelves/<shelf>/things:count")
    async def start(shelf: str) -> Response:
        return await operations.start(counting.count, target=shelf if shelf != "a" else "")

    return app


def prefixed(counting: Counting) -> Quart:
    """Make an application with a prefix, whose ``caller`` is a coroutine function."""
    starts = counting.starts
    operations = QuartOperations(counting.service, starts=starts, caller=caller_awaited, **OPTIONS)
    app = Quart("prefixed")
    operations.init_app(app, url_prefix="/api/<tenant>")

    @app.post(OWN)
    async def start() -> Response:
        return await operations.start(counting.count)

    return app


def unnamed(counting: Counting) -> Quart:
    """Make an application with a console and no ``caller``."""
    app = Quart("unnamed")
    QuartOperations(counting.service, console=CONSOLE).init_app(app)
    return app


served = served_by(
    plain=(plain, {"unnamed": unnamed}), prefixed=(prefixed, {"prefix": "/api/%C3%BC%20b"})
)


def signed_in(view: Any) -> Any:
    """Refuse or redirect requests, like the decorators of Quart-Auth."""

    @functools.wraps(view)
    async def checked(**values: str) -> Any:
        if request.headers.get("x-page"):
            abort(redirect("/login"))
        if not request.headers.get("authorization"):
            abort(403, "sign in")
        return await view(**values)

    return checked


def test_decorators_and_aborts_refuse_in_our_form(counting: Counting) -> None:
    """Errors of decorators and of Quart get our format; redirects are sent unchanged."""
    operations = QuartOperations(counting.service, starts=True, caller=caller, max_body=10**8)
    app = Quart("decorated")
    app.config["MAX_CONTENT_LENGTH"] = 1_000_000  # Quart's own limit, below ours
    operations.init_app(app, decorators=[signed_in])

    @app.post("/own")
    async def own() -> Response:
        return await operations.start(counting.count)

    async def call() -> None:
        async with app.test_app():
            client = app.test_client()
            refused = await client.get("/v1/operations")
            assert (await refused.json)["error"]["message"] == "sign in"
            teapot = await client.get("/v1/operations", headers=ANN | {"x-refuse": "418"})
            assert (await teapot.json)["error"]["status"] == "FAILED_PRECONDITION"
            away = await client.get("/v1/operations", headers={"x-page": "1"})
            assert away.status_code == 302
            for path in (START, "/own"):
                large = await client.post(path, data=b"x" * 1_100_000, headers=ANN)
                assert (large.status_code, (await large.json)["error"]["code"]) == (413, 413)

    asyncio.run(call())
