"""Checks of stores that keep schedules (``lro.adapters.ScheduleStore``)."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

import attrs

from lro._engine.store_port import Store
from lro._schedules.schedule import Schedule, ScheduleStore, keeps_schedules
from lro.testing._samples import ManualClock, same, together

_NEVER: Final = datetime.max.replace(tzinfo=UTC)


def _schedule_of(clock: ManualClock, name: str = "nightly") -> Schedule:
    return Schedule(
        name=name,
        method="M",
        expression="0 3 * * *",
        timezone="Europe/Berlin",
        next_tick=_NEVER,
        tick=clock(),
    )


def schedules_are_stored_by_name(store: Store, clock: ManualClock) -> None:
    """All fields of a schedule are stored, and schedules are sorted by name."""
    if not keeps_schedules(store):
        return
    same(list(store.schedules()), [], "the schedules of a new store")
    first = _schedule_of(clock, "b ☃ '%s' ?")
    second = attrs.evolve(_schedule_of(clock, "a"), last_tick=clock.advance(1))
    whole = attrs.evolve(first, version=2, begun_time=clock.advance(0.000_001))
    for one in (first, second, whole):
        same(store.note_tick(one), True, "a schedule is kept")
    same(list(store.schedules()), [second, whole], "the schedules")


def schedule_needs_the_next_version(store: Store, clock: ManualClock) -> None:
    """A schedule is accepted only with the version that follows the stored version."""
    if not keeps_schedules(store):
        return
    versions = {1: True, 2: True, 4: False}
    for version in (1, 1, 3, 2, 2, 1, 4):
        schedule = attrs.evolve(_schedule_of(clock), version=version, tick=clock.advance(1))
        same(store.note_tick(schedule), versions.pop(version, False), f"version {version} is kept")
    same([one.version for one in store.schedules()], [2], "the version")


def concurrent_writes_of_a_schedule_store_one(store: Store, clock: ManualClock) -> None:
    """Of concurrent writes of the same version, one succeeds, even for a new schedule."""
    if not keeps_schedules(store):
        return
    keeping: ScheduleStore = store
    for version in range(1, 6):

        def note(number: int, version: int = version) -> bool:
            schedule = _schedule_of(clock)
            return keeping.note_tick(attrs.evolve(schedule, version=version, method=f"M{number}"))

        kept = together(4, note)
        same((kept.count(True), kept.count(False)), (1, 3), f"how many keep version {version}")
        same(keeping.schedules()[0].method, f"M{kept.index(True)}", "whose schedule is kept")
