"""An executor for async functions: one event loop in a thread of its own."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Sequence

from lro._errors import Unavailable
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
        self._backlog = Backlog(concurrency, queue)
        self._room = concurrency
        self._ended = False
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
        """Wait for running tasks, at most so long; whether none is left.

        The loop of a stopped executor ends with its last task.
        """
        over = self._backlog.join(seconds)
        if over and self._backlog.stopped:
            self._ended = True
            self._wake(self._loop.stop)
            if threading.current_thread() is not self._thread:
                self._thread.join()
        return over

    def _live(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.get_loop()
            while not self._ended:
                try:
                    self._loop.run_forever()
                except BaseException:  # SystemExit in a task that some function made for itself
                    log.exception("the event loop was to be ended by a task, and goes on")

    def _wake(self, action: Callable[[], None]) -> bool:
        try:
            self._loop.call_soon_threadsafe(action)
        except RuntimeError:  # the loop has ended
            return False
        return True

    def _fill(self) -> None:  # on the loop
        while len(self._tasks) < self._room:
            task = self._backlog.take(block=False)
            if task is None:
                return
            running = self._loop.create_task(self._run(task))
            self._tasks.add(running)
            running.add_done_callback(self._over)

    def _over(self, running: asyncio.Task[None]) -> None:  # on the loop
        self._tasks.discard(running)
        self._fill()

    async def _run(self, task: Task) -> None:
        try:
            await task.arun()
        except asyncio.CancelledError:
            raise  # the loop is ending
        except BaseException:  # SystemExit too: it would end the loop, and all tasks with it
            log.exception("%s: its task failed outside the method", task.name)
        finally:
            self._backlog.finished(task)


class _LoopSlot:
    def __init__(self, slot: BacklogSlot, executor: AsyncioExecutor) -> None:
        self._slot = slot
        self._executor = executor

    def submit(self, task: Task) -> None:
        self._slot.submit(task)
        if not self._executor._wake(self._executor._fill):
            raise Unavailable("the executor is stopping")

    def release(self) -> None:
        self._slot.release()
