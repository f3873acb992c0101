"""Reads of a store that blocks, on an event loop: those asked for at once are made together."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from lro._engine.flow import Flow, UpdateWrite, on_loop, read
from lro._engine.store_port import READ_BYTES
from lro.adapters import Found, Record
from lro.errors import OperationNotFound, Unavailable
from lro.stores.memory import MemoryStore
from lro.testing import ManualClock
from lro.testing._samples import insert, record_of
from tests.service_steps import Step
from tests.waiting import PATIENCE


class Slow(MemoryStore):
    """A store whose reads block, as one of a database does, and are noted."""

    reads_block = True

    def __init__(self) -> None:
        self.clock = ManualClock()
        super().__init__(self.clock)
        self.calls: list[list[str]] = []
        self.most = 1000
        self.error: BaseException | None = None

    def get(self, name: str) -> Record:
        if threading.current_thread() is not threading.main_thread():
            self.calls.append([name[-1]])
        if self.error is not None:
            raise self.error
        return super().get(name)

    def find(self, names: Collection[str], max_bytes: int = READ_BYTES) -> Found:
        self.calls.append([name[-1] for name in names])
        if self.error is not None:
            raise self.error
        some, rest = list(names)[: self.most], list(names)[self.most :]
        return Found(super().find(some, max_bytes).records, rest)


@pytest.fixture
def store() -> Slow:
    made = Slow()
    for name in "abc":
        insert(made, record_of(made.clock, name))
    return made


def reads(store: Slow, names: str) -> list[asyncio.Task[Record]]:
    """Tasks that read the operations of these letters."""
    return [asyncio.ensure_future(on_loop(read(store, f"operations/{name}"))) for name in names]


def outcomes(store: Slow, names: str) -> list[Any]:
    """The letter that each read gives, or the error that it raises."""

    async def main() -> list[Any]:
        found = await asyncio.gather(*reads(store, names), return_exceptions=True)
        return [one.name[-1] if isinstance(one, Record) else type(one) for one in found]

    return asyncio.run(main())


def test_reads_of_one_moment_are_made_by_one_call(store: Slow) -> None:
    """A name that is asked for twice is read once, and one that is not there has its error."""
    assert outcomes(store, "a") == ["a"]
    assert store.calls == [["a"]]
    store.calls.clear()
    assert outcomes(store, "abxa") == ["a", "b", OperationNotFound, "a"]
    assert store.calls == [["a", "b", "x"]]
    assert outcomes(store, "x") == [OperationNotFound]


def test_reads_that_a_call_leaves_are_made_by_the_next(store: Slow) -> None:
    """A store reads so many bytes at once."""
    store.most = 2
    assert outcomes(store, "abca") == ["a", "b", "c", "a"]
    assert store.calls == [["a", "b", "c"], ["c"]]


def test_an_error_of_the_store_reaches_each_read(store: Slow) -> None:
    """The next reads are made as if nothing had been."""
    store.error = Unavailable("away")
    assert outcomes(store, "ab") == [Unavailable, Unavailable]
    store.error = None
    assert outcomes(store, "ab") == ["a", "b"]


@pytest.mark.parametrize("error", [None, Unavailable("away")])
def test_a_read_whose_task_is_cancelled_disturbs_no_other(
    store: Slow, error: Exception | None
) -> None:
    """Neither where the store answers, nor where it does not."""
    store.error = error

    async def main() -> list[Any]:
        tasks = reads(store, "ab")
        await asyncio.sleep(0)
        tasks[0].cancel()
        return await asyncio.gather(*tasks, return_exceptions=True)

    first, second = asyncio.run(main())
    assert isinstance(first, asyncio.CancelledError)
    assert second is error or second.name == "operations/b"


def test_what_was_written_is_made_use_of_if_the_task_is_cancelled_in_a_read(store: Slow) -> None:
    """A thread reads once more, and goes on."""
    over = threading.Event()
    found: list[Record] = []

    def flow() -> Flow[None]:
        yield UpdateWrite(store, "operations/a", lambda record: record.next_version(caller="c"))
        found.append((yield from read(store, "operations/a")))
        over.set()

    async def main() -> None:
        task = asyncio.ensure_future(on_loop(flow()))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert over.wait(PATIENCE)
    assert found[0].caller == "c"


class Held(Slow):
    """A slow store whose calls wait until the test lets them go on."""

    def __init__(self) -> None:
        super().__init__()
        self.step = Step()
        insert(self, record_of(self.clock, "a"))

    def get(self, name: str) -> Record:
        if threading.current_thread() is not threading.main_thread():
            self.step()
        return super().get(name)


def test_a_read_that_tidies_up_is_made_where_all_tasks_are_cancelled() -> None:
    """So a loop ends; one task reads again while the thread reads for it."""
    store = Held()

    async def reads_again() -> str:
        try:
            await on_loop(read(store, "operations/a"))
        except asyncio.CancelledError:
            return (await on_loop(read(store, "operations/a"))).name
        raise AssertionError

    async def main() -> str:
        task = asyncio.ensure_future(reads_again())
        await asyncio.to_thread(store.step.reached)
        task.cancel()
        for other in asyncio.all_tasks() - {task, asyncio.current_task()}:
            other.cancel()
        store.step.go.set()
        async with asyncio.timeout(PATIENCE):
            return await task

    assert asyncio.run(main()) == "operations/a"


class Odd(BaseException):
    """An error that is no Exception, as those of some test tools and of threads are."""


@pytest.mark.parametrize("names", ["a", "ab"])
def test_an_odd_error_of_the_store_reaches_each_read(store: Slow, names: str) -> None:
    """None of them waits for ever."""
    store.error = Odd()
    assert outcomes(store, names) == [Odd] * len(names)
    store.error = None
    assert outcomes(store, names) == list(names)


def test_a_loop_that_was_closed_during_a_read_is_let_go() -> None:
    """With the tasks that nothing will wake any more."""
    store = Held()
    loop = asyncio.new_event_loop()
    gone = weakref.ref(loop)

    async def main() -> None:
        tasks = reads(store, "a")
        await asyncio.to_thread(store.step.reached)
        tasks += reads(store, "a")
        await asyncio.sleep(0)
        for task in tasks:
            task._log_destroy_pending = False  # type: ignore[attr-defined]  # as is meant here

    loop.run_until_complete(main())
    threads = loop._default_executor  # type: ignore[attr-defined]
    loop.close()
    store.step.go.set()
    threads.shutdown()
    del loop, threads
    gc.collect()
    assert gone() is None


def test_a_read_that_is_given_up_while_the_store_fails_is_left_alone() -> None:
    """Its task has gone; the next read is made as if nothing had been."""
    store = Held()

    async def main() -> str:
        (task,) = reads(store, "a")
        await asyncio.to_thread(store.step.reached)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        store.error = Unavailable("away")
        (waiting,) = reads(store, "a")
        store.step.go.set()
        with pytest.raises(Unavailable):
            await waiting
        store.error = None
        return (await on_loop(read(store, "operations/a"))).name

    assert asyncio.run(main()) == "operations/a"


def test_reads_end_with_the_threads_that_would_make_them(store: Slow) -> None:
    """An application may shut the threads of its loop down, and cancel what they have not begun."""

    async def main() -> list[Any]:
        threads, step = ThreadPoolExecutor(1), Step()
        asyncio.get_running_loop().set_default_executor(threads)
        busy = asyncio.ensure_future(asyncio.to_thread(step))
        while not step.begun.is_set():
            await asyncio.sleep(0)
        tasks = reads(store, "ab")
        while not threads._work_queue.qsize():
            await asyncio.sleep(0)
        threads.shutdown(wait=False, cancel_futures=True)
        step.go.set()
        await busy
        return await asyncio.gather(*tasks, return_exceptions=True)

    assert [type(one) for one in asyncio.run(main())] == [asyncio.CancelledError] * 2


def test_reads_are_made_on_the_loop_where_there_are_no_threads(store: Slow) -> None:
    """As at the end of the interpreter; an error of the store reaches each of them, too."""

    async def main() -> list[Any]:
        threads = ThreadPoolExecutor(1)
        threads.shutdown()
        asyncio.get_running_loop().set_default_executor(threads)
        well = await asyncio.gather(*reads(store, "ab"))
        store.error = Unavailable("away")
        return [*well, *await asyncio.gather(*reads(store, "ab"), return_exceptions=True)]

    first, second, *errors = asyncio.run(main())
    assert [first.name, second.name] == ["operations/a", "operations/b"]
    assert errors == [store.error, store.error]
