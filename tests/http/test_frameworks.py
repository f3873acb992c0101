"""The edge in Starlette, FastAPI and Flask, as their applications use it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import attrs
import pytest

import lro
import lro.wire
from lro import asgi, wsgi
from lro.http import answer, error_reply
from tests.http import servers
from tests.http.counting_service import (
    URL,
    CountMetadata,
    CountRequest,
    CountService,
    build,
    details_of,
)
from tests.http.servers import Caller

fastapi = pytest.importorskip("fastapi")
flask = pytest.importorskip("flask")

from starlette.applications import Starlette  # noqa: E402
from starlette.concurrency import run_in_threadpool  # noqa: E402
from starlette.middleware import Middleware  # noqa: E402
from starlette.middleware.base import BaseHTTPMiddleware  # noqa: E402
from starlette.requests import Request  # noqa: E402
from starlette.responses import Response  # noqa: E402
from starlette.routing import Mount, Route  # noqa: E402
from werkzeug.middleware.dispatcher import DispatcherMiddleware  # noqa: E402

OWN, READY = "/v1/things:count", "/v1/things:ready"


def starlette_app(counting: CountService, prefix: str) -> Any:
    """An endpoint of its own, a ready one, and the operations mounted."""
    service, count = counting.service, counting.count

    async def start(request: Request) -> Response:
        body = await request.json()
        begin = lambda: count.start(service.types.load(body, CountRequest))  # noqa: E731
        return Response(*(await run_in_threadpool(answer, service, begin)).parts)

    app = Starlette(
        routes=[
            Route(OWN, start, methods=["POST"]),
            Route(READY, asgi.OperationsApp(service, starts={READY: count})),
        ]
    )
    place_operations(app, prefix, service)
    return app


def place_operations(app: Starlette, prefix: str, service: lro.Service) -> None:
    """Mount the operations below a prefix; without one they are what no route of the app has.

    A mount at the root would not match paths with a newline in them.
    """
    operations = asgi.OperationsApp(service)
    if prefix:
        app.mount(prefix, operations)
    else:
        app.router.default = operations


def fastapi_app(counting: CountService, prefix: str) -> Any:
    """The same, with an exception handler instead of ``answer``."""
    service, count = counting.service, counting.count
    app = fastapi.FastAPI()

    @app.exception_handler(lro.LroError)
    def refuse(request: Request, error: lro.LroError) -> Response:
        return Response(*error_reply(error, service.types, service.domain).parts)

    @app.post(OWN)
    def start(body: dict[str, Any]) -> dict[str, Any]:
        started = count.start(service.types.load(body, CountRequest))  # type: ignore[arg-type]
        return lro.wire.operation_to_json(started.operation, service.types)

    app.add_route(READY, asgi.OperationsApp(service, starts={READY: count}))
    place_operations(app, prefix, service)
    return app


def flask_app(counting: CountService, prefix: str) -> Any:
    """The same, with the operations in front of the application or beside it."""
    service, count = counting.service, counting.count
    app = flask.Flask(__name__)
    ready = wsgi.OperationsApp(service, starts={READY: count})

    @app.post(OWN)
    def start() -> Any:
        body = flask.request.get_json()
        return answer(service, lambda: count.start(service.types.load(body, CountRequest))).parts

    @app.post(READY)
    def start_ready() -> Any:
        return ready

    if prefix:
        beside = {prefix.encode().decode("latin-1"): wsgi.OperationsApp(service)}
        app.wsgi_app = DispatcherMiddleware(app.wsgi_app, beside)
    else:
        app.wsgi_app = wsgi.OperationsApp(service, fallback=app.wsgi_app)
    return app


MAKERS = {"starlette": starlette_app, "fastapi": fastapi_app, "flask": flask_app}
SETTINGS = [
    ("starlette", servers.asgi_inside, "/api"),
    ("starlette", servers.asgi_socket, "/a/b ü"),
    ("fastapi", servers.asgi_inside, ""),
    ("fastapi", servers.asgi_socket, "/api"),
    ("flask", servers.wsgi_inside, "/a/b c"),  # httpx's transport passes Unicode, as no server does
    ("flask", servers.wsgi_socket, ""),
    ("flask", servers.wsgi_socket, "/a/b ü"),
]
"""Frameworks, servers, and where the operations are mounted: each of them at least twice."""


@attrs.frozen
class Place:
    """A served application: how to call it, where its operations are, and its service."""

    call: Caller
    prefix: str
    counting: CountService
    framework: str = "starlette"
    raw: bool = True
    """Whether the server keeps paths as they were sent."""


@pytest.fixture(
    params=SETTINGS, ids=lambda one: f"{one[0]}-{one[1].__name__}-{one[2]}", scope="module"
)
def place(request: pytest.FixtureRequest) -> Iterator[Place]:
    """An application, served."""
    framework, serve, prefix = request.param
    counting = build()
    with serve(MAKERS[framework](counting, prefix)) as call:
        raw = serve is not servers.wsgi_inside
        yield Place(call, quote(prefix), counting, framework, raw)


def test_the_life_of_an_operation(place: Place) -> None:
    """Started through the application's endpoints, then read, waited for, listed, deleted."""
    for path in (OWN, READY):
        started = place.call("POST", path, json={"steps": 3})
        assert started.status_code == 200, started.text
        name = started.json()["name"]
        at = f"{place.prefix}/v1/{name}"
        assert place.call("GET", at).json() == {"name": name}
        assert place.call("HEAD", at).content == b""
        waiting = place.call("POST", f"{at}:wait", json={"timeout": "0s"})
        assert (waiting.json(), waiting.headers["retry-after"]) == ({"name": name}, "1")
        assert place.call("POST", f"{at}:cancel").json() == {}
        place.counting.finish(name)
        done = place.call("POST", f"{at}:wait").json()
        assert done["response"] == {"@type": URL + "acme.v1.CountResponse", "total": 3}
        listed = place.call("GET", f"{place.prefix}/v1/operations", params={"filter": "done=true"})
        assert listed.json() == {"operations": [done]}
        assert listed.headers["cache-control"] == "no-store"
        options = place.call("OPTIONS", at)
        allow = "DELETE, GET, HEAD, OPTIONS"
        assert (options.status_code, options.headers["allow"]) == (204, allow)
        assert place.call("DELETE", at).json() == {}
        assert place.call("GET", at).status_code == 404


def test_errors_of_a_start(place: Place) -> None:
    """A refusal of the library has its error body, also in an endpoint of the application."""
    for path in (OWN, READY):
        reply = place.call("POST", path, json={"colour": "red"})
        kind = reply.headers["content-type"]
        assert (reply.status_code, kind) == (400, "application/json; charset=utf-8")
        assert details_of(reply.json())["BadRequest"]["fieldViolations"][0]["field"] == "colour"


PATHS = [
    ("operations/a:b", "operations/a:b"),
    ("operations/a/b", "operations/a/b"),
    ("operations/a%20b+c", "operations/a b+c"),
]
RAW_PATHS = [
    ("operations/a%3Await", "operations/a:wait"),
    ("operations/a%2Fb", "operations/a%2Fb"),
    ("operations/%C3%BC", "operations/ü"),
    ("operations/%E6%97%A5%2f%3A", "operations/日%2f:"),
    ("operations/a%25b", "operations/a%b"),
    ("operations/a%252Fb", "operations/a%2Fb"),
    ("operations/a%3Fb%23", "operations/a?b#"),
]


def check_resource(place: Place, path: str, resource: str) -> None:
    """The path as the edge has read it, taken from its 404."""
    reply = place.call("GET", f"{place.prefix}/v1/{path}")
    assert reply.status_code == 404, reply.text
    assert details_of(reply.json())["ResourceInfo"]["resourceName"] == resource


def test_paths_are_understood(place: Place) -> None:
    """As they were sent; where the path is raw, an encoded slash separates nothing."""
    for path, resource in (*PATHS, *(RAW_PATHS if place.raw else ())):
        check_resource(place, path, resource)


ERRORS = [
    ("GET", "operations/x/", 404, "ROUTE_NOT_FOUND"),
    ("GET", "operations/%2E%2E", 400, "INVALID_OPERATION_NAME"),
    ("GET", "operations/%FF", 400, "MALFORMED_REQUEST"),
    ("PUT", "operations/x", 405, "HTTP_METHOD_NOT_ALLOWED"),
    ("POST", "operations/x:cancel?a=b", 400, "MALFORMED_REQUEST"),
    ("GET", "operations/a%0Ab", 400, "INVALID_OPERATION_NAME"),
]


def test_errors_of_the_edge(place: Place) -> None:
    """A mounted edge answers all that is below it, in its own words."""
    passed = set()
    if place.framework == "flask" and not (place.prefix and place.raw):
        # What the edge does not know is the application's, which knows it no more.
        passed = {"operations/x/", "operations/%FF"}
    elif place.framework != "flask" and place.prefix:
        passed = {"operations/a%0Ab"}  # a mount of Starlette matches no path with a newline
    for method, path, status, reason in ERRORS:
        reply = place.call(method, f"{place.prefix}/v1/{path}")
        if path in passed:
            assert reply.status_code == 404
        else:
            found = details_of(reply.json())["ErrorInfo"]["reason"]
            assert (reply.status_code, found) == (status, reason), path


def test_errors_of_the_application_itself_are_unchanged(place: Place) -> None:
    """An application's own 404 and 405 are its own."""
    alone = bool(place.prefix) or place.framework == "flask"
    assert place.call("GET", OWN).status_code == 405
    assert ("google.rpc" in place.call("GET", "/nothing").text) == (not alone)


# -- odd ways to mount ------------------------------------------------------------------------


def test_a_proxy_that_cuts_the_prefix() -> None:
    """The application's root_path is that of the proxy, and the mount's is its own."""
    counting = build()
    inner = starlette_app(counting, "/ops")

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await inner({**scope, "root_path": "/proxy"}, receive, send)

    with servers.asgi_inside(app) as call:
        check_resource(Place(call, "/ops", counting), "operations/a%2Fb", "operations/a%2Fb")


def test_a_mount_in_a_mount() -> None:
    """Each mount adds its prefix to root_path."""
    counting = build()
    app = Starlette(routes=[Mount("/outer", starlette_app(counting, "/inner"))])
    with servers.asgi_inside(app) as call:
        check_resource(
            Place(call, "/outer/inner", counting), "operations/a%2Fb", "operations/a%2Fb"
        )


def test_behind_a_middleware_that_has_read_the_body() -> None:
    """Starlette's base middleware gives the body again, and then only the end of the line."""
    counting = build()
    name = counting.start(metadata=CountMetadata(percent=1))

    async def read(request: Request, call_next: Any) -> Any:
        await request.body()
        return await call_next(request)

    app = Starlette(
        routes=[Mount("/", asgi.OperationsApp(counting.service))],
        middleware=[Middleware(BaseHTTPMiddleware, dispatch=read)],
    )
    with servers.asgi_inside(app) as call:
        reply = call("POST", f"/v1/{name}:wait", json={"timeout": "0.01s"})
    assert (reply.status_code, reply.json()["name"]) == (200, name)


def test_an_application_behind_the_edge() -> None:
    """Without a mount: the edge in front, every other path for the application."""
    counting = build()
    app = asgi.OperationsApp(counting.service, fallback=starlette_app(counting, "/unused"))
    with servers.asgi_socket(app) as call:
        name = call("POST", OWN, json={}).json()["name"]
        assert call("GET", f"/v1/{name}").json() == {"name": name}
        assert call("GET", "/nothing").text == "Not Found"


def test_flasks_own_test_client() -> None:
    """It passes raw paths on as a server does."""
    counting = build()
    client = flask_app(counting, "").test_client()
    started = client.post(READY, json={"steps": 1})
    assert client.get(f"/v1/{started.json['name']}").json == started.json
    reply = client.get("/v1/operations/%C3%BC%2Fb")
    assert details_of(reply.json)["ResourceInfo"]["resourceName"] == "operations/ü%2Fb"
