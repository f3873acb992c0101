"""The connections that read: as many as there are reads at once, and none of them waits."""

from __future__ import annotations

import contextlib
import sqlite3
import threading
import time
from collections.abc import Callable
from typing import Any, Final, Protocol, TypeAlias, TypeVar

from lro._model.record import Record
from lro.stores._rows import from_row, row_weight
from lro.stores._walks import TooFar
from lro.stores.sqlite._file import DatabaseFile
from lro.stores.sqlite._told import DATABASE_ERRORS, interrupted, translate_error

T = TypeVar("T")

_STEPS: Final = 10_000
"""Of SQLite's machine, between two looks at the clock: some fractions of a millisecond."""

Rows: TypeAlias = Callable[[str, tuple[object, ...]], list[Any]]
"""What a query finds, given its values."""


class Records(Protocol):
    """Reads records by a query for the columns that ``COLUMNS`` says."""

    def __call__(
        self, sql: str, values: tuple[object, ...], *, max_bytes: int
    ) -> tuple[list[Record], bool]:
        """The first records that a query finds, and whether there are more.

        Together they weigh at most ``max_bytes``, or it is only one.
        """
        ...


class Readers:
    """Reads the last committed state of a file, on connections that are used again."""

    def __init__(self, file: DatabaseFile) -> None:
        self._file = file
        self._idle: list[sqlite3.Connection] = []
        self.renew()

    def renew(self) -> None:
        """Make what threads share anew, in a forked child."""
        self._lock = threading.Lock()
        self._all_back = threading.Condition(self._lock)
        self._out = 0

    def rows(
        self, sql: str, values: tuple[object, ...] = (), seconds: float | None = None
    ) -> list[Any]:
        """What a query finds. Never waits for who writes.

        Raises:
            TooFar: It was not over after so many seconds.
            Unavailable: The store is closed, or the file cannot be read.
            InvalidArgument: A value is a text that no database can keep.
        """
        return self._read(sqlite3.Cursor.fetchall, sql, values, seconds)

    def records(
        self, sql: str, values: tuple[object, ...], *, max_bytes: int, seconds: float | None = None
    ) -> tuple[list[Record], bool]:
        """See :class:`Records`; what is left out is not read.

        Raises:
            TooFar, Unavailable, InvalidArgument: As for :meth:`rows`.
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
                self._file.unmoved()
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
            if isinstance(exc, sqlite3.OperationalError) and interrupted(exc):
                raise TooFar(translate_error(exc)) from exc
            raise translate_error(exc) from exc

    def close(self) -> None:
        """Close those that are idle; one that reads, as soon as it has read."""
        with self._lock:
            self._close_idle()

    def pause(self, seconds: float) -> bool:
        """Close them all and let nobody read until :meth:`resume`; whether that came in time."""
        if not self._lock.acquire(timeout=seconds):
            return False
        if not self._all_back.wait_for(lambda: self._out == 0, seconds):
            self._lock.release()
            return False
        self._close_idle()
        return True

    def resume(self) -> None:
        """Let others read again."""
        self._lock.release()

    def abandoned(self) -> list[sqlite3.Connection]:
        """Those that lie idle, which are never used nor closed again."""
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
            if self._file.closing.is_set():
                self._close_idle()
            if not self._out:
                self._all_back.notify()


def _first(cursor: sqlite3.Cursor, max_bytes: int) -> tuple[list[Record], bool]:
    found: list[Record] = []
    for row in cursor:  # each is read when it is asked for
        max_bytes -= row_weight(row)
        if found and max_bytes < 0:
            return found, True
        found.append(from_row(row))
    return found, False
