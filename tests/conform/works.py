"""A service whose operations run and end as their requests say."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Iterator
from datetime import timedelta
from typing import Any, Final

import attrs
import httpx

import lro
from lro.executors.threads import ThreadExecutor
from lro.stores.memory import MemoryStore
from lro_conform.server._bench import Pace
from lro_conform.server._http import HttpTarget
from lro_conform.server._starts import HttpStarter, RequestTemplate, StartKind

PATH: Final = "/v1/works:start"
SECONDS: Final = {StartKind.LONG: 3600.0, StartKind.SOON: 0.02, StartKind.FAIL: 0.0}
REQUESTS: Final = {
    kind: f"POST {PATH} " + json.dumps({"seconds": seconds, "fails": kind is StartKind.FAIL})
    for kind, seconds in SECONDS.items()
}
TEMPLATES: Final = {kind: RequestTemplate.parse(text) for kind, text in REQUESTS.items()}
PATIENT: Final = Pace(end=60.0, slack=20.0, hold=0.1, rounds=3)
"""The pace for a correct server on a busy machine."""


@lro.message("conform.v1.WorkRequest")
@attrs.frozen
class WorkRequest:
    """A request that says how long the work takes, and whether it fails."""

    seconds: float = 0.0
    fails: bool = False


@lro.message("conform.v1.WorkResponse")
@attrs.frozen
class WorkResponse:
    """The result of the work."""

    text: str = ""


@attrs.frozen
class Works:
    """The service and its method."""

    service: lro.Service
    method: Any

    async def start(self, kind: StartKind) -> str:
        """Start an operation of this kind, and return its name, as a hook for any transport."""
        request = WorkRequest(SECONDS[kind], kind is StartKind.FAIL)
        return str((await asyncio.to_thread(self.method.start, request)).name)


@contextlib.contextmanager
def serving_works(store: Any = None, **options: Any) -> Iterator[Works]:
    """Serve works from this store or from memory. Closing does not wait for running work."""
    service = lro.Service(store or MemoryStore(), ThreadExecutor(60), **options)

    @service.method("conform.v1.Works.Start", path=PATH)
    def work(request: WorkRequest, job: lro.Job[lro.OperationMetadata]) -> WorkResponse:
        job.sleep(request.seconds)
        if request.fails:
            raise lro.StatusError(lro.Code.FAILED_PRECONDITION, "the request says so")
        return WorkResponse(text="done")

    try:
        yield Works(service, work)
    finally:
        service.close(timedelta(0))


def http_target(app: Any = None, url: str = "http://here", **options: Any) -> HttpTarget:
    """Make a target for an ASGI application in this process, or for a URL."""
    through = httpx.ASGITransport(app, raise_app_exceptions=False) if app is not None else None
    return HttpTarget(address=url, through=through, **options)


def http_starter(target: HttpTarget) -> HttpStarter:
    """Make the starter for a server of this service."""
    return HttpStarter(target, TEMPLATES)
