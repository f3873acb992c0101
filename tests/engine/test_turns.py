"""When and in which order work begins: delay, priority, expiry, keys and rates (spec §2.8)."""

from __future__ import annotations

import asyncio
import gc
import logging
import re
import threading
import weakref
from collections import Counter
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from typing import Any

import pytest

from lro import Code, InvalidArgument, Job, Retry, Service
from lro.adapters import Change, Claim, Claimed, Record, Store
from lro.errors import DeclarationError, HookFailed
from lro.executors.inline import InlineExecutor
from lro.executors.threads import ThreadExecutor
from lro.stores.memory import MemoryStore
from lro.testing import ManualClock
from lro.wire import ListOperationsRequest
from tests.engine.engine_parts import EACH_STORE, Held, declared, once, raising
from tests.service_fixtures import MakeService
from tests.service_steps import WORK, ended_in_turn, reason
from tests.waiting import PATIENCE, until
from tests.work_messages import WorkMetadata, WorkRequest, WorkResponse

MINUTE = timedelta(minutes=1)


class Odd(tzinfo):
    """A time zone that has no offset, or raises when its offset is read."""

    def __init__(self, error: str | None) -> None:
        self.error = error

    def utcoffset(self, moment: datetime | None) -> timedelta | None:
        if self.error is not None:
            raise ValueError(self.error)
        return None


def noting(service: Service, **options: Any) -> tuple[Any, list[str]]:
    """Register a method. Return it and a list that collects the texts of its requests."""
    seen: list[str] = []

    def body(request: WorkRequest, job: Job[WorkMetadata]) -> WorkResponse:
        seen.append(request.text)
        return WorkResponse(request.text)

    return service.method(WORK, **options)(body), seen


def test_each_maintenance_run_begins_the_work_that_is_due(make_service: MakeService) -> None:
    """Work whose delay ends by a test's clock begins in the next run, however soon that is."""
    clock = ManualClock()
    service = make_service(MemoryStore(clock), InlineExecutor(), maintenance=False)
    work, seen = noting(service)
    work.start(WorkRequest("a"), delay=10 * MINUTE)
    service.run_maintenance()
    assert seen == []
    for minutes, expected in ((6, []), (6, ["a"])):
        clock.advance(minutes=minutes)
        service.run_maintenance()
        assert seen == expected


# -- claims and ends -----------------------------------------------------------------------------


class HeldEnd(MemoryStore):
    """Holds up the end of the operation ``held``; ``said`` lists that end and the claims."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(clock)
        self.held = ""
        self.holds, self.released = threading.Event(), threading.Event()
        self.said: list[str] = []
        self._readings = 0

    def update(self, name: str, change: Change) -> Record | None:
        if name != self.held:
            return super().update(name, change)
        self.holds.set()
        assert self.released.wait(PATIENCE)
        ended = super().update(name, change)
        self.said.append("end")
        return ended

    def claim(self, claim: Claim) -> Claimed:
        if claim.max_count:
            self.said.append("claim")
        return super().claim(claim)

    def monotonic(self) -> float:
        """Let no time pass. A claim that waits reads the time again, which releases the end."""
        self._readings += 1
        if self._readings > 1:
            self.released.set()
        return 0.0


def test_a_claim_waits_for_the_workers_whose_results_are_being_stored(
    make_service: MakeService, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One claim serves all the workers that become free within a moment."""
    store, go = HeldEnd(clock), threading.Event()
    monkeypatch.setattr("lro._engine.claims.time", store)
    service = make_service(store, ThreadExecutor(2))

    @service.method(WORK)
    def method(request: WorkRequest, job: Job[WorkMetadata]) -> WorkResponse:
        assert go.wait(PATIENCE)
        return WorkResponse(request.text)

    one, held, *later = [method.start(WorkRequest(str(number))).name for number in range(4)]
    store.held = held
    go.set()
    until(lambda: service.get(one).done)
    assert store.holds.wait(PATIENCE)
    service.run_maintenance()
    store.released.set()  # in case no claim has waited
    assert all(ended_in_turn(service, name).response for name in later)
    assert store.said[:2] == ["end", "claim"]


# -- ``delay`` and ``at`` -------------------------------------------------------------------------


@EACH_STORE
@pytest.mark.parametrize("given", ["delay", "at"])
def test_work_begins_when_it_is_due(
    make_service: MakeService, store: Store, clock: ManualClock, given: str
) -> None:
    """Delayed work waits in the store until it is due. ``at`` may have any time zone."""
    service = make_service(store, InlineExecutor())
    method, seen = noting(service, expires=MINUTE)
    due = clock() + MINUTE
    there = due.astimezone(timezone(timedelta(hours=5)))
    when: dict[str, Any] = {"delay": MINUTE} if given == "delay" else {"at": there}
    name = method.start(WorkRequest("x"), **when).name
    found = service.get(name, view="FULL").description
    assert (found.due_time, found.begin_before) == (due, due + MINUTE)
    assert found.due_time is not None
    assert found.begin_before is not None
    assert found.due_time.tzinfo == found.begin_before.tzinfo == UTC
    clock.advance(59)
    service.run_maintenance()
    assert (seen, service.get(name, view="FULL").description.start_time) == ([], None)
    clock.advance(1)
    service.run_maintenance()
    assert seen == ["x"]
    found = service.get(name, view="FULL").description
    assert (found.due_time, found.start_time) == (None, due)


@EACH_STORE
def test_list_finds_the_work_that_waits(
    make_service: MakeService, store: Store, clock: ManualClock
) -> None:
    """The filter ``waiting()`` finds delayed work, work without a worker, and pauses of retries."""
    service, other = make_service(store, Held(busy=True)), make_service(store, InlineExecutor())

    def fail(request: WorkRequest) -> WorkResponse:
        raise ConnectionError

    def listed(wanted: str) -> list[str]:
        found = service.list(ListOperationsRequest(filter=wanted)).operations
        return sorted(one.name for one in found)

    method, _ = noting(service)
    outside = declared(service, "acme.v1.Works.Outside").start(WorkRequest()).name
    begun = method.start(WorkRequest("a")).name
    assert len(store.claim(Claim("us", clock() + MINUTE, {WORK: None}, 1)).works) == 1
    queued = method.start(WorkRequest("b")).name
    delayed = method.start(WorkRequest("c"), delay=MINUTE).name
    failing = other.method("acme.v1.Works.Fail", retry=Retry(attempts=2))(fail)
    retried = failing.start(WorkRequest("d")).name
    assert listed("waiting()") == sorted([queued, delayed, retried])
    assert listed("NOT waiting()") == sorted([outside, begun])
    service.cancel(queued)
    assert listed("waiting()") == sorted([delayed, retried])


def test_work_due_in_the_past_begins_at_once(make_service: MakeService, clock: ManualClock) -> None:
    service = make_service(executor=InlineExecutor())
    method, seen = noting(service)
    method.start(WorkRequest("a"), delay=timedelta(0))
    method.start(WorkRequest("b"), at=clock() - MINUTE)
    method.start(WorkRequest("c"), at=None, delay=None)
    assert seen == ["a", "b", "c"]


def test_delayed_work_can_be_cancelled(make_service: MakeService, clock: ManualClock) -> None:
    service = make_service()
    method, _ = noting(service)
    name = method.start(WorkRequest(), delay=MINUTE).name
    service.cancel(name)
    assert service.get(name).state == "CANCELLED"


@EACH_STORE
def test_deleted_work_that_is_delayed_begins(
    make_service: MakeService, store: Store, clock: ManualClock
) -> None:
    """A delete hides delayed work from callers but does not cancel it (spec §2.7)."""
    service = make_service(store, InlineExecutor())
    method, seen = noting(service)
    service.delete(method.start(WorkRequest("x"), delay=MINUTE).name)
    clock.advance(60)
    service.run_maintenance()
    assert seen == ["x"]


@pytest.mark.parametrize(
    ("argument", "value", "wanted"),
    [
        ("delay", 3, "must be a timedelta from zero"),
        ("delay", -MINUTE, "must be a timedelta from zero"),
        ("at", datetime(2030, 1, 1), "must be a datetime with a time zone"),
        ("at", "noon", "must be a datetime with a time zone"),
        ("at", datetime(9999, 1, 1, tzinfo=UTC), "must be a datetime with a time zone"),
        ("at", datetime(2030, 1, 1, tzinfo=Odd(None)), "must be a datetime with a time zone"),
        ("at", datetime(2030, 1, 1, tzinfo=Odd("boom")), "must be a datetime with a time zone"),
        ("priority", 101, "must be a whole number from -100 to 100"),
        ("priority", "high", "must be a whole number from -100 to 100"),
        ("expires", timedelta(0), "must be a timedelta above zero"),
    ],
)
def test_invalid_scheduling_option_is_refused(
    make_service: MakeService, argument: str, value: object, wanted: str
) -> None:
    service = make_service()
    method, _ = noting(service)
    with pytest.raises(InvalidArgument, match=rf"^{argument}: {wanted}"):
        method.start(WorkRequest(), **{argument: value})
    outside = declared(service, "acme.v1.Works.Outside")
    with pytest.raises(InvalidArgument, match=rf"^{argument}: has no effect on work that is done"):
        outside.start(WorkRequest(), **{argument: value})
    with pytest.raises(InvalidArgument, match=r"^at: cannot be given together with delay$"):
        method.start(WorkRequest(), at=datetime(2031, 1, 1, tzinfo=UTC), delay=MINUTE)


@pytest.mark.parametrize(
    ("argument", "meant"),
    [
        ("dellay", ": did you mean 'delay'?"),
        ("countdown", ": did you mean 'delay'?"),
        ("idempotency_key", ": did you mean 'request_id'?"),
        *(("origin", ""), ("headers", ""), ("sent", "")),
    ],
)
def test_unknown_argument_of_a_start_is_refused(
    make_service: MakeService, argument: str, meant: str
) -> None:
    """Unknown arguments are refused, and so are internal arguments such as ``origin``.

    The error names an argument with a similar name or meaning.
    """
    service = make_service()
    method, seen = noting(service)
    given: dict[str, Any] = {argument: "schedule nightly"}
    refused = f"^{re.escape(f'start takes no argument {argument!r}{meant}')}$"
    with pytest.raises(TypeError, match=refused):
        method.start(WorkRequest(), **given)
    with pytest.raises(TypeError, match=refused):
        asyncio.run(method.start_async(WorkRequest(), **given))
    with pytest.raises(TypeError, match=refused):
        service.start(WORK, WorkRequest(), **given)
    assert seen == []


# -- many starts in one call ----------------------------------------------------------------------


def started(method: Any, texts: str, *, awaited: bool, **options: Any) -> list[Any]:
    """Start one operation per letter with one call, and return the results."""
    requests = [WorkRequest(text) for text in texts]
    if awaited:
        return list(asyncio.run(method.start_many_async(requests, **options)))
    return list(method.start_many(requests, **options))


@EACH_STORE
@pytest.mark.parametrize("awaited", [False, True])
@pytest.mark.parametrize("given", ["delay", "at"])
def test_delay_and_priority_of_a_call_hold_for_all_its_starts(
    make_service: MakeService, store: Store, clock: ManualClock, given: str, awaited: bool
) -> None:
    """Delay, time, priority and expiry of a ``start_many`` call apply to each of its starts."""
    service = make_service(store, InlineExecutor())
    method, seen = noting(service)
    due = clock() + MINUTE
    when: dict[str, Any] = {given: MINUTE if given == "delay" else due}
    low = started(method, "ab", awaited=awaited, **when, priority=-1, expires=MINUTE / 60)
    high = started(method, "cd", awaited=awaited, **when, priority=7)
    described = [service.get(one.name, view="FULL").description for one in (*low, *high)]
    assert {one.due_time for one in described} == {due}
    assert [one.priority for one in described] == [-1, -1, 7, 7]
    assert [store.get(one.name).begin_before for one in (*low, *high)] == [
        *[due + MINUTE / 60] * 2,
        *[None] * 2,
    ]
    service.run_maintenance()
    assert seen == []
    clock.advance(60)
    service.run_maintenance()
    assert (sorted(seen[:2]), sorted(seen[2:])) == (["c", "d"], ["a", "b"])
    late = started(method, "ef", awaited=awaited, delay=MINUTE, expires=MINUTE)
    clock.advance(120)
    service.run_maintenance()
    assert {reason(service.get(one.name)) for one in late} == {(Code.DEADLINE_EXCEEDED, "EXPIRED")}
    assert len(seen) == 4


@pytest.mark.parametrize("awaited", [False, True])
def test_invalid_option_of_a_call_fails_each_of_its_starts(
    make_service: MakeService, awaited: bool
) -> None:
    """Each start returns the error of an invalid option. An unknown argument raises an error."""
    method, seen = noting(make_service(executor=InlineExecutor()))
    found = started(method, "ab", awaited=awaited, priority=101)
    assert [str(one) for one in found] == [str(found[0])] * 2
    assert str(found[0]).startswith("priority: ")
    assert all(isinstance(one, InvalidArgument) for one in found)
    for unknown in ("dellay", "within", "target"):
        with pytest.raises(TypeError, match=rf"^start_many takes no argument '{unknown}'"):
            started(method, "ab", awaited=awaited, **{unknown: "x"})
    assert seen == []


# -- priority -------------------------------------------------------------------------------------


@EACH_STORE
def test_the_highest_priority_begins_first(
    make_service: MakeService, store: Store, clock: ManualClock
) -> None:
    """A start's priority replaces the method's. At equal priority, the oldest work begins first."""
    service = make_service(store, InlineExecutor())
    method, seen = noting(service, concurrency=1, priority=1)
    given = {"low": -5, "plain": None, "plain too": 1, "high": 7, "least": 0}
    names = []
    for text, priority in given.items():
        names.append(method.start(WorkRequest(text), priority=priority).name)
        clock.advance(0.001)
    assert [service.get(name, view="FULL").description.priority for name in names] == [
        -5,
        1,
        1,
        7,
        0,
    ]
    for name in names:
        ended_in_turn(service, name)
    assert seen == ["high", "plain", "plain too", "least", "low"]


# -- expiry ---------------------------------------------------------------------------------------


@EACH_STORE
def test_work_that_has_not_begun_in_time_ends(
    make_service: MakeService, store: Store, clock: ManualClock
) -> None:
    """Work that begins too late ends with DEADLINE_EXCEEDED and the reason EXPIRED.

    The time counts from the moment at which the work is due.
    """
    executor = Held()
    executor.busy = True
    service = make_service(store, executor)
    method, _ = noting(service, expires=MINUTE)
    late = method.start(WorkRequest("late")).name
    later = method.start(WorkRequest("later"), expires=3 * MINUTE).name
    delayed = method.start(WorkRequest("delayed"), delay=MINUTE).name
    other = make_service(store, InlineExecutor())  # this service declares no method
    clock.advance(59)
    other.run_maintenance()
    assert not service.get(late).done
    clock.advance(1)
    other.run_maintenance()
    found = service.get(late)
    assert reason(found) == (Code.DEADLINE_EXCEEDED, "EXPIRED")
    assert found.error is not None
    assert found.error.message.startswith("the operation did not begin before 2030-01-01 00:01:00")
    clock.advance(60)
    service.run_maintenance()
    assert [service.get(name).done for name in (later, delayed)] == [False, True]
    assert store.get(late).attempt == 0


def test_an_expiry_is_looked_for_when_it_comes(
    make_service: MakeService, clock: ManualClock
) -> None:
    """Maintenance ends work at its expiry, before the next orphan scan. Begun work continues."""
    executor = Held()
    service = make_service(None, executor)
    method, _ = noting(service)
    begun = method.start(WorkRequest(), expires=MINUTE / 60).name
    executor.busy = True
    service.run_maintenance()
    late = method.start(WorkRequest(), expires=MINUTE / 60).name
    assert service.run_maintenance() <= 1.0
    clock.advance(1)
    service.run_maintenance()
    assert [service.get(name).done for name in (begun, late)] == [False, True]


def test_an_expiry_that_is_asked_for_during_a_scan_is_looked_for(
    make_service: MakeService, clock: ManualClock
) -> None:
    """An expiry stored while a scan reads the store is found by another scan."""
    service = make_service(None, Held(busy=True))
    method, _ = noting(service)
    names: list[str] = []

    def start(*_: object) -> None:
        names.append(method.start(WorkRequest(), expires=MINUTE / 60).name)

    once(service.store, "orphans", start, after=True)
    service.run_maintenance()
    assert service.run_maintenance() <= 1.0
    clock.advance(1)
    service.run_maintenance()
    assert service.get(names[0]).done


def test_a_scan_that_was_asked_for_is_due_until_it_succeeds(
    make_service: MakeService, clock: ManualClock
) -> None:
    """If a scan that was due for an expiry fails, the next scan finds the expired work."""
    service = make_service(None, Held(busy=True))
    service.run_maintenance()
    name = noting(service)[0].start(WorkRequest(), expires=MINUTE / 60).name
    clock.advance(1)
    once(service.store, "orphans", raising(ZeroDivisionError()))
    with pytest.raises(ZeroDivisionError):
        service.run_maintenance()
    service.run_maintenance()
    assert service.get(name).done


def test_late_work_that_cannot_be_ended_is_tried_again_with_the_next_scan(
    make_service: MakeService, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    """Expired work that cannot be ended is retried with the next scan, and not in a busy loop."""
    service = make_service(None, Held(busy=True))
    name = noting(service)[0].start(WorkRequest(), expires=MINUTE).name
    service.run_maintenance()
    clock.advance(60)
    whole, service.store.update = service.store.update, raising(ZeroDivisionError())
    with caplog.at_level(logging.INFO, "lro"):
        for _ in range(30):
            service.run_maintenance()
            clock.advance(0.1)
    assert caplog.text.count(f"{name}: not ended as too late") == 1
    service.store.update = whole
    clock.advance(15)
    service.run_maintenance()
    assert reason(service.get(name)) == (Code.DEADLINE_EXCEEDED, "EXPIRED")


def test_work_that_is_claimed_too_late_is_not_done(
    make_service: MakeService, store: Store, clock: ManualClock
) -> None:
    """A claim ends expired work that maintenance has not ended yet."""
    service = make_service(store, InlineExecutor())
    method, seen = noting(service, concurrency=1, expires=MINUTE, retry=Retry())
    name = method.start(WorkRequest()).name
    clock.advance(60)
    service.edges.work.run_operation(name)  # a Celery worker that gets the name makes this call
    assert reason(service.get(name)) == (Code.DEADLINE_EXCEEDED, "EXPIRED")
    assert seen == []


# -- keys and rates -------------------------------------------------------------------------------


class Running:
    """A function that records how many calls run at once per request text, and their order."""

    def __init__(self) -> None:
        self.lock, self.now, self.most = threading.Lock(), Counter[str](), Counter[str]()
        self.order: list[str] = []

    def run(self, request: WorkRequest, job: Job[WorkMetadata]) -> WorkResponse:
        with self.lock:
            self.order.append(request.text)
            self.now[request.text] += 1
            self.most[request.text] = max(self.most[request.text], self.now[request.text])
        job.sleep(0.002)
        with self.lock:
            self.now[request.text] -= 1
        return WorkResponse(request.text)


def all_done(service: Service, names: list[str]) -> bool:
    service.run_maintenance()
    return all(service.get(name).done for name in names)


@EACH_STORE
def test_a_limit_holds_for_each_key(make_service: MakeService, store: Store) -> None:
    """A limit holds per key, and keys take turns. Work without a key has no limit."""
    service, running = make_service(store, ThreadExecutor(6)), Running()
    key = {"": "", "a": "ann", "b": "bob"}
    method = service.method(WORK, concurrency=1, concurrency_key=lambda request: key[request.text])(
        running.run
    )
    names = [method.start(WorkRequest(text)).name for text in ["a"] * 12 + ["b"] * 3 + [""] * 3]
    until(lambda: all_done(service, names))
    assert (running.most["a"], running.most["b"]) == (1, 1)
    assert sorted(running.order) == sorted(["a"] * 12 + ["b"] * 3 + [""] * 3)
    last = max(place for place, text in enumerate(running.order) if text == "b")
    assert last <= 3 + 6 + 3  # the 3 "b", the first 6 claimed, and one "a" for each "b"


@EACH_STORE
def test_keys_take_turns(make_service: MakeService, store: Store, clock: ManualClock) -> None:
    """Keys take turns even without a limit, so that a busy customer does not delay others."""
    service = make_service(store, InlineExecutor())
    method, seen = noting(
        service, concurrency_key=lambda request: request.text[0], rate=(99, MINUTE)
    )
    texts = [*(f"a{number}" for number in range(9)), "b0", "b1", "c0", "c1"]
    names = []
    for text in texts:
        names.append(method.start(WorkRequest(text)).name)
        clock.advance(0.001)
    until(lambda: all_done(service, names))
    assert {text[0] for text in seen[:3]} == {text[0] for text in seen[3:6]} == {"a", "b", "c"}
    assert seen[6:] == [f"a{number}" for number in range(2, 9)]


@EACH_STORE
@pytest.mark.parametrize("keyed", [False, True])
def test_work_over_the_rate_waits(
    make_service: MakeService, store: Store, clock: ManualClock, keyed: bool
) -> None:
    """Work over the rate waits. If there are keys, each key has its own rate."""
    service = make_service(store, InlineExecutor())
    options: dict[str, Any] = {"concurrency_key": lambda request: request.text} if keyed else {}
    method, seen = noting(service, rate=(2, MINUTE), **options)
    names = [method.start(WorkRequest(text)).name for text in "aaaabb"]
    begun = []
    for _ in range(3):
        until(lambda: service.run_maintenance() > 1)
        begun.append(len(seen))
        clock.advance(60)
    assert begun == ([4, 6, 6] if keyed else [2, 4, 6])
    assert all(service.get(name).done for name in names)


@EACH_STORE
def test_work_begins_as_soon_as_the_rate_allows(
    make_service: MakeService, store: Store, clock: ManualClock
) -> None:
    """The process does not wait for its regular look for work, which comes after 5 seconds."""
    service = make_service(store, InlineExecutor())
    method, seen = noting(service, rate=(2, timedelta(seconds=2)))
    for text in "aaaaa":
        method.start(WorkRequest(text))
    begun = []
    for _ in range(3):
        until(lambda: service.run_maintenance() > 0.5)
        begun.append(len(seen))
        clock.advance(2)
    assert begun == [2, 4, 5]


def test_concurrency_key_must_be_a_string(make_service: MakeService) -> None:
    service = make_service()
    wrong: Any = lambda request: 3  # noqa: E731
    method, _ = noting(service, concurrency=1, concurrency_key=wrong)
    with pytest.raises(InvalidArgument, match=r"^concurrency_key: must be a text, got 3$"):
        method.start(WorkRequest())


def test_concurrency_key_is_freed_after_the_start(make_service: MakeService) -> None:
    """After a start, its concurrency key is freed, as only the key's hash is stored."""

    class Key(str):
        """A string class whose instances can be weakly referenced."""

    seen: list[weakref.ref[Key]] = []

    def key_of(request: WorkRequest) -> str:
        key = Key(request.text)
        seen.append(weakref.ref(key))
        return key

    service = make_service()
    method, _ = noting(service, concurrency_key=key_of)
    method.start(WorkRequest("x" * 1000))
    gc.collect()
    assert [key() for key in seen] == [None]


@pytest.mark.parametrize("name", ["concurrency_key", "exclusive_target", "parent"])
@pytest.mark.parametrize(("error", "raised"), [(KeyError, KeyError), (SystemExit, HookFailed)])
def test_start_raises_the_error_of_an_option_function(
    make_service: MakeService, name: str, error: type[BaseException], raised: type[Exception]
) -> None:
    """A start raises the error of an option's function, or HookFailed instead of SystemExit."""
    service = make_service()

    def fail(request: WorkRequest) -> str:
        raise error

    method, seen = noting(service, concurrency=1, **{name: fail})
    with pytest.raises(raised):
        method.start(WorkRequest())
    assert seen == []


@pytest.mark.parametrize("limit", [{"concurrency": 2**70}, {"rate": (2**70, MINUTE)}])
def test_a_limit_that_no_database_can_count_to_is_refused(
    make_service: MakeService, limit: dict[str, Any]
) -> None:
    wanted = "must be a whole number from 1 to 1000000000, got"
    with pytest.raises(DeclarationError, match=rf"^{next(iter(limit))}: {wanted}"):
        noting(make_service(), **limit)
