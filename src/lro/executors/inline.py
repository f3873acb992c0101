"""An executor that does the work within the call that starts it: for tests and scripts."""

from __future__ import annotations

import concurrent.futures
import threading

from lro._base.errors import Unavailable
from lro._engine.executor_port import ExecutorUsage, Task
from lro._engine.job import event_loop_runs
from lro._engine.process import after_fork
from lro.executors.threads import STOPPING, LocalExecutor

__all__ = ["InlineExecutor"]


class InlineExecutor(LocalExecutor):
    """Runs each task at once, in the caller's thread: ``start`` returns a finished operation.

    The caller cannot cancel it, being busy with it; another thread that knows the name can, and
    the function learns of that when it looks.

    Operations that wait in the store, such as those of a process that has stopped, are done one
    after the other: a thread reserves one worker at a time.
    """

    def __init__(self) -> None:
        self._stopped = False
        self._reset_after_fork()
        after_fork(self, InlineExecutor._reset_after_fork)

    def _reset_after_fork(self) -> None:
        self._quiet = threading.Condition()
        self._reserved: set[int] = set()
        self._inside: list[int] = []

    @property
    def submits_block(self) -> bool:
        """True: the work is done meanwhile."""
        return True

    @property
    def usage(self) -> ExecutorUsage:
        """How many tasks run; any number can."""
        with self._quiet:
            return ExecutorUsage(len(self._inside))

    def reserve(self) -> _InlineSlot | None:
        """Reserve this thread; None if it is reserved already, and its slot is not used yet.

        A task may reserve its own thread again, for a start within it.
        """
        thread = threading.get_ident()
        with self._quiet:
            if self._stopped:
                raise Unavailable(STOPPING)
            if thread in self._reserved:
                return None
            self._reserved.add(thread)
        return _InlineSlot(self, thread)

    def stop(self) -> None:
        """Refuse further tasks."""
        with self._quiet:
            self._stopped = True

    def _run(self, reserved: int, task: Task) -> None:
        thread = threading.get_ident()
        with self._quiet:
            self._reserved.discard(reserved)
            if self._stopped:
                raise Unavailable(STOPPING)
            self._inside.append(thread)
        try:
            _run(task)
        finally:
            with self._quiet:
                self._inside.remove(thread)
                self._quiet.notify_all()
            self.tell_freed()

    def _release(self, reserved: int) -> None:
        with self._quiet:
            self._reserved.discard(reserved)
        self.tell_freed()

    def join(self, seconds: float) -> bool:
        """Wait at most ``seconds`` seconds for tasks of other threads; return whether none runs."""
        own = threading.get_ident()
        with self._quiet:
            return self._quiet.wait_for(lambda: set(self._inside) <= {own}, seconds)


class _InlineSlot:
    __slots__ = ("_executor", "_thread")

    def __init__(self, executor: InlineExecutor, thread: int) -> None:
        self._executor = executor
        self._thread = thread  # that which reserved it; another may use it

    def submit(self, task: Task) -> None:
        self._executor._run(self._thread, task)

    def release(self) -> None:
        self._executor._release(self._thread)


def _run(task: Task) -> None:
    """Run the task, an async one in another thread if an event loop runs in this one.

    The caller waits all the same: a thread has one event loop at a time.
    """
    if task.is_async and event_loop_runs():
        with concurrent.futures.ThreadPoolExecutor(1, "lro-inline") as aside:
            aside.submit(task.run).result()
    else:
        task.run()
