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

NAME_FILE = "name.txt"


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


def operations(store: Any) -> tuple[Any, str]:
    service = lro.Service(store, InlineExecutor())
    method = service.declare(
        "bench.v1.Bench.Book", request=Request, response=BookResponse, metadata=Meta
    )
    name = method.start(Request(), metadata=META).name
    service.reporter(name).complete(BOOK)
    return OperationsApp(service), name


def starlette(body: Any) -> Any:
    from starlette.applications import Starlette
    from starlette.responses import JSONResponse
    from starlette.routing import Route

    async def get(_: Any) -> JSONResponse:
        return JSONResponse(body)

    return Starlette(routes=[Route("/v1/operations/{name}", get)])


def main(kind: str, port: int) -> None:
    folder = tempfile.mkdtemp()
    store: Any = MemoryStore()
    if kind == "sqlite":
        store = SQLiteStore(Path(folder) / "operations.db")
    app, name = operations(store)
    operation = app.edge.service.get(name)
    value = lro.wire.operation_to_json(operation, app.edge.service.types)
    apps = {"bare": bare(lro.wire.dumps(value)), "starlette": starlette(value)}
    print(name, flush=True)
    uvicorn.run(
        with_cpu(apps.get(kind, app)), port=port, log_level="critical", lifespan="off",
        loop="uvloop", http="httptools",
    )  # fmt: skip


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
