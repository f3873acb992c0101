"""An executor for async functions: one event loop in a thread of its own."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Sequence

from lro._ports import Task
from lro.executors._backlog import Backlog, BacklogSlot

log = logging.getLogger("lro")


class AsyncioExecutor:
    """Runs up to ``concurrency`` tasks on an event loop; up to ``queue`` more wait.

    Cancellation reaches an async function as ``asyncio.CancelledError`` at its next ``await``.
    A function that is not async runs in a thread, where it is reached as in ``ThreadExecutor``.
    The loop has its own daemon thread, so that work never delays the loop of a server.
    """

    def __init__(self, concurrency: int = 1000, queue: int = 1000) -> None:
        self._backlog = Backlog(concurrency + queue)
        self._room = concurrency
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._live, name="lro-asyncio", daemon=True)
        self._thread.start()

    def reserve(self) -> _LoopSlot:
        """Room for one task."""
        return _LoopSlot(self._backlog.reserve(), self)

    def withdraw(self, name: str) -> bool:
        """Take back a task that has not begun."""
        return self._backlog.withdraw(name)

    def stop(self) -> Sequence[Task]:
        """Begin nothing more; the tasks that were waiting."""
        return self._backlog.stop()

    def join(self, seconds: float) -> bool:
        """Wait for running tasks, at most so long; whether none is left. Then the loop ends."""
        over = self._backlog.join(seconds)
        if over and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._loop.stop)
            if threading.current_thread() is not self._thread:
                self._thread.join()
        return over

    def _live(self) -> None:
        try:
            self._loop.run_forever()
            self._loop.run_until_complete(self._loop.shutdown_default_executor())
        finally:
            self._loop.close()

    def _fill(self) -> None:  # on the loop
        while len(self._tasks) < self._room:
            task = self._backlog.take(block=False)
            if task is None:
                return
            running = self._loop.create_task(self._run(task))
            self._tasks.add(running)

    async def _run(self, task: Task) -> None:
        try:
            await task.arun()
        except Exception:
            log.exception("%s: its task failed outside the method", task.name)
        finally:
            current = asyncio.current_task()
            if current is not None:
                self._tasks.discard(current)
            self._backlog.finished(task)
            self._fill()


class _LoopSlot:
    def __init__(self, slot: BacklogSlot, executor: AsyncioExecutor) -> None:
        self._slot = slot
        self._executor = executor

    def submit(self, task: Task) -> None:
        self._slot.submit(task)
        self._executor._loop.call_soon_threadsafe(self._executor._fill)

    def release(self) -> None:
        self._slot.release()
