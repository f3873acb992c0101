"""Reuse one PostgreSQL schema for many tests: empty its tables instead of making new schemas."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

import pytest

from lro.adapters import Store
from tests.services.postgres import UNHURRIED, PostgresServer

TABLES = ("lro_operations", "lro_inputs", "lro_starts", "lro_workers", "lro_schedules")


class Emptied:
    """A function that empties the tables of one schema and opens ``count`` stores on it."""

    def __init__(self, server: PostgresServer, count: int = 1) -> None:
        psycopg = pytest.importorskip("psycopg")
        self._url, self._schema = server.url, server.fresh_schema()
        self._count = count
        self._link = psycopg.connect(server.url, autocommit=True)
        self._made = False

    def __call__(self, clock: Callable[[], datetime]) -> tuple[Store, ...]:
        """Empty the tables and open stores with this clock; earlier stores lose their data."""
        from lro.stores.postgres import PostgresStore

        if self._made:
            for table in TABLES:
                self._link.execute(f"DELETE FROM {self._schema}.{table}".encode())
        self._made = True
        return tuple(
            PostgresStore(self._url, schema=self._schema, clock=clock, **UNHURRIED)
            for _ in range(self._count)
        )

    def close(self) -> None:
        """Close the connection that empties the tables."""
        self._link.close()
