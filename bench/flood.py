"""10,000 starts at once with a queue of 1,000: the cost of refusals, and of polls meanwhile."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from bench.load import Server, cpu_of, get, post, read_reply
from bench.measure import Figure, late
from bench.starting import SLOW_PATH

KINDS: Final = ("memory", "sqlite", "postgres")

PARSER = argparse.ArgumentParser(prog="python -m bench flood")
PARSER.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS)
PARSER.add_argument("--connections", type=int, default=200)
PARSER.add_argument("--starts", type=int, default=10_000)

_POLL_SECONDS: Final = 0.02
_POLLERS: Final = 4
_POST: Final = post(SLOW_PATH)


class Flood:
    """One flood: its status codes, and the latencies of refusals and polls in seconds."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self.statuses: Counter[int] = Counter()
        self.refused: list[float] = []
        self.polls: list[float] = []
        self._over = False

    async def go(self, connections: int, starts: int) -> None:
        """Send all starts while polling."""
        name = await self._first()
        pollers = [asyncio.create_task(self._poll(name)) for _ in range(_POLLERS)]
        await asyncio.gather(*(self._start(starts // connections) for _ in range(connections)))
        self._over = True
        await asyncio.gather(*pollers)

    async def _first(self) -> str:
        reader, writer = await self._open()
        _, body = await read_reply(reader, writer, _POST)
        writer.close()
        return str(json.loads(body)["name"])

    async def _start(self, times: int) -> None:
        reader, writer = await self._open()
        for _ in range(times):
            began = time.perf_counter()
            status, _ = await read_reply(reader, writer, _POST)
            self.statuses[status] += 1
            if status == 429:
                self.refused.append(time.perf_counter() - began)
        writer.close()

    async def _poll(self, name: str) -> None:
        reader, writer = await self._open()
        request = get(f"/v1/{name}")
        while not self._over:
            began = time.perf_counter()
            await read_reply(reader, writer, request)
            self.polls.append(time.perf_counter() - began)
            await asyncio.sleep(_POLL_SECONDS)
        writer.close()

    async def _open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self._server.port)


def run(options: argparse.Namespace) -> Iterator[Figure]:
    for kind in options.kinds:
        with contextlib.closing(Server("starting", kind)) as server:
            before, memory = cpu_of(server.port), _memory(server)
            flood = Flood(server)
            asyncio.run(flood.go(options.connections, options.starts))
            cpu = cpu_of(server.port) - before
            each = cpu / sum(flood.statuses.values()) * 1e6
            yield Figure(what=kind, measure="CPU of a reply", ours=each, unit="µs", target=100)
            yield from late(f"{kind}, refusals", flood.refused, targets=(None, 50))
            yield from late(f"{kind}, polls", flood.polls, targets=(None, 100))
            grown = _memory(server) - memory
            yield Figure(what=kind, measure="growth of memory", ours=grown, unit="MB")


def _memory(server: Server) -> int:
    text = Path(f"/proc/{server.process.pid}/status").read_text()
    return int(text.partition("VmHWM:")[2].split()[0]) // 1024
