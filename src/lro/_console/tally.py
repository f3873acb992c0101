"""The counts in the console's overview, from bounded reads that are cached for some seconds."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import datetime, timedelta
from typing import Final, Generic, TypeVar

import attrs

from lro import Service
from lro.adapters import MinuteCounts, StatisticsStore, keeps_statistics
from lro.errors import MalformedRequest, MethodNotSupported, got
from lro.http import read_parameters
from lro.telemetry import BUCKETS, FLUSH_SECONDS
from lro.types import Json
from lro.wire import datetime_text

MAX_MINUTES: Final = 4320
"""The longest window, in minutes: counts are kept for 72 hours."""

LIMIT: Final = 10_000
"""Maximum number of operations in progress that are counted."""

KEPT_SECONDS: Final = 5.0
"""Seconds that an answer is cached."""

_KEPT_WINDOWS: Final = 8
_FINE: Final = 2 * 60
_MIDDLE: Final = 24 * 60
_SETTLED: Final = timedelta(minutes=1)
"""Time after a minute during which a late write can still change the counts of the minute."""


def window_minutes(query: str) -> int:
    """Return the number of minutes that a query asks for; by default 60.

    Raises:
        MalformedRequest: The number is not an integer from 1 to :data:`MAX_MINUTES`, or there are
            other parameters.
    """
    found = "60"
    for name, value in read_parameters(query)[0]:
        if name != "minutes":
            raise MalformedRequest("query", f"the overview has no parameter {name[:80]!r}")
        found = value
    fine = found.isascii() and found.isdigit() and len(found) <= 4
    if not fine or not 1 <= int(found) <= MAX_MINUTES:
        raise MalformedRequest("minutes", f"must be from 1 to {MAX_MINUTES}, got {got(found)}")
    return int(found)


T = TypeVar("T")


class _Kept(Generic[T]):
    """Caches answers for a few keys, for :data:`KEPT_SECONDS`."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._known: dict[int, tuple[float, T]] = {}

    def get(self, key: int, read: Callable[[T | None], T]) -> T:
        """Return the cached answer; if it is too old or missing, first replace it by ``read(old)``.

        During a read, other callers wait.
        """
        with self._lock:
            at, answer = self._known.pop(key, (0.0, None))
            if answer is None or self._clock() - at >= KEPT_SECONDS:
                at, answer = self._clock(), read(answer)
            self._known[key] = at, answer
            if len(self._known) > _KEPT_WINDOWS:
                del self._known[next(iter(self._known))]
            return answer


@attrs.frozen
class _Window:
    """Counts of each time step up to ``now``, summed over methods so that the reply is small."""

    now: datetime
    step: int
    points: Mapping[datetime, Mapping[str, float]]

    @classmethod
    def read(cls, store: StatisticsStore, minutes: int, before: _Window | None) -> _Window:
        """Read the window that ends now; copy counts from ``before`` that cannot have changed."""
        now = store.now()
        first = since = now - timedelta(minutes=minutes)
        step = 1 if minutes <= _FINE else 5 if minutes <= _MIDDLE else 30
        points: dict[datetime, Mapping[str, float]] = {}
        if before is not None:
            since = max(first, min(before.now, now) - _SETTLED)
            begin = first - timedelta(minutes=step)
            points = {minute: sums for minute, sums in before.points.items() if minute > begin}
        points.update(_sums(store.read_counts(since, step_minutes=step)))
        return cls(now, step, points)

    def json(self, minutes: int) -> dict[str, Json]:
        """Return the window as JSON for the page."""
        return {
            "now": datetime_text(self.now),
            "minutes": minutes,
            "stepMinutes": self.step,
            "everySeconds": int(FLUSH_SECONDS),
            "limit": LIMIT,
            "buckets": list(BUCKETS),
            "points": [
                {"minute": datetime_text(minute), "counts": {**sums}}
                for minute, sums in self.points.items()
            ],
        }


def _sums(counted: Iterable[MinuteCounts]) -> Mapping[datetime, Mapping[str, float]]:
    found: dict[datetime, dict[str, float]] = {}
    for one in counted:
        sums = found.setdefault(one.minute, {})
        for series, number in one.counts.items():
            sums[series] = sums.get(series, 0) + number
    return found


class Tally:
    """Reads the counts, and caches each answer for :data:`KEPT_SECONDS` of ``clock``.

    So however many pages are open, in :data:`KEPT_SECONDS` the store is read at most once for each
    window and once for the operations in progress.
    """

    def __init__(
        self, service: Service, parents: Collection[str], clock: Callable[[], float]
    ) -> None:
        self._service = service
        self._parents = parents
        self._windows: _Kept[_Window] = _Kept(clock)
        self._loads: _Kept[Json] = _Kept(clock)
        self._schedules: _Kept[Json] = _Kept(clock)

    def read(self, minutes: int) -> Json:
        """Return the counts of this window as JSON, with the paused methods and the schedules.

        Raises:
            MethodNotSupported: The store keeps no counts.
            Unavailable: The store cannot be read now.
        """
        store = self._service.store
        if self._service.statistics is None or not keeps_statistics(store):
            raise MethodNotSupported("the tally")
        window = self._windows.get(minutes, lambda before: _Window.read(store, minutes, before))
        load = self._loads.get(0, lambda _: self._load(store))
        # Paused methods are not cached: a page reads them as soon as it has paused a method.
        paused: list[Json] = [
            {"method": name, "since": datetime_text(since)}
            for name, since in self._service.paused().items()
        ]
        schedules = self._schedules.get(0, lambda _: self._read_schedules())
        found = {"inProgress": load, "paused": paused, "schedules": schedules}
        return window.json(minutes) | found

    def _read_schedules(self) -> Json:
        return [
            {
                "name": one.name,
                "method": one.method,
                "expression": one.expression,
                "timezone": one.timezone,
                "nextTick": datetime_text(one.next_tick),
            }
            for one in self._service.schedules()
        ]

    def _load(self, store: StatisticsStore) -> Json:
        load = store.read_load(self._parents, LIMIT)
        return {
            "capped": load.capped,
            "methods": [
                {
                    "method": one.method,
                    "waiting": one.waiting,
                    "running": one.running,
                    "oldestCreateTime": datetime_text(one.oldest_create_time),
                    "oldestName": one.oldest_name,
                }
                for one in load.methods
            ],
            "workers": [
                {"owner": owner, "operations": held} for owner, held in load.owners.items()
            ],
        }
