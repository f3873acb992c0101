"""The application that the Celery tests share: servers build it, and workers import it.

``celery -A tests.executors.celery_app worker`` reads broker and store from the environment.
"""

from __future__ import annotations

import os
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import celery

import lro
from lro import Service
from lro.adapters import Store
from lro.executors.celery import CeleryExecutor
from lro.stores.sqlite import SQLiteStore
from lro.webhooks import Endpoint, Webhooks
from tests.waiting import PATIENCE, until
from tests.work_messages import WorkMetadata, WorkRequest, WorkResponse

LEASE = timedelta(seconds=5)
BROKER_TIMEOUT = timedelta(seconds=5)
RETRY = lro.Retry(attempts=2, first_pause=timedelta(seconds=2), jitter=0)
STUBBORN = lro.Retry(attempts=3, first_pause=timedelta(seconds=3), jitter=0)
RATE = (2, timedelta(seconds=3))


def build(
    broker: str, store: str, queue: str, redelivery: str, **options: Any
) -> tuple[celery.Celery, Service]:
    """Return a Celery app and a service for this broker and store; ``redelivery`` is in seconds.

    ``store`` is the path of a SQLite file or the URL of a PostgreSQL server; ``options`` are
    passed on to the service.
    """
    app = celery.Celery("tests", broker=broker)
    app.conf.broker_connection_retry_on_startup = True
    app.conf.worker_prefetch_multiplier = 1
    app.conf.task_default_queue = queue
    service = Service(
        store_at(store),
        CeleryExecutor(
            app,
            queue=queue,
            redelivery=timedelta(seconds=float(redelivery)),
            broker_timeout=BROKER_TIMEOUT,
        ),
        domain="acme.test",
        lease=LEASE,
        **options,
    )
    add_methods(service)
    return app, service


def store_at(place: str) -> Store:
    """Open a SQLite store at a path, or a PostgreSQL store at a URL."""
    if not place.startswith("postgresql:"):
        return SQLiteStore(place)
    from lro.stores.postgres import PostgresStore  # imported only if there is a server

    return PostgresStore(place, schema="celery", statement_seconds=PATIENCE)


def add_methods(service: Service) -> None:
    """Register the methods. Except for Echo, a request's text is the path of a file."""

    @service.method("acme.v1.Works.Echo")
    def echo(request: WorkRequest, job: lro.Job[WorkMetadata]) -> WorkResponse:
        job.report(WorkMetadata(percent=100, note=str(os.getpid())))
        return WorkResponse(text=request.text[::-1])

    @service.method("acme.v1.Works.Hold")
    def hold(request: WorkRequest, job: lro.Job[WorkMetadata]) -> WorkResponse:
        return held(request, job)

    @service.method("acme.v1.Works.Once", at_most_once=True)
    def once(request: WorkRequest, job: lro.Job[WorkMetadata]) -> WorkResponse:
        return held(request, job)

    @service.method("acme.v1.Works.Again")
    def again(request: WorkRequest, job: lro.Job[WorkMetadata]) -> WorkResponse:
        return held(request, job)

    @service.method("acme.v1.Works.Steps")
    def steps(request: WorkRequest, job: lro.Job[WorkMetadata]) -> WorkResponse:
        first = job.step("first", os.getpid)
        second = job.step("second", held, request, job)
        return WorkResponse(text=f"{first} {second.text}")

    @service.method("acme.v1.Works.Count")
    def count(request: WorkRequest, job: lro.Job[WorkMetadata]) -> WorkResponse:
        with Path(request.text).open("a", encoding="utf-8") as tally:
            tally.write(f"{job.name}\n")
        return WorkResponse()

    @service.method("acme.v1.Works.Retried", retry=RETRY)
    def retried(request: WorkRequest, job: lro.Job[WorkMetadata]) -> WorkResponse:
        noted(request)
        if job.attempt == 1:
            raise ConnectionError("away")
        return WorkResponse()

    @service.method("acme.v1.Works.Stubborn", retry=STUBBORN)
    def stubborn(request: WorkRequest, job: lro.Job[WorkMetadata]) -> WorkResponse:
        noted(request)
        if job.attempt < 3:
            raise ConnectionError(f"away in {os.getpid()}")
        return WorkResponse()

    @service.method("acme.v1.Works.Alone", concurrency=1)
    def alone(request: WorkRequest, job: lro.Job[WorkMetadata]) -> WorkResponse:
        return held(request, job)

    @service.method("acme.v1.Works.Rated", rate=RATE)
    def rated(request: WorkRequest, job: lro.Job[WorkMetadata]) -> WorkResponse:
        noted(request)
        return WorkResponse()


def noted(request: WorkRequest) -> None:
    """Append the time to the file of the request."""
    with Path(request.text).open("a", encoding="utf-8") as tally:
        tally.write(f"{time.time()}\n")


def held(request: WorkRequest, job: lro.Job[WorkMetadata]) -> WorkResponse:
    """Report the attempt and the process ID, then wait until the file of the request exists."""
    job.report(WorkMetadata(percent=job.attempt, note=str(os.getpid())))

    def may_end() -> bool:
        job.raise_if_cancelled()
        return Path(request.text).exists()

    until(may_end)
    return WorkResponse(text=f"{os.getpid()}")


SETTINGS = "LRO_TEST_CELERY"
"""The environment variable with the four arguments of :func:`build`, for workers."""

URL = "LRO_TEST_WEBHOOK"
"""The environment variable with the URL of webhooks, for workers; unset without webhooks."""


def webhooks(url: str) -> Webhooks:
    endpoint = Endpoint(url=url, secrets=("whsec_" + "c2VjcmV0" * 4,))
    return Webhooks([endpoint], allow_private=True, allow_http=True, ports=None)


_made: tuple[Any, Any] = (None, None)
if SETTINGS in os.environ:
    _options = {"webhooks": webhooks(os.environ[URL])} if URL in os.environ else {}
    _made = build(*os.environ[SETTINGS].split("|"), **_options)
app, service = _made
