"""Helpers that run both kinds of gRPC server on real sockets."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import grpc.aio
import lro.grpc
from tests.http.servers import HOST, in_thread
from tests.waiting import PATIENCE

Add = Callable[[Any], None]
"""A function that adds handlers to a server."""


@contextlib.contextmanager
def on_threads(add: Add, threads: int = 8) -> Iterator[str]:
    """Run a ``grpc.Server`` and yield its address."""
    with ThreadPoolExecutor(threads, "grpc-pool") as pool:
        server = grpc.server(pool)
        add(server)
        port = server.add_insecure_port(f"{HOST}:0")
        server.start()
        try:
            yield f"{HOST}:{port}"
        finally:
            server.stop(None).wait()


@contextlib.contextmanager
def on_asyncio(add: Add) -> Iterator[str]:
    """Run a ``grpc.aio.Server`` on an event loop in its own thread and yield its address."""
    ready, ports = threading.Event(), []
    loop = asyncio.new_event_loop()
    stopped = asyncio.Event()

    async def serve() -> None:
        server = grpc.aio.server()
        add(server)
        ports.append(server.add_insecure_port(f"{HOST}:0"))
        await server.start()
        ready.set()
        await stopped.wait()
        await server.stop(None)

    def run() -> None:
        with asyncio.Runner(loop_factory=lambda: loop) as runner:
            runner.run(serve())

    with in_thread(run, lambda: loop.call_soon_threadsafe(stopped.set)):
        assert ready.wait(PATIENCE)
        yield f"{HOST}:{ports[0]}"


KINDS = {"threads": on_threads, "asyncio": on_asyncio}


@contextlib.contextmanager
def serving(kind: str, service: lro.Service, **options: Any) -> Iterator[str]:
    """Serve a service on this kind of server and yield its address."""
    with KINDS[kind](lambda server: lro.grpc.add_to(server, service, **options)) as address:
        yield address
