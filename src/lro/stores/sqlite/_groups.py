"""Writes that come while one is under way share the next transaction, and its one sync to disk."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Final, Generic, TypeVar

from lro._base.errors import LroError
from lro.stores.sqlite._told import DATABASE_ERRORS, translate_error
from lro.stores.sqlite._writer import Writer

T = TypeVar("T")

_RELEASED_AT_ONCE: Final = 2


class _Write(Generic[T]):
    """What one caller wants written, and what became of it."""

    __slots__ = ("action", "answer", "error", "gate", "gone", "leads", "rest", "until")

    answer: T

    def __init__(self, action: Callable[[sqlite3.Connection], T], until: float) -> None:
        self.action = action
        self.until = until
        self.leads = False
        self.error: BaseException | None = None
        self.gate: threading.Lock | None = None
        """Closed while the caller's thread waits."""
        self.gone = False
        """Whether that thread was interrupted, and waits no more."""
        self.rest: list[_Write[Any]] = []
        """Those of its group whose gates are still closed, once all of them are done."""


class Unrelated(Exception):
    """Raised by an action in place of an error that is not of the database, but looks like it."""

    def __init__(self, error: Exception) -> None:
        super().__init__(error)
        self.error = error


class _HalfDone(Exception):
    """An action failed after it had written: what it wrote is to be undone, and nothing else."""


class GroupCommit:
    """Runs actions in transactions of one connection, each as if it were alone.

    The first one that waits leads: when the connection is free, its thread runs the actions of all
    who wait by then, and commits. So a lone write waits for nobody, and there is no other thread.
    """

    def __init__(self, writer: Writer, busy_seconds: float) -> None:
        self._writer = writer
        self._busy_seconds = busy_seconds
        self.renew()

    def renew(self) -> None:
        """Make what threads share anew, in a forked child."""
        self._lock = threading.Lock()
        self._waiting: list[_Write[Any]] = []
        self._led = False
        self._leader = 0
        self._committing = False

    def run(self, action: Callable[[sqlite3.Connection], T]) -> T:
        """What an action gives, once what it wrote is on disk. It may run more than once.

        What it raises is raised here, and what it wrote is undone.

        Raises:
            Unavailable: The store is closed, others write for too long, or the commit failed:
                then nobody knows whether it will be found done.
            InvalidArgument: A value is a text that no database can keep.
        """
        if self._leader == threading.get_ident():
            raise RuntimeError("a change must have no effects: it called the store that applies it")
        write = _Write(action, time.monotonic() + self._busy_seconds)
        with self._lock:
            self._waiting.append(write)
            if self._led:
                write.gate = threading.Lock()
                write.gate.acquire()
            else:
                self._led = write.leads = True
        if write.gate is not None:
            self._follow(write, write.gate)
        if write.leads:
            self._lead(write)
        error = write.error
        if error is None:
            return write.answer
        if isinstance(error, DATABASE_ERRORS):
            raise translate_error(error) from error
        raise error.error if isinstance(error, Unrelated) else error

    def _follow(self, write: _Write[Any], gate: threading.Lock) -> None:
        """Wait until a leader has done this write, or left it to this thread to lead."""
        try:
            gate.acquire()
        except BaseException:  # this thread was interrupted
            self._leave(write)
            raise
        finally:
            self._release(write.rest)

    def _lead(self, leader: _Write[Any]) -> None:
        try:
            connection = self._writer.begin(leader.until)
        except BaseException:
            self._leave(leader)
            raise
        woken: Sequence[_Write[Any]] = ()
        try:
            self._leader, self._committing = threading.get_ident(), False
            with self._lock:
                woken, self._waiting, self._led = self._waiting, [], False
            self._write(woken, connection, leader.until)
        except BaseException:  # this thread was interrupted, which concerns nobody else
            if not self._committing or self._writer.in_transaction:
                self._put_back(leader, woken)
                woken = ()
            raise
        finally:
            self._leader = 0
            try:
                self._writer.end()
            finally:
                rest = [write for write in reversed(woken) if write is not leader]
                for write in rest:
                    write.rest = rest
                self._release(rest)

    def _release(self, rest: list[_Write[Any]]) -> None:
        """Let a few of these callers go on; each of them lets a few others.

        Were all let go at once, they would be in the way of the next leader, and of each other.
        """
        if not rest:
            return
        with self._lock:
            released = 0
            while rest and released < _RELEASED_AT_ONCE:
                write = rest.pop()
                if write.gate is not None and not write.gone:
                    write.gate.release()
                    released += 1

    def _leave(self, write: _Write[Any]) -> None:
        """Wait no longer; if this one was to lead, the next one does."""
        with self._lock:
            write.gone = True
            if write in self._waiting:
                self._waiting.remove(write)
            if write.leads:
                self._led = False
                self._promote()

    def _put_back(self, leader: _Write[Any], group: Sequence[_Write[Any]]) -> None:
        with self._lock:
            self._waiting[:0] = [write for write in group if write is not leader]
            self._promote()

    def _promote(self) -> None:
        """Let the first one that waits lead, if nobody does. The lock is held."""
        if self._waiting and not self._led:
            self._led = self._waiting[0].leads = True
            gate = self._waiting[0].gate
            assert gate is not None  # it came when somebody led
            gate.release()

    def _write(
        self, group: Sequence[_Write[Any]], connection: sqlite3.Connection, until: float
    ) -> None:
        """Run the actions of a group and commit; every one has its answer or error then."""
        try:
            try:
                for write in group:
                    _run(write, connection, alone=len(group) == 1)
            except _HalfDone:
                connection = self._writer.begin_again(until)
                for write in group:
                    _run_apart(write, connection)
            if any(write.error is None for write in group):
                self._committing = True
                connection.execute("COMMIT")
        except (sqlite3.Error, LroError) as exc:
            for write in group:
                write.error = write.error or exc


def _run(write: _Write[Any], connection: sqlite3.Connection, *, alone: bool) -> None:
    """Run an action without a savepoint, which would take as long as the action itself.

    Most of those that fail do so before they have written anything.

    Raises:
        _HalfDone: This one did not, and is not alone.
    """
    before = connection.total_changes
    write.error = None
    try:
        write.answer = write.action(connection)
    except KeyboardInterrupt:  # meant for this thread, whoever the action belongs to
        raise
    except BaseException as exc:
        write.error = exc
        if not alone and (connection.total_changes != before or not connection.in_transaction):
            raise _HalfDone from exc


def _run_apart(write: _Write[Any], connection: sqlite3.Connection) -> None:
    """Run an action so that what it wrote can be undone."""
    connection.execute("SAVEPOINT action")
    write.error = None
    try:
        write.answer = write.action(connection)
    except KeyboardInterrupt:
        raise
    except BaseException as exc:
        write.error = exc
        connection.execute("ROLLBACK TO action")
    connection.execute("RELEASE action")
