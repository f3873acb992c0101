"""What the service needs of an executor: the contract of those that run work."""

from __future__ import annotations

import enum
from collections.abc import Callable, Coroutine, Mapping
from datetime import timedelta
from typing import Any, Final, Protocol, TypeAlias

import attrs

from lro._engine.job import JobControl
from lro._engine.method_spec import MethodSpec

RemoteCall: TypeAlias = Callable[[MethodSpec, object, JobControl], object]
"""Calls a method's function elsewhere, with its request and the control of its job.

It returns what the function returns; the response may come packed. It raises what the function
raises, :class:`lro._engine.job.AttemptEnded` if the operation has ended with a status, or
:class:`lro._engine.job.WorkerDied` if the other process is gone.
"""


class CancelSupport(enum.Enum):
    """How far a request to cancel reaches into work that has begun (spec §2.6)."""

    NOT = "not"
    """The work runs to its end."""
    COOPERATIVE = "looks"
    """The function learns of it when it looks: ``job.report()``, ``job.raise_if_cancelled()``."""
    AT_AWAIT = "awaits"
    """An async function is interrupted at its next ``await``; another one when it looks."""
    FORCED = "kills"
    """The function may look; if it has not ended after a while, its process is ended."""


REACHES: Final[Mapping[CancelSupport, str]] = {
    CancelSupport.NOT: "cooperative",
    CancelSupport.COOPERATIVE: "cooperative",
    CancelSupport.AT_AWAIT: "at_await",
    CancelSupport.FORCED: "forced",
}
"""How work that has begun was stopped, for metrics; ``withdrawn`` is work that had not."""


@attrs.frozen
class ExecutorUsage:
    """How many tasks an executor runs, and how many it can run; None: any number."""

    running: int
    workers: int | None = None


class Task(Protocol):
    """A piece of work that an executor runs. It takes care of its own errors."""

    @property
    def name(self) -> str:
        """The operation's name."""
        ...

    @property
    def method(self) -> str:
        """The full name of the method."""
        ...

    @property
    def is_async(self) -> bool:
        """Whether :meth:`arun` is this task's natural colour."""
        ...

    def run(self, through: RemoteCall | None = None) -> None:
        """Do the work in this thread, or have the function itself done ``through`` another way."""
        ...

    def arun(self) -> Coroutine[Any, Any, None]:
        """Do the work on this event loop; only of a task that ``is_async``."""
        ...

    def abandon(self) -> None:
        """Give the work up, which cannot go on here: others do it. Quick, in any thread."""
        ...


class Slot(Protocol):
    """A free worker, reserved for one task. Used up by either call."""

    def submit(self, task: Task) -> None:
        """Run the task now.

        Raises:
            Unavailable: The executor is stopping or cannot be reached. The task is not run.
        """
        ...

    def release(self) -> None:
        """Give the worker back unused."""
        ...


class Executor(Protocol):
    """Where work runs. ``lro.testing.check_executor`` is this contract as code.

    One that also has a property ``usage``, an :class:`ExecutorUsage`, has it read for metrics. One
    that can end functions by force also has a method ``kill``, which ends all that run, at once: a
    service that stops calls it before it hands back the work of those that have not stopped.
    """

    @property
    def cancel_support(self) -> CancelSupport:
        """How far a request to cancel reaches here."""
        ...

    @property
    def redelivery(self) -> timedelta | None:
        """None if work is done in the process that submits it, which holds it.

        Else the process that gets the name claims it and does the work, and this is how long a
        submitted name may take before it counts as lost on its way and is submitted once more.
        """
        ...

    @property
    def submits_block(self) -> bool:
        """Whether ``reserve`` or ``submit`` may block, so that event loops call them in threads."""
        ...

    def attach(
        self,
        work: Callable[[str], None],
        close: Callable[[timedelta], None],
        begin: Callable[[], None],
        freed: Callable[[], None],
    ) -> None:
        """Called once by the service with its callbacks.

        ``work`` does the work of an operation, given its name; ``close`` ends all work within a
        time limit.

        ``begin`` is for executors whose workers start by themselves: a worker that has started
        calls it, so that it sees to lost work before it has any of its own.

        ``close`` is for executors that learn of the end of a worker before the service does: work
        that has not ended within the time given is handed back.

        ``freed`` is to be called whenever a worker has become free: after each task, after each
        ``Slot.release``, and when workers have come. In any thread, also of an event loop; it is
        quick. The service then claims work for it.
        """
        ...

    def begin_here(self) -> None:
        """Called where the service is used, maybe in the thread of an event loop, and often.

        An executor that does its work on the application's event loop learns so of that loop.
        """
        ...

    def admit(self, spec: MethodSpec) -> None:
        """Called for every method whose work is to be done here, when it is declared.

        Raises:
            DeclarationError: Its function cannot be called here.
        """
        ...

    def reserve(self) -> Slot | None:
        """Reserve a free worker; None if all are busy.

        Raises:
            Unavailable: The executor is stopping or cannot be reached.
        """
        ...

    def stop(self) -> None:
        """Begin nothing more. Idempotent."""
        ...

    def join(self, seconds: float) -> bool:
        """Wait for running tasks, at most ``seconds``; return whether none is left."""
        ...


class NoWorkers:
    """The executor of a service that runs no work: other processes on its store do."""

    cancel_support: CancelSupport = CancelSupport.COOPERATIVE
    redelivery: timedelta | None = None
    submits_block: bool = False

    def attach(
        self,
        work: Callable[[str], None],
        close: Callable[[timedelta], None],
        begin: Callable[[], None],
        freed: Callable[[], None],
    ) -> None:
        """No worker ever becomes free here."""

    def begin_here(self) -> None:
        """Not needed here."""

    def admit(self, spec: MethodSpec) -> None:
        """Any method can be started."""

    def reserve(self) -> Slot | None:
        """There is no worker."""
        return None

    def stop(self) -> None:
        """Nothing runs."""

    def join(self, seconds: float) -> bool:  # noqa: ARG002
        """Nothing runs."""
        return True
