"""POST of a start over HTTP: server CPU including the work and its end, rate, and latency."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Final

import attrs

from bench.http_get import free_port, listening, reply_to
from bench.measure import Figure, against, alone, percentile
from bench.starting import PATH

KINDS: Final = ("bare", "floor", "memory", "sqlite", "frozen", "threads", "postgres")

TARGETED: Final = 32
TARGETS: Final[dict[str, dict[str, float]]] = {
    "memory": {"CPU / bare ASGI": 4},
    "sqlite": {"CPU": 1.8, "rate": 0.55, "p99": 2},
    "threads": {"CPU": 2.2},
    "postgres": {"CPU": 2.5},
}
"""The targets with ``TARGETED`` connections, as ratios to the floor or to bare ASGI."""

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


def run(options: argparse.Namespace) -> Iterator[Figure]:
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
                yield from rows(f"{kind}, {connections} connections", found, rounds, connections)


def rows(
    what: str, found: list[Found], rounds: dict[str, list[Found]], connections: int
) -> Iterator[Figure]:
    """Yield the rows of a server, beside those of the floor if it has been measured."""
    kind = what.partition(",")[0]
    targets = TARGETS.get(kind, {}) if connections == TARGETED else {}
    for measure, unit, scale in (("CPU", "µs", 1e6), ("rate", "/s", 1), ("p99", "ms", 1e3)):
        name = measure.lower()
        own = [getattr(one, name) for one in found]
        low = [getattr(one, name) for one in rounds.get("floor", [])]
        if not low or kind in ("bare", "floor"):
            yield alone(what, own, unit=unit, measure=measure, scale=scale)
            continue
        yield against(
            what,
            zip(own, low, strict=True),
            unit=unit,
            measure=measure,
            scale=scale,
            target=targets.get(measure),
        )
    if "bare" in rounds and kind != "bare":
        pairs = [(own.cpu, low.cpu) for own, low in zip(found, rounds["bare"], strict=True)]
        measure = "CPU / bare ASGI"
        target = targets.get(measure)
        yield against(what, pairs, unit="µs", measure=measure, scale=1e6, target=target)
