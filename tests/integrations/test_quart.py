"""The integration into Quart: views, callers, decorators, start and stop."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("quart")

import asyncio

from quart import Quart, Response, abort, redirect, request

import lro
from lro.integrations.quart import Operations
from tests.integrations.checks import *  # noqa: F403
from tests.integrations.counting import (
    ANN,
    BOB,
    OPTIONS,
    OWN,
    START,
    Counting,
    CountRequest,
    Served,
    build,
    name_of,
    serving,
)


def plain(counting: Counting) -> Quart:
    """A plain function gives the caller."""
    operations = Operations(
        counting.service,
        starts=True,
        caller=lambda: name_of(request.headers.get("authorization")),
        **OPTIONS,
    )
    app = Quart("plain")
    operations.init_app(app)

    @app.post("/v1/shelves/<shelf>/things:count")
    async def start(shelf: str) -> Response:
        return await operations.start(counting.count, target=shelf if shelf != "a" else "")

    return app


def prefixed(counting: Counting) -> Quart:
    """Below a prefix, with a coroutine function."""

    async def caller() -> str:
        return name_of(request.headers.get("authorization"))

    operations = Operations(counting.service, starts=counting.starts, caller=caller, **OPTIONS)
    app = Quart("prefixed")
    operations.init_app(app, prefix="/api/<tenant>")

    @app.post(OWN)
    async def start() -> Response:
        return await operations.start(counting.count)

    return app


@pytest.fixture(params=["plain", "prefixed"], scope="module")
def served(request: pytest.FixtureRequest) -> Iterator[Served]:
    """An application behind uvicorn."""
    if request.param == "plain":
        with serving(plain) as found:
            yield found
    else:
        with serving(prefixed, prefix="/api/%C3%BC%20b") as found:
            yield found


def signed_in(view: Any) -> Any:
    """A decorator as Quart-Auth's: it refuses, or sends to a page."""

    @functools.wraps(view)
    async def checked(**values: str) -> Any:
        if request.headers.get("x-page"):
            abort(redirect("/login"))
        if not request.headers.get("authorization"):
            abort(403, "sign in")
        return await view(**values)

    return checked


def test_coroutine_function_that_aborts_refuses_in_our_form() -> None:
    """As a plain one does."""
    counting = build()

    async def caller() -> str:
        abort(403, "not you")

    app = Quart("aborting")
    Operations(counting.service, caller=caller).init_app(app)

    async def call() -> None:
        refused = await app.test_client().get("/v1/operations")
        assert (await refused.json)["error"]["message"] == "not you"

    asyncio.run(call())
    counting.service.close()


def test_decorators_and_aborts_refuse_in_our_form() -> None:
    """Errors are ours, redirects are left as they are; the service closes with the application."""
    counting = build()

    def caller() -> str:
        if request.headers["authorization"] == "teapot":
            abort(418, "short and stout")
        return name_of(request.headers["authorization"])

    operations = Operations(
        counting.service, starts=True, caller=caller, decorators=[signed_in], max_body=10**8
    )
    app = Quart("decorated")
    operations.init_app(app)

    @app.post("/own")
    async def own() -> Response:
        return await operations.start(counting.count)

    async def call() -> None:
        async with app.test_app():
            client = app.test_client()
            refused = await client.get("/v1/operations")
            assert (await refused.json)["error"]["message"] == "sign in"
            teapot = await client.get("/v1/operations", headers={"authorization": "teapot"})
            assert (await teapot.json)["error"]["status"] == "FAILED_PRECONDITION"
            away = await client.get("/v1/operations", headers={"x-page": "1"})
            assert away.status_code == 302
            for path in (START, "/own"):
                large = await client.post(path, data=b"x" * 20_000_000, headers=ANN)
                assert (large.status_code, (await large.json)["error"]["code"]) == (413, 413)
            started = await client.post(START, json={"steps": 2}, headers=ANN)
            name = (await started.json)["name"]
            assert (await client.get(f"/v1/{name}", headers=BOB)).status_code == 404
        with pytest.raises(lro.errors.Unavailable):
            await counting.count.start_async(CountRequest())

    asyncio.run(call())


def test_service_without_callers_needs_no_function() -> None:
    """Where all callers may do everything."""
    counting = build(owner_only=False, authorize=None)
    app = Quart("open")
    Operations(counting.service, starts=True).init_app(app)

    async def call() -> None:
        async with app.test_app():
            assert (await app.test_client().post(START, json={})).status_code == 200

    asyncio.run(call())


@pytest.mark.parametrize("error", [StopIteration, SystemExit, GeneratorExit])
def test_caller_that_raises_what_no_coroutine_can_fails(error: type[BaseException]) -> None:
    """Nothing waits for ever, and the server goes on."""
    counting = build()

    def caller() -> str:
        raise error

    app = Quart("odd")
    Operations(counting.service, starts=True, caller=caller).init_app(app)

    async def call() -> None:
        async with app.test_app():
            reply = await app.test_client().get("/v1/operations")
            assert (await reply.json)["error"]["status"] == "INTERNAL"

    async def in_time() -> None:
        await asyncio.wait_for(call(), 60)

    asyncio.run(in_time())
