"""A service with operations in every state, and the calls that an Azure client makes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from datetime import timedelta
from typing import Any, Final

import attrs
import httpx
import pytest

import lro
from lro import asgi, wsgi
from lro.azure import AzureEdge
from lro.executors.threads import ThreadExecutor
from lro.stores.memory import MemoryStore
from tests.http.servers import asgi_inside, wsgi_inside

DOMAIN: Final = "media.example.com"
PATH: Final = "/v1/videos:transcode"
APPS: Final[Mapping[str, Any]] = {
    "asgi": (asgi.EdgeApp, asgi_inside),
    "wsgi": (wsgi.EdgeApp, wsgi_inside),
}


@lro.message("media.v1.TranscodeRequest")
@attrs.frozen
class TranscodeRequest:
    """A request to transcode; the source decides the outcome."""

    source: str = ""
    width: lro.Int32 = 0


@lro.message("media.v1.TranscodeMetadata")
@attrs.frozen
class TranscodeMetadata:
    """The progress of the work."""

    percent: lro.Int32 = 0


@lro.message("media.v1.TranscodeResponse")
@attrs.frozen
class TranscodeResponse:
    """The location of the result."""

    uri: str = ""


WRONG: Final = lro.types.BadRequest(
    (
        lro.types.FieldViolation(field="source", description="is not a video"),
        lro.types.FieldViolation(field="width", description="is odd"),
    )
)


class Media:
    """A service, its method, and calls to an application of the service.

    The work of the sources ``wait`` and ``target`` waits until :attr:`go` is set. ``refused``,
    ``violations`` and ``odd reason`` end with an error of the work, ``broken`` with an internal
    error.
    """

    def __init__(self, kind: str, stack: ExitStack, options: Any, **edge: Any) -> None:
        self.go = threading.Event()
        made = {"limits": lro.Limits(), **options}
        executor = made.pop("executor", None) or ThreadExecutor(4)
        store = made.pop("store", None) or MemoryStore()
        self.service = lro.Service(store, executor, domain=DOMAIN, **made)
        stack.callback(self.service.close, timedelta(0))
        stack.callback(self.go.set)

        @self.service.method(
            "media.v1.Videos.Transcode",
            path=PATH,
            exclusive_target=lambda request: "one" if request.source == "target" else "",
        )
        def transcode(
            request: TranscodeRequest, job: lro.Job[TranscodeMetadata]
        ) -> TranscodeResponse:
            job.report(TranscodeMetadata(percent=40))
            while request.source in ("wait", "target") and not self.go.is_set():
                job.sleep(0.001)
            if request.source == "refused":
                raise lro.StatusError(
                    lro.Code.FAILED_PRECONDITION, "the source is no video", why="SOURCE_NO_VIDEO"
                )
            if request.source == "violations":
                raise lro.StatusError(lro.Code.INVALID_ARGUMENT, "it is wrong", (WRONG,))
            if request.source == "odd reason":
                raise lro.StatusError(lro.Code.NOT_FOUND, "", why="no\r\nheader")
            if request.source == "broken":
                raise KeyError("a defect")
            return TranscodeResponse(uri="b.mp4")

        self.transcode = transcode
        application, inside = APPS[kind]
        app = application(AzureEdge(self.service, starts=True, **edge))
        self.edge = app.edge
        self._call = stack.enter_context(inside(app))

    def call(self, method: str, url: str, **more: Any) -> httpx.Response:
        """Call the application; ``url`` may be absolute."""
        reply: httpx.Response = self._call(method, url, **more)
        return reply

    def start(self, source: str = "", url: str = PATH, **headers: str) -> httpx.Response:
        """Start an operation; ``_`` in header names means ``-``."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return self.call("POST", url, json={"source": source}, headers=named)

    def ended(self, source: str = "") -> httpx.Response:
        """Return the monitor of an operation that has ended."""
        started = self.start(source)
        self.service.wait(f"operations/{started.json()['id']}")
        return self.call("GET", started.headers["operation-location"])


MakeMedia = Callable[..., Media]


each_kind = pytest.mark.parametrize("make_media", list(APPS), indirect=True)
"""A mark that runs a test with the ASGI and the WSGI application."""


@pytest.fixture
def make_media(request: pytest.FixtureRequest) -> Iterator[MakeMedia]:
    """A function that makes services behind an application; keywords are options of the edge."""
    with ExitStack() as stack:

        def make(options: Any = None, **edge: Any) -> Media:
            return Media(getattr(request, "param", "asgi"), stack, options or {}, **edge)

        yield make
