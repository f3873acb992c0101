"""The states of the workers of a store, and the waiting work that no live worker declares."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final

from lro._engine.store_port import WaitingWork, Worker

IDLE_RENEWAL: Final = timedelta(minutes=1)
"""How often a process without work renews its row in the store."""
_LEASES: Final = 2
"""How many leases late an idle process may renew its row, for instance because of a slow store."""


class WorkerState(StrEnum):
    """The states of a worker, as the store knows them."""

    WORKING = "working"
    """The worker has work, and its lease is valid."""
    IDLE = "idle"
    """The worker has no work."""
    FRONT = "front"
    """The process has no workers, so it runs no work."""
    OVERDUE = "overdue"
    """The worker has work and an expired lease; other processes find out whether it is lost."""
    SILENT = "silent"
    """The worker has no work, and has not renewed its row for a minute plus two leases."""
    LOST = "lost"
    """The worker counts as lost: other processes have its work, or will claim that work."""

    @classmethod
    def of(cls, worker: Worker, now: datetime) -> WorkerState:
        """Return the state of a worker now, by the clock of its store."""
        if worker.lost:
            return cls.LOST
        if worker.running:
            until = max(worker.alive_until, worker.held_until or worker.alive_until)
            return cls.WORKING if now < until else cls.OVERDUE
        if _is_silent(worker, now):
            return cls.SILENT
        return cls.FRONT if worker.capacity == 0 else cls.IDLE


def live(workers: Sequence[Worker], now: datetime) -> list[Worker]:
    """Return the workers that can run work, are not lost, and are not silent."""
    return [
        worker
        for worker in workers
        if worker.capacity != 0 and not worker.lost and not _is_silent(worker, now)
    ]


def served_methods(workers: Sequence[Worker], now: datetime) -> frozenset[str]:
    """Return the methods that live workers declare."""
    return frozenset(method for worker in live(workers, now) for method in worker.methods)


def stranded(
    waiting: Sequence[WaitingWork],
    workers: Sequence[Worker],
    now: datetime,
    due_for: timedelta = timedelta(0),
) -> list[WaitingWork]:
    """Return the work, due for at least ``due_for``, of methods that no live worker declares."""
    served, due = served_methods(workers, now), now - due_for
    return [work for work in waiting if work.due_time <= due and work.method not in served]


def _is_silent(worker: Worker, now: datetime) -> bool:
    lease = worker.alive_until - worker.seen_time
    return now > worker.seen_time + IDLE_RENEWAL + _LEASES * lease
