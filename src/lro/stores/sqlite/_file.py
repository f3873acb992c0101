"""One SQLite file: its path, the check that it was not replaced, and its reading connections."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import sqlite3
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, Protocol, TypeAlias, TypeVar

from lro._base.errors import DeclarationError, InvalidArgument, LroError, Unavailable
from lro._model.operation import Record
from lro.stores._list_queries import StatementTooSlow
from lro.stores._rows import from_row, row_weight

DATABASE_ERRORS: Final = (sqlite3.Error, UnicodeError)
"""Errors of statements that are translated for callers: see :func:`translate_error`."""

_VALUES: Final = (sqlite3.DataError, sqlite3.InterfaceError, sqlite3.ProgrammingError)
"""Errors that any attempt would raise: a value, or the call of a statement, is wrong."""

BUSY: Final = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED})


def translate_error(trouble: Exception) -> LroError:
    """Return the error that a caller gets for one of ``DATABASE_ERRORS``.

    A value that cannot be stored is the caller's fault: an unstorable text, a wrong type, a value
    too large. Any other error may be temporary: a lock, a full disk, a missing or damaged file that
    an operator restores.
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
    """Return SQLite's primary result code; for an error of Python, 255, which is not a code."""
    return int(getattr(trouble, "sqlite_errorcode", -1)) & 0xFF


def is_interrupted(trouble: sqlite3.Error) -> bool:
    """Return True if the statement was stopped because it took too long."""
    return code_of(trouble) == sqlite3.SQLITE_INTERRUPT


def is_lost_index(error: LroError) -> bool:
    """Return True if an index of the statement no longer exists."""
    return "no such index" in str(error.__cause__)


def is_busy(trouble: sqlite3.Error) -> bool:
    """Return True if the cause was the lock of another connection."""
    return code_of(trouble) in BUSY


_URL: Final = re.compile(r"(?:file|sqlite):|[A-Za-z][A-Za-z0-9+.\-]+:/", re.IGNORECASE)
"""Schemes have two letters or more, unlike drives. ``file:`` and ``sqlite:`` need no slash."""
SEEN_SECONDS: Final = 1.0
"""Seconds between checks that the file is in its place. A check takes as long as a read."""

_STATEMENTS: Final = 512
"""The most statements that a connection keeps prepared."""

Identity: TypeAlias = tuple[int, int] | None
"""The device and the inode of a file; None if it does not exist."""

_LOG: Final = ("-wal", "-shm")
"""Files beside the database: the log (WAL), and its index, which processes share."""

log = logging.getLogger("lro")


class DatabaseFile:
    """State that all connections to a file share.

    A database in WAL mode has three files. None of them may be replaced while the database is open.
    SQLite does not notice if a file is deleted, and goes on writing to the deleted file. SQLite may
    even remove the log while this process uses the log. If this process opens and closes the file
    without SQLite, the system drops all locks of this process, and another process believes that it
    is the last user (https://www.sqlite.org/howtocorrupt.html, 2.2).

    ``busy_seconds`` limits waits for locks of other connections.

    Raises:
        DeclarationError: The path is not the path of a file.
    """

    def __init__(self, path: str, busy_seconds: float) -> None:
        if path in ("", ":memory:"):
            raise DeclarationError(repr(path), "must be a file path; for memory use MemoryStore")
        if os.path.isdir(path):
            raise DeclarationError(path, "is a directory")
        if _URL.match(path):
            raise DeclarationError(path, "must be a path such as 'operations.db', not a URL")
        self.path: str = os.path.abspath(path)
        self.busy_seconds = busy_seconds
        self.closing: threading.Event = threading.Event()
        self._uri = Path(self.path).as_uri()
        self._identity: Identity = None
        self._log: tuple[Identity, ...] = ()
        self._seen = 0.0
        self._useless = ""
        self.on_lost: Callable[[], object] = lambda: None
        """Called when the log is lost, to close the connections that no thread uses."""

    def open(self) -> sqlite3.Connection:
        """Open a connection. Only the first connection creates a missing file.

        Raises:
            Unavailable: The store is closed, or the file was deleted or replaced.
            sqlite3.Error: The file cannot be opened.
        """
        self.check()
        mode = "rwc" if self._identity is None else "rw"
        connection = sqlite3.connect(
            f"{self._uri}?mode={mode}",
            uri=True,
            timeout=self.busy_seconds,
            isolation_level=None,
            # Statements of groups have several sizes, for each set of columns that is written.
            cached_statements=_STATEMENTS,
            # Used by one thread at a time, but not always by the same thread.
            check_same_thread=False,
        )
        try:
            if self._identity is None:
                self._identity = _identity_of(self.path)
            self._check_identity()
        except BaseException:
            connection.close()
            raise
        return connection

    def check(self) -> None:
        """Refuse calls to a store that can no longer be used.

        Raises:
            Unavailable: The store is closed, or unusable since a fork.
        """
        if self.closing.is_set():
            raise Unavailable("the store is closed")
        if self._useless:
            raise Unavailable(self._useless)

    def check_in_place(self) -> None:
        """Refuse to use a file that is no longer in its place, because writes would be lost.

        Raises:
            Unavailable: The file or its log was deleted or replaced.
        """
        if time.monotonic() - self._seen >= SEEN_SECONDS:
            self._check_identity()

    def reset_after_fork(self) -> None:
        """Replace the locks and events that the threads of the parent share."""
        closed = self.closing.is_set()
        self.closing = threading.Event()
        if closed:
            self.closing.set()

    def opening_error(self, trouble: sqlite3.OperationalError) -> Unavailable:
        """Return the error for the operator who opens the store; no other error shows the path."""
        folder = os.path.dirname(self.path)
        why = str(trouble) if os.path.isdir(folder) else f"there is no directory {folder}"
        return Unavailable(f"{self.path} cannot be opened: {why}")

    def give_up(self, why: str) -> None:
        """Refuse all calls from now on, for this reason."""
        self._useless = why

    @property
    def unusable(self) -> bool:
        """True if each connection must be closed as soon as no thread uses it."""
        return self.closing.is_set() or bool(self._useless)

    def log_opened(self) -> None:
        """Remember the current log; a connection keeps it open until :meth:`log_closing`.

        SQLite does not remove the log while a connection keeps it open.
        """
        self._log = self._log_identity()

    def log_closing(self) -> None:
        """Forget the log, which SQLite may now remove.

        If another file has replaced this file, SQLite leaves the log, and this method renames it.
        """
        known, self._log = self._log, ()
        if _identity_of(self.path) not in (None, self._identity):
            self._set_log_aside(known)

    def is_at(self, path: str) -> bool:
        """Return True if this path leads to the file."""
        return path != "" and _identity_of(path) == self._identity

    def _check_identity(self) -> None:
        now = time.monotonic()
        known, there = self._log, _identity_of(self.path)
        if there != self._identity:
            self._seen = -SEEN_SECONDS
            if there is not None:
                self._set_log_aside(known)
            raise Unavailable("the operations database was deleted or replaced")
        # If this process closed the log meanwhile, SQLite may rightly have removed it.
        if known and self._log_identity() != known and self._log is known:
            self.give_up(_LOST_LOG)
            log.error("%s: %s", self.path, _LOST_LOG)
            # The last process to close the file saves the log's content, unless another process has
            # begun a new log. Closing soon makes it more likely that the content is saved.
            self.on_lost()
            raise Unavailable(_LOST_LOG)
        self._seen = now

    def _log_identity(self) -> tuple[Identity, ...]:
        return tuple(_identity_of(self.path + suffix) for suffix in _LOG)

    def _set_log_aside(self, known: tuple[Identity, ...]) -> None:
        """Rename the log of a file that was replaced by another file.

        SQLite would apply the log to the new file, and corrupt it.
        """
        for suffix, mine in zip(_LOG, known, strict=False):
            source = self.path + suffix
            if mine is None or _identity_of(source) != mine or self._identity is None:
                continue
            target = f"{source}-of-{self._identity[1]}"
            try:
                os.replace(source, target)
            except OSError as exc:
                log.error("%s was replaced, and its log is in the way: %s", self.path, exc)
                continue
            if suffix == _LOG[0]:
                line = "%s was replaced: the log of the former file is now %s"
                log.warning(line, self.path, target)


_LOST_LOG: Final = (
    "the log of the operations database was deleted or replaced;"
    " restart the processes that use the database"
)


def _identity_of(path: str) -> Identity:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


T = TypeVar("T")

_STEPS: Final = 10_000
"""Instructions of SQLite's virtual machine between two checks of the time; under 1 ms."""

FetchRows: TypeAlias = Callable[[str, tuple[object, ...]], list[Any]]
"""Function that returns the rows of a query, from its SQL and its parameters."""


class FetchRecords(Protocol):
    """Function that reads records by a query for ``COLUMNS``."""

    def __call__(
        self, sql: str, values: tuple[object, ...], *, max_bytes: int
    ) -> tuple[list[Record], bool]:
        """Return the first records that a query finds, and True if there are more.

        The records have a total weight of at most ``max_bytes``, unless there is only one record.
        """
        ...


class Readers:
    """Reads the last committed state of a file, on pooled connections."""

    def __init__(self, file: DatabaseFile) -> None:
        self._file = file
        self._idle: list[sqlite3.Connection] = []
        self.reset_after_fork()

    def reset_after_fork(self) -> None:
        """Replace the locks and events that the threads of the parent share."""
        self._lock = threading.Lock()
        self._all_back = threading.Condition(self._lock)
        self._out = 0

    def rows(
        self, sql: str, values: tuple[object, ...] = (), seconds: float | None = None
    ) -> list[Any]:
        """Return the rows that a query finds. Never waits for a writer.

        Raises:
            StatementTooSlow: The query took longer than ``seconds`` seconds.
            Unavailable: The store is closed, or the file cannot be read.
            InvalidArgument: A value is a text that no database can store.
        """
        return self._read(sqlite3.Cursor.fetchall, sql, values, seconds)

    def records(
        self, sql: str, values: tuple[object, ...], *, max_bytes: int, seconds: float | None = None
    ) -> tuple[list[Record], bool]:
        """Read as :class:`FetchRecords` does; records beyond ``max_bytes`` are not read.

        Raises:
            StatementTooSlow, Unavailable, InvalidArgument: As for :meth:`rows`.
        """
        return self._read(lambda cursor: _first(cursor, max_bytes), sql, values, seconds)

    def _read(
        self,
        take: Callable[[sqlite3.Cursor], T],
        sql: str,
        values: tuple[object, ...],
        seconds: float | None,
    ) -> T:
        try:
            reader = self._take()
            try:
                self._file.check_in_place()
                if seconds is not None:
                    end = time.monotonic() + seconds
                    reader.set_progress_handler(lambda: time.monotonic() > end, _STEPS)
                with contextlib.closing(reader.execute(sql, values)) as cursor:
                    return take(cursor)
            finally:
                if seconds is not None:
                    reader.set_progress_handler(None, 0)
                self._give_back(reader)
        except DATABASE_ERRORS as exc:
            if isinstance(exc, sqlite3.OperationalError) and is_interrupted(exc):
                raise StatementTooSlow(translate_error(exc)) from exc
            raise translate_error(exc) from exc

    def close(self) -> None:
        """Close the idle connections now; busy connections are closed after their read."""
        with self._lock:
            self._close_idle()

    def pause(self, seconds: float) -> bool:
        """Close all connections and let no thread read until :meth:`resume`.

        Returns:
            True if that was done within ``seconds`` seconds.
        """
        if not self._lock.acquire(timeout=seconds):
            return False
        if not self._all_back.wait_for(lambda: self._out == 0, seconds):
            self._lock.release()
            return False
        self._close_idle()
        return True

    def resume(self) -> None:
        """Let threads read again."""
        self._lock.release()

    def abandoned(self) -> list[sqlite3.Connection]:
        """Forget and return the idle connections, which must never be used or closed again."""
        idle, self._idle = self._idle, []
        return idle

    def _close_idle(self) -> None:
        while self._idle:
            self._idle.pop().close()

    def _take(self) -> sqlite3.Connection:
        with self._lock:
            self._file.check()
            self._out += 1
            if self._idle:
                return self._idle.pop()
        try:
            return self._file.open()
        except BaseException:
            self._give_back(None)
            raise

    def _give_back(self, reader: sqlite3.Connection | None) -> None:
        with self._lock:
            self._out -= 1
            if reader is not None:
                self._idle.append(reader)
            if self._file.unusable:
                self._close_idle()
            if not self._out:
                self._all_back.notify()


def _first(cursor: sqlite3.Cursor, max_bytes: int) -> tuple[list[Record], bool]:
    found: list[Record] = []
    for row in cursor:  # SQLite reads each row when it is fetched
        weight = row_weight(row)
        max_bytes -= weight
        if found and max_bytes < 0:
            return found, True
        found.append(from_row(row, weight))
    return found, False
