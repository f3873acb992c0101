"""An executor that runs work within the call that starts it: for tests and scripts."""

from __future__ import annotations

import concurrent.futures
import contextvars
import threading
from typing import Final

from lro._base.errors import Unavailable
from lro._engine.executor_port import ExecutorUsage, Task
from lro._engine.job import event_loop_runs
from lro._engine.process import PerProcess
from lro.executors.threads import STOPPING, LocalExecutor

__all__ = ["InlineExecutor"]


class InlineExecutor(PerProcess, LocalExecutor):
    """Runs each task at once, in the caller's thread: ``start`` returns a finished operation.

    The caller is blocked meanwhile, so only another thread that knows the operation's name can
    cancel the operation. The function sees the cancellation at its next check.

    Operations that wait in the store, such as the operations of a stopped process, run one after
    another, because a caller with an unused slot gets no second slot.
    """

    def __init__(self) -> None:
        self._stopped = False
        self._after_fork()

    def _after_fork(self) -> None:
        self._idle = threading.Condition()
        self._inside: list[int] = []
        self._joining = 0
        """The number of threads in :meth:`join`."""

    @property
    def submits_block(self) -> bool:
        """True: ``submit`` runs the work."""
        return True

    @property
    def usage(self) -> ExecutorUsage:
        """The number of running tasks; there is no limit."""
        with self._idle:
            return ExecutorUsage(len(self._inside))

    def reserve(self) -> _InlineSlot | None:
        """Reserve the caller's thread; None if the caller has an unused slot.

        A running task can reserve its own thread again, for a start within the task.
        """
        if self._stopped:
            raise Unavailable(STOPPING)
        held = _held.get()
        if held is not None and held.executor is self:
            return None
        slot = _InlineSlot(self)
        _held.set(slot)
        return slot

    def stop(self) -> None:
        """Refuse further tasks."""
        self._stopped = True

    def reopen(self) -> None:
        """Run tasks again after :meth:`stop`."""
        self._stopped = False

    def _run(self, task: Task) -> None:
        thread = threading.get_ident()
        with self._idle:
            if self._stopped:
                raise Unavailable(STOPPING)
            self._inside.append(thread)
        try:
            _run(task)
        finally:
            with self._idle:
                self._inside.remove(thread)
                if self._joining:
                    self._idle.notify_all()
            self.tell_freed()

    def join(self, seconds: float) -> bool:
        """Wait up to ``seconds`` seconds for other threads' tasks; return True if no task runs."""
        own = threading.get_ident()
        with self._idle:
            self._joining += 1
            try:
                self._idle.wait_for(lambda: set(self._inside) <= {own}, seconds)
            finally:
                self._joining -= 1
            return not self._inside


class _InlineSlot:
    __slots__ = ("executor",)

    def __init__(self, executor: InlineExecutor) -> None:
        self.executor: InlineExecutor | None = executor  # None once the slot is used

    def submit(self, task: Task) -> None:
        executor, self.executor = self.executor, None
        if executor is None:
            raise Unavailable("this worker is not reserved any more")
        executor._run(task)

    def release(self) -> None:
        executor, self.executor = self.executor, None
        if executor is not None:
            executor.tell_freed()


_held: Final[contextvars.ContextVar[_InlineSlot | None]] = contextvars.ContextVar(
    "lro_inline_slot", default=None
)
"""The slot that the caller reserved most recently.

This is a context variable, not a thread local: an event loop runs the steps of a start in threads
of a pool. Each start has its own context, and must not use the slot of another start.
"""


def _run(task: Task) -> None:
    """Run the task; an async task runs in another thread if this thread runs an event loop.

    The caller waits in either case. A thread can run only one event loop at a time.
    """
    if task.is_async and event_loop_runs():
        with concurrent.futures.ThreadPoolExecutor(1, "lro-inline") as aside:
            aside.submit(task.run).result()
    else:
        task.run()
