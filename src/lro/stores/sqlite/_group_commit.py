"""Writes that arrive during a commit share the next transaction, and its one sync to disk."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, TypeAlias, TypeVar

import attrs

from lro._base.errors import LroError
from lro._engine.store_port import Done, settle
from lro.stores._group_commit import GroupCommit, QueuedWrite
from lro.stores.sqlite._file import DATABASE_ERRORS, translate_error
from lro.stores.sqlite._statements import CHANGE_NOTHING
from lro.stores.sqlite._writer import Writer

T = TypeVar("T")


@attrs.define(eq=False, kw_only=True)
class ActionWrite(QueuedWrite, Generic[T]):
    """Write of one caller, and its result."""

    action: Callable[[sqlite3.Connection], T]
    until: float
    """Time, by :func:`time.monotonic`, at which the caller stops waiting for locks."""
    committed: Callable[[T], Any] | None = None
    """Converts the action's result, after the commit, into the value for the caller."""
    done: Done[Any] | None = None
    answer: T = attrs.field(init=False)

    def call_back(self) -> None:
        """Call ``done`` once, and drop it, because ``done`` may refer to this write."""
        done, self.done = self.done, None
        assert done is not None  # every write that was handed in has ``done``
        settle(self.result, done)

    def result(self) -> Any:
        """Return the value for the caller, after the end of the group."""
        error = self.error
        if error is None:
            return self.answer if self.committed is None else self.committed(self.answer)
        if isinstance(error, DATABASE_ERRORS):
            raise translate_error(error) from error
        raise error.error if isinstance(error, Unrelated) else error


Together: TypeAlias = Callable[[sqlite3.Connection, Sequence[Any]], Mapping[int, Any]]
"""Runs some of the given actions in few statements; returns the results by the action's index.

The actions without a result are then run one by one, so no write of such an action may be left. The
function raises :class:`HalfDone` if it has made such a write and cannot undo it.
"""


class Unrelated(Exception):
    """Wraps an error of the application whose class is one of the database's errors."""

    def __init__(self, error: Exception) -> None:
        super().__init__(error)
        self.error = error


class HalfDone(Exception):
    """An action failed after it had written. Only the writes of this action must be undone."""


class SharedTransactions(GroupCommit[ActionWrite[Any]]):
    """Runs actions in shared transactions of one connection, each action as if it were alone.

    One thread, the leader, waits for the connection. Then the leader runs the actions of all
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

    def run(self, action: Callable[[sqlite3.Connection], T]) -> T:
        """Run an action, and return its result once its writes are on disk.

        The action may run more than once. If the action raises an error, its writes are undone, and
        this method raises the error.

        Raises:
            Unavailable: The store is closed; other processes write for too long; or the commit
                failed, so that the write may or may not be on disk.
            InvalidArgument: A value is a text that no database can store.
        """
        if self._leader == threading.get_ident():
            raise RuntimeError("a change must have no effects: it called the store that applies it")
        write = ActionWrite(action=action, until=time.monotonic() + self._busy_seconds)
        self._submit(write)
        answer: T = write.result()
        return answer

    def run_later(
        self,
        action: Callable[[sqlite3.Connection], T],
        done: Done[Any],
        committed: Callable[[T], Any] | None = None,
    ) -> None:
        """Run an action as :meth:`run` does, and call ``done`` with the result or the error.

        ``committed`` is called once, after the commit, to convert the action's result.
        """
        until = time.monotonic() + self._busy_seconds
        self.hand_in(ActionWrite(action=action, until=until, committed=committed, done=done))

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
        """Run the actions of a group and commit; then every write has its result or error."""
        try:
            try:
                for write in self._left(group, connection):
                    _run(write, connection, alone=len(group) == 1)
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

    def _left(
        self, group: Sequence[ActionWrite[Any]], connection: sqlite3.Connection
    ) -> Sequence[ActionWrite[Any]]:
        """Run the writes that can be combined in few statements; return the other writes."""
        if self._together is None or len(group) == 1:
            return group
        answers = self._together(connection, [write.action for write in group])
        for place, answer in answers.items():
            group[place].answer, group[place].error = answer, None
        return [write for place, write in enumerate(group) if place not in answers]


def _run(write: ActionWrite[Any], connection: sqlite3.Connection, *, alone: bool) -> None:
    """Run an action without a savepoint, which would take as long as the action itself.

    Most actions that fail have not written anything before.

    Raises:
        HalfDone: The action failed after it had written, and is not alone in its group.
    """
    before = connection.total_changes
    write.error = None
    try:
        write.answer = write.action(connection)
    except KeyboardInterrupt:  # the signal is for this thread, not the action's caller
        raise
    except BaseException as exc:
        write.error = exc
        if not alone and (connection.total_changes != before or not connection.in_transaction):
            raise HalfDone from exc


def _run_apart(write: ActionWrite[Any], connection: sqlite3.Connection) -> None:
    """Run an action in a savepoint, so that its writes can be undone."""
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
