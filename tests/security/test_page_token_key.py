"""The SQL statements of the security page replace the key that signs page tokens."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Final

import pytest

pytest.importorskip("markdown_it")

import lro
from lro.adapters import Store
from lro.executors.inline import InlineExecutor
from lro.stores.sqlite import SQLiteStore
from tests.page_texts import fences

SHOWN: Final = "".join(fences("explanation/security.md", "console"))
STATEMENTS: Final = dict(re.findall(r"^\$ (sqlite3|psql) .*'(.+)'$", SHOWN, re.MULTILINE))


@pytest.mark.parametrize("program", ["sqlite3", "psql"])
def test_key_that_is_removed_is_made_again_at_the_next_start(program: str, tmp_path: Path) -> None:
    """A running process still uses a removed key; processes that start later share a new key."""
    if program == "psql":
        make, execute = on_postgres()
    else:
        make, execute = on_sqlite(tmp_path / "operations.db")
    old = Process(make())
    token = old.page()
    assert old.reads(token)
    execute(STATEMENTS[program])
    assert old.reads(token)
    new, last = Process(make()), Process(make())
    for process in (new, last):
        assert not process.reads(token)
        assert process.reads(new.page())
    assert not old.reads(last.page())
    for process in (old, new, last):
        process.service.close()


class Process:
    """A service that stands for one of several processes; it starts two operations."""

    def __init__(self, store: Store) -> None:
        self.service = lro.Service(store, InlineExecutor(), maintenance=False)
        work = self.service.method("acme.v1.Works.Work")(passing)
        for _ in range(2):
            work.start(lro.Struct())

    def page(self) -> str:
        """Return the token of the second page."""
        return self.service.list(lro.wire.ListOperationsRequest(page_size=1)).next_page_token

    def reads(self, token: str) -> bool:
        try:
            self.service.list(lro.wire.ListOperationsRequest(page_token=token))
        except lro.errors.InvalidPageToken:
            return False
        return True


def passing(request: lro.Struct) -> None:
    """Do nothing."""


def on_sqlite(path: Path) -> tuple[Callable[[], Store], Callable[[str], None]]:
    """Return two functions: one makes a store on the file, one executes SQL in the file."""

    def execute(statement: str) -> None:
        with closing(sqlite3.connect(path)) as other, other:
            other.execute(statement)

    return lambda: SQLiteStore(path), execute


def on_postgres() -> tuple[Callable[[], Store], Callable[[str], None]]:
    """Return both functions for PostgreSQL, with a fresh schema in place of ``lro``."""
    psycopg = pytest.importorskip("psycopg")
    from lro.stores.postgres import PostgresStore
    from tests.services.postgres import shared_server

    server = shared_server()
    schema = server.fresh_schema()

    def execute(statement: str) -> None:
        assert "lro." in statement
        with psycopg.connect(server.url, autocommit=True) as other:
            other.execute(statement.replace("lro.", f"{schema}."))

    return lambda: PostgresStore(server.url, schema=schema), execute
