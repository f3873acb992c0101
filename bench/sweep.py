"""A sweep of 1,000,000 expired operations and their request keys, with concurrent writers.

``LRO_BENCH_SWEEP=20000`` sets another number, ``LRO_BENCH_STORES=sqlite`` selects stores.
"""

from __future__ import annotations

import contextlib
import gc
import itertools
import os
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import attrs

import lro
import lro.adapters
from bench.filling import (
    PARENT,
    Database,
    Population,
    RunMetadata,
    RunRequest,
    RunResponse,
    Stage,
    databases,
    declared,
    spec_of,
)
from bench.measure import Figure, against, late, percentile

LIVE: Final = 10_000
WRITERS: Final = 4
PACE: Final = 50.0
"""Operations per second that each writer starts and ends, unless it has no limit."""
ASIDE_SECONDS: Final = 10.0
"""The seconds for which the writers are measured before the sweep, and again after the sweep."""
LONGEST_SECONDS: Final = 300.0
"""The time limit of a sweep."""
DAY: Final = timedelta(days=1)
_METADATA: Final = RunMetadata(
    dataset="d17", owner="o17", stage=Stage.READING, labels={"team": "t1"}, host="worker-1"
)
_RESPONSE: Final = RunResponse(items=17, location="gs://results/d17/o17/output.parquet")


@attrs.frozen(kw_only=True)
class Beside:
    """The durations of the writers' operations in a time span, in seconds.

    ``calls`` are the durations of each operation's two calls, ``late`` those from its due time.
    """

    calls: list[float]
    late: list[float]


class Writers:
    """Threads that start and end operations until they are stopped, and record the times."""

    def __init__(self, service: lro.Service, method: Any, pace: float | None) -> None:
        self._service = service
        self._method = method
        self._pause = None if pace is None else 1.0 / pace
        self._stopped = threading.Event()
        self._took: list[tuple[float, float, float]] = []
        """For each operation: when it was due, when it began, and when it had ended."""
        self._threads = [threading.Thread(target=self._write) for _ in range(WRITERS)]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._stopped.set()
        for thread in self._threads:
            thread.join()

    def beside(self, began: float, ended: float) -> Beside:
        """Return the operations that were due in this time span."""
        took = [one for one in self._took if began <= one[0] < ended]
        return Beside(
            calls=[end - start for _, start, end in took], late=[end - due for due, _, end in took]
        )

    def _write(self) -> None:
        due = time.perf_counter()
        while not self._stopped.is_set():
            due = self._next(due)
            began = time.perf_counter()
            operation = self._method.start(RunRequest("d17"), parent=PARENT, metadata=_METADATA)
            self._service.reporter(operation.name).complete(_RESPONSE)
            self._took.append((due, began, time.perf_counter()))

    def _next(self, due: float) -> float:
        """Wait until the next operation is due, and return that time, which may have passed."""
        now = time.perf_counter()
        if self._pause is None:
            return now
        due += self._pause
        if due <= now:
            return due
        self._stopped.wait(due - now)
        return time.perf_counter()


class Sweep:
    """A thread that runs maintenance, as a service does, until nothing is left to remove."""

    def __init__(self, service: lro.Service) -> None:
        self._service = service
        self._expire = service.store.expire
        service.store.expire = self._watched  # type: ignore[method-assign]  # to look on
        self.removed = 0
        self.turns = 0
        self.longest = 0.0
        """The duration of the longest call that removed operations, in seconds."""
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._live)

    def run(self) -> float:
        """Sweep, and return the seconds that it took, or infinity if the time limit was reached."""
        began = time.perf_counter()
        self._thread.start()
        over = self._over.wait(LONGEST_SECONDS)
        took = time.perf_counter() - began
        self._over.set()
        self._thread.join()
        return took if over else float("inf")

    def _watched(self, *args: Any, **options: Any) -> lro.adapters.Expired:
        began = time.perf_counter()
        found = self._expire(*args, **options)
        self.longest = max(self.longest, time.perf_counter() - began)
        self.turns += 1
        self.removed += len(found.names)
        if not found.more:
            self._over.set()
        return found

    def _live(self) -> None:
        while not self._over.is_set():
            self._over.wait(self._service.run_maintenance())


def filled(database: Database, expired: int) -> tuple[lro.Service, Any]:
    """Return a service on a store with this many expired operations and some live ones."""
    store, fill = database.make()
    service, method = declared(store)
    spec, now = spec_of(service), datetime.now(UTC)
    old = Population(
        size=expired, newest=now - 2 * DAY, expiry=DAY, salt=b"expired", unfinished=False
    )
    fill(old.records(spec), True)
    live = Population(size=LIVE, newest=now, expiry=90 * DAY)
    fill(live.records(spec), False)
    return service, method


def swept(database: Database, expired: int, pace: float | None) -> Iterator[Figure]:
    service, method = filled(database, expired)
    with service:
        gc.collect()
        gc.freeze()
        writers = Writers(service, method, pace)
        pause = threading.Event()
        try:
            pause.wait(2.0)  # to warm up
            moments = [time.perf_counter()]
            pause.wait(ASIDE_SECONDS)
            moments.append(time.perf_counter())
            sweep = Sweep(service)
            seconds = sweep.run()
            moments.append(time.perf_counter())
            pause.wait(ASIDE_SECONDS)
            moments.append(time.perf_counter())
        finally:
            writers.stop()
            gc.unfreeze()
    spans = [writers.beside(at, end) for at, end in itertools.pairwise(moments)]
    label = "as fast as they can" if pace is None else f"{WRITERS * pace:.0f} a second"
    what = f"{database.label}, writers {label}"
    yield Figure(
        what=what,
        measure=f"sweep of {expired:,}",
        ours=seconds,
        unit="s",
        target=60 * expired / 1_000_000,
    )
    longest = sweep.longest * 1e3
    yield Figure(what=what, measure="longest turn", ours=longest, unit="ms")
    before, beside, _ = (span.calls for span in spans)
    for share, target in ((0.5, None), (0.99, 2)):
        pairs = [(percentile(beside, share), percentile(before, share))]
        measure = f"p{share * 100:.0f} of a write, beside / before"
        yield against(what, pairs, unit="ms", measure=measure, scale=1e3, target=target)
    yield from late(f"{what}, beside, since due", spans[1].late, shares=[0.99], targets=[None])


def run() -> Iterator[Figure]:
    expired = int(os.environ.get("LRO_BENCH_SWEEP", "1000000"))
    with contextlib.ExitStack() as stack:
        for database in databases(stack):
            for pace in (PACE, None):
                yield from swept(database, expired, pace)
