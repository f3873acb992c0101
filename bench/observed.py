"""The cost of statistics and observers: CPU from a start to its result, with and without them."""

from __future__ import annotations

import argparse
import contextlib
import gc
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import attrs

from bench.measure import Figure, against, alone
from bench.start_to_result import Request, make
from lro.adapters import Observer
from lro.executors.inline import InlineExecutor
from lro.stores.memory import MemoryStore
from lro.stores.sqlite import SQLiteStore

PARSER = argparse.ArgumentParser(prog="python -m bench observed")
PARSER.add_argument("--rounds", type=int, default=40)

STORES: Final = ("memory", "sqlite")
STARTS: Final = {"memory": 1000, "sqlite": 400}
"""The number of operations in a sample, by store."""
PLAIN: Final = "statistics=False"
"""The kind of service with which the other kinds are compared."""
KINDS: Final = ("statistics=True", PLAIN, "one observer")


class Peer:
    """A process with a service of one kind, which takes a sample on request."""

    def __init__(self, kind: str, store: str) -> None:
        command = [sys.executable, "-m", "bench.observed", kind, store]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True)

    def sample(self) -> tuple[float, float]:
        """Return the seconds of CPU and of real time per operation."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("go\n")
        self._process.stdin.flush()
        cpu, took = self._process.stdout.readline().split()
        return float(cpu), float(took)

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


class Taker(Observer):
    """An observer of all events of a start and its work; only overridden methods are called."""

    def started(self, event: object) -> None:
        pass

    attempt_began = attempt_over = ended = started


def serve(kind: str, where: str) -> None:
    """Take a sample for each line of standard input."""
    with tempfile.TemporaryDirectory() as folder:
        store: Any = MemoryStore()
        if where == "sqlite":
            store = SQLiteStore(Path(folder) / "operations.db")
        observers = (Taker(),) if kind == "one observer" else ()
        service, method = make(
            store, InlineExecutor(), statistics=kind == KINDS[0], observers=observers
        )
        with service:
            for _ in sys.stdin:
                gc.collect()
                began, cpu = time.perf_counter(), time.process_time()
                for _ in range(STARTS[where]):
                    assert method.start(Request(1)).operation.done
                used = time.process_time() - cpu, time.perf_counter() - began
                print(*(one / STARTS[where] for one in used), flush=True)


def compared(store: str, options: argparse.Namespace) -> Iterator[Figure]:
    """Yield the rows of one store: each kind relative to the kind without statistics."""
    with contextlib.ExitStack() as stack:
        peers = {kind: Peer(kind, store) for kind in KINDS}
        for peer in peers.values():
            stack.callback(peer.close)
            peer.sample()
            peer.sample()
        found: dict[str, list[tuple[float, float]]] = {kind: [] for kind in peers}
        for number in range(options.rounds):
            order = list(peers) if number % 2 else list(reversed(peers))
            for kind in order:
                found[kind].append(peers[kind].sample())
    for kind, samples in found.items():
        what, plain = f"{store}, {kind}", found[PLAIN]
        if kind == PLAIN:
            yield alone(what, [cpu for cpu, _ in samples], unit="µs", measure="CPU", scale=1e6)
            continue
        pairs = [(own, low) for (own, _), (low, _) in zip(samples, plain, strict=True)]
        row = against(what, pairs, unit="µs", measure="CPU", scale=1e6, target=1.02)
        ratios = sorted(row.rounds)  # the spread is that of the quarters: single rounds vary more
        quarters = ratios[len(ratios) // 4 : len(ratios) * 3 // 4 + 1]
        yield attrs.evolve(row, rounds=quarters)


def run(options: argparse.Namespace) -> Iterator[Figure]:
    for store in STORES:
        yield from compared(store, options)


if __name__ == "__main__":
    serve(*sys.argv[1:])
