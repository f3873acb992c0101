"""The integration into aiohttp: handlers, callers, start and stop of the application."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

import lro
from tests.http.servers import HOST, in_thread, listening
from tests.integrations.checks import *  # noqa: F403
from tests.integrations.counting import (
    ANN,
    CHALLENGE,
    CONSOLE,
    OPTIONS,
    OWN,
    START,
    Counting,
    CountRequest,
    Served,
    build,
    name_of,
    refused,
    served_by,
)
from tests.waiting import until

aiohttp = pytest.importorskip("aiohttp")

from aiohttp import web  # noqa: E402

from lro.integrations.aiohttp import AiohttpOperations  # noqa: E402


def find_caller(request: Any) -> str:
    """Return the caller of a request."""
    if status := refused(request.headers):
        kind = type("Refused", (web.HTTPException,), {"status_code": status})
        raise kind(text="not you", headers=CHALLENGE if status == 401 else None)
    return name_of(request.headers.get("authorization"))


async def caller(request: Any) -> str:
    """Return the caller of a request after reading its body, as a signature check would."""
    await request.read()
    return find_caller(request)


def application(counting: Counting, **options: Any) -> Any:
    """Make an application with a handler of its own beside the operations."""
    app = web.Application(client_max_size=2 << 20)
    options = {"caller": caller, "starts": True, **OPTIONS, **options}
    operations = AiohttpOperations(counting.service, **options)

    async def own(request: web.Request) -> web.Response:
        return await operations.start(request, counting.count)

    app.router.add_post(OWN, own)
    operations.setup(app)
    return app


def part(counting: Counting) -> Any:
    """Make an application that has the operations in a subapp at ``/api``."""

    @web.middleware
    async def look(request: web.Request, handler: Any) -> Any:
        await request.post()
        return await handler(request)

    whole = web.Application(client_max_size=2 << 20, middlewares=[look])
    whole.add_subapp("/api", application(counting, caller=find_caller))
    return whole


def unnamed(counting: Counting) -> Any:
    """Make an application with a console and no ``caller``."""
    app = web.Application()
    AiohttpOperations(counting.service, console=CONSOLE).setup(app)
    return app


@contextlib.contextmanager
def aiohttp_serving(app: Any) -> Iterator[int]:
    """Serve the application on an event loop in a thread and yield the port."""
    line, ready, loop = listening(), threading.Event(), asyncio.new_event_loop()
    over: list[asyncio.Event] = []

    async def serve() -> None:
        over.append(asyncio.Event())
        runner = web.AppRunner(app)
        await runner.setup()
        await web.SockSite(runner, line).start()
        ready.set()
        await over[0].wait()
        await runner.cleanup()

    try:
        with in_thread(
            lambda: loop.run_until_complete(serve()), lambda: loop.call_soon_threadsafe(over[0].set)
        ):
            ready.wait()
            yield line.getsockname()[1]
    finally:
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()


@contextlib.contextmanager
def addressed(app: Any) -> Iterator[str]:
    """Serve the application and yield its URL."""
    with aiohttp_serving(app) as port:
        yield f"http://{HOST}:{port}"


served = served_by(
    whole=(application, {"serve": aiohttp_serving, "unnamed": unnamed}),
    part=(part, {"serve": aiohttp_serving, "prefix": "/api", "own_path": f"/api{OWN}"}),
)


def test_body_over_the_limit_of_the_application_has_our_error() -> None:
    with addressed(application(build())) as url:
        larger = httpx.post(url + OWN, content=b" " * (3 << 20), headers=ANN)
    assert (larger.status_code, larger.json()["error"]["status"]) == (413, "INVALID_ARGUMENT")


@pytest.mark.parametrize("own", [True, False])
def test_body_that_cannot_be_decoded_is_refused_as_malformed(served: Served, own: bool) -> None:
    """A body that aiohttp cannot decompress gets a 400."""
    path = served.own_path if own else served.prefix + START
    headers = {**ANN, "content-type": "application/json", "content-encoding": "gzip"}
    reply = served.http.post(path, content=b"no gzip", headers=headers)
    assert reply.status_code == 400
    assert reply.json()["error"]["message"] == "body: could not be read to its end"


def test_name_with_a_line_break_is_malformed(served: Served) -> None:
    reply = served.http.get(f"{served.prefix}/v1/operations/a%0Ab", headers=ANN)
    assert reply.json()["error"]["status"] == "INVALID_ARGUMENT"


def test_chunked_body_is_joined() -> None:
    """A chunked request body is read to its end."""
    pieces = iter([b'{"ste', b'ps": ', b"3}"])
    headers = {**ANN, "content-type": "application/json"}
    with addressed(application(build())) as url:
        assert httpx.post(url + START, content=pieces, headers=headers).status_code == 200


def test_start_in_an_application_without_our_routes_has_no_location(counting: Counting) -> None:
    operations = AiohttpOperations(counting.service, caller=caller, accepted=True)

    async def own(request: web.Request) -> web.Response:
        return await operations.start(request, counting.count)

    app = web.Application()
    app.router.add_post(OWN, own)
    with addressed(app) as url:
        reply = httpx.post(url + OWN, json={"steps": -1}, headers=ANN)
    assert (reply.status_code, "location" in reply.headers) == (202, False)


def test_stop_of_the_server_ends_waits_at_once() -> None:
    """When the server stops, a caller of Wait gets UNAVAILABLE and can ask another server."""
    replies: list[httpx.Response] = []
    counting = build()
    name = counting.count.start(CountRequest(steps=-1), caller="ann").name
    with addressed(application(counting)) as address:  # the server's stop waits for the work

        def wait() -> None:
            replies.append(httpx.post(f"{address}/v1/{name}:wait", headers=ANN, timeout=120))
            counting.go.set()

        caller = threading.Thread(target=wait)
        caller.start()
        until(lambda: counting.service.edges.waiters.waiting, lambda count: count == 1)
    caller.join()
    assert replies[0].json()["error"]["status"] == "UNAVAILABLE"


def test_invalid_aiohttp_application_is_refused() -> None:
    """A wrong application and a missing ``caller`` each raise a DeclarationError."""
    operations = AiohttpOperations(build().service, caller=caller)
    with pytest.raises(lro.DeclarationError, match=r"an aiohttp.web.Application"):
        operations.setup(object())  # type: ignore[arg-type]
    with pytest.raises(lro.DeclarationError, match="caller=lambda request: None"):
        AiohttpOperations(build().service)
