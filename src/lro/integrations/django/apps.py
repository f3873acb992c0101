"""The Django app, and the check of its settings."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

from django.apps import AppConfig
from django.conf import settings
from django.core import checks
from django.db import connections

from lro.integrations.django._operations import WRONG_SETTINGS, operations, service
from lro.integrations.django._test_database import TestDatabase


class OperationsConfig(AppConfig):  # type: ignore[misc]  # Django ships no types
    """The configuration of the Django app ``lro``."""

    name = "lro.integrations.django"
    label = "lro"
    verbose_name = "Long-running operations"

    def ready(self) -> None:
        """Register the check, the signal handlers, the test databases, connections and tasks.

        Signal handlers need the main thread, in which only ``ready`` is sure to run. The method is
        declared even in a process that starts no tasks, so that the process can run the tasks that
        other processes have started.
        """
        checks.register(check_settings)
        for alias in connections:
            TestDatabase(alias).watch()
        with contextlib.suppress(*WRONG_SETTINGS):  # the settings check reports the error
            service().edges.end_waits_at_signals()
            service().edges.surround(without_old_connections)
        backends = getattr(settings, "TASKS", {}).values()
        ours = f"{self.name}.tasks.TaskBackend"
        if any(one.get("BACKEND") == ours for one in backends):  # pragma: no cover - in Django 6
            from lro.integrations.django.tasks import run_method

            run_method()


@contextlib.contextmanager
def without_old_connections() -> Iterator[None]:
    """Close this thread's old database connections before and after the work, as for a request.

    A connection inside ``transaction.atomic()`` stays open: an InlineExecutor runs the work in the
    thread of the caller, whose transaction would be lost.
    """
    _close_old_connections()
    try:
        yield
    finally:
        _close_old_connections()


def _close_old_connections() -> None:
    for one in connections.all(initialized_only=True):
        if not one.in_atomic_block:
            one.close_if_unusable_or_obsolete()


def check_settings(app_configs: Any, **_: Any) -> Sequence[checks.CheckMessage]:  # noqa: ARG001
    """Check that the settings name a service, and that an edge can be made from them."""
    try:
        operations()
    except WRONG_SETTINGS as exc:
        return [checks.Error(str(exc), hint="See LRO in the settings.", id="lro.E001")]
    return []
