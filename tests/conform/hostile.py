"""Servers of raw sockets that answer in ways in which a client may hang or crash."""

from __future__ import annotations

import contextlib
import gzip
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Final

NAME: Final = "operations/abcdefgh12345678"
STARTED: Final = b'{"name": "' + NAME.encode() + b'"}'
BOMB: Final = gzip.compress(b" " * 20_000_000)
Behaviour = Callable[[socket.socket, threading.Event], None]
"""Answers a request on a connection; the event is set when the test is over."""


def reply(body: bytes, status: bytes = b"200 OK", length: int | None = None) -> bytes:
    """A reply as it stands on the wire, perhaps with a length that is not true."""
    size = len(body) if length is None else length
    head = b"HTTP/1.1 %b\r\nContent-Type: application/json\r\nContent-Length: %d\r\n"
    return head % (status, size) + b"Connection: close\r\n\r\n" + body


def closes(line: socket.socket, over: threading.Event) -> None:
    """Answers nothing."""


def garbage(line: socket.socket, over: threading.Event) -> None:
    line.sendall(b"\x00\xffSSH-2.0-nothing\r\n\r\n")


def cut_off(line: socket.socket, over: threading.Event) -> None:
    line.sendall(reply(STARTED, length=4000))


def silent(line: socket.socket, over: threading.Event) -> None:
    over.wait(60)


def drips_headers(line: socket.socket, over: threading.Event) -> None:
    line.sendall(b"HTTP/1.1 200 OK\r\n")
    while not over.wait(0.02):
        line.sendall(b"X-More: 1\r\n")


def drips_body(line: socket.socket, over: threading.Event) -> None:
    line.sendall(reply(b"", length=1_000_000))
    while not over.wait(0.02):
        line.sendall(b" ")


def endless(line: socket.socket, over: threading.Event) -> None:
    line.sendall(reply(b"", length=1 << 40))
    while not over.is_set():
        line.sendall(b" " * 65536)


def bomb(line: socket.socket, over: threading.Event) -> None:
    line.sendall(reply(b"[" * 200_000))


def small_bomb(line: socket.socket, over: threading.Event) -> None:
    line.sendall(reply(b"[" * 200 + b"]" * 200))


def redirects(line: socket.socket, over: threading.Event) -> None:
    line.sendall(b"HTTP/1.1 302 Found\r\nLocation: /\r\nContent-Length: 0\r\n\r\n")


def redirects_nowhere(line: socket.socket, over: threading.Event) -> None:
    line.sendall(b"HTTP/1.1 302 Found\r\nLocation: http://xn--a-/\r\nContent-Length: 0\r\n\r\n")


def packed_bomb(line: socket.socket, over: threading.Event) -> None:
    head = b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n"
    line.sendall(head % len(BOMB) + BOMB)


def nowhere_named(line: socket.socket, over: threading.Event) -> None:
    line.sendall(reply(b'{"name": "operations/"}'))


def binary(line: socket.socket, over: threading.Event) -> None:
    line.sendall(reply(b"\x80\x81\xff"))


def huge_number(line: socket.socket, over: threading.Event) -> None:
    line.sendall(reply(b'{"done": ' + b"9" * 10_000 + b"}"))


def control_characters(line: socket.socket, over: threading.Event) -> None:
    line.sendall(reply(b'{"error": {"message": "\\u001b[2J\\u202e"}}', status=b"418 \x1b[2J"))


HOSTILE: Final[tuple[Behaviour, ...]] = (
    closes,
    garbage,
    cut_off,
    silent,
    drips_headers,
    drips_body,
    endless,
    bomb,
    small_bomb,
    redirects,
    redirects_nowhere,
    packed_bomb,
    nowhere_named,
    binary,
    huge_number,
    control_characters,
)


@contextlib.contextmanager
def serving_hostile(behaviour: Behaviour) -> Iterator[str]:
    """The URL of a server that starts operations well, and answers all else by a behaviour."""
    over, lines = threading.Event(), list[socket.socket]()
    listener = socket.create_server(("127.0.0.1", 0))

    def answer(line: socket.socket) -> None:
        with contextlib.suppress(OSError), line:
            asked = line.recv(65536)
            if asked.startswith(b"POST /start"):
                line.sendall(reply(STARTED))
            else:
                behaviour(line, over)

    def accept() -> None:
        threads = []
        with contextlib.suppress(OSError):
            while True:
                line, _ = listener.accept()
                lines.append(line)
                threads.append(threading.Thread(target=answer, args=(line,)))
                threads[-1].start()
        for thread in threads:
            thread.join()

    thread = threading.Thread(target=accept)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        over.set()
        listener.shutdown(socket.SHUT_RDWR)
        for line in lines:
            with contextlib.suppress(OSError):
                line.shutdown(socket.SHUT_RDWR)
        thread.join()
        listener.close()
