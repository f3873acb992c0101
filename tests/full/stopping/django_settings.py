"""Django settings of the application under test."""

from typing import Any

SECRET_KEY = "only for tests"
ALLOWED_HOSTS = ["*"]
ROOT_URLCONF = "lro.integrations.django.urls"
INSTALLED_APPS = ["lro.integrations.django"]
DATABASES: dict[str, Any] = {}
LRO = {"SERVICE": "tests.full.stopping.app.service", "CALLER": f"{__name__}.caller", "STARTS": True}


def caller(request: Any) -> None:
    """Treat every caller as anonymous."""
