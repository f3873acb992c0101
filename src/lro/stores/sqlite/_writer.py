"""The only connection that writes, and how it shares the write lock with other processes."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
import time
from typing import Any, Final

from lro._base.errors import DeclarationError, Unavailable
from lro.stores.sqlite._file import DATABASE_ERRORS, DatabaseFile, is_busy, translate_error
from lro.stores.sqlite._statements import prepare

fcntl: Any
try:
    import fcntl
except ImportError:  # Windows has no fcntl: there, processes share the writes less fairly
    fcntl = None

_COURTESY_SECONDS: Final = 0.1
"""Seconds to wait for the fair lock, whose owner may be suspended, or wait for another program."""
_WITHOUT_SECONDS: Final = 1.0
"""Seconds during which this process writes without the fair lock after such a wait."""


class FairLock:
    """The right to take SQLite's lock next; all processes on a file share one fair lock.

    SQLite's own lock goes to the first process that asks while the lock is free: usually the
    process that has just released it. With the fair lock, a process cannot write again while
    another process waits. Only SQLite's own lock protects the file; the fair lock does not.
    """

    def __init__(self, path: str) -> None:
        self._path = path + "-turn"
        self._file: int | None = None
        self._held = False
        self._asked_at: float | None = None
        self._without_until = 0.0

    def take(self, now: float) -> bool:
        """Try to take the fair lock; return True if the caller may write, with or without it.

        ``now`` is the time by :func:`time.monotonic`.
        """
        if self._held or now < self._without_until or self._lock():
            return True
        if self._asked_at is None:
            self._asked_at = now
        if now - self._asked_at < _COURTESY_SECONDS:
            return False
        self._without_until = now + _WITHOUT_SECONDS
        return True

    def release(self) -> None:
        """Release the fair lock, or stop waiting for it."""
        self._asked_at = None
        if self._held and self._file is not None:
            self._held = False
            with contextlib.suppress(OSError):
                fcntl.flock(self._file, fcntl.LOCK_UN)

    def close(self) -> None:
        """Close the lock's file."""
        self._held = False
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _lock(self) -> bool:
        if fcntl is None:
            return True
        try:
            if self._file is None:
                self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._held = True
        except BlockingIOError:
            return False
        except OSError:  # the lock file cannot be created or locked on this system
            pass
        return True


_FIRST_PAUSE: Final = 0.0001
_SHORT_PAUSE: Final = 0.001
_LONGEST_PAUSE: Final = 0.005
_SOON_SECONDS: Final = 0.1
"""Pauses between attempts to get the lock; they stay short for the first ``_SOON_SECONDS``."""

_LOG_BYTES: Final = 16 * 1024 * 1024
"""Log size in bytes above which the writer waits for readers and restarts the log.

It is 4 times the size at which SQLite itself tries to restart the log.
"""
_LOG_ROUND: Final = 64
"""Number of transactions between two checks of the log's length."""
_READERS_MS: Final = 250
_REST_SECONDS: Final = 5.0

Commits = tuple[int, int]
"""The number of times that the connection was opened, and of commits by other connections since."""


class Writer:
    """Writes to the file, durably, for one thread at a time.

    A thread calls :meth:`begin`, may commit, and calls :meth:`end`.

    Raises:
        Unavailable: The file cannot be opened.
        DeclarationError: The file has another schema version, or is not of this library.
    """

    def __init__(self, file: DatabaseFile) -> None:
        self._file = file
        self.log_path: str = file.path + "-wal"
        self._connection: sqlite3.Connection | None = None
        self._openings = 0
        self._commits: Commits = (0, 0)
        self._fair_lock = FairLock(file.path)
        self._ended = 0
        self._durable: bool | None = True
        self._rest_until = 0.0
        self._listened = False
        self.reset_after_fork()
        try:
            self._opened()
        except sqlite3.OperationalError as exc:
            raise file.opening_error(exc) from exc
        except sqlite3.DatabaseError as exc:
            raise DeclarationError(file.path, f"is not a SQLite database: {exc}") from exc

    def reset_after_fork(self) -> None:
        """Replace the locks and events that the threads of the parent share."""
        self._lock = threading.Lock()

    def begin(self, until: float, *, durable: bool = True) -> sqlite3.Connection:
        """Begin a transaction as soon as no other connection writes; return the connection.

        ``until`` is the time limit, by :func:`time.monotonic`. A transaction that is not
        ``durable`` reaches the disk with the next durable transaction, and may be lost until then.

        Raises:
            Unavailable: The store is closed, the file is missing, or other processes write for too
                long.
        """
        if not self._lock.acquire(timeout=max(0.0, until - time.monotonic())):
            raise Unavailable("the operations database cannot be used now (others write)")
        try:
            connection = self._locked(until, durable=durable)
            if self._listened:
                self._count(connection)
            return connection
        except BaseException as exc:
            self._undo()  # a signal may have interrupted this thread after the BEGIN
            self._release()
            if isinstance(exc, DATABASE_ERRORS):
                raise translate_error(exc) from exc
            raise

    def begin_again(self, until: float) -> sqlite3.Connection:
        """Roll back, and begin another transaction.

        Raises:
            Unavailable, sqlite3.Error: As for :meth:`begin`.
        """
        self._undo()
        return self._locked(until)

    @property
    def in_transaction(self) -> bool:
        """True if a transaction is open."""
        return self._connection is not None and self._connection.in_transaction

    def end(self) -> None:
        """Roll back an open transaction, and let another thread or process write."""
        try:
            self._undo()
            self._ended += 1
            if self._ended % _LOG_ROUND == 0:
                self._cut_log()
        finally:
            self._release()

    def commits_by_others(self) -> Commits:
        """Return a value that changes when another connection may have committed.

        During a transaction of this connection, the value stays as it was when the transaction
        began.

        Raises:
            Unavailable: The store is closed, or the file cannot be read.
        """
        self._listened = True
        self._refresh_commits()
        return self._commits

    def state(self) -> tuple[Commits, int] | None:
        """Return a value that stays the same until any connection commits; None if unknown.

        Raises:
            Unavailable: The store is closed, or the file cannot be read.
        """
        return (self._commits, self._ended) if self._refresh_commits() else None

    def close(self) -> None:
        """Close the connection when the last transaction has ended.

        The wait is bounded, because the call may come from a signal handler that has interrupted
        the transaction in the same thread. Such a transaction ends with the process.
        """
        if self.pause(2 * self._file.busy_seconds + 1):
            self.resume()

    def pause(self, seconds: float) -> bool:
        """Close the connection and let no thread write until :meth:`resume`.

        Returns:
            True if that was done within ``seconds`` seconds.
        """
        if not self._lock.acquire(timeout=seconds):
            return False
        self._close()
        return True

    def resume(self) -> None:
        """Let threads write again."""
        self._lock.release()

    def abandoned(self) -> list[sqlite3.Connection]:
        """Give up the connection, if it is open; it must never be used or closed again."""
        connection, self._connection = self._connection, None
        return [] if connection is None else [connection]

    def _release(self) -> None:
        """Let another thread or process write; first close a connection that is unusable."""
        if self._file.unusable:
            self._close()
        self._lock.release()

    def _undo(self) -> None:
        connection = self._connection
        if connection is not None and connection.in_transaction:
            try:
                connection.execute("ROLLBACK")
            except sqlite3.Error:  # the next transaction begins on a new connection
                self._close()

    def _cut_log(self) -> None:
        """Restart the log from its beginning if it has grown long.

        SQLite itself restarts the log only while nobody reads. With many readers, there may be no
        such moment, and the log would grow without limit.
        """
        now = time.monotonic()
        connection = self._connection
        if connection is None or now < self._rest_until or self._log_bytes() < _LOG_BYTES:
            return
        try:
            connection.execute(f"PRAGMA busy_timeout = {_READERS_MS}")
            try:
                (stuck, _, _) = connection.execute("PRAGMA wal_checkpoint(RESTART)").fetchone()
            finally:
                connection.execute("PRAGMA busy_timeout = 0")
        except sqlite3.Error:  # commits are safe in the log, even if the log stays long
            stuck = True
        if stuck:
            self._rest_until = now + _REST_SECONDS

    def _log_bytes(self) -> int:
        try:
            return os.path.getsize(self.log_path)
        except OSError:
            return 0

    def _close(self) -> None:
        if self._connection is not None:
            self._file.log_closing()
            self._connection.close()
            self._connection = None
        self._fair_lock.close()

    def _locked(self, until: float, *, durable: bool = True) -> sqlite3.Connection:
        pause, now = _FIRST_PAUSE, time.monotonic()
        soon = now + _SOON_SECONDS
        try:
            while True:
                self._file.check()
                self._file.check_in_place()
                if self._fair_lock.take(now) or now >= until:
                    connection = self._opened()
                    if durable is not self._durable:
                        kind = "FULL" if durable else "NORMAL"
                        self._durable = None  # the mode is unknown until the statement has ended
                        connection.execute(f"PRAGMA synchronous = {kind}")
                        self._durable = durable
                    if self._has_begun(connection, last=now >= until):
                        return connection
                # SQLite's own wait would continue after close(), and be less fair.
                self._file.closing.wait(pause)
                now = time.monotonic()
                pause = min(1.5 * pause, _LONGEST_PAUSE if now >= soon else _SHORT_PAUSE)
        finally:
            self._fair_lock.release()

    def _has_begun(self, connection: sqlite3.Connection, *, last: bool) -> bool:
        try:
            connection.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError as exc:
            if last or not is_busy(exc):
                raise
            return False
        return True

    def _opened(self) -> sqlite3.Connection:
        if self._connection is None:
            until = time.monotonic() + self._file.busy_seconds
            connection = self._file.open()
            try:
                prepare(connection, self._file.path, until)
                connection.execute("PRAGMA synchronous = FULL")
                connection.execute(f"PRAGMA journal_size_limit = {_LOG_BYTES // 2}")
                connection.execute("PRAGMA busy_timeout = 0")
                self._file.log_opened()
            except BaseException:
                connection.close()
                raise
            self._connection = connection
            self._durable = True
            self._openings += 1
        return self._connection

    def _refresh_commits(self) -> bool:
        """Read the count of other connections' commits, unless this connection is writing."""
        self._file.check()
        if not self._lock.acquire(blocking=False):
            return False
        try:
            self._file.check_in_place()
            self._count(self._opened())
            return True
        except sqlite3.Error as exc:
            if is_busy(exc):
                return False
            raise translate_error(exc) from exc
        finally:
            self._release()

    def _count(self, connection: sqlite3.Connection) -> None:
        (commits,) = connection.execute("PRAGMA data_version").fetchone()
        self._commits = self._openings, commits
