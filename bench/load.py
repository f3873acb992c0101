"""Servers in processes of their own, and load on them: their CPU, rate, and latencies."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import subprocess
import sys
import time
from typing import Final

import attrs

from bench.measure import percentile

_QUIET_SECONDS: Final = 0.2
_QUIET_CPU: Final = 0.002
"""If a server uses fewer seconds of CPU in ``_QUIET_SECONDS``, its work is done."""


def free_port() -> int:
    """Return an unused port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def get(path: str) -> bytes:
    """Return a GET request."""
    return f"GET {path} HTTP/1.1\r\nhost: bench\r\n\r\n".encode()


def post(path: str) -> bytes:
    """Return a request that starts an operation."""
    head = "host: bench\r\ncontent-type: application/json\r\ncontent-length: 12\r\n\r\n"
    return f'POST {path} HTTP/1.1\r\n{head}{{"steps": 1}}'.encode()


async def read_reply(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, request: bytes
) -> tuple[int, bytes]:
    """Send a request, and return the status code and body of the reply."""
    writer.write(request)
    head = await reader.readuntil(b"\r\n\r\n")
    length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
    return int(head.split(b" ", 2)[1]), await reader.readexactly(length)


@attrs.frozen
class Found:
    """Results of a round: seconds of server CPU per request, requests per second, and p99."""

    cpu: float
    rate: float
    p99: float


def load(port: int, request: bytes, connections: int, requests: int) -> Found:
    """Send a request this many times, on this many connections at the same time."""
    return asyncio.run(_load(port, request, connections, requests))


def cpu_of(port: int) -> float:
    """Return the seconds of CPU that the server at a port has used."""
    return asyncio.run(_cpu(port))


async def _load(port: int, request: bytes, connections: int, requests: int) -> Found:
    latencies: list[float] = []
    before = await _cpu(port)
    began = time.perf_counter()
    share = requests // connections
    await asyncio.gather(*(_ask(port, request, share, latencies) for _ in range(connections)))
    took = time.perf_counter() - began
    cpu, number = await _cpu_when_quiet(port) - before, len(latencies)
    return Found(cpu / number, number / took, percentile(latencies, 0.99))


async def _ask(port: int, request: bytes, times: int, latencies: list[float]) -> bytes:
    """Send a request again and again; the status of each reply must be 200."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    body = b""
    for _ in range(times):
        began = time.perf_counter()
        status, body = await read_reply(reader, writer, request)
        latencies.append(time.perf_counter() - began)
        assert status == 200, body
    writer.close()
    return body


async def _cpu(port: int) -> float:
    return float(await _ask(port, get("/cpu"), 1, []))


async def _cpu_when_quiet(port: int) -> float:
    last = await _cpu(port)
    while True:
        await asyncio.sleep(_QUIET_SECONDS)
        now = await _cpu(port)
        if now - last < _QUIET_CPU:
            return last
        last = now


class Server:
    """A server in a process of its own; ``said`` is the first line of its output."""

    def __init__(self, module: str, kind: str, *where: str) -> None:
        self.port = free_port()
        command = [sys.executable, "-m", f"bench.{module}", kind, str(self.port), *where]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.said = self.process.stdout.readline().strip()
        self._wait_until_it_listens()

    def _wait_until_it_listens(self) -> None:
        end = time.monotonic() + 30
        while time.monotonic() < end:
            with contextlib.suppress(OSError):
                socket.create_connection(("127.0.0.1", self.port), 1).close()
                return
            time.sleep(0.05)
        raise SystemExit("a bench server did not start")

    def close(self) -> None:
        self.process.terminate()
        self.process.wait()
