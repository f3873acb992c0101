"""GET of an operation over HTTP, CPU of the server process; against a bare ASGI application."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import subprocess
import sys
import time
from collections.abc import Iterator

from bench.measure import Figure, compare

REQUESTS = 4000
CONNECTIONS = 16


def free_port() -> int:
    """Return an unused port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def listening(port: int) -> None:
    """Wait until a server listens on the port."""
    end = time.monotonic() + 30
    while time.monotonic() < end:
        with contextlib.suppress(OSError):
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        time.sleep(0.05)
    raise SystemExit("a bench server did not start")


async def read_reply(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, request: bytes
) -> tuple[int, bytes]:
    """Send a request, and return the status code and body of the reply."""
    writer.write(request)
    head = await reader.readuntil(b"\r\n\r\n")
    length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
    return int(head.split(b" ", 2)[1]), await reader.readexactly(length)


async def reply_to(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, request: bytes
) -> bytes:
    """Send a request, and return the body of the reply, whose status must be 200."""
    status, body = await read_reply(reader, writer, request)
    assert status == 200, body
    return body


class Server:
    """A server in a process of its own, and the path of its operation."""

    def __init__(self, kind: str) -> None:
        self.port = free_port()
        command = [sys.executable, "-m", "bench.serving", kind, str(self.port)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.path = f"/v1/{self.process.stdout.readline().strip()}"
        listening(self.port)

    def sample(self) -> float:
        """Return the seconds of server CPU per request."""
        return asyncio.run(self._load())

    async def _load(self) -> float:
        before = await self._cpu()
        await asyncio.gather(*(self._ask(REQUESTS // CONNECTIONS) for _ in range(CONNECTIONS)))
        return (await self._cpu() - before) / REQUESTS

    async def _cpu(self) -> float:
        return float(await self._once(*await self._open(), b"/cpu"))

    async def _open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self.port)

    async def _ask(self, times: int) -> None:
        reader, writer = await self._open()
        for _ in range(times):
            await self._once(reader, writer, self.path.encode())
        writer.close()

    async def _once(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, path: bytes
    ) -> bytes:
        return await reply_to(reader, writer, b"GET " + path + b" HTTP/1.1\r\nhost: bench\r\n\r\n")

    def close(self) -> None:
        self.process.terminate()
        self.process.wait()


def run() -> Iterator[Figure]:
    bare = Server("bare")
    try:
        for kind, target in (("starlette", None), ("memory", 0.7), ("sqlite", 0.5)):
            server = Server(kind)
            try:
                found = compare(f"GET, {kind}", server.sample, bare.sample, measure="CPU")
                yield found
                yield Figure(
                    what=f"GET, {kind}",
                    measure="share of the floor's rate",
                    ours=1e6 / found.ours,
                    floor=1e6 / (found.floor or 1),
                    rounds=[1 / one for one in found.rounds],
                    unit="/s",
                    target=target,
                )
            finally:
                server.close()
    finally:
        bare.close()
