"""Recorders of the SQL that stores send; a test can make a statement fail or wait."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import pytest

from lro.stores.sqlite import SQLiteStore
from lro.testing import ManualClock
from tests.stores.samples import insert, record_of

Act = Callable[[Any], object]
"""Called with the connection before a statement; an exception that it raises replaces the result.

If the call returns a cursor, the cursor is the result, and the statement is not executed.
"""
CONNECT: Final = sqlite3.connect


class Wire:
    """Records all SQL that stores send, and can intercept it."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.values: list[Any] = []
        self.connections: list[Any] = []
        self._acts: list[tuple[str, Act, int]] = []

    def when(self, begins: str, act: Act, times: int = 1) -> None:
        """Call ``act`` before each of the next ``times`` statements that begin with this text."""
        self._acts.append((begins, act, times))

    def fail(self, begins: str, error: Exception | None = None, times: int = 1) -> None:
        """Make the next ``times`` statements that begin with this text fail."""

        def refuse(_: object) -> None:
            raise error or sqlite_error(sqlite3.SQLITE_IOERR, "SQLITE_OF_A_TEST")

        self.when(begins, refuse, times)

    def words(self, call: Callable[[], object]) -> list[str]:
        """Return the first word of each statement of a call, without polls for other commits."""
        self.said.clear()
        call()
        return [one.split()[0] for one in self.said if not one.startswith("PRAGMA data_version")]

    def meet(self, connection: Any, statement: str, values: Any = ()) -> object:
        """Record a statement, and run the action that a test has set for it."""
        self.said.append(statement)
        self.values.append(values)
        for place, (begins, act, times) in enumerate(self._acts):
            if statement.startswith(begins):
                self._acts[place : place + 1] = [(begins, act, times - 1)] if times > 1 else []
                return act(connection)
        return None


def sqlite_error(code: int, name: str) -> sqlite3.OperationalError:
    """Return a SQLite error with this code."""
    error = sqlite3.OperationalError("refused by a test")
    error.sqlite_errorcode, error.sqlite_errorname = code, name
    return error


def tap_sqlite(monkeypatch: pytest.MonkeyPatch) -> Wire:
    """Record the SQL of all SQLite stores that open connections from now on."""
    wire = Wire()

    class Tapped(sqlite3.Connection):
        def execute(self, statement: str, *values: Any) -> sqlite3.Cursor:
            found = wire.meet(self, statement, *values)
            if isinstance(found, sqlite3.Cursor):
                return found
            return super().execute(statement, *values)

        def executemany(self, statement: str, *values: Any) -> sqlite3.Cursor:
            wire.meet(self, statement)
            return super().executemany(statement, *values)

    def connect(*arguments: Any, **options: Any) -> sqlite3.Connection:
        # Coverage opens its file without ``isolation_level``; that connection is not recorded.
        ours = {"factory": Tapped} if "isolation_level" in options else {}
        made = CONNECT(*arguments, **options, **ours)
        wire.connections += [made] if ours else []
        return made

    monkeypatch.setattr("sqlite3.connect", connect)
    return wire


def tap_postgres(monkeypatch: pytest.MonkeyPatch) -> Wire:
    """Record the SQL of all psycopg connections; each new connection is recorded as ``connect``."""
    import psycopg

    wire = Wire()
    connect, execute = psycopg.Connection.connect.__func__, psycopg.Connection.execute

    def connecting(cls: type, *arguments: Any, **options: Any) -> Any:
        wire.meet(None, "connect")
        wire.connections.append(connect(cls, *arguments, **options))
        return wire.connections[-1]

    def executing(self: Any, query: Any, params: Any = None, **options: Any) -> Any:
        found = wire.meet(self, query.decode() if isinstance(query, bytes) else str(query), params)
        return found if hasattr(found, "fetchall") else execute(self, query, params, **options)

    monkeypatch.setattr(psycopg.Connection, "connect", classmethod(connecting))
    monkeypatch.setattr(psycopg.Connection, "execute", executing)
    return wire


@contextlib.contextmanager
def stranger(path: Any, begin: str = "BEGIN IMMEDIATE") -> Iterator[sqlite3.Connection]:
    """Keep a lock on the file, as a slow program would."""
    connection = CONNECT(path, isolation_level=None, check_same_thread=False)
    with contextlib.closing(connection) as other:
        other.execute(begin)
        yield other
        if other.in_transaction:
            other.execute("ROLLBACK")


def filled(path: Any, clock: ManualClock, unique_ids: Sequence[str] = ("a",)) -> SQLiteStore:
    """Create a store with records of these ids, in a new file."""
    store = SQLiteStore(path, clock=clock)
    for unique_id in unique_ids:
        insert(store, record_of(clock, unique_id))
    return store
