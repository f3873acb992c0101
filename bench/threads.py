"""Two callers and two threads of work over one of each: 0.5 is perfect, and the GIL gives 1."""

from __future__ import annotations

import contextlib
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import lro
from bench.measure import MISSING, Figure, Sample, compare
from bench.start_to_result import Progress, Request, RunResponse, in_flight
from lro.executors.threads import ThreadExecutor
from lro.stores.memory import MemoryStore
from lro.stores.sqlite import SQLiteStore

STEPS: Final = 250_000
"""Steps of a function's work: about ten milliseconds of Python code, which holds the GIL."""
WORKS: Final = {STEPS: 24, 0: 300}
"""The number of operations with this many steps of work."""
ROUNDS: Final = 5


def count(steps: int) -> int:
    """Compute in Python: wait for nothing, and share nothing with other threads."""
    total = 0
    for number in range(steps):
        total += number & 1
    return total


def without_service(threads: int) -> Sample:
    """Measure the time for each call of :func:`count`, in plain threads."""

    def call() -> None:
        for _ in range(WORKS[STEPS] // threads):
            count(STEPS)

    def sample() -> float:
        began = time.perf_counter()
        started = [threading.Thread(target=call) for _ in range(threads)]
        for one in started:
            one.start()
        for one in started:
            one.join()
        return (time.perf_counter() - began) / WORKS[STEPS]

    return sample


@contextlib.contextmanager
def with_service(store: Any, threads: int, steps: int) -> Iterator[Sample]:
    """Yield a measurement of the time per operation, with as many callers as threads of work."""
    with lro.Service(store, ThreadExecutor(threads)) as service:

        @service.method("bench.v1.Bench.Run")
        def run(_: Request, __: lro.Job[Progress]) -> RunResponse:
            return RunResponse(count(steps))

        yield in_flight(service, run, WORKS[steps], callers=threads)


def run() -> Iterator[Figure]:
    gil = getattr(sys, "_is_gil_enabled", lambda: True)()
    measure, other = ("GIL", "without") if gil else ("no GIL", "with")
    MISSING.append(f"rows {other} the GIL: run the bench on a CPython of that kind")
    title = "plain threads, work of 10 ms"
    two, one = without_service(2), without_service(1)
    yield compare(title, two, one, rounds=ROUNDS, measure=measure)
    with tempfile.TemporaryDirectory() as folder:
        stores: dict[str, Callable[[str], Any]] = {
            "memory": lambda _: MemoryStore(),
            "SQLite": lambda name: SQLiteStore(str(Path(folder) / f"{name}.db")),
        }
        for label, make in stores.items():
            for steps in WORKS:
                work = "work of 10 ms" if steps else "no work"
                with contextlib.ExitStack() as stack:
                    two, one = (
                        stack.enter_context(with_service(make(f"{steps}-{n}"), n, steps))
                        for n in (2, 1)
                    )
                    yield compare(f"{label}, {work}", two, one, rounds=ROUNDS, measure=measure)
