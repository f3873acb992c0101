"""The reference server for tests: an application in this process, and a process of its own."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import io
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import numpy.typing as npt
import PIL.Image
import uvicorn

from examples.analysis.deployment import QUEUE
from examples.analysis.messages import BoundingBox, Image, TrackRequest
from examples.analysis.server import make_app
from lro import Service, TypeRegistry
from lro.executors.threads import ThreadExecutor
from lro.stores.sqlite import SQLiteStore

ROOT = Path(__file__).resolve().parents[3]
Json = dict[str, Any]
TYPES = TypeRegistry()
"""One for all tests: making one takes longer than a small request."""

SERVE = ("-m", "examples.analysis", "serve", "--port", "0", "--concurrency", "1", "--store")
SHORT_LEASE = """
import sys
from examples.analysis import server

server.STOP_SECONDS = 0.2
server.main(
    ["--port", "0", "--concurrency", "1", "--lease", "3", "--store", sys.argv[1]]
)
"""
"""The server as a program, but one whose workers count as lost after three seconds of silence."""


def as_json(message: object) -> Json:
    """The body of a request: of a message, or the one given."""
    body = message if isinstance(message, dict) else TYPES.dump(message)
    assert isinstance(body, dict)
    return body


class Server:
    """The application, called through httpx's ASGI transport."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self.app = make_app(service)
        self.transport = httpx.ASGITransport(self.app)
        self._runner = asyncio.Runner()
        self._http = httpx.AsyncClient(transport=self.transport, base_url="http://analysis")

    @classmethod
    def on(cls, database: Path, workers: int = 2) -> Server:
        """The server on a database file; no thread looks for the work of lost workers."""
        executor = ThreadExecutor(workers, queue=QUEUE)
        return cls(
            Service(SQLiteStore(database), executor, domain="analysis.test", maintenance=False)
        )

    def close(self) -> None:
        """Close the service, without waiting for work that runs."""
        self._runner.run(self._http.aclose())
        self._runner.close()
        self.service.close(drain=timedelta())

    def run(self, coroutine: Any) -> Any:
        """Run a coroutine on the event loop of this server."""
        return self._runner.run(coroutine)

    def call(self, method: str, path: str, **options: Any) -> httpx.Response:
        """One request."""
        reply: httpx.Response = self.run(self._http.request(method, path, **options))
        return reply

    def get(self, name: str) -> Json:
        """The operation as it is now."""
        reply = self.call("GET", f"/v1/{name}")
        assert reply.status_code == 200, reply.text
        return json_object(reply)

    def start(self, verb: str, message: object, **options: Any) -> Json:
        """The new operation."""
        reply = self.call("POST", f"/v1/{verb}", json=as_json(message), **options)
        assert reply.status_code == 200, reply.text
        return json_object(reply)

    def until(self, name: str, reached: Callable[[Json], bool]) -> Json:
        """The operation once it has reached this, or is done."""
        while True:
            reply = self.call("POST", f"/v1/{name}:wait", json={"timeout": "0.05s"})
            assert reply.status_code == 200, reply.text
            operation = json_object(reply)
            if operation.get("done") or reached(operation):
                return operation

    def finish(self, name: str) -> Json:
        """The operation once it is done."""
        return self.until(name, lambda _: False)

    def listed(self, **query: Any) -> list[Json]:
        """A page of the operations."""
        reply = self.call("GET", "/v1/operations", params=query)
        assert reply.status_code == 200, reply.text
        operations: list[Json] = json_object(reply).get("operations", [])
        return operations


def json_object(reply: httpx.Response) -> Json:
    """The body of a reply."""
    body = reply.json()
    assert isinstance(body, dict)
    return body


def complaint(error: Json) -> str:
    """The one field that an error complains of; the error is well-formed and discreet."""
    kinds = [detail["@type"].rpartition(".")[2] for detail in error["details"]]
    assert kinds.count("ErrorInfo") == 1
    assert error["message"]
    assert not re.search(r"Traceback|PIL|Errno|Error\b|0x", error["message"])
    violations = error["details"][kinds.index("BadRequest")]["fieldViolations"]
    assert len(violations) == 1
    assert violations[0]["description"]
    field: str = violations[0]["field"]
    return field


@contextlib.contextmanager
def listening(server: Server) -> Iterator[str]:
    """The same application under uvicorn, in a thread; gives its address."""
    listener = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(server.app, log_level="warning", ws="none", lifespan="off")
    site = uvicorn.Server(config)
    thread = threading.Thread(target=site.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        yield "http://{}:{}".format(*listener.getsockname())
    finally:
        site.should_exit = True
        thread.join()


class Process:
    """The server as a process; ``http`` calls it."""

    def __init__(self, *command: str) -> None:
        self.popen = subprocess.Popen(
            [sys.executable, *command],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.popen.stdout is not None
        self.http = httpx.Client(base_url=self.popen.stdout.readline().strip(), timeout=240)

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *_: object) -> None:
        self.http.close()
        self.popen.kill()
        self.popen.communicate()

    def start(self, verb: str, message: object) -> Json:
        """The new operation."""
        reply = self.http.post(f"/v1/{verb}", json=as_json(message))
        assert reply.status_code == 200, reply.text
        return json_object(reply)

    def get(self, name: str) -> Json:
        """The operation as it is now."""
        reply = self.http.get(f"/v1/{name}")
        assert reply.status_code == 200, reply.text
        return json_object(reply)

    def until(self, name: str, reached: Callable[[Json], bool] = lambda _: False) -> Json:
        """The operation once it has reached this, or is done."""
        while True:
            reply = self.http.post(f"/v1/{name}:wait", json={"timeout": "0.05s"})
            operation = json_object(reply)
            assert reply.status_code == 200, reply.text
            if operation.get("done") or reached(operation):
                return operation

    def watch(self, name: str) -> Iterator[Json]:
        """The operation, each time that its percentage has changed, until it is done."""
        percent = -1
        while True:
            operation = self.until(name, _percent_not(percent))
            yield operation
            if operation.get("done"):
                return
            percent = _percent(operation)

    def wait_in_thread(self, name: str) -> Callable[[], httpx.Response | None]:
        """Begin a Wait in a thread; returns a function that gives its reply, None without one."""

        def wait() -> httpx.Response | None:
            try:
                return self.http.post(f"/v1/{name}:wait")
            except httpx.TransportError:
                return None

        executor = ThreadPoolExecutor(1)
        reply = executor.submit(wait)
        executor.shutdown(wait=False)
        return reply.result

    def signal(self, number: int) -> tuple[int, str]:
        """Send a signal; the exit status, and what was written to standard error."""
        self.popen.send_signal(number)
        _, errors = self.popen.communicate(timeout=240)
        return self.popen.returncode, errors


def _percent(operation: Json) -> int:
    found: int = operation["metadata"].get("progressPercent", 0)
    return found


def _percent_not(percent: int) -> Callable[[Json], bool]:
    return lambda operation: _percent(operation) != percent


@functools.cache
def slow_request(frames: int) -> TrackRequest:
    """A search so wide that every frame takes a tenth of a second or more."""
    noise = np.random.default_rng(0).integers(0, 256, (64, 64), dtype=np.uint8)
    scene = PIL.Image.fromarray(noise).resize((1024, 1024), PIL.Image.Resampling.BICUBIC)
    pictures = [_jpeg(np.roll(np.asarray(scene), 2 * shift, axis=1)) for shift in range(frames)]
    box = BoundingBox(x=450, y=450, width=80, height=80)
    return TrackRequest(frames=tuple(pictures), box=box, search_margin_px=400)


def _jpeg(pixels: npt.NDArray[np.uint8]) -> Image:
    file = io.BytesIO()
    PIL.Image.fromarray(pixels).save(file, "JPEG", quality=80)
    return Image(content=file.getvalue())
