"""Consoles on real servers, hypercorn among them, and a proxy that strips its path prefix."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx
import pytest

from lro import asgi, wsgi
from lro.console import ConsoleEdge
from tests.http.servers import HOST, in_thread, listening, uvicorn_serving, waitress_serving
from tests.integrations.counting import Counting, build, name_of
from tests.waiting import PATIENCE

SECURE = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
        "require-trusted-types-for 'script'; trusted-types 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}
"""Headers that every reply of a console must have."""


@contextlib.contextmanager
def hypercorn_serving(app: Any) -> Iterator[int]:
    """Serve an application with hypercorn in a thread with an event loop, and yield the port."""
    pytest.importorskip("hypercorn")
    from hypercorn.asyncio import serve
    from hypercorn.config import Config

    line, loop, over = listening(), asyncio.new_event_loop(), asyncio.Event()
    config = Config()
    port: int = line.getsockname()[1]
    config.bind = [f"fd://{line.detach()}"]  # hypercorn closes the socket
    config.accesslog = config.errorlog = None

    def run() -> None:
        loop.run_until_complete(serve(app, config, shutdown_trigger=over.wait))
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()

    with in_thread(run, lambda: loop.call_soon_threadsafe(over.set)):
        yield port


SERVERS: Mapping[str, tuple[Any, Any]] = {
    "uvicorn": (uvicorn_serving, asgi.EdgeApp),
    "hypercorn": (hypercorn_serving, asgi.EdgeApp),
    "waitress": (waitress_serving, wsgi.EdgeApp),
}
"""For each server: the function that serves an application, and the application's class."""


def authenticate(headers: Mapping[str, str]) -> str:
    """Return the caller that a token identifies."""
    return name_of(headers.get("authorization"))


def counting(**options: Any) -> Counting:
    """Return a service whose operations are visible to every caller."""
    return build(**{"owner_only": False, "authorize": None, **options})


@contextlib.contextmanager
def console(
    kind: str, made: Counting | None = None, base: str = "", fallback: Any = None, **options: Any
) -> Iterator[httpx.Client]:
    """Serve a console on this kind of server, yield a client, and close the service at the end."""
    serve, app = SERVERS[kind]
    made = made or counting()
    with (
        made.service,
        serve(app(ConsoleEdge(made.service, **options), fallback)) as port,
        httpx.Client(base_url=f"http://{HOST}:{port}{base}", timeout=PATIENCE) as client,
    ):
        try:
            yield client
        finally:
            made.go.set()  # otherwise the service would wait for the work


@contextlib.contextmanager
def cutting_proxy(port: int, prefix: str) -> Iterator[int]:
    """Serve another server's paths below a prefix, which is cut off, and yield the port."""

    class Proxy(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            assert self.path.startswith(prefix)
            headers = {**self.headers, "X-Forwarded-For": "192.0.2.7"}
            url = f"http://{HOST}:{port}{self.path.removeprefix(prefix) or '/'}"
            reply = httpx.get(url, headers=headers, timeout=PATIENCE)
            self.send_response_only(reply.status_code)
            for name in ("content-type", "location"):
                if name in reply.headers:
                    self.send_header(name, reply.headers[name])
            self.end_headers()
            self.wfile.write(reply.content)

        def log_message(self, *_: Any) -> None:
            pass

    with (
        ThreadingHTTPServer((HOST, 0), Proxy) as server,
        in_thread(server.serve_forever, server.shutdown),
    ):
        yield server.server_port
