"""The admin of the Django app, which lists and shows operations but cannot change them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.services.postgres import shared_server

django = pytest.importorskip("django")
pytest.importorskip("psycopg")
os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.integrations.django_project")
django.setup()

from django.contrib.admin import AdminSite  # noqa: E402
from django.core.management import call_command  # noqa: E402

from lro.integrations.django.admin import OperationAdmin, register  # noqa: E402
from lro.integrations.django.models import Moment, OperationRow  # noqa: E402

ROOT = Path(__file__).resolve().parents[3]


def test_admin_on_postgresql_shows_operations() -> None:
    """On PostgreSQL a superuser sees an operation in the admin but cannot add one."""
    server = shared_server()
    command = [sys.executable, "-W", "error", "-m", "tests.integrations.django_admin_site"]
    environ = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
    environ.pop("DJANGO_SETTINGS_MODULE")
    run = subprocess.run(
        [*command, server.url, server.fresh_schema()],
        cwd=ROOT,
        env=environ,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert run.returncode == 0, run.stderr


@pytest.mark.parametrize(("vendor", "shown"), [("postgresql", True), ("sqlite", False)])
def test_operations_are_shown_where_the_database_is_postgresql(vendor: str, shown: bool) -> None:
    """The admin is registered for PostgreSQL only; other databases have no table to show."""
    site = AdminSite()
    register(site, vendor)
    assert site.is_registered(OperationRow) is shown


def test_admin_only_reads() -> None:
    """The admin cannot add, change or delete; the list leaves out deleted operations."""
    made = OperationAdmin(OperationRow, AdminSite())
    nothing: Any = None
    assert not made.has_add_permission(nothing)
    assert not made.has_change_permission(nothing)
    assert not made.has_delete_permission(nothing)
    assert "HIDDEN" in str(made.get_queryset(nothing).query)


def test_times_are_read_from_microseconds() -> None:
    assert str(Moment().from_db_value(1_500_000)) == "1970-01-01 00:00:01.500000+00:00"
    assert Moment().from_db_value(None) is None
    assert str(OperationRow(name="operations/x")) == "operations/x"


def test_table_of_the_store_needs_no_migration() -> None:
    """``makemigrations --check`` finds no missing migration."""
    call_command("makemigrations", "--check", verbosity=0)
