"""What a service has counted, for the overview: bounded reads, kept for some seconds."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable
from datetime import datetime, timedelta
from typing import Final, Generic, TypeVar

from lro._base.errors import MalformedRequest, MethodNotSupported, got
from lro._base.status import Json
from lro._engine.metrics import BUCKETS
from lro._engine.service import Service
from lro._engine.statistics import FLUSH_SECONDS
from lro._engine.store_port import MinuteCounts, StatisticsStore, keeps_statistics
from lro._http.requests import read_parameters
from lro._messages.times import datetime_text

MAX_MINUTES: Final = 4320
"""The longest window: counts are kept for 72 hours."""

LIMIT: Final = 10_000
"""The most operations in progress that are looked at."""

KEPT_SECONDS: Final = 5.0
"""How long an answer is given again before the store is asked again."""

_KEPT_WINDOWS: Final = 8
_FINE: Final = 2 * 60
_MIDDLE: Final = 24 * 60


def window_minutes(query: str) -> int:
    """The minutes that a query asks for; an hour if it does not say.

    Raises:
        MalformedRequest: It is not a whole number from 1 to :data:`MAX_MINUTES`, or there are other
            parameters.
    """
    found = "60"
    for name, value in read_parameters(query)[0]:
        if name != "minutes":
            raise MalformedRequest("query", f"the tally has no parameter {name[:80]!r}")
        found = value
    fine = found.isascii() and found.isdigit() and len(found) <= 4
    if not fine or not 1 <= int(found) <= MAX_MINUTES:
        raise MalformedRequest("minutes", f"must be from 1 to {MAX_MINUTES}, got {got(found)}")
    return int(found)


T = TypeVar("T")


class _Kept(Generic[T]):
    """Answers that are given again for :data:`KEPT_SECONDS`, for a few keys."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._known: dict[int, tuple[float, T]] = {}

    def get(self, key: int, read: Callable[[], T]) -> T:
        """The answer for a key, or what is read now; others wait for it rather than read too."""
        with self._lock:
            known = self._known.pop(key, None)
            if known is None or self._clock() - known[0] >= KEPT_SECONDS:
                known = self._clock(), read()
            self._known[key] = known
            if len(self._known) > _KEPT_WINDOWS:
                del self._known[next(iter(self._known))]
            return known[1]


class Tally:
    """Reads what was counted, and remembers each answer for :data:`KEPT_SECONDS` of ``clock``.

    However many pages ask, the store is asked once in that time for each window, and once for what
    is in progress.
    """

    def __init__(
        self, service: Service, parents: Collection[str], clock: Callable[[], float]
    ) -> None:
        self._service = service
        self._parents = parents
        self._windows: _Kept[dict[str, Json]] = _Kept(clock)
        self._loads: _Kept[Json] = _Kept(clock)

    def read(self, minutes: int) -> Json:
        """The tally of this window, as JSON.

        Raises:
            MethodNotSupported: The store keeps no counts.
            Unavailable: The store cannot be read now.
        """
        store = self._service.store
        if self._service.statistics is None or not keeps_statistics(store):
            raise MethodNotSupported("the tally")
        counted = self._windows.get(minutes, lambda: _window(store, minutes))
        return {**counted, "inProgress": self._loads.get(0, lambda: self._load(store))}

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


def _window(store: StatisticsStore, minutes: int) -> dict[str, Json]:
    step = 1 if minutes <= _FINE else 5 if minutes <= _MIDDLE else 30
    now = store.now()
    counted = store.read_counts(now - timedelta(minutes=minutes), step_minutes=step)
    return {
        "now": datetime_text(now),
        "minutes": minutes,
        "stepMinutes": step,
        "everySeconds": int(FLUSH_SECONDS),
        "limit": LIMIT,
        "buckets": list(BUCKETS),
        "points": _points(counted),
    }


def _points(counted: Iterable[MinuteCounts]) -> list[Json]:
    """The sums of all methods, step by step: methods may be many, and a page must stay small."""
    found: dict[datetime, dict[str, float]] = {}
    for one in counted:
        sums = found.setdefault(one.minute, {})
        for series, number in one.counts.items():
            sums[series] = sums.get(series, 0) + number
    return [{"minute": datetime_text(minute), "counts": {**sums}} for minute, sums in found.items()]
