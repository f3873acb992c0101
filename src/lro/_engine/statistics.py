"""Counts of a process for each minute, which the store adds up over all processes."""

from __future__ import annotations

import logging
import math
import threading
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, TypeAlias

from lro._engine.events import MetricObserver
from lro._engine.metrics import BUCKETS, METHOD, METRICS, Metric
from lro._engine.process import PerProcess
from lro._engine.store_port import StatisticsStore

log = logging.getLogger("lro")

FLUSH_SECONDS: Final = 15.0
"""Seconds between two writes of counts. A killed process loses the counts since its last write."""

_Key: TypeAlias = tuple[str, tuple[str, ...]]
"""The ``series`` of a metric, and the values of its attributes."""

_MOST_VALUES: Final = 1000
"""The maximum number of values of a key that are collected before they are counted."""

_METRICS: Final = {metric.series: metric for metric in METRICS if metric.series}


class Statistics(MetricObserver, PerProcess):
    """Observer that counts the events of this process, and adds its counts to those in the store.

    The names of series contain names of codes but no ids, so there are few series (spec §2.1 has
    the outcomes): ``starts.started``, ``starts.refused.<CODE>``, ``ends.failed.<CODE>``,
    ``operation.<outcome>.<bucket>`` and ``operation.<outcome>.sum`` in seconds, and so on. A forked
    child begins with no counts: the parent stores its own. ``clock`` returns seconds.
    """

    _failed = False

    def __init__(self, store: StatisticsStore, clock: Callable[[], float]) -> None:
        self._store = store
        self._clock = clock
        self._values: dict[str, dict[tuple[str, ...], list[float]]] = {}
        """Values that are not counted yet, by the parts of their keys.

        Threads append to each list without a lock.
        """
        self._counting = threading.Lock()
        self._counted: dict[_Key, list[float]] = {}
        """Counts that are not in the store yet. Used only with the lock ``_counting`` held."""
        self.flush_at: float = self._clock() + FLUSH_SECONDS
        """The time at which :meth:`flush` is due."""

    def record(self, metric: Metric, value: float, *attributes: str) -> None:
        """Keep a value, without waiting, in any thread. Values are counted later, many at once."""
        series = metric.series
        try:
            values = self._values[series][attributes]
        except KeyError:
            values = self._values.setdefault(series, {}).setdefault(attributes, [])
        values.append(value)
        if len(values) >= _MOST_VALUES and self._counting.acquire(blocking=False):
            try:
                self._count((series, attributes), values)
            finally:
                self._counting.release()

    def _count(self, key: _Key, values: list[float]) -> None:
        """Count the values of a key, with the lock held."""
        # A clock may have been set back, and a clock of the application may return any value. But a
        # sum must not fall, and a store keeps only finite numbers.
        some = [one if 0 <= one < math.inf else 0.0 for one in values[:]]
        del values[: len(some)]  # other threads may have appended more
        counted = self._counted.setdefault(key, [0] * (len(BUCKETS) + 2))
        counted[-1] += sum(some)
        if _METRICS[key[0]].kind == "counter":
            return
        some.sort()
        low = 0
        for place, bound in enumerate(BUCKETS):
            high = bisect_right(some, bound, low)
            counted[place] += high - low
            low = high
        counted[len(BUCKETS)] += len(some) - low

    # -- to the store -------------------------------------------------------------------------

    def flush(self) -> bool:
        """Add the counts to those in the store; if the store fails, keep them for the next flush.

        Returns:
            True if no counts are left. A store that cannot be reached is logged once.
        """
        self.flush_at = self._clock() + FLUSH_SECONDS
        with self._counting:
            for series, by_attributes in list(self._values.items()):
                for attributes, values in list(by_attributes.items()):
                    if values:
                        self._count((series, attributes), values)
            counted, self._counted = self._counted, {}
        if not counted:
            return True
        try:
            self._store.add_counts(self._store.now(), _by_series(counted))
        except Exception as exc:  # a store may raise any error, which must stop nothing else
            self._keep(counted)
            if not self._failed:
                log.warning("what was counted is kept until it can be stored: %s", exc)
            self._failed = True
            return False
        self._failed = False
        return True

    def close(self) -> None:
        """Add the last counts to those in the store; if the store fails, log that they are lost."""
        if not self.flush():
            log.warning("what was counted last cannot be stored, and is lost")

    def _keep(self, counted: Mapping[_Key, list[float]]) -> None:
        with self._counting:
            for key, numbers in counted.items():
                new = self._counted.get(key)
                sums = (
                    numbers if new is None else [a + b for a, b in zip(numbers, new, strict=True)]
                )
                self._counted[key] = sums


def _by_series(counted: Mapping[_Key, list[float]]) -> dict[str, dict[str, float]]:
    found: dict[str, dict[str, float]] = {}
    for key, numbers in counted.items():
        kind, attributes = key
        of_method = METHOD in _METRICS[kind].attributes
        method, more = (attributes[0], attributes[1:]) if of_method else ("", attributes)
        found.setdefault(method, {}).update(_series(kind, more, numbers))
    return found


def _series(
    kind: str, attributes: Sequence[str], numbers: list[float]
) -> Iterator[tuple[str, float]]:
    name = ".".join((kind, *filter(None, attributes)))
    if _METRICS[kind].kind == "counter":
        yield name, numbers[-1]
        return
    *buckets, seconds = numbers
    for place, number in enumerate(buckets):
        if number:
            yield f"{name}.{place}", number
    yield f"{name}.sum", round(seconds, 6)
    if kind == "operation":
        yield f"ends{name.removeprefix(kind)}", sum(buckets)
