"""Receivers of webhooks: real servers on free ports, which follow the protocol or break it."""

from __future__ import annotations

import contextlib
import functools
import queue
import socket
import ssl
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, TypeAlias

import attrs

from tests.waiting import PATIENCE, joined


@attrs.frozen
class Received:
    """A received request, with header names in lower case."""

    path: str
    headers: Mapping[str, str]
    body: bytes


@attrs.frozen
class Reply:
    """A receiver's response."""

    status: int = 204
    headers: Mapping[str, str] = attrs.field(factory=dict)


Script: TypeAlias = Callable[[Received], Reply]


@attrs.define
class Receiver:
    """A server that keeps the requests it receives, and replies with the result of its script."""

    port: int
    scheme: str = "http"
    script: Script = lambda _: Reply()
    received: queue.Queue[Received] = attrs.field(factory=queue.Queue)

    @property
    def url(self) -> str:
        """The URL for webhooks to this receiver."""
        return f"{self.scheme}://127.0.0.1:{self.port}/hook"

    def next(self) -> Received:
        """Wait for the next request."""
        return self.received.get(timeout=PATIENCE)

    def all(self) -> list[Received]:
        """Return the requests received so far that the test has not taken yet."""
        found = []
        with contextlib.suppress(queue.Empty):
            while True:
                found.append(self.received.get_nowait())
        return found


@contextlib.contextmanager
def receiver(
    script: Script | None = None, context: ssl.SSLContext | None = None
) -> Iterator[Receiver]:
    """Run a receiver during the block, over HTTPS if there is a TLS context."""
    made = Receiver(0)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            length = int(self.headers.get("content-length", 0))
            headers = {name.lower(): value for name, value in self.headers.items()}
            got = Received(self.path, headers, self.rfile.read(length))
            said = made.script(got)
            made.received.put(got)  # kept before the sender sees the reply
            self.send_response(said.status)
            for name, value in said.headers.items():
                self.send_header(name, value)
            if said.status != 204:
                self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            pass

    class Server(ThreadingHTTPServer):
        def handle_error(self, request: Any, client_address: Any) -> None:
            pass  # the sender has disconnected

    server = Server(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    if context is not None:
        server.socket = context.wrap_socket(server.socket, server_side=True)
    made.port = server.server_address[1]
    made.scheme = "http" if context is None else "https"
    if script is not None:
        made.script = script
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield made
    finally:
        server.shutdown()
        server.server_close()
        joined(thread)


def loopback(host: str, port: int) -> Sequence[str]:
    """Resolve every host to this machine."""
    return ["127.0.0.1"]


def hang(connection: socket.socket, over: threading.Event) -> None:
    """Read the request and never reply."""
    connection.recv(65_536)
    over.wait(PATIENCE)


def drip(connection: socket.socket, over: threading.Event) -> None:
    """Reply with an endless header, one byte every 10 ms."""
    connection.recv(65_536)
    connection.sendall(b"HTTP/1.1 200 OK\r\nx-slow: ")
    while not over.wait(0.01):
        connection.sendall(b"a")


def body(connection: socket.socket, over: threading.Event, piece: bytes, pause: float) -> None:
    """Reply 200 with an endless body, pausing between the pieces."""
    connection.recv(65_536)
    connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 1000000000000\r\n\r\n")
    while not over.wait(pause):
        connection.sendall(piece)


endless_body = functools.partial(body, piece=b"x" * 65_536, pause=0)
dripping_body = functools.partial(body, piece=b"x", pause=0.01)


def nonsense(connection: socket.socket, over: threading.Event) -> None:
    """Reply with something other than HTTP."""
    connection.recv(65_536)
    connection.sendall(b"SSH-2.0-OpenSSH_9.2\r\n\r\n")
