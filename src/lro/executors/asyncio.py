"""An executor for async functions, on the application's event loop or on a loop of its own."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import logging
import threading
from collections.abc import Coroutine
from typing import Any, Final, Literal

from lro._base.arguments import check, check_count
from lro._base.errors import Unavailable, interrupts
from lro._engine.events import about
from lro._engine.executor_port import LAST_SECONDS, CancelSupport, ExecutorUsage, Task
from lro._engine.process import PerProcess
from lro.executors.threads import FAILED_OUTSIDE, LocalExecutor, Places, WorkerPlace

__all__ = ["AsyncioExecutor"]

log: logging.Logger = logging.getLogger("lro")

_parent_loops: Final[list[object]] = []
"""In a forked process: the event loops of its parent, and their tasks.

The child must not use or close these loops. References protect them from garbage collection, which
would close them: a loop shares its selector with the parent, and the parent would lose events.
"""


_running_loop: Final = asyncio._get_running_loop


async def _wait_for_end(over: asyncio.Future[None]) -> None:
    await over


class AsyncioExecutor(PerProcess, LocalExecutor):
    """Runs up to ``concurrency`` tasks on an event loop.

    The executor has no queue: further operations wait in the store until a task of this process
    ends or a worker of another process is free.

    Cancellation reaches an async function as ``asyncio.CancelledError`` at its next ``await``.
    A function that is not async runs in a thread, and is cancelled as in ``ThreadExecutor``.

    With ``loop="own"`` the loop runs in its own daemon thread, so that work never delays a server's
    loop. Both the loop and the thread start with the first task, so a server can make the executor
    and then fork.

    With ``loop="running"`` work runs on the application's loop: the first loop to use the service.
    Functions can use objects of that loop, such as connections opened when the application started,
    and no thread is needed to start, report or end an operation. Until a loop has used the service,
    starts are UNAVAILABLE. After that loop is closed, starts are UNAVAILABLE until code on another
    loop starts, gets, waits for or watches an operation, or uses a handle. From then on, work runs
    on the new loop. Before the loop ends, close the service in another thread, by
    ``await asyncio.to_thread(service.close)``. If the loop ends first, the work of async functions
    is released soon, as is the work of an async function whose task another task cancels; other
    functions run to their end. The ASGI edge closes the service by itself.

    Raises:
        DeclarationError: ``concurrency`` is not an integer from 1, or ``loop`` is not "own" or
            "running".
    """

    def __init__(self, concurrency: int = 1000, *, loop: Literal["own", "running"] = "own") -> None:
        check_count("concurrency", concurrency)
        check("loop", loop, '"own" or "running"', fine=loop in ("own", "running"))
        self._uses_running_loop = loop == "running"
        self._places = Places(concurrency, self.tell_freed, self._begin)
        self._ended = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._after_fork()

    @property
    def cancel_support(self) -> CancelSupport:
        """An async function stops at its next ``await``, any other function at its next check."""
        return CancelSupport.AT_AWAIT

    @property
    def usage(self) -> ExecutorUsage:
        """The number of running tasks, and its limit."""
        return self._places.usage

    def reserve(self) -> WorkerPlace | None:
        """Reserve one of the ``concurrency`` places; None if all are taken.

        Raises:
            Unavailable: The executor is stopping; or it has no loop, because none can be
                started, or the application's loop is closed or has not used the service yet.
        """
        loop = self._loop
        runs = self._uses_running_loop or self._thread is not None  # else its thread may not start
        ready = runs and loop is not None and not self._loop_ends and not loop.is_closed()
        if not ready:
            self.begin_here()  # tasks of a closed loop take no place
        place = WorkerPlace(self._places)
        if not self._places.take(place):
            return None
        if not ready:
            try:
                self._ensure_loop()
            except BaseException:
                self._places.release(place, tell=False)
                raise
        return place

    def stop(self) -> None:
        """Begin no more tasks."""
        self._places.stop()
        self.begin_here()  # tasks of a closed loop will never end

    def join(self, seconds: float) -> bool:
        """Wait at most ``seconds`` seconds for running tasks; return True if none is left.

        The loop of a stopped executor ends with its last task.
        """
        if self._uses_running_loop and self.loop_runs_here:
            seconds = 0.0  # this thread's loop cannot run its tasks meanwhile
        over = self._places.join(seconds)
        if over and self._places.stopped:
            self._ended = True
            if self._loop is not None and not self._uses_running_loop:
                with contextlib.suppress(RuntimeError):  # the loop has ended
                    self._loop.call_soon_threadsafe(self._loop.stop)
            if self._thread is not None and self._thread is not threading.current_thread():
                self._thread.join(LAST_SECONDS)
        return over

    def _after_fork(self) -> None:
        if self._loop is not None:
            _parent_loops.append((self._loop, self._tasks, self._guard))
        self._starting = threading.Lock()
        self._loop = None
        self._loop_ends = False  # True after the application's loop has cancelled its tasks
        self._thread: threading.Thread | None = None
        self._tasks: dict[asyncio.Task[None], Coroutine[None, None, None]] = {}
        self._guard: tuple[asyncio.Task[None], asyncio.Future[None]] | None = None
        """A task that only a loop that ends cancels, and the future that it awaits.

        It exists while functions are suspended. By it, a task can tell the cancellation of all
        tasks from its own.
        """

    def reopen(self) -> None:
        """Begin tasks again after :meth:`stop`.

        If the own loop has ended, another loop starts with the next task. The application's loop is
        found as at the first start.
        """
        with self._starting:
            if self._ended and not self._uses_running_loop:
                self._loop, self._thread, self._tasks, self._guard = None, None, {}, None
            self._ended = False
        self._places.reopen()

    def begin_here(self) -> None:
        """If this executor has ``loop="running"``, use the event loop that runs in this thread.

        If the last loop was closed before its tasks ended, release them.
        """
        if self._loop_ends and self.loop_runs_here:
            self._loop_ends = False  # the tasks were cancelled, but the loop goes on
            if self._guard is not None and self._guard[0].cancelling():
                self._guard = None  # tasks to come need another guard
        if not self._needs_loop:
            return
        with self._starting:
            if not self._needs_loop:
                return
            left = self._places.end_async()
            alive, self._tasks, self._guard = self._tasks, {}, None
            self._loop, self._loop_ends = _running_loop(), False
            running = self._loop
        for coroutine in alive.values():
            coroutine.close()  # the cleanup of functions runs before other workers get the work
        for task in left:
            task.release_later()
        if running is not None:
            running.call_soon(self.tell_freed)

    @property
    def _needs_loop(self) -> bool:
        return self._uses_running_loop and (self._loop is None or self._loop.is_closed())

    def _ensure_loop(self) -> None:
        if self._uses_running_loop:
            if self._loop is None:
                raise Unavailable("no event loop of the application has used the service yet")
            if self._loop_ends:
                raise Unavailable(
                    "the event loop has cancelled its tasks, as a loop that ends does"
                )
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
        while self._loop is loop and not self._ended:
            try:
                loop.run_forever()
            except BaseException:  # a function's own task can raise SystemExit
                log.exception("a task tried to end the event loop, which continues")
        # At interpreter exit, Python 3.12 starts no threads, but asyncio needs a thread to wait for
        # its thread pool, and raises RuntimeError. The pool has been joined by then, and the loop
        # is closed in spite of the error.
        with contextlib.suppress(RuntimeError):
            runner.close()

    @property
    def loop_runs_here(self) -> bool:
        """True if the loop runs in this thread."""
        return self._loop is not None and self._loop is _running_loop()

    def _begin(self, place: WorkerPlace, task: Task) -> None:
        loop = self._loop  # read once: begin_here may replace the loop
        self._places.begin(place, task)
        try:
            if loop is None or loop.is_closed():  # or the place was reserved before a fork
                raise RuntimeError
            if not task.is_async:
                self._start_thread(place, task)
            elif loop is _running_loop():
                self._start(loop, place, task)
            else:
                loop.call_soon_threadsafe(self._start, loop, place, task)
        except RuntimeError:  # the loop was closed just now
            if self._places.end(place):  # False: the task was released
                raise Unavailable("the event loop has ended") from None

    def _start(  # on the loop
        self, loop: asyncio.AbstractEventLoop, place: WorkerPlace, task: Task
    ) -> None:
        run = _Run(self, place, task)
        coroutine = run.live()
        # Use a new context: the current context belongs to a start, or to the end of a task.
        context = contextvars.Context()
        if loop.get_task_factory() is None:
            running: asyncio.Task[None] = _FunctionTask(coroutine, loop=loop, context=context)
        else:
            running = loop.create_task(coroutine, context=context)
        self._tasks[running] = coroutine
        running.add_done_callback(run.over)

    def guard(self) -> asyncio.Task[None]:  # on the loop
        """Return the guard of the loop, for a function that is suspended."""
        if self._guard is None or self._guard[0].done():
            loop = asyncio.get_running_loop()
            over: asyncio.Future[None] = loop.create_future()
            guard = loop.create_task(_wait_for_end(over), context=contextvars.Context())
            self._guard = guard, over
        return self._guard[0]

    def note_end(self, guard: asyncio.Task[None] | None) -> None:  # on the loop
        """Begin no more work until the loop is used again: it has cancelled all its tasks."""
        if guard is None or (self._guard is not None and self._guard[0] is guard):
            self._loop_ends = self._uses_running_loop

    def note_over(self, place: WorkerPlace, running: asyncio.Task[None]) -> None:  # on the loop
        """Free the place of a task that has ended."""
        self._tasks.pop(running, None)
        if self._guard is not None and not self._tasks:
            over, self._guard = self._guard[1], None
            if not over.done():
                over.set_result(None)
        self._places.end(place, tell=not self._loop_ends)

    def _start_thread(self, place: WorkerPlace, task: Task) -> None:
        # Use a separate thread: in a pool, blocking functions would delay each other and all
        # writes.
        def live() -> None:
            try:
                task.run()
            except BaseException:
                log.exception(FAILED_OUTSIDE, task.name, extra=about(task.name, task.method))
            finally:
                self._places.end(place)

        try:
            threading.Thread(target=live, name="lro-function", daemon=True).start()
        except RuntimeError as exc:  # the process has too many threads, or is ending
            self._places.end(place, tell=False)
            raise Unavailable(f"no thread can be started: {exc}") from exc


class _FunctionTask(asyncio.Task[None]):
    """The task of a function."""

    cancelled_by_other = False
    """True if another task has cancelled this one.

    The executor and the function's own timers cancel from callbacks of the loop. So the other task
    is probably one that ends the tasks of its loop one after the other.
    """

    def cancel(self, msg: Any | None = None) -> bool:
        """Cancel the task as ``asyncio.Task`` does."""
        by = asyncio.current_task(self.get_loop())
        if by is not None and by is not self:
            self.cancelled_by_other = True
        return super().cancel(msg)


class _Run:
    """One task on the loop of an executor."""

    __slots__ = ("_executor", "_guard", "_place", "_task")

    def __init__(self, executor: AsyncioExecutor, place: WorkerPlace, task: Task) -> None:
        self._executor = executor
        self._place = place
        self._task: Task | None = task
        self._guard: asyncio.Task[None] | None = None

    async def live(self) -> None:
        """Do the work."""
        task, self._task = self._task, None
        assert task is not None  # a coroutine begins once
        try:
            await task.arun(self)
        except (asyncio.CancelledError, GeneratorExit):
            raise  # the loop is ending, or closed
        except BaseException as exc:  # SystemExit too, which would end the loop and all tasks
            if isinstance(exc, KeyboardInterrupt | SystemExit) and interrupts(exc):
                raise
            log.exception(FAILED_OUTSIDE, task.name, extra=about(task.name, task.method))

    def over(self, running: asyncio.Task[None]) -> None:
        """Free the place, and release work that was cancelled before its first step."""
        begun = self._task is None
        if self._task is not None:
            self._task.release_later()
        if self._guard is not None:
            self.loop_ends()
        elif running.cancelled() and (
            not begun or all(one.cancelling() for one in asyncio.all_tasks())
        ):
            self._executor.note_end(None)
        self._executor.note_over(self._place, running)

    def suspended(self) -> None:
        """See :class:`LoopWatch`."""
        self._guard = self._executor.guard()

    def loop_ends(self) -> bool:
        """See :class:`LoopWatch`."""
        if self._guard is None:
            return False
        if self._guard.cancelling():
            self._executor.note_end(self._guard)
            return True
        this = asyncio.current_task()
        return isinstance(this, _FunctionTask) and this.cancelled_by_other
