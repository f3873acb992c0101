"""What the executors have in common whose tasks are seen to by threads of this process."""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Sequence

from lro._base.arguments import check_count
from lro._engine.executor_port import Task
from lro.executors._backlog import Backlog, BacklogSlot
from lro.executors._crew import WorkerThreads
from lro.executors._local import LocalExecutor

log = logging.getLogger("lro")


class PooledExecutor(LocalExecutor):
    """``workers`` threads take tasks from a bounded queue, and :meth:`_do` them one by one.

    Raises:
        DeclarationError: ``workers`` is no number from 1, or ``queue`` none from 0.
    """

    def __init__(self, workers: int, queue: int, thread_name: str) -> None:
        check_count("workers", workers)
        check_count("queue", queue, least=0)
        self._backlog = Backlog(workers, queue)
        self._crew = WorkerThreads(workers, thread_name, self._work)

    @property
    def workers(self) -> int:
        """How many tasks are done at once."""
        return self._crew.size

    def reserve(self) -> BacklogSlot:
        """Room for one task."""
        slot = self._backlog.reserve()
        try:
            self._crew.ensure_started()
        except BaseException:
            slot.release()
            raise
        return slot

    def withdraw(self, name: str) -> bool:
        """Take back a task that has not begun."""
        return self._backlog.withdraw(name)

    def stop(self) -> Sequence[Task]:
        """Begin nothing more; the tasks that were waiting."""
        return self._backlog.stop()

    def join(self, seconds: float) -> bool:
        """Wait for running tasks, at most so long; whether none is left."""
        return self._backlog.join(seconds)

    @abstractmethod
    def _do(self, task: Task) -> None:
        """See to one task, in this thread."""

    def _work(self) -> None:
        while (task := self._backlog.take()) is not None:
            try:
                self._do(task)
            except BaseException:  # SystemExit too: it must not end the worker
                log.exception("%s: its task failed outside the method", task.name)
            finally:
                self._backlog.finished(task)
