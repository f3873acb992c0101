"""Schedules as a store keeps them, and the methods of a store that keeps schedules."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime
from typing import Protocol, TypeGuard

import attrs

from lro._base.by_fields import ByFields


@attrs.frozen(kw_only=True, eq=False, repr=False)
class Schedule(ByFields):
    """A stored schedule of periodic starts. All times are in UTC."""

    name: str
    method: str
    """The full name of the method whose operations the schedule starts."""
    expression: str
    """The cron expression, or ``every`` and the interval."""
    timezone: str
    """The name of the cron expression's time zone."""
    last_tick: datetime | None = None
    """The latest tick for which an operation was started; None if there is none."""
    next_tick: datetime
    """The first tick after ``tick``."""
    tick: datetime
    """The latest tick that was begun or skipped; before the first tick, the declaration's time."""
    begun_time: datetime | None = None
    """When starts for ``tick`` were first tried; None after a success or the last try."""
    version: int = 1
    """The number of times the schedule was written."""

    def as_text(self) -> str:
        """Return the schedule as JSON, for a store that keeps texts."""
        shown = attrs.asdict(self)
        times = {key: one.isoformat() for key, one in shown.items() if isinstance(one, datetime)}
        return json.dumps(shown | times)

    @classmethod
    def from_text(cls, text: str) -> Schedule:
        """Read a schedule from a text of this or a later release."""
        found = json.loads(text)
        known = {field.name: found[field.name] for field in attrs.fields(cls)}
        for key in ("last_tick", "next_tick", "tick", "begun_time"):
            known[key] = None if known[key] is None else datetime.fromisoformat(known[key])
        return cls(**known)


class ScheduleStore(Protocol):
    """An optional interface of stores: the store also keeps schedules."""

    def now(self) -> datetime:
        """Return the time of the store's clock, in UTC."""
        ...

    def schedules(self) -> Sequence[Schedule]:
        """Read all schedules, by name.

        Raises:
            Unavailable: The store cannot be read now.
        """
        ...

    def note_tick(self, schedule: Schedule) -> bool:
        """Store a schedule if the store has its previous version, or no schedule of this name.

        Returns:
            True if the schedule is stored. Of several processes that write the same version, only
            one gets True.

        Raises:
            Unavailable: The store cannot be written to now.
        """
        ...


def keeps_schedules(store: object) -> TypeGuard[ScheduleStore]:
    """Return True if a store has the methods of a :class:`ScheduleStore`."""
    return all(hasattr(store, verb) for verb in ("schedules", "note_tick"))
