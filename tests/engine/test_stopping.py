"""How a service stops on errors, exits and signals, and how it starts again after a fork."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import queue
import runpy
import signal
import threading
import time
import traceback
import weakref
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from lro import DeclarationError, InvalidArgument, Service
from lro._engine import process
from lro._engine.process import PerProcess, StopSignals
from lro.errors import Unavailable
from lro.executors.asyncio import AsyncioExecutor
from lro.executors.inline import InlineExecutor
from lro.executors.threads import ThreadExecutor
from lro.stores.memory import MemoryStore
from lro.types import RetryInfo
from tests.engine.engine_parts import NAME, Held, declared, once, raising
from tests.interleaving import interleaved
from tests.service_steps import Step, listeners, work
from tests.waiting import PATIENCE, joined, until, until_async
from tests.work_messages import WorkRequest, WorkResponse


def build() -> Service:
    """Return a service with a method that has no function."""
    service = Service(MemoryStore(), InlineExecutor(), maintenance=False)
    declared(service)
    return service


def forks(test: Callable[..., None]) -> Callable[..., None]:
    """Mark a test that forks while threads run, of which newer Python versions warn."""
    test = pytest.mark.filterwarnings("ignore::DeprecationWarning")(test)
    return pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")(test)


def in_child(check: Callable[[], object]) -> None:
    """Run a check in a forked process."""
    child = os.fork()
    if child == 0:
        try:
            check()
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0


def in_thread(action: Callable[[], object]) -> Callable[[], object]:
    """Call `action` in a thread. Return a function that waits for its result or its error."""
    results: queue.Queue[tuple[object, BaseException | None]] = queue.Queue()

    def run() -> None:
        try:
            results.put((action(), None))
        except BaseException as exc:
            results.put((None, exc))

    threading.Thread(target=run, daemon=True).start()

    def result() -> object:
        value, error = results.get(timeout=PATIENCE)
        if error is not None:
            raise error
        return value

    return result


# -- closing ----------------------------------------------------------------------------------


class Draining(InlineExecutor):
    """An executor that records the timeout of each join, and joins until the test sets ``go``."""

    def __init__(self) -> None:
        super().__init__()
        self.given: list[float] = []
        self.entered, self.go = threading.Event(), threading.Event()

    def join(self, seconds: float) -> bool:
        self.given.append(seconds)
        self.entered.set()
        return self.go.wait(seconds)


@pytest.mark.parametrize(
    ("drain", "seconds"), [(None, 0.4), (timedelta(seconds=0.3), 0.3), (0.15, 0.15), (0, 0)]
)
def test_close_drains_for_the_drain_of_the_service(drain, seconds):
    """A close waits for the service's ``drain`` unless the call passes its own."""
    executor = Draining()
    service = Service(MemoryStore(), executor, maintenance=False, drain=timedelta(seconds=0.4))
    began = time.monotonic()
    service.close(drain)
    assert time.monotonic() - began >= seconds
    *steps, last = executor.given
    assert sum(steps) <= seconds
    assert last == 1.0  # the last join is for work that was asked to stop


def test_drain_ends_when_the_work_does():
    """A close returns as soon as the work has ended, however long the drain may be."""
    executor = Draining()
    executor.go.set()
    service = Service(MemoryStore(), executor, maintenance=False)
    service.close(600)
    assert len(executor.given) == 1


def test_close_without_drain_ends_the_drain_of_another_thread():
    """A close without a drain, as by a second signal, ends the drain of another thread."""
    executor = Draining()
    service = Service(MemoryStore(), executor, maintenance=False)
    first = in_thread(lambda: service.close(3600))
    assert executor.entered.wait(PATIENCE)
    service.close(0)
    first()


def test_no_work_is_looked_for_during_the_drain(make_service, monkeypatch):
    """During a drain, the claiming thread does not claim, although work waits."""
    executor = Held(busy=True)
    service = make_service(MemoryStore(), executor)
    work(service).start(WorkRequest())
    background = service.edges.background
    assert background.claims.older_waits
    background.work.stopping, executor.busy = True, False
    monkeypatch.setattr(service.store, "claim", raising(AssertionError("it looks for work")))
    assert background.claims.run_due() >= 1.0
    assert executor.tasks == []


@pytest.mark.parametrize("drain", [float("nan"), float("inf"), "soon"])
def test_invalid_drain_is_refused_and_closes_nothing(drain):
    service = build()
    with pytest.raises(InvalidArgument, match="drain"):
        service.close(drain)
    assert service.start(NAME, WorkRequest()).name
    service.close(timedelta(seconds=1))


@pytest.mark.parametrize("ends", [True, False])
def test_close_with_running_work_logs_counts(ends, caplog):
    """A close logs how many operations it waits for and how long, then how many it released."""
    step, drain = Step(), PATIENCE if ends else 0
    executor = ThreadExecutor(1)
    if ends:
        once(executor, "join", lambda _: step.go.set())
    service = Service(MemoryStore(), executor, maintenance=False)
    work(service, step).start(WorkRequest())
    step.reached()
    with caplog.at_level(logging.INFO, "lro"):
        service.close(drain)
        build().close()  # a close without work logs nothing
    assert [line for line in caplog.messages if line.startswith("stop")] == [
        f"stopping: waits up to {drain:g} s (drain) for running operations: 1",
        f"stopped: operations released: {0 if ends else 1} of 1",
    ]
    step.go.set()


def test_close_from_several_threads_closes_once():
    """Concurrent calls close a service once, and all of them return when the service is closed."""
    executor = Draining()
    closed, store = [], MemoryStore()
    store.close = lambda: closed.append(1)
    service = Service(store, executor, maintenance=False)
    first = in_thread(service.close)
    assert executor.entered.wait(PATIENCE)
    others = [in_thread(lambda: (service.close(), list(closed))[1]) for _ in range(3)]
    executor.go.set()
    assert [first(), *(other() for other in others)] == [None, [1], [1], [1]]
    assert sum(executor.given) <= 10.0


def test_close_within_close_returns_at_once():
    """A call of close within close, by a function or an interrupt, returns at once."""
    executor, within = InlineExecutor(), []
    service = Service(MemoryStore(), executor, maintenance=False)
    once(executor, "join", lambda _: within.append(service.close()))
    service.close()
    assert within == [None]


@pytest.mark.parametrize("step", ["stop", "join"])
def test_second_signal_during_drain_hands_work_back(step, monkeypatch):
    """If a signal interrupts the drain, running work is released and not lost."""
    running = Step()
    store, executor = MemoryStore(), ThreadExecutor(1)
    service = Service(store, executor, maintenance=False)
    monkeypatch.setattr(executor, step, raising(KeyboardInterrupt()))

    name = work(service, running).start(WorkRequest()).name
    running.reached()
    with pytest.raises(KeyboardInterrupt):
        service.close()
    record = store.get(name)
    running.go.set()
    assert (record.done, record.owner, record.lost_attempts) == (False, "", 0)


def test_second_signal_during_drain_kills_functions_before_their_release(make_service, store):
    """If a signal interrupts the drain, functions that can be killed have ended at the release."""
    running, order = Step(), []

    class Killing(ThreadExecutor):
        def join(self, seconds):
            if not order:
                order.append("join")
                raise KeyboardInterrupt
            return super().join(seconds)

        def kill(self):
            order.append(store.get(name).owner)
            running.go.set()

    service = make_service(store, Killing(1))
    name = work(service, running).start(WorkRequest()).name
    running.reached()
    with pytest.raises(KeyboardInterrupt):
        service.edges.work.stop(timedelta(hours=1))
    assert order[:2] == ["join", service.edges.work.owner]


@pytest.mark.parametrize("make", [InlineExecutor, lambda: ThreadExecutor(1)])
def test_work_whose_function_closes_its_service_is_released(make_service, store, monkeypatch, make):
    """A function may close its own service; the work then waits again."""
    monkeypatch.setattr(store, "close", lambda: None)
    service, released = make_service(store, make()), queue.SimpleQueue()

    def close(_, job):
        service.close(0)
        released.put(store.get(job.name).waits)

    work(service, close).start(WorkRequest())
    assert released.get(timeout=PATIENCE)
    until(lambda: not service.edges.work.held())


def test_ctrl_c_in_a_function_of_the_main_thread_ends_the_program(make_service, store, monkeypatch):
    """Ctrl-C in a function that runs inline raises KeyboardInterrupt; the work is released."""
    monkeypatch.setattr(store, "close", lambda: None)
    service, names = make_service(store, InlineExecutor()), []

    def interrupt(_, job):
        names.append(job.name)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        work(service, interrupt).start(WorkRequest())
    service.close()
    assert store.get(names[0]).waits


def test_work_that_is_claimed_during_a_stop_is_released(make_service, store):
    """Work claimed during a stop is released and not lost, as no worker began it."""
    step, busy, service = Step(), make_service(store, ThreadExecutor(1)), make_service(store)
    method = work(busy, step)
    method.start(WorkRequest())
    name = method.start(WorkRequest()).name
    work(service)
    stopping = threading.Thread(target=service.edges.work.stop, args=(timedelta(0),))

    def stop(claim):
        if claim.max_count:  # 0 only asks whether there is waiting work
            stopping.start()
            until(lambda: service.edges.work.stopping)
        else:
            once(store, "claim", stop)

    once(store, "claim", stop)
    service.run_maintenance()
    joined(stopping)
    step.go.set()
    record = store.get(name)
    assert (record.waits, record.attempt, record.lost_attempts) == (True, 1, 0)


def test_close_does_not_wait_for_work_that_runs_in_the_thread_of_claims(
    make_service, store, monkeypatch
):
    """A close releases the work that an InlineExecutor runs in the thread that claims work."""
    step, threads = Step(), []

    def body(*_):
        threads.append(threading.current_thread())
        step()

    elsewhere = Service(store, None, maintenance=False)
    name = work(elsewhere).start(WorkRequest()).name
    service = make_service(store, InlineExecutor(), maintenance=True)
    work(service, body)
    service.edges.start_maintenance()
    step.reached()
    with monkeypatch.context() as patched:
        patched.setattr(store, "close", lambda: None)
        service.close(0)
    assert threads[0].is_alive()
    assert store.get(name).waits
    step.go.set()
    joined(threads[0])


@pytest.mark.parametrize("make", [InlineExecutor, lambda: ThreadExecutor(1), AsyncioExecutor])
def test_start_is_refused_when_the_service_stops(make):
    """A stopping service refuses a start as UNAVAILABLE, with a delay for a retry elsewhere."""
    service = Service(MemoryStore(), make(), maintenance=False)
    method = work(service)
    service.close()
    with pytest.raises(Unavailable, match="the service is closed; `with service`") as caught:
        method.start(WorkRequest())
    retry = caught.value.details("acme")[1]
    assert isinstance(retry, RetryInfo)
    assert retry.retry_delay == timedelta(seconds=1)


@pytest.mark.parametrize("make", [InlineExecutor, lambda: ThreadExecutor(1), AsyncioExecutor])
def test_executor_of_another_service_is_refused(make):
    """An executor that another service uses is refused, as each of the services would stop it."""
    executor, wanted = make(), "executor: belongs to another service"
    service = Service(MemoryStore(), executor, maintenance=False)
    with service, pytest.raises(DeclarationError, match=wanted):
        Service(MemoryStore(), executor, maintenance=False)


# -- exits ------------------------------------------------------------------------------------


def at_exit():
    """Run the exit handler."""
    process._close_all()


@pytest.fixture
def left():
    """The services open at exit, without those of other tests."""
    others = dict(process._open)
    process._open.clear()
    yield process._open
    process._open.clear()
    process._open.update(others)


@pytest.mark.parametrize("threads", [True, False])
def test_exit_closes_all_services_at_once(threads, left, monkeypatch, caplog):
    """At exit, services close in parallel, or one by one without threads. Failures are logged."""
    together = threading.Barrier(3)
    given = []

    class Closing:
        drain = timedelta(seconds=10)

        def close(self, drain: float) -> None:
            given.append(drain)
            if threads:
                together.wait(PATIENCE)
            if len(given) == 3:
                raise OSError("it cannot")

    services = [Closing() for _ in range(3)]
    for one in services:
        process.close_at_exit(one)
    if not threads:
        monkeypatch.setattr(threading.Thread, "start", raising(RuntimeError("no thread")))
    at_exit()
    assert len(given) == 3
    assert all(0 < drain <= 10 for drain in given)
    assert "could not be closed when the process ended" in caplog.text


def test_second_signal_at_exit_ends_the_drains_of_all_services(left, monkeypatch, caplog):
    drains = []
    draining = threading.Event()

    class Closing:
        drain = timedelta(seconds=PATIENCE)

        def close(self, drain: float) -> None:
            drains.append(drain)
            if drain:
                draining.wait(PATIENCE)
            draining.set()

    services = [Closing() for _ in range(3)]
    for one in services:
        process.close_at_exit(one)
    first = next(iter(left))
    monkeypatch.setattr(first, "close", raising(KeyboardInterrupt()), raising=False)
    monkeypatch.setattr(threading.Thread, "join", raising(KeyboardInterrupt()))
    at_exit()
    assert sorted(drains)[:2] == [0, 0]
    assert caplog.text.count("was interrupted") == 1


def test_closed_or_collected_service_is_not_closed_at_exit(left):
    """The exit handler ignores a closed service and keeps no service alive."""
    closed, collected = build(), build()
    assert len(left) == 2
    closed.close()
    del collected
    gc.collect()
    assert len(left) == 0


# -- waits ------------------------------------------------------------------------------------


def test_end_waits_ends_the_waits_of_threads():
    """``end_waits`` ends present and later waits with UNAVAILABLE, except for ended operations."""
    service = build()
    name, done = (service.start(NAME, WorkRequest()).name for _ in range(2))
    service.reporter(done).complete(WorkResponse())
    waiting = in_thread(lambda: service.wait(name, 60))
    until(lambda: listeners(service))
    service.edges.end_waits()
    with pytest.raises(Unavailable, match="the service is stopping"):
        waiting()
    with pytest.raises(Unavailable, match="the service is stopping"):
        service.wait(name, 60)
    assert service.wait(done, 60).done
    assert not service.wait(name, 0).done


def test_end_waits_ends_a_wait_that_begins_during_the_call():
    """A wait that begins while other waits are being ended is ended, too."""
    service = build()
    name = service.start(NAME, WorkRequest()).name

    async def both() -> None:
        first = asyncio.ensure_future(service.wait_async(name, 60))
        await until_async(lambda: service.edges.waiters.waiting)
        service.edges.end_waits()
        second = asyncio.ensure_future(service.wait_async(name, 60))
        for waiter in (first, second):
            with pytest.raises(Unavailable, match="the service is stopping"):
                await asyncio.wait_for(waiter, PATIENCE)

    asyncio.run(both())


# -- signals ----------------------------------------------------------------------------------


class Waited:
    """A fake service that has waiters and counts how often their waits were ended."""

    def __init__(self) -> None:
        self.ended = threading.Semaphore(0)

    def end_waits(self) -> None:
        self.ended.release()

    def was_ended(self) -> bool:
        return self.ended.acquire(timeout=PATIENCE)


@pytest.fixture
def handlers():
    """A function that sets the handlers of SIGTERM and SIGINT for the test."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}

    def put(term: Any, interrupt: Any) -> None:
        signal.signal(signal.SIGTERM, term)
        signal.signal(signal.SIGINT, interrupt)

    yield put
    for number, handler in before.items():
        signal.signal(number, handler)


def handle(*_):
    """Stand for a server's signal handler."""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_ends_waits_and_reaches_the_server(number, handlers):
    """A signal calls the server's handler once, with its usual arguments, and ends all waits."""
    seen: list[int] = []
    handlers(lambda *given: seen.append(given[0]), lambda *given: seen.append(given[0]))
    signals, waited, other = StopSignals(), Waited(), Waited()
    for one in (waited, waited, other):
        signals.end_waits_of(one)
    signal.raise_signal(number)
    assert waited.was_ended()
    assert other.was_ended()
    assert seen == [number]


def test_waits_that_cannot_be_ended_are_logged_and_others_still_are(handlers, caplog):
    """An error in one service is logged. Other waits end, and a later signal tries again."""
    handlers(handle, handle)
    signals, broken, waited = StopSignals(), Waited(), Waited()
    once(broken, "end_waits", raising(ValueError("broken")))
    for one in (broken, waited):
        signals.end_waits_of(one)
    for _ in range(2):
        signal.raise_signal(signal.SIGTERM)
        assert waited.was_ended()
    assert broken.was_ended()
    assert "waits could not be ended at a stop" in caplog.text


@pytest.mark.parametrize("term", [signal.SIG_DFL, handle])
def test_signals_that_no_server_handles_are_left_alone(handlers, term):
    handlers(term, signal.default_int_handler)
    signals, waited = StopSignals(), Waited()
    signals.end_waits_of(waited)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if term is handle:
        signal.raise_signal(signal.SIGTERM)
        assert waited.was_ended()
    else:
        assert signal.getsignal(signal.SIGTERM) is term


def test_signals_cannot_be_handled_in_another_thread(handlers):
    """Outside the main thread, where Python allows no signal handlers, none are installed."""
    handlers(handle, handle)
    in_thread(lambda: StopSignals().end_waits_of(Waited()))()
    assert signal.getsignal(signal.SIGTERM) is handle


def test_process_with_too_many_threads_leaves_signals_alone(handlers, monkeypatch, caplog):
    """If no thread can start, the signals' handlers are not replaced. A later call tries again."""
    handlers(handle, handle)
    signals, waited = StopSignals(), Waited()
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", raising(RuntimeError("full")))
        signals.end_waits_of(waited)
    assert signal.getsignal(signal.SIGTERM) is handle
    assert "waits cannot be ended at a stop: full" in caplog.text
    signals.end_waits_of(waited)
    signal.raise_signal(signal.SIGTERM)
    assert waited.was_ended()


# -- forks -------------------------------------------------------------------------------------


class Counted(PerProcess):
    """An object that appends itself to `made` when made and in each child, where it may fail."""

    def __init__(self, made: list[object], *, fails: bool = False) -> None:
        if fails and self in made:
            raise ZeroDivisionError
        made.append(self)


@forks
def test_objects_are_reset_in_order_after_a_fork():
    """If one object raises at its reset, the others are still reset."""
    made: list[object] = []
    first, _, last = before = [Counted(made, fails=place == 1) for place in range(3)]

    def check() -> None:
        assert made == [*before, first, last]

    in_child(check)
    assert made == before


@forks
def test_forked_process_handles_signals_in_its_own_thread(handlers):
    """A child inherits the signal handler but not its thread, so it starts another thread."""
    seen: list[int] = []
    handlers(lambda *given: seen.append(given[0]), signal.default_int_handler)
    signals, waited = StopSignals(), Waited()
    signals.end_waits_of(waited)

    def check() -> None:
        signals.end_waits_of(waited)
        signal.raise_signal(signal.SIGTERM)
        assert waited.was_ended()
        assert seen == [signal.SIGTERM]

    in_child(check)


@forks
def test_wait_that_the_parent_began_is_not_counted_in_a_child(make_service):
    """Closing the parent's wait in a child does not lower the child's count."""
    service = make_service()
    name = declared(service).start(WorkRequest()).name
    loop = asyncio.new_event_loop()
    wait = service.wait_async(name, PATIENCE, caller="ann")
    task = loop.create_task(wait)
    loop.run_until_complete(until_async(lambda: service.edges.waiters.waits))

    def check() -> None:
        wait.close()
        assert service.edges.waiters.waits == 0

    in_child(check)
    task.cancel()
    loop.run_until_complete(asyncio.wait([task]))
    loop.close()
    assert service.edges.waiters.waits == 0


@forks
def test_a_closed_service_stays_closed_in_a_child():
    executor = Draining()
    executor.go.set()
    service = Service(MemoryStore(), executor, maintenance=False)
    service.close(600)

    def check() -> None:
        service.close()
        assert len(executor.given) == 1

    in_child(check)


def test_listing_living_objects_bears_changes_by_other_threads():
    """An object may be added or dropped at any step of the listing."""
    kept = [Waited() for _ in range(3)]
    found: list[Waited] = []

    def pair() -> tuple[Callable[[], object], Callable[[], object]]:
        others = [Waited()]
        known = weakref.WeakKeyDictionary(dict.fromkeys((*kept, *others)))

        def listed() -> None:
            found[:] = process.living(known)

        def change() -> None:
            others[:] = Waited(), Waited()
            known.update(dict.fromkeys(others))

        return listed, change

    for _ in interleaved(pair):
        assert found[:3] == kept


def test_import_works_on_a_system_without_fork(monkeypatch):
    monkeypatch.delattr(os, "register_at_fork")
    assert "PerProcess" in runpy.run_path(process.__file__)


@forks
def test_a_service_starts_again_in_a_child(make_service, store):
    """A child has a new owner name, no work and no waiters. The parent does not change."""
    service = make_service(store)
    method = declared(service)
    name, owner = method.start(WorkRequest()).name, service.edges.work.owner

    def check() -> None:
        assert service.edges.work.owner != owner
        assert (
            service.edges.waiters.waiting,
            service.edges.waiters.watching,
            listeners(service),
        ) == (0, 0, 0)
        assert not service.get(name).done
        service.reporter(name).complete(WorkResponse("x"))
        assert service.wait(name, 20).done

    in_child(check)
