"""Connections to a SQLite file, and the subscription to commits of other processes."""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import sqlite3
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any, Final, TypeVar

from lro._engine.process import PerProcess, living
from lro.stores.sqlite._file import DATABASE_ERRORS, DatabaseFile, Readers, translate_error
from lro.stores.sqlite._group_commit import FunctionWrite, SharedTransactions, Together
from lro.stores.sqlite._within import UserTransaction
from lro.stores.sqlite._writer import Writer

_FIRST_PAUSE: Final = 0.001
"""Seconds from a write to the next read of the counter. The pause doubles with each read."""
_LATE_SHARE: Final = 0.25
"""The longest pause between reads of the counter, as a share of the time since the last write."""

_IN_MODIFY: Final = 0x00000002
"""The only event of ``sys/inotify.h`` that is watched."""
_READ_BYTES: Final = 65536


class CounterSubscription:
    """Finds commits by other connections: it reads SQLite's counter of such commits.

    If the system reports no writes to the log, the counter is read every ``look_seconds``.
    Otherwise it is read soon after each write, and then at growing intervals: the commit may come
    at any time after the write, and is not reported. The counter does not tell which records have
    changed, so any record may have changed.

    Raises:
        Unavailable: The store is closed, or the file cannot be read.
    """

    def __init__(self, writer: Writer, look_seconds: float) -> None:
        self._writer = writer
        self._look_seconds = look_seconds
        self._listening = threading.Lock()
        self._closing = threading.Lock()
        self._closed = threading.Event()
        self._known = writer.commits_by_others()
        self._pause = look_seconds
        self._written = True
        self._written_at = 0.0
        self._watch: FileWatch | None = None
        with contextlib.suppress(OSError):
            self._watch = FileWatch(writer.log_path)

    def next_changes(self, seconds: float) -> tuple[str, ...] | None:
        """Wait until another process has committed, at most ``seconds`` seconds.

        Returns:
            None if any record may have changed, an empty tuple if none has.

        Raises:
            Unavailable: The store is closed, or the file cannot be read.
        """
        end = time.monotonic() + seconds
        with self._listening:
            while not self._closed.is_set():
                found = self._writer.commits_by_others()
                if found != self._known:
                    self._known = found
                    return None
                now = time.monotonic()
                if now >= end:
                    break
                self._rest(self._watch, now, end - now)
        return ()

    def close(self) -> None:
        """End a waiting ``next_changes``, and free the watch. Idempotent."""
        with self._closing:
            if self._closed.is_set():
                return
            self._closed.set()
            if self._watch is not None:
                self._watch.end()
        with self._listening:
            if self._watch is not None:
                self._watch.close()

    def _rest(self, watch: FileWatch | None, now: float, left: float) -> None:
        """Wait until it is time to read the counter again."""
        if self._written and watch is not None:
            self._written = not watch.restart()
            self._written_at = now
        if self._written or watch is None or self._pause < self._look_seconds:
            # Do not use the watch soon after a write: more may follow, or this process wrote.
            self._closed.wait(min(left, self._pause))
            self._pause = min(2 * self._pause, self._look_seconds)
            return
        rest = max(self._look_seconds, _LATE_SHARE * (now - self._written_at))
        if watch.wait(min(left, rest)):
            self._written = True
            self._pause = _FIRST_PAUSE


class FileWatch:
    """Waits for writes to a file by Linux's inotify. One thread waits; any thread may end the wait.

    Raises:
        OSError: The system cannot report writes, or this process has reached a limit.
    """

    def __init__(self, path: str) -> None:
        self._path = os.fsencode(path)
        try:
            self._system: Any = ctypes.CDLL(None, use_errno=True)
            self._events: int = self._system.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        except (AttributeError, TypeError) as exc:  # inotify or the C library is missing
            raise OSError("this system reports no writes to files") from exc
        if self._events < 0:
            raise OSError(ctypes.get_errno(), "this system reports no more writes to files")
        try:
            self._end, self._end_from = os.pipe()
        except OSError:
            os.close(self._events)
            raise
        descriptors = self._events, self._end, self._end_from
        closing = weakref.finalize(self, _close, descriptors)
        # Do not close the descriptors at process exit: the waiting thread still uses them, and the
        # service, which is closed at exit, calls end(). The system frees them anyway.
        closing.atexit = False
        self.close: Callable[[], object] = closing
        """Free the descriptors; no thread may be waiting. Idempotent."""
        self._poll = select.poll()
        for descriptor in (self._events, self._end):
            self._poll.register(descriptor, select.POLLIN)

    def restart(self) -> bool:
        """Watch the file that is at the path now; return True if there is such a file.

        Writes between the last :meth:`wait` and this call are not reported.
        """
        if self._system.inotify_add_watch(self._events, self._path, _IN_MODIFY) < 0:
            return False
        with contextlib.suppress(BlockingIOError):
            while True:
                os.read(self._events, _READ_BYTES)
        return True

    def wait(self, seconds: float) -> bool:
        """Wait up to ``seconds`` seconds for a write since :meth:`restart`, or for :meth:`end`."""
        return bool(self._poll.poll(max(0.0, seconds) * 1000))

    def end(self) -> None:
        """Make the current and every later :meth:`wait` return at once."""
        os.write(self._end_from, b".")


def _close(descriptors: tuple[int, ...]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)


T = TypeVar("T")

_inherited: Final[list[sqlite3.Connection]] = []
"""Connections inherited by a fork: this process must never use, close or finalise them."""


class FileConnections(PerProcess):
    """Reads and writes of one file.

    Connections do not survive a fork. In the child, SQLite would believe that it still has the
    parent's locks, although the child has none. Another process that closes the file would then
    count as its last user, and remove the log that the child still writes. So all connections are
    closed before a fork, and the next call opens new connections.

    Raises:
        Unavailable: The file cannot be opened.
        DeclarationError: The file has another schema version, or is not of this library.
    """

    def __init__(self, path: str, busy_seconds: float, together: Together | None = None) -> None:
        self._file = DatabaseFile(path, busy_seconds)
        self.path = self._file.path
        self._readers = Readers(self._file)
        self._writer = Writer(self._file)
        self._file.on_lost = self._close_unused
        self._transactions = SharedTransactions(self._writer, busy_seconds, together)
        self._paused_by = 0
        self.rows = self._readers.rows
        self.records = self._readers.records
        self.state = self._writer.state
        self.make = self._transactions.make
        self.make_later = self._transactions.make_later
        _all[self] = None

    def write(self, action: Callable[[sqlite3.Connection], T]) -> T:
        """Run an action in a write of its own: see :meth:`SharedTransactions.make`."""
        return self.make(FunctionWrite(action))

    @property
    def is_writing(self) -> bool:
        """See :attr:`GroupCommit.is_busy`."""
        return self._transactions.is_busy

    def write_undurably(self, action: Callable[[sqlite3.Connection], T]) -> T:
        """Run an action without waiting for the disk. The caller must repeat a lost action.

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

    def transaction_of(self, connection: object) -> UserTransaction:
        """Return the transaction on the application's connection.

        Raises:
            InvalidArgument: As for :class:`UserTransaction`.
            Unavailable: The store is closed.
        """
        self._file.check()
        return UserTransaction(connection, self._file)

    def listen(self, look_seconds: float) -> CounterSubscription:
        """See :class:`CounterSubscription`."""
        return CounterSubscription(self._writer, look_seconds)

    def close(self) -> None:
        """Close idle connections now, and busy connections when their threads release them."""
        self._file.closing.set()
        self._transactions.close()
        self._writer.close()
        self._readers.close()

    @property
    def is_closed(self) -> bool:
        """True after :meth:`close`."""
        return self._file.closing.is_set()

    def _close_unused(self) -> None:
        """Close the connections that no thread uses."""
        if self._writer.pause(0):
            self._writer.resume()
        self._readers.close()

    def pause(self) -> None:
        """Close every connection before a fork, and stop threads from opening a connection."""
        seconds = self._file.busy_seconds + 1
        if not self._writer.pause(seconds):
            return
        if not self._readers.pause(seconds):
            self._writer.resume()
            return
        self._paused_by = threading.get_ident()

    def resume(self) -> None:
        """Let threads open connections again, in the parent after the fork."""
        if self._paused_by == threading.get_ident():
            self._paused_by = 0
            self._readers.resume()
            self._writer.resume()

    def _after_fork(self) -> None:
        # Threads that do not exist in the child may hold the locks, and have queued writes.
        if self._paused_by != threading.get_ident():
            self._file.give_up("the process was forked while the store was busy; open another one")
            _inherited.extend((*self._writer.abandoned(), *self._readers.abandoned()))
        self._paused_by = 0
        for part in (self._file, self._writer, self._readers):
            part.reset_after_fork()


_all: Final[weakref.WeakKeyDictionary[FileConnections, None]] = weakref.WeakKeyDictionary()


def _each(turn: Callable[[FileConnections], Any]) -> None:
    for connections in living(_all):
        turn(connections)


with contextlib.suppress(AttributeError):  # raised on platforms without fork
    os.register_at_fork(
        before=lambda: _each(FileConnections.pause),
        after_in_parent=lambda: _each(FileConnections.resume),
    )
