"""A Django project: its settings, URLs, service and views."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from typing import Any

import django

from tests.integrations.counting import CONSOLE, OPTIONS, OWN, CountRequest, build, name_of, refused

FOLDER = tempfile.mkdtemp(prefix="lro-django-")
atexit.register(shutil.rmtree, FOLDER, ignore_errors=True)

SECRET_KEY = "only for tests"
ALLOWED_HOSTS = ["*"]
USE_TZ = True
STATIC_URL = "static/"
ROOT_URLCONF = __name__
INSTALLED_APPS = [
    *(f"django.contrib.{app}" for app in ("admin", "auth", "contenttypes", "messages", "sessions")),
    "lro.integrations.django",
]
MIDDLEWARE = [
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.contrib.auth.middleware.LoginRequiredMiddleware",
    f"{__name__}.with_theme",
]
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]
        },
    }
]
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": f"{FOLDER}/project.db",
        "ATOMIC_REQUESTS": True,
    }
}
TASKS = {"default": {"BACKEND": "lro.integrations.django.tasks.TaskBackend"}}
if django.VERSION < (6,):
    TASKS.clear()
LRO = {
    "SERVICE": f"{__name__}.service",
    "CALLER": f"{__name__}.caller",
    "STARTS": True,
    "PARENTS": OPTIONS["parents"],
    "CONSOLE": CONSOLE,
}

counting = build()
service = counting.service


def caller(request: Any) -> str:
    """Return the caller that the request's token names, or the user who is signed in."""
    from django.core.exceptions import PermissionDenied

    from lro.integrations.django import signed_in_user

    if refused(request.headers):
        raise PermissionDenied("not you")
    if "authorization" in request.headers or not request.user.is_authenticated:
        return name_of(request.headers.get("authorization"))
    return signed_in_user(request)


def with_theme(get_response: Any) -> Any:
    """Middleware that parses form bodies before the view runs."""

    def themed(request: Any) -> Any:
        request.POST.get("theme")
        return get_response(request)

    return themed


def __getattr__(name: str) -> Any:
    """Make ``urlpatterns`` on first use, when Django is set up and its parts can be imported."""
    if name != "urlpatterns":
        raise AttributeError(name)
    from django.contrib.auth.decorators import login_not_required
    from django.http import HttpResponse
    from django.urls import include, path
    from django.views.decorators.csrf import csrf_exempt

    from lro.integrations.django import start

    @csrf_exempt
    @login_not_required
    def own(request: Any) -> HttpResponse:
        return start(request, counting.count)

    @csrf_exempt
    @login_not_required
    def upload(request: Any) -> HttpResponse:
        return start(request, counting.count, CountRequest(request.FILES["file"].size))

    @login_not_required
    def other(request: Any) -> HttpResponse:
        return HttpResponse("mine")

    found = [
        path(OWN.removeprefix("/"), own),
        path("upload", upload),
        path("v1/own", other),
        path("", include("lro.integrations.django.urls")),
        path("api/", include("lro.integrations.django.urls")),
    ]
    globals()["urlpatterns"] = found
    return found
