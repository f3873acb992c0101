"""What a running function holds, and how it can end: jobs and their outcomes."""

from __future__ import annotations

import contextvars
import functools
import math
import sys
import threading
import time
import typing
from collections.abc import Callable
from typing import Final, Generic, Literal, TypeAlias

import attrs

from lro._base.errors import Cancelled, DeadlineExceeded, got
from lro._base.status import Any, Code, Status
from lro._engine.flow import Flow, MayBlock, on_loop, run
from lro._messages.wellknown import OperationMetadata
from lro._model.operation import State

if typing.TYPE_CHECKING:
    from typing_extensions import TypeVar  # a plain ``Job`` is one of the default metadata

    M = TypeVar("M", default=OperationMetadata)
else:
    M = typing.TypeVar("M")

_HOLDS_UP_LOOP: Final = (
    "job.{0} would hold up the event loop that runs in this thread: "
    "use `await job.{0}_async(...)` in an async function"
)


class Job(Generic[M]):
    """One attempt at one operation, as its function sees it.

    Safe to use from several threads. ``M`` is the metadata class.
    """

    def __init__(self, control: JobControl) -> None:
        self._control = control

    @property
    def name(self) -> str:
        """The operation's name."""
        return self._control.name

    @property
    def method(self) -> str:
        """The full name of the method."""
        return self._control.method

    @property
    def attempt(self) -> int:
        """Which attempt this is, from 1."""
        return self._control.attempt

    @property
    def metadata(self) -> M | None:
        """What callers see: the last report, of this attempt or a lost one, or the start's."""
        seen: M | None = self._control.metadata
        return seen

    @property
    def cancel_requested(self) -> bool:
        """Whether the work was asked to stop."""
        return self._control.cancel_requested

    def report(self, metadata: M) -> None:
        """Replace the operation's metadata: progress for those who poll, wait or watch.

        Raises:
            Cancelled: The work was asked to stop; let it pass and the operation ends CANCELLED.
            DeadlineExceeded: The method's time limit is over.
            LeaseLost: Another worker has this operation now; this attempt's work is void.
            EncodingError: The metadata cannot be encoded.
            RuntimeError: An async function calls it on its event loop, which it would hold up.
        """
        if self._control.awaits and event_loop_runs():
            raise RuntimeError(_HOLDS_UP_LOOP.format("report"))
        self._control.report(metadata)

    async def report_async(self, metadata: M) -> None:
        """:meth:`report` for async functions: other work goes on until the report is stored.

        Raises:
            Cancelled, DeadlineExceeded, LeaseLost, EncodingError: As for :meth:`report`.
        """
        await self._control.report_async(metadata)

    def progress(self: Job[OperationMetadata], fraction: float, message: str | None = None) -> None:
        """Report how much is done, from 0 to 1, and what happens now, or the last message again.

        For methods without a metadata class of their own: see :class:`lro.OperationMetadata`.

        Raises:
            ValueError: ``fraction`` is not a number from 0 to 1.
            TypeError: ``message`` is no text.
            EncodingError: The method has a metadata class of its own: use :meth:`report`.
            Cancelled, DeadlineExceeded, LeaseLost: As for :meth:`report`.
            RuntimeError: An async function calls it on its event loop, which it would hold up.
        """
        if self._control.awaits and event_loop_runs():
            raise RuntimeError(_HOLDS_UP_LOOP.format("progress"))
        self._control.report(self._control.progressed(fraction, message))

    async def progress_async(
        self: Job[OperationMetadata], fraction: float, message: str | None = None
    ) -> None:
        """:meth:`progress` for async functions: other work goes on until the report is stored.

        Raises:
            ValueError, TypeError, EncodingError: As for :meth:`progress`.
            Cancelled, DeadlineExceeded, LeaseLost: As for :meth:`report`.
        """
        await self._control.report_async(self._control.progressed(fraction, message))

    def raise_if_cancelled(self) -> None:
        """Do nothing, or stop the work; call it at every unit of it.

        Raises:
            Cancelled: The work was asked to stop.
            DeadlineExceeded: The method's time limit is over.
        """
        self._control.raise_if_cancelled()

    def sleep(self, seconds: float) -> None:
        """Pause the thread, but wake up for a cancellation. For plain functions.

        Raises:
            Cancelled: The work was asked to stop.
            DeadlineExceeded: The method's time limit is over.
            RuntimeError: An event loop runs in this thread: the pause would hold up all its work.
            TypeError, ValueError: ``seconds`` is not a number.
        """
        if event_loop_runs():
            raise RuntimeError(_HOLDS_UP_LOOP.format("sleep"))
        _check_pause(seconds)
        self._control.pause(seconds)

    async def sleep_async(self, seconds: float) -> None:
        """Pause an async function. A cancellation and the time limit interrupt it.

        Raises:
            Cancelled: The work was asked to stop.
            DeadlineExceeded: The method's time limit is over.
            TypeError, ValueError: ``seconds`` is not a number.
        """
        import asyncio

        _check_pause(seconds)
        self._control.raise_if_cancelled()
        await asyncio.sleep(seconds)
        self._control.raise_if_cancelled()


def job_alone(
    publish: Callable[[typing.Any], object] | None = None, metadata: object | None = None
) -> Job[typing.Any]:
    """The job of a function that is called by itself: see :func:`lro.testing.job`."""

    def published(_: JobControl, reported: object) -> Flow[None]:
        if publish is not None:
            yield MayBlock(functools.partial(publish, reported))

    control = JobControl(
        name="operations/test",
        method="test.v1.Tests.Test",
        attempt=1,
        publish=published,
        seen=metadata,
        clock=time.monotonic,
    )
    return control.job


AttemptOutcome: TypeAlias = Literal[
    "succeeded", "failed", "cancelled", "retried", "lost", "released", "superseded"
]
"""How an attempt ended.

``retried``: it has failed, and the work waits to be tried again. ``lost``: the process in which the
function ran has died. ``released``: the work was handed back. ``superseded``: another worker has
the operation, or it is gone: what the attempt gave was refused.
"""


class AttemptTrace:
    """An attempt as it is traced; this one is not."""

    context = ""
    """What a process is given that does the work: as ``Record.trace_context``, of the attempt."""

    def attach(self) -> Callable[[], object]:
        """Make it what this thread or task works for; what is returned undoes that."""
        return _nothing

    def end(self, outcome: AttemptOutcome, error_type: str) -> None:
        """Take note that the attempt is over."""


def _nothing() -> None:
    """Undo nothing."""


NO_ATTEMPT_TRACE: Final = AttemptTrace()


@attrs.define(kw_only=True, eq=False)
class JobControl:
    """A job as the process holds it that runs the function: how it reports, and is stopped.

    ``publish`` is the flow that stores metadata. ``seen`` is the metadata that callers saw when the
    attempt began; if there is a ``recall``, it makes the message of that when it is asked for.
    ``stop_at`` is when the time limit is over, in seconds of ``clock``. ``domain`` names the
    service in error details. ``awaits``: the function is an async one.
    """

    name: str
    attempt: int
    _publish: Callable[[JobControl, typing.Any], Flow[None]] = attrs.field(alias="publish")
    _clock: Callable[[], float] = attrs.field(alias="clock")
    method: str = ""
    _recall: Callable[[typing.Any], object] | None = attrs.field(default=None, alias="recall")
    _seen: object = attrs.field(default=None, alias="seen")
    stop_at: float | None = None
    domain: str = ""
    awaits: bool = False
    trace: AttemptTrace = attrs.field(init=False, default=NO_ATTEMPT_TRACE)
    """What the function's own spans and log lines belong to."""
    _metadata: object = attrs.field(init=False)
    _cancelled: bool = attrs.field(init=False, default=False)
    _wakes: list[Callable[[], None]] = attrs.field(init=False, factory=list)

    def __attrs_post_init__(self) -> None:
        self._metadata = self._seen

    @property
    def job(self) -> Job[typing.Any]:
        """What the function is given."""
        return Job(self)

    @property
    def metadata(self) -> typing.Any:
        """See :attr:`Job.metadata`."""
        recall = self._recall
        if recall is not None:
            found = recall(self._seen)
            if self._recall is not None:  # no thread has reported meanwhile
                self._metadata, self._recall = found, None
        return self._metadata

    @property
    def cancel_requested(self) -> bool:
        """Whether the work was asked to stop."""
        return self._cancelled

    @property
    def seconds_left(self) -> float | None:
        """The seconds until the time limit is over, negative thereafter; None: no limit."""
        return None if self.stop_at is None else self.stop_at - self._clock()

    def report(self, metadata: object) -> None:
        """See :meth:`Job.report`."""
        run(self._reported(metadata))

    async def report_async(self, metadata: object) -> None:
        """See :meth:`Job.report_async`."""
        await on_loop(self._reported(metadata))

    def progressed(self, fraction: float, message: str | None) -> OperationMetadata:
        """The metadata after :meth:`Job.progress`; its times are filled in when it is stored."""
        number = isinstance(fraction, (int, float)) and not isinstance(fraction, bool)
        if not number or not 0 <= fraction <= 1:
            raise ValueError(f"fraction: must be a number from 0 to 1, got {got(fraction)}")
        if message is not None and not isinstance(message, str):
            raise TypeError(f"message: must be a text, got {got(message)}")
        seen = self.metadata
        if not isinstance(seen, OperationMetadata):  # it is refused, or replaces an older kind
            seen = OperationMetadata()
        return OperationMetadata(
            target=seen.target,
            verb=seen.verb,
            api_version=seen.api_version,
            status_message=seen.status_message if message is None else message,
            progress_percent=int(100 * fraction + 1e-9),  # 100 * 0.29 is a little less than 29
        )

    def _reported(self, metadata: object) -> Flow[None]:
        self.raise_if_cancelled()
        self._metadata, self._recall = metadata, None
        yield from self._publish(self, metadata)

    def raise_if_cancelled(self) -> None:
        """See :meth:`Job.raise_if_cancelled`."""
        if self._cancelled:
            raise Cancelled()
        left = self.seconds_left
        if left is not None and left <= 0:
            raise overdue()

    def pause(self, seconds: float) -> None:
        """:meth:`Job.sleep` in any thread.

        Also between calls of a plain function which the caller of a start runs, and waits for, in
        the thread of an event loop.
        """
        left = self.seconds_left
        if left is None or seconds < left:
            self._wait(seconds)
            self.raise_if_cancelled()
        else:
            self._wait(max(0.0, left))
            self.raise_if_cancelled()
            raise overdue()

    def _wait(self, seconds: float) -> None:
        stopped = threading.Event()
        self.on_stop(stopped.set)
        stopped.wait(seconds)
        self._wakes.remove(stopped.set)

    def stop(self) -> None:
        """Ask the work to stop: CancelOperation was called, or the process hands its work back."""
        self._cancelled = True
        for wake in tuple(self._wakes):
            wake()

    def on_stop(self, wake: Callable[[], None]) -> None:
        """Have ``wake`` called when the work is asked to stop, or at once if it was already.

        For executors that wait for the work elsewhere. It may be called more than once: the thread
        that stops the work just now may not have seen it in the list.
        """
        self._wakes.append(wake)
        if self._cancelled:
            wake()

    @property
    def is_over(self) -> bool:
        """Whether the function has ended."""
        return self._publish is _nowhere

    def over(self) -> None:
        """Take no more reports: those that still come are of threads that were left behind."""
        self._publish = _nowhere


CURRENT_JOB: Final[contextvars.ContextVar[JobControl | None]] = contextvars.ContextVar(
    "lro_current_job", default=None
)
"""The job whose function runs in this thread or task: log records made there are about it."""


class current_job:
    """Have the job and its trace known in this thread, for the length of the block."""

    # Not a generator with contextlib.contextmanager: each call of a function took 2 us longer.
    __slots__ = ("_control", "_detach", "_token")

    def __init__(self, control: JobControl) -> None:
        self._control = control

    def __enter__(self) -> None:
        self._token = CURRENT_JOB.set(self._control)
        self._detach = self._control.trace.attach()

    def __exit__(self, *_: object) -> None:
        self._detach()
        CURRENT_JOB.reset(self._token)


def enter_job(control: JobControl) -> None:
    """Have the job and its trace known in this task, which ends with the function."""
    CURRENT_JOB.set(control)
    control.trace.attach()


def _check_pause(seconds: float) -> None:
    if not isinstance(seconds, (int, float)):
        raise TypeError(f"seconds: must be a number of seconds, got {got(seconds)}")
    if math.isnan(seconds):  # which no clock ever reaches
        raise ValueError("seconds: must be a number, got nan")


def _nowhere(_: JobControl, metadata: object) -> Flow[None]:  # noqa: ARG001
    yield from ()


def event_loop_runs() -> bool:
    """Whether an event loop runs in this thread, which what blocks would hold up."""
    if "asyncio" not in sys.modules:  # it is not imported for this: no loop runs without it
        return False
    import asyncio

    return asyncio._get_running_loop() is not None


def overdue() -> DeadlineExceeded:
    """Return the error of work that has taken longer than its method allows."""
    return DeadlineExceeded("the time limit of the method is over")


@attrs.frozen
class Failure:
    """What a function has raised: class and text of the error, for operators.

    ``again``: its method may be tried again after such an error. ``after``: in so many seconds,
    which the function has asked for; None: after the pause that the method says.
    """

    error: str
    text: str
    again: bool = False
    after: float | None = None


@attrs.frozen
class FinalResult:
    """How an attempt ended: the result, and whether it answers a request to cancel."""

    result: Any | Status
    acknowledge: bool = False
    failure: Failure | None = None

    @property
    def state(self) -> State:
        """The state that it leads to."""
        if isinstance(self.result, Any):
            return State.SUCCEEDED
        return State.CANCELLED if self.result.code == Code.CANCELLED else State.FAILED


class AttemptEnded(Exception):
    """Raised in place of a function that was called elsewhere and ended with a status there."""

    def __init__(self, ending: FinalResult) -> None:
        super().__init__(ending)
        self.ending = ending


class SwallowedError(Exception):
    """Raised where a context manager of ``around`` has swallowed the error of this method."""


class WorkerDied(Exception):
    """Raised in place of a function whose process has died; the text says how."""


Outcome: TypeAlias = FinalResult | Literal["released", "superseded", "lost"]
"""How an attempt is to end: with this result, or as the :data:`AttemptOutcome` of this name."""
