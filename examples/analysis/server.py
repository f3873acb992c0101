"""The reference server: the ``/v1`` router of ten endpoints, health, and the operations."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import functools
import gc
import multiprocessing
import os
import re
import signal
import socket
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, MutableMapping
from datetime import UTC, datetime
from typing import Any, Final
from urllib.parse import parse_qs

import uvicorn
from starlette.applications import Starlette
from starlette.responses import Response

from examples.analysis import page
from examples.analysis.deployment import EXECUTORS, Deployment
from examples.analysis.messages import Image
from examples.analysis.methods import AnalysisMethod, first_metadata, register
from examples.analysis.router import Allowed, ToRouter, default_answer, health, route
from lro import LroError, Service
from lro.asgi import EdgeApp, OperationsApp
from lro.console import ConsoleEdge
from lro.errors import InvalidParent, RouteNotFound
from lro.http import HttpRequest, Start, allow_reply, error_reply, json_reply
from lro.openapi import Document

MAX_BODY: Final = 32 * 1024 * 1024
PARENTS: Final = ("projects/*", "projects/*/locations/*")
DOCUMENT: Final = Document(title="Image analysis", description="Ten analyses of pictures.")
RAW_VERBS: Final = frozenset({"detect", "segment", "classify", "score", "explain", "extract"})
STOP_SECONDS: Final = 3
"""Maximum seconds that calls in progress, such as a Wait, delay the end of the server."""
_OPTIONS: Final[Mapping[str, Any]] = {
    "log_level": "warning",
    "ws": "none",
    "timeout_graceful_shutdown": STOP_SECONDS,
}

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]


def make_app(service: Service, grpc_address: str = "") -> Starlette:
    """Return the whole server as an application, which closes the service when it ends.

    ``grpc_address`` is the address for gRPC, such as ``127.0.0.1:50051``, or empty for no gRPC.
    """
    methods = register(service)
    router = Router(service, methods)

    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        async with contextlib.AsyncExitStack() as stack:
            stack.push_async_callback(asyncio.to_thread, service.close)
            service.edges.start_maintenance()  # otherwise the first request would do this
            gc.collect()
            gc.freeze()  # imported objects stay alive, so exclude them from garbage collections
            if grpc_address:
                await stack.enter_async_context(serving_grpc(service, methods, grpc_address))
            yield

    app = Starlette(lifespan=lifespan)
    app.router.default = router  # a mount would not match paths that contain a newline
    return app


@contextlib.asynccontextmanager
async def serving_grpc(
    service: Service, methods: Mapping[str, AnalysisMethod], address: str
) -> AsyncIterator[None]:
    """Serve the operations and the ten methods over gRPC too, on the event loop of HTTP."""
    import grpc

    import lro.grpc

    # Several server processes can listen on one port; the system distributes the calls.
    limits = [("grpc.max_receive_message_length", MAX_BODY), ("grpc.so_reuseport", 1)]
    server = grpc.aio.server(options=limits)
    starts = [
        lro.grpc.StartMethod(method=method, metadata=functools.partial(first_metadata, verb))
        for verb, method in methods.items()
    ]
    lro.grpc.add_to(server, service, methods=starts, max_request=MAX_BODY)
    port = server.add_insecure_port(address)
    await server.start()
    print("grpc://{}:{}".format(address.rpartition(":")[0], port), flush=True)
    try:
        yield
    finally:
        service.edges.end_waits()
        await server.stop(STOP_SECONDS)


class Router:
    """Return the router of spec §10 and the operations as an ASGI application."""

    def __init__(self, service: Service, methods: Mapping[str, AnalysisMethod]) -> None:
        self._service = service
        starts = {f"/v1/{verb}": _start(verb, method) for verb, method in methods.items()}
        self._app = OperationsApp(
            service, starts=starts, parents=PARENTS, max_body=MAX_BODY, openapi=DOCUMENT
        )
        self._others = EdgeApp(
            ConsoleEdge(service, path="/console", title="Image analysis"), self._app
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        method = scope["method"]
        path = scope["raw_path"].decode("utf-8", "surrogateescape").partition("?")[0]
        try:
            await self._choose(method, path)(scope, receive, send)
        except LroError as exc:
            await self._refusal(exc, method)(scope, receive, send)

    def _refusal(self, error: LroError, method: str) -> Response:
        reply = error_reply(error, self._service.types, self._service.domain)
        return Response(*(reply.headless if method == "HEAD" else reply).parts)

    def _choose(self, method: str, path: str) -> App:
        try:
            answer = route(method, path)
        except RouteNotFound:
            is_page = method in ("GET", "HEAD") and page.PATHS.fullmatch(path)
            return self._show_page if is_page else self._others
        if isinstance(answer, ToRouter):
            return _at(f"/v1/{answer.name}", default_answer(method, answer, self._app))
        if isinstance(answer, Allowed):
            return Response(*allow_reply(answer.allow).parts)
        reply = json_reply(*health(datetime.now(UTC)))
        return Response(*(reply.headless if answer.head else reply).parts)

    async def _show_page(self, scope: Scope, receive: Receive, send: Send) -> None:
        query = scope["query_string"].decode("ascii", "replace")
        reply = await asyncio.to_thread(page.answer, self._service, scope["path"], query)
        reply = reply.headless if scope["method"] == "HEAD" else reply
        await Response(*reply.parts)(scope, receive, send)


def _at(path: str, app: App) -> App:
    """Wrap an application so that it gets this path, however the request has spelled the path."""

    async def call(scope: Scope, receive: Receive, send: Send) -> None:
        await app({**scope, "path": path, "raw_path": path.encode()}, receive, send)

    return call


def _start(verb: str, method: AnalysisMethod) -> Start[Any]:
    def raw(content_type: str, body: bytes) -> Any:
        if verb not in RAW_VERBS or not content_type.startswith("image/"):
            return None
        return method.spec.request(image=Image(content=body, mime_type=content_type))

    return Start(
        method, metadata=lambda request: first_metadata(verb, request), parent=_parent, raw=raw
    )


def _parent(request: HttpRequest) -> str:
    # Each application decides who chooses the parent of an operation; here the caller does.
    parent = parse_qs(request.query).get("parent", [""])[0]
    if parent and not any(re.fullmatch(p.replace("*", "[^/]+"), parent) for p in PARENTS):
        raise InvalidParent("parent", f"must be like {' or '.join(PARENTS)}, got {parent!r}")
    return parent


def main(arguments: list[str]) -> None:
    """Serve until a signal stops it: ``python -m examples.analysis serve --port 8000``."""
    plain = Deployment.of_environment()
    parser = argparse.ArgumentParser(
        prog="python -m examples.analysis serve",
        description="Serve the ten analyses over HTTP; prints the address when it is ready.",
    )
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000, help="0 for any free port")
    parser.add_argument("--store", default=plain.store, help="or postgresql://...")
    parser.add_argument("--executor", default=plain.executor, help=f"of {', '.join(EXECUTORS)}")
    parser.add_argument("--broker", default=plain.broker, help="of Celery")
    parser.add_argument("--concurrency", type=int, default=2, help="analyses at once in a process")
    parser.add_argument("--workers", type=int, default=1, help="server processes on the store")
    parser.add_argument("--grpc", type=int, help="a port for gRPC; 0 for any free port")
    parser.add_argument("--lease", type=float, default=plain.lease, help="allowed silence in s")
    options = vars(parser.parse_args(arguments))
    host, port, workers = (options.pop(name) for name in ("host", "port", "workers"))
    grpc_port = options.pop("grpc")
    try:
        listener = socket.create_server((host, port))
    except (OSError, OverflowError) as exc:
        parser.error(f"cannot listen: {exc}")
    if grpc_port == 0 and workers > 1:
        parser.error("--grpc: several workers share a port, which must be given")
    grpc_address = "" if grpc_port is None else f"{host}:{grpc_port}"
    deployment = Deployment(grpc=grpc_address, **options)
    try:
        service = deployment.make_service()
    except (LroError, ValueError) as exc:
        parser.error(f"cannot serve {deployment.store}: {exc}")
    print("http://{}:{}".format(*listener.getsockname()), flush=True)
    if workers == 1:
        serve(service, listener, grpc_address)
        return
    service.close()
    # The processes share only the store.
    os.environ.update(deployment.environment())
    factory = f"{__name__}:{worker_app.__name__}"
    uvicorn.run(factory, factory=True, workers=workers, fd=listener.fileno(), **_OPTIONS)


def worker_app() -> Starlette:
    """Return the application for one of several server processes, which end with their parent."""
    parent = multiprocessing.parent_process()

    def follow() -> None:
        # A killed parent cannot stop its children, which would keep the socket.
        assert parent is not None
        parent.join()
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=follow, daemon=True).start()
    deployment = Deployment.of_environment()
    return make_app(deployment.make_service(), deployment.grpc)


def serve(service: Service, listener: socket.socket, grpc_address: str = "") -> None:
    """Serve on this socket, and over gRPC if an address is given, until a signal stops it.

    The exit status is 0 after SIGTERM, even in the first process of a container. That process gets
    only signals that it handles, so SIGTERM has a handler before and after uvicorn sets its own.
    """
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    config = uvicorn.Config(make_app(service, grpc_address), **_OPTIONS)
    with contextlib.suppress(KeyboardInterrupt):
        uvicorn.Server(config).run(sockets=[listener])
