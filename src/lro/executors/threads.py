"""The default executor: a fixed number of threads of this process."""

from __future__ import annotations

import os

from lro._engine.executor_port import Task
from lro.executors._pooled import PooledExecutor


class ThreadExecutor(PooledExecutor):
    """Runs tasks on ``workers`` threads; up to ``queue`` more wait, further ones are refused.

    Cancellation reaches a function at its next ``job.report()`` or ``job.raise_if_cancelled()``,
    and an async function at its next ``await``. A thread cannot be killed: a function that looks
    at neither runs to its end. The threads are daemons: they do not hold up the end of the
    process, whose operations are then taken over by others when their leases run out. They are
    started with the first task, so that a server may fork after it has made its executor. By
    default there are four more threads than processors, at most 32.

    Raises:
        DeclarationError: ``workers`` is not a number from 1, or ``queue`` not one from 0.
    """

    def __init__(self, workers: int | None = None, queue: int = 1000) -> None:
        count = workers if workers is not None else min(32, (os.cpu_count() or 1) + 4)
        super().__init__(count, queue, "lro-worker")

    def _run_task(self, task: Task) -> None:
        task.run()
