"""A journal on disk of the operations that were started and not collected."""

from __future__ import annotations

import atexit
import collections
import contextlib
import os
import sqlite3
import threading
import time
import weakref
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

import attrs

from lro_client._errors import ClientError
from lro_client._tokens import public_address
from lro_client._tracing import log

VERSION: Final = 1
APPLICATION_ID: Final = 0x6C726F6A
"""What SQLite notes in the header of a journal: ``lroj``."""

MAX_WAIT_SECONDS: Final = 30.0
"""Maximum wait for another process that is writing."""

MAX_LATE_WRITE_SECONDS: Final = 1.0
"""Maximum wait for others by a write that may as well be made later."""

_MAX_BUSY_SECONDS: Final = 2e6  # what SQLite's milliseconds have room for

_SENTENCES: Final = {
    sqlite3.SQLITE_NOTADB: "it is not a journal, but some other file",
    sqlite3.SQLITE_CORRUPT: "the file is damaged",
    sqlite3.SQLITE_CANTOPEN: "it cannot be opened or made",
    sqlite3.SQLITE_READONLY: "it cannot be written to",
    sqlite3.SQLITE_FULL: "the disk is full",
    sqlite3.SQLITE_BUSY: "other processes did not let go of it in time",
    sqlite3.SQLITE_IOERR: "the disk failed",
}


_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_TICK: Final = timedelta(microseconds=1)


def _in_utc(_: object, field: attrs.Attribute[datetime], value: datetime) -> None:
    if value.utcoffset() is None or value.utcoffset():
        raise ValueError(f"{field.name} must be in UTC, got {value!r}")


def _some(_: object, field: attrs.Attribute[str], value: str) -> None:
    if not value:
        raise ValueError(f"{field.name} must not be empty")


def _lower(request_id: str) -> str:
    return request_id.lower()  # ids are compared without regard to case (spec §9.2(1))


@attrs.frozen(kw_only=True)
class Entry:
    """A start that was sent, or was about to be, and whose result was not taken yet.

    ``message`` is the JSON text that was sent to ``target`` of ``server``, ``message_type`` its
    type URL (empty for a class without a full name), ``response`` and ``metadata`` are what tokens
    call their classes. ``name`` is the operation's, empty as long as no answer came; ``started``
    is in UTC.
    """

    request_id: str = attrs.field(validator=_some, converter=_lower)
    server: str = attrs.field(default="", converter=public_address)
    target: str
    message: str
    message_type: str = ""
    response: str = ""
    metadata: str = ""
    name: str = ""
    started: datetime = attrs.field(validator=_in_utc)

    @property
    def start(self) -> tuple[str, ...]:
        """What makes two starts with one request id the same (spec §9.2(3))."""
        return self.server, self.target, self.message, self.message_type


_FIELDS: Final = tuple(field.name for field in attrs.fields(Entry))
_COLUMNS: Final = ", ".join(_FIELDS)

_TABLE: Final = (
    """
    CREATE TABLE entries (
        number INTEGER PRIMARY KEY AUTOINCREMENT,
        request_id TEXT NOT NULL UNIQUE,
        server TEXT NOT NULL,
        target TEXT NOT NULL,
        message TEXT NOT NULL,
        message_type TEXT NOT NULL,
        response TEXT NOT NULL,
        metadata TEXT NOT NULL,
        name TEXT NOT NULL,
        started INTEGER NOT NULL
    )
    """,
    "CREATE INDEX entries_by_name ON entries (name)",
)
"""Make the table; of its columns all but the first are the fields of an entry."""

_BEGIN: Final = f"""
INSERT INTO entries ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (request_id) DO NOTHING
"""
"""Add a row, unless there is one of the same request id."""

_FIND: Final = "SELECT server, target, message, message_type FROM entries WHERE request_id = ?"
"""The ``start`` of the entry with a request id."""

_COLLECT: Final = """
DELETE FROM entries
WHERE ((name = ? AND name != '') OR (request_id = ? AND name IN ('', ?)))
"""
"""Remove an operation, by its name or by the request id of its start."""

_LIST: Final = f"SELECT {_COLUMNS} FROM entries WHERE 1{{}} ORDER BY number"
"""Rows, oldest first, with room for one more condition."""


def _row_of(entry: Entry) -> tuple[str | int, ...]:
    """An entry as a row."""
    return (*attrs.astuple(entry)[:-1], _ticks_of(entry.started))


def entry_of(row: tuple[object, ...]) -> Entry:
    """The entry of a row.

    Raises:
        ValueError: The row is not one of an entry: the file is damaged.
    """
    *texts, started = row
    if not (isinstance(started, int) and all(isinstance(text, str) for text in texts)):
        raise ValueError(f"an entry has {row!r:.200}")
    values = {name: str(text) for name, text in zip(_FIELDS, texts, strict=False)}
    try:
        return Entry(**values, started=_EPOCH + started * _TICK)
    except OverflowError:
        raise ValueError(f"an entry was made {started} microseconds after 1970") from None


def _ticks_of(moment: datetime) -> int:
    """A moment in microseconds since 1970."""
    return (moment - _EPOCH) // _TICK


class JournalError(ClientError):
    """The journal at ``path`` cannot be used; ``description`` says why."""

    def __init__(self, path: str, description: str) -> None:
        super().__init__(path, description)
        self.path: str = path
        self.description: str = description

    def __str__(self) -> str:
        return f"the journal {self.path}: {self.description}"


class Journal:
    """The operations that were started and not collected, in an SQLite file, made if need be.

    Every write is on disk before its call returns. Threads and processes may share the file, also
    after a fork. It keeps no headers or credentials, but messages, so only the file's owner
    may read it. ``busy_seconds`` is how long a process that is writing is waited for.

    Raises:
        JournalError: The file cannot be opened or made, or is not a journal of this version.
    """

    def __init__(
        self, path: str | os.PathLike[str], *, busy_seconds: float = MAX_WAIT_SECONDS
    ) -> None:
        self.path: str = os.path.abspath(os.fspath(path))
        self._busy_seconds = busy_seconds
        self._lock = threading.Lock()
        self._connection: sqlite3.Connection | None = None
        self._closed = False
        self._owed: collections.deque[tuple[str, tuple[str, ...]]] = collections.deque()
        with _forking, self._using():  # or a fork would not know of the connection
            _journals.add(self)

    def begin(self, entry: Entry) -> bool:
        """Note a start that is about to be sent; once more is the same as once.

        Returns:
            Whether it is new. If not, an earlier call may have started it.

        Raises:
            JournalError: The request id is that of another start, or the file cannot be written.
        """
        new, found = 0, None
        with self._using() as connection:
            self._pay(connection)
            while found is None:  # another process may forget it in between
                new = connection.execute(_BEGIN, _row_of(entry)).rowcount
                found = connection.execute(_FIND, (entry.request_id,)).fetchone()
        if found != entry.start:
            raise JournalError(self.path, f"{entry.request_id} is the id of another start")
        return bool(new)

    def named(self, request_id: str, operation_name: str, *, within: float | None = None) -> bool:
        """Note the answer to a start; one that is not in the journal (any more) is left out.

        Returns:
            Whether the start is in the journal.

        Raises:
            JournalError: The file cannot be written, or others hold it for ``within`` seconds.
        """
        statement = "UPDATE entries SET name = ? WHERE request_id = ?"
        with self._using(within) as connection:
            values = operation_name, request_id.lower()
            return bool(connection.execute(statement, values).rowcount)

    def dropped(self, request_id: str, *, within: float | None = None) -> None:
        """Forget a start that the server refused for good; not one whose operation has a name.

        Raises:
            JournalError: The file cannot be written, or others hold it for ``within`` seconds.
        """
        with self._using(within) as connection:
            statement = "DELETE FROM entries WHERE request_id = ? AND name = ''"
            connection.execute(statement, (request_id.lower(),))

    def collected(
        self,
        name: str,
        *,
        server: str | None = None,
        request_id: str = "",
        within: float | None = None,
    ) -> None:
        """Forget an operation whose result was taken; of this server only, if one is given.

        Of an operation without a name, or whose name could not be noted, the ``request_id`` of its
        start identifies it.

        Raises:
            JournalError: The file cannot be written, or others hold it for ``within`` seconds. It
                will be forgotten when this journal next begins a start, or is closed.
        """
        self.owe(name, server=server, request_id=request_id)
        self.settle(within)

    def owe(self, name: str, *, server: str | None = None, request_id: str = "") -> bool:
        """Have an operation forgotten by :meth:`settle`, the next start or list, or ``close``.

        This writes nothing, and says whether nothing else was owed.
        """
        where, values = _of(server)
        found = name.encode(errors="backslashreplace").decode()  # of no other can one be noted
        first = not self._owed
        self._owed.append((_COLLECT + where, (found, request_id.lower(), found, *values)))
        return first

    def settle(self, within: float | None = None) -> None:
        """Forget what is owed.

        Raises:
            JournalError: The file cannot be written, or others hold it for ``within`` seconds.
        """
        with self._using(within) as connection:
            self._pay(connection)

    def pending(self, *, server: str | None = None) -> list[Entry]:
        """What was started and not collected, oldest first; of this server only, if one is given.

        Raises:
            JournalError: The file cannot be read.
        """
        where, values = _of(server)
        self._settle_if_free()
        with self._using() as connection:
            rows = connection.execute(_LIST.format(where), values)
            return [entry_of(row) for row in rows]

    def forget(self, before: datetime, *, answered: bool = True) -> int:
        """Forget what was started before a moment with a time zone; how many there were.

        Without ``answered`` only starts whose answer never came: those whose request id the server
        does not know any more would start a second time if they were repeated (spec §9.2(2)).

        Raises:
            JournalError: The file cannot be written.
        """
        which = "" if answered else " AND name = ''"
        statement = f"DELETE FROM entries WHERE started < ?{which}"
        with self._using() as connection:
            return connection.execute(statement, (_ticks_of(before),)).rowcount

    def close(self) -> None:
        """Close the file; what is pending stays in it."""
        self._settle_if_free()
        with self._lock:
            self._closed = True
            self._drop()

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _pay(self, connection: sqlite3.Connection) -> None:
        while self._owed:
            connection.execute(*self._owed[0])
            self._owed.popleft()

    def _settle_if_free(self) -> None:
        if not self._owed or self._closed:
            return
        try:
            self.settle(MAX_LATE_WRITE_SECONDS)
        except JournalError as exc:
            log.warning("%d operations were collected, but not noted: %s", len(self._owed), exc)

    @contextlib.contextmanager
    def _using(self, within: float | None = None) -> Iterator[sqlite3.Connection]:
        """The connection, for this thread alone; each statement is a transaction of its own."""
        limit = self._busy_seconds if within is None else min(within, self._busy_seconds)
        until = time.monotonic() + limit
        if not self._lock.acquire(timeout=-1 if within is None else max(limit, 0.0)):
            raise JournalError(self.path, _SENTENCES[sqlite3.SQLITE_BUSY])
        try:
            if within is not None:
                limit = max(until - time.monotonic(), 0.0)
            yield from self._used(min(limit, _MAX_BUSY_SECONDS))
        finally:
            self._lock.release()

    def _used(self, limit: float) -> Iterator[sqlite3.Connection]:
        if self._closed:
            raise JournalError(self.path, "it was closed")
        try:
            if self._connection is None:
                self._connection = self._open(limit)
            self._connection.execute(f"PRAGMA busy_timeout = {round(limit * 1000)}")
            yield self._connection
        except (sqlite3.Error, OSError) as exc:
            self._drop()  # the next call opens the file again
            raise JournalError(self.path, _sentence(exc)) from exc
        except UnicodeEncodeError as exc:
            raise JournalError(self.path, f"it holds no such text: {exc}") from exc
        except (ValueError, TypeError) as exc:
            self._drop()
            damaged = _SENTENCES[sqlite3.SQLITE_CORRUPT]
            raise JournalError(self.path, f"{damaged}: {exc}") from exc

    def _open(self, limit: float) -> sqlite3.Connection:
        with contextlib.suppress(FileExistsError):
            os.close(os.open(self.path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        connection = sqlite3.connect(
            f"{Path(self.path).as_uri()}?mode=rw",
            uri=True,
            timeout=limit,
            isolation_level=None,
            check_same_thread=False,  # one at a time, which the lock sees to
        )
        try:
            self._prepare(connection, limit)
        except BaseException:
            connection.close()
            raise
        return connection

    def _prepare(self, connection: sqlite3.Connection, limit: float) -> None:
        connection.execute("PRAGMA synchronous = FULL")
        if _header(connection) != (APPLICATION_ID, VERSION):
            connection.execute("BEGIN IMMEDIATE")
            self._make(connection)
            connection.execute("COMMIT")
        until = time.monotonic() + limit
        while True:
            try:
                connection.execute("PRAGMA journal_mode = WAL")
                return
            except sqlite3.OperationalError as exc:
                # While others open the file too, SQLite says at once that it is busy.
                if _code(exc) != sqlite3.SQLITE_BUSY or time.monotonic() > until:
                    raise
                time.sleep(0.005)

    def _make(self, connection: sqlite3.Connection) -> None:
        application, version = _header(connection)
        if application == APPLICATION_ID:
            if version > VERSION:
                text = f"it is of version {version}, made by a newer release; known is {VERSION}"
                raise JournalError(self.path, text)
            return  # another process made it in the meantime
        if application or connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0]:
            raise JournalError(self.path, "it is not a journal, but some other database")
        for statement in _TABLE:
            connection.execute(statement)
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version = {VERSION}")

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()


_journals: Final[weakref.WeakSet[Journal]] = weakref.WeakSet()
_forking: Final = threading.RLock()
_paused: Final[list[Journal]] = []


def _pause_all() -> None:
    # SQLite's locks do not cross a fork, but what it remembers of them does: a child that opened
    # the file would take its parent's for its own. So there is no connection while one forks.
    _forking.acquire()
    for journal in list(_journals):
        journal._lock.acquire()
        _paused.append(journal)
        journal._drop()


def _resume_all() -> None:
    while _paused:
        _paused.pop()._lock.release()
    _forking.release()


with contextlib.suppress(AttributeError):  # where nothing forks
    os.register_at_fork(before=_pause_all, after_in_parent=_resume_all, after_in_child=_resume_all)


@atexit.register
def _settle_all() -> None:
    for journal in list(_journals):
        journal._settle_if_free()


def _header(connection: sqlite3.Connection) -> tuple[int, int]:
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    return application, version


def _of(server: str | None) -> tuple[str, tuple[str, ...]]:
    return ("", ()) if server is None else (" AND server = ?", (public_address(server),))


def _code(exc: sqlite3.Error) -> int:
    return getattr(exc, "sqlite_errorcode", 0) & 0xFF  # without what is SQLite's own business


def _sentence(exc: sqlite3.Error | OSError) -> str:
    if isinstance(exc, OSError):
        return f"{_SENTENCES[sqlite3.SQLITE_CANTOPEN]}: {exc.strerror}"
    known = _SENTENCES.get(_code(exc))
    return f"{known}: {exc}" if known else str(exc)
