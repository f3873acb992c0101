"""The errors of SQLite and Python, translated into those of this package."""

from __future__ import annotations

import sqlite3
from typing import Final

from lro._base.errors import InvalidArgument, LroError, Unavailable

DATABASE_ERRORS: Final = (sqlite3.Error, UnicodeError)
"""What a statement may raise for reasons that are not ours: see :func:`translate_error`."""

_VALUES: Final = (sqlite3.DataError, sqlite3.InterfaceError, sqlite3.ProgrammingError)
"""Errors that say of a value, or of how a statement is called, that it never works."""

BUSY: Final = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED})


def translate_error(trouble: Exception) -> LroError:
    """The error that a caller gets for one of ``DATABASE_ERRORS``.

    A value that cannot be stored is the caller's fault: a text, one of a wrong type, one that is
    too large. Everything else may pass: a lock, a full disk, a file that is away or was spoiled and
    comes back from a copy.
    """
    if isinstance(trouble, UnicodeError):
        return InvalidArgument("", "a text has a lone surrogate, which no database can keep")
    if isinstance(trouble, sqlite3.ProgrammingError) and "closed" in str(trouble):
        return Unavailable("the store is closed")
    if isinstance(trouble, _VALUES) and code_of(trouble) != sqlite3.SQLITE_MISUSE:
        return InvalidArgument("", f"a value cannot be kept by the database: {trouble}")
    reason = getattr(trouble, "sqlite_errorname", type(trouble).__name__)
    return Unavailable(f"the operations database cannot be used now ({reason})")


def code_of(trouble: sqlite3.Error) -> int:
    """SQLite's primary result code; 255, which is none, for an error that is Python's own."""
    return int(getattr(trouble, "sqlite_errorcode", -1)) & 0xFF


def is_interrupted(trouble: sqlite3.Error) -> bool:
    """Whether it was stopped because it took too long."""
    return code_of(trouble) == sqlite3.SQLITE_INTERRUPT


def is_lost_index(error: LroError) -> bool:
    """Whether an index that was to be used is not there any more."""
    return "no such index" in str(error.__cause__)


def is_busy(trouble: sqlite3.Error) -> bool:
    """Whether only the lock of another connection was in the way."""
    return code_of(trouble) in BUSY
