"""What an executor promises that only sends names, to workers who claim the work by them."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from typing import Final, TypeAlias

from lro._base.arguments import check_function
from lro._base.errors import Unavailable
from lro._engine.executor_port import CancelSupport, Executor
from lro.testing._clock import expect, refuses, same
from lro.testing._executors import PATIENCE, Work

MakeRemoteExecutor: TypeAlias = Callable[[Callable[[str], None]], Executor]
"""Gives an executor attached to this function, which workers in this process call for names.

There are to be at least two workers. They end when the executor is stopped, or live on.
"""

RemoteCheck: TypeAlias = Callable[[MakeRemoteExecutor], None]


class Desk:
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


def _submit(executor: Executor, *names: str) -> list[Work]:
    tasks = [Work(name) for name in names]
    for task in tasks:
        executor.reserve().submit(task)
    return tasks


def it_says_how_long_a_name_may_take(make: MakeRemoteExecutor) -> None:
    """Before it counts as lost; and how far a request to cancel reaches."""
    executor = make(Desk().work)
    redelivery = executor.redelivery
    expect(redelivery is not None and redelivery > timedelta(), "a time for redelivery")
    expect(
        isinstance(executor.cancel_support, CancelSupport),
        "it says how far a request to cancel reaches",
    )


def names_come_to_a_worker(make: MakeRemoteExecutor) -> None:
    """Each at least once, in whatever order; of the task nothing but its name is used."""
    desk = Desk()
    names = [f"operations/{number}" for number in range(20)]
    tasks = _submit(make(desk.work), *names)
    desk.arrives(*names)
    expect(not any(task.begun.is_set() for task in tasks), "no task is run where it is submitted")


def work_goes_on_side_by_side(make: MakeRemoteExecutor) -> None:
    """One name does not wait for the end of another's work."""
    desk = Desk(held=True)
    _submit(make(desk.work), "operations/a", "operations/b")
    desk.arrives("operations/a", "operations/b")
    desk.let_end()


def work_that_raises_ends_alone(make: MakeRemoteExecutor) -> None:
    """The workers go on with the next names."""
    desk = Desk(errors=("operations/a", "operations/b", "operations/c"))
    names = ("operations/a", "operations/b", "operations/c", "operations/d")
    _submit(make(desk.work), *names)
    desk.arrives(*names)


def unused_room_is_given_back(make: MakeRemoteExecutor) -> None:
    """It is as if it had not been taken."""
    desk = Desk()
    executor = make(desk.work)
    for _ in range(5):
        executor.reserve().release()
    _submit(executor, "operations/a")
    desk.arrives("operations/a")


def what_has_come_cannot_be_withdrawn(make: MakeRemoteExecutor) -> None:
    """An unknown name is not withdrawn either."""
    desk = Desk()
    executor = make(desk.work)
    _submit(executor, "operations/a")
    desk.arrives("operations/a")
    same((executor.withdraw("operations/a"), executor.withdraw("x")), (False, False), "withdrawn")


def stopped_it_sends_nothing(make: MakeRemoteExecutor) -> None:
    """No room is given, and reserved room is of no use; stopping again is harmless."""
    executor = make(Desk().work)
    slot = executor.reserve()
    same(list(executor.stop()), [], "what was waiting here")
    refuses(Unavailable, executor.reserve, "room after the stop")
    refuses(Unavailable, lambda: slot.submit(Work("operations/a")), "a name after the stop")
    same(list(executor.stop()), [], "what was waiting here, asked again")
    expect(executor.join(PATIENCE), "nothing is left running")
    expect(executor.join(0), "nothing is left running, asked again")


def joining_waits_for_what_runs_here(make: MakeRemoteExecutor) -> None:
    """Stopped or not: what has begun in this process may end."""
    desk = Desk(held=True)
    executor = make(desk.work)
    _submit(executor, "operations/a")
    desk.arrives("operations/a")
    same(executor.join(0.01), False, "joining while one still runs")
    executor.stop()
    same(executor.join(0.01), False, "joining while one still runs, after the stop")
    desk.let_end()
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
