"""Database files, stores and recorders of SQL for the tests of stores."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from lro.stores.sqlite import SQLiteStore
from lro.testing import ManualClock
from tests.places import Place
from tests.services.postgres import shared_server
from tests.stores.wires import Wire, tap_postgres, tap_sqlite


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return the path of a database file that does not exist yet."""
    return tmp_path / "operations.db"


@pytest.fixture
def wire(monkeypatch: pytest.MonkeyPatch) -> Wire:
    """Record the SQL of this test's SQLite stores."""
    return tap_sqlite(monkeypatch)


@pytest.fixture
def postgres_wire(monkeypatch: pytest.MonkeyPatch) -> Wire:
    pytest.importorskip("psycopg")
    return tap_postgres(monkeypatch)


@pytest.fixture
def file_store(wire: Wire, path: Path, clock: ManualClock) -> Iterator[SQLiteStore]:
    """Open an empty store on a new file; ``wire`` records its SQL."""
    with closing(SQLiteStore(path, clock=clock)) as made:
        yield made


@pytest.fixture(params=["sqlite", "postgres"])
def place(request: pytest.FixtureRequest, path: Path) -> Place:
    """Return an empty SQLite file or PostgreSQL schema that several stores can open."""
    if request.param == "sqlite":
        return Place("sqlite", str(path))
    pytest.importorskip("psycopg")
    server = shared_server()
    return Place("postgres", server.url, server.fresh_schema())
