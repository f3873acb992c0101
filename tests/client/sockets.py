"""Misbehaving servers on real sockets, each with one thread per connection."""

from __future__ import annotations

import contextlib
import itertools
import socket
import struct
import threading
from collections.abc import Callable, Iterator

from tests.waiting import joined

Behaviour = Callable[[socket.socket, threading.Event], None]
"""Serves one connection, and returns when the event is set."""

DRIP_SECONDS = 0.01


@contextlib.contextmanager
def refusing() -> Iterator[int]:
    """Yield a port that refuses connections; it is bound, so no other process can listen on it."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield taken.getsockname()[1]


@contextlib.contextmanager
def serving(behave: Behaviour) -> Iterator[str]:
    """Start a server on a free port and yield its URL; at exit, cut all connections."""
    over = threading.Event()
    connections: list[socket.socket] = []
    listening = socket.create_server(("127.0.0.1", 0))

    def accept() -> None:
        while True:
            try:
                connection, _ = listening.accept()
            except OSError:  # closed at the end of the test
                return
            connections.append(connection)
            threading.Thread(target=serve, args=(connection,), daemon=True).start()

    def serve(connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            behave(connection, over)

    accepting = threading.Thread(target=accept, daemon=True)
    accepting.start()
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        over.set()
        for one in (listening, *connections):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()
        joined(accepting)


def drip(connection: socket.socket, pieces: Iterator[bytes], over: threading.Event) -> None:
    """Send one piece every 10 ms, until the event is set."""
    for piece in pieces:
        connection.sendall(piece)
        if over.wait(DRIP_SECONDS):
            return


def silent(connection: socket.socket, over: threading.Event) -> None:
    """Never answer the request."""
    over.wait()


def dripping_headers(connection: socket.socket, over: threading.Event) -> None:
    """Send a header byte by byte, and never finish it."""
    connection.recv(65536)
    connection.sendall(b"HTTP/1.1 200 OK\r\nX-Long: ")
    drip(connection, itertools.repeat(b"x"), over)


def hinting(connection: socket.socket, over: threading.Event) -> None:
    """Send informational responses, and never a final one."""
    connection.recv(65536)
    drip(connection, itertools.repeat(b"HTTP/1.1 103 Early Hints\r\n\r\n"), over)


def dripping_body(connection: socket.socket, over: threading.Event) -> None:
    """Send a response body byte by byte, which would take hours."""
    connection.recv(65536)
    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n{")
    drip(connection, itertools.repeat(b" "), over)


def dripping_chunks(connection: socket.socket, over: threading.Event) -> None:
    """Send chunks of one byte, and never the last chunk."""
    connection.recv(65536)
    connection.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
    drip(connection, itertools.repeat(b"1\r\n \r\n"), over)


def answering(head: str, body: str = "") -> Behaviour:
    """Return a behaviour that answers every request at once with the same response."""
    answer = f"HTTP/1.1 {head}\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode()

    def behave(connection: socket.socket, over: threading.Event) -> None:
        while not over.is_set() and connection.recv(65536):
            connection.sendall(answer)

    return behave


def turning_pages(connection: socket.socket, over: threading.Event) -> None:
    """Answer every request with an empty page that has a token for the next page."""
    for number in itertools.count():
        connection.recv(65536)
        body = f'{{"nextPageToken": "{number}"}}'
        connection.sendall(f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode())


def closing(connection: socket.socket, over: threading.Event) -> None:
    """Close each connection at once."""


def closing_later(connection: socket.socket, over: threading.Event) -> None:
    """Read the request, then close the connection."""
    connection.recv(65536)


def resetting(connection: socket.socket, over: threading.Event) -> None:
    """Read the request, then reset the connection."""
    connection.recv(65536)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def cutting(connection: socket.socket, over: threading.Event) -> None:
    """Close the connection in the middle of a response body."""
    connection.recv(65536)
    connection.sendall(b'HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{"name":')
