"""Raw socket servers whose replies could make a client hang or crash."""

from __future__ import annotations

import gzip
import socket
import threading
from contextlib import AbstractContextManager
from typing import Final

from tests.client import sockets

NAME: Final = "operations/abcdefgh12345678"
STARTED: Final = b'{"name": "' + NAME.encode() + b'"}'
KEYS: Final = b",".join(b'"k%d": 1' % number for number in range(20_000))
BOMB: Final = gzip.compress(b" " * 20_000_000)
Behaviour = sockets.Behaviour


def reply(body: bytes, status: bytes = b"200 OK", length: int | None = None) -> bytes:
    """Return the bytes of a reply, perhaps with a false length."""
    size = len(body) if length is None else length
    head = b"HTTP/1.1 %b\r\nContent-Type: application/json\r\nContent-Length: %d\r\n"
    return head % (status, size) + b"Connection: close\r\n\r\n" + body


def sends(*parts: bytes) -> Behaviour:
    """Send these bytes, and close the connection."""
    return lambda line, over: line.sendall(b"".join(parts))


def drips(head: bytes, drop: bytes, seconds: float = 0.02) -> Behaviour:
    """Send ``head`` once, then repeat ``drop`` with pauses."""

    def drip(line: socket.socket, over: threading.Event) -> None:
        line.sendall(head)
        while not over.wait(seconds):
            line.sendall(drop)

    return drip


REDIRECT: Final = b"HTTP/1.1 302 Found\r\nLocation: %b\r\nContent-Length: 0\r\n\r\n"
PACKED: Final = b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n"

LOST: Final[dict[str, Behaviour]] = {
    "closes": sends(),
    "garbage": sends(b"\x00\xffSSH-2.0-nothing\r\n\r\n"),
    "cut off": sends(reply(STARTED, length=4000)),
    "silent": sockets.silent,
    "drips headers": drips(b"HTTP/1.1 200 OK\r\n", b"X-More: 1\r\n"),
    "drips a body": drips(reply(b"", length=1_000_000), b" "),
}
"""Behaviours that never send a valid reply, so that the server counts as unreachable."""

HOSTILE: Final[dict[str, Behaviour]] = {
    "endless": drips(reply(b"", length=1 << 40), b" " * 65536, 0),
    "bomb": sends(reply(b"[" * 200_000)),
    "small bomb": sends(reply(b"[" * 200 + b"]" * 200)),
    "redirects": sends(REDIRECT % b"/"),
    "redirects nowhere": sends(REDIRECT % b"http://xn--a-/"),
    "packed bomb": sends(PACKED % len(BOMB), BOMB),
    "nowhere named": sends(reply(b'{"name": "operations/"}')),
    "binary": sends(reply(b"\x80\x81\xff")),
    "huge number": sends(reply(b'{"done": ' + b"9" * 10_000 + b"}")),
    "many keys": sends(reply(b'{%b, "z": 1, "z": 2}' % KEYS)),
    "control characters": sends(
        reply(b'{"error": {"message": "\\u001b[2J\\u202e"}}', status=b"418 \x1b[2J")
    ),
}
"""Behaviours that send invalid replies."""


def serving_hostile(behaviour: Behaviour) -> AbstractContextManager[str]:
    """Serve valid starts, and answer other requests with this behaviour; yield the URL."""

    def behave(line: socket.socket, over: threading.Event) -> None:
        if line.recv(65536).startswith(b"POST /start"):
            line.sendall(reply(STARTED))
        else:
            behaviour(line, over)

    return sockets.serving(behave)
