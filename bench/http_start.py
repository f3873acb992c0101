"""POST of a start over HTTP: server CPU including the work and its end, rate, and latency."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Final

import attrs

from bench.http_get import free_port, listening, reply_to
from bench.measure import percentile
from bench.starting import PATH

KINDS: Final = ("bare", "floor", "memory", "sqlite", "frozen", "postgres")

PARSER = argparse.ArgumentParser(prog="python -m bench http_start")
PARSER.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS)
PARSER.add_argument("--connections", nargs="+", type=int, default=[8, 32, 128])
PARSER.add_argument("--rounds", type=int, default=5)
PARSER.add_argument("--requests", type=int, default=4000)

_QUIET_SECONDS: Final = 0.2
_QUIET_CPU: Final = 0.002
"""If a server uses fewer seconds of CPU in ``_QUIET_SECONDS``, its work is done."""

_POST: Final = (
    f"POST {PATH} HTTP/1.1\r\nhost: bench\r\ncontent-type: application/json\r\n"
    'content-length: 12\r\n\r\n{"steps": 1}'
).encode()


@attrs.frozen
class Found:
    """Results of a round: seconds of server CPU per start, starts per second, and latencies."""

    cpu: float
    rate: float
    p50: float
    p99: float


class Server:
    """A server in a process of its own."""

    def __init__(self, kind: str, *where: str) -> None:
        self.port = free_port()
        command = [sys.executable, "-m", "bench.starting", kind, str(self.port), *where]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.process.stdout.readline()
        listening(self.port)

    @classmethod
    def at(cls, port: int) -> Server:
        """Return a server that another process has started at this port."""
        server = cls.__new__(cls)
        server.port = port
        return server

    def round(self, connections: int, requests: int) -> Found:
        """Send this many starts, on this many connections at the same time."""
        return asyncio.run(self._round(connections, requests))

    def cpu(self) -> float:
        """Return the seconds of CPU that the server has used."""
        return asyncio.run(self._cpu())

    async def _round(self, connections: int, requests: int) -> Found:
        latencies: list[float] = []
        before = await self._cpu()
        began = time.perf_counter()
        share = requests // connections
        await asyncio.gather(*(self._ask(share, latencies) for _ in range(connections)))
        took = time.perf_counter() - began
        cpu = await self._cpu_when_quiet() - before
        number = len(latencies)
        p50, p99 = percentile(latencies, 0.5), percentile(latencies, 0.99)
        return Found(cpu / number, number / took, p50, p99)

    async def _cpu_when_quiet(self) -> float:
        last = await self._cpu()
        while True:
            await asyncio.sleep(_QUIET_SECONDS)
            now = await self._cpu()
            if now - last < _QUIET_CPU:
                return last
            last = now

    async def _cpu(self) -> float:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        found = await reply_to(reader, writer, b"GET /cpu HTTP/1.1\r\nhost: bench\r\n\r\n")
        writer.close()
        return float(found)

    async def _ask(self, times: int, latencies: list[float]) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        for _ in range(times):
            began = time.perf_counter()
            await reply_to(reader, writer, _POST)
            latencies.append(time.perf_counter() - began)
        writer.close()

    def close(self) -> None:
        self.process.terminate()
        self.process.wait()


def run(options: argparse.Namespace) -> Iterator[str]:
    with contextlib.ExitStack() as stack:
        servers = {kind: Server(kind) for kind in options.kinds}
        for server in servers.values():
            stack.callback(server.close)
        for connections in options.connections:
            for server in servers.values():
                server.round(connections, options.requests // 4)
            rounds: dict[str, list[Found]] = {kind: [] for kind in servers}
            for _ in range(options.rounds):
                for kind, server in servers.items():
                    rounds[kind].append(server.round(connections, options.requests))
            for kind, found in rounds.items():
                yield _line(kind, connections, found, rounds)


def _line(kind: str, connections: int, found: list[Found], all_of: dict[str, list[Found]]) -> str:
    middle = {
        name: statistics.median(getattr(one, name) for one in found)
        for name in ("cpu", "rate", "p50", "p99")
    }
    text = (
        f"{kind:<9} {connections:>4} connections: {middle['cpu'] * 1e6:>6.0f} us of CPU,"
        f" {middle['rate']:>6.0f}/s, p50 {middle['p50'] * 1e3:>6.1f} ms,"
        f" p99 {middle['p99'] * 1e3:>6.1f} ms"
    )
    for other in ("bare", "floor"):
        if other in all_of and other != kind:
            pairs = list(zip(found, all_of[other], strict=True))
            cpu = statistics.median(a.cpu / b.cpu for a, b in pairs)
            rate = statistics.median(a.rate / b.rate for a, b in pairs)
            p99 = statistics.median(a.p99 / b.p99 for a, b in pairs)
            text += f"; over {other}: CPU {cpu:.2f}, rate {rate:.2f}, p99 {p99:.2f}"
    return text
