"""How long a second caller waits while one hostile request is served by a real server.

``python -m tests.security.second h11|httptools [WORD...]`` sends the requests whose names have all
of these words to uvicorn, and prints those for which a GET on another connection took longest: in
all, and how much longer than beside a bare application, which reads the body and answers. What is
the server's own is in both. Times are processor time of the server while the caller waits, so that
other processes of the machine do not count.
"""

from __future__ import annotations

import asyncio
import heapq
import json
import logging
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any, Final

import attrs

from tests.security.held import (
    KB,
    MB,
    SPECIAL,
    Asked,
    app_of,
    counting_of,
    of_bodies,
    of_characters,
    of_filters,
    of_headers,
    of_targets,
    routes,
)

REPEATS: Final = 3
"""Of so many measures the middle one counts."""
PATIENCE: Final = 5.0
"""Seconds until a request without an answer is given up: a stream, or a Wait."""


async def bare(scope: Any, receive: Any, send: Any) -> None:
    """Read the body, and answer."""
    if scope["type"] == "http":
        while (await receive()).get("more_body"):
            pass
        headers = [(b"content-length", b"2")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b"{}"})


def serve(which: str, http: str) -> None:
    """Serve ``ours`` or the ``bare`` application; prints the port, and an operation's name."""
    import uvicorn

    logging.disable(logging.CRITICAL)
    counting, name = counting_of(1000)
    app: Any = app_of(counting) if which == "ours" else bare
    with counting.service, socket.create_server(("127.0.0.1", 0)) as listening:
        print(json.dumps([listening.getsockname()[1], name]), flush=True)
        config = uvicorn.Config(app, http=http, lifespan="off")  # type: ignore[arg-type]
        asyncio.run(uvicorn.Server(config).serve([listening]))


class Served:
    """A server in a process of its own."""

    def __init__(self, which: str, http: str) -> None:
        command = [sys.executable, "-m", "tests.security.second", "serve", which, http]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        self._port, self.name = json.loads(self._process.stdout.readline())
        self._clock = (~self._process.pid << 3) | 2  # as clock_getcpuclockid makes it on Linux

    def close(self) -> None:
        """End it."""
        self._process.kill()
        self._process.wait()

    def waited(self, asked: Asked) -> float:
        """The seconds of the longest GET of a second caller during this request."""
        return statistics.median(self._waited(asked) for _ in range(REPEATS))

    def _waited(self, asked: Asked) -> float:
        longest, over = 0.0, threading.Event()
        begun = threading.Event()

        def second() -> None:
            nonlocal longest
            with self._connected() as line:
                while not over.is_set():
                    before = time.clock_gettime(self._clock)
                    line.sendall(b"GET /v1/%s HTTP/1.1\r\nhost: a\r\n\r\n" % self.name.encode())
                    line.recv(KB * KB)
                    if begun.is_set():
                        longest = max(longest, time.clock_gettime(self._clock) - before)
                    begun.set()

        thread = threading.Thread(target=second)
        thread.start()
        begun.wait()
        try:
            self._send(asked)
        finally:
            over.set()
            thread.join()
        return longest

    def _send(self, asked: Asked) -> None:
        query = b"?" + asked.query if asked.query else b""
        lines = [asked.method.encode() + b" " + asked.path + query + b" HTTP/1.1", b"host: a"]
        lines += [name + b": " + value for name, value in asked.headers]
        if not any(name == b"content-length" for name, _ in asked.headers):
            lines.append(b"content-length: %d" % len(asked.body))
        with self._connected() as line:
            try:
                line.sendall(b"\r\n".join([*lines, b"", asked.body]))
                line.recv(KB)
            except OSError:  # the server has refused it, or waits for more
                pass

    def _connected(self) -> socket.socket:
        line = socket.create_connection(("127.0.0.1", self._port), timeout=PATIENCE)
        line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return line


@attrs.frozen
class Waited:
    """How long a second caller waited, in seconds: for ours, and for the bare application."""

    ours: float
    bare: float
    what: str

    @property
    def more(self) -> float:
        """What is our own."""
        return self.ours - self.bare


def selection(name: str) -> Iterator[Asked]:
    """The largest requests of each structure."""
    chosen = routes(name)
    yield from of_bodies(chosen, [MB])
    yield from of_headers(chosen, [60 * KB, MB])
    yield from of_targets(chosen, [60 * KB])
    yield from of_filters(SPECIAL, [8192])
    yield from of_characters(chosen, SPECIAL[:4], [MB])


def main() -> None:
    """Measure both servers, and print the longest."""
    http, *words = sys.argv[1:]
    servers = Served("ours", http), Served("bare", http)
    try:
        found = []
        for asked in selection(servers[0].name):
            if all(word in asked.what for word in words):
                ours, plain = (one.waited(asked) for one in servers)
                found.append(Waited(ours, plain, asked.what))
    finally:
        for one in servers:
            one.close()
    print(f"{len(found)} requests over {http}")
    for worst in heapq.nlargest(25, found, key=lambda one: one.more):
        print(f"{worst.more * 1000:8.1f} ms more, {worst.ours * 1000:8.1f} in all  {worst.what}")


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve(*sys.argv[2:])
    else:
        main()
