"""Many operations watched by one process, by server features; against hand-written stream readers.

Measured in the client process: CPU from the first handle to the last result, and the peak growth of
memory after all imports, when the names are known. The server records when it has ended each
operation, and the client records when it got the result.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Iterator, Sequence
from typing import Any, Final

import attrs

from bench.clients import client_process
from bench.measure import MISSING, Absent, Figure, alone, percentile
from bench.operated import operated

PEER_MOST: Final = 1000
"""The most operations for threads and for google-api-core, which take minutes with more."""

MEGABYTE: Final = 1e6
MEASURES: Final = {
    "cpu": ("CPU", "s", 2.5),
    "grown": ("memory", "MB", 25),
    "connections": ("connections", "connections", 8),
    "calls": ("calls", "calls", None),
    "server_cpu": ("CPU of the server", "s", None),
}
"""The name, the unit and the target of each field of :class:`Found`."""
TARGETED: Final = ("lro, Watch", "lro, BatchGet")

PARSER: Final = argparse.ArgumentParser(prog="python -m bench watched")
PARSER.add_argument("--operations", type=int, nargs="+", default=[1000, 10_000])
PARSER.add_argument(
    "--within", type=float, nargs=2, default=[20.0, 40.0], help="they end within these seconds"
)
PARSER.add_argument("--rounds", type=int, default=3)


@attrs.frozen
class Variant:
    """A client, the way it is used, the server's features, and the limit of operations."""

    label: str
    client: str
    way: str
    face: str
    most: int = 1_000_000


VARIANTS: Final = (
    Variant("floor: asyncio, bare streams", "floor", "stream", "watch"),
    Variant("floor: httpx, BatchGet each 0.25 s", "floor", "batch", "batch"),
    Variant("lro, Watch", "lro", "async_group", "watch"),
    Variant("lro, BatchGet", "lro", "async_group", "batch"),
    Variant("lro, List by names", "lro", "async_group", "list"),
    Variant("lro, Get", "lro", "async_group", "plain"),
    Variant("lro, Watch, result() of each", "lro", "tasks", "watch"),
    Variant("lro, Watch, threads", "lro", "group", "watch", PEER_MOST),
    Variant("lro, BatchGet, threads", "lro", "group", "batch", PEER_MOST),
    Variant("lro, List by names, threads", "lro", "group", "list", PEER_MOST),
    Variant("lro, Get, threads", "lro", "group", "plain", PEER_MOST),
    Variant("google-api-core, asyncio", "google", "asyncio", "plain", PEER_MOST),
)


@attrs.frozen(kw_only=True)
class Found:
    """Results of one round: seconds, megabytes, and counts."""

    cpu: float
    server_cpu: float
    grown: float
    connections: float
    calls: float
    excess: Sequence[float]
    lacking: str


def measure(one: Variant, operations: int, within: Sequence[float]) -> Found:
    """Watch this many operations of a new server, in a new client process.

    Raises:
        Absent: The client is not installed.
    """
    with operated(one.face) as server, client_process(one.client, one.way, server.url) as client:
        now = time.monotonic()
        names = server.call("make", [now + random.uniform(*within) for _ in range(operations)])
        seen = client.ask(names)
        counted = server.call("counted")
    missing = operations - len(seen.at)
    why: Any = next(iter(seen.failed.values()), "")
    return Found(
        cpu=seen.cpu,
        server_cpu=counted["cpu"],
        grown=seen.grown / MEGABYTE,
        connections=counted["peak"],
        calls=sum(counted["asked"].values()),
        excess=sorted(at - counted["ends"][name] for name, at in seen.at.items()),
        lacking=f"{missing} did not come back {why}".rstrip() if missing else "",
    )


def rows(what: str, rounds: Sequence[Found], *, targeted: bool) -> Iterator[Figure]:
    """Yield the rows of a variant."""
    for one in rounds:
        if one.lacking:
            MISSING.append(f"{what}: {one.lacking}")
    rounds = [one for one in rounds if one.excess]
    if not rounds:
        return
    for field, (measure, unit, target) in MEASURES.items():
        values = [getattr(one, field) for one in rounds]
        chosen = target if targeted else None
        yield alone(what, values, unit=unit, measure=measure, target=chosen)
    for share, name, target in ((0.5, "p50", 0.5), (0.95, "p95", None), (1.0, "most", None)):
        late = [percentile(one.excess, share) for one in rounds]
        chosen = target if targeted else None
        yield alone(what, late, unit="s", measure=f"excess, {name}", target=chosen)


def run(options: argparse.Namespace) -> Iterator[Figure]:
    """Measure each variant once per round."""
    for operations in options.operations:
        variants = [one for one in VARIANTS if operations <= one.most]
        found: dict[str, list[Found]] = {one.label: [] for one in variants}
        for number in range(options.rounds):
            for one in variants:
                try:
                    found[one.label].append(measure(one, operations, options.within))
                except Absent as exc:
                    if not number:
                        MISSING.append(f"{one.label}: {exc}")
        for one in variants:
            targeted = operations == 10_000 and one.label in TARGETED
            yield from rows(f"{operations:,}: {one.label}", found[one.label], targeted=targeted)
