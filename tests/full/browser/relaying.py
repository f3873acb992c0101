"""A proxy that cuts off the path it stands at, passes streams on as they come, and can fail."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator

from tests.http.servers import HOST, listening

_AWAY = b"HTTP/1.1 503 Service Unavailable\r\nretry-after: 7\r\ncontent-length: 0\r\n\r\n"


class Relay:
    """Each connection brings one request; :meth:`cut` breaks all that are open."""

    def __init__(self, target: int, prefix: str = "") -> None:
        self._target = target
        self._prefix = prefix.encode()
        self._line = listening()
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self.away = False
        self.requests: list[str] = []
        self.port: int = self._line.getsockname()[1]

    def serve(self) -> None:
        """Take connections until :meth:`close`."""
        while True:
            try:
                line, _ = self._line.accept()
            except OSError:
                return
            threading.Thread(target=self._relay, args=(line,), daemon=True).start()

    def cut(self) -> None:
        """Break every connection in the middle of what it carries."""
        with self._lock:
            for line in self._open:
                with contextlib.suppress(OSError):
                    line.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Take no more, and break what is open."""
        self._line.shutdown(socket.SHUT_RDWR)
        self._line.close()
        self.cut()

    def _relay(self, line: socket.socket) -> None:
        with line, contextlib.suppress(OSError), self._kept(line):
            head, rest = _head(line)
            first, _, headers = head.partition(b"\r\n")
            method, path, version = first.split(b" ")
            self.requests.append(f"{method.decode()} {path.decode()}")
            if self.away:
                line.sendall(_AWAY)
                return
            if not path.startswith(self._prefix):
                line.sendall(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n")
                return
            path = path.removeprefix(self._prefix) or b"/"
            kept = [
                one
                for one in headers.split(b"\r\n")
                if not one.lower().startswith((b"connection:", b"accept-encoding:"))
            ]
            asked = b"\r\n".join([b" ".join((method, path, version)), *kept, b"connection: close"])
            with socket.create_connection((HOST, self._target)) as other, self._kept(other):
                other.sendall(asked + b"\r\n\r\n" + rest)
                while some := other.recv(65536):
                    line.sendall(some)

    @contextlib.contextmanager
    def _kept(self, line: socket.socket) -> Iterator[None]:
        with self._lock:
            self._open.add(line)
        try:
            yield
        finally:
            with self._lock:
                self._open.discard(line)


def _head(line: socket.socket) -> tuple[bytes, bytes]:
    """The head of a request, and its whole body."""
    read = b""
    while b"\r\n\r\n" not in read:
        read += _some(line)
    head, _, rest = read.partition(b"\r\n\r\n")
    length = 0
    for one in head.lower().split(b"\r\n"):
        if one.startswith(b"content-length:"):
            length = int(one.partition(b":")[2])
    while len(rest) < length:
        rest += _some(line)
    return head, rest


def _some(line: socket.socket) -> bytes:
    some = line.recv(65536)
    if not some:
        raise ConnectionError("the browser has gone")
    return some


@contextlib.contextmanager
def relay(target: int, prefix: str = "") -> Iterator[Relay]:
    """A proxy in front of a port of this machine."""
    made = Relay(target, prefix)
    thread = threading.Thread(target=made.serve)
    thread.start()
    try:
        yield made
    finally:
        made.close()
        thread.join()
