"""The app of the operations, and the check of its settings."""

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
"""What :func:`edge` raises where the settings are wrong."""


class OperationsConfig(AppConfig):  # type: ignore[misc]  # Django ships no types
    """The app ``lro``."""

    name = "lro.integrations.django"
    label = "lro"
    verbose_name = "Long-running operations"

    def ready(self) -> None:
        """Prepare this process: look at the settings when asked, stop well, know the tasks.

        Only here is the main thread at work, which signals need. A process that starts no task must
        know the method of tasks too, to do what another has left.
        """
        checks.register(check_settings)
        with contextlib.suppress(*_WRONG):  # what is wrong is reported by the check
            service().edges.end_waits_at_signals()
        backends = getattr(settings, "TASKS", {}).values()
        ours = f"{self.name}.tasks.TaskBackend"
        if any(one.get("BACKEND") == ours for one in backends):  # pragma: no cover - of Django 6
            from lro.integrations.django.tasks import run_method

            run_method()


def check_settings(app_configs: Any, **_: Any) -> Sequence[checks.CheckMessage]:  # noqa: ARG001
    """Whether the settings name a service, and an edge can be made of them."""
    try:
        operations()
    except _WRONG as exc:
        return [checks.Error(str(exc), hint="See LRO in the settings.", id="lro.E001")]
    return []
