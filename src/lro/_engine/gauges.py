"""Values of the observed metrics, which are read when metrics are collected."""

from __future__ import annotations

import contextlib
import math
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Final, TypeAlias

from lro._base.errors import LroError
from lro._engine import metrics
from lro._engine.executor_port import ExecutorUsage
from lro._engine.live_workers import served_methods
from lro._engine.local_work import LocalWork
from lro._engine.method_spec import MethodSpec
from lro._engine.metrics import METHOD, Metric
from lro._engine.runtime import Runtime
from lro._engine.store_port import WaitingWork
from lro._engine.waiting import Waiters

Reading: TypeAlias = tuple[Mapping[str, str], float]
"""The attributes of a value, and the value."""

_Waiting: TypeAlias = tuple[Mapping[str, str], WaitingWork, float, bool]
"""The waiting work of a method.

The items are the attributes of the values, the work, the seconds since the first of this work was
due, and whether the method is paused.
"""

QUEUE_SECONDS: Final = 15.0
"""Seconds for which the counts of waiting work are remembered."""

_PENDING: Final = {"lro.state": "pending"}
_EXECUTING: Final = {"lro.state": "executing"}


class Gauges:
    """Reads the ``observed`` metrics of one service."""

    def __init__(
        self, runtime: Runtime, specs: Mapping[str, MethodSpec], work: LocalWork, waiters: Waiters
    ) -> None:
        self._runtime = runtime
        self._specs = specs
        self._work = work
        self._waiters = waiters
        self._queue = _Queue(runtime)
        self._readers: Mapping[str, Callable[[], Iterator[Reading]]] = {
            metrics.ACTIVE.name: self._active,
            metrics.MAX_AGE.name: self._ages,
            metrics.WAITERS.name: self._waiting,
            metrics.EXECUTOR_USAGE.name: self._usage,
            metrics.EXECUTOR_LIMIT.name: self._limits,
            metrics.QUEUE_OPERATIONS.name: self._queue_counts,
            metrics.QUEUE_AGE.name: self._queue_ages,
            metrics.PAUSED.name: self._paused,
        }

    def read(self, metric: Metric) -> Iterator[Reading]:
        """Return the present values of an observed metric; this may read the store.

        No error is raised if the store is unavailable.
        """
        return self._readers[metric.name]()

    def _active(self) -> Iterator[Reading]:
        counts = Counter({(name, state): 0 for name in self._methods for state in (False, True)})
        for attempt in self._work.attempts():
            counts[attempt.method, attempt.executing] += 1  # its method may be declared just now
        for (name, executing), count in counts.items():
            yield {METHOD: name, **(_EXECUTING if executing else _PENDING)}, count

    def _ages(self) -> Iterator[Reading]:
        oldest: dict[str, datetime] = {}
        for attempt in self._work.attempts():
            created = attempt.create_time
            oldest[attempt.method] = min(created, oldest.get(attempt.method, created))
        if oldest:
            now = self._runtime.store.now()
            for name, created in oldest.items():
                yield {METHOD: name}, max(0.0, (now - created).total_seconds())

    def _queue_counts(self) -> Iterator[Reading]:
        for attributes, work, *_ in self._queue.read(self._methods):
            yield {**attributes, "lro.due": "true"}, work.due
            yield {**attributes, "lro.due": "false"}, work.count - work.due

    def _queue_ages(self) -> Iterator[Reading]:
        for attributes, _, age, _ in self._queue.read(self._methods):
            yield attributes, age

    def _paused(self) -> Iterator[Reading]:
        for _, work, _, paused in self._queue.read(self._methods):
            yield {METHOD: work.method}, int(paused)

    @property
    def _methods(self) -> Collection[str]:
        return [name for name, spec in list(self._specs.items()) if spec.function is not None]

    def _waiting(self) -> Iterator[Reading]:
        yield {"lro.waiter.kind": "wait"}, self._waiters.waits
        yield {"lro.waiter.kind": "watch"}, self._waiters.streams

    @property
    def _executor(self) -> ExecutorUsage | None:
        usage: ExecutorUsage | None = getattr(self._runtime.executor, "usage", None)
        return usage

    def _usage(self) -> Iterator[Reading]:
        if (usage := self._executor) is not None:
            yield {}, usage.running

    def _limits(self) -> Iterator[Reading]:
        if (usage := self._executor) is not None and usage.workers is not None:
            yield {}, usage.workers


class _Queue:
    """Counts of waiting work, remembered for a while, because the store reads an index to count."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._lock = threading.Lock()
        self._read_at = -math.inf
        self._known: Sequence[_Waiting] = ()

    def read(self, methods: Collection[str]) -> Sequence[_Waiting]:
        """Return the waiting work of each method that has some.

        Methods that are in ``methods``, served or paused are returned even without waiting work.
        """
        with self._lock:
            at = self._runtime.clock()
            if at - self._read_at >= QUEUE_SECONDS:
                self._read_at, self._known = at, ()
                with contextlib.suppress(LroError):  # the store is unavailable: logged elsewhere
                    self._known = self._counted(methods)
            return self._known

    def _counted(self, methods: Collection[str]) -> Sequence[_Waiting]:
        store, renamed = self._runtime.store, self._runtime.events.renamed
        waiting, now = store.waiting(), store.now()
        paused = {renamed.get(name, name) for name in store.paused()}
        served = served_methods(store.workers(), now)
        # Counts of 0 are returned, too: autoscaling cannot use a series that exists only while work
        # waits.
        found = {
            method: WaitingWork(method, 0, now, 0)
            for method in sorted({*methods, *served, *paused})
        }
        found |= {work.method: work for work in waiting}
        return [
            (
                {METHOD: work.method, "lro.served": str(work.method in served).lower()},
                work,
                max(0.0, (now - work.due_time).total_seconds()),
                renamed.get(work.method, work.method) in paused,
            )
            for work in found.values()
        ]
