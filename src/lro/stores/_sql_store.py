"""The verbs whose SQL is the same in SQLite and PostgreSQL."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence
from datetime import datetime
from typing import Any, ClassVar, Final, TypeAlias

from lro._base.errors import OperationNotFound
from lro._base.status import AnyMessage
from lro._engine.store_port import COUNTS_READ, MinuteCounts, Orphans, WaitingWork, Worker
from lro._messages.json_text import dumps
from lro._schedules.schedule import Schedule
from lro.stores._counting import WAITS, numbers, step_since, step_time
from lro.stores._rows import COLUMNS, from_row, micros, moment, unpack
from lro.stores._turns import UNBEGUN
from lro.stores._workers import HOLDS, LIST_WORKERS, Hold, orphans_of
from lro.stores._workers import from_row as worker_of

Rows: TypeAlias = list[tuple[Any, ...]]

SCHEDULE_COLUMNS: Final = "name, version, schedule"
REQUEST: Final = "SELECT request FROM lro_inputs WHERE "
CHECKPOINTS: Final = "SELECT key, value FROM lro_checkpoints WHERE "
PAUSE: Final = "INSERT INTO lro_paused VALUES (?, ?) ON CONFLICT DO NOTHING RETURNING 1"
RESUME: Final = "DELETE FROM lro_paused WHERE method = ? RETURNING 1"
NOTE_TICK: Final = f"""INSERT INTO lro_schedules ({SCHEDULE_COLUMNS}) VALUES (?, ?, ?)
    ON CONFLICT (name) DO UPDATE SET (version, schedule) = (excluded.version, excluded.schedule)
        WHERE lro_schedules.version = excluded.version - 1
    RETURNING 1"""
WAITING: Final = f"""SELECT method, count(*), min(lease_until),
        count(*) FILTER (WHERE lease_until <= ?)
    FROM lro_operations WHERE {WAITS} GROUP BY method ORDER BY method"""
_COUNT_WAITING: Final = f"""SELECT count(*)
    FROM (SELECT 1 FROM lro_operations WHERE {WAITS} LIMIT ?) AS waiting"""
_ROW: Final = ", ".join(COLUMNS)
LOST: Final = f"""SELECT {_ROW} FROM lro_operations WHERE owner <> '' AND method IN ({{items}})
    AND owner IN (SELECT owner FROM lro_workers WHERE lost = 1)
    ORDER BY lease_until, name LIMIT ?"""
TOO_LATE: Final = f"""SELECT {_ROW} FROM lro_operations
    WHERE {UNBEGUN} AND begin_before <= ? ORDER BY begin_before LIMIT ?"""
COUNTS: Final = """SELECT minute, method, CAST(counts AS TEXT) FROM lro_minutes
    WHERE step = ? AND minute >= ? ORDER BY minute DESC, method DESC LIMIT ?"""
NEXT_DUE: Final = """SELECT notify_at FROM lro_operations
    WHERE notify_at IS NOT NULL ORDER BY notify_at LIMIT 1"""


class SQLStore(ABC):
    """Base of the stores in SQL. Statements mark each parameter with ``?``."""

    _clock: Callable[[], datetime]
    _BY_NAME: ClassVar[str]
    """Condition for one operation's rows in the tables ``lro_inputs`` and ``lro_checkpoints``."""
    _JSON_ITEMS: ClassVar[str]
    """Query for the items of a JSON array, which is the query's parameter."""

    @abstractmethod
    def _read(self, query: str, *values: object) -> Rows:
        """Return the rows that a query finds."""

    @abstractmethod
    def _write(self, statement: str, *values: object) -> Rows:
        """Execute a statement, commit it, and return the rows of its ``RETURNING``."""

    @abstractmethod
    def _key(self, name: str) -> str:
        """Return the parameter of ``_BY_NAME`` for an operation."""

    def now(self) -> datetime:
        """Return the time by the store's clock."""
        return self._clock()

    def request(self, name: str) -> AnyMessage:
        """Read the packed request of an operation."""
        rows = self._read(REQUEST + self._BY_NAME, self._key(name))
        if not rows:
            raise OperationNotFound(name)
        return unpack(rows[0][0])

    def checkpoints(self, name: str) -> dict[str, AnyMessage]:
        """Read the checkpoints of an operation, by key."""
        rows = self._read(CHECKPOINTS + self._BY_NAME, self._key(name))
        return {key: unpack(value) for key, value in rows}

    def pause(self, method: str) -> None:
        """Stop claims from taking work of a method."""
        self._write(PAUSE, method, micros(self._clock()))

    def resume(self, method: str) -> None:
        """Let claims take work of a method again."""
        self._write(RESUME, method)

    def paused(self) -> dict[str, datetime]:
        """Read the paused methods, with the times of their pauses."""
        rows = self._read("SELECT method, since FROM lro_paused")
        return {method: moment(since) for method, since in rows}

    def count_waiting(self, most: int) -> int:
        """Count the waiting operations, up to ``most``."""
        return int(self._read(_COUNT_WAITING, most)[0][0])

    def waiting(self) -> list[WaitingWork]:
        """Count the waiting operations of each method."""
        rows = self._read(WAITING, micros(self._clock()))
        return [WaitingWork(method, count, moment(at), due) for method, count, at, due in rows]

    def workers(self) -> list[Worker]:
        """Read the workers, the oldest first."""
        return [worker_of(row) for row in self._read(LIST_WORKERS)]

    def _orphans(
        self,
        now: datetime,
        methods: Collection[str],
        limit: int,
        is_dead: Callable[[str], bool] = lambda _: False,
    ) -> tuple[Sequence[Hold], Orphans]:
        """Read the owners of work; return them, and the owners and the work that may be lost.

        ``is_dead`` returns True for an owner whose process has ended.
        """
        holds: Sequence[Any] = self._read(HOLDS)
        dead = {owner for owner, _, is_lost, _ in holds if owner and not is_lost and is_dead(owner)}
        lost: Rows = []
        if any(is_lost for _, _, is_lost, _ in holds):
            items = dumps([*methods]).decode()
            lost = self._read(LOST.format(items=self._JSON_ITEMS), items, limit)
        late = any(not owner and at <= micros(now) for owner, *_, at in holds)
        unbegun = self._read(TOO_LATE, micros(now), limit) if late else ()
        found = [*map(from_row, lost)], dead, now, [*map(from_row, unbegun)]
        return holds, orphans_of(holds, *found)

    def schedules(self) -> list[Schedule]:
        """Read all schedules, by name."""
        rows = self._read("SELECT schedule FROM lro_schedules ORDER BY name")
        return [Schedule.from_text(text) for (text,) in rows]

    def note_tick(self, schedule: Schedule) -> bool:
        """Store a schedule if it follows the stored version; return True if it does."""
        row = schedule.name, schedule.version, schedule.as_text()
        return bool(self._write(NOTE_TICK, *row))

    def read_counts(
        self, since: datetime, limit: int = COUNTS_READ, step_minutes: int = 1
    ) -> list[MinuteCounts]:
        """Read the counts of the steps that end after ``since``, the oldest first."""
        rows = self._read(COUNTS, step_minutes, step_since(since, step_minutes), limit)
        return [
            MinuteCounts(step_time(minute), method, numbers(counts))
            for minute, method, counts in reversed(rows)
        ]

    def next_due(self) -> datetime | None:
        """Read when the next notification is due; None if none is pending."""
        rows = self._read(NEXT_DUE)
        return moment(rows[0][0]) if rows else None
