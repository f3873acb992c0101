"""A store keeps its tables beside an application's own tables, whatever those are called."""

from __future__ import annotations

from contextlib import closing
from typing import Any, Final

import pytest

from lro.testing import ManualClock
from tests.places import Place
from tests.stores.samples import claim_work, claimed, insert, listed, record_of, waiting
from tests.stores.store_verbs import errors_of
from tests.stores.wires import CONNECT

NAMES: Final = (
    *("operations", "inputs", "starts", "minutes", "secrets", "versions", "totals"),
    *("begins", "workers", "schedules", "paused", "checkpoints"),
)
"""Tables of the application: names that the tables of the store have after their prefix."""
INDEXES: Final = ("operations_order", "operations_waiting", "starts_age", "begins_over")
ROW: Final = ("1", "theirs")


def made_by_an_application() -> list[str]:
    """Return the SQL of an application's tables, each with a row, and of its indexes."""
    tables = [f"CREATE TABLE {name} (version TEXT, name TEXT)" for name in NAMES]
    rows = [f"INSERT INTO {name} VALUES ('{ROW[0]}', '{ROW[1]}')" for name in NAMES]
    return tables + rows + [f"CREATE INDEX {name} ON versions (name)" for name in INDEXES]


def execute(place: Place, statements: list[str]) -> list[Any]:
    """Execute statements as the application does; return the rows of each query."""
    if place.kind == "sqlite":
        with closing(CONNECT(place.where, isolation_level=None)) as connection:
            return [connection.execute(statement).fetchall() for statement in statements]
    import psycopg

    with psycopg.connect(place.where, autocommit=True) as connection:
        found = []
        for statement in (f'SET search_path TO "{place.schema}"', *statements):
            cursor = connection.execute(statement.encode())
            found.append(cursor.fetchall() if cursor.description else [])
        return found[1:]


def names_in(place: Place) -> set[str]:
    """Return the names of all tables, indexes and triggers in the file or the schema."""
    query = "SELECT name FROM sqlite_master"
    if place.kind == "postgres":
        own = f"(SELECT oid FROM pg_namespace WHERE nspname = '{place.schema}')"
        query = f"""SELECT relname FROM pg_class WHERE relnamespace = {own}
                AND relkind IN ('r', 'i')
            UNION SELECT tgname FROM pg_trigger WHERE tgrelid::regclass::text LIKE '%lro_operations'
            UNION SELECT proname FROM pg_proc WHERE pronamespace = {own}"""
    return {name for (name,) in execute(place, [query])[0]}


@pytest.fixture
def shared(place: Place) -> Place:
    """Return a file, or a PostgreSQL schema, that has the tables of an application."""
    if place.kind == "postgres":
        execute(place, [f'CREATE SCHEMA "{place.schema}"'])
    execute(place, made_by_an_application())
    return place


def test_tables_of_an_application_are_untouched_while_the_store_works_beside_them(
    shared: Place, clock: ManualClock
) -> None:
    theirs = names_in(shared)
    with closing(shared.open(clock)) as store:
        insert(store, record_of(clock, "a"))
        assert errors_of(store, clock) == {}
        insert(store, waiting(clock, "work"))
        assert claimed(claim_work(store, clock)) == ["work"]
        store.index({"k1"})
        assert listed(store) == ["b", "c", "later", "work"]
    with closing(shared.open(clock)) as store:  # a later process finds the tables of the store
        assert "b" in listed(store)
    rows = execute(shared, [f"SELECT * FROM {name}" for name in NAMES])
    assert rows == [[ROW]] * len(NAMES)
    assert theirs < names_in(shared)


def test_everything_that_a_store_makes_has_the_prefix(shared: Place, clock: ManualClock) -> None:
    theirs = names_in(shared)
    with closing(shared.open(clock)) as store:
        store.secret()
    made = {name.removeprefix("sqlite_autoindex_") for name in names_in(shared) - theirs}
    tables = {f"lro_{name}" for name in NAMES} - {"lro_totals"}
    assert tables - {"lro_versions"} <= made
    assert {name for name in made if not name.startswith("lro_")} == set()
