"""A new release upgrades databases of schema version 1 that hold unfinished work."""

from __future__ import annotations

import contextlib
import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from lro import DeclarationError
from lro.adapters import Record
from lro.errors import OperationNotFound, Unavailable
from lro.stores._rows import COLUMNS, pack, to_row
from lro.stores.sqlite import SCHEMA_VERSION, SQLiteStore
from lro.testing import ManualClock
from tests.places import Place
from tests.stores.samples import (
    METHODS,
    REQUEST,
    claim_work,
    claimed,
    end_of,
    held,
    ids,
    insert,
    listed,
    record_of,
    removal,
    together,
    waiting,
)
from tests.stores.wires import CONNECT, Wire

SCHEMAS = Path(__file__).with_name("schemas")


def in_flight(clock: ManualClock) -> list[Record]:
    """Return the unfinished records of version 1: running, queued, released and abandoned work."""
    return [
        held(clock, "running", attempt=1, start_time=clock()),
        held(clock, "queued", seconds=10),
        waiting(clock, "back", attempt=1, start_time=clock()),
        held(clock, "lost", owner="us!", seconds=0, attempt=2),
        record_of(clock, "outside", attempt=1),
    ]


def rows_of(clock: ManualClock) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each table's rows for these records and for an ended one, as version 1 wrote them."""
    ended = end_of(clock)(held(clock, "ended"))
    assert ended is not None
    columns = COLUMNS[: COLUMNS.index("notify_at") + 1]
    for record in [*in_flight(clock), ended]:
        yield "operations", dict(zip(columns, to_row(record), strict=False))
        if not record.done:
            yield "inputs", {"name": record.name, "request": pack(REQUEST)}


def fill_file(path: str, clock: ManualClock) -> None:
    with closing(CONNECT(path)) as writer:
        writer.executescript((SCHEMAS / "1.sqlite.sql").read_text("utf-8"))
        for table, row in rows_of(clock):
            marks = ", ".join("?" * len(row))
            text = f"INSERT INTO {table} ({', '.join(row)}) VALUES ({marks})"
            writer.execute(text, [*row.values()])
        writer.commit()


def fill_schema(place: Place, clock: ManualClock) -> None:
    import psycopg

    from lro.stores.postgres._statements import id_of, target_id

    with psycopg.connect(place.where, autocommit=True) as writer:
        text = (SCHEMAS / "1.postgres.sql").read_text("utf-8")
        writer.execute(text.replace("{schema}", place.schema).encode())
        for table, row in rows_of(clock):
            row["id"] = id_of(row["name"])
            if table == "inputs":
                del row["name"]
            else:
                row["parent_id"] = id_of(row["parent"])
                row["target_id"] = target_id(row["target"])
            marks = ", ".join(["%s"] * len(row))
            words = f"INSERT INTO {place.schema}.{table} ({', '.join(row)}) VALUES ({marks})"
            writer.execute(words.encode(), [*row.values()])


_PLAIN = re.compile(' IF NOT EXISTS|"')
"""Text that SQLite adds when it renames a table, or that only an upgrade has."""


def _versions(reader: Any, place: Place) -> str:
    """Return the name of the table of the version, which version 2 has renamed."""
    table = f"{place.schema}.lro_versions"
    found = reader.execute("SELECT to_regclass(%s) IS NULL", (table,)).fetchall()
    return f"{place.schema}.versions" if found[0][0] else table


def schema_of(place: Place) -> tuple[int, list[str]]:
    """Return the schema version of a database, and the SQL of its indexes."""
    if place.kind == "sqlite":
        with closing(CONNECT(place.where)) as reader:
            found = reader.execute("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL")
            made = [" ".join(_PLAIN.sub("", sql).split()) for (sql,) in found]
            return reader.execute("PRAGMA user_version").fetchone()[0], sorted(made)
    import psycopg

    with psycopg.connect(place.where) as reader:
        indexes = "SELECT indexdef FROM pg_indexes WHERE schemaname = %s"
        defined = reader.execute(indexes, (place.schema,)).fetchall()
        made = sorted(sql.replace(place.schema, "lro") for (sql,) in defined)
        query = f"SELECT version FROM {_versions(reader, place)}".encode()
        return reader.execute(query).fetchall()[0][0], made


@pytest.fixture
def old(place: Place, clock: ManualClock) -> Place:
    """Return a database that version 1 has written."""
    if place.kind == "sqlite":
        fill_file(place.where, clock)
    else:
        fill_schema(place, clock)
    return place


@pytest.fixture
def new(place: Place, tmp_path: Path) -> Place:
    """Return another, empty database of the same kind, for the current tables."""
    if place.kind == "sqlite":
        return Place("sqlite", str(tmp_path / "new.db"))
    return Place("postgres", place.where, f"{place.schema}_new")


def test_an_upgraded_store_has_the_schema_of_a_new_one(
    old: Place, new: Place, clock: ManualClock
) -> None:
    for place in (old, new):
        with closing(place.open(clock)) as store:
            assert len(store.secret()) == 64
    assert schema_of(old) == schema_of(new)
    assert schema_of(old)[0] == SCHEMA_VERSION == 2
    with closing(old.open(clock)) as store:  # opening the store again changes nothing
        assert len(listed(store)) == 6
    assert schema_of(old) == schema_of(new)


def test_work_in_flight_continues_after_an_upgrade(old: Place, clock: ManualClock) -> None:
    """After an upgrade, released work is claimable; a worker is lost only when its lease ends."""
    records = {record.name: record for record in in_flight(clock)}
    with closing(old.open(clock)) as store:
        assert listed(store) == ["back", "ended", "lost", "outside", "queued", "running"]
        assert {name: store.get(name) for name in records} == records
        assert store.get("operations/ended").done
        found = store.orphans(METHODS, 9)
        assert dict(found.overdue) == {"us!": None}
        assert found.next_look <= clock() + timedelta(seconds=15)
        assert store.lose("us!", None)
        assert ids(store.orphans(METHODS, 9).records) == ["lost"]
        assert claimed(claim_work(store, clock, limits={"M": 3})) == []  # three operations run
        ((record, request),) = claim_work(store, clock).works
        assert (record.name, record.attempt, request) == ("operations/back", 2, REQUEST)
        assert store.update("operations/running", end_of(clock)).done
        clock.advance(15)
        assert dict(store.orphans(METHODS, 9).overdue) == {"us": None}
        insert(store, waiting(clock, "new"))
        assert claimed(claim_work(store, clock)) == ["new"]
        assert store.update("operations/outside", removal) is None
        with pytest.raises(OperationNotFound):
            store.get("operations/outside")


def test_many_open_an_old_store_at_once(old: Place, new: Place, clock: ManualClock) -> None:
    """Six stores open an old database: one upgrades the tables, and all of them work."""

    def begin(number: int) -> object:
        with closing(old.open(clock)) as store:
            insert(store, waiting(clock, f"new{number}"))
            return store.secret()

    secrets = together(6, begin)
    assert {type(secret) for secret in secrets} == {bytes}
    assert len({*secrets}) == 1
    new.open(clock).close()
    with closing(new.open(clock)) as store:
        store.secret()
    assert schema_of(old) == schema_of(new)
    with closing(old.open(clock)) as store:
        assert len(claim_work(store, clock).works) == 7


def test_version_that_is_read_during_an_upgrade_is_the_new_one(
    postgres_wire: Wire, clock: ManualClock
) -> None:
    """A process may find the table of the version just before another process renames it."""
    with old_schema(clock) as (_, place), closing(place.open(clock)) as store:

        def upgrade(_: object) -> None:
            with closing(place.open(clock)) as other:
                other.secret()

        postgres_wire.when("SELECT version FROM versions", upgrade)
        assert len(store.secret()) == 64
        assert postgres_wire.said.count("SELECT version FROM versions") > 1
        assert schema_of(place)[0] == SCHEMA_VERSION


def test_failed_upgrade_leaves_the_old_file_unchanged(
    path: Path, clock: ManualClock, wire: Wire
) -> None:
    """A failed upgrade leaves version 1, and the next process upgrades the file."""
    fill_file(str(path), clock)
    before = schema_of(Place("sqlite", str(path)))
    wire.fail("PRAGMA user_version = 2")
    with pytest.raises(Unavailable):
        SQLiteStore(path, clock=clock)
    assert schema_of(Place("sqlite", str(path))) == before
    with closing(SQLiteStore(path, clock=clock)) as store:
        assert claimed(claim_work(store, clock)) == ["back"]


def test_a_file_that_old_code_has_marked_again_is_upgraded_again(
    path: Path, clock: ManualClock
) -> None:
    """A file is upgraded again if a process with the old code has set its version back to 1."""
    SQLiteStore(path, clock=clock).close()
    before = schema_of(Place("sqlite", str(path)))
    with closing(CONNECT(path)) as old:
        old.execute("PRAGMA user_version = 1")
    SQLiteStore(path, clock=clock).close()
    assert schema_of(Place("sqlite", str(path))) == before


@contextlib.contextmanager
def old_schema(clock: ManualClock) -> Iterator[tuple[Any, Place]]:
    """Yield a connection as the server's owner, and a database with a schema of version 1."""
    psycopg = pytest.importorskip("psycopg")
    from tests.services.postgres import shared_server

    server = shared_server()
    place = Place("postgres", server.url, server.fresh_schema())
    fill_schema(place, clock)
    with psycopg.connect(server.url, autocommit=True) as plain:
        yield plain, place


def test_only_the_owner_of_a_schema_can_upgrade_it(clock: ManualClock) -> None:
    """Roles other than the owner get an error with the statements that the owner must run."""
    with old_schema(clock) as (plain, place):
        name = place.schema
        plain.execute(f"CREATE ROLE {name}_app LOGIN")
        plain.execute(f"GRANT USAGE ON SCHEMA {name} TO {name}_app")
        every = f"ON ALL TABLES IN SCHEMA {name} TO {name}_app"
        plain.execute(f"GRANT SELECT, INSERT, UPDATE, DELETE {every}")
        where = place.where.replace("//lro@", f"//{name}_app@")
        assert where != place.where
        with closing(Place("postgres", where, name).open(clock)) as store:
            with pytest.raises(Unavailable, match="only its owner can upgrade it") as caught:
                store.secret()
            assert isinstance(caught.value.__cause__, DeclarationError)
            plain.execute(str(caught.value).partition(", by: ")[2].encode())
            plain.execute("RESET search_path")
            plain.execute(f"GRANT SELECT, INSERT, UPDATE, DELETE {every}")
        with closing(Place("postgres", where, name).open(clock)) as store:
            assert claimed(claim_work(store, clock)) == ["back"]


def test_upgrade_gives_up_a_lock_soon_and_is_tried_again(clock: ManualClock) -> None:
    """An upgrade waits for a lock only briefly and blocks no one; a later call retries it."""
    pytest.importorskip("psycopg")
    from lro.stores.postgres import PostgresStore

    with old_schema(clock) as (plain, place):
        made = PostgresStore(place.where, schema=place.schema, clock=clock, statement_seconds=0.5)
        with closing(made) as store:
            with plain.transaction():
                plain.execute(f"SELECT 1 FROM {place.schema}.operations".encode())
                with pytest.raises(Unavailable, match="LockNotAvailable"):
                    store.secret()
            assert schema_of(place)[0] == 1
            with contextlib.suppress(Unavailable):  # the upgrade is not retried at once
                store.secret()
        with closing(place.open(clock)) as store:
            assert claimed(claim_work(store, clock)) == ["back"]


@pytest.mark.parametrize("version", [-1, 3])
def test_a_schema_of_another_version_is_refused(clock: ManualClock, version: int) -> None:
    with old_schema(clock) as (plain, place):
        plain.execute(f"UPDATE {place.schema}.versions SET version = {version}".encode())
        known = f"has version {version}; this library can only use version 2"
        with closing(place.open(clock)) as store, pytest.raises(Unavailable, match=known):
            store.secret()


def test_an_old_file_without_its_tables_is_refused(path: Path, clock: ManualClock) -> None:
    fill_file(str(path), clock)
    with closing(CONNECT(path)) as other:
        other.execute("DROP TABLE operations")
    with pytest.raises((DeclarationError, sqlite3.Error), match="tables that do not match"):
        SQLiteStore(path, clock=clock)
