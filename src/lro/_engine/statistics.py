"""What happens to operations in this process, as counts that the store adds up for all of them."""

from __future__ import annotations

import logging
import threading
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping
from typing import Final, TypeAlias

from lro._engine.events import (
    AttemptBegan,
    AttemptOver,
    LeasesRenewed,
    Observer,
    OperationEnded,
    OperationsExpired,
    OperationStarted,
    WorkLost,
    WriteRefused,
)
from lro._engine.executor_port import CancelSupport
from lro._engine.metrics import BUCKETS
from lro._engine.store_port import StatisticsStore
from lro._model.operation import State

log = logging.getLogger("lro")

FLUSH_SECONDS: Final = 15.0
"""How often the store is given what was counted: a process that is killed loses so much."""

_REACHES: Final[Mapping[CancelSupport, str]] = {
    CancelSupport.NOT: "cooperative",
    CancelSupport.COOPERATIVE: "cooperative",
    CancelSupport.AT_AWAIT: "at_await",
    CancelSupport.FORCED: "forced",
}

_Key: TypeAlias = tuple[str, str, str, str]
"""A method, the kind of a series, and what tells it from others of that kind, or empty."""

_COUNTERS: Final = frozenset({"starts", "lost", "refused_writes", "expired"})
"""The kinds that have one number. The others are histograms: their buckets, and the sum."""


class Statistics(Observer):
    """Counts the events of this process, and gives them to the store every 15 seconds.

    The names of series hold names of codes and no ids, so that there are few (spec §2.1 has the
    outcomes): ``starts.started``, ``starts.refused.<CODE>``, ``ends.failed.<CODE>``,
    ``operation.<outcome>.<bucket>`` and ``operation.<outcome>.sum`` in seconds, and so on.

    ``reach`` says how far a request to cancel reaches here, ``clock`` gives seconds.
    """

    def __init__(
        self, store: StatisticsStore, reach: CancelSupport, clock: Callable[[], float]
    ) -> None:
        self._store = store
        self._reach = _REACHES[reach]
        self._clock = clock
        self._failed = False
        self.reset_after_fork()

    def reset_after_fork(self) -> None:
        """Begin with nothing counted: the rest is the parent's, which adds it itself."""
        self._lock = threading.RLock()  # the garbage collector may end work anywhere
        self._flushing = threading.Lock()
        self._counted: dict[_Key, list[float]] = {}
        self.flush_at = self._clock() + FLUSH_SECONDS
        """When :meth:`flush` is due."""

    # -- events -------------------------------------------------------------------------------

    def started(self, event: OperationStarted) -> None:
        """Count the start by what became of it."""
        self._count((event.method, "starts", event.outcome, event.error_type))

    def attempt_began(self, event: AttemptBegan) -> None:
        """Note how long the operation has waited, if this is its first attempt."""
        if event.queue_seconds is not None:
            self._observe((event.method, "queue", "", ""), event.queue_seconds)

    def attempt_over(self, event: AttemptOver) -> None:
        """Note how long the attempt took."""
        why = event.error_type if event.outcome == "failed" else ""
        self._observe((event.method, "attempt", event.outcome, why), event.seconds)

    def ended(self, event: OperationEnded) -> None:
        """Note how long the operation took, also since it was asked to stop, if it has stopped."""
        state = event.state
        why = event.error_type if state is State.FAILED else ""
        self._observe((event.method, "operation", state, why), event.seconds)
        if event.cancel_seconds is not None and state is State.CANCELLED:
            reach = self._reach if event.attempt else "withdrawn"
            self._observe((event.method, "cancel", reach, ""), event.cancel_seconds)

    def lost(self, event: WorkLost) -> None:
        """Count the lost work by what becomes of it."""
        self._count((event.method, "lost", event.decision, ""))

    def write_refused(self, event: WriteRefused) -> None:
        """Count the refused write."""
        self._count((event.method, "refused_writes", "", ""))

    def renewed(self, event: LeasesRenewed) -> None:
        """Note what was left of the leases."""
        self._observe(("", "lease_margin", "", ""), event.margin_seconds)

    def expired(self, event: OperationsExpired) -> None:
        """Count what was removed."""
        for method, number in event.methods.items():
            self._count((method, "expired", "", ""), number)

    def _count(self, key: _Key, number: int = 1) -> None:
        with self._lock:
            counted = self._counted.get(key)
            if counted is None:
                self._counted[key] = [number]
            else:
                counted[0] += number

    def _observe(self, key: _Key, seconds: float) -> None:
        place = bisect_left(BUCKETS, seconds)
        with self._lock:
            counted = self._counted.get(key)
            if counted is None:
                counted = self._counted[key] = [0] * (len(BUCKETS) + 2)
            counted[place] += 1
            counted[-1] += seconds

    # -- to the store -------------------------------------------------------------------------

    def flush(self) -> bool:
        """Give the store what was counted; what it cannot take now is kept for the next time.

        Returns:
            Whether nothing is left. A store that cannot be reached is logged once.
        """
        with self._flushing:
            self.flush_at = self._clock() + FLUSH_SECONDS
            with self._lock:
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
        with self._lock:
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
        yield name, numbers[0]
        return
    *buckets, seconds = numbers
    for place, number in enumerate(buckets):
        if number:
            yield f"{name}.{place}", number
    yield f"{name}.sum", round(seconds, 6)
    if kind == "operation":
        yield f"ends{name.removeprefix(kind)}", sum(buckets)
