"""The integration into Django: URLs, users, transactions, settings, commands."""

from __future__ import annotations

import contextlib
import io
import json
import os
from collections.abc import Callable, Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import httpx
import pytest

import lro
from lro.executors.inline import InlineExecutor
from lro.executors.threads import ThreadExecutor
from lro.stores.memory import MemoryStore
from lro.stores.sqlite import SQLiteStore
from tests.http.servers import HOST, uvicorn_serving, waitress_serving
from tests.integrations.counting import ANN, START, Counting, CountRequest, Served, served_by
from tests.integrations.wsgi_checks import *  # noqa: F403

django = pytest.importorskip("django")
os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.integrations.django_project")
django.setup()

from django.conf import settings  # noqa: E402
from django.contrib.auth.models import AnonymousUser, User  # noqa: E402
from django.core.asgi import get_asgi_application  # noqa: E402
from django.core.management import CommandError, call_command  # noqa: E402
from django.core.wsgi import get_wsgi_application  # noqa: E402
from django.db import connection, transaction  # noqa: E402
from django.test import Client, RequestFactory, override_settings  # noqa: E402

from lro.integrations import django as integration  # noqa: E402
from lro.integrations.django import _operations, signed_in_user  # noqa: E402
from lro.integrations.django.apps import check_settings  # noqa: E402
from tests.integrations import django_project  # noqa: E402

counting = django_project.counting


@contextlib.contextmanager
def uvicorn_without_lifespan(app: Any) -> Iterator[int]:
    """Serve Django, which has no lifespan events, on uvicorn and yield the port."""
    with uvicorn_serving(app, lifespan="off") as port:
        yield port


DJANGO: Any = {"counting": counting, "streams": False, "closes": False, "refuses": (403,)}
served = served_by(
    wsgi=(lambda _: get_wsgi_application(), {**DJANGO, "serve": waitress_serving}),
    asgi_below_a_prefix=(
        lambda _: get_asgi_application(),
        {**DJANGO, "serve": uvicorn_without_lifespan, "prefix": "/api"},
    ),
)


@pytest.fixture
def wsgi_app() -> Any:
    """The WSGI application without a server."""
    return get_wsgi_application()


def test_view_that_has_read_a_form_starts_an_operation(served: Served) -> None:
    """If a view has read an uploaded file, ``start`` takes its message and parses no body."""
    reply = served.http.post("/upload", files={"file": b"12345"}, headers=ANN)
    assert reply.status_code == 200, reply.text
    assert served.wait(reply.json()["name"])["response"]["total"] == 5


def test_user_who_is_signed_in_by_a_session_owns_the_operation() -> None:
    """A start by a signed-in user stores the user's primary key; a cross-site POST is refused."""
    call_command("migrate", verbosity=0)
    user = User.objects.create_user("ann", password="secret")
    browser = Client(enforce_csrf_checks=True)
    assert browser.login(username="ann", password="secret")
    started = browser.post(START, {"steps": 3}, content_type="application/json").json()
    assert counting.service.store.get(started["name"]).caller == str(user.pk)
    refused = browser.post(
        START, {}, content_type="application/json", headers={"sec-fetch-site": "cross-site"}
    )
    assert refused.json()["error"]["status"] == "PERMISSION_DENIED"
    assert Client().get("/v1/operations").status_code == 401


@pytest.fixture
def serve_alone(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """A function that makes the project serve another service, without ``caller``."""

    def serve(other: Counting, **options: Any) -> None:
        made = _operations.DjangoOperations(other.service, **options)
        monkeypatch.setattr(_operations, "operations", lambda: made)

    return serve


@pytest.mark.parametrize("committed", [True, False])
def test_start_within_a_transaction_is_there_with_the_rows_of_the_project(
    committed: bool, serve_alone: Callable[..., None], make_counting: Any
) -> None:
    """In one database file, an operation and a row of the project commit or roll back together."""
    call_command("migrate", verbosity=0)
    store = SQLiteStore(settings.DATABASES["default"]["NAME"])
    serve_alone(other := make_counting(store, owner_only=False, authorize=None))
    request = RequestFactory().post("/own", {"steps": 3}, content_type="application/json")
    with transaction.atomic():
        user = User.objects.create_user(f"within-{committed}")
        reply = integration.start(request, other.count, within=connection)
        refused = integration.start(request, other.count, within=object())
        transaction.set_rollback(not committed)
    assert refused.status_code == 400
    name = json.loads(reply.content)["name"]
    assert User.objects.filter(pk=user.pk).exists() == committed
    if committed:
        assert other.service.wait(name, 60).done
    else:
        with pytest.raises(lro.errors.OperationNotFound):
            other.service.get(name)
    connection.close()


def test_start_in_a_project_without_our_urls_has_no_location(
    serve_alone: Callable[..., None], shared: Counting
) -> None:
    serve_alone(shared, accepted=True)
    request = RequestFactory().post("/own", {"steps": -1}, content_type="application/json")
    without: Any = ModuleType("without")
    without.urlpatterns = []
    with override_settings(ROOT_URLCONF=without):
        reply = integration.start(request, shared.count)
    assert (reply.status_code, "location" in reply.headers) == (202, False)


def ask(caller: Any, user: Any, **more: Any) -> Any:
    """Return the result of the edge's ``authenticate`` for a user under these settings."""
    with override_settings(LRO={**settings.LRO, "CALLER": caller, **more}):
        hook = _operations.operations.__wrapped__().edge.options.authenticate
    return hook({}, SimpleNamespace(user=user))


def test_only_users_who_are_signed_in_call_by_default() -> None:
    """The default ``CALLER`` raises Unauthenticated if the request has no signed-in user."""
    for request in (SimpleNamespace(user=AnonymousUser()), RequestFactory().get("/")):
        with pytest.raises(lro.errors.Unauthenticated):
            signed_in_user(request)


def test_user_without_the_permission_is_refused() -> None:
    user = SimpleNamespace(has_perm=lambda permission: permission == "shop.see")
    assert ask(lambda request: "ann", user, PERMISSION="shop.see") == "ann"
    with pytest.raises(lro.errors.PermissionDenied, match=r"no permission shop\.do"):
        ask(lambda request: "ann", user, PERMISSION="shop.do")


def test_limit_of_django_counts_if_it_is_smaller() -> None:
    """A body over Django's DATA_UPLOAD_MAX_MEMORY_SIZE gets 413, though our limit is larger."""
    with override_settings(DATA_UPLOAD_MAX_MEMORY_SIZE=100):
        large = Client().post(START, b" " * 101, content_type="application/json", headers=ANN)
    assert (large.status_code, "100 bytes" in large.json()["error"]["message"]) == (413, True)


def test_body_that_cannot_be_read_is_malformed() -> None:
    """A connection that breaks while the body is read raises MalformedRequest."""

    class Broken(io.BytesIO):
        def seekable(self) -> bool:
            return False

        def read(self, *_: Any) -> bytes:
            raise OSError("gone")

    request = RequestFactory().post(START, data=b"{}", content_type="application/json")
    request._stream = Broken()
    with pytest.raises(lro.errors.MalformedRequest):
        _operations._body(request, 100)


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        (None, 'must be a dict with "SERVICE"'),
        ({}, 'must be a dict with "SERVICE"'),
        ({"SERVICE": "x", "COLOUR": 1}, "has 'COLOUR', which is not one of SERVICE"),
        ({"SERVICE": "tests.integrations.django_project.FOLDER"}, "is not an lro.Service"),
        ({"SERVICE": "nowhere.at.all"}, "nowhere"),
        ({**settings.LRO, "MAX_BODY": "x"}, "max_body"),
    ],
)
def test_wrong_settings_are_found_by_the_check(
    wrong: Any, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For an invalid ``LRO`` setting, ``manage.py check`` reports an error that describes it."""
    uncached = _operations.operations.__wrapped__
    monkeypatch.setattr(_operations, "service", _operations.service.__wrapped__)
    monkeypatch.setattr("lro.integrations.django.apps.operations", uncached)
    with override_settings(LRO=wrong):
        (found,) = check_settings(None)
    assert text in found.msg


def test_service_starts_and_stops_with_the_server_under_asgi(
    counting: Counting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_operations, "service", lambda: counting.service)
    with uvicorn_serving(integration.with_lifespan(get_asgi_application())) as port:
        assert httpx.get(f"http://{HOST}:{port}/v1/own").text == "mine"
        assert counting.count.start(CountRequest(), caller="ann").name
    with pytest.raises(lro.errors.Unavailable):
        counting.count.start(CountRequest(), caller="ann")


def test_project_with_wrong_settings_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lro.integrations.django.apps.service", _operations.service.__wrapped__)
    with override_settings(LRO=None, TASKS={}):
        django.apps.apps.get_app_config("lro").ready()


@pytest.mark.parametrize("executor", [ThreadExecutor(workers=1), InlineExecutor()])
def test_old_connections_are_closed_around_each_attempt_only(
    executor: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Work that uses the ORM leaves no connection open, but an open transaction and a plain call
    keep theirs."""
    service = lro.Service(MemoryStore(), executor)
    monkeypatch.setattr("lro.integrations.django.apps.service", lambda: service)
    with override_settings(TASKS={}):
        django.apps.apps.get_app_config("lro").ready()

    @service.method("acme.v1.Things.Look")
    def look(request: CountRequest) -> lro.types.BoolValue:
        before = connection.connection
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1")
        return lro.types.BoolValue(before is not None)

    with service:
        connection.close()
        for _ in range(2):
            assert not look.start(CountRequest()).result(60).value
        look(CountRequest())
        assert look(CountRequest()).value
        with transaction.atomic():
            own = connection.connection
            in_thread = isinstance(executor, ThreadExecutor)
            assert look.start(CountRequest()).result(60).value is not in_thread
            assert connection.connection is own
    connection.close()


def test_command_checks_the_store(monkeypatch: pytest.MonkeyPatch) -> None:
    """``manage.py lro check`` says that the store works, or fails with the store's error."""
    said = io.StringIO()
    call_command("lro", "check", stdout=said)
    assert said.getvalue().startswith("The MemoryStore can be used; methods: ")

    def away(*_: Any) -> None:
        raise lro.errors.Unavailable("the store is away")

    monkeypatch.setattr(counting.service.store, "find", away)
    with pytest.raises(CommandError, match="the store is away"):
        call_command("lro", "check")


def test_command_removes_what_has_expired(capsys: pytest.CaptureFixture[str]) -> None:
    """``manage.py lro purge`` works; a failing command raises CommandError with its exit status."""
    pytest.importorskip("click")
    call_command("lro", "purge")
    assert capsys.readouterr().out == "removed: 0\n"
    with pytest.raises(CommandError) as caught:
        call_command("lro", "worker")
    assert caught.value.returncode == 2
    assert "MemoryStore" in capsys.readouterr().err


def test_right_settings_pass_the_check() -> None:
    """``manage.py check`` finds no error in the project's settings."""
    assert check_settings(None) == []
    call_command("check")
    assert integration.__all__ == ["signed_in_user", "start", "with_lifespan"]
