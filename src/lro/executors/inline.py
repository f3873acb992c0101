"""An executor that does the work within the call that starts it: for tests and scripts."""

from __future__ import annotations

import concurrent.futures
import threading
from collections.abc import Sequence

from lro._base.errors import Unavailable
from lro._engine.executor_port import ExecutorUsage, Task
from lro._engine.job import event_loop_runs
from lro._engine.process import after_fork
from lro.executors.threads import LocalExecutor

__all__ = ["InlineExecutor"]


class InlineExecutor(LocalExecutor):
    """Runs each task at once, in the caller's thread: ``start`` returns a finished operation.

    The caller cannot cancel it, being busy with it; another thread that knows the name can, and
    the function learns of that when it looks.
    """

    def __init__(self) -> None:
        self._stopped = False
        self._reset_after_fork()
        after_fork(self, InlineExecutor._reset_after_fork)

    def _reset_after_fork(self) -> None:
        self._quiet = threading.Condition()
        self._inside: list[int] = []

    @property
    def submits_block(self) -> bool:
        """True: the work is done meanwhile."""
        return True

    @property
    def worker_idle(self) -> bool:
        """The caller's thread is there."""
        return True

    @property
    def usage(self) -> ExecutorUsage:
        """How many tasks run; none waits, and any number may run."""
        with self._quiet:
            return ExecutorUsage(len(self._inside), 0)

    def reserve(self) -> InlineExecutor:
        """Room for one task: always there."""
        if self._stopped:
            raise Unavailable("the executor is stopping")
        return self

    def submit(self, task: Task) -> None:
        """Run the task now."""
        thread = threading.get_ident()
        with self._quiet:
            if self._stopped:
                raise Unavailable("the executor is stopping")
            self._inside.append(thread)
        try:
            _run(task)
        finally:
            with self._quiet:
                self._inside.remove(thread)
                self._quiet.notify_all()

    def release(self) -> None:
        """Nothing was taken."""

    def withdraw(self, name: str) -> bool:  # noqa: ARG002
        """Nothing ever waits."""
        return False

    def stop(self) -> Sequence[Task]:
        """Refuse further tasks."""
        self._stopped = True
        return ()

    def join(self, seconds: float) -> bool:
        """Wait at most ``seconds`` seconds for tasks of other threads; return whether none runs."""
        own = threading.get_ident()
        with self._quiet:
            return self._quiet.wait_for(lambda: set(self._inside) <= {own}, seconds)


def _run(task: Task) -> None:
    """Run the task, an async one in another thread if an event loop runs in this one.

    The caller waits all the same: a thread has one event loop at a time.
    """
    if task.is_async and event_loop_runs():
        with concurrent.futures.ThreadPoolExecutor(1, "lro-inline") as aside:
            aside.submit(task.run).result()
    else:
        task.run()
