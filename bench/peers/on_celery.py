"""Celery with Redis for messages and results; its worker has two processes, one per core."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import celery
from commands import serve

URL = os.environ.get("BENCH_BROKER_URL", "redis://")
app = celery.Celery("on_celery", broker=URL, backend=URL)


@app.task
def work(number: int) -> int:
    return number


def one() -> None:
    assert work.delay(1).get(timeout=60) == 1


def many(count: int) -> None:
    results = [work.delay(1) for _ in range(count)]
    for result in results:
        assert result.get(timeout=120) == 1


def main() -> None:
    options = ["-A", "on_celery", "worker", "-c", "2", "-l", "ERROR"]
    worker = subprocess.Popen(
        [sys.executable, "-m", "celery", *options],
        cwd=Path(__file__).parent,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        one()  # the worker is ready
        serve(one, many)
    finally:
        worker.terminate()
        worker.wait()


if __name__ == "__main__":
    os.environ["BENCH_BROKER_URL"] = sys.argv[1]
    app.conf.update(broker_url=sys.argv[1], result_backend=sys.argv[1])
    main()
