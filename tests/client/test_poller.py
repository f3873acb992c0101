"""Waiting for many operations together, in virtual time (spec §3.11, §11.2-§11.5)."""

from __future__ import annotations

import ast
import collections
import itertools
from typing import Any

import attrs
import pytest

import lro
from lro_client import CallError, OperationGone, Polling
from lro_client._flow.single import BATCH, LIST, WAIT, WATCH
from lro_client._watch.registry import StateChanged, WatchFailed, WatchOptions
from lro_client._watch.strategy import Scheduler, Strategy
from lro_client.transports import Call
from tests.client.schedules import main
from tests.client.virtual_server import ALL, ENTIRELY, World, error

OFFERS = {
    "watch": ALL,
    "batch": frozenset({WAIT, BATCH, LIST}),
    "list": frozenset({WAIT, LIST}),
    "get": frozenset[str](),
}


def names(count: int) -> list[str]:
    return [f"operations/{number}" for number in range(count)]


def spread(world: World, count: int, first: float = 20.0, last: float = 40.0) -> list[int]:
    """Plan operations that end one after another, and watch each of them."""
    for number, name in enumerate(names(count)):
        world.plan(name, first + (last - first) * number / count)
    return [world.watch(name) for name in names(count)]


def excess(world: World, numbers: list[int]) -> float:
    """Return the longest delay between an operation's end and the update to the listener."""
    found = []
    for number in numbers:
        [(at, news)] = world.ends(number)
        assert isinstance(news, StateChanged)
        found.append(at - world.operations[news.name].ends_at)
    return max(found)


@attrs.frozen
class Course:
    """A server, the longest delay of a final update, and how often each verb may be called."""

    late: float
    calls: dict[str, tuple[int, int]]
    world: dict[str, Any] = attrs.field(factory=dict)
    count: int = 20
    ends: tuple[float, float] = (20.0, 40.0)


MANY = 10_000
GET_ALONE: dict[str, Any] = {"offers": frozenset()}
NOTHING_HELD = Polling(jitter=0.0, wait_first=False)
HICCUP = error(lro.Code.UNAVAILABLE, http_status=503)


def refuse_many(_: float, call: Call) -> CallError | None:
    """Return PERMISSION_DENIED for every request that has several names."""
    return error(lro.Code.PERMISSION_DENIED) if hasattr(call.request, "names") else None


def losing_a_quarter(count: int, ends: float) -> Course:
    """Return a course of Gets, which see an end late by a quarter of the run time (§11.2(2))."""
    polls = int(30 + ends / 20 + 45 * (ends > 1)) * count
    late = min(max(0.25 * ends, 0.2), 20.0) + 0.02
    tried = dict.fromkeys(("Watch", "BatchGet", "List"), (0, 9))  # each is tried every ten minutes
    calls = {"Get": (1, polls), **tried}
    return Course(late, calls, {**GET_ALONE, "latency": 0.0}, count, (ends, ends))


COURSES = {
    "watch": Course(0.02, {"Watch": (1, 1)}, count=1000),
    "batch": Course(0.6, {"BatchGet": (1, 120)}, {"offers": OFFERS["batch"]}, 300),
    "list": Course(1.0, {"List": (1, 500), "Wait": (0, 9)}, {"offers": OFFERS["list"]}, 300),
    "get": Course(10.1, {"Get": (1, 1600)}, {"offers": OFFERS["get"]}, 40),
    "a Wait each costs nothing more than the end": Course(
        0.011, {"Wait": (4, 4)}, count=4, ends=(5.0, 6.0)
    ),
    "beyond six streams, batches": Course(
        0.8, {"Watch": (6, 9), "BatchGet": (1, MANY)}, count=6200
    ),
    "an unknown verb costs one call": Course(
        11.0,
        {"Watch": (1, 1), "BatchGet": (1, 1), "List": (1, MANY), "Wait": (0, 9)},
        {"offers": frozenset({LIST})},
    ),
    "lists that ignore filters are no answer": Course(
        10.1, {"List": (1, 1), "Get": (1, MANY)}, {"offers": {LIST}, "ignores_filters": True}, 200
    ),
    "lists that are cut short are asked for further": Course(
        2.0,
        {"Watch": (0, 1), "BatchGet": (0, 1), "List": (9, MANY), "Get": (0, 5)},
        {"offers": {LIST}, "page_most": 10},
        100,
    ),
    "a stream that something on the way keeps": Course(
        5.7, {"Watch": (1, 9), "BatchGet": (1, MANY)}, {"deaf": True}, 100
    ),
    "a stream that breaks is made again": Course(
        6.0, {"Watch": (2, MANY), "BatchGet": (0, MANY)}, {"cuts": 0.01}, 200
    ),
    "a transport without extensions": Course(
        1.0,
        {"List": (1, MANY), "Wait": (1, 9)},
        {"transport": ENTIRELY - {Strategy.STREAM, Strategy.BATCH}},
    ),
    "Waits that come back at once are paused between": Course(
        16.0, {"Wait": (3, 99)}, {"offers": {WAIT}, "max_hold": 0.0}, count=2, ends=(60.0, 61.0)
    ),
    "one connection is enough": Course(
        2.0, {"BatchGet": (1, MANY)}, {"polling": Polling(jitter=0.0, connections=1)}, 300
    ),
    "no held calls by choice: one": Course(
        10.1, {"Get": (1, 300), "Watch": (0, 0), "Wait": (0, 0)}, {"polling": NOTHING_HELD}, 3
    ),
    "no held calls by choice: many": Course(
        10.1,
        {"BatchGet": (1, MANY), "Watch": (0, 0), "Wait": (0, 0)},
        {"polling": NOTHING_HELD},
        30,
    ),
    "calls that fail together are one pressure": Course(
        3.0,
        {"Get": (1, MANY)},
        {**GET_ALONE, "fault": lambda now, _: HICCUP if 1003.0 <= now <= 1003.1 else None},
        60,
        (1.0, 8.0),
    ),
    "a verb that is forbidden to all is given up": Course(
        1.5, {"Watch": (1, 14), "BatchGet": (1, 14), "List": (1, MANY)}, {"fault": refuse_many}, 120
    ),
    **{
        f"polls of {count} for {ends} s": losing_a_quarter(count, ends)
        for count in (1, 10)
        for ends in (0.3, 100.0, 4000.0)
    },
}


@pytest.mark.parametrize("course", COURSES.values(), ids=COURSES)
def test_ends_are_seen_within_the_limit_with_few_calls(course: Course) -> None:
    """Each end is seen within the limit, and no verb is called more often than allowed."""
    world = World(**course.world)
    numbers = spread(world, course.count, *course.ends)
    world.run()
    assert excess(world, numbers) <= course.late
    asked = collections.Counter(world.verbs())
    verbs = ("Watch", "BatchGet", "List", "Get", "Wait")
    found = {verb: asked[f"{verb}Operation{'s' * (verb in verbs[:3])}"] for verb in verbs}
    expected = {**dict.fromkeys(verbs, (0, 1)), "Wait": (0, 9), "Get": (0, 9), **course.calls}
    outside = {
        verb: (number, expected[verb])
        for verb, number in found.items()
        if not expected[verb][0] <= number <= expected[verb][1]
    }
    assert outside == {}
    assert world.most_flying <= world.polling.connections
    assert world.registry.entries == {}


@pytest.mark.parametrize("count", [1, 4])
def test_wait_is_held_for_a_second_if_progress_is_wanted(count: int) -> None:
    """If progress is wanted, a Wait is held for only 1 s, because Wait returns only at the end."""
    world = World()
    begin = world.now
    moments = (begin + 10.0, begin + 20.0, begin + 30.0)
    for number in range(count):
        world.plan(f"operations/{number}", 60.0, changes=moments)
    numbers = [world.watch(f"operations/{one}", wants_progress=True) for one in range(count)]
    world.run()
    due = (begin, *moments, begin + 60.0)
    for number in numbers:
        seen = [at for at, _ in world.received[number]]
        assert all(0 <= at - time < 1.2 for at, time in zip(seen, due, strict=True))
    assert {*world.verbs()} == {"WaitOperation"}


def test_missing_verb_is_tried_again_after_ten_minutes() -> None:
    """A verb that the server did not offer is tried again after ten minutes."""
    world = World(offers=frozenset({WAIT}))
    for name in names(9):
        world.plan(name, 2000.0)
    for name in names(9):
        world.watch(name)
    world.run(300)
    tried = world.verbs().count("WatchOperations")
    world.offers = ALL
    world.run(400)
    assert tried == 1
    assert world.verbs().count("WatchOperations") > 1


@pytest.mark.parametrize("way", OFFERS)
def test_deleted_operation_ends_its_watch(way: str) -> None:
    world = World(offers=OFFERS[way])
    numbers = spread(world, 30)
    for number in (0, 7, 29):
        world.operations[f"operations/{number}"].gone_at = world.now + 10.0
    world.run()
    for number in numbers:
        [(_, news)] = world.ends(number)
        assert isinstance(news, WatchFailed) is (number in (0, 7, 29))
        if isinstance(news, WatchFailed):
            assert isinstance(news.error, OperationGone)
            assert news.error.code is lro.Code.NOT_FOUND


@pytest.mark.parametrize("way", OFFERS)
def test_not_found_within_ten_seconds_of_the_start_is_not_gone(way: str) -> None:
    """For ten seconds after this client started an operation, NOT_FOUND does not end the watch."""
    world = World(offers=OFFERS[way])
    numbers = spread(world, 9)
    for name, planned in world.operations.items():
        world.server.started(name, world.now)
        planned.known_at = world.now + (99.0 if name == "operations/8" else 1.5)
    began = world.now
    world.run()
    for number in numbers[:-1]:
        [(_, news)] = world.ends(number)
        assert isinstance(news, StateChanged)
    [(at, news)] = world.ends(numbers[-1])
    assert isinstance(news, WatchFailed)
    assert 10 <= at - began < 21


def test_stream_ends_after_its_last_listener_has_left() -> None:
    """The stream ends at its next message after the last listener has left."""
    world = World()
    numbers = spread(world, 10, 2000.0, 2000.0)
    world.run(1)
    assert world.flying == 1
    for number in numbers:
        world.leave(number)
    world.run(16)
    assert world.flying == 0
    assert all(world.received[number] == [] for number in numbers)


@pytest.mark.parametrize("way", OFFERS)
def test_last_poll_is_made_at_the_deadline(way: str) -> None:
    """If no poll is due before the deadline, a last poll is made at that time (§11.4(1))."""
    world = World(offers=OFFERS[way] - {WATCH}, latency=0.0)
    for name in names(8):
        world.plan(name, 999.5)
    numbers = [world.watch(name, seconds=1000.0) for name in names(8)]
    world.run(1000.02)
    for number in numbers:
        [(at, _)] = world.ends(number)
        assert at <= 2000.0 + 0.02


def test_overloaded_server_is_not_called_for_the_time_it_asks() -> None:
    """After a 429 or 503 the client does not call the server for the time in Retry-After."""

    def storm(now: float, _: Call) -> CallError | None:
        if now < 1100:
            return error(lro.Code.RESOURCE_EXHAUSTED, http_status=429, retry_after=7.0)
        return None

    world = World(offers=frozenset({BATCH}), fault=storm)
    numbers = spread(world, 1200)
    world.run()
    early = [at for at, _ in world.asked if at < 1100]
    assert len(early) <= 100 / 7 * 8
    assert {news.operation.done for number in numbers for _, news in world.ends(number)} == {True}


def test_overload_without_retry_after_doubles_the_pauses() -> None:
    """Without a Retry-After, the pauses double from 0.5 s to 30 s."""
    world = World(offers=frozenset(), fault=lambda *_: error(lro.Code.UNAVAILABLE))
    spread(world, 1)
    world.run(300)
    moments = [at for at, _ in world.asked]
    gaps = [round(b - a, 1) for a, b in itertools.pairwise(moments)]
    assert gaps[:6] == [0.5, 1.0, 2.0, 4.0, 8.0, 16.0]
    assert max(gaps) == 30.0


@pytest.mark.parametrize("way", OFFERS)
@pytest.mark.parametrize("count", [1, 6, 50])
@pytest.mark.parametrize(("answering", "seconds"), [(25.0, 599), (700.0, 599), (0.0, 59)])
def test_failures_for_ten_minutes_end_the_waits_without_a_deadline(
    answering: float, seconds: float, count: int, way: str
) -> None:
    """After ten minutes of failures the last failure is raised, unless all waits have deadlines.

    If the server has never replied, the limit is one minute, as the address may be wrong
    (§11.5(2)).
    """
    away, dies = error(lro.Code.UNAVAILABLE, passing=True), 1000.0 + answering
    world = World(offers=OFFERS[way], fault=lambda now, _: away if now >= dies else None)
    endless = spread(world, count, 9000.0, 9000.0)
    world.run(answering)
    world.break_streams()
    world.run(seconds)
    assert [world.received[number] for number in endless] == [[]] * count
    world.run(240)  # enough for one more call per operation
    for number in endless:
        [(_, news)] = world.ends(number)
        assert isinstance(news, WatchFailed)
    patient = world.watch("operations/0", seconds=7000.0)
    world.run(6000)
    assert world.received[patient] == []


def test_each_listener_is_notified_once(capsys: pytest.CaptureFixture[str]) -> None:
    """Despite failures, each listener gets one final update, and no update after it has left."""
    main(["--count", "50", "--seed", "0"])
    said, _, tally = capsys.readouterr().out.partition(": ")
    assert said == "50 schedules from seed 0"
    counted = ast.literal_eval(tally)
    assert counted["ended"] > 150
    assert min(counted[kind] for kind in ("gone", "left before", "calls failed")) > 15


@pytest.mark.parametrize(
    ("options", "count", "moments", "seconds", "late"),
    [({"deaf": True}, 20, (0.5, 8.0), 3.0, 11.0), ({"latency": 0.5}, 6, (0.2,), 1.0, 1.1)],
)
def test_the_first_stream_holds_up_no_other_operation(
    options: dict[str, Any], count: int, moments: tuple[float, ...], seconds: float, late: float
) -> None:
    """Until the first stream is known to work, later operations are read without a stream.

    Later operations get a stream as soon as the server is known to support streams.
    """
    world = World(**options)
    numbers = spread(world, count)

    def come() -> None:
        for number in range(100, 110):
            world.plan(f"operations/{number}", seconds)
            numbers.append(world.watch(f"operations/{number}"))

    for moment in moments:
        world.later(moment, come)
    world.run()
    assert excess(world, numbers) <= late
    if not world.deaf:
        assert world.verbs()[:2] == ["WatchOperations"] * 2


def test_each_call_is_for_one_collection_and_has_a_short_url() -> None:
    for offers, late in ((ALL, 0.02), (frozenset({LIST}), 1.0)):
        world = World(offers=offers)
        several = [
            f"{'p' * 300}/{parent}/operations/{n}" for n in range(60) for parent in ("b", "d")
        ]
        for name in several:
            world.plan(name, 10.0)
        numbers = [world.watch(name) for name in several]
        world.run()
        asked = [call.request for _, call in world.asked]
        lists = [one for one in asked if isinstance(one, lro.wire.ListOperationsRequest)]
        assert max((len(one.filter) for one in lists), default=0) < 4500
        gets = [one for one in asked if isinstance(one, lro.wire.GetOperationRequest)]
        called = [one.name if one in lists else one.collection for one in asked if one not in gets]
        parents = {one.removesuffix("/operations") for one in called}
        assert parents == {f"{'p' * 300}/{parent}" for parent in ("b", "d")}
        assert excess(world, numbers) <= late


def test_call_is_cut_at_the_last_deadline_of_its_listeners() -> None:
    """A call ends at its listeners' last deadline, and the timeout is not a fault of the server."""
    cut = error(lro.Code.DEADLINE_EXCEEDED, passing=True)
    world = World(transport=ENTIRELY - {Strategy.STREAM}, latency=0.2, fault=lambda *_: cut)
    for name in names(6):
        world.plan(name, 30.0)
    numbers = [world.watch(name, seconds=0.15) for name in names(6)]
    world.later(0.15, lambda: [world.leave(number) for number in numbers])
    world.run()
    [(_, call)] = world.asked
    assert call.budget == pytest.approx(0.17)
    assert world.server.lacking == {}


def test_retry_after_of_one_operation_does_not_delay_others() -> None:
    """A Retry-After of one day delays only the operation for which it was sent."""
    day = error(lro.Code.UNAVAILABLE, http_status=503, retry_after=86_400.0)

    def fault(_: float, call: Call) -> CallError | None:
        return day if getattr(call.request, "name", "") == "operations/3" else None

    world = World(offers=frozenset(), fault=fault)
    numbers = spread(world, 10, 5.0, 6.0)
    world.run(200)
    assert [len(world.received[number]) for number in numbers] == [1, 1, 1, 0, 1, 1, 1, 1, 1, 1]


def test_a_listener_that_raises_does_not_stop_the_others() -> None:
    """If one listener raises an error, the others get their updates, and the pollers continue."""
    world = World()
    numbers = spread(world, 10, 5.0, 6.0)

    def raises(_: object) -> None:
        raise ZeroDivisionError

    world.registry.subscribe("operations/0", raises, WatchOptions())
    world.run()
    assert excess(world, numbers) <= 0.02
    assert spread(world, 3, 1.0, 2.0)
    world.run()
    assert world.registry.entries == {}


@pytest.mark.parametrize("way", OFFERS)
@pytest.mark.parametrize("count", [1, 30])
def test_new_listener_gets_the_current_state_despite_a_held_wait(count: int, way: str) -> None:
    """A new listener gets the state soon, although a Wait for another listener is held for 20 s."""
    world = World(offers=OFFERS[way])
    spread(world, count, 100.0, 100.0)
    world.run(50)
    interested = [world.watch(name, wants_progress=True) for name in names(count)]
    world.run(2)
    for number in interested:
        assert len(world.received[number]) == 1
        assert not world.ends(number)


def test_operations_of_a_silent_stream_are_read_each_minute() -> None:
    """Operations on a silent stream are read each minute, and at a listener's deadline."""
    world = World(mute_after=1)
    numbers = spread(world, 20, 100.0, 100.0)
    late = world.watch("operations/0", seconds=105.0)
    world.run(104.9)
    assert world.received[late] == []
    world.run(0.2)
    assert len(world.ends(late)) == 1
    world.run(60)
    assert excess(world, numbers) <= 61.0
    assert len(world.asked) < 10


@pytest.mark.parametrize("way", ["watch", "batch", "list"])
def test_batch_with_a_forbidden_name_is_halved_until_it_is_found(way: str) -> None:
    """Only the listener of the forbidden name gets the error; other names are read together."""

    def refuse(_: float, call: Call) -> CallError | None:
        asked = (*getattr(call.request, "names", ()), getattr(call.request, "name", ""))
        mine = "operations/77" in asked or '"operations/77"' in getattr(call.request, "filter", "")
        return error(lro.Code.PERMISSION_DENIED) if mine else None

    world = World(offers=OFFERS[way], fault=refuse)
    numbers = spread(world, 120)
    world.run()
    news = [world.ends(number)[0][1] for number in numbers]
    [lost] = [one for one in news if isinstance(one, WatchFailed)]
    assert lost.name == "operations/77"
    assert isinstance(lost.error, CallError)
    assert lost.error.code is lro.Code.PERMISSION_DENIED
    assert all(len(world.ends(number)) == 1 for number in numbers)
    if way != "list":
        assert world.verbs().count("GetOperation") <= 2
        assert world.verbs().count("ListOperations") == 0


def test_verb_that_the_server_no_longer_has_is_no_longer_used() -> None:
    """If an older release replaces the server, the client stops using verbs that it lacks."""
    world = World()
    numbers = spread(world, 100, 50.0, 60.0)
    world.run(5)
    world.offers = frozenset({BATCH})
    world.break_streams()
    world.run()
    assert excess(world, numbers) <= 1.5
    assert world.verbs().count("WatchOperations") == 2
    assert "GetOperation" not in world.verbs()


@pytest.mark.parametrize("way", ["batch", "get"])
def test_retry_after_delays_reads_of_many_operations(way: str) -> None:
    """Retry-After also delays reads of many operations (spec §11.3)."""
    world = World(offers=OFFERS[way], retry_after=10.0)
    spread(world, 30, 60.0, 60.0)
    world.run()
    moments = {
        round(at) for at, call in world.asked if "GetOp" in call.verb or "Batch" in call.verb
    }
    assert len(moments) <= 10


def test_poller_that_cannot_be_started_is_tried_again_by_the_next() -> None:
    """The first watch fails because no thread can start; the next watch starts a poller."""
    world = World()
    world.plan("operations/0", 1.0)
    world.full = True
    with pytest.raises(RuntimeError, match="no more threads"):
        world.watch("operations/0")
    world.full = False
    number = world.watch("operations/0")
    world.run()
    assert len(world.ends(number)) == 1


def test_poller_that_fails_ends_all_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """If a poller fails, every waiter gets the error, and later waits get a new poller."""
    world = World()
    numbers = spread(world, 3, 5.0, 6.0)
    with monkeypatch.context() as defect:
        defect.setattr(Scheduler, "next_batch", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            world.run()
    for number in numbers:
        [(_, news)] = world.ends(number)
        assert isinstance(news, WatchFailed)
        assert isinstance(news.error, ZeroDivisionError)
    more = spread(world, 3, 5.0, 6.0)
    world.run()
    assert excess(world, more) <= 0.02
