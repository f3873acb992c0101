"""The Celery app of the servers, and its worker process."""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path
from typing import Any

import celery
from celery.signals import worker_ready

from lro.executors.celery import CeleryExecutor
from tests.chaos.server import Setting

_apps: dict[str, celery.Celery] = {}


def _app_on(broker: str) -> celery.Celery:
    url, _, queue = broker.partition("#")
    if broker not in _apps:
        app = _apps[broker] = celery.Celery(f"chaos-{queue}", broker=url)
        app.conf.broker_connection_retry_on_startup = True
        app.conf.worker_prefetch_multiplier = 1
        app.conf.worker_hijack_root_logger = False
        app.conf.worker_send_task_events = False
        app.conf.task_default_queue = queue
    return _apps[broker]


def make_remote(broker: str, redelivery: float) -> CeleryExecutor:
    """Create an executor that sends operation names to a queue; ``redelivery`` is in seconds."""
    return CeleryExecutor(_app_on(broker), redelivery=timedelta(seconds=redelivery))


def work(setting: Setting) -> None:
    """Run a worker with a pool of processes until SIGTERM."""
    ready = Path(setting.folder) / f"ready-{os.getpid()}"

    def report_ready(**_: Any) -> None:
        ready.touch()

    worker_ready.connect(report_ready, weak=False)
    options = ["--pool", "prefork", "--concurrency", str(setting.workers), "--loglevel", "WARNING"]
    options += ["--without-gossip", "--without-mingle", "--without-heartbeat"]
    _app_on(setting.broker).worker_main(["worker", *options])
