"""The retry schedule of failed deliveries (Standard Webhooks 1.0.0, "Deliverability")."""

from __future__ import annotations

import email.utils
import re
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final

SCHEDULE: Final = (
    5.0,
    5 * 60.0,
    30 * 60.0,
    2 * 3600.0,
    5 * 3600.0,
    10 * 3600.0,
    14 * 3600.0,
    20 * 3600.0,
    24 * 3600.0,
)
"""Seconds between attempts, 75.6 hours in all. The first attempt is made at once."""

LONGEST_SECONDS: Final = 24 * 3600.0
"""The longest pause that a receiver may ask for."""

_JITTER: Final = 0.2
_SLOW_DOWN: Final = frozenset({429, 502, 503, 504})
"""Statuses for which Retry-After is honoured."""
_SECONDS: Final = re.compile(r"[0-9]{1,10}", re.ASCII)


def pause_before(attempt: int, schedule: Sequence[float], random: float) -> float | None:
    """Return the seconds to wait after this number of attempts; None after the last attempt.

    ``random``, from 0 to 1, makes the pause up to a fifth longer, so that deliveries which failed
    together are not retried together.
    """
    if attempt > len(schedule):
        return None
    return schedule[attempt - 1] * (1 + _JITTER * random)


def retry_after(status: int, header: str, now: datetime) -> float:
    """Return the pause that Retry-After asks for, in seconds or as a date (RFC 9110).

    The pause is at most a day. It is 0 if the header is not honoured for this status, or cannot be
    read.
    """
    if status not in _SLOW_DOWN:
        return 0.0
    text = header.strip()
    if _SECONDS.fullmatch(text):
        return min(float(text), LONGEST_SECONDS)
    try:
        date = email.utils.parsedate_to_datetime(text)
    except (ValueError, OverflowError):
        return 0.0
    if date.tzinfo is None:  # the zone "-0000": UTC from an unknown zone
        date = date.replace(tzinfo=UTC)
    return max(0.0, min((date - now).total_seconds(), LONGEST_SECONDS))
