"""Empty PostgreSQL stores, one after another, in one schema instead of new ones."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

import pytest

from lro.adapters import Store
from tests.services.postgres import UNHURRIED, PostgresServer

TABLES = ("operations", "inputs", "starts", "workers", "schedules")


class Emptied:
    """Opens stores on one schema, several at a time; empties it before it opens the next ones."""

    def __init__(self, server: PostgresServer, count: int = 1) -> None:
        psycopg = pytest.importorskip("psycopg")
        self._url, self._schema = server.url, server.fresh_schema()
        self._count = count
        self._link = psycopg.connect(server.url, autocommit=True)
        self._made = False

    def __call__(self, clock: Callable[[], datetime]) -> tuple[Store, ...]:
        """Empty the schema and open ``count`` stores with this clock; earlier ones are void."""
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
        """Close its own connection."""
        self._link.close()
