"""The application under test: a service with one method on a SQLite file, and its logs.

The work runs in threads, or in Celery workers if the environment has the URL of a broker.
"""

from __future__ import annotations

import os
from datetime import timedelta

import attrs

import lro
from lro import asgi, wsgi
from lro.adapters import Executor
from lro.executors.threads import ThreadExecutor
from lro.stores.sqlite import SQLiteStore
from tests.services.hosts import BROKER, FOLDER, START_PATH


@lro.message("stopping.v1.WorkRequest")
@attrs.frozen
class WorkRequest:
    """How long the work takes; below zero, the work runs until the folder has a file ``go``."""

    milliseconds: lro.Int32 = 0


@lro.message("stopping.v1.WorkResponse")
@attrs.frozen
class WorkResponse:
    """How long the work has taken."""

    milliseconds: lro.Int32 = 0


def note(log: str, line: str) -> None:
    """Append a line to a log in the folder."""
    with open(os.path.join(os.environ[FOLDER], log), "a", encoding="utf-8") as file:
        file.write(line + "\n")


def authorize(caller: str, verb: str, name: str) -> None:
    """Allow every call and log its verb."""
    note("calls", verb)


executor: Executor = ThreadExecutor(4)
if BROKER in os.environ:
    import celery

    from lro.executors.celery import CeleryExecutor

    app = celery.Celery("work", broker=os.environ[BROKER])
    app.conf.broker_connection_retry_on_startup = True
    app.conf.worker_soft_shutdown_timeout = 0.5
    executor = CeleryExecutor(
        app, redelivery=timedelta(seconds=1), broker_timeout=timedelta(seconds=5)
    )

service = lro.Service(
    SQLiteStore(os.path.join(os.environ[FOLDER], "operations.db")),
    executor,
    lease=timedelta(seconds=10),
    drain=timedelta(seconds=0.5),
    authorize=authorize,
)


@service.method("stopping.v1.Works.Work", path=START_PATH)
def work(request: WorkRequest, job: lro.Job) -> WorkResponse:
    """Work for as long as the request says, or until the test creates the file ``go``."""
    note("begun", job.name)
    go, steps = os.path.join(os.environ[FOLDER], "go"), request.milliseconds // 20
    while not os.path.exists(go) if steps < 0 else steps > 0:
        steps -= 1
        job.sleep(0.02)
    return WorkResponse(request.milliseconds)


asgi_app = asgi.OperationsApp(service, starts={work.spec.path: work})
wsgi_app = wsgi.OperationsApp(service, starts={work.spec.path: work})
