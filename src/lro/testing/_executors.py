"""Checks of executors: those that run work in this process, and those that send names."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from typing import Final, TypeAlias

from lro._base.arguments import check_flag, check_function
from lro._base.errors import ResourceExhausted, Unavailable
from lro._engine.executor_port import CancelSupport, Executor, RemoteCall
from lro.testing._samples import PATIENCE, expect, refuses, same

MakeExecutor = Callable[[int, int], Executor]
"""Makes an executor, given how many tasks run at once and how many more may wait."""

ExecutorCheck: TypeAlias = Callable[[MakeExecutor], None]


class Work:
    """A task whose every step is known: it says when it has begun, and ends when it may."""

    def __init__(
        self,
        name: str,
        *,
        group: str = "G",
        group_limit: int | None = None,
        is_async: bool = False,
        error: BaseException | None = None,
        held: bool = True,
    ) -> None:
        self.name = name
        self.group = group
        self.group_limit = group_limit
        self.is_async = is_async
        self.begun = threading.Event()
        self.over = threading.Event()
        self._error = error
        self._may_end = threading.Event()
        if not held:
            self._may_end.set()

    def let_end(self) -> None:
        """Allow it to end."""
        self._may_end.set()

    def run(self, through: RemoteCall | None = None) -> None:  # noqa: ARG002
        """Do the work in this thread, whatever functions are done through."""
        self.begun.set()
        self._may_end.wait(PATIENCE)
        self.over.set()
        if self._error is not None:
            raise self._error

    async def arun(self) -> None:
        """Do the work on this event loop."""
        self.begun.set()
        while not self._may_end.is_set():
            await asyncio.sleep(0.001)
        self.over.set()
        if self._error is not None:
            raise self._error


def check_executor(make_executor: MakeExecutor, *, background: bool = True) -> None:
    """Run every check, each on an executor of its own.

    ``background`` False: the executor does the work within the call that submits it, so that
    nothing ever waits; only the checks that make sense for it are run.

    Raises:
        AssertionError: The executor breaks its contract; the text says where.
    """
    check_function("make_executor", make_executor)
    check_flag("background", background)
    for check in EXECUTOR_CHECKS if background else FOREGROUND_CHECKS:
        run_executor_check(check, make_executor)


def run_executor_check(check: ExecutorCheck, make_executor: MakeExecutor) -> None:
    """Run one check; the executors that it makes are stopped afterwards.

    Raises:
        AssertionError: The executor breaks its contract; the text says where.
    """
    check_function("check", check)
    check_function("make_executor", make_executor)
    made: list[Executor] = []

    def make(at_once: int, waiting: int) -> Executor:
        made.append(make_executor(at_once, waiting))
        return made[-1]

    try:
        check(make)
    except Exception as exc:
        raise AssertionError(f"{check.__name__}: {type(exc).__name__}: {exc}") from exc
    finally:
        for executor in made:
            executor.stop()
            executor.join(PATIENCE)


def _submit(executor: Executor, *tasks: Work) -> None:
    for task in tasks:
        executor.reserve().submit(task)


def _begins(task: Work) -> None:
    expect(task.begun.wait(PATIENCE), f"{task.name} begins")


def _ends(*tasks: Work) -> None:
    for task in tasks:
        task.let_end()
    for task in tasks:
        expect(task.over.wait(PATIENCE), f"{task.name} ends")


def it_says_what_it_is(make: MakeExecutor) -> None:
    """It says how far a cancel reaches, works in this process, and can be attached."""
    executor = make(1, 1)
    expect(
        isinstance(executor.cancel_support, CancelSupport),
        "it says how far a request to cancel reaches",
    )
    same(executor.redelivery, None, "the time for redelivery, work being done here")
    executor.attach(lambda _: None, lambda _: None, lambda: None)


def it_does_the_work(make: MakeExecutor) -> None:
    """Of both colours."""
    executor = make(2, 2)
    tasks = [Work("a", held=False), Work("b", is_async=True, held=False)]
    _submit(executor, *tasks)
    _ends(*tasks)
    expect(executor.join(PATIENCE), "nothing is left running")


def stopped_it_takes_nothing(make: MakeExecutor) -> None:
    """No room is given any more; stopping and joining again is harmless."""
    executor = make(1, 1)
    same(list(executor.stop()), [], "what was waiting")
    refuses(Unavailable, executor.reserve, "room after the stop")
    same(list(executor.stop()), [], "what was waiting, asked again")
    expect(executor.join(PATIENCE), "nothing is left running")
    expect(executor.join(0), "nothing is left running, asked again")


def room_may_be_given_back(make: MakeExecutor) -> None:
    """Unused room is as if it had not been taken."""
    executor = make(1, 1)
    for _ in range(5):
        executor.reserve().release()
    task = Work("a", held=False)
    _submit(executor, task)
    _ends(task)


def what_does_not_wait_cannot_be_withdrawn(make: MakeExecutor) -> None:
    """An unknown task and one that is over cannot be withdrawn."""
    executor = make(1, 1)
    task = Work("a", held=False)
    _submit(executor, task)
    _ends(task)
    same((executor.withdraw("a"), executor.withdraw("x")), (False, False), "withdrawn")


def as_many_run_as_it_says(make: MakeExecutor) -> None:
    """Tasks run side by side, and one more waits until one of them is over."""
    executor = make(3, 1)
    tasks = [Work(name, is_async=name == "b") for name in "abc"]
    last = Work("d")
    _submit(executor, *tasks, last)
    for task in tasks:
        _begins(task)
    expect(not last.begun.is_set(), "the fourth task waits")
    _ends(tasks[1])
    _begins(last)
    _ends(*tasks, last)


def nothing_begins_at_once_where_all_are_busy(make: MakeExecutor) -> None:
    """What has to wait is not stored as begun."""
    executor = make(1, 1)
    task = Work("a")
    _submit(executor, task)
    _begins(task)
    slot = executor.reserve()
    expect(not slot.worker_idle, "no worker is free")
    slot.release()
    _ends(task)


def a_full_executor_refuses(make: MakeExecutor) -> None:
    """Running, waiting and reserved tasks fill it; one more is refused with a time to retry."""
    executor = make(1, 2)
    running, waiting = Work("running"), Work("waiting")
    _submit(executor, running, waiting)
    slot = executor.reserve()
    error = refuses(ResourceExhausted, executor.reserve, "a fourth task")
    expect(error.retry_after.total_seconds() > 0, "the refusal says when to ask again")
    slot.release()
    last = Work("last")
    executor.reserve().submit(last)
    refuses(ResourceExhausted, executor.reserve, "a fourth task, again")
    expect(executor.withdraw("last"), "the last task can be withdrawn")
    executor.reserve().release()
    _ends(running, waiting)


def a_waiting_task_can_be_withdrawn(make: MakeExecutor) -> None:
    """Once, and then it does not run; the running one cannot be."""
    executor = make(1, 3)
    running, waiting, last = Work("running"), Work("waiting"), Work("last")
    _submit(executor, running, waiting, last)
    _begins(running)
    same(executor.withdraw("running"), False, "withdrawing the running one")
    same(executor.withdraw("waiting"), True, "withdrawing the waiting one")
    same(executor.withdraw("waiting"), False, "withdrawing it again")
    _ends(running, last)
    expect(not waiting.begun.is_set(), "the withdrawn task never ran")


def tasks_begin_in_order(make: MakeExecutor) -> None:
    """First come, first served."""
    executor = make(1, 5)
    tasks = [Work(str(number)) for number in range(5)]
    _submit(executor, *tasks)
    for place, task in enumerate(tasks):
        _begins(task)
        same([one.begun.is_set() for one in tasks[place + 1 :]], [False] * (4 - place), "later")
        _ends(task)


def stopping_gives_back_what_waits(make: MakeExecutor) -> None:
    """In order, and none of it runs; what runs may end; reserved room is of no use."""
    executor = make(1, 4)
    running, tasks = Work("running"), [Work("a"), Work("b")]
    _submit(executor, running)
    _begins(running)
    _submit(executor, *tasks)
    slot = executor.reserve()
    same([task.name for task in executor.stop()], ["a", "b"], "what was waiting")
    refuses(Unavailable, lambda: slot.submit(Work("late")), "a task after the stop")
    same(executor.join(0.01), False, "joining while one still runs")
    _ends(running)
    expect(executor.join(PATIENCE), "nothing is left running")
    same([task.begun.is_set() for task in tasks], [False, False], "those given back")


def joining_is_not_stopping(make: MakeExecutor) -> None:
    """An executor without work is joined at once, and works on."""
    executor = make(1, 1)
    for name in "ab":
        expect(executor.join(PATIENCE), "there is nothing to wait for")
        task = Work(name, held=False)
        _submit(executor, task)
        _ends(task)


def a_joiner_does_not_keep_work_waiting(make: MakeExecutor) -> None:
    """Who waits for the end of one task is in the way of no other."""
    executor = make(2, 4)
    running = Work("running")
    _submit(executor, running)
    _begins(running)
    joiners = [threading.Thread(target=executor.join, args=(PATIENCE,)) for _ in range(4)]
    for joiner in joiners:
        joiner.start()
    other = Work("other", held=False)
    _submit(executor, other)
    _ends(other)
    _ends(running)
    for joiner in joiners:
        joiner.join(PATIENCE)


def a_group_keeps_its_limit(make: MakeExecutor) -> None:
    """A group runs at most its limit at once; other groups are not held up (see ``Task``)."""
    executor = make(3, 5)
    limited = [Work(f"limited{n}", group="L", group_limit=1) for n in range(3)]
    free = Work("free", group="F")
    _submit(executor, *limited, free)
    _begins(limited[0])
    _begins(free)
    for place in (1, 2):
        same(limited[place].begun.is_set(), False, "the group's next task")
        _ends(limited[place - 1])
        _begins(limited[place])
    _ends(limited[2], free)


def a_task_that_raises_ends_alone(make: MakeExecutor) -> None:
    """Whatever it raises: the worker goes on with the next one."""
    executor = make(1, 6)
    errors: list[BaseException] = [ValueError("wanted by a check"), SystemExit(1)]
    tasks = [
        Work(f"{type(error).__name__}{is_async}", error=error, is_async=is_async, held=False)
        for error in errors
        for is_async in (False, True)
    ]
    last = Work("last", held=False)
    _submit(executor, *tasks, last)
    _ends(*tasks, last)
    expect(executor.join(PATIENCE), "nothing is left running")


FOREGROUND_CHECKS: Final[tuple[ExecutorCheck, ...]] = (
    it_says_what_it_is,
    it_does_the_work,
    stopped_it_takes_nothing,
    room_may_be_given_back,
    what_does_not_wait_cannot_be_withdrawn,
)
"""The checks for an executor that does the work within ``submit``."""

EXECUTOR_CHECKS: Final[tuple[ExecutorCheck, ...]] = (
    *FOREGROUND_CHECKS,
    as_many_run_as_it_says,
    nothing_begins_at_once_where_all_are_busy,
    a_full_executor_refuses,
    a_waiting_task_can_be_withdrawn,
    tasks_begin_in_order,
    stopping_gives_back_what_waits,
    joining_is_not_stopping,
    a_joiner_does_not_keep_work_waiting,
    a_group_keeps_its_limit,
    a_task_that_raises_ends_alone,
)
"""Every check; the name of its function says the promise."""


MakeRemoteExecutor: TypeAlias = Callable[[Callable[[str], None]], Executor]
"""Gives an executor attached to this function, which workers in this process call for names.

There are to be at least two workers. They end when the executor is stopped, or live on.
"""

RemoteCheck: TypeAlias = Callable[[MakeRemoteExecutor], None]


class NameReceiver:
    """Where the names arrive: it counts them, and keeps the worker until it may go on."""

    def __init__(self, *, held: bool = False, errors: tuple[str, ...] = ()) -> None:
        self._seen: Counter[str] = Counter()
        self._changed = threading.Condition()
        self._may_end = threading.Event()
        self._errors = errors
        if not held:
            self._may_end.set()

    def work(self, name: str) -> None:
        """What the executor is attached to."""
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
        """Return when each of the names has come at least once."""
        with self._changed:
            come = self._changed.wait_for(lambda: set(names) <= self._seen.keys(), PATIENCE)
        expect(come, f"all of {names} come, found {sorted(self._seen)}")


def check_remote_executor(make_executor: MakeRemoteExecutor) -> None:
    """Run every check, each on an executor of its own.

    For an executor whose ``redelivery`` is not None; the others have :func:`check_executor`.

    Raises:
        AssertionError: The executor breaks its contract; the text says where.
    """
    check_function("make_executor", make_executor)
    for check in REMOTE_CHECKS:
        run_remote_check(check, make_executor)


def run_remote_check(check: RemoteCheck, make_executor: MakeRemoteExecutor) -> None:
    """Run one check; the executors that it makes are stopped afterwards.

    Raises:
        AssertionError: The executor breaks its contract; the text says where.
    """
    check_function("check", check)
    check_function("make_executor", make_executor)
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


def _submit_named(executor: Executor, *names: str) -> list[Work]:
    tasks = [Work(name) for name in names]
    for task in tasks:
        executor.reserve().submit(task)
    return tasks


def it_says_how_long_a_name_may_take(make: MakeRemoteExecutor) -> None:
    """Before it counts as lost; and how far a request to cancel reaches."""
    executor = make(NameReceiver().work)
    redelivery = executor.redelivery
    expect(redelivery is not None and redelivery > timedelta(), "a time for redelivery")
    expect(
        isinstance(executor.cancel_support, CancelSupport),
        "it says how far a request to cancel reaches",
    )


def names_come_to_a_worker(make: MakeRemoteExecutor) -> None:
    """Each at least once, in whatever order; of the task nothing but its name is used."""
    receiver = NameReceiver()
    names = [f"operations/{number}" for number in range(20)]
    tasks = _submit_named(make(receiver.work), *names)
    receiver.arrives(*names)
    expect(not any(task.begun.is_set() for task in tasks), "no task is run where it is submitted")


def work_goes_on_side_by_side(make: MakeRemoteExecutor) -> None:
    """One name does not wait for the end of another's work."""
    receiver = NameReceiver(held=True)
    _submit_named(make(receiver.work), "operations/a", "operations/b")
    receiver.arrives("operations/a", "operations/b")
    receiver.let_end()


def work_that_raises_ends_alone(make: MakeRemoteExecutor) -> None:
    """The workers go on with the next names."""
    receiver = NameReceiver(errors=("operations/a", "operations/b", "operations/c"))
    names = ("operations/a", "operations/b", "operations/c", "operations/d")
    _submit_named(make(receiver.work), *names)
    receiver.arrives(*names)


def unused_room_is_given_back(make: MakeRemoteExecutor) -> None:
    """It is as if it had not been taken."""
    receiver = NameReceiver()
    executor = make(receiver.work)
    for _ in range(5):
        executor.reserve().release()
    _submit_named(executor, "operations/a")
    receiver.arrives("operations/a")


def what_has_come_cannot_be_withdrawn(make: MakeRemoteExecutor) -> None:
    """An unknown name is not withdrawn either."""
    receiver = NameReceiver()
    executor = make(receiver.work)
    _submit_named(executor, "operations/a")
    receiver.arrives("operations/a")
    same((executor.withdraw("operations/a"), executor.withdraw("x")), (False, False), "withdrawn")


def stopped_it_sends_nothing(make: MakeRemoteExecutor) -> None:
    """No room is given, and reserved room is of no use; stopping again is harmless."""
    executor = make(NameReceiver().work)
    slot = executor.reserve()
    same(list(executor.stop()), [], "what was waiting here")
    refuses(Unavailable, executor.reserve, "room after the stop")
    refuses(Unavailable, lambda: slot.submit(Work("operations/a")), "a name after the stop")
    same(list(executor.stop()), [], "what was waiting here, asked again")
    expect(executor.join(PATIENCE), "nothing is left running")
    expect(executor.join(0), "nothing is left running, asked again")


def joining_waits_for_what_runs_here(make: MakeRemoteExecutor) -> None:
    """Stopped or not: what has begun in this process may end."""
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
    it_says_how_long_a_name_may_take,
    names_come_to_a_worker,
    work_goes_on_side_by_side,
    work_that_raises_ends_alone,
    unused_room_is_given_back,
    what_has_come_cannot_be_withdrawn,
    stopped_it_sends_nothing,
    joining_waits_for_what_runs_here,
)
"""Every check; the name of its function says the promise."""
