"""The queue rows: worker processes that drain a queue, and the delay of a job if all are idle.

Each candidate has a front, which only enqueues, and ``WORKERS`` processes that only work, each with
``SLOTS`` threads (for Celery, processes of its pool). Every job is the same plain function, which
writes one line to a shared log. Each round gives every candidate a new database or Redis:

- idle: When the workers are ready, the front enqueues ``ALONE`` jobs one after the other, each
  20 ms after the end of the previous job. ``WARM_UP`` earlier jobs are not counted, because the
  first job of a process also imports and connects. The figure is the time from call to begin.
- drain: Without workers, the front enqueues ``DRAINED`` jobs, and PostgreSQL updates its statistics
  (``ANALYZE``), as it would by itself within a minute. Then the workers start. Jobs count from the
  time at which every worker has begun a job, so that startup time does not count. After
  ``DRAIN_SECONDS`` the rate is computed from the jobs that are done.

All candidates use the PostgreSQL and Redis servers of the tests, which do not wait for the disk
(``fsync`` off, no ``appendonly``). The settings of each:

- lro: ``PostgresStore``, ``Service(store, None)`` as the front, ``ThreadExecutor(SLOTS)`` in the
  workers. Other settings are defaults: a lease of 15 s, results kept, statistics on.
- DBOS: a queue with ``worker_concurrency=SLOTS``, an ``executor_id`` for each process. DBOS polls:
  one row has its default of a second, one has 10 ms. A ``DBOSClient`` is the front.
- Procrastinate: ``concurrency=SLOTS``, ten connections, notified of new jobs; jobs are kept.
- Celery: prefork, ``-c SLOTS``, ``acks_late`` (the others survive the death of a worker too),
  results in Redis, and a prefetch of 64 messages per process, as Celery advises for short tasks.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, Protocol

import attrs

from bench.measure import Figure, against, alone, percentile

HERE: Final = Path(__file__).parent
WORKERS: Final = 4
SLOTS: Final = 4
ALONE: Final = 100
WARM_UP: Final = 20
DRAINED: Final = 10_000
DRAIN_SECONDS: Final = 15.0
START_SECONDS: Final = 60.0
"""A candidate that takes longer to start is not measured."""
ROUNDS: Final = 3


class Failed(Exception):
    """A candidate cannot be measured here; the text says why."""


class Places(Protocol):
    """Servers on which each candidate gets a new database or Redis; see ``bench.peers``."""

    def folder(self) -> Path: ...

    def new(self, where: str) -> str: ...


@attrs.frozen(kw_only=True)
class Queue:
    """A candidate: its script, the kind of its database, and further arguments."""

    label: str
    script: str
    where: str = "PostgreSQL"
    extra: Sequence[str] = ()


QUEUES: Final = (
    Queue(label="lro, PostgreSQL", script="lro"),
    Queue(label="DBOS, PostgreSQL", script="dbos", extra=("1.0",)),
    Queue(label="DBOS, PostgreSQL, polling each 10 ms", script="dbos", extra=("0.01",)),
    Queue(label="Procrastinate, PostgreSQL", script="procrastinate"),
    Queue(label="Celery, Redis", script="celery", where="Redis"),
)


@attrs.frozen
class Figures:
    """Figures of one round: jobs per second, and the delays in seconds with idle workers."""

    rate: float
    delays: Sequence[float]


class Round:
    """A round of one candidate: its address, its processes, and the log that its jobs write."""

    def __init__(self, queue: Queue, python: str, places: Places, stack: contextlib.ExitStack):
        self._queue, self._python, self._stack = queue, python, stack
        self._address = places.new(queue.where)
        self._folder = places.folder()
        self._log = self._folder / "jobs"
        self._log.touch()
        self._made = 0
        self._front = self._started("front")
        self._ready([self._front])

    def measured(self) -> Figures:
        """Measure the delays with idle workers, and then the rate at which the queue drains."""
        with self._workers():
            self._asked(f"alone {WARM_UP}")
            delays = [float(one) for one in self._asked(f"alone {ALONE}").split()]
        self._log.write_text("")
        self._asked(f"fill {DRAINED}")
        if self._queue.where == "PostgreSQL":
            _analyze(self._address)
        with self._workers():
            end = time.monotonic() + DRAIN_SECONDS
            while len(self._lines()) < DRAINED and time.monotonic() < end:
                time.sleep(0.05)
        return Figures(self._rate(), delays)

    def _rate(self) -> float:
        jobs = [(worker, float(began), float(ended)) for worker, began, ended in self._lines()]
        first: dict[str, float] = {}
        for worker, began, _ in jobs:
            first[worker] = min(began, first.get(worker, began))
        if len(first) < WORKERS:
            raise Failed(f"only {len(first)} of {WORKERS} workers have begun a job")
        since = max(first.values())
        ends = [ended for _, began, ended in jobs if began >= since]
        return len(ends) / (max(ends) - since)

    def _lines(self) -> list[list[str]]:
        whole, _, _ = self._log.read_text().rpartition("\n")
        return [line.split() for line in whole.splitlines()]

    def _asked(self, command: str) -> str:
        process, _ = self._front
        assert process.stdin is not None
        assert process.stdout is not None
        print(command, file=process.stdin, flush=True)
        answer = process.stdout.readline()
        if not answer:
            raise Failed(f"its front has ended: {self._said(self._front)}")
        return str(answer)

    @contextlib.contextmanager
    def _workers(self) -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            workers = [self._started("work", str(number), stack) for number in range(WORKERS)]
            self._ready(workers)
            yield

    def _started(
        self, role: str, number: str = "-", stack: contextlib.ExitStack | None = None
    ) -> tuple[subprocess.Popen[str], Path]:
        self._made += 1
        output = self._folder / f"output{self._made}"
        with output.open("w") as file:
            process = subprocess.Popen(
                [
                    *(self._python, str(HERE / f"queue_{self._queue.script}.py")),
                    *(role, self._address, *self._queue.extra),
                ],
                env={
                    **os.environ,
                    "BENCH_QUEUE_LOG": str(self._log),
                    "BENCH_QUEUE_SLOTS": str(SLOTS),
                    "BENCH_QUEUE_WORKER": number,
                },
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE if role == "front" else file,
                stderr=file,
                text=True,
                start_new_session=True,  # lets us kill a process and its pool
            )
        (stack or self._stack).callback(_end, process)
        return process, output

    def _ready(self, processes: Sequence[tuple[Any, Path]]) -> None:
        end = time.monotonic() + START_SECONDS
        for process, output in processes:
            if process.stdout is not None:
                if process.stdout.readline().strip() != "ready":
                    raise Failed(f"does not start: {self._said((process, output))}")
                continue
            while "ready" not in output.read_text():
                if process.poll() is not None or time.monotonic() > end:
                    raise Failed(f"does not start: {self._said((process, output))}")
                time.sleep(0.02)

    def _said(self, one: tuple[Any, Path]) -> str:
        return (one[1].read_text().strip().splitlines() or ["it says nothing"])[-1]


def _analyze(address: str) -> None:
    import psycopg

    with psycopg.connect(address, autocommit=True) as connection:
        connection.execute("ANALYZE")


def _end(process: subprocess.Popen[str]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with contextlib.suppress(BrokenPipeError):
                pipe.close()


def rows(found: dict[str, list[Figures]]) -> Iterator[Figure]:
    """Yield the figures of each candidate, ours beside each peer's."""
    ours = found[QUEUES[0].label]
    peers = [found[queue.label] for queue in QUEUES[1:] if found[queue.label]]
    yield from _rows(QUEUES[0].label, ours, [])
    for queue in QUEUES[1:]:
        yield from _rows(queue.label, found[queue.label], ours)
    best = [max(one.rate for one in each) for each in zip(*peers, strict=False)]
    if ours and best:
        pairs = zip((one.rate for one in ours), best, strict=False)
        yield against("ours / the best peer", pairs, unit="/s", measure="queue, drain", target=5)


def _rows(label: str, its: Sequence[Figures], ours: Sequence[Figures]) -> Iterator[Figure]:
    """Yield the rows of a candidate: of one round without ``ours`` or beside it."""
    if not its:
        return
    measures: list[tuple[str, str, Callable[[Figures], float]]] = [
        ("drain", "/s", lambda one: one.rate),
        ("p50 to the begin", "ms", lambda one: percentile(one.delays, 0.5) * 1e3),
        ("p99 to the begin", "ms", lambda one: percentile(one.delays, 0.99) * 1e3),
    ]
    for measure, unit, value in measures:
        values = [value(one) for one in its]
        if ours:
            pairs = zip(map(value, ours), values, strict=False)
            yield against(f"ours / {label}", pairs, unit=unit, measure=f"queue, {measure}")
        else:
            yield alone(label, values, unit=unit, measure=f"queue, {measure}")
