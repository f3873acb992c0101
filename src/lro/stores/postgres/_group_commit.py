"""Writes that come while others are being written go together in the next statement."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Final

import psycopg
from psycopg import errors

from lro._base.errors import InvalidArgument, Unavailable
from lro.stores._group_commit import GroupCommit
from lro.stores.postgres._connection import unavailable
from lro.stores.postgres._connections import AGAIN, ATTEMPTS, ConnectionLost, ConnectionPool
from lro.stores.postgres._statements import statement_for
from lro.stores.postgres._writes import RecordWrite

MAX_GROUP_WRITES: Final = 200

MAX_GROUP_BYTES: Final = 2_000_000
"""How long the text of a group may be, unless a single record's is longer."""

_CULPRIT: Final = (
    psycopg.DataError,
    psycopg.IntegrityError,
    errors.ProgramLimitExceeded,
    errors.LockNotAvailable,
)
"""Errors for which one record of a group is to blame; each is then written by itself."""


class GroupWriter(GroupCommit[RecordWrite]):
    """Writes records, each committed when :meth:`write` returns, one statement for each group.

    Removals have a statement, and so a writer, of their own.
    """

    def __init__(self, connections: ConnectionPool) -> None:
        super().__init__()
        self._connections = connections

    def write(self, write: RecordWrite) -> bool:
        """Have a record written; return whether it was, or the stored state forbids it.

        Raises:
            Unavailable: The database cannot be used now; whether it was written may be unknown.
            InvalidArgument: The database does not take such a record.
        """
        self._submit(write)
        if write.error is not None:
            raise write.error
        return write.applied

    def _lead(self, leader: RecordWrite) -> None:  # noqa: ARG002
        group = self._take()
        unknown = Unavailable("the write was interrupted; whether it was made is not known")
        for write in group:
            write.error = unknown
            write.over = True
        self._send(group)

    def _choose(self, waiting: list[RecordWrite]) -> tuple[list[RecordWrite], list[RecordWrite]]:
        group: list[RecordWrite] = []
        left: list[RecordWrite] = []
        touched: set[str] = set()
        room = MAX_GROUP_BYTES
        for write in waiting:
            full = len(group) == MAX_GROUP_WRITES or (group and len(write.text) > room)
            if full or not touched.isdisjoint(write.touches):
                left.append(write)
                continue
            group.append(write)
            touched.update(write.touches)
            room -= len(write.text)
        group.sort(key=lambda write: write.order)
        return group, left

    def _send(self, group: Sequence[RecordWrite]) -> None:
        text = (b"[" + b",".join([write.text for write in group]) + b"]").decode()
        sql = statement_for({write.kind for write in group})
        cause: BaseException | None = None
        for _ in range(ATTEMPTS):
            try:
                with self._connections.borrow() as connection:
                    rows = connection.execute(sql, (text,)).fetchall()
            except AGAIN as exc:
                cause = exc
            except ConnectionLost as exc:
                cause = exc.__cause__
                for write in group:
                    write.doubtful = True
            except _CULPRIT as exc:
                self._blame(group, exc)
                return
            except psycopg.Error as exc:
                _fail(group, self._connections.refused(exc))
                return
            except Unavailable as exc:
                _fail(group, exc)
                return
            else:
                names = {name for (name,) in rows}
                for write in group:
                    write.applied, write.error = write.name in names, None
                return
        assert cause is not None
        _fail(group, unavailable(cause))

    def _blame(self, group: Sequence[RecordWrite], cause: psycopg.Error) -> None:
        if len(group) == 1:
            (culprit,) = group
            if isinstance(cause, errors.UniqueViolation):
                culprit.error = None  # not applied: somebody was quicker
            elif isinstance(cause, psycopg.OperationalError):
                culprit.error = unavailable(cause)
            else:
                kind = type(cause).__name__
                text = f"the record {culprit.name!r} cannot be kept by the database ({kind})"
                culprit.error = InvalidArgument("", text)
            return
        end = time.monotonic() + self._connections.address.statement_seconds
        for write in group:
            if time.monotonic() < end:
                self._send([write])
            else:
                _fail([write], unavailable(cause))


def _fail(group: Sequence[RecordWrite], error: Unavailable) -> None:
    for write in group:
        write.error = Unavailable(*error.args)
        write.error.__cause__ = error.__cause__
