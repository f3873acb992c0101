"""Delay of ``result()`` after the end of an operation, and its number of calls; with peers.

The server ends each operation at its own time and records the end; the client records when
``result()`` returned. Both use ``time.monotonic``, which is one clock for all processes of a
machine. Run times vary by 25 %, so that ends fall on every phase of the polling. Each operation has
its own waiter: a client, or a task with Google's and Azure's async clients.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import attrs

from bench.clients import client_process
from bench.measure import MISSING, Absent, Figure, late
from bench.operated import operated

AHEAD_SECONDS: Final = 1.5
"""The seconds that a client has to prepare its handles."""

BEGUN_WITHIN_SECONDS: Final = 3.0
SPREAD: Final = 0.25

PARSER: Final = argparse.ArgumentParser(prog="python -m bench excess")
PARSER.add_argument("--operations", type=int, default=30, help="operations at once in each cell")
PARSER.add_argument("--seconds", type=float, nargs="+", default=[0.05, 1.0, 10.0])
PARSER.add_argument("--rounds", type=int, default=2)


@attrs.frozen
class Cell:
    """A cell of the table: a client, the way it is used, and the server's features."""

    label: str
    client: str
    way: str
    face: str

    @property
    def ours(self) -> bool:
        return self.client == "lro"


def _cells() -> Iterator[Cell]:
    offers = {"wait": "Wait", "plain": "Get", "hinted": "Get, Retry-After: 1"}
    for face, offer in offers.items():
        yield Cell(f"lro, {offer}", "lro", "threads", face)
        yield Cell(f"lro, {offer}, asyncio", "lro", "asyncio", face)
    yield Cell("google-api-core", "google", "threads", "plain")
    yield Cell("google-api-core, asyncio", "google", "asyncio", "plain")
    for face, more in (("plain", ""), ("hinted", ", Retry-After: 1")):
        yield Cell(f"azure-core{more}", "azure", "threads", face)
        yield Cell(f"azure-core{more}, asyncio", "azure", "asyncio", face)


CELLS: Final = tuple(_cells())


@attrs.define
class Found:
    """A cell's results: the delays in seconds, and the calls."""

    excess: list[float] = attrs.field(factory=list)
    calls: list[int] = attrs.field(factory=list)
    failure: str = ""

    def rows(self, what: str, target: float | None) -> Iterator[Figure]:
        """Yield the delay and the calls of a cell."""
        if self.failure or not self.excess:
            MISSING.append(f"{what}: {self.failure or 'no operation came back'}")
        if self.excess:
            targets = (None, target)
            yield from late(
                what, self.excess, shares=(0.5, 0.95), targets=targets, unit="s", scale=1
            )
            calls = sum(self.calls) / len(self.calls)
            yield Figure(what=what, measure="calls", ours=calls, unit="calls")


def measure(cell: Cell, seconds: float, operations: int, found: Found) -> None:
    """Measure operations of about this run time, all at once, and add the results to ``found``."""
    try:
        with (
            operated(cell.face) as server,
            client_process(cell.client, cell.way, server.url) as client,
        ):
            first = time.monotonic() + AHEAD_SECONDS
            begins = [first + random.uniform(0, BEGUN_WITHIN_SECONDS) for _ in range(operations)]
            runs = [seconds * random.uniform(1 - SPREAD, 1 + SPREAD) for _ in begins]
            ends = [begin + run for begin, run in zip(begins, runs, strict=True)]
            names = server.call("make", ends)
            seen = client.ask(names, begins)
            counted = server.call("counted")
    except Absent as exc:
        found.failure = str(exc)
        return
    for name in names:
        if name in seen.at:
            found.excess.append(seen.at[name] - counted["ends"][name])
            found.calls.append(counted["asked"][name])
    if seen.failed:
        found.failure = f"{len(seen.failed)} failed: {next(iter(seen.failed.values()))}"


def run(options: argparse.Namespace) -> Iterator[Figure]:
    """Measure our clients one by one, and other clients together, because those mostly sleep."""
    for seconds in options.seconds:
        found = {cell: Found() for cell in CELLS}
        for _ in range(options.rounds):
            asked = [(cell, seconds, options.operations, found[cell]) for cell in CELLS]
            for each in asked:
                if each[0].ours:
                    measure(*each)
            peers = [each for each in asked if not each[0].ours]
            with ThreadPoolExecutor(len(peers)) as threads:
                list(threads.map(lambda each: measure(*each), peers))
        for cell in CELLS:
            target = {"wait": 0.05, "plain": seconds / 4}.get(cell.face) if cell.ours else None
            yield from found[cell].rows(f"{cell.label}, {seconds:g} s", target)
