"""The operations in Django's admin, to read: where the store is in the project's PostgreSQL."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.db import connection
from django.db.models import QuerySet
from django.http import HttpRequest

from lro.integrations.django.models import OperationRow


class OperationAdmin(admin.ModelAdmin):  # type: ignore[misc]  # Django ships no types
    """Lists operations, and shows each. Changes are made by the interface alone."""

    list_display: tuple[str, ...] = ("name", "method", "state", "caller", "create_time", "end_time")
    list_filter: tuple[str, ...] = ("state", "method")
    search_fields: tuple[str, ...] = ("name",)
    show_full_result_count = False

    def get_queryset(self, request: HttpRequest) -> QuerySet[OperationRow]:
        """All that callers can see: not what is deleted, and still at work."""
        return super().get_queryset(request).exclude(state="HIDDEN")

    def has_add_permission(self, request: HttpRequest, obj: Any = None) -> bool:  # noqa: ARG002
        """Methods start operations."""
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:  # noqa: ARG002
        """The work changes them."""
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:  # noqa: ARG002
        """The interface deletes them."""
        return False


def register(site: Any, vendor: str) -> None:
    """Show the operations in this site, if the database is PostgreSQL."""
    if vendor == "postgresql":
        site.register(OperationRow, OperationAdmin)


register(admin.site, connection.vendor)
