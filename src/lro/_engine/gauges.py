"""What a process has at this moment: the values of the metrics that are read when collected."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from datetime import datetime
from typing import Any, Final, TypeAlias

from lro._base.errors import LroError
from lro._engine import metrics
from lro._engine.executor_port import ExecutorUsage
from lro._engine.method_spec import MethodSpec
from lro._engine.metrics import METHOD, Metric
from lro._engine.runtime import Runtime
from lro._engine.waiting import Waiters
from lro._engine.workers import Workers

Reading: TypeAlias = tuple[Mapping[str, str], float]
"""The attributes of a value, and the value."""

MOST_COUNTED: Final = 10_000
"""So many operations in progress are counted in the store, at most."""
LOAD_SECONDS: Final = 15.0
"""How long it is remembered how many operations in progress there are in the store."""

_PENDING: Final = {"lro.state": "pending"}
_EXECUTING: Final = {"lro.state": "executing"}


class Gauges:
    """Reads the metrics of one service that are ``observed``.

    ``parents`` are those whose operations in progress are counted in the store, if it can.
    """

    def __init__(
        self,
        runtime: Runtime,
        specs: Mapping[str, MethodSpec],
        workers: Workers,
        waiters: Waiters,
        parents: Collection[str] = (),
    ) -> None:
        self._runtime = runtime
        self._specs = specs
        self._workers = workers
        self._waiters = waiters
        self._load = _StoreLoad(runtime.store, parents)
        self._readers: Mapping[str, Callable[[], Iterator[Reading]]] = {
            metrics.ACTIVE.name: self._active,
            metrics.MAX_AGE.name: self._ages,
            metrics.WAITERS.name: self._waiting,
            metrics.EXECUTOR_USAGE.name: self._usage,
            metrics.EXECUTOR_LIMIT.name: self._limits,
            metrics.STORE_OPERATIONS.name: self._load.read,
        }

    def read(self, metric: Metric) -> Iterator[Reading]:
        """The values of an observed metric now. May ask the store; raises nothing."""
        return self._readers[metric.name]()

    def _active(self) -> Iterator[Reading]:
        counts = {(name, state): 0 for name in self._methods for state in (False, True)}
        for attempt in self._workers.attempts():
            counts[attempt.method, attempt.executing] += 1
        for (name, executing), count in counts.items():
            yield {METHOD: name, **(_EXECUTING if executing else _PENDING)}, count

    def _ages(self) -> Iterator[Reading]:
        oldest: dict[str, datetime] = {}
        for attempt in self._workers.attempts():
            created = attempt.create_time
            oldest[attempt.method] = min(created, oldest.get(attempt.method, created))
        if oldest:
            now = self._runtime.store.now()
            for name, created in oldest.items():
                yield {METHOD: name}, max(0.0, (now - created).total_seconds())

    @property
    def _methods(self) -> Collection[str]:
        return [name for name, spec in self._specs.items() if spec.function is not None]

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


class _StoreLoad:
    """What a store has in progress, remembered for a while: to count it reads many rows."""

    def __init__(self, store: Any, parents: Collection[str]) -> None:
        self._read_load = getattr(store, "read_load", None) if parents else None
        self._parents = parents
        self._lock = threading.Lock()
        self._read_at = -LOAD_SECONDS
        self._known: list[Reading] = []

    def read(self) -> Iterator[Reading]:
        if self._read_load is None:
            return iter(())
        with self._lock:
            now = time.monotonic()
            if now - self._read_at >= LOAD_SECONDS:
                self._read_at = now
                self._known = list(self._counted())
            return iter(self._known)

    def _counted(self) -> Iterator[Reading]:
        assert self._read_load is not None  # else nothing is counted
        try:
            load = self._read_load(self._parents, MOST_COUNTED)
        except LroError:  # the store is away, which the log says elsewhere
            return
        for one in load.methods:
            yield {METHOD: one.method, **_PENDING}, one.waiting
            yield {METHOD: one.method, **_EXECUTING}, one.running
