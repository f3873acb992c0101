"""Connections of the application: their driver, and how to execute statements on them.

Django and SQLAlchemy are not imported: their objects are recognised by their attributes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from lro._base.errors import InvalidArgument

SAVEPOINT: Final = "lro_start"
"""Savepoint in the application's transaction: with it, a start is stored whole or not at all."""

AUTOCOMMIT: Final = "no transaction is open on the connection, which commits each statement"


def driver_of(given: Any) -> tuple[Any, Any]:
    """Return the driver's connection for an object of the application, and SQLAlchemy's connection.

    The second value is None for an object that is not of SQLAlchemy. Otherwise statements must go
    through SQLAlchemy's connection, because SQLAlchemy commits only transactions that it knows of.

    Raises:
        InvalidArgument: ``given`` is an asynchronous connection or session of SQLAlchemy.
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
    """Execute a statement in the driver's SQL through SQLAlchemy, and return the result.

    Raises:
        Exception: The driver's own error, not wrapped; or an error of SQLAlchemy.
    """
    try:
        return sqlalchemy.exec_driver_sql(sql, tuple(values) or None)
    except Exception as exc:
        error = getattr(exc, "orig", None)
        if isinstance(error, Exception):
            raise error from exc
        raise


def unsuitable(given: object, wanted: str) -> InvalidArgument:
    """Return the error for an object that is not a suitable connection.

    The error shows only the class of the object, because callers of the service see the error.
    """
    return refused(f"must be {wanted}, got an object of {type(given).__qualname__}")


def refused(why: str) -> InvalidArgument:
    """Return the error for a connection that a start cannot use."""
    return InvalidArgument("within", why)
