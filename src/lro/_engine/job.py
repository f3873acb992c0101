"""Jobs, by which the functions of methods report, and the outcomes of attempts."""

from __future__ import annotations

import contextvars
import functools
import inspect
import math
import sys
import threading
import time
import typing
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any, Final, Generic, Literal, ParamSpec, TypeAlias

import attrs

from lro._base.by_fields import ByFields
from lro._base.errors import (
    Cancelled,
    DeadlineExceeded,
    EncodingError,
    LeaseLost,
    MessageTooLarge,
    got,
)
from lro._base.status import AnyMessage, Code, Json, Status
from lro._engine.flow import Flow, MayBlock, on_loop, run
from lro._engine.limits import size_of
from lro._engine.store_port import KEY_LENGTH
from lro._messages.json_text import MAX_MESSAGE_DEPTH, plain_copy
from lro._messages.wellknown import OperationMetadata
from lro._model.operation import State

if typing.TYPE_CHECKING:
    from typing_extensions import TypeVar  # a plain ``Job`` has the default metadata

    from lro._engine.limits import Limits
    from lro._messages.registry import TypeRegistry

    M = TypeVar("M", default=OperationMetadata)
else:
    M = typing.TypeVar("M")

P = ParamSpec("P")
R = typing.TypeVar("R")

_HOLDS_UP_LOOP: Final = (
    "job.{0} would hold up the event loop that runs in this thread: "
    "use `await job.{0}_async(...)` in an async function"
)


class Job(Generic[M]):
    """One attempt at one operation: the argument of the function that does the work.

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
        """The number of this attempt, from 1."""
        return self._control.attempt

    @property
    def caller(self) -> str:
        """The name of the caller who started the operation; empty if the caller had no name.

        The operation of a rerun has the caller of the first operation.
        """
        return self._control.caller

    @property
    def metadata(self) -> M | None:
        """The metadata that callers see: the last report of any attempt, or the first metadata."""
        seen: M | None = self._control.metadata
        return seen

    @property
    def cancel_requested(self) -> bool:
        """True if the work was asked to stop."""
        return self._control.cancel_requested

    def report(self, metadata: M) -> None:
        """Replace the operation's metadata: progress for callers that poll, wait or watch.

        Raises:
            Cancelled: The work was asked to stop. To end the operation CANCELLED, do not catch this
                error.
            DeadlineExceeded: The method's time limit has passed.
            LeaseLost: Another worker has this operation now, so this attempt's result is refused.
            EncodingError: The metadata cannot be encoded.
            RuntimeError: The call would block the event loop of an async function.
        """
        self._check_may_block("report")
        self._control.report(metadata)

    async def report_async(self, metadata: M) -> None:
        """Replace the metadata as :meth:`report` does, from an async function.

        Raises:
            Cancelled, DeadlineExceeded, LeaseLost, EncodingError: As for :meth:`report`.
        """
        await self._control.report_async(metadata)

    def progress(self: Job[OperationMetadata], fraction: float, message: str | None = None) -> None:
        """Report the share of the work that is done, from 0 to 1, and a message.

        None keeps the last message. Use this in a method that has no metadata class of its own: see
        :class:`lro.OperationMetadata`.

        Raises:
            ValueError: ``fraction`` is not a number from 0 to 1.
            TypeError: ``message`` is not a text.
            EncodingError: The method has a metadata class of its own: use :meth:`report`.
            Cancelled, DeadlineExceeded, LeaseLost: As for :meth:`report`.
            RuntimeError: The call would block the event loop of an async function.
        """
        self._check_may_block("progress")
        self._control.report(self._control.progressed(fraction, message))

    async def progress_async(
        self: Job[OperationMetadata], fraction: float, message: str | None = None
    ) -> None:
        """Report progress as :meth:`progress` does, from an async function.

        Raises:
            ValueError, TypeError, EncodingError: As for :meth:`progress`.
            Cancelled, DeadlineExceeded, LeaseLost: As for :meth:`report`.
        """
        await self._control.report_async(self._control.progressed(fraction, message))

    def checkpoint(self, key: str, value: object) -> None:
        """Store a value under a key. :meth:`checkpointed` returns it in this and later attempts.

        A value is a JSON value, or a message whose class is registered. A second value for a key
        replaces the first. The store removes all values when the operation ends.

        Raises:
            Cancelled, DeadlineExceeded, LeaseLost: As for :meth:`report`. The value is stored
                before Cancelled or DeadlineExceeded is raised, unless the store is unavailable.
            EncodingError: The value cannot be stored; the text names the key and the reason.
            MessageTooLarge: The value, or all values of the operation, exceed ``Limits``.
            TypeError, ValueError: The key is not a printable text of 1 to 200 characters.
            RuntimeError: The call would block the event loop of an async function.
        """
        self._check_may_block("checkpoint")
        run(self._control.checkpoints.store(key, value))
        self._control.raise_if_cancelled()

    async def checkpoint_async(self, key: str, value: object) -> None:
        """Store a value as :meth:`checkpoint` does, from an async function.

        Raises:
            Cancelled, DeadlineExceeded, LeaseLost, EncodingError, MessageTooLarge, TypeError,
                ValueError: As for :meth:`checkpoint`.
        """
        await on_loop(self._control.checkpoints.store(key, value))
        self._control.raise_if_cancelled()

    def checkpointed(self, key: str, default: object = None) -> Any:
        """Return the value that any attempt last stored under a key, or the default.

        The key of a step gives the step's result. Messages are returned as instances of their
        class. The first attempt reads nothing from the store. A later attempt reads all values
        once, at the first call.

        Raises:
            Cancelled, DeadlineExceeded, LeaseLost: As for :meth:`report`.
            InvalidArgument: An earlier version of the application stored the value, which cannot be
                read now.
            UnknownType: The value is a message whose class is no longer registered.
            TypeError, ValueError: The key is not a printable text of 1 to 200 characters.
            RuntimeError: The call would block the event loop of an async function.
        """
        self._check_may_block("checkpointed")
        return next(iter(run(self._control.recalled(key))), default)

    async def checkpointed_async(self, key: str, default: object = None) -> Any:
        """Return a value as :meth:`checkpointed` does, in an async function.

        Raises:
            Cancelled, DeadlineExceeded, LeaseLost, InvalidArgument, UnknownType, TypeError,
                ValueError: As for :meth:`checkpointed`.
        """
        return next(iter(await on_loop(self._control.recalled(key))), default)

    def step(self, key: str, function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call a function and store its result; if the result is stored already, only return it.

        A completed step does not run again in a later attempt. An interrupted step does run again.
        In a loop, give each step its own key. Steps and checkpoints share one set of keys.

        Raises:
            Cancelled, DeadlineExceeded: The work was told to stop, and the function is not called.
            Cancelled: The process stops while the store is unavailable; the result is not stored.
            LeaseLost, EncodingError, MessageTooLarge: The result is not stored, as for
                :meth:`checkpoint`.
            InvalidArgument, UnknownType: As for :meth:`checkpointed`.
            TypeError, ValueError: As for :meth:`checkpoint`; or the function is async.
            RuntimeError: The call would block the event loop of an async function.
        """
        self._check_may_block("step")
        if inspect.iscoroutinefunction(function):
            raise TypeError(
                f"step {key!r}: for a coroutine function use `await job.step_async(...)`"
            )
        for known in run(self._control.recalled(key)):
            return typing.cast(R, known)
        result = function(*args, **kwargs)
        run(self._control.checkpoints.store(key, result))
        return result

    async def step_async(
        self, key: str, function: Callable[P, Awaitable[R]], /, *args: P.args, **kwargs: P.kwargs
    ) -> R:
        """Run a step as :meth:`step` does, for a coroutine function.

        Raises:
            Cancelled, DeadlineExceeded, LeaseLost, EncodingError, MessageTooLarge, InvalidArgument,
                UnknownType, ValueError: As for :meth:`step`.
            TypeError: As for :meth:`step`; or the function does not return an awaitable.
        """
        for known in await on_loop(self._control.recalled(key)):
            return typing.cast(R, known)
        awaited = function(*args, **kwargs)
        if not inspect.isawaitable(awaited):
            raise TypeError(f"step {key!r}: must be a coroutine function, got {got(function)}")
        result = await awaited
        await on_loop(self._control.checkpoints.store(key, result))
        return result

    def _check_may_block(self, verb: str) -> None:
        if self._control.awaits and event_loop_runs():
            raise RuntimeError(_HOLDS_UP_LOOP.format(verb))

    def raise_if_cancelled(self) -> None:
        """Raise an error if the work must stop. Call this before each unit of work.

        Raises:
            Cancelled: The work was asked to stop.
            DeadlineExceeded: The method's time limit has passed.
        """
        self._control.raise_if_cancelled()

    def sleep(self, seconds: float) -> None:
        """Pause the thread of a plain function; a cancellation or the time limit ends the pause.

        Raises:
            Cancelled: The work was asked to stop.
            DeadlineExceeded: The method's time limit has passed.
            RuntimeError: An event loop runs in this thread: the pause would hold up all its work.
            TypeError, ValueError: ``seconds`` is not a number.
        """
        if event_loop_runs():
            raise RuntimeError(_HOLDS_UP_LOOP.format("sleep"))
        _check_pause(seconds)
        self._control.pause(seconds)

    async def sleep_async(self, seconds: float) -> None:
        """Pause an async function; a cancellation or the time limit ends the pause.

        Raises:
            Cancelled: The work was asked to stop.
            DeadlineExceeded: The method's time limit has passed.
            TypeError, ValueError: ``seconds`` is not a number.
        """
        import asyncio

        _check_pause(seconds)
        self._control.raise_if_cancelled()
        await asyncio.sleep(seconds)
        self._control.raise_if_cancelled()


class Checkpoints:
    """The packed values that the attempts at an operation have stored, by key.

    ``keep`` stores a value. ``load`` reads the values of earlier attempts, and is None in the first
    attempt. A JSON value is packed without a type.
    """

    def __init__(
        self,
        types: TypeRegistry,
        limits: Limits,
        keep: Callable[[str, AnyMessage], Flow[None]],
        load: Callable[[], Flow[Mapping[str, AnyMessage]]] | None,
    ) -> None:
        self.keep = keep
        self.load = load
        self._types = types
        self._limits = limits
        self._lock = threading.Lock()
        self._known: dict[str, tuple[AnyMessage, int]] = {}
        self._bytes = 0
        self._loaded = load is None

    def find(self, key: str) -> Flow[tuple[object, ...]]:
        """Return a tuple with the value of a key; an empty tuple if the key has no value."""
        _check_key(key)
        yield from self._read()
        return (self.unpacked(key, self._known[key][0]),) if key in self._known else ()

    def store(self, key: str, value: object) -> Flow[None]:
        """See :meth:`Job.checkpoint`."""
        _check_key(key)
        packed = self._packed(key, value)
        what, limits, size = f"the checkpoint {key!r}", self._limits, _checkpoint_size(key, packed)
        if size > limits.checkpoint_bytes:
            raise MessageTooLarge(what, size, limits.checkpoint_bytes, "checkpoint_bytes")
        yield from self._read()
        with self._lock:
            more = size - self._known.get(key, _NO_VALUE)[1]
            if self._bytes + more > limits.checkpoints_bytes:
                what, size = f"{what}, with all others of the operation,", self._bytes + more
                raise MessageTooLarge(what, size, limits.checkpoints_bytes, "checkpoints_bytes")
            self._bytes += more  # counts for other threads from now on
        try:
            yield from self.keep(key, packed)
        except BaseException:
            with self._lock:
                self._bytes -= more
            raise
        with self._lock:  # another thread may have stored a value under this key meanwhile
            self._bytes += size - self._known.get(key, _NO_VALUE)[1] - more
            self._known[key] = packed, size

    def unpacked(self, key: str, packed: AnyMessage) -> object:
        """Return a new copy of the value."""
        return self._types.unpack_any(packed) if packed.type_url else _json(packed.payload, key)

    def _packed(self, key: str, value: object) -> AnyMessage:
        types, cls = self._types, type(value)
        message = types.knows(cls) and types.codec(types.name_of(cls)).python is cls
        if isinstance(value, AnyMessage) or not message:
            return AnyMessage("", _json(value, key))
        try:
            return types.pack(value)
        except EncodingError as exc:
            what = f"the checkpoint {key!r}, a {exc.type_name}"
            raise EncodingError(what, exc.path, exc.description) from exc

    def _read(self) -> Flow[None]:
        if self.load is None or self._loaded:
            return
        loaded = yield from self.load()
        with self._lock:
            for key, packed in loaded.items():
                if key not in self._known:  # a thread may have stored a newer value meanwhile
                    size = _checkpoint_size(key, packed)
                    self._bytes += size
                    self._known[key] = packed, size
        self._loaded = True


_NO_VALUE: Final = None, 0
"""Stands for the value of a key that has none, and for its size."""

_CHECKPOINT_BYTES: Final = 100
"""Bytes counted for each checkpoint besides its key and value, to bound the number of keys, too."""


def _checkpoint_size(key: str, packed: AnyMessage) -> int:
    return _CHECKPOINT_BYTES + len(key.encode()) + size_of(packed)


def _json(value: object, key: str) -> Json:
    copy = plain_copy([value], MAX_MESSAGE_DEPTH)
    if not isinstance(copy, list):
        wanted = "a JSON value that comes back equal, or a message of a registered class"
        text = f"must be {wanted}, not a value of type {type(value).__qualname__}, got {got(value)}"
        raise EncodingError(f"the checkpoint {key!r}", "", text)
    return copy[0]


def _check_key(key: object) -> None:
    if not isinstance(key, str):
        raise TypeError(f"key: must be a text, got {got(key)}")
    if not 0 < len(key) <= KEY_LENGTH or not key.isprintable():
        text = f"key: must be a printable text of 1 to {KEY_LENGTH} characters, got {got(key)}"
        raise ValueError(text)


def job_alone(
    types: TypeRegistry,
    limits: Limits,
    *,
    publish: Callable[[Any], object] | None = None,
    metadata: object | None = None,
    checkpoints: MutableMapping[str, Any] | None = None,
    caller: str = "",
) -> Job[Any]:
    """Return a job for a function that is called without a service: see :func:`lro.testing.job`."""
    kept = {} if checkpoints is None else checkpoints

    def published(_: JobControl, reported: object) -> Flow[None]:
        if publish is not None:
            yield MayBlock(functools.partial(publish, reported))

    def keep(key: str, packed: AnyMessage) -> Flow[None]:
        kept[key] = found.unpacked(key, packed)
        yield from ()

    found = Checkpoints(types, limits, keep, None)
    for key, value in dict(kept).items():
        run(found.store(key, value))
    control = JobControl(
        name="operations/test",
        method="test.v1.Tests.Test",
        caller=caller,
        attempt=2 if kept else 1,
        publish=published,
        seen=metadata,
        clock=time.monotonic,
        remember=lambda _: found,
    )
    return control.job


AttemptOutcome: TypeAlias = Literal[
    "succeeded", "failed", "cancelled", "retried", "lost", "released", "superseded"
]
"""How an attempt ended.

``retried``: the function failed, and the operation waits for the next attempt. ``lost``: the
process that ran the function died. ``released``: the work waits again. ``superseded``: the result
is not stored, because another worker has the operation, the operation is gone, or the store was
unavailable when the process stopped.
"""


class AttemptTrace:
    """The trace of an attempt. This base class traces nothing."""

    context = ""
    """The trace context of the attempt, for a process that runs the function."""

    def attach(self) -> Callable[[], object] | None:
        """Make this the current trace of the thread or task.

        Return a function that undoes this; None if nothing has changed.
        """
        return None

    def end(self, outcome: AttemptOutcome, error_type: str) -> None:
        """End the trace."""


NO_ATTEMPT_TRACE: Final = AttemptTrace()


_REMEMBERING: Final = threading.RLock()
"""Guards the creation of a job's checkpoints, so that its threads share one object."""


@attrs.define(kw_only=True, eq=False, repr=False)
class JobControl:
    """The implementation of a :class:`Job`, in the process that runs the function.

    ``publish`` is the flow that stores metadata. ``seen`` is the metadata that callers saw when the
    attempt began; ``recall``, if given, unpacks that metadata at its first use. ``stop_at`` is the
    end of the time limit, in seconds of ``clock``. ``domain`` names the service in error details.
    ``awaits`` is true for an async function. ``remember`` makes the checkpoints at their first use.

    In a ``with`` block of this object, the job and its trace are current in this thread or task.
    """

    name: str
    attempt: int
    _publish: Callable[[JobControl, Any], Flow[None]] = attrs.field(alias="publish")
    _clock: Callable[[], float] = attrs.field(alias="clock")
    method: str = ""
    caller: str = ""
    _recall: Callable[[Any], object] | None = attrs.field(default=None, alias="recall")
    _seen: object = attrs.field(default=None, alias="seen")
    stop_at: float | None = None
    domain: str = ""
    awaits: bool = False
    _remember: Callable[[JobControl], Checkpoints] | None = attrs.field(
        default=None, alias="remember"
    )
    _checkpoints: Checkpoints | None = attrs.field(init=False, default=None)
    trace: AttemptTrace = attrs.field(init=False, default=NO_ATTEMPT_TRACE)
    """The trace that the function's own spans and log lines belong to."""
    _recalled: tuple[object, ...] = attrs.field(init=False, default=())
    """The unpacked ``seen``, after its first use."""
    _reports: tuple[object, ...] = attrs.field(init=False, default=())
    """The last metadata that this attempt has reported, if any."""
    cancel_requested: bool = attrs.field(init=False, default=False)
    """True if the work was asked to stop."""
    _wakes: list[Callable[[], None]] = attrs.field(init=False, factory=list)
    _token: contextvars.Token[JobControl | None] = attrs.field(init=False)
    _detach: Callable[[], object] | None = attrs.field(init=False)

    def __enter__(self) -> None:
        self._token = CURRENT_JOB.set(self)
        self._detach = None if self.trace is NO_ATTEMPT_TRACE else self.trace.attach()

    def __exit__(self, *_: object) -> None:
        if CURRENT_JOB.get() is self:  # else the coroutine is closed in another context
            if self._detach is not None:
                self._detach()
            CURRENT_JOB.reset(self._token)

    @property
    def job(self) -> Job[Any]:
        """The job that the function is given."""
        return Job(self)

    @property
    def metadata(self) -> Any:
        """See :attr:`Job.metadata`."""
        if not self._reports and not self._recalled:
            self._recalled = (self._recall(self._seen) if self._recall else self._seen,)
        return (self._reports or self._recalled)[0]

    @property
    def seconds_left(self) -> float | None:
        """The seconds left of the time limit, negative after its end; None without a limit."""
        return None if self.stop_at is None else self.stop_at - self._clock()

    def report(self, metadata: object) -> None:
        """See :meth:`Job.report`."""
        run(self._reported(metadata))

    async def report_async(self, metadata: object) -> None:
        """See :meth:`Job.report_async`."""
        await on_loop(self._reported(metadata))

    def progressed(self, fraction: float, message: str | None) -> OperationMetadata:
        """Return the metadata for :meth:`Job.progress`; the write to the store adds the times."""
        number = isinstance(fraction, (int, float)) and not isinstance(fraction, bool)
        if not number or not 0 <= fraction <= 1:
            raise ValueError(f"fraction: must be a number from 0 to 1, got {got(fraction)}")
        if message is not None and not isinstance(message, str):
            raise TypeError(f"message: must be a text, got {got(message)}")
        seen = self.metadata
        if not isinstance(seen, OperationMetadata):  # the metadata is of another class
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
        yield from self._publish(self, metadata)
        self._reports = (metadata,)  # set last: storing may fail

    @property
    def checkpoints(self) -> Checkpoints:
        """The checkpoints of this and earlier attempts.

        Raises:
            LeaseLost: The function has returned; the caller is a thread that the function left
                running.
        """
        if (found := self._checkpoints) is not None:
            return found
        with _REMEMBERING:
            if (remember := self._remember) is None:
                raise LeaseLost(self.name, self.attempt, self.attempt)
            found = self._checkpoints = self._checkpoints or remember(self)
        return found

    def recalled(self, key: str) -> Flow[tuple[object, ...]]:
        """See :meth:`Job.checkpointed`."""
        self.raise_if_cancelled()
        return self.checkpoints.find(key)

    def raise_if_cancelled(self) -> None:
        """See :meth:`Job.raise_if_cancelled`."""
        if self.cancel_requested:
            raise Cancelled()
        if self.stop_at is not None and self.stop_at <= self._clock():
            raise overdue()

    def pause(self, seconds: float) -> None:
        """Pause as :meth:`Job.sleep` does, but in any thread, even that of an event loop."""
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
        stopped.wait(min(seconds, threading.TIMEOUT_MAX))
        self._wakes.remove(stopped.set)

    def stop(self) -> None:
        """Ask the work to stop: a caller cancelled it, or the process releases its work."""
        self.cancel_requested = True
        for wake in tuple(self._wakes):
            wake()

    def on_stop(self, wake: Callable[[], None]) -> None:
        """Call ``wake`` when the work is asked to stop, or at once if it was asked already.

        An executor uses this if it runs the work in another process. ``wake`` may be called twice,
        if the work is asked to stop while ``wake`` is being added.
        """
        self._wakes.append(wake)
        if self.cancel_requested:
            wake()

    @property
    def ended(self) -> bool:
        """True if the function has ended."""
        return self._publish is _nowhere

    def end(self) -> None:
        """From now on, ignore reports and refuse checkpoints: the function has ended.

        Threads that the function left running may still send them.
        """
        self._publish = _nowhere
        self._remember = self._checkpoints = None  # both refer to the attempt


CURRENT_JOB: Final[contextvars.ContextVar[JobControl | None]] = contextvars.ContextVar(
    "lro_current_job", default=None
)
"""The job whose function runs in this thread or task; log records get the facts of this job."""


def _check_pause(seconds: float) -> None:
    if not isinstance(seconds, (int, float)):
        raise TypeError(f"seconds: must be a number of seconds, got {got(seconds)}")
    if math.isnan(seconds):  # nan: no clock ever reaches it
        raise ValueError("seconds: must be a number, got nan")


def _nowhere(_: JobControl, metadata: object) -> Flow[None]:  # noqa: ARG001
    yield from ()


def event_loop_runs() -> bool:
    """Return True if an event loop runs in this thread: blocking calls would hold it up."""
    if "asyncio" not in sys.modules:  # without asyncio, no event loop runs
        return False
    import asyncio

    return asyncio._get_running_loop() is not None


def overdue() -> DeadlineExceeded:
    """Return the error of work that has exceeded the time limit of its method."""
    return DeadlineExceeded("the time limit of the method is over")


@attrs.frozen(eq=False, repr=False)
class Failure(ByFields):
    """The error that a function raised: its class name and text, for operators.

    ``again`` is true if the method retries such an error. ``after`` is the number of seconds after
    which the function asked to be retried; None stands for the pause of the method's ``retry``.
    """

    error: str
    text: str
    again: bool = False
    after: float | None = None


# Objects of a frozen class take twice as long to make.
@attrs.define(eq=False, repr=False)
class FinalResult(ByFields):
    """The result that ends the operation.

    ``acknowledge`` is true if the result answers a cancel request. ``expired`` is true if the work
    did not begin in time.
    """

    result: AnyMessage | Status
    acknowledge: bool = False
    failure: Failure | None = None
    expired: bool = False

    @property
    def state(self) -> State:
        """The state of an operation that has this result."""
        if isinstance(self.result, AnyMessage):
            return State.SUCCEEDED
        return State.CANCELLED if self.result.code == Code.CANCELLED else State.FAILED


class AttemptEnded(Exception):
    """Raised by a remote call of the function if the attempt has ended with a status."""

    def __init__(self, ending: FinalResult) -> None:
        super().__init__(ending)
        self.ending = ending


class SwallowedError(Exception):
    """Raised if a context manager of the option ``around`` swallowed the function's error."""


class WorkerDied(Exception):
    """Raised by a remote call of the function whose process died; the error text says how."""


Outcome: TypeAlias = FinalResult | Literal["released", "superseded", "lost"]
"""The outcome of an attempt: a final result, or the name of another :data:`AttemptOutcome`."""
