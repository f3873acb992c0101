"""The edge mounted in Starlette and in Flask; lro.integrations has tests of its own."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import pytest

from lro import asgi, wsgi
from lro.http import answer
from tests.http import servers
from tests.http.counting_service import (
    URL,
    CountMetadata,
    CountRequest,
    CountService,
    begun,
    build,
    details_of,
)
from tests.http.servers import Caller

pytest.importorskip("starlette")
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
    """Make an application with two paths for starts; the edge is mounted or is the default app."""
    service, count = counting.service, counting.count

    async def start(request: Request) -> Response:
        body = await request.json()
        begin = lambda: count.start(service.types.load(body, CountRequest))  # noqa: E731
        return Response(*(await run_in_threadpool(answer, service, begin)).parts)

    ready = Route(READY, asgi.OperationsApp(service, starts={READY: count}))
    app = Starlette(routes=[Route(OWN, start, methods=["POST"]), ready])
    if prefix:
        app.mount(prefix, asgi.OperationsApp(service))
    else:  # a mount at the root would not match a newline
        app.router.default = asgi.OperationsApp(service)
    return app


def flask_app(counting: CountService, prefix: str) -> Any:
    """Make the same application in Flask; the edge is mounted or has Flask as its fallback."""
    service, count = counting.service, counting.count
    app = flask.Flask(__name__)

    @app.post(OWN)
    def start() -> Any:
        body = flask.request.get_json()
        return answer(service, lambda: count.start(service.types.load(body, CountRequest))).parts

    @app.post(READY)
    def start_ready() -> Any:
        return wsgi.OperationsApp(service, starts={READY: count})

    if prefix:
        beside = {prefix.encode().decode("latin-1"): wsgi.OperationsApp(service)}
        app.wsgi_app = DispatcherMiddleware(app.wsgi_app, beside)
    else:
        app.wsgi_app = wsgi.OperationsApp(service, fallback=app.wsgi_app)
    return app


@pytest.mark.parametrize("prefix", ["", "/a/b ü"])
@pytest.mark.parametrize(
    ("make", "serve"), [(starlette_app, servers.asgi_socket), (flask_app, servers.wsgi_socket)]
)
def test_edge_is_mounted_in_an_application(make: Any, serve: Any, prefix: str) -> None:
    """A mounted edge gets raw paths; the edge and the framework each answer their own errors."""
    counting = build()
    at = f"{quote(prefix)}/v1"
    with serve(make(counting, prefix)) as call:
        for path in (OWN, READY):
            refused = call("POST", path, json={"colour": "red"})
            (violation,) = details_of(refused.json())["BadRequest"]["fieldViolations"]
            assert (refused.status_code, violation["field"]) == (400, "colour")
            name = call("POST", path, json={"steps": 3}).json()["name"]
            assert call("GET", f"{at}/{name}").json() == {"name": name}
            counting.finish(name)
            done = call("POST", f"{at}/{name}:wait").json()
            assert done["response"] == {"@type": URL + "acme.v1.CountResponse", "total": 3}
            listed = call("GET", f"{at}/operations", params={"filter": "done=true"})
            assert listed.json() == {"operations": [done]}
            assert call("DELETE", f"{at}/{name}").json() == {}
        for path, resource in (
            ("operations/a%3Await", "operations/a:wait"),
            ("operations/%E6%97%A5%2f%3A", "operations/日%2f:"),
            ("operations/a%25b", "operations/a%b"),
            ("operations/a%20b+c", "operations/a b+c"),
        ):
            check_resource(call, f"{at}/{path}", resource)
        for method, path, reason in (
            ("GET", "operations/%2E%2E", "INVALID_OPERATION_NAME"),
            ("PUT", "operations/x", "HTTP_METHOD_NOT_ALLOWED"),
            ("POST", "operations/x:cancel?a=b", "MALFORMED_REQUEST"),
        ):
            reply = call(method, f"{at}/{path}")
            assert details_of(reply.json())["ErrorInfo"]["reason"] == reason
        assert call("GET", OWN).status_code == 405
        alone = bool(prefix) or make is flask_app
        assert ("google.rpc" in call("GET", "/nothing").text) == (not alone)


def check_resource(call: Caller, path: str, resource: str) -> None:
    """Check that the edge reads this resource name from the path, as its 404 reply says."""
    reply = call("GET", path)
    assert reply.status_code == 404, reply.text
    assert details_of(reply.json())["ResourceInfo"]["resourceName"] == resource


@pytest.mark.parametrize("prefix", ["/inner", "/outer/inner"])
def test_root_path_of_nested_mounts_and_proxies_is_removed_once(prefix: str) -> None:
    """Each mount appends its prefix to root_path, which may already have a proxy's prefix."""
    inner = starlette_app(build(), "/inner")
    outer = Starlette(routes=[Mount("/outer", inner)])

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if prefix == "/inner":
            await inner({**scope, "root_path": "/proxy"}, receive, send)
        else:
            await outer(scope, receive, send)

    with servers.asgi_inside(app) as call:
        check_resource(call, f"{prefix}/v1/operations/a%2Fb", "operations/a%2Fb")


def test_body_that_a_middleware_has_read_is_read_again() -> None:
    """A body that Starlette's base middleware has read is passed on, followed by the disconnect."""
    counting, name = begun(metadata=CountMetadata(percent=1))

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
