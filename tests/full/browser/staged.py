"""A service whose work the test controls step by step, and the server of its console."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, Final

import attrs

import lro
from lro.asgi import EdgeApp
from lro.console import ConsoleEdge
from lro.executors.threads import ThreadExecutor
from lro.http import OPERATOR_VERBS, VERBS
from lro.stores.memory import MemoryStore
from tests.http.servers import HOST, uvicorn_serving
from tests.waiting import PATIENCE, until

WORKERS: Final = 4
_LOOK_SECONDS: Final = 0.02
"""The interval between checks for cancellation while the work waits for its next step."""


@attrs.frozen
class ResizeRequest:
    key: str = ""


@attrs.frozen
class ResizeResponse:
    width: lro.Int32 = 0
    pixels: lro.types.Int64 = 0


@attrs.frozen
class ImportRequest:
    key: str = ""


@attrs.frozen
class ImportMetadata:
    dataset: str = ""
    done: lro.types.Int64 = 0
    total: lro.types.Int64 = 0
    labels: dict[str, str] = attrs.field(factory=dict)


@attrs.frozen
class ImportResponse:
    rows: lro.types.Int64 = 0


Step = Callable[[Any], object]
"""A step of the work, called with the job; a result other than None ends the work."""


class Stage:
    """A service, and the queues of steps that its work runs."""

    def __init__(self) -> None:
        self._steps: dict[str, queue.Queue[Step]] = {}
        self._held: dict[str, threading.Event] = {}
        self._over = threading.Event()
        self.service = lro.Service(
            MemoryStore(),
            ThreadExecutor(WORKERS),
            domain="acme.test",
            verbs=(*VERBS, *OPERATOR_VERBS),
        )
        self.resize: Any = self.service.method("acme.images.v1.Images.Resize")(self._resize)
        self.load: Any = self.service.method(
            "acme.data.v1.Data.Import", indexed_paths=("dataset",)
        )(self._load)

    def _resize(self, request: ResizeRequest, job: lro.Job) -> ResizeResponse:
        response: ResizeResponse = self._play(request.key, job)
        return response

    def _load(self, request: ImportRequest, job: lro.Job[ImportMetadata]) -> ImportResponse:
        response: ImportResponse = self._play(request.key, job)
        return response

    def _play(self, key: str, job: Any) -> Any:
        while not self._over.is_set():
            try:
                step = self._steps[key].get(timeout=_LOOK_SECONDS)
            except queue.Empty:
                job.raise_if_cancelled()
                continue
            if (response := step(job)) is not None:
                return response
        raise lro.StatusError(lro.Code.ABORTED, "the test is over")

    def start(self, key: str, parent: str = "", *, load: bool = False) -> str:
        """Start an operation whose steps have this key, and return its name."""
        self._steps.setdefault(key, queue.Queue())
        method, request = (self.load, ImportRequest) if load else (self.resize, ResizeRequest)
        name: str = method.start(request(key=key), parent=parent).name
        return name

    def do(self, key: str, step: Step) -> None:
        """Add a step to the queue of the work with this key."""
        self._steps[key].put(step)

    def progress(self, key: str, fraction: float, message: str = "") -> None:
        """Make the work with this key report progress."""
        self.do(key, lambda job: job.progress(fraction, message))

    def succeed(self, key: str, width: int = 640, pixels: int = 2**53 + 1) -> None:
        """Make the work with this key end with a response."""
        self.do(key, lambda _: ResizeResponse(width=width, pixels=pixels))

    def fail(self, key: str, error: Exception) -> None:
        """Make the work with this key end with an error."""

        def raise_it(_: object) -> None:
            raise error

        self.do(key, raise_it)

    def pause(self, key: str) -> None:
        """Block the work with this key, so that it ignores a cancellation until :meth:`go_on`."""
        held = self._held[key] = threading.Event()
        self.do(key, lambda _: held.wait() and None)

    def go_on(self, key: str) -> None:
        """Unblock the work that :meth:`pause` blocked."""
        self._held[key].set()

    def await_calm(self, *keys: str) -> None:
        """Wait until the queues with these keys are empty."""
        until(lambda: all(self._steps[key].empty() for key in keys))

    def ended(self, name: str) -> lro.Operation:
        """Wait until the operation is done and return it."""
        return self.service.wait(name, PATIENCE)

    def close(self) -> None:
        """Stop the service and all running work."""
        self._over.set()
        for held in self._held.values():
            held.set()
        self.service.close(timedelta(0))


@contextmanager
def console_of(service: lro.Service, **options: Any) -> Iterator[str]:
    """Serve the console of a service with uvicorn and yield its URL."""
    with uvicorn_serving(
        EdgeApp(ConsoleEdge(service, **options)), timeout_graceful_shutdown=5
    ) as port:
        yield f"http://{HOST}:{port}/"
