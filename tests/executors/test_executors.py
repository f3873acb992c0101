"""Behavior of each executor beyond its contract; context variables and transactions."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import logging
import os
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import pytest

import lro
from lro import Service
from lro.adapters import CancelSupport, Executor, ExecutorUsage
from lro.errors import Unavailable
from lro.executors.asyncio import AsyncioExecutor
from lro.executors.inline import InlineExecutor
from lro.executors.processes import ProcessExecutor
from lro.executors.threads import ThreadExecutor
from lro.stores.memory import MemoryStore
from lro.stores.sqlite import SQLiteStore
from lro.testing._executors import Work
from tests.executors.process_methods import SEEN, context, context_async, echo
from tests.service_steps import answer, ended, ended_in_turn, work
from tests.stores.samples import together
from tests.waiting import PATIENCE, joined, until
from tests.work_messages import WorkMetadata, WorkRequest, WorkResponse


class Coroutine(Work):
    """A task that runs a coroutine function."""

    def __init__(self, name, body):
        super().__init__(name, is_async=True)
        self.body = body

    async def arun(self, _=None):
        await self.body()
        self.over.set()


def submit(executor, task):
    """Submit a task; a worker must be free."""
    slot = executor.reserve()
    assert slot is not None
    slot.submit(task)


def finished(executor, task):
    """Run a task, and wait until its worker is free again."""
    submit(executor, task)
    assert executor.join(PATIENCE)
    assert task.over.is_set()


def telling(executor):
    """Return a semaphore that counts the calls of the ``freed`` callback."""
    freed = threading.Semaphore(0)
    executor.attach(print, print, print, freed.release)
    return freed


def ends(executor):
    """Stop an executor, and return whether it has ended."""
    executor.stop()
    return executor.join(PATIENCE)


def test_system_exit_in_a_created_task_does_not_stop_other_work(caplog):
    """If an asyncio task that a function creates raises SystemExit, the executor continues."""
    executor = AsyncioExecutor()

    async def leave():
        raise SystemExit(3)

    async def body():
        child = asyncio.ensure_future(leave())
        with pytest.raises(SystemExit):
            await child

    first, second = Coroutine("first", body), Work("second", is_async=True, held=False)
    with caplog.at_level(logging.ERROR, "lro"):
        finished(executor, first)
    finished(executor, second)
    assert "continues" in caplog.text
    assert ends(executor)


def test_worker_of_a_task_that_was_cancelled_is_free_for_other_work():
    """The service is told of the free worker, because the executor's own loop goes on."""
    executor = AsyncioExecutor(1)
    freed = telling(executor)

    async def body():
        asyncio.current_task().cancel()

    finished(executor, Coroutine("a", body))
    assert freed.acquire(timeout=PATIENCE)
    finished(executor, Work("b", is_async=True, held=False))
    assert ends(executor)


def test_tasks_that_a_function_left_behind_are_cancelled():
    """Tasks that a function created but did not await are cancelled when the loop ends."""
    executor = AsyncioExecutor()
    cancelled = threading.Event()

    async def linger():
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            cancelled.set()
            raise

    async def body():
        executor.kept = asyncio.ensure_future(linger())
        await asyncio.sleep(0)

    task = Coroutine("a", body)
    finished(executor, task)
    assert ends(executor)
    assert cancelled.is_set()
    assert executor.kept.get_loop().is_closed()


def test_repeated_joins_and_late_submits_are_harmless():
    """After a stop, several threads can join at the same time; a late submit is refused."""
    executor = AsyncioExecutor()
    slot = executor.reserve()
    executor.stop()
    assert together(3, lambda _: executor.join(PATIENCE)) == [True] * 3
    assert executor._loop.is_closed()
    with pytest.raises(Unavailable):
        slot.submit(Work("late"))


def test_joining_from_the_loop_itself_does_not_hang():
    """A function may stop and join the executor that runs it; the join returns False at once."""
    executor = AsyncioExecutor()
    found = []

    async def body():
        executor.stop()
        found.append(executor.join(0))

    task = Coroutine("a", body)
    finished(executor, task)
    assert executor.join(PATIENCE)
    assert found == [False]


def test_executors_declare_their_cancel_support():
    """A plain function must check for a cancel itself; a coroutine is cancelled at an ``await``."""
    for make in (InlineExecutor, ThreadExecutor):
        assert make().cancel_support is CancelSupport.COOPERATIVE
    assert AsyncioExecutor().cancel_support is CancelSupport.AT_AWAIT


@pytest.mark.parametrize("make", [ThreadExecutor, AsyncioExecutor])
def test_an_executor_without_work_has_no_thread(make):
    """An unused executor, as before a server's fork, has no thread and can be stopped."""
    before = set(threading.enumerate())
    executor = make()
    assert ends(executor)
    assert set(threading.enumerate()) <= before


def test_the_thread_of_the_loop_is_started_once():
    executor = AsyncioExecutor()
    before = set(threading.enumerate())
    together(4, lambda _: executor.reserve().release())
    assert len(set(threading.enumerate()) - before) == 1
    finished(executor, Work("a", held=False))
    assert ends(executor)


def test_thread_is_started_only_if_all_are_busy():
    """An idle thread is reused; if all threads are busy, another thread is started."""
    executor = ThreadExecutor(3)
    before = set(threading.enumerate())

    def started():
        return len(set(threading.enumerate()) - before)

    for number in range(4):
        finished(executor, Work(str(number), held=False))
    assert started() == 1
    slots = [executor.reserve() for _ in range(3)]
    assert (started(), executor.reserve()) == (3, None)
    for slot in slots:
        slot.release()
    assert executor.usage == ExecutorUsage(0, 3)
    assert ends(executor)
    assert others_end(before)


class Leaving(Work):
    """A task that leaves its rest to ``later``."""

    def run(self, through=None, later=None):
        self.later = later
        self.begun.set()
        return True


def test_worker_is_occupied_until_the_rest_of_its_task_has_ended(caplog):
    """A stopped executor, too, does the rest of its tasks, and its threads end after that."""
    before, executor = set(threading.enumerate()), ThreadExecutor(2)
    freed, tasks, over = telling(executor), [Leaving("a"), Leaving("b")], threading.Event()
    for task in tasks:
        submit(executor, task)
        assert task.begun.wait(PATIENCE)
    assert executor.usage == ExecutorUsage(2, 2)
    assert executor.reserve() is None
    tasks[0].later(over.set)
    assert over.wait(PATIENCE)
    assert freed.acquire(timeout=PATIENCE)
    executor.stop()
    assert not executor.join(0)
    tasks[1].later(sys.exit)
    assert executor.join(PATIENCE)
    assert freed.acquire(timeout=PATIENCE)
    assert "b: its task failed outside the method" in caplog.text
    assert others_end(before)


class Noting(SQLiteStore):
    """A store that notes which updates are handed in."""

    def __init__(self, path):
        super().__init__(path, busy_seconds=PATIENCE)
        self.later = []

    def update_later(self, name, change, done):
        self.later.append(name)
        super().update_later(name, change, done)


def test_result_that_must_wait_for_other_writes_is_handed_in(tmp_path):
    """Until the result is committed, the operation has not ended, and the worker is occupied."""
    store, executor, go = Noting(tmp_path / "operations.db"), ThreadExecutor(1), threading.Event()
    refused = threading.Event()
    with Service(store, executor) as service:
        name = work(service, lambda *_: go.wait(PATIENCE)).start(WorkRequest("abc")).name
        with contextlib.closing(sqlite3.connect(store.path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            store.update_later("operations/none", lambda record: record, lambda *_: refused.set())
            assert store.writes_wait
            go.set()
            until(lambda: name in store.later)
            assert not service.get(name).done
            assert name in service.edges.work.held()
            assert executor.usage == ExecutorUsage(1, 1)
        assert answer(service, ended(service, name)) == "abc"
        assert refused.wait(PATIENCE)
        until(lambda: not service.edges.work.held())
        assert executor.join(PATIENCE)
        assert not store.writes_wait


def others_end(before):
    """Wait until all threads but those in `before` have ended; return whether they have."""
    for thread in set(threading.enumerate()) - before:
        joined(thread)
    return set(threading.enumerate()) <= before


def refuse_threads(monkeypatch, *, after=0):
    """Allow ``after`` more threads to be started, and let later starts fail."""
    start, started = threading.Thread.start, []

    def limited(thread):
        if len(started) >= after:
            raise RuntimeError("can't start new thread")
        started.append(thread)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", limited)


@pytest.mark.parametrize("kind", [ThreadExecutor, AsyncioExecutor, ProcessExecutor])
def test_without_any_thread_the_executor_is_unavailable(kind, monkeypatch):
    """If no thread can be started, ``reserve`` raises Unavailable; a later call tries again."""
    executor = kind(1)
    with monkeypatch.context() as patch:
        refuse_threads(patch)
        for _ in range(2):
            with pytest.raises(Unavailable, match="can't start new thread"):
                executor.reserve()
    finished(executor, Work("a", held=False))
    assert ends(executor)


def test_executor_works_with_fewer_threads_than_configured(monkeypatch, caplog):
    """If the system refuses more threads, there are fewer workers; each reserve tries again."""
    executor = ThreadExecutor(3)
    task = Work("a")
    with monkeypatch.context() as patch:
        refuse_threads(patch, after=1)
        submit(executor, task)
        for _ in range(3):
            assert executor.reserve() is None
        assert caplog.text.count("1 threads instead of 3") == 1
        task.let_end()
        assert executor.join(PATIENCE)
        slot = executor.reserve()
        assert executor.reserve() is None
        slot.release()
    slots = [executor.reserve() for _ in range(3)]
    assert None not in slots
    assert executor.reserve() is None
    for slot in slots:
        slot.submit(Work("b", held=False))
    assert ends(executor)


def test_a_service_that_fails_to_note_a_free_worker_does_not_end_it(caplog):
    executor, before = ThreadExecutor(1), set(threading.enumerate())

    def fail():
        raise ValueError("wanted by a test")

    executor.attach(print, print, print, fail)
    for name in "ab":
        finished(executor, Work(name, held=False))
    assert ends(executor)
    assert others_end(before)
    assert caplog.text.count("failed to note that a worker is free") == 2


def test_reserved_slot_can_be_used_only_once():
    """A second release or submit of a slot frees no other worker and runs no task."""
    executor = ThreadExecutor(1)
    freed = telling(executor)
    slot = executor.reserve()
    slot.release()
    task, late = Work("a"), Work("late")
    submit(executor, task)
    slot.release()
    with pytest.raises(Unavailable):
        slot.submit(late)
    assert executor.reserve() is None
    task.let_end()
    assert executor.join(PATIENCE)
    assert freed.acquire(timeout=PATIENCE)
    assert freed.acquire(timeout=PATIENCE)
    assert not freed.acquire(blocking=False)
    assert not late.begun.is_set()
    assert ends(executor)


# -- the application's loop -----------------------------------------------------------------------


def test_the_tasks_of_a_closed_loop_are_given_up():
    """The next ``reserve`` gives up a closed loop's tasks, so the next loop gets their slots."""
    executor = AsyncioExecutor(2, loop="running")
    freed = telling(executor)
    tasks = [Work("a", is_async=True), Work("b", is_async=True)]
    loop = asyncio.new_event_loop()

    async def begin():
        for task in tasks:
            submit(executor, task)
        assert executor.reserve() is None
        await asyncio.sleep(0.01)

    loop.run_until_complete(begin())
    loop.close()
    assert executor.usage.running == 2
    with pytest.raises(Unavailable, match="no event loop"):
        executor.reserve()
    assert [(task.begun.is_set(), task.released.is_set()) for task in tasks] == [(True, True)] * 2
    assert executor.usage.running == 0
    while freed.acquire(blocking=False):
        pass

    async def again():
        executor.begin_here()
        await asyncio.sleep(0)
        assert freed.acquire(blocking=False)
        task = Work("c", is_async=True, held=False)
        submit(executor, task)
        while not task.over.is_set():
            await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert freed.acquire(blocking=False)
        await asyncio.to_thread(executor.stop)

    asyncio.run(again())
    assert executor.join(0)


def test_task_of_a_loop_closed_before_it_begins_is_dropped():
    executor = AsyncioExecutor(1, loop="running")
    loop = asyncio.new_event_loop()

    async def begin():
        executor.begin_here()

    loop.run_until_complete(begin())
    task = Work("a", is_async=True)
    submit(executor, task)  # for the loop, this is another thread
    loop.close()
    executor.stop()
    assert task.released.is_set()
    assert not task.begun.is_set()
    assert executor.join(0)


def test_task_for_a_closed_loop_is_refused():
    """A submit to a closed loop is refused, even before another call has noticed the close."""
    executor = AsyncioExecutor(2, loop="running")
    loop = asyncio.new_event_loop()

    async def begin():
        return executor.reserve(), executor.reserve()

    first, second = loop.run_until_complete(begin())
    loop.close()
    task, other = Work("a"), Work("b")
    with pytest.raises(Unavailable, match="has ended"):
        first.submit(task)
    assert not task.released.is_set()
    executor.begin_here()
    with pytest.raises(Unavailable, match="has ended"):
        second.submit(other)
    assert executor.usage.running == 0


def test_a_loop_that_is_being_ended_is_given_no_more_work():
    """A loop that is cancelling its tasks gets no new work, which would never begin."""
    executor = AsyncioExecutor(1, loop="running")
    freed = telling(executor)
    task = Work("a", is_async=True)

    async def begin():
        submit(executor, task)
        await asyncio.sleep(0)
        while freed.acquire(blocking=False):
            pass

    asyncio.run(begin())
    assert executor.usage.running == 0
    assert not freed.acquire(blocking=False)


def test_a_task_that_is_cancelled_before_its_first_step_is_released():
    """If a task is cancelled before its first step, its work is released, not held for ever."""
    executor = AsyncioExecutor(1, loop="running")
    task = Work("a", is_async=True)

    async def begin():
        submit(executor, task)
        for other in asyncio.all_tasks() - {asyncio.current_task()}:
            other.cancel()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert executor.usage.running == 0

    asyncio.run(begin())
    assert (task.begun.is_set(), task.released.is_set()) == (False, True)


# -- forks ----------------------------------------------------------------------------------------


def test_slot_reserved_before_a_fork_is_refused_in_the_child():
    """A slot reserved before a fork is refused in the child, which has no thread for its loop."""
    executor = AsyncioExecutor()
    slot = executor.reserve()
    loop, thread = executor._loop, executor._thread
    executor._after_fork()  # as in a forked child, except that the loop's thread still runs
    with pytest.raises(Unavailable):
        slot.submit(Work("a"))
    executor._ended = True
    loop.call_soon_threadsafe(loop.stop)
    joined(thread)
    assert loop.is_closed()


FORKED = """
import os, sys, warnings
from lro.executors.{module} import {name}
from lro.testing._executors import PATIENCE, Work

def works(executor, name, is_async):
    task = Work(name, held=False, is_async=is_async)
    executor.reserve().submit(task)
    return executor.join(PATIENCE) and task.over.is_set()

executor = {name}(2)
held = Work("held")
slot = executor.reserve()
if {warm}:
    executor.reserve().submit(held)
    assert held.begun.wait(PATIENCE)
else:
    slot.release()
warnings.simplefilter("ignore")  # Python warns of forks beside threads, which is the point here
child = os.fork()
if not child:
    fine = works(executor, "child", True) and works(executor, "child again", False)
    slots = [executor.reserve() for _ in range(3)]
    fine = fine and None not in slots[:2] and slots[2] is None
    slot.release()
    fine = fine and executor.reserve() is None
    executor.stop()
    fine = fine and executor.join(PATIENCE)
    os._exit(0 if fine else 3)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
if {warm}:
    assert executor.reserve() is None
    held.let_end()
    slot.release()
assert executor.join(PATIENCE)
assert works(executor, "parent", True)
executor.stop()
assert executor.join(PATIENCE)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
@pytest.mark.platform
@pytest.mark.parametrize("warm", [False, True])
@pytest.mark.parametrize(
    ("module", "name"), [("threads", "ThreadExecutor"), ("asyncio", "AsyncioExecutor")]
)
def test_an_executor_survives_a_fork(module, name, warm):
    """A child has its own threads and none of its parent's tasks; the parent continues."""
    program = FORKED.format(module=module, name=name, warm=warm)
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=3 * PATIENCE
    )
    assert (run.returncode, run.stderr) == (0, "")


def test_work_is_not_given_to_a_loop_whose_thread_cannot_be_started(monkeypatch):
    """While the thread of the loop starts, another thread waits, and then tries again."""
    executor = AsyncioExecutor()
    task = Work("other", is_async=True, held=False)
    other = threading.Thread(target=submit, args=(executor, task))
    start = threading.Thread.start

    def refused(thread):
        monkeypatch.setattr(threading.Thread, "start", start)
        other.start()
        other.join(0.05)  # the other thread submits its work now, unless it waits
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refused)
    with pytest.raises(Unavailable, match="can't start new thread"):
        executor.reserve()
    joined(other)
    assert executor.join(PATIENCE)
    assert task.over.is_set()
    assert ends(executor)


def test_work_for_which_no_thread_can_be_started_waits_in_the_store(monkeypatch):
    """If no thread can be started for a plain function, its work is released and runs later."""
    with Service(MemoryStore(), AsyncioExecutor(2), maintenance=False) as service:
        method = work(service)
        ended(service, method.start(WorkRequest("first")))  # starts the loop's own thread
        start, refusals = threading.Thread.start, [1]

        def refused(thread):
            if refusals and thread.name == "lro-function":
                refusals.pop()
                raise RuntimeError("can't start new thread")
            start(thread)

        monkeypatch.setattr(threading.Thread, "start", refused)
        name = method.start(WorkRequest("second")).name
        assert refusals == []
        assert answer(service, ended_in_turn(service, name)) == "second"


def test_the_inline_executor_waits_for_other_threads():
    """A join waits for tasks in other threads; a task in its own thread cannot end meanwhile."""
    executor = InlineExecutor()
    task = Work("a")
    other = threading.Thread(target=submit, args=(executor, task))
    other.start()
    assert task.begun.wait(PATIENCE)
    assert not executor.join(0)
    task.let_end()
    assert executor.join(PATIENCE)
    own = []

    class Own(Work):
        def run(self, through=None, later=None):
            own.append(executor.join(PATIENCE))

    submit(executor, Own("b"))
    assert own == [False]
    joined(other)


def test_a_caller_reserves_one_inline_slot_at_a_time():
    """A thread can reserve one inline slot at a time; another thread gets its own slot."""
    executor = InlineExecutor()
    freed = telling(executor)
    slot = executor.reserve()
    assert executor.reserve() is None
    assert together(1, lambda _: executor.reserve() is not None) == [True]
    slot.release()
    assert freed.acquire(blocking=False)
    seen = []

    class Outer(Work):
        """A task that runs another task."""

        def run(self, through=None, later=None):
            submit(executor, inner)
            assert freed.acquire(blocking=False)
            seen.append((inner.over.is_set(), executor.usage))

    inner = Work("inner", held=False)
    submit(executor, Outer("outer"))
    assert seen == [(True, ExecutorUsage(1))]
    assert freed.acquire(blocking=False)
    assert executor.usage == ExecutorUsage(0)


def test_starts_on_an_event_loop_do_not_share_an_inline_slot():
    """Each start on an event loop has its own slot, even if their steps run in one pool thread."""
    executor = InlineExecutor()
    tasks = [Work(str(number), held=False) for number in range(3)]

    async def start():
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
        slots = [await asyncio.to_thread(executor.reserve) for _ in tasks]
        assert None not in slots
        for slot, task in zip(slots, tasks, strict=True):
            await asyncio.to_thread(slot.submit, task)

    asyncio.run(start())
    assert all(task.over.is_set() for task in tasks)


def test_an_inline_slot_is_used_up_once():
    executor = InlineExecutor()
    freed = telling(executor)
    slot, task = executor.reserve(), Work("a")
    slot.release()
    slot.release()
    with pytest.raises(Unavailable):
        slot.submit(task)
    assert not task.begun.is_set()
    assert freed.acquire(blocking=False)
    assert not freed.acquire(blocking=False)


def test_the_inline_executor_does_async_work_below_a_running_event_loop():
    """Async work gets its own loop in its own thread, and the caller waits for the work."""
    with lro.Service(MemoryStore(), InlineExecutor(), maintenance=False) as service:

        @service.method("acme.v1.Waits.Wait", metadata=lro.Empty)
        async def wait(request: WorkRequest) -> WorkResponse:
            await asyncio.sleep(0)
            return WorkResponse(request.text)

        async def start():
            return wait.start(WorkRequest("a")).operation

        assert answer(service, asyncio.run(start())) == "a"


CLASSES: Final[Any] = {"request": WorkRequest, "response": WorkResponse, "metadata": WorkMetadata}
NAME: Final = "acme.v1.Works.Context"


def celery_eager(_: int) -> Executor:
    """Return a Celery executor that runs each task where it is sent."""
    celery = pytest.importorskip("celery")
    from lro.executors.celery import CeleryExecutor

    app = celery.Celery("contexts", broker="memory://")
    app.conf.task_always_eager = True
    return CeleryExecutor(app)


@pytest.mark.parametrize("function", [context, context_async])
@pytest.mark.parametrize(
    "make",
    [lambda _: InlineExecutor(), celery_eager, ThreadExecutor, AsyncioExecutor, ProcessExecutor],
)
def test_work_sees_no_context_of_a_start_or_of_other_work(
    make: Callable[[int], Executor], function: Any
) -> None:
    """Each function and the caller of a start set a variable; no other function sees its value."""

    def start_three() -> list[str]:
        SEEN.set("by the caller")
        handles = [method.start(WorkRequest()) for _ in range(3)]
        return [handle.result(PATIENCE).text for handle in handles]

    with Service(MemoryStore(), make(1)) as service:
        method = service.method(NAME, **CLASSES)(function)
        assert contextvars.copy_context().run(start_three) == ["", "", ""]


def test_work_on_the_loop_of_its_start_sees_no_context_of_it() -> None:
    async def start_three() -> list[str]:
        SEEN.set("by the caller")
        service = Service(MemoryStore(), AsyncioExecutor(1, loop="running"))
        method = service.method(NAME, **CLASSES)(context_async)
        handles = [await method.start_async(WorkRequest()) for _ in range(3)]
        seen = [(await handle.result_async(PATIENCE)).text for handle in handles]
        await asyncio.to_thread(service.close)
        return seen

    assert asyncio.run(start_three()) == ["", "", ""]


METHOD = "acme.v1.Works.Echo"


def committed(service, method, path):
    """Start an operation in a transaction, commit, and return the operation's name."""
    with contextlib.closing(sqlite3.connect(path, timeout=60)) as connection:
        name = service.start(method, WorkRequest("abc"), within=connection).name
        connection.commit()
    return name


@pytest.mark.parametrize("executor", [InlineExecutor, ThreadExecutor, ProcessExecutor])
def test_executor_of_this_process_does_the_work_after_the_commit(executor, tmp_path):
    path = tmp_path / "operations.db"
    made = executor() if executor is InlineExecutor else executor(1)
    with Service(SQLiteStore(path), made) as service:
        service.method(METHOD)(echo)
        name = committed(service, METHOD, path)
        assert answer(service, ended(service, name)) == "abc 0"


def test_event_loop_does_the_work_after_the_commit(tmp_path):
    path = tmp_path / "operations.db"

    async def use():
        with Service(SQLiteStore(path), AsyncioExecutor()) as service:

            @service.method(METHOD)
            async def work(request: WorkRequest) -> WorkRequest:
                await asyncio.sleep(0)
                return request

            with contextlib.closing(sqlite3.connect(path)) as connection:
                operation = await work.start_async(WorkRequest("abc"), within=connection)
                connection.commit()
            found = await service.wait_async(operation.name, 60)
            assert service.types.unpack(found.response, WorkRequest) == WorkRequest("abc")

    asyncio.run(use())
