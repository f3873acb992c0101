"""Threads that do work: the ThreadExecutor, and what other executors in this process share."""

from __future__ import annotations

import logging
import os
import threading
from abc import abstractmethod
from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Final

from lro._base.arguments import check_count
from lro._base.errors import DeclarationError, ResourceExhausted, Unavailable
from lro._engine.events import about
from lro._engine.executor_port import CancelSupport, ExecutorUsage, Task
from lro._engine.method_spec import MethodSpec
from lro._engine.process import after_fork

__all__ = ["ThreadExecutor"]

log: logging.Logger = logging.getLogger("lro")

FAILED_OUTSIDE: Final = "%s: its task failed outside the method"
"""The log line for an error that should not be: a task takes care of its own."""


class LocalExecutor:
    """The part of an executor that is the same wherever tasks run in this process."""

    _attached = False

    @property
    def cancel_support(self) -> CancelSupport:
        """A function learns of a cancellation when it looks."""
        return CancelSupport.COOPERATIVE

    @property
    def redelivery(self) -> timedelta | None:
        """None: the work is done in this process."""
        return None

    @property
    def submits_block(self) -> bool:
        """False: a task is only queued."""
        return False

    def attach(
        self,
        work: Callable[[str], None],  # noqa: ARG002
        close: Callable[[timedelta], None],  # noqa: ARG002
        begin: Callable[[], None],  # noqa: ARG002
    ) -> None:
        """Take note of the service; its callbacks are not needed here, where tasks come whole.

        Raises:
            DeclarationError: Another service has this executor, which would stop with either.
        """
        if self._attached:
            wanted = "is that of another service, and stops with it: make one for each service"
            raise DeclarationError("executor", wanted)
        self._attached = True

    def begin_here(self) -> None:
        """Not needed here."""

    def abandoned(self) -> Sequence[Task]:
        """None: threads do what they have taken."""
        return ()

    def admit(self, spec: MethodSpec) -> None:
        """Any function can be called in its own process."""


class Backlog:
    """Tasks that wait for a worker: room for ``at_once`` that run, and ``queue`` more.

    Running, waiting and reserved tasks are counted together; :meth:`reserve` refuses one more.
    """

    def __init__(self, at_once: int, queue: int) -> None:
        self._at_once = at_once
        self._size = at_once + queue
        self._stopped = False
        self._reset_after_fork()
        after_fork(self, Backlog._reset_after_fork)  # the parent runs what it has queued

    def _reset_after_fork(self) -> None:
        self._lock = threading.Lock()
        # Two conditions, so that the wake-up for a task reaches a worker, not a thread in join().
        self._ready = threading.Condition(self._lock)
        self._quiet = threading.Condition(self._lock)
        self._waiting: OrderedDict[str, Task] = OrderedDict()
        self._running: Counter[str] = Counter()
        self._inside = 0
        """How many tasks run or wait, and how many places are reserved."""

    def reserve(self) -> bool:
        """Take the room for one task; whether a worker was free then.

        Raises:
            Unavailable: The executor is stopping.
            ResourceExhausted: There is no room.
        """
        with self._lock:
            if self._stopped:
                raise Unavailable("the executor is stopping")
            inside = self._inside
            if inside >= self._size:
                text = f"the queue is full: {inside} operations are running or waiting"
                raise ResourceExhausted(text, timedelta(seconds=1))
            self._inside += 1
        return inside < self._at_once

    def withdraw(self, name: str) -> bool:
        """Take a waiting task back."""
        with self._lock:
            if self._waiting.pop(name, None) is None:
                return False
            self._inside -= 1
            return True

    def withdraw_all(self) -> list[Task]:
        """Take all waiting tasks back."""
        with self._lock:
            return self._empty()

    def _empty(self) -> list[Task]:
        left = list(self._waiting.values())
        self._waiting.clear()
        self._inside -= len(left)
        return left

    def stop(self) -> Sequence[Task]:
        """Give out no more tasks; those that were waiting."""
        with self._lock:
            self._stopped = True
            self._ready.notify_all()
            return self._empty()

    @property
    def usage(self) -> ExecutorUsage:
        """How many tasks run and wait, and how many may."""
        with self._lock:
            running, queued = sum(self._running.values()), len(self._waiting)
        return ExecutorUsage(running, queued, self._at_once, self._size - self._at_once)

    @property
    def waits(self) -> bool:
        """Whether any task waits for a worker, or for room in its group."""
        return bool(self._waiting)

    @property
    def stopped(self) -> bool:
        """Whether :meth:`stop` was called."""
        return self._stopped

    def join(self, seconds: float) -> bool:
        """Wait at most ``seconds`` seconds until nothing runs; return whether nothing does."""
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
            self._inside -= 1
            self._running[task.group] -= 1
            if not self._running[task.group]:
                del self._running[task.group]
            if not self._running:
                self._quiet.notify_all()
            if self._waiting:  # whose group may have room now; this worker looks by itself
                self._ready.notify()

    def submit(self, task: Task) -> None:
        """Queue a task, for which there is room."""
        with self._lock:
            if self._stopped:
                self._inside -= 1
                raise Unavailable("the executor is stopping")
            if task.name in self._waiting:  # its lease was lost, and it was taken over here
                self._inside -= 1
            self._waiting[task.name] = task
            self._ready.notify()

    def release(self) -> None:
        """Give back the room for one task."""
        with self._lock:
            self._inside -= 1


class BacklogSlot:
    """Reserved room for one task, and whether a worker was free when it was."""

    __slots__ = ("_backlog", "worker_idle")

    def __init__(self, backlog: Backlog, *, worker_idle: bool) -> None:
        self._backlog = backlog
        self.worker_idle: bool = worker_idle

    def submit(self, task: Task) -> None:
        """Queue the task."""
        self._backlog.submit(task)

    def release(self) -> None:
        """Give the room back."""
        self._backlog.release()


class WorkerThreads:
    """``size`` daemon threads that each call ``target``.

    No thread is started before :meth:`ensure_started`: an executor that a server makes before it
    forks has no thread to lose, and an executor that is never used costs none.
    """

    def __init__(self, size: int, name: str, target: Callable[[], None]) -> None:
        self.size = size
        self._name = name
        self._target = target
        self._lock = threading.Lock()
        self._started = False
        after_fork(self, WorkerThreads._reset_after_fork)

    def ensure_started(self) -> None:
        """Start the threads, unless they are started.

        Raises:
            Unavailable: No thread can be started: the process has too many, or is ending.
        """
        with self._lock:
            if not self._started:
                self._start()
                self._started = True

    def _start(self) -> None:
        for number in range(self.size):
            thread = threading.Thread(
                target=self._target, name=f"{self._name}-{number}", daemon=True
            )
            try:
                thread.start()
            except RuntimeError as exc:
                if number == 0:
                    raise Unavailable(f"no thread can be started: {exc}") from exc
                log.warning("%d threads instead of %d: %s", number, self.size, exc)
                return

    def _reset_after_fork(self) -> None:
        self._lock = threading.Lock()
        self._started = False


class PooledExecutor(LocalExecutor):
    """``workers`` threads take tasks from a bounded queue, and run each with :meth:`_run_task`.

    Raises:
        DeclarationError: ``workers`` is not a number from 1, or ``queue`` not one from 0.
    """

    def __init__(self, workers: int, queue: int, thread_name: str) -> None:
        check_count("workers", workers)
        check_count("queue", queue, least=0)
        self._backlog = Backlog(workers, queue)
        self._threads = WorkerThreads(workers, thread_name, self._work)

    @property
    def workers(self) -> int:
        """How many tasks are done at once."""
        return self._threads.size

    @property
    def usage(self) -> ExecutorUsage:
        """How many tasks run and wait, and how many may."""
        return self._backlog.usage

    def reserve(self) -> BacklogSlot:
        """Room for one task."""
        worker_idle = self._backlog.reserve()
        try:
            self._threads.ensure_started()
        except BaseException:
            self._backlog.release()
            raise
        return BacklogSlot(self._backlog, worker_idle=worker_idle)

    def withdraw(self, name: str) -> bool:
        """Take back a task that has not begun."""
        return self._backlog.withdraw(name)

    def stop(self) -> Sequence[Task]:
        """Begin nothing more; the tasks that were waiting."""
        return self._backlog.stop()

    def join(self, seconds: float) -> bool:
        """Wait at most ``seconds`` seconds for running tasks; return whether none is left."""
        return self._backlog.join(seconds)

    @abstractmethod
    def _run_task(self, task: Task) -> None:
        """Run one task, in this thread."""

    def _work(self) -> None:
        while (task := self._backlog.take()) is not None:
            try:
                self._run_task(task)
            except BaseException:  # SystemExit too: it must not end the worker
                log.exception(FAILED_OUTSIDE, task.name, extra=about(task.name, task.group))
            finally:
                self._backlog.finished(task)


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
