"""A server whose operations end at given times: ``python -m bench.operated FACE PORT``.

The server runs in its own process and reads commands as lines of JSON. Times are from
``time.monotonic``, which on Linux is one clock for all processes of a machine.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, Final

import uvicorn

import lro
import lro.wire
from bench.load import free_port
from bench.peer import ROOT
from lro.asgi import OperationsApp
from lro.executors.inline import InlineExecutor
from lro.stores.memory import MemoryStore

WAIT: Final = "WaitOperation"
LIST: Final = "ListOperations"
BATCH: Final = "BatchGetOperations"
WATCH: Final = "WatchOperations"

FACES: Final[dict[str, tuple[str, ...]]] = {
    "watch": (LIST, WAIT, BATCH, WATCH),
    "batch": (LIST, WAIT, BATCH),
    "list": (LIST,),
    "wait": (LIST, WAIT),
    "plain": (),
    "hinted": (),
}
"""The verbs of each kind of server besides Get; only "hinted" recommends a polling interval."""

METADATA: Final = {"verb": "export", "progressPercent": 40, "createTime": "2030-01-02T03:04:05Z"}
BEGIN, STATUS = "/status/begin/", "/status/of/"
"""Paths of Azure's protocol, in which a 202 reply has the URL of the status."""


class Operated:
    """The application of the server, which counts requests and connections."""

    def __init__(self, face: str) -> None:
        self.service = lro.Service(MemoryStore(), InlineExecutor(), verbs=FACES[face])
        self.method = self.service.declare(
            "bench.v1.Bench.Run",
            request=lro.Struct,
            response=lro.types.StringValue,
            metadata=lro.Struct,
        )
        self._edge = OperationsApp(self.service)
        self._hints = face == "hinted"
        self.connections: set[Any] = set()
        self._forget()

    def _forget(self) -> None:
        self._ends: dict[str, float] = {}
        self._asked: Counter[str] = Counter()
        self._peak = 0
        self._cpu = time.process_time()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        path: str = scope["path"]
        self._peak = max(self._peak, len(self.connections))
        if path.startswith(BEGIN):
            host = dict(scope["headers"])[b"host"].decode()
            where = f"http://{host}{STATUS}{path.removeprefix(BEGIN)}"
            await self._say(send, 202, {}, (b"operation-location", where.encode()))
            return
        if path.startswith(STATUS):
            name = path.removeprefix(STATUS)
            self._asked[name] += 1
            hint = [(b"retry-after", b"1")] if self._hints and name not in self._ends else []
            status = "Succeeded" if name in self._ends else "InProgress"
            await self._say(send, 200, {"id": name, "status": status, **METADATA}, *hint)
            return
        self._asked[path.removeprefix("/v1/").partition(":")[0]] += 1
        await self._edge(scope, receive, send if self._hints else _unhinted(send))

    async def _say(self, send: Any, status: int, value: Any, *headers: tuple[bytes, bytes]) -> None:
        body = lro.wire.dumps(value)
        kinds = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
        await send({"type": "http.response.start", "status": status, "headers": [*kinds, *headers]})
        await send({"type": "http.response.body", "body": body})

    async def make(self, ends: Sequence[float]) -> list[str]:
        """Start an operation for each end time, and reset the counts."""
        loop = asyncio.get_running_loop()
        self._forget()
        names = []
        for end in ends:
            metadata = lro.Struct(METADATA)
            name = self.method.start(lro.Struct({}), metadata=metadata).name
            names.append(name)
            if end:  # 0 means never
                loop.call_later(end - time.monotonic(), self._end, name)
        return names

    def _end(self, name: str) -> None:
        self.service.reporter(name).complete(lro.types.StringValue("done"))
        self._ends[name] = time.monotonic()

    async def counted(self) -> dict[str, Any]:
        """Return end times, requests per path, the most connections at once, and seconds of CPU."""
        cpu = time.process_time() - self._cpu
        return {"ends": self._ends, "asked": self._asked, "peak": self._peak, "cpu": cpu}

    def obey(self, loop: asyncio.AbstractEventLoop) -> None:
        """Run the commands on standard input, each a verb and its arguments; then exit."""
        for line in sys.stdin:
            verb, arguments = json.loads(line)
            done = asyncio.run_coroutine_threadsafe(getattr(self, verb)(*arguments), loop)
            print(json.dumps(done.result()), flush=True)
        os._exit(0)


def _unhinted(send: Any) -> Any:
    """Drop the recommended polling interval, which Google's services do not send."""

    async def sent(message: Any) -> None:
        if message["type"] == "http.response.start":
            headers = [one for one in message["headers"] if one[0] != b"retry-after"]
            message = {**message, "headers": headers}
        await send(message)

    return sent


class Remote:
    """The parent's side of a server process; ``url`` is the server's address."""

    def __init__(self, process: subprocess.Popen[str], url: str) -> None:
        self._process = process
        self.url = url

    def call(self, verb: str, *arguments: Any) -> Any:
        """Call ``make`` or ``counted`` in the server, and return the result."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps([verb, arguments]), file=self._process.stdin, flush=True)
        return json.loads(self._process.stdout.readline())


@contextlib.contextmanager
def operated(face: str) -> Iterator[Remote]:
    """Run a server of this kind in another process."""
    port = free_port()
    process = subprocess.Popen(
        [sys.executable, "-m", "bench.operated", face, str(port)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        if not process.stdout.readline():
            raise SystemExit("a bench server did not start")
        yield Remote(process, f"http://127.0.0.1:{port}")
    finally:
        process.terminate()
        process.communicate()


async def serve(face: str, port: int) -> None:
    """Serve until the process is killed."""
    app = Operated(face)
    config = uvicorn.Config(
        app, port=port, log_level="critical", lifespan="off", http="httptools", ws="none",
        backlog=16_384,
    )  # fmt: skip
    server = uvicorn.Server(config)
    app.connections = server.server_state.connections
    task = asyncio.create_task(server.serve())
    while not server.started:
        await asyncio.sleep(0.01)
    print("ready", flush=True)
    loop = asyncio.get_running_loop()
    threading.Thread(target=app.obey, args=(loop,), daemon=True).start()
    await task


if __name__ == "__main__":
    import uvloop

    uvloop.run(serve(sys.argv[1], int(sys.argv[2])))
