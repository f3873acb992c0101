"""Starts a second by one and by two server processes on one store; each has its own callers."""

from __future__ import annotations

import concurrent.futures
import contextlib
import statistics
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from bench.across import postgres_server
from bench.http_start import Server

CONNECTIONS: Final = 16
REQUESTS: Final = 4000
ROUNDS: Final = 5


def load(port: int) -> tuple[float, float]:
    """Starts a second at one server, and their p99 in seconds."""
    found = Server.at(port).round(CONNECTIONS, REQUESTS)
    return found.rate, found.p99


def run() -> Iterator[str]:
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        places: dict[str, tuple[str, ...]] = {"sqlite": (str(folder / "operations.db"),)}
        server = postgres_server()
        if server is None:
            yield "PostgreSQL: not installed here"
        else:
            places["postgres"] = (server.url, server.fresh_schema())
        pool = stack.enter_context(concurrent.futures.ProcessPoolExecutor(2))
        for kind, where in places.items():
            servers = [Server(kind, *where) for _ in range(2)]
            for one in servers:
                stack.callback(one.close)
            for count in (1, 2):
                ports = [one.port for one in servers[:count]]
                rounds = [list(pool.map(load, ports)) for _ in range(ROUNDS)]
                rate = statistics.median(sum(rate for rate, _ in found) for found in rounds)
                p99 = statistics.median(max(p99 for _, p99 in found) for found in rounds)
                yield f"{kind}, processes: {count}, {rate:,.0f} starts/s, p99 {p99 * 1e3:.0f} ms"
