"""DBOS: ``queue_dbos.py front URL SECONDS`` or ``queue_dbos.py work URL SECONDS``.

The front is a DBOSClient. SECONDS is the interval at which a worker polls the queue.
"""

from __future__ import annotations

import logging
import os
import sys

import sqlalchemy
from dbos import DBOS, DBOSClient, EnqueueOptions, run_dbos_database_migrations
from queued import SLOTS, WORKER, note, serve_front, work_until_told

AT_ONCE = 500
QUEUE = "bench"


def front(url: str) -> None:
    run_dbos_database_migrations(url)
    client = DBOSClient(system_database_url=url)
    options: EnqueueOptions = {"queue_name": QUEUE, "workflow_name": "work"}
    engine = sqlalchemy.create_engine(url.replace("postgresql:", "postgresql+psycopg:"))

    def fill(count: int) -> None:
        for first in range(0, count, AT_ONCE):
            with engine.begin() as connection:
                for _ in range(min(AT_ONCE, count - first)):
                    client.enqueue_in_transaction(connection, options)

    serve_front(fill, lambda: client.enqueue(options))
    client.destroy()


def worker(url: str, seconds: float) -> None:
    DBOS(
        config={
            "name": "bench",
            "system_database_url": url,
            "executor_id": f"worker-{os.environ[WORKER]}",
            "run_admin_server": False,
        }
    )

    @DBOS.workflow(name="work")
    def work() -> None:
        note()

    DBOS.launch()
    logging.getLogger("dbos").setLevel(logging.ERROR)
    DBOS.register_queue(QUEUE, worker_concurrency=SLOTS, polling_interval_sec=seconds)
    work_until_told()
    DBOS.destroy()


if __name__ == "__main__":
    if sys.argv[1] == "front":
        front(sys.argv[2])
    else:
        worker(sys.argv[2], float(sys.argv[3]))
