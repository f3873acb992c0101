"""A server process, which serves the operations of a service over HTTP."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import json
import logging
import os
import signal
import socket
import traceback
from collections.abc import Awaitable, Callable, MutableMapping
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import attrs
import cattrs
import uvicorn

import lro
import lro.executors.threads
import lro.stores.sqlite
from lro.adapters import Executor, Observer, Store, WriteRefused
from lro.asgi import OperationsApp
from lro.http import Start
from tests.chaos.trapped import trapped
from tests.chaos.traps import SERVER, Trap, arm
from tests.chaos.works import FOLDER, TRAP, WorkMetadata, WorkRequest, declare

for _extra in ("lro.stores.postgres", "lro.executors.processes", "lro.executors.celery"):
    with contextlib.suppress(ImportError, lro.errors.MissingExtra):
        __import__(_extra)  # imported before the fork server forks processes

COUNT_PATH: Final = "/chaos/late-writes"
_PR_SET_PDEATHSIG: Final = 1

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


@attrs.frozen(kw_only=True)
class Setting:
    """The settings of a server process. Times are in seconds.

    ``store`` is a path, or a URL whose fragment is the schema. ``folder`` is for the logs. ``role``
    is "web", or "worker" for a Celery worker. ``broker`` is a URL whose fragment is the name of the
    queue.
    """

    store: str
    folder: str
    executor: str = "threads"
    role: str = "web"
    workers: int = 4
    lease: float = 1.0
    drain: float = 10.0
    broker: str = ""
    trap: Trap | None = None


def store_at(place: str, **options: Any) -> Store:
    """Open a store at a path, or at a PostgreSQL URL with the schema after a ``#``."""
    if place.startswith("postgresql:"):
        from lro.stores.postgres import PostgresStore

        url, _, schema = place.partition("#")
        return PostgresStore(url, schema=schema, **options)
    from lro.stores.sqlite import SQLiteStore

    return SQLiteStore(place, **options)


def make_executor(setting: Setting) -> Executor:
    """Create the executor that the setting names."""
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


def make_service(setting: Setting, *observers: Observer) -> lro.Service:
    """Create the service of a server process, without methods."""
    return lro.Service(
        trapped(store_at(setting.store)),
        make_executor(setting),
        domain="chaos.test",
        lease=timedelta(seconds=setting.lease),
        drain=timedelta(seconds=setting.drain),
        observers=observers,
    )


class LateWrites(Observer):
    """An observer that counts the refused writes of workers."""

    count = 0

    def write_refused(self, event: WriteRefused) -> None:
        """Count the write."""
        self.count += 1


def prepare(setting: Setting) -> None:
    """Make this process a server with these settings: set its trap, folder and log."""
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
    """The ASGI application of a server."""

    def __init__(self, setting: Setting) -> None:
        self._late_writes = LateWrites()
        self.service = make_service(setting, self._late_writes)
        starts = {
            f"/v1/works:{name}": Start(method, metadata=_first_metadata)
            for name, method in declare(self.service, awaits=setting.executor == "loop").items()
        }
        self._app = OperationsApp(self.service, starts=starts, fallback=self._fallback)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a connection."""
        try:
            await self._app(scope, receive, send)
        except asyncio.CancelledError:  # the server stops without waiting for a long Wait
            await _reply(send, 503, b"")

    async def _fallback(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":  # the service handles its own lifespan
            return
        found = scope["path"] == COUNT_PATH
        body = json.dumps(self._late_writes.count).encode()
        await _reply(send, *((200, body) if found else (404, b"")))


async def _reply(send: Send, status: int, body: bytes) -> None:
    await send({"type": "http.response.start", "status": status, "headers": []})
    await send({"type": "http.response.body", "body": body})


def _first_metadata(request: WorkRequest) -> WorkMetadata:
    return WorkMetadata(text=request.text)


def serve(setting: Setting, listener: socket.socket) -> None:
    """Run a server until SIGTERM, in a process that leads a group and dies with its parent."""
    os.setpgid(0, 0)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    output = os.open(Path(setting.folder) / "output.log", os.O_CREAT | os.O_APPEND | os.O_WRONLY)
    os.dup2(output, 1)
    os.dup2(output, 2)
    status = 1
    try:
        _serve(setting, listener)
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)


def _serve(setting: Setting, listener: socket.socket) -> None:
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
