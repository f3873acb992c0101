"""Which workers of a store are live, what each is at, and what none of them declares."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final

from lro._engine.store_port import WaitingWork, Worker

_IDLE: Final = timedelta(minutes=1)
"""How long a process without work may be silent."""
_LEASES: Final = 2
"""How many leases more it may be silent, while its store is slow or away."""


class WorkerState(StrEnum):
    """The states of a worker, as its store knows it."""

    WORKING = "working"
    """It holds work, and has said in time that it lives."""
    IDLE = "idle"
    """It holds no work, and runs what comes."""
    FRONT = "front"
    """It has no workers, and runs nothing."""
    OVERDUE = "overdue"
    """It holds work, and all its leases are over; others find out whether it is lost."""
    SILENT = "silent"
    """It holds no work, and has said nothing for a minute and two leases."""
    LOST = "lost"
    """It counts as lost: others have its work, or will have it."""


def state_of(worker: Worker, now: datetime) -> WorkerState:
    """Return the state of a worker now, by the clock of its store."""
    if worker.lost:
        return WorkerState.LOST
    if worker.running:
        until = max(worker.alive_until, worker.held_until or worker.alive_until)
        return WorkerState.WORKING if now < until else WorkerState.OVERDUE
    if _is_silent(worker, now):
        return WorkerState.SILENT
    return WorkerState.FRONT if worker.capacity == 0 else WorkerState.IDLE


def live(workers: Sequence[Worker], now: datetime) -> list[Worker]:
    """Those that can run work, are not lost, and are not silent."""
    return [
        worker
        for worker in workers
        if worker.capacity != 0 and not worker.lost and not _is_silent(worker, now)
    ]


def served_methods(workers: Sequence[Worker], now: datetime) -> frozenset[str]:
    """The methods that live workers declare."""
    return frozenset(method for worker in live(workers, now) for method in worker.methods)


def stranded(
    waiting: Sequence[WaitingWork], workers: Sequence[Worker], now: datetime
) -> list[WaitingWork]:
    """What is due of methods that no live worker declares."""
    served = served_methods(workers, now)
    return [work for work in waiting if work.due_time <= now and work.method not in served]


def _is_silent(worker: Worker, now: datetime) -> bool:
    lease = worker.alive_until - worker.seen_time
    return now > worker.seen_time + _IDLE + _LEASES * lease
