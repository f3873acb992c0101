"""Celery: ``queue_celery.py front URL`` or ``queue_celery.py work URL``.

If a worker dies, its message is delivered again (``acks_late``), as in all candidates, and results
are kept. A worker prefetches many messages, as Celery's docs advise for short tasks.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import celery
from queued import SLOTS, WORKER, note, serve_front

URL = "BENCH_QUEUE_BROKER"
PREFETCHED = 64

app = celery.Celery("queue_celery", broker=os.environ.get(URL), backend=os.environ.get(URL))
app.conf.update(
    task_acks_late=True,
    task_reject_on_worker_lost=True,
    worker_prefetch_multiplier=PREFETCHED,
    broker_connection_retry_on_startup=True,
)


@app.task
def work() -> None:
    note()


def fill(count: int) -> None:
    with app.producer_pool.acquire(block=True) as producer:
        for _ in range(count):
            work.apply_async(producer=producer)


if __name__ == "__main__":
    os.environ[URL] = sys.argv[2]
    app.conf.update(broker_url=sys.argv[2], result_backend=sys.argv[2])
    if sys.argv[1] == "front":
        serve_front(fill, work.delay)
    else:
        os.chdir(Path(__file__).parent)
        name = f"worker{os.environ[WORKER]}@%h"
        options = ["-A", "queue_celery", "worker", "-c", str(SLOTS), "-n", name, "-l", "INFO"]
        os.execv(sys.executable, [sys.executable, "-m", "celery", *options])
