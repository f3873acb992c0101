"""What happens to operations in this process, as counts that the store adds up for all of them."""

from __future__ import annotations

import logging
import math
import threading
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping
from typing import Final, TypeAlias

from lro._engine.events import FactCounter, LeasesRenewed, OperationsExpired, WorkLost, WriteRefused
from lro._engine.metrics import BUCKETS
from lro._engine.process import PerProcess
from lro._engine.store_port import StatisticsStore
from lro._model.operation import Record, State

log = logging.getLogger("lro")

FLUSH_SECONDS: Final = 15.0
"""How often the store is given what was counted: a process that is killed loses so much."""

_Key: TypeAlias = tuple[str, str, str, str]
"""A method, the kind of its series, an outcome or the like, and the name of a code; or empty."""

_FACTS: Final = 1000
"""How many facts of a key are noted before they are counted, if that is not yet due."""

_FAILED: Final = State.FAILED
_CANCELLED: Final = State.CANCELLED

_COUNTERS: Final = frozenset({"starts", "lost", "refused_writes", "expired", "expiries"})
"""The kinds that have one number. The others are histograms: their buckets, and the sum."""


class Statistics(PerProcess, FactCounter):
    """Counts what happens in this process, and gives that to the store every 15 seconds.

    It observes what is rare. What happens with each operation is noted as plain facts instead, so
    that no event need be made.

    The names of series hold names of codes and no ids, so that there are few (spec §2.1 has the
    outcomes): ``starts.started``, ``starts.refused.<CODE>``, ``ends.failed.<CODE>``,
    ``operation.<outcome>.<bucket>`` and ``operation.<outcome>.sum`` in seconds, and so on.

    ``reach`` says how far a request to cancel reaches here, ``clock`` gives seconds.
    """

    def __init__(self, store: StatisticsStore, reach: str, clock: Callable[[], float]) -> None:
        self._store = store
        self._reach = reach
        self._clock = clock
        self._failed = False
        self._facts: dict[_Key, list[float]] = {}
        """What is not counted yet. Each list stays: other threads add to it without a lock."""
        self._counting = threading.Lock()
        self._counted: dict[_Key, list[float]] = {}
        """Used with that lock held."""
        self.flush_at: float = self._clock() + FLUSH_SECONDS
        """When :meth:`flush` is due."""

    # -- what happens -------------------------------------------------------------------------

    def note(self, method: str, kind: str, what: str, why: str, number: float = 1) -> None:
        """Take a fact down, in whatever thread: the number of a counter, or seconds.

        They are counted later, many at once: those who start and end operations wait for no lock.
        """
        key = method, kind, what, why
        try:
            facts = self._facts[key]
        except KeyError:
            facts = self._facts.setdefault(key, [])
        facts.append(number)
        if len(facts) >= _FACTS and self._counting.acquire(blocking=False):
            try:
                self._count(key, facts)
            finally:
                self._counting.release()

    def note_end(
        self, after: Record, why: str, seconds: float, cancel_seconds: float | None
    ) -> None:
        """Take down how long an operation took, also since it was asked to stop, if it has stopped.

        ``why`` is the name of the code of its error.
        """
        state = after.state
        self.note(after.method, "operation", state, why if state is _FAILED else "", seconds)
        if cancel_seconds is not None and state is _CANCELLED:
            reach = self._reach if after.attempt else "withdrawn"
            self.note(after.method, "cancel", reach, "", cancel_seconds)

    def lost(self, event: WorkLost) -> None:
        """Count the lost work by what becomes of it."""
        self.note(event.method, "lost", event.decision, "")

    def write_refused(self, event: WriteRefused) -> None:
        """Count the refused write."""
        self.note(event.method, "refused_writes", "", "")

    def renewed(self, event: LeasesRenewed) -> None:
        """Note what was left of the lease."""
        self.note("", "lease_margin", "", "", event.margin_seconds)

    def expired(self, event: OperationsExpired) -> None:
        """Count what was removed."""
        for method, number in event.methods.items():
            self.note(method, "expired", "", "", number)

    def _count(self, key: _Key, facts: list[float]) -> None:
        """Count what was noted of a key, with the lock held."""
        # A clock may have been set back, and one of the application may give anything: a sum must
        # not fall, and no store can keep what is no number.
        some = [one if 0 <= one < math.inf else 0.0 for one in facts[:]]
        del facts[: len(some)]  # others may have added to them meanwhile
        counted = self._counted.setdefault(key, [0] * (len(BUCKETS) + 2))
        counted[-1] += sum(some)
        if key[1] in _COUNTERS:
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
        """Give the store what was counted; what it cannot take now is kept for the next time.

        Returns:
            Whether nothing is left. A store that cannot be reached is logged once.
        """
        self.flush_at = self._clock() + FLUSH_SECONDS
        with self._counting:
            for key, facts in list(self._facts.items()):
                if facts:
                    self._count(key, facts)
            counted, self._counted = self._counted, {}
        if not counted:
            return True
        try:
            self._store.add_counts(self._store.now(), _by_series(counted))
        except Exception as exc:  # whatever a store raises: nothing else may fail for that
            self._keep(counted)
            if not self._failed:
                log.warning("what was counted is kept until it can be stored: %s", exc)
            self._failed = True
            return False
        self._failed = False
        return True

    def close(self) -> None:
        """Give the store the rest, and log that it is lost if that cannot be done now."""
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
        found.setdefault(key[0], {}).update(_series(key, numbers))
    return found


def _series(key: _Key, numbers: list[float]) -> Iterator[tuple[str, float]]:
    _, kind, what, why = key
    name = ".".join(part for part in (kind, what.lower(), why) if part)
    if kind in _COUNTERS:
        yield name, numbers[-1]
        return
    *buckets, seconds = numbers
    for place, number in enumerate(buckets):
        if number:
            yield f"{name}.{place}", number
    yield f"{name}.sum", round(seconds, 6)
    if kind == "operation":
        yield f"ends{name.removeprefix(kind)}", sum(buckets)
