"""Starts the operations of the schedules that a process declares.

A schedule is run by every process that declares it. The processes share the schedule's latest tick
in the store: a process marks the tick as begun, starts the operation, and then marks the tick as
started. The marks have versions, so only one of several processes begins a tick. If a tick has been
begun for a second but is not started, the other processes try to start the operation too, because
the first process may have been killed, or its start refused. The request id of the start is derived
from the schedule's name and the tick, so all processes start the same operation. A store keeps
request ids for a day, so a begun tick is tried for less than a day.
"""

from __future__ import annotations

import contextlib
import logging
import math
import threading
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final, cast

import attrs

from lro._base.arguments import check, check_count, check_plain_function, check_takes, contained
from lro._base.by_fields import ByFields
from lro._base.errors import DeclarationError, LroError, RequestIdConflict
from lro._schedules.schedule import Schedule, ScheduleStore, keeps_schedules

if TYPE_CHECKING:
    from lro._schedules.ticks import Ticks

log = logging.getLogger("lro")

_ON_TIME: Final = timedelta(minutes=1)
"""A tick counts as missed if no process has begun it within this time."""
_TRIED: Final = timedelta(hours=23)
"""How long processes try to start a begun tick. The store keeps request ids an hour longer."""
_AHEAD: Final = timedelta(hours=1)
_TURN: Final = timedelta(seconds=1)
"""How long other processes leave a tick to the process that has begun it."""
_FIRST_PAUSE: Final = 1.0
_LONGEST_PAUSE: Final = 60.0
"""The longest pause between two tries, in seconds."""
_LOOK_SECONDS: Final = 60.0
"""Maximum seconds between two reads of the store's clock, because the clock may be changed."""
_STOP_SECONDS: Final = 1.0
_MOST: Final = 1000
_NAMESPACE: Final = "5b0c3f0e-8f0c-4c39-9d1a-0a7d8f3f0f5e"
_LONG_AGO: Final = datetime.min.replace(tzinfo=UTC)


@attrs.define(kw_only=True, repr=False)
class _Entry(ByFields):
    """A schedule that this process has declared, and when it is due."""

    name: str
    method: str
    ticks: Ticks
    catch_up: int
    make: Callable[[datetime], object]
    """Makes the request for a tick."""
    start: Callable[[object, str], object]
    """Starts an operation with a request and a request id."""
    next: datetime = _LONG_AGO
    not_before: float = -math.inf
    pause: float = _FIRST_PAUSE
    mine: datetime | None = None
    """The latest tick that this process has begun."""
    entered: bool = False


def request_maker(request: object, name: str, cls: type) -> Callable[[datetime], object]:
    """Return a function that makes the request for a tick; a message is the request of all ticks.

    Raises:
        DeclarationError: ``request`` is neither a message nor a function.
    """
    wanted = f"a {name}, or a function of a tick's time that makes one"
    if isinstance(request, cls):
        return lambda _: request
    check("request", request, wanted, fine=callable(request) and not isinstance(request, type))
    check_plain_function("request", request)
    check_takes("request", request, 1, wanted)
    return cast("Callable[[datetime], object]", request)


class Schedules:
    """The schedules of a process. Call :meth:`run` after :meth:`due_in` seconds.

    ``clock`` measures pauses in seconds; ticks use the store's clock. ``wake`` is called when
    :meth:`due_in` may return less than before.
    """

    def __init__(self, store: object, clock: Callable[[], float], wake: Callable[[], None]) -> None:
        self._store = cast(ScheduleStore, store)  # :meth:`add` checks the type
        self._clock = clock
        self._wake = wake
        self._entries: dict[str, _Entry] = {}
        self._known: dict[str, Schedule] = {}
        """The stored schedules by name, as read or written during this call of :meth:`run`."""
        self._stopped = False
        self._thread: threading.Thread | None = None

    def reset_after_fork(self) -> None:
        """Start over in a forked child process, which inherits no threads."""
        self._thread, self._stopped = None, False
        for entry in self._entries.values():
            entry.next, entry.not_before, entry.mine = _LONG_AGO, -math.inf, None

    def add(
        self,
        name: str,
        when: str | timedelta,
        timezone: str,
        *,
        method: str,
        catch_up: int,
        make: Callable[[datetime], object],
        start: Callable[[object, str], object],
    ) -> None:
        """Declare a schedule.

        Raises:
            DeclarationError: The name is taken, or an argument is not valid.
            MissingExtra: A cron expression needs the extra ``schedules``.
        """
        fine = isinstance(name, str) and 0 < len(name) <= 200 and name.isprintable()
        check("name", name, "a text of 1 to 200 characters in one line", fine=fine)
        if name in self._entries:
            raise DeclarationError(repr(name), "is already a schedule of this service")
        check_count("catch_up", catch_up, least=0, most=_MOST)
        if not keeps_schedules(self._store):
            raise DeclarationError("schedule", "needs a store that is a lro.adapters.ScheduleStore")
        from lro._schedules.ticks import read_ticks

        ticks = read_ticks(when, timezone)
        self._entries[name] = _Entry(
            name=name, method=method, ticks=ticks, catch_up=catch_up, make=make, start=start
        )
        self._wake()

    def read(self) -> Sequence[Schedule]:
        """Read the schedules of all processes from the store, if the store keeps schedules."""
        return self._store.schedules() if keeps_schedules(self._store) else ()

    def due_in(self) -> float:
        """Return the seconds until :meth:`run` must be called. No schedules are read."""
        if not self._entries or self._thread is not None:
            return math.inf
        return min(_LOOK_SECONDS, *map(self._due_in, [*self._entries.values()]))

    def _due_in(self, entry: _Entry) -> float:
        left = (entry.next - self._store.now()).total_seconds()
        return max(left, entry.not_before - self._clock())

    def run(self, *, apart: bool) -> None:
        """Start the operations that are due; if ``apart``, in a thread, as user hooks can block."""
        if self.due_in() > 0:
            return
        if not apart:
            self._run()
            return
        thread = threading.Thread(target=self._run_apart, name="lro-schedules", daemon=True)
        self._thread = thread
        try:
            thread.start()
        except RuntimeError as exc:  # too many threads
            self._thread = None
            log.warning("schedules are delayed: %s", exc)

    def stop(self) -> None:
        """Stop starting operations."""
        self._stopped, thread = True, self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(_STOP_SECONDS)

    def _run_apart(self) -> None:
        try:
            self._run()
        finally:
            self._thread = None
            self._wake()

    def _run(self) -> None:
        self._known.clear()
        for entry in [*self._entries.values()]:
            try:
                while not self._stopped and self._due_in(entry) <= 0:
                    self._step(entry)
            except Exception as exc:  # hooks of the application can raise anything
                self._pause(entry, exc)

    def _pause(self, entry: _Entry, error: Exception) -> None:
        if entry.pause == _FIRST_PAUSE and not self._stopped:
            known = None if isinstance(error, LroError) else error
            line = "schedule %s: could not start an operation, and will try again: %s"
            log.warning(line, entry.name, error, exc_info=known)
        entry.not_before = self._clock() + entry.pause
        entry.pause = min(2 * entry.pause, _LONGEST_PAUSE)

    def _step(self, entry: _Entry) -> None:
        """Begin or start the due tick of a schedule, or find out when its next tick is due."""
        now, ticks = self._store.now(), entry.ticks
        if not self._known:
            self._known = {one.name: one for one in self._store.schedules()}
        known = self._known.get(entry.name)
        plan = ticks.expression, ticks.timezone
        if known is None or (not entry.entered and (known.expression, known.timezone) != plan):
            # A new or changed schedule has missed no ticks.
            self._note(entry, known, tick=now if known is None else max(now, known.tick))
            return
        if not entry.entered and known.tick > now + _AHEAD:
            line = "schedule %s: starts nothing before %s, because the store's clock was ahead"
            log.warning(line, entry.name, known.next_tick)
        entry.entered, begun_time = True, known.begun_time
        if begun_time is not None and now - begun_time >= _TRIED:
            line = "schedule %s: gives up the tick %s, whose operation may have been started"
            log.warning(line, entry.name, known.tick)
            self._note(entry, known, tick=known.tick)
            return
        first = entry.next = known.tick if begun_time else ticks.after(known.tick)
        if first > now:
            return
        due = ticks.latest(known.tick, now, max(1, entry.catch_up))
        if begun_time:
            due.insert(0, known.tick)
        on_time = now - due[-1] <= _ON_TIME or (begun_time is not None and len(due) == 1)
        count = max(entry.catch_up, int(on_time))
        wanted = due[-count:] if count else []
        if begun_time and wanted[:1] == [first]:
            if entry.mine != first and timedelta(0) <= now - begun_time < _TURN:
                entry.not_before = self._clock() + _TURN.total_seconds()
                return
        else:
            tick = wanted[0] if wanted else due[-1]
            changed = self._note(entry, known, tick=tick, begun_time=now if wanted else None)
            if changed is None:  # another process was first
                return
            if first < tick or not wanted:
                line = "schedule %s: missed the ticks from %s to before %s, and does not start them"
                log.warning(line, entry.name, first, tick if wanted else now)
            if not wanted:
                return
            known, entry.mine, entry.pause = changed, tick, _FIRST_PAUSE
        self._start(entry, known)

    def _start(self, entry: _Entry, begun: Schedule) -> None:
        import uuid

        text = f"{entry.name}\n{begun.tick.isoformat()}"
        request = contained("request", entry.make, begun.tick.astimezone(entry.ticks.zone))
        with contextlib.suppress(RequestIdConflict):  # started before, with a different request
            entry.start(request, str(uuid.uuid5(uuid.UUID(_NAMESPACE), text)))
        self._note(entry, begun, tick=begun.tick, last_tick=begun.tick)
        entry.pause = _FIRST_PAUSE

    def _note(
        self,
        entry: _Entry,
        known: Schedule | None,
        *,
        tick: datetime,
        begun_time: datetime | None = None,
        last_tick: datetime | None = None,
    ) -> Schedule | None:
        """Write the next version of a schedule; return None if another process was first."""
        schedule = Schedule(
            name=entry.name,
            method=entry.method,
            expression=entry.ticks.expression,
            timezone=entry.ticks.timezone,
            last_tick=last_tick or (None if known is None else known.last_tick),
            next_tick=entry.ticks.after(tick),
            tick=tick,
            begun_time=begun_time,
            version=known.version + 1 if known else 1,
        )
        if self._store.note_tick(schedule):
            self._known[entry.name] = schedule
            return schedule
        entry.not_before = self._clock() + _TURN.total_seconds()
        return None
