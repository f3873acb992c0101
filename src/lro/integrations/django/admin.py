"""Show the operations in Django's admin, if the store is in the project's PostgreSQL database."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.db import connection
from django.db.models import QuerySet
from django.http import HttpRequest

from lro.integrations.django.models import OperationRow


class OperationAdmin(admin.ModelAdmin):  # type: ignore[misc]  # Django ships no types
    """Lists and shows operations, which only the operations' own interface can change."""

    list_display: tuple[str, ...] = ("name", "method", "state", "caller", "create_time", "end_time")
    list_filter: tuple[str, ...] = ("state", "method")
    search_fields: tuple[str, ...] = ("name",)
    show_full_result_count = False

    def get_queryset(self, request: HttpRequest) -> QuerySet[OperationRow]:
        """Return the operations that callers can see: all but deleted operations that still run."""
        return super().get_queryset(request).exclude(state="HIDDEN")

    def has_add_permission(self, request: HttpRequest, obj: Any = None) -> bool:  # noqa: ARG002
        """Return False: only methods start operations."""
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:  # noqa: ARG002
        """Return False: only the running work changes operations."""
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:  # noqa: ARG002
        """Return False: only the operations' own interface deletes them."""
        return False


def register(site: Any, vendor: str) -> None:
    """Show the operations in this admin site, if the database is PostgreSQL."""
    if vendor == "postgresql":
        site.register(OperationRow, OperationAdmin)


register(admin.site, connection.vendor)
