"""Which workers of a store are live, and what each of them is at."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final

from lro._engine.store_port import Worker

_IDLE: Final = timedelta(minutes=1)
"""How long a process without work may be silent."""
_LEASES: Final = 2
"""How many leases more it may be silent, while its store is slow or away."""


class WorkerState(StrEnum):
    """What a worker is at, as its store knows it."""

    WORKING = "working"
    """It holds work, and has said in time that it lives."""
    IDLE = "idle"
    """It holds no work, and runs what comes."""
    FRONT = "front"
    """It has no workers, and runs nothing."""
    OVERDUE = "overdue"
    """It holds work, and its lease is over; others find out whether it is lost."""
    SILENT = "silent"
    """It holds no work, and has said nothing for a minute and two leases."""
    LOST = "lost"
    """It counts as lost: others have its work, or will have it."""


def state_of(worker: Worker, now: datetime) -> WorkerState:
    """What a worker is at, at this moment by the clock of its store."""
    if worker.lost:
        return WorkerState.LOST
    if worker.running:
        return WorkerState.WORKING if now < worker.alive_until else WorkerState.OVERDUE
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


def _is_silent(worker: Worker, now: datetime) -> bool:
    lease = worker.alive_until - worker.seen_time
    return now > worker.seen_time + _IDLE + _LEASES * lease
