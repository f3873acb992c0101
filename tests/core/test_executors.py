"""What is special to an executor, beside the contract."""

from __future__ import annotations

import asyncio
import logging
import threading

import pytest

from lro._errors import Unavailable
from lro.executors.asyncio import AsyncioExecutor
from lro.testing._executors import Work
from tests.core.kit import PATIENCE


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
        submit(executor, first)
        assert first.over.wait(PATIENCE)
    submit(executor, second)
    assert second.over.wait(PATIENCE)
    assert "goes on" in caplog.text
    executor.stop()
    assert executor.join(PATIENCE)


def test_what_a_function_left_behind_is_cancelled():
    """Tasks that nobody awaits end with the loop, in order."""
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
    submit(executor, task)
    assert task.over.wait(PATIENCE)
    executor.stop()
    assert executor.join(PATIENCE)
    assert cancelled.is_set()
    assert executor._loop.is_closed()


def test_the_loop_ends_once():
    """Joining again, also from several threads, and submitting too late are harmless."""
    executor = AsyncioExecutor()
    slot = executor.reserve()
    executor.stop()
    threads = [threading.Thread(target=executor.join, args=(PATIENCE,)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert executor._loop.is_closed()
    with pytest.raises(Unavailable):
        slot.submit(Work("late"))


def test_a_task_between_the_stop_and_the_end_of_the_loop_is_refused():
    """It was queued, given back by stop, and the loop is gone: the submit fails, as it should."""
    executor = AsyncioExecutor()
    slot = executor.reserve()
    task = Work("a", is_async=True)
    whole = slot._slot.submit

    def submit_and_stop(one):
        whole(one)
        assert executor.stop() == [one]
        assert executor.join(PATIENCE)

    slot._slot.submit = submit_and_stop
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
    submit(executor, task)
    assert task.over.wait(PATIENCE)
    assert executor.join(PATIENCE)
    assert found == [False]


def test_joining_on_the_loop_after_the_stop():
    """With nothing left to wait for, the loop ends itself."""
    executor = AsyncioExecutor()
    executor.stop()
    found = []
    executor._loop.call_soon_threadsafe(lambda: found.append(executor.join(0)))
    executor._thread.join(PATIENCE)
    assert found == [True]
    assert executor._loop.is_closed()


def test_work_that_outlasts_the_loop_is_cancelled():
    """The loop is ended by force: the task is told, and so is who waits for it."""
    executor = AsyncioExecutor()
    told = []
    begun = threading.Event()

    async def body():
        begun.set()
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            told.append(1)
            raise

    submit(executor, Coroutine("a", body))
    assert begun.wait(PATIENCE)
    executor.stop()
    executor._ended = True
    executor._wake(executor._loop.stop)
    assert executor.join(PATIENCE)
    executor._thread.join(PATIENCE)
    assert told == [1]
