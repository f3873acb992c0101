"""One server process: a service on a store, its methods and operations over HTTP."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import socket
from collections.abc import Awaitable, Callable, MutableMapping
from datetime import timedelta
from typing import Any, Final

import attrs
import cattrs
import uvicorn

import lro
from lro.adapters import Executor, Store
from lro.asgi import OperationsApp
from lro.http import Start
from tests.chaos.trapped import trapped
from tests.chaos.traps import SERVER, Trap, arm
from tests.chaos.works import FOLDER, TRAP, WorkMetadata, WorkRequest, declare

COUNT_PATH: Final = "/chaos/late-writes"

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


@attrs.frozen(kw_only=True)
class Setting:
    """The settings of a server process. Times are in seconds.

    ``store`` is a URL, whose fragment is the schema on PostgreSQL; ``folder`` takes the logs.
    ``role`` is "web", or "worker" for one of Celery's, whose ``broker`` is a URL with the queue's
    name as fragment.
    """

    store: str
    folder: str
    executor: str = "threads"
    role: str = "web"
    workers: int = 4
    lease: float = 1.0
    drain: float = 10.0
    busy: float = 5.0
    broker: str = ""
    trap: Trap | None = None

    def dumps(self) -> str:
        """As JSON."""
        return json.dumps(cattrs.unstructure(self))

    @classmethod
    def loads(cls, text: str | bytes) -> Setting:
        """From JSON."""
        return cattrs.structure(json.loads(text), cls)


def open_store(setting: Setting) -> Store:
    """The store of a URL."""
    kind, _, rest = setting.store.partition("://")
    if kind == "sqlite":
        from lro.stores.sqlite import SQLiteStore

        return SQLiteStore(rest.removeprefix("/"), busy_seconds=setting.busy)
    from lro.stores.postgres import PostgresStore

    url, _, schema = setting.store.partition("#")
    return PostgresStore(url, schema=schema)


def make_executor(setting: Setting) -> Executor:
    """The executor of this name."""
    if setting.executor == "processes":
        from lro.executors.processes import ProcessExecutor

        return ProcessExecutor(setting.workers)
    if setting.executor == "celery":
        from tests.chaos.celery_app import make_remote

        return make_remote(setting.broker, setting.lease)
    if setting.executor == "loop":
        from lro.executors.asyncio import AsyncioExecutor

        return AsyncioExecutor(setting.workers, loop="running")
    from lro.executors.threads import ThreadExecutor

    return ThreadExecutor(setting.workers)


def make_service(setting: Setting) -> lro.Service:
    """The service of a server process, without methods."""
    return lro.Service(
        trapped(open_store(setting)),
        make_executor(setting),
        domain="chaos.test",
        lease=timedelta(seconds=setting.lease),
    )


def prepare(setting: Setting) -> None:
    """Make this process a server of that setting: its trap, its folder, its log."""
    os.environ[SERVER] = str(os.getpid())
    os.environ[FOLDER] = setting.folder
    os.environ.pop(TRAP, None)
    if setting.trap is not None:
        os.environ[TRAP] = json.dumps(cattrs.unstructure(setting.trap))
    arm(setting.trap)
    logging.basicConfig(
        filename=os.path.join(setting.folder, f"server-{os.getpid()}.log"),
        level=logging.INFO,
        format="%(created).3f %(levelname)s %(name)s %(threadName)s %(message)s",
        force=True,
    )
    for chatty in ("uvicorn", "celery", "kombu", "psycopg"):
        logging.getLogger(chatty).setLevel(logging.WARNING)


class Site:
    """Everything that a server answers, as an ASGI application."""

    def __init__(self, setting: Setting) -> None:
        self._drain = setting.drain
        self.service = make_service(setting)
        starts = {
            f"/v1/works:{name}": Start(method, metadata=_first_metadata)
            for name, method in declare(self.service, awaits=setting.executor == "loop").items()
        }
        self._app = OperationsApp(self.service, starts=starts, fallback=self._fallback)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The ASGI interface."""
        try:
            await self._app(scope, receive, send)
        except asyncio.CancelledError:  # the server stops, and has no time for a long Wait
            await _reply(send, 503, b"")

    async def _fallback(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._live(receive, send)
            return
        found = scope["path"] == COUNT_PATH
        body = json.dumps(self.service.late_writes).encode()
        await _reply(send, *((200, body) if found else (404, b"")))

    async def _live(self, receive: Receive, send: Send) -> None:
        while (await receive())["type"] == "lifespan.startup":
            await send({"type": "lifespan.startup.complete"})
        await asyncio.to_thread(self.service.close, self._drain)
        await send({"type": "lifespan.shutdown.complete"})


async def _reply(send: Send, status: int, body: bytes) -> None:
    await send({"type": "http.response.start", "status": status, "headers": []})
    await send({"type": "http.response.body", "body": body})


def _first_metadata(request: WorkRequest) -> WorkMetadata:
    return WorkMetadata(text=request.text)


def serve(setting: Setting, listener: socket.socket) -> None:
    """Be this server, until SIGTERM."""
    prepare(setting)
    if setting.role == "worker":
        from tests.chaos.celery_app import work

        listener.close()
        declare(make_service(setting))
        work(setting)
        return
    config = uvicorn.Config(
        Site(setting),
        log_config=None,
        ws="none",
        loop="asyncio",
        http="h11",
        timeout_graceful_shutdown=1,
    )
    with contextlib.suppress(KeyboardInterrupt):
        uvicorn.Server(config).run(sockets=[listener])
