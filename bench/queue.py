"""A front and worker processes: idle time, draining, delay until work begins, turns of keys."""

from __future__ import annotations

import bisect
import contextlib
import itertools
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import attrs

import lro
from bench.across import postgres_server
from bench.measure import MISSING, Figure, against, late
from lro.executors.threads import ThreadExecutor

JOBS: Final = 600
DRAINED: Final = 10_000
ALONE: Final = 200
TEN: Final = 10
ROUNDS: Final = 9
METHOD: Final = "bench.v1.Bench.Work"
KEYED: Final = "bench.v1.Bench.WorkInTurn"


@attrs.frozen
class Request:
    millis: float = 0.0
    customer: str = ""


@attrs.frozen
class Response:
    pass


def service_on(where: str, log: Path, workers: int) -> tuple[lro.Service, Any, Any]:
    """Return a service, its method, and the same method with fair concurrency keys.

    The function logs when it began and ended.
    """
    from bench.peers.on_lro import store

    executor = ThreadExecutor(workers) if workers else None
    service = lro.Service(store(where), executor)
    file = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def work(request: Request, job: lro.Job[lro.OperationMetadata]) -> Response:
        began = time.monotonic()
        if request.millis:
            time.sleep(request.millis / 1000)
        line = f"{os.getpid()}.{threading.get_ident()} {job.name} {began} {time.monotonic()}\n"
        os.write(file, line.encode())
        return Response()

    in_turn = service.method(KEYED, concurrency_key=lambda request: request.customer)(work)
    return service, service.method(METHOD)(work), in_turn


@contextlib.contextmanager
def workers_on(where: str, log: Path, processes: int, threads: int) -> Iterator[None]:
    """Run worker processes during the block, which begins when they are ready."""
    command = [sys.executable, "-m", "bench.queue", where, str(log), str(threads)]
    with contextlib.ExitStack() as stack:
        pipe = subprocess.PIPE
        made = [
            subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) for _ in range(processes)
        ]
        for process in made:
            stack.callback(process.wait)
            assert process.stdin is not None
            stack.callback(process.stdin.close)
            assert process.stdout is not None
            process.stdout.readline()
        yield


def lines(log: Path, count: int) -> Sequence[tuple[str, str, float, float]]:
    """Wait for this many jobs, and return the worker, operation, begin and end of each."""
    while len(found := log.read_text().splitlines()) < count:
        time.sleep(0.01)
    split = [line.split() for line in found]
    return [(worker, name, float(began), float(ended)) for worker, name, began, ended in split]


def longest_idle(jobs: Sequence[tuple[str, str, float, float]], stored: dict[str, float]) -> float:
    """Return the longest time in which a worker was idle although work was due."""
    due = sorted((stored[name], began) for _, name, began, _ in jobs)
    merged: list[list[float]] = []
    for since, until in due:
        if merged and since <= merged[-1][1]:
            merged[-1][1] = max(merged[-1][1], until)
        else:
            merged.append([since, until])
    by_worker = defaultdict(list)
    for worker, _, began, ended in jobs:
        by_worker[worker].append((began, ended))
    longest = 0.0
    for busy in by_worker.values():
        busy.sort()
        for (_, free), (again, _) in itertools.pairwise(busy):
            place = max(0, bisect.bisect(merged, [free]) - 1)
            for since, until in merged[place:]:
                if since >= again:
                    break
                longest = max(longest, min(until, again) - max(since, free))
    return longest


def measured(store: str, where: str) -> Iterator[Figure]:
    """Measure the queue of one store."""
    with tempfile.TemporaryDirectory() as folder:
        log, chance = Path(folder) / "balance", random.Random(7)
        service, work, _ = service_on(where, log, 0)
        with service, workers_on(where, log, 3, 2):
            stored = {}
            for _ in range(JOBS):
                name = work.start(Request(chance.uniform(5, 50))).name
                stored[name] = time.monotonic()
                time.sleep(chance.uniform(0, 0.008))
            idle = longest_idle(lines(log, JOBS), stored)
            what = f"{store}, {JOBS} jobs, 3 processes of 2"
            yield Figure(what=what, measure="longest idle", ours=idle * 1e3, unit="ms")
            log.write_text("")
            delays = []
            for number in range(ALONE):
                began = time.monotonic()
                work.start(Request())
                delays.append(lines(log, number + 1)[-1][2] - began)
                time.sleep(0.02)
            yield from late(f"{store}, start to begin, all idle", delays)
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "drain"
        service, work, _ = service_on(where, log, 0)
        with service:
            for _ in range(DRAINED // 500):
                work.start_many([Request()] * 500)
            with workers_on(where, log, 4, 2):
                done = lines(log, DRAINED)
            seconds = max(ended for *_, ended in done) - min(began for _, _, began, _ in done)
            what = f"{store}, drain of {DRAINED:,}, 4 processes of 2"
            yield Figure(what=what, ours=DRAINED / seconds, unit="/s")
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "turns"
        service, _, in_turn = service_on(where, log, 0)
        with service, workers_on(where, log, 4, 4):
            for millis in (20, 100):
                alone = [ten(service, in_turn, millis) for _ in range(ROUNDS)]
                for _ in range(DRAINED // 500):
                    in_turn.start_many([Request(millis, "the other")] * 500)
                beside = [ten(service, in_turn, millis) for _ in range(ROUNDS)]
                service.cancel_all("done = false")
                pairs = zip(beside, alone, strict=True)
                what = f"{store}, {TEN} jobs of {millis} ms, beside {DRAINED:,} / alone"
                yield against(what, pairs, unit="ms", scale=1e3)


def ten(service: lro.Service, in_turn: Any, millis: float) -> float:
    """Return the seconds until ten jobs of one customer are done."""
    began = time.monotonic()
    started = in_turn.start_many([Request(millis, "this one")] * TEN)
    for one in started:
        service.wait(one.name, timedelta(seconds=60))
    seconds = time.monotonic() - began
    time.sleep(0.2)
    return seconds


def run() -> Iterator[Figure]:
    with tempfile.TemporaryDirectory() as folder:
        yield from measured("SQLite", str(Path(folder) / "queue.db"))
    server = postgres_server()
    if server is None:
        MISSING.append("PostgreSQL: it is not installed")
    else:
        yield from measured("PostgreSQL", server.url)


def main(where: str, log: str, threads: str) -> None:
    service, _, _ = service_on(where, Path(log), int(threads))
    with service:
        print("ready", flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main(*sys.argv[1:])
