"""What the hosts under test serve: one method on a SQLite file, its operations, and a log."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from datetime import timedelta
from typing import Any, Final

import attrs

import lro
from lro import asgi, wsgi
from lro.executors.threads import ThreadExecutor
from lro.stores.sqlite import SQLiteStore
from tests.stopping.hosts import FOLDER, START_PATH

LEASE: Final = timedelta(seconds=2)
DRAIN: Final = timedelta(seconds=0.5)

Message = MutableMapping[str, Any]


@lro.message("stopping.v1.WorkRequest")
@attrs.frozen
class WorkRequest:
    """How long the work takes."""

    milliseconds: lro.Int32 = 0


@lro.message("stopping.v1.WorkMetadata")
@attrs.frozen
class WorkMetadata:
    """Nothing is told of it."""


@lro.message("stopping.v1.WorkResponse")
@attrs.frozen
class WorkResponse:
    """How long the work took."""

    milliseconds: lro.Int32 = 0


def note(log: str, line: str) -> None:
    """Append a line to one of the logs."""
    with open(os.path.join(os.environ[FOLDER], log), "a") as file:
        file.write(line + "\n")


service = lro.Service(
    SQLiteStore(os.path.join(os.environ[FOLDER], "operations.db")),
    ThreadExecutor(4),
    lease=LEASE,
    drain=DRAIN,
)


@service.method("stopping.v1.Works.Work", path=START_PATH)
def work(request: WorkRequest, job: lro.Job[WorkMetadata]) -> WorkResponse:
    """Take as long as the request says."""
    note("begun", job.name)
    for _ in range(request.milliseconds // 20):
        job.sleep(0.02)
    return WorkResponse(request.milliseconds)


_asgi = asgi.OperationsApp(service, otherwise=asgi.StartApp(service, work))
_wsgi = wsgi.OperationsApp(service, otherwise=wsgi.StartApp(service, work))


async def asgi_app(
    scope: Message,
    receive: Callable[[], Awaitable[Message]],
    send: Callable[[Message], Awaitable[None]],
) -> None:
    """The application for ASGI hosts; it notes which calls have come."""
    if scope["type"] == "http":
        note("calls", scope["path"])
    await _asgi(scope, receive, send)


def wsgi_app(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
    """The application for WSGI hosts; it notes which calls have come."""
    note("calls", environ["PATH_INFO"])
    return _wsgi(environ, start_response)
