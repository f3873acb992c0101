"""Checks of executors that run work in this process, and of executors that send names."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from typing import Final, TypeAlias

from lro._base.errors import Unavailable
from lro._engine.executor_port import CancelSupport, Executor, Later, LoopWatch, RemoteCall, Slot
from lro.testing._samples import PATIENCE, expect, refuses, same

MakeExecutor = Callable[[int], Executor]
"""A function that makes an executor with this number of workers, and does not call ``attach``."""

ExecutorCheck: TypeAlias = Callable[[MakeExecutor], None]


class Work:
    """A task that sets ``begun`` when it begins, and ends once :meth:`let_end` has been called."""

    def __init__(
        self,
        name: str,
        *,
        is_async: bool = False,
        error: BaseException | None = None,
        held: bool = True,
    ) -> None:
        self.name = name
        self.method = "acme.v1.Works.Work"
        self.is_async = is_async
        self.begun = threading.Event()
        self.over = threading.Event()
        self.released = threading.Event()
        self._error = error
        self._may_end = threading.Event()
        if not held:
            self._may_end.set()

    def let_end(self) -> None:
        """Allow the task to end."""
        self._may_end.set()

    def run(
        self,
        through: RemoteCall | None = None,  # noqa: ARG002
        later: Later | None = None,  # noqa: ARG002
    ) -> bool:
        """Do the work in the calling thread."""
        self.begun.set()
        self._may_end.wait(PATIENCE)
        self.over.set()
        if self._error is not None:
            raise self._error
        return False

    async def arun(self, watch: LoopWatch | None = None) -> None:  # noqa: ARG002
        """Do the work on the running event loop."""
        self.begun.set()
        while not self._may_end.is_set():
            await asyncio.sleep(0.001)
        self.over.set()
        if self._error is not None:
            raise self._error

    def release_later(self) -> None:
        """Record that the executor has released the task."""
        self.released.set()


class Attached:
    """An executor with callbacks attached; it counts how often a worker became free."""

    def __init__(self, executor: Executor) -> None:
        self.executor = executor
        self._freed = threading.Semaphore(0)
        executor.attach(lambda _: None, lambda _: None, lambda: None, self._freed.release)

    def freed(self, times: int = 1) -> None:
        """Wait for ``times`` more calls of ``freed``."""
        for _ in range(times):
            expect(self._freed.acquire(timeout=PATIENCE), "the service is told of a free worker")

    def slot(self) -> Slot:
        """Return a free worker; if there is none, wait for the next call of ``freed``."""
        while (slot := self.executor.reserve()) is None:
            self.freed()
        return slot

    def submit(self, *tasks: Work) -> None:
        """Submit each task as soon as a worker is free."""
        for task in tasks:
            self.slot().submit(task)

    def has_room(self, wanted: int) -> list[Slot]:
        """Reserve ``wanted`` workers, and check that no other worker is free."""
        slots = [self.executor.reserve() for _ in range(wanted)]
        found = [slot for slot in slots if slot is not None]
        same(len(found), wanted, "free workers")
        same(self.executor.reserve(), None, "one more worker")
        return found


def check_executor(make_executor: MakeExecutor, *, background: bool = True) -> None:
    """Run every check, each on a new executor.

    With ``background=False``, only the checks are run that apply to an executor that does the work
    within ``submit``.

    Raises:
        AssertionError: The executor breaks its contract; the text says where.
    """
    for check in EXECUTOR_CHECKS if background else FOREGROUND_CHECKS:
        run_executor_check(check, make_executor)


def run_executor_check(check: ExecutorCheck, make_executor: MakeExecutor) -> None:
    """Run one check, and stop the executors that it has made.

    Raises:
        AssertionError: The executor breaks its contract; the text says where.
    """
    made: list[Executor] = []

    def make(at_once: int) -> Executor:
        made.append(make_executor(at_once))
        return made[-1]

    try:
        check(make)
    except Exception as exc:
        raise AssertionError(f"{check.__name__}: {type(exc).__name__}: {exc}") from exc
    finally:
        for executor in made:
            executor.stop()
            executor.join(PATIENCE)


def _begins(task: Work) -> None:
    expect(task.begun.wait(PATIENCE), f"{task.name} begins")


def _ends(*tasks: Work) -> None:
    for task in tasks:
        task.let_end()
    for task in tasks:
        expect(task.over.wait(PATIENCE), f"{task.name} ends")


def properties_are_valid(make: MakeExecutor) -> None:
    """The properties have the right types, and the executor can be attached."""
    executor = make(1)
    expect(
        isinstance(executor.cancel_support, CancelSupport),
        "it says how far a request to cancel reaches",
    )
    same(executor.redelivery, None, "the time for redelivery, work being done here")
    Attached(executor)


def async_and_plain_tasks_run(make: MakeExecutor) -> None:
    """An executor runs async tasks and plain tasks."""
    executor = make(2)
    tasks = [Work("a", held=False), Work("b", is_async=True, held=False)]
    Attached(executor).submit(*tasks)
    _ends(*tasks)
    expect(executor.join(PATIENCE), "nothing is left running")
    same([task.released.is_set() for task in tasks], [False, False], "tasks released")


def stopped_executor_refuses_tasks(make: MakeExecutor) -> None:
    """A stopped executor reserves no worker and refuses tasks; stopping it twice is allowed."""
    executor = make(1)
    slot = Attached(executor).slot()
    executor.stop()
    refuses(Unavailable, executor.reserve, "a worker after the stop")
    late = Work("late")
    refuses(Unavailable, lambda: slot.submit(late), "a task after the stop")
    executor.stop()
    expect(executor.join(PATIENCE), "nothing is left running")
    expect(executor.join(0), "nothing is left running, asked again")
    expect(not late.begun.is_set(), "the task that was refused never ran")


def unused_worker_is_released(make: MakeExecutor) -> None:
    """A released worker is free at once, and the executor calls ``freed``."""
    attached = Attached(make(1))
    for _ in range(5):
        attached.has_room(1)[0].release()
        attached.freed()
    task = Work("a", held=False)
    attached.submit(task)
    _ends(task)


def end_of_a_task_frees_its_worker(make: MakeExecutor) -> None:
    """When a task has ended, even with an error, its worker is free and ``freed`` is called."""
    attached = Attached(make(1))
    for is_async in (False, True):
        error = ValueError("wanted by a check") if is_async else None
        task = Work("a", held=False, is_async=is_async, error=error)
        try:
            attached.has_room(1)[0].submit(task)
        except ValueError:  # submit has run the task in this thread
            pass
        _ends(task)
        attached.freed()
    attached.has_room(1)[0].release()


def tasks_run_concurrently(make: MakeExecutor) -> None:
    """As many tasks run at once as there are workers; then no worker is free until a task ends."""
    attached = Attached(make(3))
    tasks = [Work(name, is_async=name == "b") for name in "abc"]
    for slot, task in zip(attached.has_room(3), tasks, strict=True):
        slot.submit(task)
    for task in tasks:
        _begins(task)
    same(attached.executor.reserve(), None, "a fourth worker")
    _ends(tasks[1])
    attached.freed()
    (slot,) = attached.has_room(1)
    last = Work("d")
    slot.submit(last)
    _begins(last)
    same(attached.executor.reserve(), None, "a fourth worker, again")
    _ends(tasks[0], tasks[2], last)
    attached.freed(3)
    for slot in attached.has_room(3):
        slot.release()


def concurrent_reservations_stay_within_capacity(make: MakeExecutor) -> None:
    """Concurrent calls reserve no more slots than there are workers; each slot can run a task."""
    attached = Attached(make(3))
    slots: list[Slot] = []

    def ask() -> None:
        slot = attached.executor.reserve()
        if slot is not None:
            slots.append(slot)

    threads = [threading.Thread(target=ask) for _ in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    same(len(slots), 3, "workers that were reserved")
    tasks = [Work(str(number)) for number in range(3)]
    for slot, task in zip(slots, tasks, strict=True):
        slot.submit(task)
    for task in tasks:
        _begins(task)
    _ends(*tasks)


def running_tasks_may_end_after_stop(make: MakeExecutor) -> None:
    """After ``stop``, running tasks may end, and ``join`` waits for them."""
    executor = make(2)
    attached = Attached(executor)
    running = Work("running")
    attached.submit(running)
    _begins(running)
    executor.stop()
    same(executor.join(0.01), False, "joining while one still runs")
    _ends(running)
    expect(executor.join(PATIENCE), "nothing is left running")
    expect(not running.released.is_set(), "what has ended is not released")


def submitted_task_runs_despite_stop(make: MakeExecutor) -> None:
    """A task that is submitted right before ``stop`` still runs."""
    for _ in range(20):
        executor = make(1)
        task = Work("a", held=False)
        Attached(executor).submit(task)
        executor.stop()
        expect(executor.join(PATIENCE), "nothing is left running")
        expect(task.over.is_set(), "the task that was submitted has run")


def join_without_work_does_not_stop_the_executor(make: MakeExecutor) -> None:
    """Without running tasks ``join`` returns at once, and the executor accepts new tasks."""
    executor = make(1)
    attached = Attached(executor)
    for name in "ab":
        expect(executor.join(PATIENCE), "there is nothing to wait for")
        task = Work(name, held=False)
        attached.submit(task)
        _ends(task)


def join_does_not_delay_tasks(make: MakeExecutor) -> None:
    """While threads wait in ``join``, another task can run."""
    executor = make(2)
    attached = Attached(executor)
    running = Work("running")
    attached.submit(running)
    _begins(running)
    joiners = [threading.Thread(target=executor.join, args=(PATIENCE,)) for _ in range(4)]
    for joiner in joiners:
        joiner.start()
    other = Work("other", held=False)
    attached.submit(other)
    _ends(other)
    _ends(running)
    for joiner in joiners:
        joiner.join(PATIENCE)


def error_of_a_task_does_not_stop_its_worker(make: MakeExecutor) -> None:
    """After a task has raised an error, even SystemExit, its worker runs the next task."""
    executor = make(1)
    errors: list[BaseException] = [ValueError("wanted by a check"), SystemExit(1)]
    tasks = [
        Work(f"{type(error).__name__}{is_async}", error=error, is_async=is_async, held=False)
        for error in errors
        for is_async in (False, True)
    ]
    last = Work("last", held=False)
    Attached(executor).submit(*tasks, last)
    _ends(*tasks, last)
    expect(executor.join(PATIENCE), "nothing is left running")


FOREGROUND_CHECKS: Final[tuple[ExecutorCheck, ...]] = (
    properties_are_valid,
    async_and_plain_tasks_run,
    stopped_executor_refuses_tasks,
    unused_worker_is_released,
    end_of_a_task_frees_its_worker,
)
"""The checks for an executor that does the work within ``submit``."""

EXECUTOR_CHECKS: Final[tuple[ExecutorCheck, ...]] = (
    *FOREGROUND_CHECKS,
    tasks_run_concurrently,
    concurrent_reservations_stay_within_capacity,
    running_tasks_may_end_after_stop,
    submitted_task_runs_despite_stop,
    join_without_work_does_not_stop_the_executor,
    join_does_not_delay_tasks,
    error_of_a_task_does_not_stop_its_worker,
)
"""Every check; the function's name is the promise."""


MakeRemoteExecutor: TypeAlias = Callable[[Callable[[str], None]], Executor]
"""A function that makes an executor, whose workers call the given function with each name.

The executor needs at least two workers, which must be in this process. The workers may continue
after the executor is stopped.
"""

RemoteCheck: TypeAlias = Callable[[MakeRemoteExecutor], None]


class NameReceiver:
    """Receives names from workers, counts them, and blocks each worker until :meth:`let_end`."""

    def __init__(self, *, held: bool = False, errors: tuple[str, ...] = ()) -> None:
        self._seen: Counter[str] = Counter()
        self._changed = threading.Condition()
        self._may_end = threading.Event()
        self._errors = errors
        if not held:
            self._may_end.set()

    def work(self, name: str) -> None:
        """Receive a name from a worker."""
        with self._changed:
            self._seen[name] += 1
            self._changed.notify_all()
        self._may_end.wait(PATIENCE)
        if name in self._errors:
            raise ValueError("wanted by a check")

    def let_end(self) -> None:
        """Allow the work to end."""
        self._may_end.set()

    def arrives(self, *names: str) -> None:
        """Return when each of the names has arrived at least once."""
        with self._changed:
            come = self._changed.wait_for(lambda: set(names) <= self._seen.keys(), PATIENCE)
        expect(come, f"all of {names} come, found {sorted(self._seen)}")


def check_remote_executor(make_executor: MakeRemoteExecutor) -> None:
    """Run every check, each on a new executor.

    The executor's ``redelivery`` must not be None; if it is, use :func:`check_executor`.

    Raises:
        AssertionError: The executor breaks its contract; the text says where.
    """
    for check in REMOTE_CHECKS:
        run_remote_check(check, make_executor)


def run_remote_check(check: RemoteCheck, make_executor: MakeRemoteExecutor) -> None:
    """Run one check, and stop the executors that it has made.

    Raises:
        AssertionError: The executor breaks its contract; the text says where.
    """
    made: list[Executor] = []

    def make(work: Callable[[str], None]) -> Executor:
        made.append(make_executor(work))
        return made[-1]

    try:
        check(make)
    except Exception as exc:
        raise AssertionError(f"{check.__name__}: {type(exc).__name__}: {exc}") from exc
    finally:
        for executor in made:
            executor.stop()
            executor.join(PATIENCE)


def _reserved(executor: Executor) -> Slot:
    slot = executor.reserve()
    if slot is None:
        raise AssertionError("there is always room to send one more name")
    return slot


def _submit_named(executor: Executor, *names: str) -> list[Work]:
    tasks = [Work(name) for name in names]
    for task in tasks:
        _reserved(executor).submit(task)
    return tasks


def redelivery_is_valid(make: MakeRemoteExecutor) -> None:
    """The executor has a positive time for redelivery, and a valid ``cancel_support``."""
    executor = make(NameReceiver().work)
    redelivery = executor.redelivery
    expect(redelivery is not None and redelivery > timedelta(), "a time for redelivery")
    expect(
        isinstance(executor.cancel_support, CancelSupport),
        "it says how far a request to cancel reaches",
    )


def names_arrive_at_workers(make: MakeRemoteExecutor) -> None:
    """Each submitted name arrives at a worker at least once; the task itself is not run."""
    receiver = NameReceiver()
    names = [f"operations/{number}" for number in range(20)]
    tasks = _submit_named(make(receiver.work), *names)
    receiver.arrives(*names)
    expect(not any(task.begun.is_set() for task in tasks), "no task is run where it is submitted")


def names_are_processed_concurrently(make: MakeRemoteExecutor) -> None:
    """Workers process two names at the same time."""
    receiver = NameReceiver(held=True)
    _submit_named(make(receiver.work), "operations/a", "operations/b")
    receiver.arrives("operations/a", "operations/b")
    receiver.let_end()


def error_of_work_does_not_stop_its_worker(make: MakeRemoteExecutor) -> None:
    """A worker that raised an error processes the next names."""
    receiver = NameReceiver(errors=("operations/a", "operations/b", "operations/c"))
    names = ("operations/a", "operations/b", "operations/c", "operations/d")
    _submit_named(make(receiver.work), *names)
    receiver.arrives(*names)


def unused_slot_is_released(make: MakeRemoteExecutor) -> None:
    """A slot that is released without a submit sends no name."""
    receiver = NameReceiver()
    executor = make(receiver.work)
    for _ in range(5):
        _reserved(executor).release()
    _submit_named(executor, "operations/a")
    receiver.arrives("operations/a")


def stopped_executor_refuses_names(make: MakeRemoteExecutor) -> None:
    """A stopped executor reserves no slot and refuses names; stopping twice is allowed."""
    executor = make(NameReceiver().work)
    slot = _reserved(executor)
    executor.stop()
    refuses(Unavailable, executor.reserve, "room after the stop")
    refuses(Unavailable, lambda: slot.submit(Work("operations/a")), "a name after the stop")
    executor.stop()
    expect(executor.join(PATIENCE), "nothing is left running")
    expect(executor.join(0), "nothing is left running, asked again")


def join_waits_for_work_in_this_process(make: MakeRemoteExecutor) -> None:
    """``join`` waits for work that has begun in this process, before and after a stop."""
    receiver = NameReceiver(held=True)
    executor = make(receiver.work)
    _submit_named(executor, "operations/a")
    receiver.arrives("operations/a")
    same(executor.join(0.01), False, "joining while one still runs")
    executor.stop()
    same(executor.join(0.01), False, "joining while one still runs, after the stop")
    receiver.let_end()
    expect(executor.join(PATIENCE), "nothing is left running")


REMOTE_CHECKS: Final[tuple[RemoteCheck, ...]] = (
    redelivery_is_valid,
    names_arrive_at_workers,
    names_are_processed_concurrently,
    error_of_work_does_not_stop_its_worker,
    unused_slot_is_released,
    stopped_executor_refuses_names,
    join_waits_for_work_in_this_process,
)
"""Every check; the function's name is the promise."""
