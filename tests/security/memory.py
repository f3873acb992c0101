"""Measure the memory that a server needs while many large operations are read at once.

``python -m tests.security.memory sqlite|memory|postgres text|objects SLOW [URL]`` prints megabytes:
SLOW slow readers run beside eight lists and eight batches.
"""

from __future__ import annotations

import http.client
import json
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import lro
import lro.adapters
from lro.executors.inline import InlineExecutor
from lro.stores.memory import MemoryStore
from lro.stores.sqlite import SQLiteStore

COUNT: Final = 300
SIZE: Final = 1_800_000
READERS: Final = 8
_METHOD: Final = "acme.v1.Works.Large"


def service_of(kind: str, where: str) -> lro.Service:
    """Make a service on a store; its method's response can be any JSON object."""
    if kind == "postgres":
        from lro.stores.postgres import PostgresStore

        store: lro.adapters.Store = PostgresStore(where)
    else:
        store = SQLiteStore(where) if kind == "sqlite" else MemoryStore()
    service = lro.Service(store, InlineExecutor())
    service.declare(_METHOD, request=lro.Empty, response=lro.Struct, metadata=lro.Empty)
    return service


def fill(service: lro.Service, shape: str, count: int, size: int) -> list[str]:
    """Store operations whose responses are one text or many small objects, ``size`` bytes each."""
    payload: dict[str, Any] = {"text": "x" * size}
    if shape == "objects":
        payload = {"objects": [{"x": 1.5, "y": n} for n in range(size // 20)]}
    response = lro.AnyMessage("type.googleapis.com/google.protobuf.Struct", payload)
    names = [service.start(_METHOD, lro.Empty()).name for _ in range(count)]
    for name in names:
        service.reporter(name).complete(response)
    return names


def serve(kind: str, shape: str, where: str, count: int, size: int) -> None:
    """Print the port and the operations' names, then serve; fill a store in memory first."""
    import uvicorn

    from lro.asgi import OperationsApp

    service = service_of(kind, where)
    names = fill(service, shape, count, size) if kind == "memory" else []
    with socket.create_server(("127.0.0.1", 0)) as listening:
        print(json.dumps([listening.getsockname()[1], names]), flush=True)
        config = uvicorn.Config(OperationsApp(service), log_level="error")
        uvicorn.Server(config).run([listening])


class Served:
    """A server with many large operations, in its own process."""

    def __init__(self, kind: str, shape: str, where: str, count: int, size: int) -> None:
        stored: list[str] = []
        if kind != "memory":
            with service_of(kind, where) as service:
                stored = fill(service, shape, count, size)
        command = [sys.executable, "-m", "tests.security.memory", "serve", kind, shape, where]
        self._process = subprocess.Popen(
            [*command, str(count), str(size)], stdout=subprocess.PIPE, text=True
        )
        assert self._process.stdout is not None
        self.port, names = json.loads(self._process.stdout.readline())
        self.names = stored or names
        assert self.ask("GET", "/v1/operations/none")[0] == 404
        self.idle = self.memory("VmRSS")

    def memory(self, field: str) -> float:
        """Return the server's memory in megabytes: ``VmRSS`` is the current, ``VmHWM`` the peak."""
        status = Path(f"/proc/{self._process.pid}/status").read_text()
        (line,) = (line for line in status.splitlines() if line.startswith(field + ":"))
        return int(line.split()[1]) / 1024

    def ask(self, method: str, path: str, body: object = None) -> tuple[int, Any]:
        """Send a request and return the reply's status code and JSON."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=300)
        try:
            text = None if body is None else json.dumps(body)
            connection.request(method, path, text, {"content-type": "application/json"})
            reply = connection.getresponse()
            return reply.status, json.loads(reply.read())
        finally:
            connection.close()

    def dawdle(self) -> socket.socket:
        """Open a connection, request a page on it, and do not read the reply."""
        line = socket.create_connection(("127.0.0.1", self.port))
        line.sendall(b"GET /v1/operations?pageSize=1000 HTTP/1.1\r\nhost: x\r\n\r\n")
        return line

    def walk(self) -> int:
        """Read all pages of a list and return the number of operations on them."""
        token, seen = "", 0
        while True:
            status, page = self.ask("GET", f"/v1/operations?pageSize=1000&pageToken={token}")
            if status == 200:
                seen += len(page.get("operations", ()))
                token = page.get("nextPageToken", "")
                if not token:
                    return seen
            else:
                assert status == 429, (status, page)
                time.sleep(0.1)

    def batch(self) -> int:
        """Return the status code of a BatchGet of all names; retry while the server is busy."""
        while True:
            status, reply = self.ask("POST", "/v1/operations:batchGet", {"names": self.names})
            if status != 429 or reply["error"]["details"][0]["reason"] == "BATCH_TOO_LARGE":
                return status
            time.sleep(0.1)

    def close(self) -> None:
        """Stop the server."""
        self._process.kill()
        self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()


def together(*calls: Callable[[], Any]) -> list[Any]:
    """Run these calls at the same time and return their results."""
    with ThreadPoolExecutor(len(calls)) as pool:
        return [made.result() for made in [pool.submit(call) for call in calls]]


def measure(kind: str, shape: str, where: str, *, slow: int) -> None:
    """Print how much memory a server on this kind of store needs beside ``slow`` slow readers."""
    served = Served(kind, shape, where, COUNT, SIZE)
    lines = [served.dawdle() for _ in range(slow)]
    try:
        began = time.monotonic()
        found = together(*[served.walk] * READERS, *[served.batch] * READERS)
        took = time.monotonic() - began
        over = served.memory("VmHWM") - served.idle
        print(f"{kind} {shape} slow={slow}: idle {served.idle:.0f} MB, at most {over:.0f} MB more")
        print(f"  in {took:.1f} s: {found}")
    finally:
        for line in lines:
            line.close()
        served.close()


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve(*sys.argv[2:5], *map(int, sys.argv[5:]))  # type: ignore[call-arg, arg-type]
    else:
        with tempfile.TemporaryDirectory() as directory:
            where = sys.argv[4] if len(sys.argv) > 4 else str(Path(directory, "operations.db"))
            measure(sys.argv[1], sys.argv[2], where, slow=int(sys.argv[3]))
