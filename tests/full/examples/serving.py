"""The reference server for tests, as an application in this process or as a process of its own."""

from __future__ import annotations

import contextlib
import functools
import io
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import numpy.typing as npt
import PIL.Image

from examples.analysis.messages import BoundingBox, Image, TrackRequest
from examples.analysis.server import make_app
from lro import Service, TypeRegistry
from lro.executors.threads import ThreadExecutor
from lro.stores.sqlite import SQLiteStore
from tests.http.servers import asgi_inside, uvicorn_serving
from tests.waiting import PATIENCE, until

ROOT = Path(__file__).resolve().parents[3]
Json = dict[str, Any]
TYPES = TypeRegistry()
"""All tests share this registry, because making one takes longer than a small request."""

SERVE = ("-m", "examples.analysis", "serve", "--port", "0", "--concurrency", "1", "--store")


def as_json(message: object) -> Json:
    """Return the JSON body of a request, which is a message or a dict."""
    body = message if isinstance(message, dict) else TYPES.dump(message)
    assert isinstance(body, dict)
    return body


class Caller:
    """Calls a server; subclasses say in ``call`` how to reach it."""

    def call(self, method: str, path: str, **options: Any) -> httpx.Response:
        raise NotImplementedError

    def ask(self, method: str, path: str, **options: Any) -> Json:
        """Return the JSON of a successful reply."""
        reply = self.call(method, path, **options)
        assert reply.status_code == 200, reply.text
        return json_object(reply)

    def get(self, name: str) -> Json:
        """Return the current state of an operation."""
        return self.ask("GET", f"/v1/{name}")

    def start(self, verb: str, message: object, **options: Any) -> Json:
        """Start an operation and return the reply."""
        return self.ask("POST", f"/v1/{verb}", json=as_json(message), **options)

    def finish(self, name: str, reached: Callable[[Json], object] = lambda _: False) -> Json:
        """Return an operation once it is done or ``reached`` is true for it."""
        return until(
            lambda: self.ask("POST", f"/v1/{name}:wait", json={"timeout": "0.05s"}),
            lambda operation: operation.get("done") or reached(operation),
        )

    def listed(self, parent: str = "", **query: Any) -> list[Json]:
        """Return one page of the operations below a parent."""
        path = f"/v1/{parent}/operations" if parent else "/v1/operations"
        operations: list[Json] = self.ask("GET", path, params=query).get("operations", [])
        return operations


class Server(Caller):
    """Calls the application in this process."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self.app = make_app(service)

    @classmethod
    def on(cls, database: Path, workers: int = 2) -> Server:
        """Return a server that stores its operations in this database file."""
        store, executor = SQLiteStore(database), ThreadExecutor(workers)
        return cls(Service(store, executor, domain="analysis.test"))

    def close(self) -> None:
        """Close the service without waiting for running work."""
        self.service.close(drain=timedelta())

    def call(self, method: str, path: str, **options: Any) -> httpx.Response:
        with asgi_inside(self.app) as call:
            return call(method, path, **options)


def json_object(reply: httpx.Response) -> Json:
    """Return the JSON object in a reply's body."""
    body = reply.json()
    assert isinstance(body, dict)
    return body


def complaint(error: Json) -> str:
    """Check that an error is well-formed and hides internals; return the field that it names."""
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
    """Serve the server's application with uvicorn in a thread; yield the address."""
    with uvicorn_serving(server.app, lifespan="off") as port:
        yield f"http://127.0.0.1:{port}"


class Process(Caller):
    """Calls the server as a process of its own, through ``http``."""

    def __init__(self, *command: str) -> None:
        self.popen = subprocess.Popen(
            [sys.executable, *command],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.popen.stdout is not None
        self.http = httpx.Client(base_url=self.popen.stdout.readline().strip(), timeout=PATIENCE)
        self.call = self.http.request  # type: ignore[method-assign]

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *_: object) -> None:
        self.http.close()
        self.popen.kill()
        self.popen.communicate()

    def signal(self, number: int) -> tuple[int, str]:
        """Send a signal; return the process's exit status and standard error."""
        self.popen.send_signal(number)
        _, errors = self.popen.communicate(timeout=PATIENCE)
        return self.popen.returncode, errors


@functools.cache
def slow_request(frames: int) -> TrackRequest:
    """Return a request whose search area is so wide that each frame takes at least 0.1 s."""
    noise = np.random.default_rng(0).integers(0, 256, (64, 64), dtype=np.uint8)
    scene = PIL.Image.fromarray(noise).resize((1024, 1024), PIL.Image.Resampling.BICUBIC)
    pictures = [_jpeg(np.roll(np.asarray(scene), 2 * shift, axis=1)) for shift in range(frames)]
    box = BoundingBox(x=450, y=450, width=80, height=80)
    return TrackRequest(frames=tuple(pictures), box=box, search_margin_px=400)


def _jpeg(pixels: npt.NDArray[np.uint8]) -> Image:
    file = io.BytesIO()
    PIL.Image.fromarray(pixels).save(file, "JPEG", quality=80)
    return Image(content=file.getvalue())
