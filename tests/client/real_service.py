"""A real service whose work executes the steps that a test queues, and three ways to call it."""

from __future__ import annotations

import contextlib
import queue
import socket
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import attrs
import httpx
import pytest

import lro
import lro.asgi
import lro.wsgi
from lro.executors.threads import ThreadExecutor
from lro.stores.memory import MemoryStore
from lro_client.transports import AsyncLocalTransport, LocalTransport
from tests.client.faces import URL, Face
from tests.client.messages import ResizeMetadata, ResizeRequest, ResizeResponse
from tests.waiting import joined, until

PATH = "/v1/images:resize"
FULL_NAME = "acme.images.v1.Images.Resize"


class Harness:
    """A service with one method, whose work takes its steps from a queue that the test fills.

    If the step is metadata, the work reports it; a response or an error ends the work; with None
    the work sleeps until it is cancelled.
    """

    def __init__(self, **options: Any) -> None:
        self.steps: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.service = lro.Service(MemoryStore(), ThreadExecutor(4), domain="acme.test", **options)

        @self.service.method(FULL_NAME, validate=refuse_nothing)
        def resize(request: ResizeRequest, job: lro.Job[ResizeMetadata]) -> ResizeResponse:
            while True:
                step = self.steps.get()
                if isinstance(step, ResizeMetadata):
                    job.report(step)
                elif isinstance(step, ResizeResponse):
                    return step
                elif step is None:
                    job.sleep(60)
                else:
                    raise step

        self.resize = resize

    def say(self, *steps: Any) -> None:
        """Queue steps for the work; if several operations run, any of them may take a step."""
        for step in steps:
            self.steps.put(step)

    def close(self) -> None:
        self.say(*[ResizeResponse()] * 8)  # end work that still waits for a step
        self.service.close(timedelta(seconds=1))


def refuse_nothing(request: ResizeRequest) -> None:
    """Validate a request of the method.

    Raises:
        InvalidArgument: The request has no source.
    """
    if not request.source:
        raise lro.InvalidArgument("source", "must not be empty")


@attrs.define
class Way:
    """A way to call a service: options for its clients, and the target for starting the method."""

    harness: Harness
    face: Face
    target: str
    options: dict[str, Any]

    def client(self, **more: Any) -> Any:
        """Make a client of the service."""
        return self.face.client(**{**self.options, **more})

    def start(self, client: Any, request: ResizeRequest | None = None, **more: Any) -> Any:
        """Start an operation of the method."""
        return client.start(
            self.target,
            request or ResizeRequest(source="a.png"),
            response=ResizeResponse,
            metadata=ResizeMetadata,
            **more,
        )


class Switch:
    """An ASGI application that delegates to ``app``, which tests replace during serving."""

    app: Any = None

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await self.app(scope, receive, send)


@contextlib.contextmanager
def serving(app: Any) -> Iterator[str]:
    """Serve an application with uvicorn on a free port; yield the URL of the server."""
    uvicorn = pytest.importorskip("uvicorn", reason="uvicorn is needed to serve on a socket")
    server = uvicorn.Server(uvicorn.Config(app, log_level="critical", lifespan="off", ws="none"))
    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        try:
            until(lambda: server.started)
            yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            server.should_exit = server.force_exit = True
            joined(thread)


Listen = Callable[[], tuple[Switch, str]]


def local(harness: Harness, face: Face, listen: Listen) -> Way:
    """Call the service directly, without HTTP."""
    made = {"sync": LocalTransport, "async": AsyncLocalTransport}[face.name]
    return Way(harness, face, FULL_NAME, {"transport": made(harness.service)})


def in_process(harness: Harness, face: Face, listen: Listen) -> Way:
    """Use HTTP without sockets: WSGI for the blocking client, ASGI for the async one."""
    edge: Any = lro.wsgi if face.name == "sync" else lro.asgi
    wrap: Any = RawWSGITransport if face.name == "sync" else httpx.ASGITransport
    transport = wrap(app=application(edge, harness))
    return Way(harness, face, PATH, {"base_url": URL, "http": face.http(transport=transport)})


def sockets(harness: Harness, face: Face, listen: Listen) -> Way:
    """Use HTTP over a socket, served by uvicorn."""
    switch, url = listen()
    switch.app = application(lro.asgi, harness)
    return Way(harness, face, PATH, {"base_url": url, "http": face.http(verify=False)})


def application(edge: Any, harness: Harness) -> Any:
    """Make an application that serves the operations of a service and starts its method."""
    starts = {PATH: harness.resize}
    return edge.OperationsApp(harness.service, parents=["projects/*"], starts=starts)


class RawWSGITransport(httpx.WSGITransport):
    """Passes the path to WSGI as servers do: raw in RAW_URI, decoded as Latin-1 in PATH_INFO."""

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        url = request.url
        path = {"RAW_URI": url.raw_path.decode(), "PATH_INFO": url.path.encode().decode("latin-1")}
        app: Any = lambda environ, start: self.app({**environ, **path}, start)  # noqa: E731
        return httpx.WSGITransport(app=app).handle_request(request)


WAYS = {"local": local, "in process": in_process, "sockets": sockets}
