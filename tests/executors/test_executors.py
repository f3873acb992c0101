"""What is special to an executor beside the contract; contexts and transactions of each."""

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
from typing import Any, Final

import pytest

import lro
from lro import Service
from lro.adapters import CancelSupport, Executor
from lro.errors import Unavailable
from lro.executors import asyncio as asyncio_executor
from lro.executors.asyncio import AsyncioExecutor
from lro.executors.inline import InlineExecutor
from lro.executors.processes import ProcessExecutor
from lro.executors.threads import ThreadExecutor
from lro.stores.memory import MemoryStore
from lro.stores.sqlite import SQLiteStore
from lro.testing._executors import Work
from tests.executors.process_methods import SEEN, context, context_async, echo
from tests.service_steps import answer, ended
from tests.stores.samples import together
from tests.waiting import PATIENCE, joined
from tests.work_messages import WorkMetadata, WorkRequest, WorkResponse


class Coroutine(Work):
    """A task that runs a coroutine function."""

    def __init__(self, name, body):
        super().__init__(name, is_async=True)
        self.body = body

    async def arun(self):
        await self.body()
        self.over.set()


def submit(executor, task):
    executor.reserve().submit(task)


def finished(executor, task):
    """Submit a task and wait for its end."""
    submit(executor, task)
    assert task.over.wait(PATIENCE)


def ends(executor):
    """Stop an executor; whether it has ended."""
    executor.stop()
    return executor.join(PATIENCE)


def test_a_task_that_ends_the_loop_ends_nothing_else(caplog):
    """A function may make asyncio tasks of its own, and one of these may raise SystemExit."""
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
    assert "goes on" in caplog.text
    assert ends(executor)


def test_what_a_function_left_behind_is_cancelled():
    """Tasks that are not awaited end with the loop, in order."""
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


def test_the_loop_ends_once():
    """Joining again, also from several threads, and submitting too late are harmless."""
    executor = AsyncioExecutor()
    slot = executor.reserve()
    executor.stop()
    assert together(3, lambda _: executor.join(PATIENCE)) == [True] * 3
    assert executor._loop.is_closed()
    with pytest.raises(Unavailable):
        slot.submit(Work("late"))


def test_a_task_between_the_stop_and_the_end_of_the_loop_is_refused():
    """It was queued, given back by stop, and the loop is gone: the submit fails, as it should."""
    task = Work("a", is_async=True)

    class Ending(AsyncioExecutor):
        @property
        def loop_runs_here(self):  # is asked once the task is queued
            assert self.stop() == [task]
            assert self.join(PATIENCE)
            return False

    slot = Ending().reserve()
    with pytest.raises(Unavailable, match="stopping"):
        slot.submit(task)
    assert not task.begun.is_set()


def test_joining_from_the_loop_itself_does_not_hang():
    """A function may close the service that runs it."""
    executor = AsyncioExecutor()
    found = []

    async def body():
        executor.stop()
        found.append(executor.join(0))

    task = Coroutine("a", body)
    finished(executor, task)
    assert executor.join(PATIENCE)
    assert found == [False]


def test_each_says_how_far_it_reaches():
    """A thread cannot be stopped, a coroutine only where it awaits."""
    for make in (InlineExecutor, ThreadExecutor):
        assert make().cancel_support is CancelSupport.COOPERATIVE
    assert AsyncioExecutor().cancel_support is CancelSupport.AT_AWAIT


@pytest.mark.parametrize("make", [ThreadExecutor, AsyncioExecutor])
def test_an_executor_without_work_has_no_thread(make):
    """It may be made before a server forks, or for nothing; stopping it is harmless."""
    before = set(threading.enumerate())
    executor = make()
    assert ends(executor)
    assert set(threading.enumerate()) <= before


@pytest.mark.parametrize("make", [lambda: ThreadExecutor(1), AsyncioExecutor])
def test_threads_are_started_once(make):
    executor = make()
    before = set(threading.enumerate())
    together(4, lambda _: executor.reserve().release())
    assert len(set(threading.enumerate()) - before) == 1
    finished(executor, Work("a", held=False))
    assert ends(executor)


def refuse_threads(monkeypatch, *, after=0):
    """Let so many threads be started, and no more."""
    start, started = threading.Thread.start, []

    def limited(thread):
        if len(started) >= after:
            raise RuntimeError("can't start new thread")
        started.append(thread)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", limited)


@pytest.mark.parametrize("kind", [ThreadExecutor, AsyncioExecutor, ProcessExecutor])
def test_without_a_thread_there_is_no_room(kind, monkeypatch):
    """The process has too many, or is ending: the start raises, and the caller may ask again."""
    executor = kind(1, 0)
    with monkeypatch.context() as patch:
        refuse_threads(patch)
        for _ in range(2):
            with pytest.raises(Unavailable, match="can't start new thread"):
                executor.reserve()
    finished(executor, Work("a", held=False))
    assert ends(executor)


def test_fewer_threads_than_wanted_do_the_work(monkeypatch, caplog):
    executor = ThreadExecutor(3)
    refuse_threads(monkeypatch, after=1)
    finished(executor, Work("a", held=False))
    assert "1 threads instead of 3" in caplog.text
    assert ends(executor)


def test_a_slot_from_before_a_fork_is_of_no_use():
    """The loop that it was for lives in the parent."""
    executor = AsyncioExecutor()
    slot = executor.reserve()
    loop, thread = executor._loop, executor._thread
    executor._reset_after_fork()  # as in a forked child, but that the loop does run here
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
    return task.over.wait(PATIENCE)

executor = {name}(1, 1)
held, waiting = Work("held"), Work("waiting", held=False)
if {warm}:
    executor.reserve().submit(held)
    assert held.begun.wait(PATIENCE)
    executor.reserve().submit(waiting)
warnings.simplefilter("ignore")  # Python warns of forks beside threads, which is the point here
child = os.fork()
if not child:
    fine = works(executor, "child", True) and works(executor, "child again", False)
    fine = fine and not executor.stop() and executor.join(PATIENCE)
    os._exit(0 if fine else 3)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
held.let_end()
assert not {warm} or waiting.over.wait(PATIENCE)
assert executor.join(PATIENCE)
assert works(executor, "parent", True)
assert not executor.stop() and executor.join(PATIENCE)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
@pytest.mark.platform
@pytest.mark.parametrize("warm", [False, True])
@pytest.mark.parametrize(
    ("module", "name"), [("threads", "ThreadExecutor"), ("asyncio", "AsyncioExecutor")]
)
def test_an_executor_survives_a_fork(module, name, warm):
    """The child has threads of its own and none of the parent's tasks; the parent goes on."""
    program = FORKED.format(module=module, name=name, warm=warm)
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=3 * PATIENCE
    )
    assert (run.returncode, run.stderr) == (0, "")


def test_a_function_waits_until_a_thread_can_be_started(monkeypatch):
    """Beside an event loop: it is neither lost, nor does it block the others."""
    monkeypatch.setattr(asyncio_executor, "_PAUSE", 0.0)
    executor = AsyncioExecutor(2)
    executor.reserve().release()  # the loop's own thread
    start, refusals = threading.Thread.start, [1, 2]

    def refused(thread):
        if refusals and thread.name == "lro-function":
            refusals.pop()
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refused)
    task = Work("a", held=False)
    finished(executor, task)
    assert ends(executor)
    assert refusals == []


def test_the_inline_executor_waits_for_other_threads():
    """A service that closes gives them time; what its own thread does is no reason to wait."""
    executor = InlineExecutor()
    task = Work("a")
    other = threading.Thread(target=lambda: executor.reserve().submit(task))
    other.start()
    assert task.begun.wait(PATIENCE)
    assert not executor.join(0)
    task.let_end()
    assert executor.join(PATIENCE)
    slot, own = executor.reserve(), []

    class Own(Work):
        def run(self, through=None):
            own.append(executor.join(PATIENCE))

    slot.submit(Own("b"))
    assert own == [True]
    executor.stop()
    with pytest.raises(Unavailable):
        slot.submit(task)
    joined(other)


def test_the_inline_executor_does_async_work_below_a_running_event_loop():
    """A loop of its own needs a thread of its own there; the caller waits."""
    with lro.Service(MemoryStore(), InlineExecutor(), maintenance=False) as service:

        @service.method("acme.v1.Waits.Wait", metadata=lro.Empty)
        async def wait(request: WorkRequest) -> WorkResponse:
            await asyncio.sleep(0)
            return WorkResponse(request.text)

        async def start():
            return wait.start(WorkRequest("a")).operation

        assert answer(service, asyncio.run(start())) == "a"


def test_work_that_waits_is_replaced_and_counted_once():
    """Its lease ran out while it waited, and the same process took it over."""
    executor = ThreadExecutor(1, queue=2)
    busy = Work("busy")
    submit(executor, busy)
    assert busy.begun.wait(PATIENCE)
    waiting, again = Work("waiting", held=False), Work("waiting", held=False)
    submit(executor, waiting)
    submit(executor, again)
    slot = executor.reserve()
    with pytest.raises(lro.errors.ResourceExhausted):
        executor.reserve()
    slot.release()
    busy.let_end()
    assert again.over.wait(PATIENCE)
    assert ends(executor)
    assert not waiting.over.is_set()


CLASSES: Final[Any] = {"request": WorkRequest, "response": WorkResponse, "metadata": WorkMetadata}
NAME: Final = "acme.v1.Works.Context"


def celery_eager(_: int) -> Executor:
    """Work is done as a worker of Celery does it, where it is sent."""
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
    """Of neither: the caller of the start sets one, and work in the same place another."""

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
    """The name of an operation that a transaction has committed."""
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
