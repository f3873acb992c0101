"""Turns of concurrency keys: one customer's jobs alone, and beside the jobs of another.

``peers --rows queue`` measures the delay until work begins, and the drain of a queue.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import attrs

import lro
from bench.across import postgres_server
from bench.measure import MISSING, Figure, against
from bench.peers.on_lro import store
from lro.executors.threads import ThreadExecutor

QUEUED: Final = 10_000
TEN: Final = 10
ROUNDS: Final = 9
PROCESSES: Final = 4
THREADS: Final = 4


@attrs.frozen
class Request:
    millis: float = 0.0
    customer: str = ""


@attrs.frozen
class Response:
    pass


def service_on(where: str, workers: int = 0) -> tuple[lro.Service, Any]:
    """Return a service, and its method with fair concurrency keys."""
    service = lro.Service(store(where), ThreadExecutor(workers) if workers else None)

    @service.method("bench.v1.Bench.Work", concurrency_key=lambda request: request.customer)
    def work(request: Request, _: lro.Job[lro.OperationMetadata]) -> Response:
        time.sleep(request.millis / 1000)
        return Response()

    return service, work


@contextlib.contextmanager
def workers_on(where: str) -> Iterator[None]:
    """Run worker processes during the block, which begins when they are ready."""
    command = [sys.executable, "-m", "bench.queue", where]
    with contextlib.ExitStack() as stack:
        pipe = subprocess.PIPE
        made = [
            subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) for _ in range(PROCESSES)
        ]
        for process in made:
            stack.callback(process.wait)
            assert process.stdin is not None
            stack.callback(process.stdin.close)
            assert process.stdout is not None
            process.stdout.readline()
        yield


def measured(label: str, where: str) -> Iterator[Figure]:
    """Measure the turns of keys on one store."""
    service, work = service_on(where)
    with service, workers_on(where):
        for millis in (20, 100):
            alone = [ten(service, work, millis) for _ in range(ROUNDS)]
            for _ in range(QUEUED // 500):
                work.start_many([Request(millis, "the other")] * 500)
            beside = [ten(service, work, millis) for _ in range(ROUNDS)]
            service.cancel_all("done = false")
            pairs = zip(beside, alone, strict=True)
            what = f"{label}, {TEN} jobs of {millis} ms, beside {QUEUED:,} / alone"
            yield against(what, pairs, unit="ms", scale=1e3)


def ten(service: lro.Service, work: Any, millis: float) -> float:
    """Return the seconds until ten jobs of one customer are done."""
    began = time.monotonic()
    started = work.start_many([Request(millis, "this one")] * TEN)
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


def main(where: str) -> None:
    service, _ = service_on(where, THREADS)
    with service:
        print("ready", flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main(sys.argv[1])
