"""All connections to one file: one that writes for groups of callers, and many that read."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any, Final, TypeVar

from lro._engine.forks import after_fork
from lro.stores.sqlite._errors import DATABASE_ERRORS, translate_error
from lro.stores.sqlite._file import DatabaseFile, Readers
from lro.stores.sqlite._group_commit import SharedTransactions
from lro.stores.sqlite._subscription import CounterSubscription
from lro.stores.sqlite._writer import Writer

T = TypeVar("T")

_inherited: Final[list[sqlite3.Connection]] = []
"""Connections that a fork carried into this process: never used, closed or finalised."""


class FileConnections:
    """Reads and writes of one file.

    No connection crosses a fork. SQLite would take the parent's locks for locks of the child,
    which so would have none: whoever closes the file last would remove the log that the child
    goes on to write. Therefore all are closed before a fork, and opened again by the next call.

    Raises:
        Unavailable: The file cannot be opened.
        DeclarationError: It has another schema version, or is not a file of this library.
    """

    def __init__(self, path: str, busy_seconds: float) -> None:
        self._file = DatabaseFile(path, busy_seconds)
        self._readers = Readers(self._file)
        self._writer = Writer(self._file)
        self._transactions = SharedTransactions(self._writer, busy_seconds)
        self._paused_by = 0
        self.rows = self._readers.rows
        self.records = self._readers.records
        self.state = self._writer.state
        _all.add(self)
        after_fork(self, FileConnections._reset_after_fork)

    def write(self, action: Callable[[sqlite3.Connection], T]) -> T:
        """See :meth:`SharedTransactions.run`."""
        return self._transactions.run(action)

    def write_undurably(self, action: Callable[[sqlite3.Connection], T]) -> T:
        """Run an action without waiting for the disk: it is repeated if its effect is lost.

        Raises:
            Unavailable: As for :meth:`write`.
        """
        connection = self._writer.begin(time.monotonic() + self._file.busy_seconds, durable=False)
        try:
            answer = action(connection)
            connection.execute("COMMIT")
            return answer
        except DATABASE_ERRORS as exc:
            raise translate_error(exc) from exc
        finally:
            self._writer.end()

    def listen(self, look_seconds: float) -> CounterSubscription:
        """See :class:`CounterSubscription`."""
        return CounterSubscription(self._writer, look_seconds)

    def close(self) -> None:
        """Close every connection; those in use, once they are not."""
        self._file.closing.set()
        self._writer.close()
        self._readers.close()

    def pause(self) -> None:
        """Before a fork: close every connection, and let no thread open one."""
        seconds = self._file.busy_seconds + 1
        if not self._writer.pause(seconds):
            return
        if not self._readers.pause(seconds):
            self._writer.resume()
            return
        self._paused_by = threading.get_ident()

    def resume(self) -> None:
        """In the parent, after the fork: go on."""
        if self._paused_by == threading.get_ident():
            self._paused_by = 0
            self._readers.resume()
            self._writer.resume()

    def _reset_after_fork(self) -> None:
        # In the child. Threads of the parent hold its locks for ever, and are in its queue.
        if self._paused_by != threading.get_ident():
            self._file.give_up("the process was forked while the store was busy; open another one")
            _inherited.extend((*self._writer.abandoned(), *self._readers.abandoned()))
        self._paused_by = 0
        for part in (self._file, self._writer, self._readers, self._transactions):
            part.reset_after_fork()


_all: Final[weakref.WeakSet[FileConnections]] = weakref.WeakSet()


def _each(turn: Callable[[FileConnections], Any]) -> None:
    for connections in list(_all):
        turn(connections)


with contextlib.suppress(AttributeError):  # where nothing forks
    os.register_at_fork(
        before=lambda: _each(FileConnections.pause),
        after_in_parent=lambda: _each(FileConnections.resume),
    )
