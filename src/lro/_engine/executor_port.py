"""The executor port: the interface of objects that run the functions of methods."""

from __future__ import annotations

import enum
from collections.abc import Callable, Coroutine, Mapping
from datetime import timedelta
from typing import Any, Final, Protocol, TypeAlias

import attrs

from lro._base.by_fields import ByFields
from lro._engine.job import JobControl
from lro._engine.method_spec import MethodSpec

LAST_SECONDS: Final = 1.0
"""Seconds that a stop waits for functions, writes and threads that were told to end."""

RemoteCall: TypeAlias = Callable[[MethodSpec, object, JobControl], object]
"""Calls a method's function in another process, with its request and the control of its job.

The call returns the function's result, which may be packed already. It raises the function's error,
:class:`lro._engine.job.AttemptEnded` if the attempt has ended with a status, or
:class:`lro._engine.job.WorkerDied` if the other process has died.
"""


Later: TypeAlias = Callable[[Callable[[], None]], None]
"""Has a thread call a function soon. It must be quick and must not raise."""


class CancelSupport(enum.Enum):
    """How a cancel request can stop a running function (spec §2.6)."""

    NOT = "not"
    """A cancel request cannot stop the function: it runs to its end."""
    COOPERATIVE = "looks"
    """The function must check: ``job.report()`` and ``job.raise_if_cancelled()`` raise an error."""
    AT_AWAIT = "awaits"
    """An async function is interrupted at its next ``await``; a plain function must check."""
    FORCED = "kills"
    """The function can check; if it does not end in time, its process is killed."""


REACHES: Final[Mapping[CancelSupport, str]] = {
    CancelSupport.NOT: "cooperative",
    CancelSupport.COOPERATIVE: "cooperative",
    CancelSupport.AT_AWAIT: "at_await",
    CancelSupport.FORCED: "forced",
}
"""The text by which metrics say how cancelled work was stopped.

For work that had not begun, metrics say ``withdrawn`` instead.
"""


@attrs.frozen(eq=False, repr=False)
class ExecutorUsage(ByFields):
    """The number of tasks that an executor runs, and the most that it can run (None: no limit)."""

    running: int
    workers: int | None = None


class LoopWatch(Protocol):
    """Tells one task of an event loop why it was cancelled."""

    def suspended(self) -> None:
        """Note that the function of the task is suspended for the first time."""
        ...

    def loop_ends(self) -> bool:
        """Return True if the task was cancelled with all tasks of the loop, or by another task.

        A loop that ends cancels all tasks. An application may cancel them one after the other.
        """
        ...


class Task(Protocol):
    """Work for an executor. A task handles its own errors."""

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
        """True if the function is async. An event loop can then call :meth:`arun`."""
        ...

    def run(self, through: RemoteCall | None = None, later: Later | None = None) -> bool:
        """Do the work in this thread; ``through``, if given, calls the function elsewhere.

        See :data:`RemoteCall`. If the result would wait for other writes of the store, and there is
        ``later``, this returns True before the result is stored. Then the store calls ``later``
        with the rest of the work, and the task has ended when that function returns or raises. The
        worker stays occupied until then, but its thread may run other tasks.
        """
        ...

    def arun(self, watch: LoopWatch | None = None) -> Coroutine[Any, Any, None]:
        """Do the work on this event loop, for a task that ``is_async``.

        With a ``watch``, the function runs in the task that awaits this. Without one, the function
        runs in a task of its own, which a loop that ends does not cancel first.
        """
        ...

    def release_later(self) -> None:
        """Release the work, because it cannot continue here.

        This is quick, and any thread may call it.
        """
        ...


class Slot(Protocol):
    """A free worker, reserved for one task. Call either ``submit`` or ``release``, once."""

    def submit(self, task: Task) -> None:
        """Run the task now.

        Raises:
            Unavailable: The executor is stopping or cannot be reached; the task does not run.
        """
        ...

    def release(self) -> None:
        """Release the worker unused."""
        ...


class Executor(Protocol):
    """Runs work. ``lro.testing.check_executor`` tests that an executor keeps this contract.

    Three members are optional. A property ``usage``, an :class:`ExecutorUsage`, is read for
    metrics. A method ``kill`` ends all running functions at once, by force. A service that is
    stopping calls ``kill`` before it releases the work of functions that have not stopped. A method
    ``reopen`` undoes ``stop``; without it, a closed service cannot be opened again.
    """

    @property
    def cancel_support(self) -> CancelSupport:
        """How a cancel request can stop a function that this executor runs."""
        ...

    @property
    def redelivery(self) -> timedelta | None:
        """The time until an operation's name is sent again; None if no names are sent.

        If this is None, the submitting process does the work itself. Otherwise ``submit`` only
        sends the operation's name, and the process that receives the name claims the work. A name
        that leads to no claim within this time is sent again.
        """
        ...

    @property
    def submits_block(self) -> bool:
        """True if ``reserve`` or ``submit`` may block: event loops then call both in threads.

        Like ``redelivery``, this does not change: the service reads both once.
        """
        ...

    def attach(
        self,
        work: Callable[[str], None],
        close: Callable[[timedelta], None],
        begin: Callable[[], None],
        freed: Callable[[], None],
    ) -> None:
        """Receive the callbacks of the service, which calls this method once.

        ``work`` takes the name of an operation, claims its work, and does it.

        ``close`` closes the service, and releases work that has not ended within the given time.
        It is for executors that learn of a worker's shutdown before the service does.

        ``begin`` starts the background threads of the service. It is for executors whose workers
        start by themselves, so that a worker recovers lost work before it has work of its own.

        Call ``freed`` whenever a worker becomes free: after each task, after each ``Slot.release``,
        and when workers are added. ``freed`` is quick, and can be called in any thread, even that
        of an event loop. The service then claims work for the free worker.
        """
        ...

    def begin_here(self) -> None:
        """Note the thread or event loop from which the service is used. This must be quick.

        The service calls this when it starts its threads in a process, and in each get, wait, watch
        and call of a handle. Later starts usually call only :meth:`reserve`. An executor that runs
        work on the application's event loop finds that loop here.
        """
        ...

    def check_method(self, spec: MethodSpec) -> None:
        """Check a method when it is declared.

        Raises:
            DeclarationError: This executor cannot call the method's function.
        """
        ...

    def reserve(self) -> Slot | None:
        """Reserve a free worker; return None if all workers are busy.

        Raises:
            Unavailable: The executor is stopping or cannot be reached.
        """
        ...

    def stop(self) -> None:
        """Begin no more tasks. Idempotent."""
        ...

    def join(self, seconds: float) -> bool:
        """Wait for running tasks, at most ``seconds``; return True if none is left."""
        ...


class NoWorkers:
    """The executor of a service that runs no work. Other processes with the same store run it."""

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
        """Ignore the callbacks: there are no workers."""

    def begin_here(self) -> None:
        """Do nothing."""

    def check_method(self, spec: MethodSpec) -> None:
        """Accept every method."""

    def reserve(self) -> Slot | None:
        """Return None: there are no workers."""
        return None

    def stop(self) -> None:
        """Do nothing: no task runs."""

    def reopen(self) -> None:
        """Do nothing: nothing was stopped."""

    def join(self, seconds: float) -> bool:  # noqa: ARG002
        """Return True: no task runs."""
        return True
