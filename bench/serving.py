"""The servers that ``bench.http_get`` compares: ``python -m bench.serving KIND PORT``."""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import uvicorn

import lro
import lro.wire
from bench.codec import BOOK, META, BookResponse, Meta
from bench.start_to_result import Request
from lro.asgi import OperationsApp
from lro.executors.inline import InlineExecutor
from lro.stores.memory import MemoryStore
from lro.stores.sqlite import SQLiteStore


def bare(body: bytes) -> Any:
    """Return the simplest ASGI application, which replies with the same bytes to every request."""
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]

    async def app(_: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    return app


def with_cpu(app: Any) -> Any:
    """Return the application with a path ``/cpu``, which returns the process's seconds of CPU."""

    async def counted(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http" and scope["path"] == "/cpu":
            await bare(str(time.process_time()).encode())(scope, receive, send)
        else:
            await app(scope, receive, send)

    return counted


def serve(app: Any, port: int) -> None:
    """Serve an application, and its CPU, until the process is killed."""
    uvicorn.run(
        with_cpu(app), port=port, log_level="critical", lifespan="off",
        loop="uvloop", http="httptools",
    )  # fmt: skip


def booked(kind: str) -> tuple[lro.Service, str]:
    """Return a service and the name of its only operation, which has ended."""
    store: Any = MemoryStore()
    if kind == "sqlite":
        store = SQLiteStore(Path(tempfile.mkdtemp()) / "operations.db")
    service = lro.Service(store, InlineExecutor())
    method = service.declare(
        "bench.v1.Bench.Book", request=Request, response=BookResponse, metadata=Meta
    )
    name = method.start(Request(), metadata=META).name
    service.reporter(name).complete(BOOK)
    return service, name


def starlette(body: Any) -> Any:
    from starlette.applications import Starlette
    from starlette.responses import JSONResponse
    from starlette.routing import Route

    async def get(_: Any) -> JSONResponse:
        return JSONResponse(body)

    return Starlette(routes=[Route("/v1/operations/{name}", get)])


def main(kind: str, port: int) -> None:
    service, name = booked(kind)
    value = lro.wire.operation_to_json(service.get(name), service.types)
    apps = {"bare": bare(lro.wire.dumps(value)), "starlette": starlette(value)}
    print(name, flush=True)
    serve(apps.get(kind) or OperationsApp(service), port)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
