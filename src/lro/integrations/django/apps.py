"""The app of the operations, and the check of its settings."""

from collections.abc import Sequence
from typing import Any

from django.apps import AppConfig
from django.conf import settings
from django.core import checks
from django.core.exceptions import ImproperlyConfigured

from lro._base.errors import LroError
from lro.integrations.django._operations import edge


class OperationsConfig(AppConfig):  # type: ignore[misc]  # Django ships no types
    """The app ``lro``."""

    name = "lro.integrations.django"
    label = "lro"
    verbose_name = "Long-running operations"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Have ``manage.py check`` look at the settings, and declare the method of tasks.

        A process that starts no task must know the method too, to do what another has left.
        """
        checks.register(check_settings)
        backends = getattr(settings, "TASKS", {}).values()
        if any(one.get("BACKEND") == f"{self.name}.tasks.TaskBackend" for one in backends):
            from lro.integrations.django.tasks import run_method

            run_method()


def check_settings(app_configs: Any, **_: Any) -> Sequence[checks.CheckMessage]:  # noqa: ARG001
    """Whether the settings name a service, and an edge can be made of them."""
    try:
        edge()
    except (ImproperlyConfigured, LroError, ImportError) as exc:
        return [checks.Error(str(exc), hint="See LRO in the settings.", id="lro.E001")]
    return []
