"""The ThreadExecutor, and the parts that other executors share with it."""

from __future__ import annotations

import functools
import logging
import os
import threading
from abc import abstractmethod
from collections.abc import Callable
from datetime import timedelta
from queue import SimpleQueue
from typing import Final, Never, TypeAlias

from lro._base.arguments import check_count, refuse_keywords
from lro._base.errors import DeclarationError, Unavailable
from lro._engine.events import about
from lro._engine.executor_port import CancelSupport, ExecutorUsage, Later, Task
from lro._engine.method_spec import MethodSpec
from lro._engine.process import PerProcess

__all__ = ["ThreadExecutor"]

log: logging.Logger = logging.getLogger("lro")

FAILED_OUTSIDE: Final = "%s: its task failed outside the method"
"""The log line for an unexpected error. Errors of the function are handled by the task itself."""

STOPPING: Final = "the executor is stopping"
"""Message of the error with which a stopped executor refuses a task."""


def _ignore() -> None:
    """Do nothing: no service has attached the executor."""


class LocalExecutor:
    """Base of the executors whose tasks run in this process or its children."""

    _attached = False
    _freed: Callable[[], None] = staticmethod(_ignore)

    @property
    def cancel_support(self) -> CancelSupport:
        """A function sees a cancellation at its next check."""
        return CancelSupport.COOPERATIVE

    @property
    def redelivery(self) -> timedelta | None:
        """None: the work is done in this process."""
        return None

    @property
    def submits_block(self) -> bool:
        """False: ``submit`` passes the task to its worker without waiting."""
        return False

    def attach(
        self,
        work: Callable[[str], None],  # noqa: ARG002
        close: Callable[[timedelta], None],  # noqa: ARG002
        begin: Callable[[], None],  # noqa: ARG002
        freed: Callable[[], None],
    ) -> None:
        """Keep the callback ``freed``; only executors that receive names need the other callbacks.

        Raises:
            DeclarationError: Another service has this executor.
        """
        if self._attached:
            wanted = "belongs to another service, and stops with it: make one for each service"
            raise DeclarationError("executor", wanted)
        self._attached = True
        self._freed = freed

    def begin_here(self) -> None:
        """Do nothing: only an executor with ``loop="running"`` uses the caller's event loop."""

    def check_method(self, spec: MethodSpec) -> None:
        """Accept any function: it is called in this process."""

    def tell_freed(self) -> None:
        """Tell the service that a worker is free."""
        try:
            self._freed()
        except Exception:  # an error must not end the worker
            log.exception("the service failed to note that a worker is free")


class Places(PerProcess):
    """Counts places for tasks: at most ``size`` places are reserved or have a running task.

    ``freed`` is called, without the lock, whenever a place becomes free. ``run`` runs a task in a
    reserved place.
    """

    stopped: bool = False

    def __init__(
        self, size: int, freed: Callable[[], None], run: Callable[[WorkerPlace, Task], None]
    ) -> None:
        self.size: int = size
        self.run: Callable[[WorkerPlace, Task], None] = run
        self._freed = freed
        self._lock = threading.Lock()
        self._idle = threading.Condition(self._lock)
        self._reserved: set[WorkerPlace] = set()
        self._running: dict[WorkerPlace, Task] = {}
        self._joining = 0
        """The number of threads in :meth:`join`."""

    def take(self, place: WorkerPlace) -> int:
        """Reserve a place; return the number of places then taken, or 0 if no place was free.

        Raises:
            Unavailable: The executor is stopping.
        """
        with self._lock:
            if self.stopped:
                raise Unavailable(STOPPING)
            taken = len(self._reserved) + len(self._running)
            if taken >= self.size:
                return 0
            self._reserved.add(place)
            return taken + 1

    def begin(
        self, place: WorkerPlace, task: Task, hand_over: Callable[[], None] | None = None
    ) -> None:
        """Count a task as running and call ``hand_over``, with no ``stop`` in between.

        Raises:
            Unavailable: The executor is stopping, or the place was reserved before a fork.
        """
        with self._lock:
            if place not in self._reserved:
                raise Unavailable("this worker is not reserved any more")
            self._reserved.remove(place)
            if self.stopped:
                raise Unavailable(STOPPING)
            self._running[place] = task
            if hand_over is not None:
                hand_over()

    def release(self, place: WorkerPlace, *, tell: bool = True) -> None:
        """Free a reserved place, and call ``freed`` unless ``tell`` is False."""
        with self._lock:
            if place not in self._reserved:
                return
            self._reserved.remove(place)
        if tell:
            self._freed()

    def end(self, place: WorkerPlace, *, tell: bool = True) -> bool:
        """Count a task as ended; return False if it was not counted as running."""
        with self._lock:
            if self._running.pop(place, None) is None:
                return False
            if self._joining and not self._running:
                self._idle.notify_all()
        if tell:
            self._freed()
        return True

    def end_async(self) -> list[Task]:
        """Count all running async tasks as ended, without calling ``freed``; return them."""
        with self._lock:
            running, self._running = self._running, {}
            for place, task in running.items():
                if not task.is_async:
                    self._running[place] = task
            self._idle.notify_all()
        return [task for task in running.values() if task.is_async]

    def stop(self) -> None:
        """From now on, refuse to reserve places and to begin tasks."""
        with self._lock:
            self.stopped = True

    def reopen(self) -> None:
        """Allow tasks again after :meth:`stop`; a task that still runs keeps its place."""
        with self._lock:
            self.stopped = False

    def join(self, seconds: float) -> bool:
        """Wait at most ``seconds`` seconds for running tasks; return True if none is left."""
        with self._lock:
            self._joining += 1
            try:
                return self._idle.wait_for(lambda: not self._running, seconds)
            finally:
                self._joining -= 1

    @property
    def usage(self) -> ExecutorUsage:
        """The number of running tasks, and its limit."""
        with self._lock:
            return ExecutorUsage(len(self._running), self.size)


class WorkerPlace:
    """A reserved worker (a ``Slot``)."""

    __slots__ = ("_places",)

    def __init__(self, places: Places) -> None:
        self._places = places

    def submit(self, task: Task) -> None:
        """Run the task now."""
        self._places.run(self, task)

    def release(self) -> None:
        """Release the worker unused."""
        self._places.release(self)


_Assignment: TypeAlias = tuple[WorkerPlace, Task, Callable[[], None] | None] | None
"""The task of a worker thread, with its place and, if it has begun, its rest.

None: the thread must end.
"""


class WorkerThreads(PerProcess):
    """Daemon threads, each of which calls ``work`` for one task after another.

    A thread is started when it is needed. So an executor made before a server forks loses no
    threads, and an unused executor has none.
    """

    def __init__(
        self,
        size: int,
        name: str,
        work: Callable[[WorkerPlace, Task, Callable[[], None] | None], None],
    ) -> None:
        self._size = size
        self._name = name
        self._work = work
        self._starting = threading.Lock()
        self._started = 0
        self._lacks_threads = False
        self._assigned: SimpleQueue[_Assignment] = SimpleQueue()

    def provide(self, wanted: int) -> bool:
        """Start threads until ``wanted`` run; return False if only some could be started.

        Raises:
            Unavailable: No thread can be started: the process has too many threads, or is ending.
        """
        if self._started >= wanted:
            return True
        with self._starting:
            while self._started < wanted:
                try:
                    self._start()
                except RuntimeError as exc:
                    if not self._started:
                        raise Unavailable(f"no thread can be started: {exc}") from exc
                    if not self._lacks_threads:
                        log.warning("%d threads instead of %d: %s", self._started, self._size, exc)
                    self._lacks_threads = True
                    return False
            self._lacks_threads = False
        return True

    def _start(self) -> None:
        name = f"{self._name}-{self._started}"
        threading.Thread(target=self._serve, args=(self._assigned,), name=name, daemon=True).start()
        self._started += 1

    def hand_over(
        self, place: WorkerPlace, task: Task, rest: Callable[[], None] | None = None
    ) -> None:
        """Pass a task to an idle thread, which exists because each taken place has a thread."""
        self._assigned.put((place, task, rest))

    def end(self) -> None:
        """Let idle threads end."""
        self._assigned.put(None)

    def reopen(self) -> None:
        """Let all present threads end when they are idle, and start new ones when needed."""
        with self._starting:
            self.end()
            self._started, self._assigned = 0, SimpleQueue()

    def _serve(self, assigned: SimpleQueue[_Assignment]) -> None:
        while assigned is self._assigned:  # False in the child, if a task forks
            next_one = assigned.get()
            if next_one is None:
                assigned.put(None)  # lets the next thread end
                return
            self._work(*next_one)
            del next_one  # do not keep the task alive while this thread waits


class PooledExecutor(LocalExecutor):
    """Base of executors with at most ``workers`` threads, which call :meth:`_run_task`.

    Raises:
        DeclarationError: ``workers`` is not a number from 1.
    """

    def __init__(self, workers: int, thread_name: str) -> None:
        check_count("workers", workers)
        self._places = Places(workers, self.tell_freed, self._begin)
        self._threads = WorkerThreads(workers, thread_name, self._work)

    @property
    def workers(self) -> int:
        """The largest number of tasks that run at once."""
        return self._places.size

    @property
    def usage(self) -> ExecutorUsage:
        """The number of running tasks, and its limit."""
        return self._places.usage

    def reserve(self) -> WorkerPlace | None:
        """Reserve a free thread; None if all are busy."""
        place = WorkerPlace(self._places)
        taken = self._places.take(place)
        if not taken:
            return None
        try:
            provided = self._threads.provide(taken)
        except BaseException:
            self._places.release(place, tell=False)
            raise
        if provided:
            return place
        self._places.release(place, tell=False)
        return None

    def stop(self) -> None:
        """Begin no more tasks."""
        self._places.stop()
        self._end_threads()

    def reopen(self) -> None:
        """Begin tasks again after :meth:`stop`."""
        self._threads.reopen()
        self._places.reopen()

    def join(self, seconds: float) -> bool:
        """Wait at most ``seconds`` seconds for running tasks; return True if none is left."""
        return self._places.join(seconds)

    @abstractmethod
    def _run_task(self, task: Task, later: Later) -> bool:
        """Run one task, in this thread; return True if its rest is left to ``later``."""

    def _begin(self, place: WorkerPlace, task: Task) -> None:
        self._places.begin(place, task, lambda: self._threads.hand_over(place, task))

    def _work(self, place: WorkerPlace, task: Task, rest: Callable[[], None] | None) -> None:
        left = False
        try:
            if rest is None:
                left = self._run_task(task, functools.partial(self._threads.hand_over, place, task))
            else:
                rest()
        except BaseException:  # SystemExit too must not end the worker
            log.exception(FAILED_OUTSIDE, task.name, extra=about(task.name, task.method))
        if not left:
            self._places.end(place)
            if self._places.stopped:
                self._end_threads()

    def _end_threads(self) -> None:
        """Let the threads end if no task is left; the rest of a task needs one."""
        if not self._places.usage.running:
            self._threads.end()


class ThreadExecutor(PooledExecutor):
    """Runs tasks on at most ``workers`` threads.

    The executor has no queue: an operation without a free thread waits in the store until a thread
    of this process or a worker of another process is free.

    Cancellation reaches a function at its next ``job.report()``, ``job.sleep()`` or
    ``job.raise_if_cancelled()``, and an async function at its next ``await``. A thread cannot be
    killed: a function that makes no such calls runs to its end. The threads are daemons, so they do
    not delay the end of the process. Other processes take over the unfinished operations when the
    lease of the ended process expires. A thread is started when it is first needed, so a server can
    create the executor and then fork. By default ``workers`` is the number of processors plus 4,
    but not more than 32.

    Raises:
        DeclarationError: ``workers`` is not a number from 1.
        TypeError: An argument has an unknown name.
    """

    def __init__(self, workers: int | None = None, **others: Never) -> None:
        refuse_keywords("ThreadExecutor", others, ("workers",))
        count = workers if workers is not None else min(32, (os.cpu_count() or 1) + 4)
        super().__init__(count, "lro-worker")

    def _run_task(self, task: Task, later: Later) -> bool:
        return task.run(later=later)
