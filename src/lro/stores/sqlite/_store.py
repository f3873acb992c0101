"""The verbs of the store in SQL."""

from __future__ import annotations

import json
import secrets
import sqlite3
from collections.abc import Callable, Collection, Sequence
from datetime import UTC, datetime, timedelta
from os import PathLike, fspath
from typing import Any as Anything
from typing import Final

from lro._any import Any
from lro._errors import OperationNotFound, RequestIdConflict, TargetBusy
from lro._jsontext import dumps, reread
from lro._pages import KEY_BYTES, Place
from lro._ports import Expired, Glance, Inserted, Orphans, RequestKey
from lro._record import Record, State
from lro._states import Change
from lro.stores._recent import RecentRecords
from lro.stores._rows import COLUMNS, from_row, micros, moment, pack, to_row, unpack
from lro.stores.sqlite._connections import Connections
from lro.stores.sqlite._ear import CounterEar

REQUEST_LIFE: Final = timedelta(hours=24)

_ROW: Final = ", ".join(COLUMNS)
_INSERT: Final = f"INSERT INTO operations ({_ROW}) VALUES ({', '.join('?' * len(COLUMNS))})"
_GET: Final = f"SELECT {_ROW} FROM operations WHERE name = ?"
_STAMP: Final = "SELECT version, lease_until FROM operations WHERE name = ?"
_GLANCE: Final = """SELECT name, state, expire_time, cancel_requested FROM operations
    WHERE name IN (SELECT value FROM json_each(?))"""
_UNFINISHED: Final = frozenset({State.IN_PROGRESS.value, State.HIDDEN.value})
_LEASE: Final = COLUMNS.index("lease_until")
_PAGE: Final = f"""SELECT {_ROW} FROM operations WHERE parent = ?
    AND (create_time < ? OR (create_time = ? AND name > ?))
    AND state != 'HIDDEN' AND (expire_time IS NULL OR expire_time > ?)
    ORDER BY create_time DESC, name LIMIT ?"""
_AMONG: Final = "method IN (SELECT value FROM json_each(?))"
_FIRST_PAGE: Final = 2**62


class SQLiteStore:
    """Keeps records in a SQLite file, made with its tables where it does not exist.

    Every write is committed to disk (``synchronous=FULL``) before the call returns; readers never
    wait for the writer. ``busy_seconds`` is how long a call waits for another process's lock
    before it answers UNAVAILABLE. ``clock`` gives the time in UTC.

    Raises:
        Unavailable: The file cannot be opened.
        DeclarationError: It was made by a newer version of this library, or is no database.
    """

    reads_block = False
    writes_block = True
    shared = True

    def __init__(
        self,
        path: str | PathLike[str],
        *,
        clock: Callable[[], datetime] | None = None,
        busy_seconds: float = 5.0,
    ) -> None:
        self._clock = clock or _utc_now
        self._recent = RecentRecords()
        self._file = Connections(fspath(path), busy_seconds)
        try:
            self._secret = self._make_secret()
        except BaseException:
            self._file.close()
            raise

    def announce(self, name: str) -> None:
        """Nothing to do: the file's change counter tells."""

    def listen(self) -> CounterEar:
        """An ear that watches the change counter of the file."""
        return CounterEar(self._file)

    def glance(self, names: Collection[str]) -> Glance:
        """What has become of these operations."""
        rows = self._file.rows(_GLANCE, (json.dumps(list(names)),))
        now = micros(self._clock())
        open_ = {name for name, state, expire, _ in rows if _waited_for(state, expire, now)}
        asked = {name for name, state, _, asked in rows if asked and state in _UNFINISHED}
        return Glance(over=frozenset(names) - open_, asked=frozenset(asked))

    def now(self) -> datetime:
        """The moment by this machine's clock, which all processes on the file share."""
        return self._clock()

    def secret(self) -> bytes:
        """The key of page tokens, kept in the file."""
        return self._secret

    def insert(
        self, record: Record, request: Any, key: RequestKey | None, *, check_only: bool = False
    ) -> Inserted:
        """Add a record and its request, or find the one that the same request started before."""
        with self._file.transaction() as writer:
            first = self._first_start(writer, key, micros(record.create_time))
            if first is not None:
                return Inserted(first, fresh=False)
            if record.target and _target_busy(writer, record.target):
                raise TargetBusy(record.target)
            if not check_only:
                row = to_row(record)
                writer.execute(_INSERT, row)
                writer.execute("INSERT INTO inputs VALUES (?, ?)", (record.name, pack(request)))
                if key is not None:
                    self._remember(writer, key, record, row)
            return Inserted(record, fresh=True)

    def forget(self, name: str) -> None:
        """Undo an insert."""
        with self._file.transaction() as writer:
            writer.execute("DELETE FROM operations WHERE name = ?", (name,))
            writer.execute("DELETE FROM inputs WHERE name = ?", (name,))
            writer.execute("DELETE FROM starts WHERE name = ?", (name,))

    def request(self, name: str) -> Any:
        """The packed request of work in progress."""
        rows = self._file.rows("SELECT request FROM inputs WHERE name = ?", (name,))
        if not rows:
            raise OperationNotFound(name)
        return unpack(rows[0][0])

    def get(self, name: str) -> Record:
        """The record of this name."""
        # Two columns tell whether anything has changed; reading all of them takes ten times longer.
        stamps = self._file.rows(_STAMP, (name,))
        known = self._recent.get(name, stamps[0]) if stamps else None
        if known is not None:
            return known
        rows = self._file.rows(_GET, (name,))
        if not rows:
            raise OperationNotFound(name)
        record = from_row(rows[0])
        return self._recent.keep(record, (record.version, rows[0][_LEASE]))

    def update(self, name: str, change: Change) -> Record | None:
        """Replace or remove a record, all or nothing."""
        with self._file.transaction() as writer:
            row = writer.execute(_GET, (name,)).fetchone()
            if row is None:
                raise OperationNotFound(name)
            record = from_row(row)
            changed = change(record)
            if changed is record:
                return record
            if changed is None:
                writer.execute("DELETE FROM operations WHERE name = ?", (name,))
            else:
                _write_changes(writer, row, to_row(changed))
            if changed is None or changed.done:
                writer.execute("DELETE FROM inputs WHERE name = ?", (name,))
            return changed

    def page(self, parent: str, after: Place | None, limit: int) -> Sequence[Record]:
        """Up to ``limit`` visible records of one parent, newest first."""
        at, name = (micros(after.create_time), after.name) if after else (_FIRST_PAGE, "")
        rows = self._file.rows(_PAGE, (parent, at, at, name, micros(self._clock()), limit))
        return [from_row(row) for row in rows]

    def renew(
        self, owner: str, until: datetime, names: Collection[str] | None = None
    ) -> Sequence[str]:
        """Prolong the leases of an owner."""
        mine, whose = "lease_until IS NOT NULL AND owner = ?", [owner]
        if names is not None:
            mine += " AND name IN (SELECT value FROM json_each(?))"
            whose.append(json.dumps(list(names)))
        with self._file.transaction() as writer:
            writer.execute(
                f"UPDATE operations SET lease_until = ? WHERE {mine}", (micros(until), *whose)
            )
            asked = writer.execute(
                f"SELECT name FROM operations WHERE {mine} AND cancel_requested", whose
            )
            return [name for (name,) in asked]

    def orphans(self, methods: Collection[str], limit: int) -> Orphans:
        """Records in progress of these methods whose lease has run out."""
        now, among = micros(self._clock()), json.dumps(list(methods))
        lost = self._file.rows(
            f"SELECT {_ROW} FROM operations WHERE lease_until <= ? AND {_AMONG}"
            " ORDER BY lease_until LIMIT ?",
            (now, among, limit),
        )
        ((end,),) = self._file.rows(
            f"SELECT min(lease_until) FROM operations WHERE lease_until > ? AND {_AMONG}",
            (now, among),
        )
        return Orphans(tuple(map(from_row, lost)), None if end is None else moment(end))

    def expire(self, limit: int) -> Expired:
        """Remove records past their expiry, and old request keys."""
        now = self._clock()
        old = micros(now - REQUEST_LIFE)
        due = "SELECT name FROM operations WHERE expire_time <= ? LIMIT ?"
        keys = "SELECT rowid FROM starts WHERE at <= ? LIMIT ?"
        if not self._file.rows(due, (micros(now), 1)) and not self._file.rows(keys, (old, 1)):
            return Expired((), more=False)  # nothing to write, and so no lock to wait for
        with self._file.transaction() as writer:
            names = writer.execute(due, (micros(now), limit + 1)).fetchall()
            spent = writer.execute(keys, (old, limit + 1)).fetchall()
            writer.executemany("DELETE FROM operations WHERE name = ?", names[:limit])
            writer.executemany("DELETE FROM starts WHERE rowid = ?", spent[:limit])
            more = len(names) > limit or len(spent) > limit
            return Expired([name for (name,) in names[:limit]], more)

    def close(self) -> None:
        """Close every connection to the file."""
        self._file.close()

    # -- inside -------------------------------------------------------------------------------

    def _make_secret(self) -> bytes:
        query = "SELECT key FROM secrets"
        known = self._file.rows(query)
        if not known:
            with self._file.transaction() as writer:
                fresh = secrets.token_bytes(KEY_BYTES)
                writer.execute("INSERT OR IGNORE INTO secrets VALUES (1, ?)", (fresh,))
                known = writer.execute(query).fetchall()
        return bytes(known[0][0])

    def _first_start(
        self, writer: sqlite3.Connection, key: RequestKey | None, now: int
    ) -> Record | None:
        if key is None:
            return None
        found = writer.execute(
            "SELECT fingerprint, at, name, first FROM starts"
            " WHERE method = ? AND caller = ? AND request_id = ?",
            (key.method, key.caller, key.request_id),
        ).fetchone()
        if found is None or moment(now) - moment(found[1]) >= REQUEST_LIFE:
            return None
        if found[0] != key.fingerprint:
            raise RequestIdConflict("request_id", "was used before with another request")
        row = writer.execute(_GET, (found[2],)).fetchone()
        if row is not None:
            present = from_row(row)
            if present.visible(moment(now)):
                return present
        remembered: Anything = reread(found[3])
        return from_row(remembered)

    def _remember(
        self, writer: sqlite3.Connection, key: RequestKey, record: Record, row: Anything
    ) -> None:
        writer.execute(
            "INSERT OR REPLACE INTO starts VALUES (?, ?, ?, ?, ?, ?, ?)",
            (
                key.method,
                key.caller,
                key.request_id,
                key.fingerprint,
                micros(record.create_time),
                record.name,
                dumps(list(row)).decode(),
            ),
        )


def _write_changes(
    writer: sqlite3.Connection, old: Sequence[object], new: Sequence[object]
) -> None:
    changed = [
        (column, after)
        for column, before, after in zip(COLUMNS, old, new, strict=True)
        if before != after
    ]
    if not changed:
        return
    assignments = ", ".join(f"{column} = ?" for column, _ in changed)
    values = (*(after for _, after in changed), new[0])
    writer.execute(f"UPDATE operations SET {assignments} WHERE name = ?", values)


def _waited_for(state: str, expire_time: int | None, now: int) -> bool:
    return state == State.IN_PROGRESS and (expire_time is None or now < expire_time)


def _target_busy(writer: sqlite3.Connection, target: str) -> bool:
    found = writer.execute(
        "SELECT 1 FROM operations WHERE target = ? AND target != ''"
        " AND state IN ('IN_PROGRESS', 'HIDDEN')",
        (target,),
    )
    return found.fetchone() is not None


def _utc_now() -> datetime:
    return datetime.now(UTC)
