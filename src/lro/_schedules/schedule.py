"""A schedule as its store keeps it, and what a store needs for that."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime
from typing import Protocol, TypeGuard

import attrs


@attrs.frozen(kw_only=True)
class Schedule:
    """A schedule of periodic starts, as its store knows it. All times are in UTC."""

    name: str
    method: str
    """The full name of the method whose operations it starts."""
    expression: str
    """The cron expression, or ``every`` and the interval."""
    timezone: str
    """The name of the time zone that the cron expression goes by."""
    last_tick: datetime | None = None
    """The latest tick for which an operation was started; None: there was none yet."""
    next_tick: datetime
    """The tick after ``tick``."""
    tick: datetime
    """The latest tick that was begun or passed over; before the first, when this was entered."""
    begun_time: datetime | None = None
    """When the start for ``tick`` was first tried; None: it worked, or was given up."""
    version: int = 1
    """Counts the writes."""

    def as_text(self) -> str:
        """Return all this as JSON, for a store that keeps texts."""
        shown = attrs.asdict(self)
        times = {key: one.isoformat() for key, one in shown.items() if isinstance(one, datetime)}
        return json.dumps(shown | times)

    @classmethod
    def from_text(cls, text: str) -> Schedule:
        """Return the schedule of a text, of this or a later release."""
        found = json.loads(text)
        known = {field.name: found[field.name] for field in attrs.fields(cls)}
        for key in ("last_tick", "next_tick", "tick", "begun_time"):
            known[key] = None if known[key] is None else datetime.fromisoformat(known[key])
        return cls(**known)


class ScheduleStore(Protocol):
    """A store that also keeps schedules. Optional."""

    def now(self) -> datetime:
        """Return the moment by the store's clock, in UTC."""
        ...

    def schedules(self) -> Sequence[Schedule]:
        """Read all schedules, by name.

        Raises:
            Unavailable: The store cannot be read now.
        """
        ...

    def note_tick(self, schedule: Schedule) -> bool:
        """Keep a schedule, unless the one of its name has another version than the one before.

        Returns:
            True if it is kept now: of several processes that write the same version, one gets this.

        Raises:
            Unavailable: The store cannot be written to now.
        """
        ...


def keeps_schedules(store: object) -> TypeGuard[ScheduleStore]:
    """Return True if a store has the methods of a :class:`ScheduleStore`."""
    return all(hasattr(store, verb) for verb in ("schedules", "note_tick"))
