"""``manage.py test``: Django's tests use a store of their own, never the development database."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import attrs
import pytest

import lro
from lro.stores.sqlite import SQLiteStore
from tests.services.postgres import shared_server

pytest.importorskip("django")
ROOT = Path(__file__).resolve().parents[2]
METHOD = "shop.orders.v1.Orders.Export"

PROJECT = {
    "settings.py": """
import os
SECRET_KEY = "only for tests"
ALLOWED_HOSTS = ["*"]
USE_TZ = True
STATIC_URL = "static/"
ROOT_URLCONF = "urls"
DATABASES = {database}
INSTALLED_APPS = [
    "django.contrib.auth", "django.contrib.contenttypes", "lro.integrations.django"
]
LRO = {{"SERVICE": "work.service", "STARTS": True, "CALLER": "work.nobody"}}
""",
    "urls.py": """
from django.urls import include, path
urlpatterns = [path("", include("lro.integrations.django.urls"))]
""",
    "work.py": """
import attrs, lro
from lro.executors.threads import ThreadExecutor
{store}
service = lro.Service(store, ThreadExecutor(workers=1))

@attrs.frozen
class Export:
    rows: int = 0

@service.method("shop.orders.v1.Orders.Export", path="/v1/orders:export")
def export(request: Export) -> Export:
    return request

def nobody(request):
    return None
""",
    "tests.py": """
import json, urllib.request
from django.db import connection, transaction
from django.test import LiveServerTestCase, TestCase, TransactionTestCase
from lro import errors
from lro.wire import ListOperationsRequest
from work import Export, export, service

JSON = "application/json"

def run_one(test):
    name = test.client.post("/v1/orders:export", {{"rows": 3}}, content_type=JSON).json()["name"]
    body = {{"timeout": "60s"}}
    done = test.client.post(f"/v1/{{name}}:wait", body, content_type=JSON).json()
    test.assertEqual(done["response"]["rows"], 3)
    shown = [one.name for one in service.list(ListOperationsRequest()).operations]
    test.assertEqual(shown, [name])  # none of another test, and not {name}
    same = export.start(Export(id(test)), request_id="every test")
    test.assertEqual(same.result(60), Export(id(test)))

class InTestCase(TestCase):
    def test_work(self):
        if not {locked}:  # the transaction of the test locks the file
            run_one(self)

    def test_within(self):
        with transaction.atomic():
            if {within}:
                name = export.start(Export(1), within=connection).name
                with self.assertRaises(errors.OperationNotFound):
                    service.get(name)
            else:
                with self.assertRaisesRegex(Exception, "a database in memory.*TEST.*test.db"):
                    export.start(Export(1), within=connection)

class InTransactionTestCase(TransactionTestCase):
    def test_work(self):
        run_one(self)

    def test_within(self):
        if {within}:
            with transaction.atomic():
                handle = export.start(Export(2), within=connection)
            self.assertEqual(handle.result(60), Export(2))

class InLiveServerTestCase(LiveServerTestCase):
    def test_work(self):
        request = urllib.request.Request(
            self.live_server_url + "/v1/orders:export",
            json.dumps({{"rows": 3}}).encode(),
            {{"content-type": JSON}},
        )
        with urllib.request.urlopen(request) as reply:
            name = json.loads(reply.read())["name"]
        self.assertTrue(service.wait(name, 60).done)
""",
}


@attrs.frozen
class Export:
    """The request and the response of the method."""

    rows: int = 0


def export(request: Export) -> Export:
    """Return the request."""
    return request


@contextlib.contextmanager
def left_waiting(store: Any) -> Iterator[str]:
    """Leave an operation waiting; check that it still waits, and that no other was started."""
    service = lro.Service(store, None, maintenance=False)
    method = service.method(METHOD)(export)
    name = method.start(Export(1)).name
    yield name
    record = store.get(name)
    assert (record.done, record.attempt, record.owner) == (False, 0, "")
    found = service.list(lro.wire.ListOperationsRequest()).operations
    assert [one.name for one in found] == [name]
    service.close()


def run_tests(folder: Path, *arguments: str, **given: Any) -> None:
    """Run the tests of the project in this folder; check that they pass."""
    for path, text in PROJECT.items():
        (folder / path).write_text(text.format(**{"locked": False, **given}), encoding="utf-8")
    python_path = os.pathsep.join([str(folder), str(ROOT / "src")])
    environ = {**os.environ, "PYTHONPATH": python_path, "DJANGO_SETTINGS_MODULE": "settings"}
    run = subprocess.run(
        [sys.executable, "-m", "django", "test", "--noinput", *arguments],
        cwd=folder,
        env=environ,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert run.returncode == 0, run.stderr
    assert "OK" in run.stderr


def sqlite(name: str, test: str | None = None) -> dict[str, Any]:
    one = {"ENGINE": "django.db.backends.sqlite3", "NAME": name, "TEST": {"NAME": test}}
    return {"default": {**one, "OPTIONS": {"transaction_mode": "IMMEDIATE"}}}


STORE = 'from lro.stores.sqlite import SQLiteStore\nstore = SQLiteStore("{}")'


@pytest.mark.parametrize("store", ["shop.db", "operations.db"])
def test_tests_with_a_database_in_memory_use_a_store_of_their_own(
    tmp_path: Path, store: str
) -> None:
    """The store moves to a new file, from the file of the database or from another file."""
    with left_waiting(SQLiteStore(tmp_path / store)) as name:
        given = {"database": sqlite("shop.db"), "store": STORE.format(store)}
        run_tests(tmp_path, name=name, within=False, **given)


@pytest.mark.parametrize("arguments", [(), ("--parallel", "2")])
def test_tests_with_a_test_database_in_a_file_have_their_store_in_it(
    tmp_path: Path, arguments: Sequence[str]
) -> None:
    """So a start can be part of a transaction. Each parallel process has its own store."""
    with left_waiting(SQLiteStore(tmp_path / "shop.db")) as name:
        given = {"database": sqlite("shop.db", "test.db"), "store": STORE.format("shop.db")}
        run_tests(tmp_path, *arguments, name=name, within=True, locked=True, **given)
    assert not [*tmp_path.glob("test*-wal"), *tmp_path.glob("test*.db")]  # no log for the next one


def test_tests_on_postgresql_have_their_store_in_the_test_database(tmp_path: Path) -> None:
    """Django can drop the test database at the end, because the store has left it."""
    psycopg = pytest.importorskip("psycopg")
    from psycopg.conninfo import conninfo_to_dict, make_conninfo

    from lro.stores.postgres import PostgresStore

    url, database = shared_server().url, f"shop_{os.getpid()}"
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {database}")
    own = make_conninfo(url, dbname=database)
    parts = conninfo_to_dict(own)
    known = {"NAME": "dbname", "USER": "user", "HOST": "host", "PORT": "port"}
    found = {name: parts[part] for name, part in known.items() if part in parts}
    settings = {"default": {"ENGINE": "django.db.backends.postgresql", **found}}
    store = f"from lro.stores.postgres import PostgresStore\nstore = PostgresStore({own!r})"
    with left_waiting(PostgresStore(own)) as name:
        run_tests(tmp_path, name=name, within=True, database=settings, store=store)
    with psycopg.connect(url, autocommit=True) as connection:
        left = connection.execute("SELECT datname FROM pg_database").fetchall()
        connection.execute(f"DROP DATABASE {database} WITH (FORCE)")
    assert (f"test_{database}",) not in left


def test_service_is_closed_before_the_test_database_is_destroyed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store that is in no database of the project moves too, and keeps its declared index."""
    import django

    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.integrations.django_project")
    django.setup()
    from django.db import connection

    from lro.executors.inline import InlineExecutor

    store = SQLiteStore(tmp_path / "operations.db")
    service = lro.Service(store, InlineExecutor(), owner_only=True)
    method = service.method(METHOD)(export)
    before, name = store.path, method.start(Export(1)).name
    monkeypatch.setattr("lro.integrations.django._test_database.service", lambda: service)
    creation, own = connection.creation, connection.settings_dict["NAME"]
    creation.create_test_db(verbosity=0, autoclobber=True)
    try:
        assert store.path != before
        with pytest.raises(lro.errors.OperationNotFound):
            service.get(name)
        assert service.get(method.start(Export(2)).name).done
    finally:
        creation.destroy_test_db(own, verbosity=0)
    assert service.edges.closed
    assert connection.settings_dict["NAME"] == own
