"""Common parts of the queue scripts. Needs only the standard library.

A worker process calls :func:`note` for each job, to append a line to a shared log: the number of
the worker, and the times of begin and end, by the clock that all processes of the machine share. A
front reads commands: ``fill N`` enqueues N jobs; ``alone N`` enqueues N jobs one after the other,
and prints the seconds from each call to the begin of its job.
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
"""The number of jobs that each worker runs at once."""

_file = os.open(os.environ[LOG], os.O_WRONLY | os.O_APPEND) if LOG in os.environ else -1
_worker = os.environ.get(WORKER, "-")


def note() -> None:
    """Do the job: log its begin and its end, in one write, so that lines stay whole."""
    began = time.monotonic()
    os.write(_file, f"{_worker} {began:.6f} {time.monotonic():.6f}\n".encode())


def work_until_told() -> None:
    """Print that this worker is ready, and work until standard input ends."""
    print("ready", flush=True)
    sys.stdin.read()


def serve_front(fill: Callable[[int], object], one: Callable[[], object]) -> None:
    """Run the commands on standard input, to its end."""
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
            time.sleep(0.02)  # until all workers are idle again
        print(*delays, flush=True)
