"""Schedules: each tick starts one operation, even if clocks change or processes die."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from zoneinfo import ZoneInfo

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import lro
from lro.adapters import Record, Schedule, Store
from lro.errors import MissingExtra
from lro.executors.inline import InlineExecutor
from lro.stores.memory import MemoryStore
from lro.testing import ManualClock
from tests.waiting import PATIENCE, until

NAME: Final = "acme.reports.v1.Reports.Write"
MINUTE: Final = timedelta(minutes=1)
DAY: Final = timedelta(days=1)
NOON: Final = datetime(2026, 6, 1, 12, tzinfo=UTC)


@lro.message("acme.reports.v1.WriteRequest")
@attrs.frozen
class WriteRequest:
    tick: str = ""


class Reports:
    """A process with a method. ``written`` lists the ticks in the method's requests, in UTC."""

    def __init__(self, store: Store, clock: ManualClock, **options: Any) -> None:
        self.written: list[datetime] = []
        self.clock = clock
        self.seconds, self._looked = 0.0, clock()
        self.service = lro.Service(
            store, InlineExecutor(), maintenance=False, clock=lambda: self.seconds, **options
        )

        @self.service.method(NAME)
        def write(request: WriteRequest) -> None:
            self.written.append(datetime.fromisoformat(request.tick).astimezone(UTC))

        self.write = write

    def schedule(self, when: str | timedelta, name: str = "reports", **options: Any) -> Reports:
        """Declare a schedule that starts the method at each tick."""
        self.service.schedule(name, when, self.write, request_of, **options)
        return self

    def run(self) -> Sequence[datetime]:
        """Run maintenance, which starts due ticks, and return the ticks added to ``written``.

        Pauses of maintenance end even if the store's clock stands still or was set back.
        """
        before, moved = len(self.written), (self.clock() - self._looked).total_seconds()
        self.seconds, self._looked = self.seconds + (moved if moved > 0 else 61), self.clock()
        self.service.run_maintenance()
        return self.written[before:]

    def run_until(self, end: datetime, step: timedelta = MINUTE) -> Sequence[datetime]:
        """Advance the clock in steps, run maintenance after each step, and return the new ticks."""
        before = len(self.written)
        while self.clock() < end:
            self.clock.advance(step.total_seconds())
            self.run()
        return self.written[before:]

    @property
    def known(self) -> Schedule:
        """The only schedule, as stored."""
        (found,) = self.service.schedules()
        return found


def request_of(tick: datetime) -> WriteRequest:
    return WriteRequest(tick.isoformat())


def reports_at(moment: datetime, when: str | timedelta = "0 3 * * *", **options: Any) -> Reports:
    """Create a process with its own store and a schedule that begins at this moment."""
    if isinstance(when, str):
        pytest.importorskip("cronsim")
    clock = ManualClock(moment)
    made = Reports(MemoryStore(clock), clock).schedule(when, **options)
    assert made.run() == []
    return made


# -- ticks --------------------------------------------------------------------------------------

TIMES: Final = [
    # zone, day of the clock change, expression, ticks on that day in UTC
    ("Europe/Berlin", "2026-03-29", "30 2 * * *", "01:00"),
    ("Europe/Berlin", "2026-03-29", "30 3 * * *", "01:30"),
    ("Europe/Berlin", "2026-03-29", "*/30 1-3 * * *", "00:00 00:30 01:00 01:30"),
    ("Europe/Berlin", "2026-10-25", "30 2 * * *", "00:30"),
    ("Europe/Berlin", "2026-10-25", "30 3 * * *", "02:30"),
    ("Europe/Berlin", "2026-10-25", "*/30 2 * * *", "00:00 00:30 01:00 01:30"),
    ("Europe/Berlin", "2026-10-25", "*/30 2 25 10 *", "00:00 00:30 01:00 01:30"),
    ("America/New_York", "2026-03-08", "30 2 * * *", "07:00"),
    ("America/New_York", "2026-03-08", "*/30 1-3 * * *", "06:00 06:30 07:00 07:30"),
    ("America/New_York", "2026-11-01", "30 1 * * *", "05:30"),
    ("America/New_York", "2026-11-01", "*/30 1 * * *", "05:00 05:30 06:00 06:30"),
    ("Australia/Lord_Howe", "2026-10-04", "15 2 * * *", "15:30"),
    ("Australia/Lord_Howe", "2026-10-04", "*/15 1-2 * * *", "14:30 14:45 15:00 15:15 15:30 15:45"),
    ("Australia/Lord_Howe", "2026-04-05", "45 1 * * *", "14:45"),
    ("Australia/Lord_Howe", "2026-04-05", "*/15 1 * * *", "14:00 14:15 14:30 14:45 15:00 15:15"),
    ("Australia/Lord_Howe", "2026-04-05", "5 */2 * * *", "13:05 15:35 17:35 19:35"),
    ("UTC", "2026-03-29", "30 2 * * *", "02:30"),
]


@pytest.mark.parametrize(("zone", "day", "expression", "times"), TIMES)
def test_ticks_at_a_daylight_saving_change_are_as_documented(
    zone: str, day: str, expression: str, times: str
) -> None:
    """On the day of a clock change, skipped and repeated local times tick as documented."""
    begin = datetime.fromisoformat(day).replace(tzinfo=ZoneInfo(zone)).astimezone(UTC)
    reports = reports_at(begin - timedelta(seconds=1), expression, timezone=zone)
    found = [f"{tick:%H:%M}" for tick in reports.run_until(begin + timedelta(hours=8))]
    assert found == times.split()


@pytest.mark.parametrize("zone", ["Europe/Berlin", "America/New_York", "Australia/Lord_Howe"])
def test_each_day_of_a_year_has_one_tick(zone: str) -> None:
    """A daily schedule ticks once a day, also when the local hour is skipped or comes twice."""
    begin = datetime(2026, 1, 1, tzinfo=ZoneInfo(zone)).astimezone(UTC)
    reports = reports_at(begin, "15 2 * * *", timezone=zone)
    end = datetime(2027, 1, 1, tzinfo=ZoneInfo(zone)).astimezone(UTC)
    found = reports.run_until(end, timedelta(hours=6))
    days = [tick.astimezone(ZoneInfo(zone)).date() for tick in found]
    assert days == [datetime(2026, 1, 1).date() + number * DAY for number in range(365)]


@st.composite
def fields(draw: st.DrawFn, most: int) -> tuple[str, frozenset[int]]:
    """Draw a field of a cron expression and the numbers that it matches."""
    numbers = range(most + 1)
    if draw(st.booleans()):
        step = draw(st.sampled_from([1, 2, 7, 15, 20]))
        return ("*" if step == 1 else f"*/{step}"), frozenset(numbers[::step])
    chosen = draw(st.sets(st.sampled_from(numbers), min_size=1, max_size=4))
    return ",".join(map(str, sorted(chosen))), frozenset(chosen)


CHANGED: Final = [
    ("Europe/Berlin", datetime(2026, 3, 28, 20, tzinfo=UTC)),
    ("Europe/Berlin", datetime(2026, 10, 24, 20, tzinfo=UTC)),
    ("America/New_York", datetime(2026, 3, 8, 1, tzinfo=UTC)),
    ("America/New_York", datetime(2026, 11, 1, 1, tzinfo=UTC)),
    ("Australia/Lord_Howe", datetime(2026, 4, 4, 10, tzinfo=UTC)),
    ("Australia/Lord_Howe", datetime(2026, 10, 3, 10, tzinfo=UTC)),
    ("UTC", datetime(2026, 3, 28, 20, tzinfo=UTC)),
]
"""Time zones, and moments some hours before their clocks change."""


def expected(
    zone: str, begin: datetime, end: datetime, fits: Callable[[datetime], bool], *, fixed: bool
) -> Iterator[datetime]:
    """Yield the ticks between two moments, found by testing each minute."""
    shown = begin.astimezone(ZoneInfo(zone)).replace(tzinfo=None)
    moment = begin
    while (moment := moment + MINUTE) <= end:
        local = moment.astimezone(ZoneInfo(zone))
        before, shown = shown, local.replace(tzinfo=None, fold=0)
        skipped = range(1, (shown - before) // MINUTE)
        if not fixed:
            if fits(shown):
                yield moment
        elif (fits(shown) and not local.fold) or any(fits(before + n * MINUTE) for n in skipped):
            yield moment


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(CHANGED),
    fields(59),
    fields(23),
    st.lists(st.integers(1, 400), min_size=1, max_size=9),
)
def test_each_tick_around_a_change_comes_once(
    change: tuple[str, datetime],
    minutes: tuple[str, frozenset[int]],
    hours: tuple[str, frozenset[int]],
    steps: list[int],
) -> None:
    """Around a clock change no tick is left out or repeated, whatever the steps of the clock."""
    (zone, begin), (minute, m), (hour, h) = change, minutes, hours
    reports = reports_at(begin, f"{minute} {hour} * * *", timezone=zone, catch_up=1000)
    end = begin + timedelta(hours=12)
    number = 0
    while reports.clock() < end:
        reports.clock.advance(
            minutes=min(steps[number % len(steps)], (end - reports.clock()) / MINUTE)
        )
        reports.run()
        number += 1

    def fits(shown: datetime) -> bool:
        return shown.minute in m and shown.hour in h

    fixed = "*" not in minute + hour
    assert reports.written == [*expected(zone, begin, end, fits, fixed=fixed)]


def test_intervals_tick_at_whole_multiples() -> None:
    """Intervals are counted from 1970, whenever the process began."""
    reports = reports_at(NOON + timedelta(minutes=7), timedelta(minutes=20))
    assert reports.known.expression == "every 0:20:00"
    found = reports.run_until(NOON + timedelta(hours=1))
    assert found == [NOON + timedelta(minutes=20 * number) for number in (1, 2, 3)]


# -- missed ticks ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("catch_up", "days"), [(0, []), (1, [4]), (3, [2, 3, 4]), (9, [1, 2, 3, 4])]
)
def test_missed_ticks_are_started_up_to_catch_up(
    catch_up: int, days: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    """The latest missed ticks are started, oldest first. Earlier ticks are logged as missed."""
    reports = reports_at(NOON, catch_up=catch_up)
    reports.clock.advance(days=4)
    assert [tick.day - 1 for tick in reports.run()] == days
    assert ("missed the ticks from" in caplog.text) == (len(days) < 4)
    assert reports.known.next_tick == NOON.replace(day=6, hour=3)
    assert reports.run() == []


def test_a_tick_is_on_time_for_a_minute() -> None:
    """Without ``catch_up``, a tick is started up to one minute late, but not later."""
    reports = reports_at(NOON, timedelta(hours=1), catch_up=0)
    reports.clock.advance(hours=1, seconds=60)
    assert reports.run() == [NOON + timedelta(hours=1)]
    reports.clock.advance(hours=1, seconds=1)
    assert reports.run() == []
    assert reports.known.last_tick == NOON + timedelta(hours=1)


def test_operation_says_which_schedule_has_started_it() -> None:
    """An operation's origin is the schedule that started it, also for callers, or is not set."""
    reports = reports_at(NOON, MINUTE, caller="ann")
    reports.run_until(NOON + MINUTE)
    service = reports.service
    (started,) = service.list(lro.wire.ListOperationsRequest()).operations
    assert (
        service.get(started.name, view="FULL", caller="ann").description.origin
        == "schedule reports"
    )
    mine = reports.write.start(request_of(NOON)).name
    assert service.get(mine, view="FULL").description.origin == ""


def test_new_schedule_has_no_missed_ticks() -> None:
    """A schedule that is new, or has a new expression or time zone, has no missed ticks."""
    reports = reports_at(NOON, "0 3 * * *")
    assert (reports.known.last_tick, reports.known.tick) == (None, NOON)
    reports.clock.advance(days=1)
    other = Reports(reports.service.store, reports.clock).schedule("0 11 * * *")
    assert other.run() == []
    assert other.known.next_tick == NOON.replace(day=3, hour=11)


def test_restarted_process_finds_its_missed_ticks() -> None:
    """A restarted process reads its missed ticks from the store, even before the first tick."""
    reports = reports_at(NOON)
    reports.clock.advance(days=1)
    again = Reports(reports.service.store, reports.clock).schedule("0 3 * * *")
    assert again.run() == [NOON.replace(day=2, hour=3)]


# -- several processes --------------------------------------------------------------------------


def operations(store: Store) -> list[Record]:
    """Return all records, oldest first."""
    return sorted(store.page("", None, 1000).records, key=lambda record: record.create_time)


def test_processes_start_a_tick_once() -> None:
    """One process starts a tick. Other processes read in the schedule that the tick was started."""
    pytest.importorskip("cronsim")
    clock = ManualClock(NOON)
    store = MemoryStore(clock)
    crowd = [Reports(store, clock).schedule("*/10 * * * *") for _ in range(4)]
    for _ in range(60):
        clock.advance(minutes=1)
        for one in crowd:
            one.run()
    assert len(operations(store)) == 6
    assert [len(one.written) for one in crowd] == [6, 0, 0, 0]


class Killed(BaseException):
    """An error raised at the point where the process dies."""


class Dying:
    """A store whose process dies before or after the call that ``at`` selects."""

    def __init__(self, store: Store, at: Callable[[str, Any], bool], *, after: bool) -> None:
        self._store, self._at, self._after = store, at, after

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._store, name)
        if name not in ("note_tick", "insert", "insert_later"):
            return found

        def call(*given: Any, **named: Any) -> Any:
            if self._after:
                answer = found(*given, **named)
            if self._at(name, given[0]):
                raise Killed
            return answer if self._after else found(*given, **named)

        return call


POINTS: Final[dict[str, Callable[[str, Any], bool]]] = {
    "begun": lambda name, given: name == "note_tick" and given.begun_time is not None,
    "insert": lambda name, _: name.startswith("insert"),
    "started": lambda name, given: name == "note_tick" and given.last_tick is not None,
}


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("later", [timedelta(seconds=2), timedelta(hours=22), timedelta(hours=25)])
def test_a_tick_is_started_once_whoever_is_killed(
    point: str, after: bool, later: timedelta
) -> None:
    """A tick never starts twice, and starts once if another process comes within 23 hours."""
    clock = ManualClock(NOON)
    store = MemoryStore(clock)
    week = timedelta(days=7)
    dying: Any = Dying(store, POINTS[point], after=after)
    first = Reports(dying, clock).schedule(week)
    first.run()
    clock.advance(days=3, hours=12)  # this is a Thursday, and weeks count from 1970-01-01
    with pytest.raises(Killed):
        first.run()
    clock.advance(later.total_seconds())
    second = Reports(store, clock).schedule(week)
    second.run()
    clock.advance(2)
    second.run()
    was_begun = point != "begun" or after
    was_started = (point, after) in (("insert", True), ("started", False), ("started", True))
    started = was_started or later < timedelta(hours=23) or not was_begun
    assert len(operations(store)) == int(started)
    assert second.known.begun_time is None
    assert second.known.next_tick == datetime(2026, 6, 11, tzinfo=UTC)


def test_a_tick_that_another_process_has_begun_is_left_to_it_for_a_second() -> None:
    """A tick that another process has begun is started here after a second, with the same id."""
    reports = reports_at(NOON, timedelta(hours=1))
    store = reports.service.store
    tick = reports.clock.advance(hours=1)
    begun = attrs.evolve(reports.known, tick=tick, begun_time=tick, version=2)
    assert isinstance(store, MemoryStore)
    assert store.note_tick(begun)
    assert reports.run() == []
    reports.clock.advance(1)
    assert reports.run() == [tick]


# -- changed clocks and refused starts ----------------------------------------------------------


def test_a_clock_that_is_set_back_repeats_no_tick(caplog: pytest.LogCaptureFixture) -> None:
    """A clock set back by minutes or days repeats no tick. A new process logs that it waits."""
    reports = reports_at(NOON, timedelta(hours=1))
    first = reports.run_until(NOON + timedelta(hours=3))
    for back in (timedelta(minutes=90), timedelta(days=3)):
        reports.clock.advance(-back.total_seconds())
        assert reports.run() == []
        again = Reports(reports.service.store, reports.clock).schedule(timedelta(hours=1))
        again.run()
        assert again.run_until(NOON + timedelta(hours=3)) == []
    assert "starts nothing before 2026-06-01 16:00" in caplog.text
    assert [*first, *reports.run_until(NOON + timedelta(hours=5))] == [
        NOON + timedelta(hours=number) for number in range(1, 6)
    ]


def test_a_refused_start_is_tried_until_the_next_tick(caplog: pytest.LogCaptureFixture) -> None:
    """A refused start is logged once and retried until the next tick, and then logged as missed."""
    allowed = False
    asked: list[str] = []

    def authorize(caller: str, rpc: str, resource: str) -> bool:
        asked.append(f"{caller} {rpc}")
        return allowed

    clock = ManualClock(NOON)
    reports = Reports(MemoryStore(clock), clock, authorize=authorize)
    reports.schedule(timedelta(hours=1), caller="clock")
    reports.run()
    reports.run_until(NOON + timedelta(minutes=90))
    assert 20 < len(asked) <= 31
    assert {*asked} == {f"clock {NAME}"}
    assert caplog.text.count("could not start an operation") == 1
    assert "missed" not in caplog.text
    reports.run_until(NOON + timedelta(hours=2))
    assert "missed the ticks from 2026-06-01 13:00" in caplog.text
    allowed = True
    assert reports.run() == [NOON + timedelta(hours=2)]
    assert [record.caller for record in operations(reports.service.store)] == ["clock"]


def test_started_tick_is_retried_for_23_hours(caplog: pytest.LogCaptureFixture) -> None:
    """After 23 hours a tick is given up, as the store may have forgotten its request id."""
    clock = ManualClock(NOON)
    reports = Reports(MemoryStore(clock), clock, authorize=lambda *_: False)
    reports.schedule(timedelta(days=7))
    reports.run()
    reports.run_until(NOON + timedelta(days=4), timedelta(minutes=30))
    assert "gives up the tick 2026-06-04 00:00:00+00:00, whose operation may" in caplog.text
    assert reports.known.begun_time is None
    assert operations(reports.service.store) == []


def test_a_function_of_the_tick_that_fails_is_called_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A request function that fails is called again. Its tick is in the schedule's time zone."""
    clock, ticks = ManualClock(NOON), list[datetime]()
    pytest.importorskip("cronsim")

    def request(tick: datetime) -> WriteRequest:
        ticks.append(tick)
        if len(ticks) == 1:
            raise ValueError("not ready")
        return request_of(tick)

    reports = Reports(MemoryStore(clock), clock)
    reports.service.schedule(
        "reports", "0 15 * * *", reports.write, request, timezone="Europe/Berlin"
    )
    reports.run()
    clock.advance(hours=1)
    assert reports.run() == []
    assert "not ready" in caplog.text
    assert reports.run() == [NOON + timedelta(hours=1)]
    assert [f"{tick:%H:%M %Z}" for tick in ticks] == ["15:00 CEST"] * 2


class Counted(MemoryStore):
    """A store that counts how often schedules are read."""

    read = 0

    def schedules(self) -> list[Schedule]:
        self.read += 1
        return super().schedules()


def test_store_is_not_read_between_ticks() -> None:
    """A process that has computed the next tick does not read the store before that tick."""
    clock = ManualClock(NOON)
    store = Counted(clock)
    reports = Reports(store, clock).schedule(timedelta(hours=1))
    reports.run()
    before = store.read
    reports.run_until(NOON + timedelta(minutes=59))
    assert store.read == before
    reports.run_until(NOON + timedelta(minutes=60))
    assert 0 < store.read - before <= 3


def test_many_schedules_are_read_together() -> None:
    """All due schedules are started after one read, even if another process has started some."""
    clock = ManualClock(NOON)
    store = Counted(clock)
    one, two = Reports(store, clock), Reports(store, clock)
    for reports in (one, two):
        for number in range(50):
            reports.schedule(timedelta(hours=1), f"reports {number}")
    one.run()
    assert (store.read, len(store.schedules())) == (1, 50)
    clock.advance(hours=1)
    before = store.read
    assert len(one.run()) == 50
    assert store.read == before + 1
    clock.advance(hours=1)
    first = next(known for known in store.schedules() if known.name == "reports 0")
    note_tick = store.note_tick

    def overtaken(schedule: Schedule) -> bool:
        store.note_tick = note_tick  # type: ignore[method-assign]
        assert note_tick(attrs.evolve(first, tick=clock(), last_tick=clock(), version=4))
        return note_tick(schedule)

    store.note_tick = overtaken  # type: ignore[method-assign]
    before = store.read
    assert len(two.run()) == 49
    assert store.read == before + 1
    assert {known.tick for known in store.schedules()} == {clock()}


# -- services -----------------------------------------------------------------------------------


def test_a_service_in_use_starts_what_is_due() -> None:
    """Ticks are started in their own thread, so a slow hook does not delay maintenance."""
    named, go = list[str](), threading.Event()

    def request(tick: datetime) -> WriteRequest:
        named.append(threading.current_thread().name)
        assert go.wait(PATIENCE)
        return request_of(tick)

    with lro.Service(MemoryStore(), None) as service:
        write = service.declare(NAME, request=WriteRequest, response=lro.Empty)
        service.schedule("reports", timedelta(seconds=1), write, request, parent="projects/p")
        until(lambda: named)
        assert named == ["lro-schedules"]
        go.set()
        wanted = lro.wire.ListOperationsRequest(name="projects/p/operations")
        until(lambda: len(service.list(wanted).operations), lambda count: count >= 2)
        (known,) = asyncio.run(service.schedules_async())
        assert known.last_tick is not None
        assert (known.name, known.method, known.timezone) == ("reports", NAME, "UTC")


def test_closed_service_starts_no_ticks() -> None:
    reports = reports_at(NOON, timedelta(hours=1))
    reports.clock.advance(hours=1)
    reports.service.close()
    assert reports.run() == []


REFUSED: Final = [
    ({"when": "0 25 * * *"}, r"'0 25 \* \* \*': is not a cron expression of .*: Bad hour"),
    ({"when": "hourly"}, "is not a cron expression"),
    ({"when": "0 0 30 2 *"}, "Bad day-of-month"),
    ({"when": "* * */20 * 1L"}, "has no tick within 50 years"),
    ({"when": 60}, "when: must be a cron expression or a timedelta, got 60"),
    ({"when": timedelta(seconds=0.5)}, "when: must be whole seconds, from 1 s to ten years"),
    ({"when": timedelta(hours=1), "timezone": "Europe/Berlin"}, "must be UTC for an interval"),
    ({"timezone": "Europe/Bonn"}, "'Europe/Bonn': is not a time zone that this machine knows"),
    ({"timezone": "Europe"}, "is not a time zone"),
    ({"timezone": None}, "timezone: must be a text"),
    ({"name": ""}, "name: must be a text of 1 to 200 characters in one line"),
    ({"name": "taken"}, "'taken': is already a schedule of this service"),
    ({"catch_up": -1}, "catch_up: must be a whole number from 0 to 1000, got -1"),
    ({"request": "x"}, "request: must be a WriteRequest, or a function of a tick's time"),
    ({"request": WriteRequest}, "request: must be a WriteRequest, or a function"),
    ({"request": lambda: WriteRequest()}, "request: must be a WriteRequest, or a function"),
    ({"method": "acme.reports.v1.Reports.Other"}, "is not declared by this service"),
    ({"caller": 5.0}, "caller: must be a text or a whole number, got 5.0"),
    ({"parent": 5}, "parent: must be a text"),
    ({"parent": "bad//"}, "parent: 'bad//' is not a valid parent: segment 2 is empty"),
]


@pytest.mark.parametrize(("changed", "text"), REFUSED)
def test_invalid_schedule_is_refused(changed: dict[str, Any], text: str) -> None:
    """The declaration of an invalid schedule raises."""
    pytest.importorskip("cronsim")
    clock = ManualClock(NOON)
    service = Reports(MemoryStore(clock), clock).schedule("0 3 * * *", "taken").service
    given = {"name": "n", "when": "0 3 * * *", "method": NAME, "request": WriteRequest()}
    with pytest.raises(lro.DeclarationError, match=text):
        service.schedule(**(given | changed))


def test_methods_of_other_services_are_refused() -> None:
    clock = ManualClock(NOON)
    one, other = (Reports(MemoryStore(clock), clock) for _ in range(2))
    with pytest.raises(lro.DeclarationError, match="is not declared by this service"):
        one.service.schedule("n", timedelta(hours=1), other.write, WriteRequest())


def test_a_store_without_schedules_is_refused() -> None:
    """With a custom store that has no schedules, the list is empty, and a declaration raises."""

    class Without:
        def __init__(self, store: Store) -> None:
            self._store = store

        def __getattr__(self, name: str) -> Any:
            if name in ("schedules", "note_tick"):
                raise AttributeError(name)
            return getattr(self._store, name)

    clock = ManualClock(NOON)
    store: Any = Without(MemoryStore(clock))
    reports = Reports(store, clock)
    assert reports.service.schedules() == ()
    with pytest.raises(lro.DeclarationError, match=r"lro\.adapters\.ScheduleStore"):
        reports.schedule(timedelta(hours=1))


def test_a_cron_expression_without_its_library_names_the_extra(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without the cron library, intervals work and cron expressions raise."""
    monkeypatch.setitem(sys.modules, "cronsim", None)
    clock = ManualClock(NOON)
    reports = Reports(MemoryStore(clock), clock).schedule(timedelta(hours=1))
    with pytest.raises(MissingExtra, match=r"a cron expression needs the extra 'schedules'"):
        reports.schedule("0 3 * * *", "nightly")
