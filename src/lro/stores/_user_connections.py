"""Connections of the application: which driver has them, and how statements reach that.

Nothing of Django or SQLAlchemy is imported: what is theirs is known by what it can do.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from lro._base.errors import InvalidArgument

SAVEPOINT: Final = "lro_start"
"""Within the application's transaction a start has a savepoint: all of it is stored, or nothing."""

AUTOCOMMIT: Final = "no transaction is open on the connection, which commits each statement"


def driver_of(given: Any) -> tuple[Any, Any]:
    """The driver's connection under what a start is to be within, and SQLAlchemy's, or None.

    Statements must go through SQLAlchemy's, where there is one: without knowing that a transaction
    has begun, SQLAlchemy would not commit it.

    Raises:
        InvalidArgument: It is one of SQLAlchemy's asynchronous ones.
    """
    if hasattr(given, "run_sync"):
        raise unsuitable(given, "a synchronous connection or session")
    if hasattr(given, "get_bind"):  # a Session has a Connection in each of its transactions
        given = given.connection()
    if hasattr(given, "exec_driver_sql"):
        return given.connection.driver_connection, given
    if hasattr(given, "ensure_connection"):  # Django connects when a connection is first used
        given.ensure_connection()
        return given.connection, None
    return given, None


def execute_on(sqlalchemy: Any, sql: str, values: Sequence[object]) -> Any:
    """Execute a statement of the driver's through SQLAlchemy, and return the result.

    Raises:
        Exception: An error of the driver as the driver raises it, or one of SQLAlchemy's own.
    """
    try:
        return sqlalchemy.exec_driver_sql(sql, tuple(values) or None)
    except Exception as exc:
        error = getattr(exc, "orig", None)
        if isinstance(error, Exception):
            raise error from exc
        raise


def unsuitable(given: object, wanted: str) -> InvalidArgument:
    """The error for what is no connection, or one of a wrong kind.

    It names the class alone: the rest is not for callers of the service to see.
    """
    return refused(f"must be {wanted}, got an object of {type(given).__qualname__}")


def refused(why: str) -> InvalidArgument:
    """The error for a connection that no start can be within."""
    return InvalidArgument("within", why)
