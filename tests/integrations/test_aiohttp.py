"""Operations in aiohttp: its routes, its authentication, start and stop with the application."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

import lro
from lro import wsgi
from tests.http.servers import HOST, listening, waitress_serving
from tests.integrations.work import (
    ANN,
    MAX_BODY,
    PARENTS,
    START,
    BadCall,
    Counting,
    CountRequest,
    CountResponse,
    answered,
    build,
    caller_of,
    check_client,
    check_google_client,
    each_bad_call,
)

aiohttp = pytest.importorskip("aiohttp")

from aiohttp import web  # noqa: E402

from lro.integrations.aiohttp import Operations  # noqa: E402


async def caller(request: Any) -> str:
    """The caller of a request."""
    return caller_of({key.lower(): value for key, value in request.headers.items()})


def application(counting: Counting, **options: Any) -> Any:
    """An application with handlers of its own beside the operations."""
    app = web.Application()
    options = {"caller": caller, "starts": True, "parents": PARENTS, **options}
    operations = Operations(counting.service, max_body=MAX_BODY, **options)

    async def own(request: web.Request) -> web.Response:
        return await operations.start(request, counting.count)

    async def other(request: web.Request) -> web.Response:
        return web.Response(text="mine")

    app.router.add_post("/own", own)
    app.router.add_get("/v1/own", other)
    operations.setup(app)
    return app


@contextlib.contextmanager
def serving(app: Any) -> Iterator[str]:
    """The address at which aiohttp serves an application, from a thread with a loop."""
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

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),))
    thread.start()
    ready.wait()
    try:
        yield f"http://{HOST}:{line.getsockname()[1]}"
    finally:
        loop.call_soon_threadsafe(over[0].set)
        thread.join()
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()


@pytest.fixture(scope="module")
def counting() -> Counting:
    """A service for the tests of this module: the application closes it."""
    return build()


@pytest.fixture(scope="module")
def url(counting: Counting) -> Iterator[str]:
    """The application behind its own server."""
    with serving(application(counting)) as address:
        yield address


@pytest.fixture(scope="module")
def plain(counting: Counting) -> Iterator[str]:
    """The same service behind the plain edge."""
    app = wsgi.OperationsApp(
        counting.service,
        starts=True,
        parents=PARENTS,
        authenticate=caller_of,
        max_body=MAX_BODY,
    )
    with waitress_serving(app) as port:
        yield f"http://{HOST}:{port}"


def test_clients_are_served(url: str, counting: Counting) -> None:
    """Ours and Google's."""
    check_client(url)
    check_google_client(url, counting)


@each_bad_call
def test_bad_call_is_answered_as_by_the_plain_edge(url: str, plain: str, call: BadCall) -> None:
    """Status, headers and body are the same."""
    bobs = httpx.post(f"{plain}{START}", json={}, headers={"authorization": "Bearer b2"})
    name = bobs.json()["name"]
    found = answered(url, call, name)
    assert found == answered(plain, call, name)
    assert found[0] == call.status


def test_handler_of_the_application_starts_an_operation(url: str) -> None:
    """The body is read, and errors are those of the plain edge."""
    assert httpx.post(f"{url}/own", json={"number": 3}, headers=ANN).json()["name"]
    assert httpx.post(f"{url}/own", json={"number": "x"}, headers=ANN).status_code == 400
    assert httpx.post(f"{url}/own", json={}).status_code == 401
    large = httpx.post(f"{url}/own", content=b" " * (MAX_BODY + 1), headers=ANN)
    assert (large.status_code, large.json()["error"]["status"]) == (413, "INVALID_ARGUMENT")
    larger = httpx.post(f"{url}/own", content=b" " * (2 << 20), headers=ANN)
    assert (larger.status_code, larger.json()["error"]["status"]) == (413, "INVALID_ARGUMENT")


def test_errors_of_the_framework_are_left_alone(url: str) -> None:
    """Paths that are not of the operations are answered by aiohttp."""
    assert httpx.get(f"{url}/v1/own").text == "mine"
    for path in ("/v1/unknown", "/unknown"):
        assert (httpx.get(url + path).status_code, httpx.get(url + path).text) == (
            404,
            "404: Not Found",
        )
    assert httpx.get(url + START).status_code == 405


def test_body_in_pieces_is_put_together(url: str) -> None:
    """A chunked request is read to its end."""
    pieces = iter([b'{"num', b'ber": ', b"3}"])
    headers = {**ANN, "content-type": "application/json"}
    assert httpx.post(url + START, content=pieces, headers=headers).status_code == 200


def test_operations_in_a_part_of_an_application() -> None:
    """Names are those below the prefix, and the whole starts and stops the service."""
    counting = build()
    whole = web.Application()
    whole.add_subapp("/api", application(counting))
    with serving(whole) as address:
        base = f"{address}/api"
        name = httpx.post(base + START, json={}, headers=ANN).json()["name"]
        assert httpx.get(f"{base}/v1/{name}", headers=ANN).json()["name"] == name
    with pytest.raises(lro.errors.Unavailable):
        counting.count.start(CountRequest())


@contextlib.contextmanager
def waited_for() -> Iterator[tuple[Counting, str, str]]:
    """A served service with an operation that does not end: its address and name."""
    counting = build()
    outside = counting.service.declare(
        "acme.counts.v1.Counts.Outside",
        request=CountRequest,
        response=CountResponse,
    )
    name = outside.start(CountRequest(), caller="ann").name
    with serving(application(counting)) as address:
        yield counting, address, name


@pytest.fixture
def waiting() -> Iterator[tuple[Counting, str, str]]:
    """The same for a whole test."""
    with waited_for() as found:
        yield found


def until(condition: Callable[[], bool]) -> None:
    """Wait for what another thread does."""
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def held_call(address: str, request: str) -> socket.socket:
    """A call that is sent, and whose answer is not read."""
    line = socket.create_connection(tuple(address.removeprefix("http://").split(":")))  # type: ignore[arg-type]
    line.sendall(request.replace("\n", "\r\n").encode())
    return line


def test_caller_who_goes_away_frees_the_wait(waiting: tuple[Counting, str, str]) -> None:
    """The wait ends long before its time."""
    counting, address, name = waiting
    call = f"POST /v1/{name}:wait HTTP/1.1\nhost: x\nauthorization: Bearer a1\n\n"
    with held_call(address, call):
        until(lambda: counting.service.waiting == 1)
    until(lambda: counting.service.waiting == 0)


def test_caller_who_goes_away_in_the_middle_of_the_body_is_not_answered(
    waiting: tuple[Counting, str, str],
) -> None:
    """The server goes on."""
    _, address, name = waiting
    head = "host: x\nauthorization: Bearer a1\ncontent-type: application/json\ncontent-length: 100"
    held_call(address, f"POST /v1/{name}:wait HTTP/1.1\n{head}\n\n{{").close()
    assert httpx.get(f"{address}/v1/{name}", headers=ANN).status_code == 200


def test_stop_of_the_server_ends_waits_at_once() -> None:
    """The caller gets UNAVAILABLE, and asks the next server."""
    replies: list[httpx.Response] = []
    with waited_for() as (counting, address, name):

        def wait() -> None:
            replies.append(httpx.post(f"{address}/v1/{name}:wait", headers=ANN, timeout=120))

        caller = threading.Thread(target=wait)
        caller.start()
        until(lambda: counting.service.waiting == 1)
    caller.join()
    assert replies[0].json()["error"]["status"] == "UNAVAILABLE"


def test_changes_are_streamed(waiting: tuple[Counting, str, str]) -> None:
    """The stream of Watch ends with the operation."""
    counting, address, name = waiting
    seen = []
    with httpx.stream("GET", f"{address}/v1/{name}:watch", headers=ANN, timeout=60) as stream:
        for line in stream.iter_lines():
            if line.startswith("data: "):
                seen.append(json.loads(line.removeprefix("data: ")).get("done", False))
                if seen == [False]:
                    counting.service.reporter(name).complete(CountResponse(total=1))
    assert seen == [False, True]


def test_plain_caller_function_is_called_in_a_thread() -> None:
    """What it raises as an HTTP exception is answered in our format."""
    threads: set[str] = set()

    def find(request: web.Request) -> str:
        threads.add(threading.current_thread().name)
        if request.headers["x"] == "1":
            raise web.HTTPForbidden(text="not you")
        return "ann"

    async def find_awaited(request: web.Request) -> str:
        raise web.HTTPUnauthorized(headers={"WWW-Authenticate": 'Basic realm="x"'})

    with serving(application(build(), caller=find)) as address:
        refused = httpx.get(f"{address}/v1/operations", headers={"x": "1"})
        assert (refused.status_code, refused.json()["error"]["message"]) == (403, "not you")
        assert httpx.get(f"{address}/v1/operations", headers={"x": "2"}).status_code == 200
    assert all(name.startswith("asyncio_") for name in threads)
    with serving(application(build(), caller=find_awaited)) as address:
        refused = httpx.get(f"{address}/v1/operations")
        assert refused.headers["www-authenticate"] == 'Basic realm="x"'


def test_what_is_no_application_is_refused(counting: Counting) -> None:
    """By a sentence, when it is given."""
    operations = Operations(counting.service, caller=caller)
    with pytest.raises(lro.DeclarationError, match=r"an aiohttp.web.Application"):
        operations.setup(object())  # type: ignore[arg-type]
