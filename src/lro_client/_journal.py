"""A journal on disk of the operations that were started and not collected."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
import time
import weakref
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any as Anything
from typing import Final

import attrs

from lro_client._errors import ClientError
from lro_client._tokens import public_address

VERSION: Final = 1
APPLICATION_ID: Final = 0x6C726F6A
"""What SQLite notes in the header of a journal: ``lroj``."""

BUSY_SECONDS: Final = 30.0
"""So long another process that is writing is waited for."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_TICK: Final = timedelta(microseconds=1)

_TABLE: Final = """
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
"""
_COLUMNS: Final = (
    "request_id, server, target, message, message_type, response, metadata, name, started"
)
_BEGIN: Final = f"""
INSERT INTO entries ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (request_id) DO UPDATE SET number = number
RETURNING server, target, message, message_type
"""

_SENTENCES: Final = {
    sqlite3.SQLITE_NOTADB: "it is not a journal, but some other file",
    sqlite3.SQLITE_CORRUPT: "the file is damaged",
    sqlite3.SQLITE_CANTOPEN: "it cannot be opened or made",
    sqlite3.SQLITE_READONLY: "it cannot be written to",
    sqlite3.SQLITE_FULL: "the disk is full",
    sqlite3.SQLITE_BUSY: "other processes did not let go of it in time",
    sqlite3.SQLITE_IOERR: "the disk failed",
}


class JournalError(ClientError):
    """The journal at ``path`` cannot be used; ``description`` says why."""

    def __init__(self, path: str, description: str) -> None:
        super().__init__(path, description)
        self.path, self.description = path, description

    def __str__(self) -> str:
        return f"the journal {self.path}: {self.description}"


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


class Journal:
    """The operations that were started and not collected, in an SQLite file, made if need be.

    Every write is on disk before its call returns. Threads and processes may share the file, also
    after a fork. Neither headers nor credentials are kept; messages are, so only the file's owner
    may read it. ``busy_seconds`` is how long a process that is writing is waited for.

    Raises:
        JournalError: The file cannot be opened or made, or is not a journal of this version.
    """

    def __init__(self, path: str | os.PathLike[str], *, busy_seconds: float = BUSY_SECONDS) -> None:
        self.path = os.path.abspath(os.fspath(path))
        self._busy_seconds = busy_seconds
        self._lock = threading.Lock()
        self._connection: sqlite3.Connection | None = None
        self._closed = False
        with _forking, self._using():  # or a fork would not know of the connection
            _journals.add(self)

    def begin(self, entry: Entry) -> None:
        """Note a start that is about to be sent; once more is the same as once.

        Raises:
            JournalError: The request id is that of another start, or the file cannot be written.
        """
        values = (*attrs.astuple(entry)[:-1], (entry.started - _EPOCH) // _TICK)
        with self._using() as connection:
            (found,) = connection.execute(_BEGIN, values).fetchall()
        if found != entry.start:
            raise JournalError(self.path, f"{entry.request_id} is the id of another start")

    def named(self, request_id: str, operation_name: str) -> None:
        """Note the answer to a start; one that is not in the journal (any more) is left out.

        Raises:
            JournalError: The file cannot be written.
        """
        self._write(
            "UPDATE entries SET name = ? WHERE request_id = ?", operation_name, request_id.lower()
        )

    def dropped(self, request_id: str) -> None:
        """Forget a start that the server refused for good.

        Raises:
            JournalError: The file cannot be written.
        """
        self._write("DELETE FROM entries WHERE request_id = ?", request_id.lower())

    def collected(self, name: str, *, server: str | None = None) -> None:
        """Forget an operation whose result was taken; of this server only, if one is given.

        Raises:
            JournalError: The file cannot be written.
        """
        where, values = _of(server)
        self._write(f"DELETE FROM entries WHERE name = ? AND name != ''{where}", name, *values)

    def pending(self, *, server: str | None = None) -> list[Entry]:
        """What was started and not collected, oldest first; of this server only, if one is given.

        Raises:
            JournalError: The file cannot be read.
        """
        where, values = _of(server)
        with self._using():
            return self._found(f"WHERE 1{where} ORDER BY number", *values)

    def forget(self, before: datetime, *, answered: bool = True) -> int:
        """Forget what was started before a moment with a time zone; how many there were.

        Without ``answered`` only starts whose answer never came: those whose request id the server
        does not know any more would start anew if they were repeated (spec §9.2(2)).

        Raises:
            JournalError: The file cannot be written.
        """
        which = "" if answered else " AND name = ''"
        moment = (before - _EPOCH) // _TICK
        return self._write(f"DELETE FROM entries WHERE started < ?{which}", moment)

    def close(self) -> None:
        """Close the file; what is pending stays in it."""
        with self._lock:
            self._closed = True
            self._drop()

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _write(self, statement: str, *values: object) -> int:
        with self._using() as connection:
            return connection.execute(statement, values).rowcount

    def _found(self, where: str, *values: object) -> list[Entry]:
        assert self._connection is not None
        rows = self._connection.execute(f"SELECT {_COLUMNS} FROM entries {where}", values)
        return [_entry(row) for row in rows]

    @contextlib.contextmanager
    def _using(self) -> Iterator[sqlite3.Connection]:
        """The connection, for this thread alone; each statement is a transaction of its own."""
        with self._lock:
            if self._closed:
                raise JournalError(self.path, "it was closed")
            try:
                if self._connection is None:
                    self._connection = self._open()
                yield self._connection
            except (sqlite3.Error, OSError) as exc:
                self._drop()  # the next call opens the file anew
                raise JournalError(self.path, _sentence(exc)) from exc

    def _open(self) -> sqlite3.Connection:
        with contextlib.suppress(FileExistsError):
            os.close(os.open(self.path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        connection = sqlite3.connect(
            f"{Path(self.path).as_uri()}?mode=rw",
            uri=True,
            timeout=self._busy_seconds,
            isolation_level=None,
            check_same_thread=False,  # one at a time, which the lock sees to
        )
        try:
            self._prepare(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def _prepare(self, connection: sqlite3.Connection) -> None:
        connection.execute("PRAGMA synchronous = FULL")
        if _header(connection) != (APPLICATION_ID, VERSION):
            connection.execute("BEGIN IMMEDIATE")
            self._make(connection)
            connection.execute("COMMIT")
        until = time.monotonic() + self._busy_seconds
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
        connection.execute(_TABLE)
        connection.execute("CREATE INDEX entries_by_name ON entries (name)")
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


def _header(connection: sqlite3.Connection) -> tuple[int, int]:
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    return application, version


def _of(server: str | None) -> tuple[str, tuple[str, ...]]:
    return ("", ()) if server is None else (" AND server = ?", (public_address(server),))


def _entry(row: tuple[Anything, ...]) -> Entry:
    names = [name.strip() for name in _COLUMNS.split(",")]
    values = dict(zip(names, row, strict=True))
    return Entry(**{**values, "started": _EPOCH + values["started"] * _TICK})


def _code(exc: sqlite3.Error) -> int:
    return getattr(exc, "sqlite_errorcode", 0) & 0xFF  # without what is SQLite's own business


def _sentence(exc: sqlite3.Error | OSError) -> str:
    if isinstance(exc, OSError):
        return f"{_SENTENCES[sqlite3.SQLITE_CANTOPEN]}: {exc.strerror}"
    known = _SENTENCES.get(_code(exc))
    return f"{known}: {exc}" if known else str(exc)
