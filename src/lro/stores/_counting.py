"""Counts by time step, and the load (work in progress): functions that all stores share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, Final, TypeAlias

from lro._base.arguments import check
from lro._engine.store_port import COUNTS_LIFE, STEP_MINUTES, Load, MethodLoad
from lro._messages.json_text import reread
from lro.stores._rows import micros, moment

_MINUTE: Final = 60_000_000

PRUNED_ROWS: Final = 1000
"""Maximum number of old rows that one call of ``add_counts`` removes.

A call with counts of 300 methods adds fewer rows than this number.
"""

WAITS: Final = "owner = '' AND lease_until IS NOT NULL"
"""``Record.waits`` in SQL."""


def steps_of(minute: datetime) -> Mapping[int, int]:
    """Map each step length, in minutes, to the first minute of the step that contains ``minute``.

    The first minute is counted in minutes since 1970.
    """
    number = micros(minute) // _MINUTE
    return {step: number - number % step for step in STEP_MINUTES}


def step_since(since: datetime, step_minutes: int) -> int:
    """Return the first minute (since 1970) of the step that contains ``since``.

    Raises:
        DeclarationError: ``step_minutes`` is not one of ``STEP_MINUTES``.
    """
    fine = step_minutes in STEP_MINUTES
    check("step_minutes", step_minutes, f"one of {STEP_MINUTES}", fine=fine)
    return steps_of(since)[step_minutes]


def step_time(minute: int) -> datetime:
    """Return the time at which a step begins, given its first minute since 1970."""
    return moment(minute * _MINUTE)


def oldest_minute(now: datetime) -> int:
    """Return the oldest minute (since 1970) whose counts are kept."""
    return micros(now - COUNTS_LIFE) // _MINUTE


def numbers(text: str) -> Mapping[str, float]:
    """Parse stored counts: a number for each series name."""
    found: Any = reread(text)
    counts: Mapping[str, float] = found
    return counts


def added(before: Mapping[str, float], more: Mapping[str, float]) -> dict[str, float]:
    """Add two mappings of counts by name."""
    sums = dict(before)
    for name, number in more.items():
        sums[name] = sums.get(name, 0) + number
    return sums


LoadRow: TypeAlias = tuple[str, str, bool | int, int, int, int, str]
"""A row of the load, for the operations of one method and one owner that wait, or that run.

Its values are the method, the owner, True if the operations wait, their number, the number beyond
the limit, and the create time and the name of the oldest operation.
"""


def load_of(rows: Iterable[LoadRow]) -> Load:
    """Sum up the rows of the work in progress."""
    waiting: Counter[str] = Counter()
    running: Counter[str] = Counter()
    owners: Counter[str] = Counter()
    oldest: dict[str, tuple[int, str]] = {}
    capped = False
    for method, owner, is_waiting, count, beyond, created, name in rows:
        capped = capped or beyond > 0
        if not count:
            continue
        (waiting if is_waiting else running)[method] += count
        if owner:
            owners[owner] += count
        oldest[method] = min((created, name), oldest.get(method, (created, name)))
    methods = [
        MethodLoad(method, waiting[method], running[method], moment(created), name)
        for method, (created, name) in sorted(oldest.items())
    ]
    return Load(methods, dict(owners), capped)
