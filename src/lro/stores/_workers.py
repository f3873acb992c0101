"""Conversion of workers to and from rows, and detection of lost workers."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from datetime import datetime, timedelta
from typing import Any, Final, TypeAlias

import attrs

from lro._engine.store_port import Orphans, Renewed, Worker
from lro._messages.json_text import dumps, reread
from lro._model.operation import Record
from lro.stores._rows import micros, moment
from lro.stores._turns import UNBEGUN

_COUNTED: Final = ("running", "held_until")
COLUMNS: Final = tuple(f.name for f in attrs.fields(Worker) if f.name not in _COUNTED)
"""Columns in the order of :func:`to_row`."""
LIST_WORKERS: Final = f"""SELECT {", ".join(COLUMNS)}, coalesce(running, 0), held_until
    FROM lro_workers LEFT JOIN (
        SELECT owner, count(*) AS running, max(lease_until) AS held_until
        FROM lro_operations WHERE owner <> '' GROUP BY owner
    ) AS held USING (owner) ORDER BY start_time, owner"""
"""Query for the rows of :func:`from_row`."""

FORGOTTEN: Final = timedelta(days=1)
"""Time without a sign of life after which a worker is forgotten."""

Hold: TypeAlias = tuple[str, int | None, bool | int, int]
"""An owner of work, its ``alive_until``, True if the owner is lost, and the end of its last lease.

If the owner is empty, the last field is the earliest ``begin_before`` of waiting work.
"""

HOLDS: Final = f"""SELECT o.owner, w.alive_until, coalesce(w.lost, 0), max(o.lease_until)
    FROM lro_operations o LEFT JOIN lro_workers w ON w.owner = o.owner
    WHERE o.owner <> '' AND o.lease_until IS NOT NULL
    GROUP BY o.owner, w.alive_until, w.lost
    UNION ALL SELECT '', NULL, 0, begin_before FROM (
        SELECT begin_before FROM lro_operations WHERE {UNBEGUN} ORDER BY begin_before LIMIT 1
    ) AS next"""
"""Query for all :data:`Hold` rows."""


def to_row(worker: Worker) -> tuple[object, ...]:
    """Return the values of a worker's columns."""
    methods = dumps([*worker.methods]).decode()
    times = worker.start_time, worker.seen_time, worker.alive_until
    first = worker.owner, worker.host, worker.pid, worker.version, methods, worker.capacity
    return *first, *map(micros, times), int(worker.lost)


def from_row(row: Sequence[Any]) -> Worker:
    """Return the worker of a row of :data:`LIST_WORKERS`."""
    owner, host, pid, version, methods, capacity, started, seen, until, lost, running, held = row
    known: Any = reread(methods)
    return Worker(
        owner=owner,
        host=host,
        pid=pid,
        version=version,
        methods=tuple(known),
        capacity=capacity,
        start_time=moment(started),
        seen_time=moment(seen),
        alive_until=moment(until),
        lost=bool(lost),
        running=running,
        held_until=None if held is None else moment(held),
    )


def orphans_of(
    holds: Iterable[Hold],
    records: Sequence[Record],
    dead: Collection[str],
    now: datetime,
    unbegun: Sequence[Record] = (),
) -> Orphans:
    """Return the owners and the work that may be lost.

    ``records`` is the work of workers that are marked as lost. ``dead`` has the owners whose
    processes have ended. ``unbegun`` is work that has missed the deadline for beginning.
    """
    overdue: dict[str, datetime | None] = {}
    ends: list[int] = []
    at = micros(now)
    for owner, alive_until, is_lost, lease_until in holds:
        if is_lost or (not owner and lease_until <= at):
            continue
        end = max(lease_until, alive_until or lease_until)
        if owner and (end <= at or owner in dead):
            overdue[owner] = None if alive_until is None else moment(alive_until)
        else:
            ends.append(end)
    return Orphans(records, overdue, dead, moment(min(ends)) if ends else None, unbegun)


def renewed_of(rows: Iterable[tuple[str, bool | int, bool | int]]) -> Renewed:
    """Return the reply to a renewal, for operations that the worker owns.

    Each row has a name, True if a cancel was requested, and True if the lease of the attempt has
    expired.
    """
    found = list(rows)
    asked = [name for name, cancel_requested, _ in found if cancel_requested]
    return Renewed(asked, [name for name, _, older in found if older])


def unknown_worker(owner: str, now: datetime) -> Worker:
    """Return a worker for an owner that has work but has never renewed."""
    return Worker(owner, "", 0, "", (), None, now, now, now)
