"""POST of a start over HTTP: server CPU including the work and its end, rate, and latency."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Iterator
from typing import Final

from bench.load import Found, Server, load, post
from bench.measure import Figure, against, alone
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


def run(options: argparse.Namespace) -> Iterator[Figure]:
    with contextlib.ExitStack() as stack:
        servers = {kind: Server("starting", kind) for kind in options.kinds}
        for server in servers.values():
            stack.callback(server.close)
        for connections in options.connections:
            for server in servers.values():
                load(server.port, post(PATH), connections, options.requests // 4)
            rounds: dict[str, list[Found]] = {kind: [] for kind in servers}
            for _ in range(options.rounds):
                for kind, server in servers.items():
                    found = load(server.port, post(PATH), connections, options.requests)
                    rounds[kind].append(found)
            for kind, own in rounds.items():
                yield from rows(f"{kind}, {connections} connections", own, rounds, connections)


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
