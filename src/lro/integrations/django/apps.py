"""The Django app, and the check of its settings."""

import contextlib
from collections.abc import Sequence
from typing import Any, Final

from django.apps import AppConfig
from django.conf import settings
from django.core import checks
from django.core.exceptions import ImproperlyConfigured

from lro.errors import LroError
from lro.integrations.django._operations import operations, service

_WRONG: Final = (ImproperlyConfigured, LroError, ImportError)
"""The exceptions of :func:`operations` and :func:`service` if the settings are wrong."""


class OperationsConfig(AppConfig):  # type: ignore[misc]  # Django ships no types
    """The configuration of the Django app ``lro``."""

    name = "lro.integrations.django"
    label = "lro"
    verbose_name = "Long-running operations"

    def ready(self) -> None:
        """Register the settings check, the signal handlers, and the method that runs tasks.

        Signal handlers need the main thread, in which only ``ready`` is sure to run. The method is
        declared even in a process that starts no tasks, so that the process can run the tasks that
        other processes have started.
        """
        checks.register(check_settings)
        with contextlib.suppress(*_WRONG):  # the settings check reports the error
            service().edges.end_waits_at_signals()
        backends = getattr(settings, "TASKS", {}).values()
        ours = f"{self.name}.tasks.TaskBackend"
        if any(one.get("BACKEND") == ours for one in backends):  # pragma: no cover - in Django 6
            from lro.integrations.django.tasks import run_method

            run_method()


def check_settings(app_configs: Any, **_: Any) -> Sequence[checks.CheckMessage]:  # noqa: ARG001
    """Check that the settings name a service, and that an edge can be made from them."""
    try:
        operations()
    except _WRONG as exc:
        return [checks.Error(str(exc), hint="See LRO in the settings.", id="lro.E001")]
    return []
