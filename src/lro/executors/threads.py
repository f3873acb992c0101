"""The default executor: a fixed number of threads of this process."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence

from lro._ports import Task
from lro.executors._backlog import Backlog, BacklogSlot
from lro.executors._crew import Crew
from lro.executors._local import LocalExecutor

log = logging.getLogger("lro")


class ThreadExecutor(LocalExecutor):
    """Runs tasks on ``workers`` threads; up to ``queue`` more wait, further ones are refused.

    Cancellation reaches a function at its next ``job.report()`` or ``job.raise_if_cancelled()``,
    and an async function at its next ``await``. A thread cannot be killed: a function that looks
    at neither runs to its end. The threads are daemons: they do not hold up the end of the
    process, whose operations are then taken over by others when their leases run out. They are
    started with the first task, so that a server may fork after it has made its executor.
    """

    def __init__(self, workers: int | None = None, queue: int = 1000) -> None:
        count = workers if workers is not None else min(32, (os.cpu_count() or 1) + 4)
        self._backlog = Backlog(count, queue)
        self._crew = Crew(count, "lro-worker", self._work)

    @property
    def workers(self) -> int:
        """How many threads there are, or will be."""
        return self._crew.size

    def reserve(self) -> BacklogSlot:
        """Room for one task."""
        slot = self._backlog.reserve()
        try:
            self._crew.muster()
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

    def _work(self) -> None:
        while (task := self._backlog.take()) is not None:
            try:
                task.run()
            except BaseException:  # SystemExit too: it must not end the worker
                log.exception("%s: its task failed outside the method", task.name)
            finally:
                self._backlog.finished(task)
