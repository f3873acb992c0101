"""Group commit: writes that come while others are being written go together in the next group."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Final

import psycopg
from psycopg import errors

from lro._base.errors import InvalidArgument, Unavailable
from lro.stores.postgres._connections import AGAIN, ATTEMPTS, ConnectionLost, Connections
from lro.stores.postgres._link import unavailable
from lro.stores.postgres._statements import statement_for
from lro.stores.postgres._writes import Write

LARGEST: Final = 200
"""How many records go into one group."""

LARGEST_BYTES: Final = 2_000_000
"""How long its text may be, unless a single record's is longer."""

_CULPRIT: Final = (
    psycopg.DataError,
    psycopg.IntegrityError,
    errors.ProgramLimitExceeded,
    errors.LockNotAvailable,
)
"""Errors for which one record of a group is to blame; each is then written by itself."""


class Groups:
    """Writes, each committed when :meth:`write` returns; removals not together with others.

    Nobody waits for company: who comes while less than ``at_once`` groups are under way leads one,
    with all that have been waiting; when it is committed, the first of those that came meanwhile
    leads the next.
    """

    def __init__(self, connections: Connections, at_once: int = 1) -> None:
        self._connections = connections
        self._at_once = at_once
        self._lock = threading.Lock()
        self._waiting: list[Write] = []
        self._leaders = 0

    def write(self, write: Write) -> bool:
        """Have it written; whether it was, or something there forbids it.

        Raises:
            Unavailable: The database cannot be used now; whether it was written may be unknown.
            InvalidArgument: The database does not take such a record.
        """
        write.turn.acquire()
        with self._lock:
            self._waiting.append(write)
            write.leads = self._leaders < self._at_once
            self._leaders += write.leads
        try:
            if not write.leads:
                write.turn.acquire()  # until it is written, or to lead
            while not write.over:
                self._write_group(write)
        finally:
            self._leave(write)
        if write.error is not None:
            raise write.error
        return write.applied

    def _leave(self, write: Write) -> None:
        with self._lock:
            if not write.over and write in self._waiting:  # interrupted, by Ctrl-C
                self._waiting.remove(write)
            if not write.leads:
                return
            write.leads = False
            following = next((one for one in self._waiting if not one.leads), None)
            if following is None:
                self._leaders -= 1
            else:
                following.leads = True
                following.turn.release()

    def _write_group(self, mine: Write) -> None:
        with self._lock:
            group = self._gather(mine)
        unknown = Unavailable("the write was interrupted; whether it was made is not known")
        for write in group:
            write.error = unknown
        try:
            self._send(group)
        finally:
            for write in group:
                write.over = True
            if mine.over:
                self._leave(mine)  # the next group first: the server need not wait for it
            for write in group:
                if write is not mine:
                    write.turn.release()

    def _gather(self, mine: Write) -> list[Write]:
        group: list[Write] = []
        left: list[Write] = []
        touched: set[str] = set()
        room = LARGEST_BYTES
        for write in self._waiting:
            full = len(group) == LARGEST or (group and len(write.text) > room)
            others = write.leads and write is not mine  # its own thread is about to see to it
            if full or others or not touched.isdisjoint(write.touches):
                left.append(write)
                continue
            group.append(write)
            touched.update(write.touches)
            room -= len(write.text)
        self._waiting = left
        group.sort(key=lambda write: write.order)
        return group

    def _send(self, group: Sequence[Write]) -> None:
        text = (b"[" + b",".join([write.text for write in group]) + b"]").decode()
        sql = statement_for({write.kind for write in group})
        cause: BaseException | None = None
        for _ in range(ATTEMPTS):
            try:
                with self._connections.link() as link:
                    rows = link.execute(sql, (text,)).fetchall()
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

    def _blame(self, group: Sequence[Write], cause: psycopg.Error) -> None:
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


def _fail(group: Sequence[Write], error: Unavailable) -> None:
    for write in group:
        write.error = Unavailable(*error.args)
        write.error.__cause__ = error.__cause__
