"""Ways for a test to call an application: within the process, or through a real server."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import io
import socket
import threading
from collections.abc import Callable, Iterator
from http.client import parse_headers
from types import SimpleNamespace
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler

import httpx
import pytest

Caller = Callable[..., httpx.Response]
"""Sends a request; takes the method, the raw path with its query, and options of httpx."""

HOST = "127.0.0.1"


def listening(port: int = 0) -> socket.socket:
    """Return a listening socket, by default on a free port."""
    # Without the protocol argument, asyncio would not disable Nagle's algorithm.
    line = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    line.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # a restart may reuse the port
    line.bind((HOST, port))
    line.listen(500)
    return line


@contextlib.contextmanager
def in_thread(run: Callable[[], object], stop: Callable[[], object]) -> Iterator[None]:
    """Run a server in a thread, and stop the server at the end."""
    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        stop()
        thread.join()


@contextlib.contextmanager
def uvicorn_serving(app: Any, at: int = 0, **options: Any) -> Iterator[int]:
    """Serve an application with uvicorn in a thread; yield the port, by default a free one."""
    uvicorn = pytest.importorskip("uvicorn")
    options = {"log_config": None, "http": "h11", "ws": "none", "loop": "asyncio", **options}
    options.setdefault("timeout_graceful_shutdown", 60)  # a failed test must not hang
    server = uvicorn.Server(uvicorn.Config(app, **options))
    stop = functools.partial(setattr, server, "should_exit", True)
    with listening(at) as line, in_thread(functools.partial(server.run, sockets=[line]), stop):
        yield line.getsockname()[1]


@contextlib.contextmanager
def waitress_serving(app: Any, threads: int = 4) -> Iterator[int]:
    """Serve an application with waitress in a thread; yield the port."""
    waitress = pytest.importorskip("waitress.server")
    server = waitress.create_server(app, sockets=[listening()], threads=threads)

    def close() -> None:  # runs in the server's thread
        for channel in list(server._map.values()):
            channel.close()

    def stop() -> None:
        server.pull_trigger = lambda: None  # worker threads must not use a closed trigger
        # A worker that has just answered may wake the server, which then closes the trigger first.
        with contextlib.suppress(OSError):
            server.trigger.pull_trigger(close)

    try:
        with in_thread(server.run, stop):
            yield server.effective_port
    finally:
        server.task_dispatcher.shutdown()


@contextlib.contextmanager
def asgi_socket(app: Any) -> Iterator[Caller]:
    """Call an application over a socket, through uvicorn."""
    with uvicorn_serving(app) as port, httpx.Client(base_url=f"http://{HOST}:{port}") as client:
        yield client.request


@contextlib.contextmanager
def wsgi_socket(app: Any) -> Iterator[Caller]:
    """Call an application over a socket, through waitress."""
    with waitress_serving(app) as port, httpx.Client(base_url=f"http://{HOST}:{port}") as client:
        yield client.request


@contextlib.contextmanager
def asgi_inside(app: Any) -> Iterator[Caller]:
    """Call an ASGI application without a socket, through httpx's transport."""

    async def one(method: str, path: str, **more: Any) -> httpx.Response:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://here") as client:
            return await client.request(method, path, **more)

    yield lambda method, path, **more: asyncio.run(one(method, path, **more))


@contextlib.contextmanager
def wsgi_inside(app: Any) -> Iterator[Caller]:
    """Call a WSGI application without a socket, through httpx's transport."""
    with httpx.Client(transport=httpx.WSGITransport(app), base_url="http://here") as client:
        yield client.request


def environ_of_wsgiref(method: str, path: str, *lines: str) -> dict[str, Any]:
    """Return the environ that the standard library's server makes from these header lines."""
    handler = WSGIRequestHandler.__new__(WSGIRequestHandler)  # needs no socket
    handler.server = SimpleNamespace(base_environ={})  # type: ignore[assignment]
    handler.client_address = (HOST, 1)
    handler.command, handler.path, handler.request_version = method, path, "HTTP/1.1"
    handler.headers = parse_headers(io.BytesIO("\r\n".join((*lines, "", "")).encode()))
    return {**handler.get_environ(), "wsgi.input": io.BytesIO(), "wsgi.url_scheme": "http"}
