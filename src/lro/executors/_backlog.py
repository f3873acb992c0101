"""A bounded queue of tasks with limits per group: what the executors of one process share."""

from __future__ import annotations

import threading
from collections import Counter, OrderedDict
from collections.abc import Sequence
from datetime import timedelta

from lro._base.errors import ResourceExhausted, Unavailable
from lro._engine.executor_port import Task
from lro._engine.forks import after_fork


class Backlog:
    """Tasks that wait for a worker: room for ``at_once`` that run, and ``queue`` more.

    Running, waiting and reserved are counted together: once that many are in the house,
    :meth:`reserve` refuses.
    """

    def __init__(self, at_once: int, queue: int) -> None:
        self._at_once = at_once
        self._size = at_once + queue
        self._stopped = False
        self._clear()
        after_fork(self, Backlog._clear)  # what the parent has begun or queued, the parent does

    def _clear(self) -> None:
        self._lock = threading.Lock()
        # Two conditions, lest a task's one wake-up go to somebody who waits for the end of others.
        self._ready = threading.Condition(self._lock)
        self._quiet = threading.Condition(self._lock)
        self._waiting: OrderedDict[str, Task] = OrderedDict()
        self._running: Counter[str] = Counter()
        self._reserved = 0

    def reserve(self) -> BacklogSlot:
        """Room for one task."""
        with self._lock:
            if self._stopped:
                raise Unavailable("the executor is stopping")
            inside = self._reserved + len(self._waiting) + self._running.total()
            if inside >= self._size:
                text = f"the queue is full: {inside} operations are running or waiting"
                raise ResourceExhausted(text, timedelta(seconds=1))
            self._reserved += 1
        return BacklogSlot(self, at_once=inside < self._at_once)

    def withdraw(self, name: str) -> bool:
        """Take a waiting task back."""
        with self._lock:
            return self._waiting.pop(name, None) is not None

    def stop(self) -> Sequence[Task]:
        """Give out no more tasks; those that were waiting."""
        with self._lock:
            self._stopped = True
            left = list(self._waiting.values())
            self._waiting.clear()
            self._ready.notify_all()
            return left

    @property
    def stopped(self) -> bool:
        """Whether :meth:`stop` was called."""
        return self._stopped

    def join(self, seconds: float) -> bool:
        """Wait until nothing runs, at most so long; whether that came about."""
        with self._lock:
            return self._quiet.wait_for(lambda: not self._running, seconds)

    def take(self, *, block: bool = True) -> Task | None:
        """The next task that may run, which then counts as running; None once stopped.

        Without ``block`` also None when there is none now.
        """
        with self._lock:
            while not self._stopped:
                for name, task in self._waiting.items():
                    limit = task.group_limit
                    if limit is None or self._running[task.group] < limit:
                        del self._waiting[name]
                        self._running[task.group] += 1
                        return task
                if not block:
                    return None
                self._ready.wait()
            return None

    def finished(self, task: Task) -> None:
        """A task that was taken is over."""
        with self._lock:
            self._running[task.group] -= 1
            if not self._running[task.group]:
                del self._running[task.group]
            if not self._running:
                self._quiet.notify_all()
            if self._waiting:  # whose group may have room now; this worker looks by itself
                self._ready.notify()

    def _submit(self, task: Task) -> None:
        with self._lock:
            self._reserved -= 1
            if self._stopped:
                raise Unavailable("the executor is stopping")
            self._waiting[task.name] = task
            self._ready.notify()

    def _release(self) -> None:
        with self._lock:
            self._reserved -= 1


class BacklogSlot:
    """Reserved room for one task, and whether a worker was free when it was."""

    def __init__(self, backlog: Backlog, *, at_once: bool) -> None:
        self._backlog = backlog
        self.at_once = at_once

    def submit(self, task: Task) -> None:
        """Queue the task."""
        self._backlog._submit(task)

    def release(self) -> None:
        """Give the room back."""
        self._backlog._release()
