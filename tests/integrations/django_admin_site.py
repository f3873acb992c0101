"""A program that opens a Django admin; its arguments name a PostgreSQL server and a schema."""

from __future__ import annotations

import html
import os
import re
import sys
from typing import Any

import django
from django.conf import settings
from psycopg.conninfo import conninfo_to_dict

from lro.stores.postgres import PostgresStore
from tests.integrations import django_project
from tests.integrations.counting import CountRequest, build

urlpatterns: list[Any] = []


def main(url: str, schema: str) -> None:
    """Start an operation, then open it in the admin as a superuser."""
    given = conninfo_to_dict(url)
    names = {name: getattr(django_project, name) for name in dir(django_project) if name.isupper()}
    database = {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": given["dbname"],
        "HOST": given["host"],
        "PORT": given["port"],
        "USER": given["user"],
        "PASSWORD": given.get("password", ""),
    }
    names["DATABASES"] = {"default": database}
    names["ROOT_URLCONF"] = __name__
    names["LRO"] = {**names["LRO"], "SCHEMA": schema}
    settings.configure(**names)
    django.setup()

    from django.contrib import admin
    from django.contrib.auth.models import User
    from django.core.management import call_command
    from django.test import Client
    from django.urls import path

    urlpatterns.append(path("admin/", admin.site.urls))
    counting = build(PostgresStore(url, schema=schema))
    name = counting.count.start(CountRequest(3), caller="ann").name
    counting.service.edges.waiters.wait(name, 60)
    call_command("migrate", verbosity=0)
    call_command("makemigrations", "--check", verbosity=0)
    browser = Client()
    browser.force_login(User.objects.create_superuser("root"))
    page = html.unescape(browser.get("/admin/lro/operationrow/").content.decode())
    assert name in page, page
    assert "SUCCEEDED" in page
    link = re.search(r"/admin/lro/operationrow/[0-9a-f-]{36}/change/", page)
    assert link is not None, page
    assert name in html.unescape(browser.get(link[0]).content.decode())
    assert browser.get("/admin/lro/operationrow/add/").status_code == 403
    assert browser.get("/admin/lro/operationrow/?state=SUCCEEDED&q=operations").status_code == 200
    counting.service.close()


if __name__ == "__main__":
    os.chdir(django_project.FOLDER)
    main(*sys.argv[1:])
