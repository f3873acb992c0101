"""A TCP proxy that can be slow, lose a request or a reply, or drop all bytes of connections."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator


class Proxy:
    """A proxy that forwards connections to a local port.

    ``lose_next`` lets the proxy lose the next bytes on any connection: a client's ``"question"``
    (request), so that the server never receives it, or the server's ``"answer"`` (reply), so that
    the client never learns the result. The connection is then closed. ``connections`` counts the
    clients' connections. Each request is delayed by ``delay`` seconds. While ``cut`` is set, all
    connections are closed and new ones are refused.
    """

    def __init__(self, port: int) -> None:
        self._target = port
        self._lock = threading.Lock()
        self._to_lose: str | None = None
        self.lost = threading.Event()
        self._sockets: list[socket.socket] = []
        self._forgotten: set[socket.socket] = set()
        self._is_cut = False
        self.connections = 0
        self.delay = 0.0
        self._threads: list[threading.Thread] = []
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listening.getsockname()[1]
        self._begin(self._accept)

    def lose_next(self, what: str) -> None:
        """Lose the next ``"question"`` (request) or ``"answer"`` (reply)."""
        self.lost.clear()
        with self._lock:
            self._to_lose = what

    def forget(self) -> None:
        """Drop all later bytes of the current connections, like a gateway that has lost them."""
        with self._lock:
            self._forgotten.update(self._sockets)

    @property
    def cut(self) -> bool:
        """Return whether the proxy refuses all connections."""
        return self._is_cut

    @cut.setter
    def cut(self, is_cut: bool) -> None:
        with self._lock:
            self._is_cut = is_cut
            sockets = [*self._sockets] if is_cut else ()
        for one in sockets:
            _shut(one)

    def close(self) -> None:
        """Close all connections and accept no more."""
        self.cut = True
        _shut(self._listening)
        for thread in list(self._threads):
            thread.join()
        for one in [self._listening, *self._sockets]:
            one.close()

    def _begin(self, target: object, *arguments: object) -> None:
        thread = threading.Thread(target=target, args=arguments, daemon=True)  # type: ignore[arg-type]
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listening.accept()
            except OSError:
                return
            try:
                server = socket.create_connection(("127.0.0.1", self._target))
            except OSError:
                client.close()
                continue
            with self._lock:
                if self._is_cut:
                    client.close()
                    server.close()
                    continue
                self._sockets += [client, server]
                self.connections += 1
            self._begin(self._pass_on, client, server, "question")
            self._begin(self._pass_on, server, client, "answer")

    def _pass_on(self, source: socket.socket, sink: socket.socket, what: str) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                if self._loses(what):
                    break
                if what == "question":
                    time.sleep(self.delay)
                if source not in self._forgotten:
                    sink.sendall(data)
        for one in (source, sink):
            _shut(one)

    def _loses(self, what: str) -> bool:
        with self._lock:
            if self._to_lose != what:
                return False
            self._to_lose = None
            self.lost.set()
            return True


@contextlib.contextmanager
def proxy_to(port: int) -> Iterator[Proxy]:
    """Run a proxy to a local port during the block."""
    proxy = Proxy(port)
    try:
        yield proxy
    finally:
        proxy.close()


def _shut(one: socket.socket) -> None:
    with contextlib.suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)
