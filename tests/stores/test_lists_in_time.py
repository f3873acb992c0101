"""Looks that go too far, indexes that are gone or cannot be made: a list is slower, not broken."""

from __future__ import annotations

import functools
import sqlite3
from contextlib import closing

import pytest

from lro._engine.store_port import SCAN
from lro.errors import Unavailable
from lro.stores.memory import MemoryStore
from lro.stores.sqlite import SQLiteStore, _file, _pages, _store
from tests.engine.engine_parts import maintenance_over
from tests.filters.test_indexes import KEYED, WANTED, fill, plain, schema
from tests.stores.samples import end_of, held, ids, insert, record_of

__all__ = ["plain", "schema"]


def test_a_look_in_sqlite_is_given_up(tmp_path, clock, monkeypatch):
    """One that goes on for too long is tried for fewer records."""
    with closing(SQLiteStore(tmp_path / "operations.db", clock=clock)) as store:
        fill(store, clock)
        real, scans = _pages.find, []

        def find(rows, records, walk, parent, limit, scan, now, max_bytes):
            scans.append(scan)
            seconds = 0.0 if scan > 5 else 60.0
            return real(
                functools.partial(store._file.rows, seconds=seconds),
                functools.partial(store._file.records, seconds=seconds),
                walk,
                parent,
                limit,
                scan,
                now,
                max_bytes,
            )

        monkeypatch.setattr(_pages, "find", find)
        monkeypatch.setattr(_file, "_STEPS", 1)
        assert ids(store.page("", None, 9).records) == ["a", "b", "c", "d"]
        assert scans == [SCAN, SCAN // 10, SCAN // 100]
        monkeypatch.setattr(_store, "_LOOK_SECONDS", 0.0)
        monkeypatch.setattr(_pages, "find", real)
        with pytest.raises(Unavailable, match="SQLITE_INTERRUPT"):
            store.page("", None, 9)
        assert store.get("operations/a").name == "operations/a"


def test_an_index_that_was_dropped_is_done_without(tmp_path, clock):
    """By the list that meets with it, and all others."""
    path = tmp_path / "operations.db"
    with closing(SQLiteStore(path, clock=clock)) as store:
        fill(store, clock)
        store.index({"k1"})
        with closing(sqlite3.connect(path)) as other:
            other.execute(f"DROP INDEX {_pages.index_name('k1')}")
        assert ids(store.page("", None, 9, WANTED).records) == ["a", "c", "d"]
        assert store._keys == frozenset()
        assert ids(store.page("", None, 9, WANTED).records) == ["a", "c", "d"]
    store = SQLiteStore(path, clock=clock)
    store.index({"k1"})
    store.close()
    with pytest.raises(Unavailable, match="closed"):
        store.page("", None, 9, WANTED)


class Postgres:
    """Stores on one schema, and a server that gives up on statements of this size."""

    def __init__(self, schema, clock):
        from tests.services.postgres import shared_server

        self.url, self.schema, self.clock = shared_server().url, schema, clock

    def open(self, **options):
        from lro.stores.postgres import PostgresStore
        from tests.services.postgres import UNHURRIED

        return closing(
            PostgresStore(
                self.url, **{"schema": self.schema, "clock": self.clock, **UNHURRIED, **options}
            )
        )

    def cancelling(self, store, monkeypatch, too_many):
        import psycopg

        from lro.stores.postgres._connections import unavailable

        connections, asked = store._resources.connections, []
        real = connections.rows

        def rows(sql, values=(), **options):
            asked.append(values)
            if too_many(values):
                raise unavailable(psycopg.errors.QueryCanceled("statement timeout"))
            return real(sql, values, **options)

        monkeypatch.setattr(connections, "rows", rows)
        return asked


@pytest.fixture
def postgres(schema, clock):
    return Postgres(schema, clock)


def test_a_look_in_postgres_is_given_up(postgres, clock, monkeypatch):
    """One that the server has cancelled is tried for fewer records; other failures are raised."""
    with postgres.open() as store:
        fill(store, clock)
        asked = postgres.cancelling(store, monkeypatch, lambda values: values[3] > 5)
        assert ids(store.page("", None, 9).records) == ["a", "b", "c", "d"]
        assert [values[3] for values in asked] == [SCAN, SCAN // 10, SCAN // 100]
    with pytest.raises(Unavailable, match="closed"):
        store.page("", None, 9)


def test_a_sweep_in_postgres_goes_on_with_fewer(postgres, clock, monkeypatch):
    """Large records take long to remove: fewer are removed at once, and all of them in the end."""
    with postgres.open() as store:
        for number in range(25):
            insert(store, record_of(clock, f"{number:02}"))
            store.update(f"operations/{number:02}", end_of(clock, days=1))
        clock.advance(days=2)
        asked = postgres.cancelling(
            store, monkeypatch, lambda values: len(values) == 2 and 10 < values[1] < 1000
        )
        removed = store.expire(20)
        assert (len(removed.names), removed.more) == (20, True)
        assert [values[1] for values in asked if len(values) == 2][:2] == [20, 2]
        removed = store.expire(1000)
        assert (len(removed.names), removed.more) == (5, False)


def test_an_index_in_a_schema_of_any_name(clock):
    """Which PostgreSQL would fold, or read as several names."""
    pytest.importorskip("psycopg")
    for name in ("Upper", "with space", "with.dot"):
        postgres = Postgres(name, clock)
        with postgres.open() as store:
            insert(store, record_of(clock, keys=KEYED))
            store.index({"k1"})
            assert store._setup.keys == {"k1"}
            assert ids(store.page("", None, 9, WANTED).records) == ["a"]


def test_who_may_not_make_an_index_does_without(postgres, plain, clock, caplog):
    """A user who owns nothing there; the log says what the owner is to do."""
    with postgres.open() as store:
        fill(store, clock)
    role = f"guest_{postgres.schema}"
    plain.execute(f"CREATE ROLE {role} LOGIN".encode())
    plain.execute(f"GRANT USAGE ON SCHEMA {postgres.schema} TO {role}".encode())
    plain.execute(
        f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {postgres.schema}"
        f" TO {role}".encode()
    )
    postgres.url = postgres.url.replace("lro@", f"{role}@")
    with postgres.open() as store:
        store.index({"k1"})
        assert ids(store.page("", None, 9, WANTED).records) == ["a", "c", "d"]
        assert store._setup.keys == frozenset()
    assert "CREATE INDEX CONCURRENTLY operations_by_k1" in caplog.text


def test_leases_are_renewed_though_a_sweep_fails(clock, caplog):
    """It is tried again in a minute; leases and orphans are seen to meanwhile."""

    class Sticking(MemoryStore):
        def expire(self, limit):
            raise Unavailable("too large")

    store, recovered = Sticking(clock), []
    insert(store, held(clock, seconds=0))
    at = [0.0]
    maintenance = maintenance_over(
        store, seconds=lambda: at[0], methods=["M"], recover=recovered.append
    )
    clock.advance(1)
    maintenance.run_due()
    for _ in range(2):
        at[0] += 1.0
        clock.advance(1)
        maintenance.run_due()
    assert len(recovered) == 2
    assert caplog.text.count("what has expired cannot be removed now") == 1
