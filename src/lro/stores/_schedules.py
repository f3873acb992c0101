"""The schedules of a store as rows."""

from __future__ import annotations

from typing import Final

COLUMNS: Final = "name, version, schedule"
LIST_SCHEDULES: Final = "SELECT schedule FROM schedules ORDER BY name"
NOTE_TICK: Final = f"""INSERT INTO schedules ({COLUMNS}) VALUES (?, ?, ?)
    ON CONFLICT (name) DO UPDATE SET (version, schedule) = (excluded.version, excluded.schedule)
        WHERE schedules.version = excluded.version - 1
    RETURNING 1"""
"""Takes a name, the version, and the schedule in JSON; gives a row if it has written."""
