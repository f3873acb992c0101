"""The ticks of a schedule, from a cron expression in a time zone or from an interval.

The library cronsim reads the expressions. Clock changes are handled as in Debian's cron. A job at a
fixed time runs right after the change if the change skips its time, and runs only once if its time
comes twice. A job whose minutes or hours begin with ``*`` follows the wall clock. This module
handles such wall-clock jobs itself, because cronsim loses ticks where a clock changes by less than
an hour.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Final

import attrs

from lro._base.arguments import check, check_text
from lro._base.by_fields import ByFields
from lro._base.errors import DeclarationError, MissingExtra

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_NEVER: Final = datetime.max.replace(tzinfo=UTC)
_SECOND: Final = timedelta(seconds=1)
_DAY: Final = timedelta(days=1)


@attrs.frozen(eq=False, repr=False)
class Ticks(ByFields):
    """The ticks of a schedule: times in UTC, in whole seconds."""

    expression: str
    timezone: str
    zone: tzinfo
    interval: timedelta | None = None

    def after(self, moment: datetime) -> datetime:
        """Return the first tick after a time."""
        if self.interval is not None:
            return _EPOCH + ((moment - _EPOCH) // self.interval + 1) * self.interval
        fields = self.expression.split()
        if len(fields) == 5 and not any(one.startswith("*") for one in fields[:2]):
            return self._fixed_after(moment)
        start, back = moment.replace(microsecond=0), timedelta(0)
        while True:
            offset = self._offset(start)
            wall = next(self._matches((start + offset - back).replace(tzinfo=None)), None)
            if wall is None:
                return _NEVER
            tick = wall.replace(tzinfo=UTC) - offset
            # If the clock goes back within a day, it shows again times that it showed before
            # ``start``. These may match earlier than ``tick``, so a day after ``start`` is probed.
            probes = (min(tick, start + _DAY), tick)
            changed = [probe for probe in probes if self._offset(probe) != offset]
            if not changed:
                return tick
            start, back = self._change(start, changed[0], offset), _SECOND

    def latest(self, after: datetime, until: datetime, most: int) -> list[datetime]:
        """Return, in order, the last ``most`` of the ticks after ``after`` and up to ``until``."""
        span = timedelta(minutes=1)
        while True:  # search backwards in growing steps: there may be millions of ticks
            since = max(after, until - span)
            found = deque(itertools.takewhile(lambda tick: tick <= until, self._from(since)), most)
            if since == after or len(found) == most:
                return list(found)
            span = min(2 * span, until - after)

    def _from(self, moment: datetime) -> Iterator[datetime]:
        while True:
            moment = self.after(moment)
            yield moment

    def _fixed_after(self, moment: datetime) -> datetime:
        found = (tick.astimezone(UTC) for tick in self._matches(moment.astimezone(self.zone)))
        return next((tick for tick in found if tick > moment), _NEVER)

    def _matches(self, start: datetime) -> Iterator[datetime]:
        from cronsim import CronSim

        return CronSim(self.expression, start)

    def _offset(self, moment: datetime) -> timedelta:
        return moment.astimezone(self.zone).utcoffset() or timedelta(0)

    def _change(self, before: datetime, after: datetime, offset: timedelta) -> datetime:
        """Return the first second after ``before`` whose UTC offset is not ``offset``."""
        while (left := int((after - before).total_seconds())) > 1:
            middle = before + timedelta(seconds=left // 2)
            if self._offset(middle) == offset:
                before = middle
            else:
                after = middle
        return after


def read_ticks(when: str | timedelta, timezone: str) -> Ticks:
    """Return the ticks of a cron expression in a time zone, or of an interval.

    Raises:
        DeclarationError: An argument is not valid, or the expression has no tick within 50 years.
        MissingExtra: The extra ``schedules``, which cron expressions need, is not installed.
    """
    if isinstance(when, timedelta):
        fine = _SECOND <= when <= timedelta(days=3650) and not when.microseconds
        check("when", when, "whole seconds, from 1 s to ten years", fine=fine)
        check("timezone", timezone, "UTC for an interval", fine=timezone == "UTC")
        return Ticks(f"every {when}", "UTC", UTC, when)
    check("when", when, "a cron expression or a timedelta", fine=isinstance(when, str))
    check_text("timezone", timezone, empty=False)
    from zoneinfo import ZoneInfo

    try:
        zone: tzinfo = UTC if timezone == "UTC" else ZoneInfo(timezone)
    except (KeyError, ValueError, OSError):
        text = "is not a time zone that this machine knows, such as Europe/Berlin"
        raise DeclarationError(repr(timezone), text) from None
    found = Ticks(when, timezone, zone)
    try:
        never = found.after(datetime.now(UTC)) == _NEVER
    except ImportError as exc:
        raise MissingExtra("a cron expression", "schedules") from exc
    except Exception as exc:  # cronsim can raise anything
        wanted = "is not a cron expression of minute, hour, day, month and day of the week"
        raise DeclarationError(repr(when), f"{wanted}: {exc}") from exc
    if never:
        raise DeclarationError(repr(when), "has no tick within 50 years")
    return found
