"""Starts within a transaction of the application, on the application's connection."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, TypeAlias

import psycopg
from psycopg import errors
from psycopg.rows import tuple_row

from lro._base.errors import InvalidArgument, LroError
from lro._base.status import AnyMessage
from lro._engine.store_port import WORK_WAITS, Inserted, RequestKey
from lro._messages.json_text import dumps
from lro._model.operation import Record
from lro.stores._rows import refuse_untextual
from lro.stores._user_connections import (
    AUTOCOMMIT,
    SAVEPOINT,
    driver_of,
    execute_on,
    refused,
    unsuitable,
)
from lro.stores.postgres._connections import ConnectionPool, unavailable
from lro.stores.postgres._notifications import NOBODY, payloads
from lro.stores.postgres._records import INSERT_ATTEMPTS, find_obstacle, too_slow
from lro.stores.postgres._schema import channel_of
from lro.stores.postgres._statements import FIND_FIRST, NOTIFY, insertion, qualified, statement_of

_WANTED: Final = "a connection of psycopg, or of Django or SQLAlchemy on it"

# Identifies the store's table, database and server. The start time tells the server from another
# server with a copy of the data.
_IDENTITY: Final = b"""SELECT current_setting('client_encoding'), to_regclass(%s)::oid::bigint,
    (SELECT oid::bigint FROM pg_database WHERE datname = current_database()),
    (extract(epoch FROM pg_postmaster_start_time()) * 1000000)::bigint"""

Execute: TypeAlias = Callable[[bytes, Sequence[object]], list[Any]]
"""Executes a statement in the application's transaction, and returns its rows as tuples."""

_REFUSED: Final[dict[type[psycopg.Error], str]] = {
    errors.NoActiveSqlTransaction: AUTOCOMMIT,
    errors.InFailedSqlTransaction: "the transaction has failed, and can only be rolled back",
    errors.ReadOnlySqlTransaction: "the transaction is one that only reads",
    errors.InsufficientPrivilege: "the user of the connection may not write to the store's tables",
}


class TransactionInserts:
    """Inserts into the store's tables on connections of the application."""

    def __init__(self, connections: ConnectionPool) -> None:
        self._connections = connections
        self._schema = connections.address.quoted_schema
        self._channel = channel_of(connections.address.schema)
        self._work_waits = dumps([*payloads(NOBODY, [WORK_WAITS])]).decode()
        self._table = (f"{self._schema}.lro_operations",)
        self._find_first = qualified(FIND_FIRST, self._schema)
        self._identity: Sequence[Any] = ()

    def insert(
        self,
        connection: object,
        record: Record,
        request: AnyMessage,
        key: RequestKey | None,
        *,
        check_only: bool = False,
    ) -> Inserted:
        """See ``TransactionalStore.insert_within``.

        Raises:
            InvalidArgument, RequestIdConflict, TargetBusy: As documented there.
            Unavailable: The database cannot be used now, by the store or on this connection.
        """
        refuse_untextual(record, key)
        execute = _executing(connection)
        if not self._identity:  # before anything else, because this may also make the tables
            self._identity = self._own_identity()
        if check_only:
            with _all_or_nothing(execute):
                self._check_same(execute)
                return self._obstacle(execute, record, key) or Inserted(record, fresh=True)
        sql, text = statement_of([insertion(record, request, key)])
        sql = qualified(sql, self._schema)
        for _ in range(INSERT_ATTEMPTS):
            # If another transaction has just committed a conflicting row, the next attempt finds
            # it.
            with contextlib.suppress(errors.UniqueViolation), _all_or_nothing(execute):
                self._check_same(execute)
                if execute(sql, (text,)):
                    # PostgreSQL notifies all processes at the commit, including this process.
                    if record.waits:
                        execute(NOTIFY, (self._channel, self._work_waits))
                    return Inserted(record, fresh=True)
                found = self._obstacle(execute, record, key)
                if found is not None:
                    return found
        raise too_slow()

    def _obstacle(
        self, execute: Execute, record: Record, key: RequestKey | None
    ) -> Inserted | None:
        return find_obstacle(execute, self._find_first, record, key)

    def _own_identity(self) -> Sequence[Any]:
        ((_, *found),) = self._connections.rows(_IDENTITY, self._table)
        return found

    def _check_same(self, execute: Execute) -> None:
        ((encoding, *theirs),) = execute(_IDENTITY, self._table)
        if theirs != self._identity:  # perhaps the server was restarted meanwhile
            self._identity = self._own_identity()
        if theirs != self._identity:
            raise refused("the connection is to another database than the store's")
        if encoding != "UTF8":
            raise refused("the client_encoding of the connection must be UTF8")


def _executing(given: object) -> Execute:
    driver, sqlalchemy = driver_of(given)
    if not isinstance(driver, psycopg.Connection):
        raise unsuitable(given, _WANTED)
    if not driver.closed and driver.info.pipeline_status:  # in pipeline mode, results come late
        raise refused("the connection is in pipeline mode: start before it, or after")

    def on_driver(sql: bytes, values: Sequence[object]) -> list[Any]:
        # Not connection.cursor(), which would use the application's cursor and row factories.
        with psycopg.Cursor(driver, row_factory=tuple_row) as cursor:
            cursor.execute(sql, values or None)
            return cursor.fetchall() if cursor.description else []

    def through_sqlalchemy(sql: bytes, values: Sequence[object]) -> list[Any]:
        result = execute_on(sqlalchemy, sql.decode(), values)
        return list(result.fetchall()) if result.returns_rows else []

    return on_driver if sqlalchemy is None else through_sqlalchemy


@contextlib.contextmanager
def _all_or_nothing(execute: Execute) -> Iterator[None]:
    """Undo the writes of the block if it raises an error; the transaction can then continue.

    Raises:
        InvalidArgument: The connection's transaction cannot write.
        Unavailable: The database cannot be used now.
    """
    name = SAVEPOINT.encode()
    try:
        execute(b"SAVEPOINT " + name, ())
        try:
            yield
            execute(b"RELEASE SAVEPOINT " + name, ())
        except BaseException:
            with contextlib.suppress(psycopg.Error):  # the connection may be lost
                execute(b"ROLLBACK TO SAVEPOINT " + name, ())
                execute(b"RELEASE SAVEPOINT " + name, ())
            raise
    except errors.UniqueViolation:
        raise
    except psycopg.Error as exc:
        raise _translate(exc) from exc


def _translate(error: psycopg.Error) -> LroError:
    for kind, why in _REFUSED.items():
        if isinstance(error, kind):
            return refused(why)
    if isinstance(error, (psycopg.DataError, errors.ProgramLimitExceeded)):
        text = f"the record cannot be kept by the database ({type(error).__name__})"
        return InvalidArgument("", text)
    return unavailable(error)
