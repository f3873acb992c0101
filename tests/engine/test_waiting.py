"""Waits: the test vectors in virtual time, threads, store reads and cleanup of waiters."""

from __future__ import annotations

import asyncio
import gc
import math
import threading
import tracemalloc
import weakref
from datetime import timedelta

import pytest

from lro import Code, Duration, Limits, LroError, Service
from lro._engine import watching
from lro.errors import InvalidTimeout, OperationNotFound, Unavailable
from lro.executors.inline import InlineExecutor
from lro.http import VERBS
from lro.stores.memory import MemoryStore
from lro.testing import START, ManualClock
from lro.wire import parse_duration
from tests.engine.engine_parts import NAME, declared, once, raising
from tests.service_steps import listeners
from tests.vector_files import by_id, vectors
from tests.virtual_loop import on_a_loop, run_virtual, virtually
from tests.waiting import PATIENCE, until_async
from tests.work_messages import WorkMetadata, WorkRequest, WorkResponse

CASES = vectors("wait_timeouts")["cases"]
DONE = WorkResponse("done")
TICK = 1e-6
"""The seconds by which rounding may delay a virtual clock."""


class Wait:
    """A case of the vectors: a service with a clock, an operation, and timed events."""

    def __init__(self, case, make_service, seconds):
        self.case, self.seconds = case, seconds
        options = {"max_wait": parse_duration(case["default_max"]).to_timedelta()}
        if not case.get("supported", True):
            options["verbs"] = [verb for verb in VERBS if verb != "WaitOperation"]
        store = MemoryStore(lambda: START + timedelta(seconds=seconds()))
        self.service = make_service(store, InlineExecutor(), **options)
        self.name = "operations/missing"
        method = declared(self.service)
        if not case.get("missing"):
            self.name = method.start(WorkRequest()).name
        if case["already_done"]:
            self.complete()

    def complete(self):
        self.service.reporter(self.name).complete(DONE)

    def delete(self):
        self.service.delete(self.name)

    @property
    def events(self):
        planned = (("completes_after", self.complete), ("deleted_after", self.delete))
        return [(self.span(key), act) for key, act in planned if self.case[key] is not None]

    def span(self, key):
        return None if self.case[key] is None else parse_duration(self.case[key]).total_seconds

    @property
    def timeout(self):
        given = self.case["timeout"]
        if isinstance(given, dict):
            return Duration(given.get("seconds", 0), given.get("nanos", 0))
        return None if given is None else parse_duration(given)

    def check(self, outcome):
        """Check that the outcome is the expected one and came in time."""
        expected = self.case["expect"]
        if "error" in expected:
            assert isinstance(outcome, LroError)
            assert outcome.code is Code[expected["error"]]
        else:
            assert outcome.done is expected["done"]
        latest = parse_duration(expected.get("returns_by", "0s")).total_seconds
        assert self.seconds() <= latest + TICK
        events = [at for at, _ in self.events if at <= latest]
        if expected.get("done") is False and not events and latest:
            assert self.seconds() >= latest * 0.9 - TICK  # the outcome is not much too early


@pytest.mark.parametrize("case", CASES, ids=by_id)
@virtually
async def test_wait_async_returns_at_the_end_or_timeout(case, make_service):
    """An async wait returns no later than the operation's end or the timeout."""
    loop = asyncio.get_running_loop()
    wait = Wait(case, make_service, loop.time)
    for at, act in wait.events:
        loop.call_at(at, act)
    try:
        outcome = await wait.service.wait_async(
            wait.name, wait.timeout, deadline_seconds=wait.span("deadline")
        )
    except LroError as exc:
        outcome = exc
    wait.check(outcome)
    assert wait.service.edges.waiters.waiting == 0
    assert listeners(wait.service) == 0


@pytest.mark.parametrize("case", CASES, ids=by_id)
def test_wait_returns_at_the_end_or_timeout(case, make_service):
    """A wait in a thread returns no later than the end or the timeout, by a simulated clock."""
    now = [0.0]
    wait = Wait(case, make_service, lambda: now[0])
    events = sorted(wait.events, key=lambda event: event[0])

    def park(rung, seconds):
        if events and events[0][0] <= now[0] + seconds:
            now[0], act = events.pop(0)
            act()
            assert rung.is_set()
            return True
        now[0] += seconds
        return False

    wait.service.edges.waiters._clock = lambda: now[0]
    wait.service.edges.waiters._park = park
    try:
        outcome = wait.service.wait(wait.name, wait.timeout, deadline_seconds=wait.span("deadline"))
    except LroError as exc:
        outcome = exc
    wait.check(outcome)
    assert listeners(wait.service) == 0


SPANS = [
    (timedelta(seconds=2), 2),
    (timedelta(), 0),
    (2.5, 2.5),
    (0, 0),
    (Duration(3), 3),
    (None, 60),
]


@pytest.mark.parametrize(("timeout", "seconds"), SPANS)
def test_a_timeout_is_seconds_or_a_span(service, timeout, seconds):
    async def main():
        await service.wait_async(start(service), timeout)
        return asyncio.get_running_loop().time()

    assert run_virtual(main()) == pytest.approx(seconds)


@pytest.mark.parametrize(
    "wrong", [timedelta(seconds=-1), timedelta.max, Duration(0, -1), -1, math.nan, 1e300, "5s"]
)
def test_invalid_timeout_of_wait_is_refused(service, wrong):
    """A timeout that is negative, too long or not a number is refused."""
    with pytest.raises(InvalidTimeout):
        service.wait(start(service), wrong)


@virtually
async def test_wait_returns_before_the_deadline(make_service):
    """A wait returns 0.25 s before the deadline, or after nine tenths of the time (spec §4.4)."""
    loop = asyncio.get_running_loop()
    service = make_service(MemoryStore(ManualClock()), InlineExecutor())
    operation = declared(service).start(WorkRequest())
    for deadline, answered in ((10, 9.75), (1, 0.9)):
        began = loop.time()
        await service.wait_async(operation.name, deadline_seconds=deadline)
        assert loop.time() - began == pytest.approx(answered, abs=0.01)


@pytest.fixture
def service(make_service, store):
    made = make_service(store, InlineExecutor())
    declared(made)
    return made


def start(service):
    return service.start(NAME, WorkRequest()).name


async def settle():
    """Let every coroutine run until it waits."""
    for _ in range(5):
        await asyncio.sleep(0)


@virtually
async def test_many_wait_without_threads(service):
    """400 coroutines, half of them for one operation, need no thread, and all of them are woken."""
    names = [start(service) for _ in range(201)]
    waits = [names[0]] * 200 + names[1:]
    before = threading.active_count()
    tasks = [asyncio.create_task(service.wait_async(name)) for name in waits]
    await settle()
    assert service.edges.waiters.waiting == 400
    assert listeners(service) == 201  # one listener per name
    assert threading.active_count() <= before
    for name in names:
        service.reporter(name).complete(DONE)
    found = await asyncio.gather(*tasks)
    assert [operation.name for operation in found] == waits
    assert all(operation.done for operation in found)
    assert (service.edges.waiters.waiting, listeners(service)) == (0, 0)


class Scripted(MemoryStore):
    """A store that records its reads and fails the next ``failures`` of them."""

    def __init__(self):
        super().__init__(ManualClock())
        self.gets, self.finds = [], []
        self.failures = 0

    def get(self, name):
        self.gets.append(name)
        self._fail()
        return super().get(name)

    def find(self, names, max_bytes):
        self.finds.append(list(names))
        self._fail()
        return super().find(names, max_bytes)

    def _fail(self):
        if self.failures:
            self.failures -= 1
            raise Unavailable("for a moment")


@pytest.fixture
def store():
    """The store of the test's service."""
    return Scripted()


def end_elsewhere(service, name):
    """End an operation as another process does, so that this process learns only its name."""
    other = Service(service.store, InlineExecutor(), maintenance=False)
    declared(other)
    other.reporter(name).complete(DONE)
    service.edges.runtime.updater.notifier.notify(name)


def test_ends_of_many_operations_are_read_together(service, store, monkeypatch):
    """With a blocking store, one call reads all ended operations up to its size limit."""
    store.writes_block = True

    async def ended(names):
        store.reads_block = False
        tasks = [asyncio.create_task(service.wait_async(name)) for name in names]
        await settle()
        assert store.finds == []
        store.reads_block = True
        for name in names:
            end_elsewhere(service, name)
        found = await asyncio.gather(*tasks)
        assert [operation.name for operation in found] == names

    names = [start(service) for _ in range(3)]
    asyncio.run(ended(names))
    assert store.finds == [names]
    store.finds.clear()
    monkeypatch.setattr(watching, "READ_BYTES", 1)
    names = [start(service) for _ in range(3)]
    asyncio.run(ended(names))
    assert store.finds == [names, names[1:], names[2:]]


@on_a_loop
async def test_ends_are_read_on_the_loop_where_that_does_not_block(service, store, monkeypatch):
    """With a store that does not block, ends are read on the loop, a few at a time."""
    store.writes_block, looked = True, store.gets  # a file store is like this
    monkeypatch.setattr(watching, "_READ_ON_LOOP", 2)
    names = [start(service) for _ in range(5)]
    seen = []

    async def other():
        while len(looked) < 5:
            seen.append(len(looked))
            await asyncio.sleep(0)

    tasks = [asyncio.create_task(service.wait_async(name)) for name in names]
    await settle()
    for name in names:
        end_elsewhere(service, name)
    looked.clear()
    found = await asyncio.gather(other(), *tasks)
    assert [operation.name for operation in found[1:]] == names
    assert looked == names
    assert {2, 4} <= set(seen)


async def waits(service, store, *names):
    """Start tasks that wait for these operations. Return once each task has read its operation."""
    tasks = []
    for name in names:
        tasks.append(asyncio.create_task(service.wait_async(name)))
        looks = len(store.gets)
        await until_async(lambda looks=looks: len(store.gets) > looks)
    return tasks


@pytest.mark.parametrize("read", ["succeeds", "fails", "is cancelled"])
@on_a_loop
async def test_an_end_during_the_read_of_others_is_read_after_it(service, store, read, caplog):
    """An end that is notified during another read is read after that read, whatever its outcome.

    The reading task may be cancelled with all other tasks of the loop, some of which clean up.
    """
    store.reads_block = store.writes_block = True

    loop = asyncio.get_running_loop()
    before = asyncio.all_tasks()
    first, second = start(service), start(service)
    tasks = await waits(service, store, first, second)

    async def noticed():
        await settle()  # the loop handles the second end
        if read == "is cancelled":
            (reader,) = asyncio.all_tasks() - before - {*tasks, asyncio.current_task()}
            reader.cancel()

    def act(*_):  # called in the reading thread
        end_elsewhere(service, second)
        asyncio.run_coroutine_threadsafe(noticed(), loop).result(PATIENCE)
        if read == "fails":
            raise OSError("odd")

    once(store, "find", act, after=True)
    end_elsewhere(service, first)
    async with asyncio.timeout(PATIENCE):
        assert (await tasks[1]).name == second
        if read != "fails":
            assert (await tasks[0]).name == first
    tasks[0].cancel()
    assert ("odd" in caplog.text) == (read == "fails")


@virtually
async def test_a_wait_reads_the_store_once(service, store):
    """A wait reads the store when it begins to listen, but not an end that this process stores."""
    reads = store.gets

    name = start(service)
    task = asyncio.create_task(service.wait_async(name, timedelta(seconds=9)))
    await settle()
    assert reads == [name]
    service.reporter(name).report(WorkMetadata(1))
    service.cancel(name)
    reads.clear()  # the report and the cancel have read, too
    await settle()
    assert reads == []
    assert not task.done()
    service.reporter(name).acknowledge_cancel()
    reads.clear()
    assert (await task).state == "CANCELLED"
    assert reads == []


def test_a_wait_in_a_thread_reads_the_store_once(service, store):
    """A thread that waits does not read an end that its process stores."""
    name = start(service)
    reporter = service.reporter(name)
    store.gets.clear()
    once(store, "get", lambda _: reporter.complete(DONE), after=True)
    assert service.edges.waiters.wait(name, 3600).done
    assert store.gets == [name]


def test_a_wait_in_a_thread_keeps_nothing_for_each_notification(service, store):
    """However often other processes change an operation, a wait for it takes the same memory."""
    name, kept = start(service), []
    reporter, notify = service.reporter(name), service.edges.runtime.updater.notifier.notify

    def many_changes(_):
        tracemalloc.start()
        for _ in range(9999):
            notify(name)
        ours = tracemalloc.Filter(inclusive=True, filename_pattern="*waiting.py")
        traces = tracemalloc.take_snapshot().filter_traces([ours]).traces
        kept.append(sum(trace.size for trace in traces))
        tracemalloc.stop()
        reporter.complete(DONE)

    once(store, "get", many_changes, after=True)
    assert service.edges.waiters.wait(name, 3600).done
    assert kept[0] < 999


def test_threads_can_wait_with_events_of_gevent(service, monkeypatch):
    """Waits use gevent's events, even if gunicorn loads gevent after the application."""
    real = threading.Event

    class Other:
        def __init__(self):
            event = real()
            self.set, self.clear, self.wait = event.set, event.clear, event.wait

    name = start(service)
    monkeypatch.setattr(threading, "Event", Other)
    assert not service.wait(name, timedelta(seconds=0.01)).done


@virtually
async def test_cancelled_waiter_leaves_no_listener(service):
    """A cancelled waiter is freed at once. Other waiters and the operation stay (spec §4.8)."""
    name = start(service)
    tasks = [asyncio.create_task(service.wait_async(name)) for _ in range(3)]
    await settle()
    tasks[0].cancel()
    await settle()
    assert service.edges.waiters.waiting == 2
    for task in tasks[1:]:
        task.cancel()
    await settle()
    assert (service.edges.waiters.waiting, listeners(service)) == (0, 0)
    assert not service.get(name).done


@virtually
async def test_an_operation_that_expires_at_once_is_not_found(make_service):
    """With ``keep_for`` zero, an operation is not found once it has ended (spec §9.4)."""
    service = make_service(executor=InlineExecutor(), keep_for=timedelta(0))
    declared(service)

    name = start(service)
    task = asyncio.create_task(service.wait_async(name))
    await settle()
    service.reporter(name).complete(DONE)
    with pytest.raises(OperationNotFound):
        await task


@pytest.mark.parametrize("colour", ["thread", "coroutine"])
@pytest.mark.parametrize("event", ["complete", "delete"])
def test_end_between_first_read_and_listening_ends_the_wait(service, store, colour, event):
    """If the end comes between the first read and the listener, the waiter reads again."""
    name = start(service)
    reporter = service.reporter(name)
    complete, delete = (lambda _: reporter.complete(DONE)), (lambda _: service.delete(name))
    once(store, "get", complete if event == "complete" else delete, after=True)

    async def main():
        # The service is not used, because its permission check would read the store first.
        return await service.edges.waiters.wait_async(name, 3600)

    def wait():
        return service.edges.waiters.wait(name, 3600)

    if event == "complete":
        assert (wait() if colour == "thread" else run_virtual(main())).done
    else:
        with pytest.raises(OperationNotFound):
            wait() if colour == "thread" else run_virtual(main())


def test_store_that_fails_when_notified_keeps_waiters_waiting(service, store):
    """After a failed read, a waiter reads again at its timeout. An outage only delays the reply.

    Waiting is best effort (spec §4.7).
    """

    async def main(failures):
        name = start(service)
        task = asyncio.create_task(service.wait_async(name))
        await settle()
        end_elsewhere(service, name)
        store.failures = failures
        return await task, asyncio.get_running_loop().time()

    found, seconds = run_virtual(main(1))
    assert (found.done, seconds) == (True, pytest.approx(60))
    with pytest.raises(Unavailable):
        run_virtual(main(2))


@virtually
async def test_a_clock_that_fails_at_an_end_keeps_no_waiter_waiting(service, store):
    """If the store's clock fails when the waits are answered, the end is read."""
    name = start(service)
    task = asyncio.create_task(service.wait_async(name))
    await settle()
    service.reporter(name).complete(DONE)
    once(store, "now", raising(Unavailable("for a moment")))
    assert (await task).done
    assert asyncio.get_running_loop().time() < 1


@virtually
async def test_waits_go_on_after_a_cancellation_before_their_answer(service, store):
    """If the task that reads ends is cancelled before it begins, this and other ends are read."""
    names = [start(service) for _ in range(2)]
    tasks = [asyncio.create_task(service.wait_async(name)) for name in names]
    await settle()
    loop, before = asyncio.get_running_loop(), asyncio.all_tasks()

    def cancel_new():
        for task in asyncio.all_tasks() - before:
            cancelled.append(task.cancel())

    cancelled = []
    end_elsewhere(service, names[0])
    loop.call_soon(cancel_new)
    await settle()
    end_elsewhere(service, names[1])
    assert [(await task).name for task in tasks] == names
    assert (cancelled, loop.time()) == ([True], pytest.approx(0, abs=1))


def test_closed_loop_is_freed(service):
    """A closed loop is freed, as no waiter refers to it."""
    name = start(service)

    async def main():
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(service.wait_async(name), 1)

        return weakref.ref(asyncio.get_running_loop())

    gone = run_virtual(main())
    gc.collect()
    assert gone() is None
    assert (service.edges.waiters.waiting, listeners(service)) == (0, 0)


@virtually
async def test_waits_collected_during_the_begin_of_another_are_not_counted(make_service):
    """The count of waits stays right even if a garbage collection ends waits during the count."""
    service = make_service(limits=Limits(waits_per_caller=3))
    waiters, name = service.edges.waiters, declared(service).start(WorkRequest()).name

    def wait(caller):
        call = waiters.wait_async(name, 60.0, caller)
        call.send(None)
        return call

    class Caller(str):
        __slots__ = ()

        def __hash__(self):
            if held:
                held.pop().close()
            return str.__hash__(self)

    held = [wait("ann"), wait("ann")]
    waiting = [wait(Caller("ann"))]
    assert (waiters.waits, held) == (1, [])
    waiting += [wait("ann"), wait("ann")]
    for call in waiting:
        call.close()
    assert waiters.waits == 0


@pytest.mark.parametrize("left", ["before the end", "before the read"])
@virtually
async def test_end_of_an_operation_without_waiters_reads_nothing(service, store, left):
    """If all waiters have left, an end causes no read."""
    name = start(service)
    task = asyncio.create_task(service.wait_async(name, timedelta(seconds=5)))
    await settle()
    if left == "before the end":
        task.cancel()
        await settle()
    service.reporter(name).complete(DONE)
    store.gets.clear()
    task.cancel()
    await settle()
    assert (service.edges.waiters.waiting, store.gets) == (0, [])


@pytest.mark.parametrize("first", ["cancellation", "timeout"])
@virtually
async def test_a_waiter_is_answered_once(service, first):
    """A waiter that was cancelled or answered gets no second answer."""
    loop = asyncio.get_running_loop()
    name = start(service)
    task = asyncio.create_task(service.wait_async(name, timedelta(seconds=5)))
    await settle()
    if first == "timeout":
        loop.call_at(loop.time() + 5, service.reporter(name).complete, DONE)
        await task
    else:
        service.delete(name)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert (service.edges.waiters.waiting, listeners(service)) == (0, 0)
