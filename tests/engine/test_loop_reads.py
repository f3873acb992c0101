"""Reads of a blocking store on an event loop: reads requested at the same moment are batched."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from lro import Operation, Service
from lro.adapters import Found, Record
from lro.errors import OperationNotFound, Unavailable
from lro.executors.inline import InlineExecutor
from lro.executors.threads import ThreadExecutor
from lro.stores.memory import MemoryStore
from tests.engine.engine_parts import declared, method_of
from tests.service_steps import Step, abandon
from tests.waiting import PATIENCE, until_async
from tests.work_messages import WorkRequest


class Slow(MemoryStore):
    """A store that records its reads, which block like those of a database."""

    reads_block = True
    most = 1000
    error: BaseException | None = None
    step: Callable[[], None] | None = None

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[list[str]] = []

    def get(self, name: str) -> Record:
        self._read([name])
        return super().get(name)

    def find(self, names: Collection[str], *limits: int) -> Found:
        self._read(names)
        some, rest = list(names)[: self.most], list(names)[self.most :]
        return Found(super().find(some, *limits).records, rest)

    def _read(self, names: Collection[str]) -> None:
        if self.step is not None and threading.current_thread() is not threading.main_thread():
            self.step()
        self.calls.append(list(names))
        if self.error is not None:
            raise self.error


@pytest.fixture
def store():
    return Slow()


@pytest.fixture
def service(store, make_service):
    return make_service(store, InlineExecutor())


@pytest.fixture
def names(service, store):
    """The names of three operations, and one name that does not exist."""
    method = declared(service)
    found = [method.start(WorkRequest()).name for _ in range(3)]
    store.calls.clear()
    return [*found, "operations/x"]


def reads(service: Service, *names: str) -> list[asyncio.Task[Operation]]:
    """Start tasks that read these operations."""
    return [asyncio.ensure_future(service.get_async(name)) for name in names]


def outcomes(service: Service, *names: str) -> list[Any]:
    """Return the name that each read returns, or the class of the error that it raises."""

    async def main() -> list[Any]:
        found = await asyncio.gather(*reads(service, *names), return_exceptions=True)
        return [one.name if isinstance(one, Operation) else type(one) for one in found]

    return asyncio.run(main())


def test_concurrent_reads_share_one_store_call(service, store, names):
    """Concurrent reads share one call of the store. A missing name gets its own error."""
    a, b, c, x = names
    assert outcomes(service, a) == [a]
    assert store.calls == [[a]]
    store.calls.clear()
    assert outcomes(service, a, b, x, a) == [a, b, OperationNotFound, a]
    assert store.calls == [[a, b, x]]
    assert outcomes(service, x) == [OperationNotFound]
    store.calls.clear()
    store.most = 2  # the second call reads the remaining name
    assert outcomes(service, a, b, c, a) == [a, b, c, a]
    assert store.calls == [[a, b, c], [c]]


class Odd(BaseException):
    """An error that is not an `Exception`, like those that some test tools raise."""


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("error", [Unavailable("away"), Odd()])
def test_an_error_of_the_store_reaches_each_read(service, store, names, error, count):
    """A store's error reaches each read of a batch, and later reads succeed."""
    store.error = error
    assert outcomes(service, *names[:count]) == [type(error)] * count
    store.error = None
    assert outcomes(service, *names[:count]) == names[:count]


@pytest.mark.parametrize("error", [None, Unavailable("away")])
def test_cancelled_read_does_not_affect_other_reads(service, store, names, error):
    store.error = error

    async def main() -> list[Any]:
        tasks = reads(service, *names[:2])
        await asyncio.sleep(0)
        tasks[0].cancel()
        return await asyncio.gather(*tasks, return_exceptions=True)

    first, second = asyncio.run(main())
    assert isinstance(first, asyncio.CancelledError)
    assert second is error or second.name == names[1]


@pytest.fixture
def held(store, names):
    """A step at which the store's reads wait for the test."""
    store.step = step = Step()
    return step


def test_read_succeeds_while_all_tasks_are_cancelled(service, names, held):
    """A cancelled task can read again, even if all other tasks are cancelled during its read."""

    async def reads_again() -> str:
        try:
            await service.get_async(names[0])
        except asyncio.CancelledError:
            return (await service.get_async(names[0])).name
        raise AssertionError

    async def main() -> str:
        task = asyncio.ensure_future(reads_again())
        await asyncio.to_thread(held.reached)
        task.cancel()
        for other in asyncio.all_tasks() - {task, asyncio.current_task()}:
            other.cancel()
        held.go.set()
        async with asyncio.timeout(PATIENCE):
            return await task

    assert asyncio.run(main()) == names[0]


def test_loop_closed_during_a_read_is_freed(service, names, held):
    """A loop closed during a read is freed, together with the tasks that nothing will wake."""
    loop, threads = asyncio.new_event_loop(), ThreadPoolExecutor(1)
    loop.set_default_executor(threads)
    gone = weakref.ref(loop)

    async def main() -> None:
        tasks = reads(service, names[0])
        await until_async(held.begun.is_set)
        tasks += reads(service, names[0])
        await asyncio.sleep(0)
        for task in tasks:
            abandon(task)

    loop.run_until_complete(main())
    loop.close()
    held.go.set()
    threads.shutdown()
    del loop, threads
    gc.collect()
    assert gone() is None


def test_failed_read_of_a_cancelled_task_is_ignored(service, store, names, held):
    """A read that fails after its task was cancelled does not affect the next read."""

    async def main() -> str:
        (task,) = reads(service, names[0])
        await asyncio.to_thread(held.reached)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        store.error = Unavailable("away")
        (waiting,) = reads(service, names[0])
        held.go.set()
        with pytest.raises(Unavailable):
            await waiting
        store.error = None
        return (await service.get_async(names[0])).name

    assert asyncio.run(main()) == names[0]


def test_reads_end_with_the_threads_that_would_make_them(service, names):
    """If the loop's threads are shut down, reads that have not begun are cancelled."""
    handed_in, step = [], Step()

    class Threads(ThreadPoolExecutor):
        def submit(self, *arguments: Any, **options: Any) -> Any:
            handed_in.append(1)
            return super().submit(*arguments, **options)

    async def main() -> list[Any]:
        threads = Threads(1)
        asyncio.get_running_loop().set_default_executor(threads)
        busy = asyncio.ensure_future(asyncio.to_thread(step))
        await until_async(step.begun.is_set)
        tasks = reads(service, *names[:2])
        await until_async(lambda: len(handed_in) == 2)
        threads.shutdown(wait=False, cancel_futures=True)
        step.go.set()
        await busy
        return await asyncio.gather(*tasks, return_exceptions=True)

    assert [type(one) for one in asyncio.run(main())] == [asyncio.CancelledError] * 2


def test_reads_run_on_the_loop_if_its_threads_are_shut_down(service, store, names):
    """If the loop's threads are shut down, reads run on the loop, and errors reach each read."""

    async def main() -> list[Any]:
        threads = ThreadPoolExecutor(1)
        threads.shutdown()
        asyncio.get_running_loop().set_default_executor(threads)
        well = await asyncio.gather(*reads(service, *names[:2]))
        store.error = Unavailable("away")
        return [*well, *await asyncio.gather(*reads(service, *names[:2]), return_exceptions=True)]

    first, second, *errors = asyncio.run(main())
    assert [first.name, second.name] == names[:2]
    assert errors == [store.error, store.error]


def run_one(service: Service, store: Slow, step: Step) -> str:
    """Start an operation whose work runs in a thread of this process, and return its name."""
    name: str = method_of(service, lambda *_: step()).start(WorkRequest()).name
    step.reached()
    store.calls.clear()
    return name


def test_wait_for_work_of_this_process_needs_no_read(store, make_service, step, monkeypatch):
    """A wait takes the end that this process stores, if the end comes before the wait's read."""
    monkeypatch.setattr("lro._engine.waiting.LATE_SECONDS", PATIENCE)
    service = make_service(store, ThreadExecutor(1))
    name = run_one(service, store, step)

    async def main() -> Operation:
        waiting = asyncio.ensure_future(service.wait_async(name))
        await until_async(lambda: service.edges.waiters.waiting == 1)
        step.go.set()
        found: Operation = await waiting
        return found

    assert asyncio.run(main()).done
    assert store.calls == []


def test_wait_in_a_thread_for_work_of_this_process_needs_no_read(
    store, make_service, step, monkeypatch
):
    """A thread's wait, too, first waits for the end that this process stores."""

    def park(notified: threading.Event, _: float) -> None:
        step.go.set()
        assert notified.wait(PATIENCE)

    monkeypatch.setattr("lro._engine.waiting._park", park)
    service = make_service(store, ThreadExecutor(1))
    assert service.wait(run_one(service, store, step)).done
    assert store.calls == []


@pytest.mark.parametrize("in_thread", [True, False])
def test_wait_for_work_of_this_process_reads_the_store_soon(store, make_service, step, in_thread):
    """A wait finds that another process has deleted the operation, whose work still runs here."""
    service = make_service(store, ThreadExecutor(1))
    name = run_one(service, store, step)
    make_service(store, InlineExecutor()).delete(name)
    store.calls.clear()
    with pytest.raises(OperationNotFound):
        service.wait(name) if in_thread else asyncio.run(service.wait_async(name))
    assert store.calls == [[name]]
    step.go.set()
