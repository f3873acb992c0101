"""Starts within a transaction of the application, on the application's connection to the file."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator, Sequence
from typing import Any, Final

from lro._base.errors import LroError
from lro.stores._user_connections import (
    AUTOCOMMIT,
    SAVEPOINT,
    driver_of,
    execute_on,
    refused,
    unsuitable,
)
from lro.stores.sqlite._file import DATABASE_ERRORS, DatabaseFile, code_of, translate_error

_WANTED: Final = "a connection of sqlite3, or of Django or SQLAlchemy on it"
_IN_MEMORY: Final = (
    "the connection is to a database in memory, not to the store's file; "
    'in the tests of Django, name a file in the settings: "TEST": {"NAME": "test.db"}'
)
_LEGACY: Final = -1
"""``sqlite3.LEGACY_TRANSACTION_CONTROL``, which Python 3.11 lacks."""


class UserTransaction:
    """The application's transaction on a connection to the file.

    Raises:
        InvalidArgument: The connection is of another kind, or to another file.
    """

    def __init__(self, given: object, file: DatabaseFile) -> None:
        self._driver, self._sqlalchemy = driver_of(given)
        if not isinstance(self._driver, sqlite3.Connection):
            raise unsuitable(given, _WANTED)
        with _translated():
            # Execute this first: SQLAlchemy begins its transaction with the first statement.
            databases = self.execute("PRAGMA database_list").fetchall()
            if self._driver.text_factory is not str:
                raise refused("the connection gives texts as other objects: its text_factory")
        main = [path for _, name, path in databases if name == "main"]
        if not main[0]:
            raise refused(_IN_MEMORY)
        if not file.is_at(main[0]):
            raise refused("the connection is to another file than the store's")

    def execute(self, sql: str, values: Sequence[object] = ()) -> Any:
        """Execute a statement; its rows are tuples."""
        if self._sqlalchemy is not None:
            return execute_on(self._sqlalchemy, sql, values)
        cursor = self._driver.cursor()
        cursor.row_factory = None
        return cursor.execute(sql, tuple(values))

    @contextlib.contextmanager
    def all_or_nothing(self, *, writes: bool = True) -> Iterator[None]:
        """Undo the writes of the block if it raises an error.

        Raises:
            InvalidArgument: No transaction is open, and a write does not begin a transaction.
            Unavailable: The file cannot be written to now.
        """
        with _translated():
            begins = not self._driver.in_transaction
            if begins and self._commits_each:
                raise refused(AUTOCOMMIT)
            if not writes:
                yield
                return
            # Begin as the driver does, but IMMEDIATE, because only then SQLite waits for locks.
            if begins:
                self.execute("BEGIN IMMEDIATE")
            undo = ["ROLLBACK"] if begins else [f"ROLLBACK TO {SAVEPOINT}", f"RELEASE {SAVEPOINT}"]
            try:
                self.execute(f"SAVEPOINT {SAVEPOINT}")
                yield
                self.execute(f"RELEASE {SAVEPOINT}")
            except BaseException:
                with contextlib.suppress(sqlite3.Error):  # SQLite may have rolled back everything
                    for statement in undo:
                        self.execute(statement)
                raise

    @property
    def _commits_each(self) -> bool:
        legacy = getattr(self._driver, "autocommit", _LEGACY) == _LEGACY
        return self._driver.isolation_level is None if legacy else True


@contextlib.contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except sqlite3.ProgrammingError as exc:  # the connection is closed, or of another thread
        raise refused(f"the connection cannot be used: {exc}") from exc
    except DATABASE_ERRORS as exc:
        raise _translate(exc) from exc


def _translate(error: Exception) -> LroError:
    if isinstance(error, sqlite3.Error) and code_of(error) == sqlite3.SQLITE_READONLY:
        return refused("the connection may only read")
    return translate_error(error)
