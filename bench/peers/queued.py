"""What the queue rows have in common. Needs only the standard library.

A worker process calls :func:`note` for each job: it appends a line to a log that all share, with
the number of the worker and the moments of begin and end by the clock that all processes of the
machine share. A front reads commands: ``fill N`` enqueues N jobs, and ``alone N`` enqueues N, each
when the one before is done, and answers with the seconds from each call to the begin of its job.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

LOG = "BENCH_QUEUE_LOG"
"""The environment variable with the path of the log."""
WORKER = "BENCH_QUEUE_WORKER"
"""The environment variable with the number of the worker."""
SLOTS = int(os.environ.get("BENCH_QUEUE_SLOTS", "1"))
"""How many jobs each worker does at once."""

_file = os.open(os.environ[LOG], os.O_WRONLY | os.O_APPEND) if LOG in os.environ else -1
_worker = os.environ.get(WORKER, "-")


def note() -> None:
    """Do the job: log that it has begun and ended. One write, so that lines stay whole."""
    began = time.monotonic()
    os.write(_file, f"{_worker} {began:.6f} {time.monotonic():.6f}\n".encode())


def work_until_told() -> None:
    """Say that this worker is ready, and go on until the standard input ends."""
    print("ready", flush=True)
    sys.stdin.read()


def serve_front(fill: Callable[[int], object], one: Callable[[], object]) -> None:
    """Answer until there are no more lines."""
    log = Path(os.environ[LOG])
    print("ready", flush=True)
    for line in sys.stdin:
        what, count = line.split()
        if what == "fill":
            fill(int(count))
            print("filled", flush=True)
            continue
        delays = []
        for _ in range(int(count)):
            size = log.stat().st_size
            began = time.monotonic()
            one()
            while log.stat().st_size == size:
                time.sleep(0.002)
            begun = float(log.read_text().splitlines()[-1].split()[1])
            delays.append(begun - began)
            time.sleep(0.02)  # until all are idle again
        print(*delays, flush=True)
