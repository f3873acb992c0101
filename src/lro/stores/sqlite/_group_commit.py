"""Writes that arrive during a commit share the next transaction, and its one sync to disk."""

from __future__ import annotations

import sqlite3
import threading
import time
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, TypeAlias, TypeVar

from lro._base.errors import LroError
from lro._engine.store_port import Done, settle
from lro.stores._group_commit import GroupCommit, QueuedWrite
from lro.stores.sqlite._file import DATABASE_ERRORS, translate_error
from lro.stores.sqlite._statements import CHANGE_NOTHING
from lro.stores.sqlite._writer import Writer

T = TypeVar("T")


class ActionWrite(QueuedWrite, Generic[T]):
    """Write of one caller, who gets the result of :meth:`committed`."""

    until: float
    """Time, by :func:`time.monotonic`, at which the caller stops waiting for locks."""
    done: Done[T] | None = None
    answer: Any
    """The result of :meth:`apply`."""

    @abstractmethod
    def apply(self, writer: sqlite3.Connection) -> Any:
        """Write, in a transaction that may be rolled back."""

    def committed(self, answer: Any) -> T:
        """Convert the result of :meth:`apply`, after the commit, into the value for the caller."""
        value: T = answer
        return value

    def call_back(self) -> None:
        """Call ``done`` once, and drop it, because ``done`` may refer to this write."""
        done, self.done = self.done, None
        assert done is not None  # every write that was handed in has ``done``
        settle(self.result, done)

    def result(self) -> T:
        """Return the value for the caller, after the end of the group."""
        error = self.error
        if error is None:
            return self.committed(self.answer)
        if isinstance(error, DATABASE_ERRORS):
            raise translate_error(error) from error
        raise error.error if isinstance(error, Unrelated) else error


class FunctionWrite(ActionWrite[T]):
    """Write by a function."""

    def __init__(self, function: Callable[[sqlite3.Connection], T]) -> None:
        self._function = function

    def apply(self, writer: sqlite3.Connection) -> T:
        """Call the function."""
        return self._function(writer)


Together: TypeAlias = Callable[[sqlite3.Connection, Sequence[Any]], Mapping[int, Any]]
"""Makes some of the given writes in few statements; returns the results by the write's index.

The writes without a result are then made one by one, so none of their changes may be left. The
function raises :class:`HalfDone` if it has made such a change and cannot undo it.
"""


class Unrelated(Exception):
    """Wraps an error of the application whose class is one of the database's errors."""

    def __init__(self, error: Exception) -> None:
        super().__init__(error)
        self.error = error


class HalfDone(Exception):
    """A write failed after it had changed something. Only its own changes must be undone."""


class Outdated(HalfDone):
    """Some cached records were outdated, and are not cached any more. Make the group again."""


class SharedTransactions(GroupCommit[ActionWrite[Any]]):
    """Makes writes in shared transactions of one connection, each write as if it were alone.

    One thread, the leader, waits for the connection. Then the leader makes the writes of all
    threads that wait by then, and commits.
    """

    _doubted = False
    """True if the last commit failed. Then even a transaction without changes must write.

    Otherwise the transaction would be committed even on a full disk.
    """

    def __init__(
        self, writer: Writer, busy_seconds: float, together: Together | None = None
    ) -> None:
        super().__init__()
        self._leader = 0
        self._committing = False
        self._writer = writer
        self._busy_seconds = busy_seconds
        self._together = together

    def make(self, write: ActionWrite[T]) -> T:
        """Make a write, and return its result once it is on disk.

        The write may be applied more than once. If that raises an error, the changes are undone,
        and this method raises the error.

        Raises:
            Unavailable: The store is closed; other processes write for too long; or the commit
                failed, so that the write may or may not be on disk.
            InvalidArgument: A value is a text that no database can store.
        """
        if self._leader == threading.get_ident():
            raise RuntimeError("a change must have no effects: it called the store that applies it")
        write.until = time.monotonic() + self._busy_seconds
        self._submit(write)
        return write.result()

    def make_later(self, write: ActionWrite[T], done: Done[T]) -> None:
        """Make a write as :meth:`make` does, and call ``done`` with the result or the error."""
        write.until, write.done = time.monotonic() + self._busy_seconds, done
        self.hand_in(write)

    def _lead(self, leader: ActionWrite[Any]) -> None:
        connection = self._writer.begin(leader.until)
        try:
            self._leader, self._committing = threading.get_ident(), False
            self._write(self._take(), connection, leader.until)
            self._made = True
        except BaseException:  # only this thread was interrupted, not other callers
            self._made = self._committing and not self._writer.in_transaction
            raise
        finally:
            self._leader = 0
            self._writer.end()

    def _write(
        self, group: Sequence[ActionWrite[Any]], connection: sqlite3.Connection, until: float
    ) -> None:
        """Make the writes of a group and commit; then every write has its result or error."""
        try:
            try:
                try:
                    self._apply(group, connection)
                except Outdated:
                    connection = self._writer.begin_again(until)
                    self._apply(group, connection)
            except HalfDone:
                connection = self._writer.begin_again(until)
                for write in group:
                    _run_apart(write, connection)
            if any(write.error is None for write in group):
                if self._doubted:
                    connection.execute(CHANGE_NOTHING)
                self._committing = self._doubted = True
                connection.execute("COMMIT")
                self._doubted = False
        except (sqlite3.Error, LroError) as exc:
            for write in group:
                write.error = write.error or exc

    def _apply(self, group: Sequence[ActionWrite[Any]], connection: sqlite3.Connection) -> None:
        for write in self._left(group, connection):
            _run(write, connection, alone=len(group) == 1)

    def _left(
        self, group: Sequence[ActionWrite[Any]], connection: sqlite3.Connection
    ) -> Sequence[ActionWrite[Any]]:
        """Make the writes that can be combined in few statements; return the other writes."""
        if self._together is None or len(group) == 1:
            return group
        answers = self._together(connection, group)
        for place, answer in answers.items():
            group[place].answer, group[place].error = answer, None
        return [write for place, write in enumerate(group) if place not in answers]


def _run(write: ActionWrite[Any], connection: sqlite3.Connection, *, alone: bool) -> None:
    """Apply a write without a savepoint, which would take as long as the write itself.

    Most writes that fail have not changed anything before.

    Raises:
        HalfDone: The write failed after it had changed something, and is not alone in its group.
    """
    before = connection.total_changes
    write.error = None
    try:
        write.answer = write.apply(connection)
    except KeyboardInterrupt:  # the signal is for this thread, not the write's caller
        raise
    except BaseException as exc:
        write.error = exc
        if not alone and (connection.total_changes != before or not connection.in_transaction):
            raise HalfDone from exc


def _run_apart(write: ActionWrite[Any], connection: sqlite3.Connection) -> None:
    """Apply a write in a savepoint, so that its changes can be undone."""
    connection.execute("SAVEPOINT action")
    write.error = None
    try:
        write.answer = write.apply(connection)
    except KeyboardInterrupt:
        raise
    except BaseException as exc:
        write.error = exc
        connection.execute("ROLLBACK TO action")
    connection.execute("RELEASE action")
