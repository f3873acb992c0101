"""Databases that hold operations and an application's table, and the application's connections."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import attrs

from lro.stores.sqlite import SQLiteStore
from tests.services.postgres import shared_server

SQLITE: Final = ("sqlite3", "django-sqlite", "sqlalchemy-sqlite", "session-sqlite")
POSTGRES: Final = ("psycopg", "django-postgres", "sqlalchemy-postgres", "session-postgres")
KINDS: Final = (*SQLITE, *POSTGRES)
"""The kinds of connections for starts within a transaction: library and database."""


@attrs.define
class UserDatabase:
    """A store and an application table in one database, and the application's connections to it.

    ``tables`` is the quoted schema with a dot, empty for a file.
    """

    store: Any
    place: str
    tables: str
    notes_table: str
    stack: contextlib.ExitStack

    def open(self, kind: str, *, autocommit: bool = False) -> Any:
        """Open a connection or session of this kind; it is closed after the test."""
        library, _, _ = kind.partition("-")
        return _OPEN[library](self.place, self.stack, autocommit)

    def note(self, connection: Any, text: str) -> None:
        """Insert a row into the application's table, on a connection of any kind."""
        run(connection, f"INSERT INTO {self.notes_table} VALUES ('{text}')")

    @property
    def notes(self) -> list[str]:
        """Return the texts of the application's committed rows."""
        return [text for (text,) in self.rows(f"SELECT text FROM {self.notes_table} ORDER BY text")]

    def counts(self) -> tuple[int, ...]:
        """Count the rows of our tables: operations, requests, request ids."""
        names = ("lro_operations", "lro_inputs", "lro_starts")
        return tuple(self.rows(f"SELECT count(*) FROM {self.tables}{n}")[0][0] for n in names)

    def rows(self, sql: str) -> list[Any]:
        if self.tables == "":
            with contextlib.closing(sqlite3.connect(self.place)) as connection:
                return connection.execute(sql).fetchall()
        import psycopg

        with psycopg.connect(self.place) as plain:
            return plain.execute(sql.encode()).fetchall()


def run(connection: Any, sql: str) -> None:
    """Execute a statement of the application on a connection or session of any kind."""
    if hasattr(connection, "get_bind"):
        connection = connection.connection()
    if hasattr(connection, "exec_driver_sql"):
        connection.exec_driver_sql(sql)
    else:
        connection.cursor().execute(sql)


def sqlite_database(folder: Path, clock: Callable[[], Any] | None = None) -> UserDatabase:
    """Create a file with a store and an application table."""
    path = folder / "shop.db"
    store = SQLiteStore(path, clock=clock, busy_seconds=0.5)
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE notes (text TEXT)")
        connection.commit()
    return UserDatabase(store, str(path), "", "notes", contextlib.ExitStack())


def postgres_database(clock: Callable[[], Any] | None = None) -> UserDatabase:
    """Create a store in a schema whose name needs quotes, and a table in another schema."""
    import psycopg

    from lro.stores.postgres import PostgresStore

    server = shared_server()
    name = server.fresh_schema()
    store = PostgresStore(server.url, schema=f'{name} "100%', clock=clock, statement_seconds=60)
    with psycopg.connect(server.url) as connection:
        connection.execute(f"CREATE TABLE notes_{name} (text TEXT)".encode())
    tables = f'"{name} ""100%".'
    return UserDatabase(store, server.url, tables, f"notes_{name}", contextlib.ExitStack())


@contextlib.contextmanager
def database_of(
    kind: str, folder: Path, clock: Callable[[], Any] | None = None
) -> Iterator[UserDatabase]:
    """Create the database for connections of this kind."""
    made = sqlite_database(folder, clock) if kind in SQLITE else postgres_database(clock)
    with contextlib.closing(made.store), made.stack:
        yield made


def _sqlite3(place: str, stack: contextlib.ExitStack, autocommit: bool) -> Any:
    level = None if autocommit else ""
    made = sqlite3.connect(place, timeout=10, isolation_level=level)
    return stack.enter_context(contextlib.closing(made))


def _psycopg(place: str, stack: contextlib.ExitStack, autocommit: bool) -> Any:
    import psycopg
    from psycopg.rows import dict_row

    # an application may set these factories of rows and cursors
    made = psycopg.connect(
        place, autocommit=autocommit, row_factory=dict_row, cursor_factory=psycopg.ClientCursor
    )
    return stack.enter_context(contextlib.closing(made))


def _django(place: str, stack: contextlib.ExitStack, autocommit: bool) -> Any:
    import django
    from django.conf import settings
    from django.db.utils import ConnectionHandler

    if not settings.configured:
        settings.configure(USE_TZ=True)
        django.setup()
    database: dict[str, Any] = {"ENGINE": "django.db.backends.sqlite3", "NAME": place}
    if place.startswith("postgresql:"):
        from psycopg.conninfo import conninfo_to_dict

        said = conninfo_to_dict(place)
        database = {"ENGINE": "django.db.backends.postgresql", "NAME": said["dbname"]}
        database |= {key.upper(): str(said[key]) for key in ("user", "host", "port")}
    connection = ConnectionHandler({"default": database})["default"]
    stack.callback(connection.close)
    if not autocommit:
        connection.set_autocommit(False)  # as Django does when a transaction begins
    return connection


def _engine(place: str, stack: contextlib.ExitStack, autocommit: bool) -> Any:
    import sqlalchemy

    url = f"sqlite:///{place}"
    if place.startswith("postgresql:"):
        url = "postgresql+psycopg" + place.removeprefix("postgresql")
    made = sqlalchemy.create_engine(
        url, **({"isolation_level": "AUTOCOMMIT"} if autocommit else {})
    )
    stack.callback(made.dispose)
    return made


def _sqlalchemy(place: str, stack: contextlib.ExitStack, autocommit: bool) -> Any:
    return stack.enter_context(_engine(place, stack, autocommit).connect())


def _session(place: str, stack: contextlib.ExitStack, autocommit: bool) -> Any:
    from sqlalchemy.orm import Session

    return stack.enter_context(Session(_engine(place, stack, autocommit)))


_OPEN: Final = {
    "sqlite3": _sqlite3,
    "psycopg": _psycopg,
    "django": _django,
    "sqlalchemy": _sqlalchemy,
    "session": _session,
}
