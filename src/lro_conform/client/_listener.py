"""A listening socket that can cut its connections, and refuse new connections for a while."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeAlias

import attrs

HOST: Final = "127.0.0.1"
_MAX_HEAD: Final = 64 * 1024
"""Maximum number of bytes that a reader scans for the end of a line or head."""
_RESET: Final = struct.pack("ii", 1, 0)
"""A socket option with which closing resets the connection."""

Serve: TypeAlias = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Coroutine[Any, Any, None]]


def reset_connection(writer: asyncio.StreamWriter) -> None:
    """End a connection with a reset, so that the other side sees a socket error."""
    found: socket.socket = writer.get_extra_info("socket")
    with contextlib.suppress(OSError):  # the other side may have disconnected
        found.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    writer.transport.abort()


@attrs.define(eq=False)
class PeerListener:
    """Listens on a free port, and serves each connection.

    ``connected`` is called for each connection, before ``serve``. Use it as an asynchronous
    context manager; on exit all connections are cut.
    """

    serve: Serve
    connected: Callable[[], None]
    port: int = 0
    _socket: socket.socket = attrs.field(init=False)
    _server: asyncio.Server | None = None
    _tasks: set[asyncio.Task[None]] = attrs.field(factory=set)
    _writers: set[asyncio.StreamWriter] = attrs.field(factory=set)

    async def __aenter__(self) -> PeerListener:
        self._bind()
        await self._listen()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._cut()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._socket.close()

    def go_away(self, seconds: float) -> None:
        """Cut all connections, and refuse new connections for some seconds."""
        self._cut()
        self._bind()
        self._start(self._come_back(seconds))

    async def _come_back(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
        await self._listen()

    def _bind(self) -> None:
        """Bind the port, so that no other program gets it; the port refuses connections for now."""
        self._socket = held = socket.socket()
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind((HOST, self.port))
        self.port = held.getsockname()[1]

    async def _listen(self) -> None:
        self._server = await asyncio.start_server(self._accept, sock=self._socket, limit=_MAX_HEAD)

    def _cut(self) -> None:
        assert self._server is not None
        self._server.close()
        for writer in self._writers:
            reset_connection(writer)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connected()
        self._start(self._serve(reader, writer))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            await self.serve(reader, writer)
        except (OSError, ValueError, asyncio.IncompleteReadError):
            pass  # the client has disconnected, or sent invalid data
        finally:
            self._writers.discard(writer)
            writer.close()

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
