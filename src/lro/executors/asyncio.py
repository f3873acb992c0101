"""An executor for async functions: on the application's event loop, or on one of its own."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import functools
import logging
import threading
from collections.abc import Callable, Sequence
from typing import Final, Literal

from lro._base.arguments import check, check_count
from lro._base.errors import Unavailable
from lro._engine.events import about
from lro._engine.executor_port import CancelSupport, ExecutorUsage, Task
from lro._engine.process import after_fork
from lro.executors.threads import FAILED_OUTSIDE, Backlog, BacklogSlot, LocalExecutor

__all__ = ["AsyncioExecutor"]

log: logging.Logger = logging.getLogger("lro")

_PAUSE: Final = 0.5
"""Seconds until another thread is tried."""

_left_behind: Final[list[object]] = []
"""Loops of a process that we were forked from, and their tasks.

They are neither used nor closed here: the selector of a loop is shared with that process, from
which closing would take away its events; so they must not be collected either.
"""


def _running_loop() -> asyncio.AbstractEventLoop | None:
    return asyncio._get_running_loop()


class AsyncioExecutor(LocalExecutor):
    """Runs up to ``concurrency`` tasks on an event loop; up to ``queue`` more wait.

    Cancellation reaches an async function as ``asyncio.CancelledError`` at its next ``await``.
    A function that is not async runs in a thread, where it is reached as in ``ThreadExecutor``.

    ``loop="own"``: the loop has its own daemon thread, so that work never delays the loop of a
    server; both are made with the first task, so that a server may fork after it has made its
    executor. ``loop="running"``: work is done on the loop on which the service is first used, the
    application's, so that functions can use what belongs to that loop, such as connections made
    when the application started. No thread is needed then to start, report or end an operation.
    While no loop has used the service, or after its loop is closed, starts are UNAVAILABLE. Close
    the service in another thread, ``await asyncio.to_thread(service.close)``, before the loop
    ends, or its work is handed back at once; the ASGI edge does so by itself.

    Raises:
        DeclarationError: ``concurrency`` is not a number from 1, ``queue`` not one from 0, or
            ``loop`` neither "own" nor "running".
    """

    def __init__(
        self, concurrency: int = 1000, queue: int = 1000, *, loop: Literal["own", "running"] = "own"
    ) -> None:
        check_count("concurrency", concurrency)
        check_count("queue", queue, least=0)
        check("loop", loop, '"own" or "running"', fine=loop in ("own", "running"))
        self._lent = loop == "running"
        self._backlog = Backlog(concurrency, queue)
        self._room = concurrency
        self._ended = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._reset_after_fork()
        after_fork(self, AsyncioExecutor._reset_after_fork)

    @property
    def cancel_support(self) -> CancelSupport:
        """An async function is interrupted at its next ``await``; another learns when it looks."""
        return CancelSupport.AT_AWAIT

    @property
    def usage(self) -> ExecutorUsage:
        """How many tasks run and wait, and how many may."""
        return self._backlog.usage

    def reserve(self) -> _LoopSlot:
        """Room for one task."""
        worker_idle = self._backlog.reserve()
        try:
            self._ensure_loop()
        except BaseException:
            self._backlog.release()
            raise
        return _LoopSlot(self, worker_idle=worker_idle)

    def withdraw(self, name: str) -> bool:
        """Take back a task that has not begun."""
        return self._backlog.withdraw(name)

    def stop(self) -> Sequence[Task]:
        """Begin nothing more; the tasks that were waiting."""
        return self._backlog.stop()

    def join(self, seconds: float) -> bool:
        """Wait at most ``seconds`` seconds for running tasks; return whether none is left.

        The loop of a stopped executor ends with its last task.
        """
        if self._lent and self.loop_runs_here:
            seconds = 0.0  # what runs on this very loop cannot go on meanwhile
        over = self._backlog.join(seconds)
        if over and self._backlog.stopped:
            self._ended = True
            if self._loop is not None and not self._lent:
                self._call_in_loop(self._loop.stop)
            if self._thread is not None and self._thread is not threading.current_thread():
                self._thread.join()
        return over

    def _reset_after_fork(self) -> None:
        if self._loop is not None:
            _left_behind.append((self._loop, self._tasks))
        self._starting = threading.Lock()
        self._loop = None
        self._thread: threading.Thread | None = None
        self._tasks: dict[Task, asyncio.Task[None]] = {}
        self._lost: list[Task] = []

    def begin_here(self) -> None:
        """Take the event loop that runs in this thread, if this executor is to work there."""
        if not self._lent or (self._loop is not None and not self._loop.is_closed()):
            return
        running = _running_loop()
        if running is None:
            return
        with self._starting:
            self._lost += self._leave_tasks()
            self._loop = running
        running.call_soon(self._start_tasks)  # what has waited since the last loop ended

    def abandoned(self) -> Sequence[Task]:
        """The tasks whose loop was closed before they were over, or before they began."""
        with self._starting:
            lost, self._lost = self._lost, []
            if self._lent and self._loop is not None and self._loop.is_closed():
                lost += [*self._leave_tasks(), *self._backlog.withdraw_all()]
                self._loop = None
            return lost

    def _leave_tasks(self) -> list[Task]:
        left = list(self._tasks)
        self._tasks.clear()
        for task in left:
            self._backlog.finished(task)
        return left

    def _ensure_loop(self) -> None:
        if self._lent:
            self.begin_here()
            if self._loop is None:
                raise Unavailable("no event loop of the application has used the service yet")
            return
        with self._starting:
            if self._thread is not None:
                return
            self._loop = loop = asyncio.new_event_loop()
            thread = threading.Thread(
                target=self._run_loop, args=(loop,), name="lro-asyncio", daemon=True
            )
            try:
                thread.start()
            except RuntimeError as exc:
                self._loop = None
                loop.close()
                raise Unavailable(f"no thread can be started: {exc}") from exc
            self._thread = thread

    def _run_loop(self, loop: asyncio.AbstractEventLoop) -> None:
        runner = asyncio.Runner(loop_factory=lambda: loop)
        runner.get_loop()
        while not self._ended:
            try:
                loop.run_forever()
            except BaseException:  # SystemExit in a task that some function made for itself
                log.exception("the event loop was to be ended by a task, and goes on")
        # At the end of the interpreter Python 3.12 starts no thread any more, by which asyncio
        # would wait for those of its pool; they have been joined by then. The loop is closed.
        with contextlib.suppress(RuntimeError):
            runner.close()

    @property
    def loop_runs_here(self) -> bool:
        """Whether this thread is that of the loop."""
        return self._loop is not None and self._loop is _running_loop()

    def _call_in_loop(self, action: Callable[[], None]) -> bool:
        if self._loop is None:  # the slot comes from before a fork
            return False
        try:
            self._loop.call_soon_threadsafe(action)
        except RuntimeError:  # the loop has ended
            return False
        return True

    def _start_tasks(self) -> None:  # on the loop
        while self._backlog.waits and len(self._tasks) < self._room:
            task = self._backlog.take(block=False)
            if task is None:
                return
            # Else it would be in the context of whatever start or end has called this.
            running = asyncio.get_running_loop().create_task(
                self._run(task), context=contextvars.Context()
            )
            self._tasks[task] = running
            running.add_done_callback(functools.partial(self._task_done, task))

    def _task_done(self, task: Task, running: asyncio.Task[None]) -> None:  # on the loop
        if self._tasks.pop(task, None) is not None:
            self._backlog.finished(task)
        if not running.cancelling():  # else the loop ends, and would not run another
            self._start_tasks()

    async def _run_in_thread(self, task: Task) -> None:
        # A thread of its own: in a pool, functions that block would keep each other waiting, and
        # the writes of all the others.
        loop = asyncio.get_running_loop()
        over = loop.create_future()

        def live() -> None:
            try:
                task.run()
            except BaseException:
                log.exception(FAILED_OUTSIDE, task.name, extra=about(task.name, task.group))
            finally:
                with contextlib.suppress(RuntimeError):  # the loop has ended meanwhile
                    loop.call_soon_threadsafe(over.cancel)

        while True:
            try:
                threading.Thread(target=live, name="lro-function", daemon=True).start()
                break
            except RuntimeError as exc:  # as many as the system allows
                line = "%s: waits until a thread can be started: %s"
                log.warning(line, task.name, exc, extra=about(task.name, task.group))
                await asyncio.sleep(_PAUSE)
        await asyncio.wait({over})

    async def _run(self, task: Task) -> None:
        try:
            await (task.arun() if task.is_async else self._run_in_thread(task))
        except (asyncio.CancelledError, GeneratorExit):
            raise  # the loop is ending, or closed
        except BaseException:  # SystemExit too: it would end the loop, and all tasks with it
            log.exception(FAILED_OUTSIDE, task.name, extra=about(task.name, task.group))


class _LoopSlot(BacklogSlot):
    __slots__ = ("_executor",)

    def __init__(self, executor: AsyncioExecutor, *, worker_idle: bool) -> None:
        super().__init__(executor._backlog, worker_idle=worker_idle)
        self._executor = executor

    def submit(self, task: Task) -> None:
        super().submit(task)
        if self._executor.loop_runs_here:
            self._executor._start_tasks()
        elif not self._executor._call_in_loop(self._executor._start_tasks):
            raise Unavailable("the executor is stopping")
