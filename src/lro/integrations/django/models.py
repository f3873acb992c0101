"""The model with which the admin reads the PostgreSQL store's table of operations."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from django.conf import settings
from django.db import models

_SCHEMA = getattr(settings, "LRO", {}).get("SCHEMA", "lro")


class Moment(models.BigIntegerField):  # type: ignore[misc]  # Django ships no types
    """A time, stored as microseconds since 1970."""

    def from_db_value(self, value: int | None, *_: Any) -> datetime | None:
        """Convert a stored value to a time."""
        return None if value is None else datetime.fromtimestamp(value / 1_000_000, UTC)


class OperationRow(models.Model):  # type: ignore[misc]  # Django ships no types
    """A row of the store's table of operations."""

    id: Any = models.UUIDField(primary_key=True)
    name: Any = models.TextField()
    method: Any = models.TextField()
    state: Any = models.TextField()
    caller: Any = models.TextField()
    create_time: Moment = Moment()
    start_time: Moment = Moment(null=True)
    end_time: Moment = Moment(null=True)
    attempt: Any = models.BigIntegerField()
    cancel_requested: Any = models.BigIntegerField()
    metadata: Any = models.TextField(null=True)
    result: Any = models.TextField(null=True)

    class Meta:
        """Django does not manage the table, because the store creates it."""

        managed = False
        app_label = "lro"
        verbose_name = "operation"
        db_table: str = f'{_SCHEMA}"."lro_operations'
        ordering: tuple[str, ...] = ("-create_time",)

    def __str__(self) -> str:
        return str(self.name)
