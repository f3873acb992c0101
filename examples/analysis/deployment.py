"""The choices of a deployment: the store, the executor and their settings."""

from __future__ import annotations

import functools
import os
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

import attrs

from lro import DeclarationError, Limits, Service
from lro.adapters import Executor, Store
from lro.executors.threads import ThreadExecutor
from lro.stores.sqlite import SQLiteStore

if TYPE_CHECKING:
    import celery

BACKLOG: Final = 32
"""Maximum number of analyses that wait for a worker."""
EXECUTORS: Final = ("threads", "processes", "celery")
_SQLITE: Final = "sqlite:///"


@attrs.frozen(kw_only=True)
class Deployment:
    """The settings of a deployment.

    ``store`` is ``sqlite:///PATH`` or ``postgresql://...``, and ``executor`` is one of EXECUTORS.
    ``broker`` is the URL of Celery's broker. ``concurrency`` is the number of analyses that run at
    once in a process. It does not apply to Celery's worker, which has its own option. A worker that
    is silent for ``lease`` seconds counts as lost. ``grpc`` is the address for gRPC, or empty.
    """

    store: str = "sqlite:///operations.db"
    executor: str = "threads"
    broker: str = "redis://localhost:6379/0"
    concurrency: int = 2
    lease: float = 15.0
    grpc: str = ""

    @classmethod
    def of_environment(cls) -> Deployment:
        """Read the settings from the variables ``ANALYSIS_STORE``, ``ANALYSIS_LEASE`` and so on."""
        plain: dict[str, Any] = attrs.asdict(cls())
        given = {name: os.environ.get(_variable(name), plain[name]) for name in plain}
        return cls(**{name: type(plain[name])(text) for name, text in given.items()})

    def environment(self) -> dict[str, str]:
        """Return the environment variables from which other processes read these settings."""
        return {_variable(name): str(value) for name, value in attrs.asdict(self).items()}

    def make_service(self) -> Service:
        """Make a service that uses this store and executor, and has no methods yet."""
        store = self._make_store()
        try:
            return Service(
                store,
                self._make_executor(),
                domain="analysis.lro.example",
                lease=timedelta(seconds=self.lease),
                limits=Limits(backlog=BACKLOG),
            )
        except BaseException:
            store.close()
            raise

    @functools.cached_property
    def celery(self) -> celery.Celery:
        """The Celery app whose messages carry the names of operations."""
        import celery

        app = celery.Celery("analysis", broker=self.broker)
        # An analysis takes seconds, so a busy worker must leave the next analysis to other workers.
        app.conf.worker_prefetch_multiplier = 1
        return app

    def _make_store(self) -> Store:
        if self.store.startswith(_SQLITE):
            return SQLiteStore(self.store.removeprefix(_SQLITE))
        if self.store.startswith(("postgresql://", "postgres://")):
            from lro.stores.postgres import PostgresStore

            return PostgresStore(self.store)
        raise DeclarationError(repr(self.store), "is not sqlite:///PATH or postgresql://...")

    def _make_executor(self) -> Executor:
        if self.executor == "threads":
            return ThreadExecutor(self.concurrency)
        if self.executor == "processes":
            from lro.executors.processes import ProcessExecutor

            return ProcessExecutor(self.concurrency)
        if self.executor == "celery":
            from lro.executors.celery import CeleryExecutor

            return CeleryExecutor(self.celery)
        raise DeclarationError(repr(self.executor), f"is not one of {', '.join(EXECUTORS)}")


def _variable(name: str) -> str:
    return f"ANALYSIS_{name.upper()}"
