"""An attempt at an operation: it calls the function, and stores the reports and the result.

The table ``NEXT`` defines the life of an attempt: it has the phases that may follow each
:class:`Phase`. Two threads change the phase: the worker thread, and the thread that stops the
process and releases unfinished work. If both threads change it, the first change counts, and
``Attempt._become`` refuses the second. Any thread may ask an attempt to stop, in any phase. Only a
higher ``StopRequest`` replaces an earlier request. The worker checks the request and changes the
phase under one lock, so that a function is never called after a request to release its work.
"""

from __future__ import annotations

import contextlib
import contextvars
import enum
import functools
import logging
import os
import threading
import types
from collections.abc import Callable, Collection, Coroutine, Generator, Mapping
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, ParamSpec, TypeVar, cast

import attrs

from lro._base.errors import (
    Cancelled,
    EncodingError,
    InvalidArgument,
    LeaseLost,
    LroError,
    MessageTooLarge,
    NotApplied,
    OperationNotFound,
    RetryLater,
    StatusError,
    Unavailable,
    interrupts,
    loggable,
)
from lro._base.status import AnyMessage, Code, Status
from lro._engine.endings import emit_stored_end, store_loss, store_retry, store_stop, too_late
from lro._engine.events import MetadataReported, WriteRefused, about, error_type
from lro._engine.executor_port import Later, LoopWatch, RemoteCall
from lro._engine.flow import (
    CONTINUATIONS,
    CheckpointWrite,
    Flow,
    MayBlock,
    Pause,
    on_loop,
    only,
    run,
    run_or_leave,
)
from lro._engine.job import (
    NO_ATTEMPT_TRACE,
    AttemptEnded,
    AttemptOutcome,
    AttemptTrace,
    Checkpoints,
    Failure,
    FinalResult,
    Job,
    JobControl,
    Outcome,
    WorkerDied,
    event_loop_runs,
    overdue,
)
from lro._engine.method_spec import FinalMetadataFailed, MethodSpec, Options
from lro._engine.process import PerProcess
from lro._engine.runtime import Runtime
from lro._engine.store_port import SUSPECT, WORK_WAITS
from lro._model.description import FailedAttempt
from lro._model.operation import Record, State, end, failure_text, note_start, report, with_failure

if TYPE_CHECKING:
    import asyncio

log = logging.getLogger("lro")

_OVERRUN_SECONDS: Final = 10.0
"""Seconds after the time limit for a function to notice it; then the overrun is logged."""

P = ParamSpec("P")
T = TypeVar("T")

_FIRST_PAUSE_SECONDS: Final = 0.05
_MAX_PAUSE_SECONDS: Final = 1.0
"""First and longest pause, in seconds, between retries while the store is unavailable."""
_SKIPPED_AT_MOST: Final = 1_000
"""Maximum number of operations that this process remembers to skip."""

UNREADABLE: Final = "REQUEST_UNREADABLE"
"""The reason in the error of an attempt that could not read its stored request."""

_NEVER_RETRIED: Final = (Cancelled, LeaseLost)
"""Errors that are never retried, whatever ``Retry.on`` says: the work was told to stop."""


class Phase(enum.Enum):
    """Phase of an attempt. The value of a final phase is the outcome that events report."""

    __hash__ = object.__hash__  # identity is enough; Enum's own hash is a Python call

    CLAIMED = "claimed"
    """This process has claimed the work; no worker has begun it."""
    BEGINNING = "beginning"
    """A worker prepares the function's arguments."""
    RUNNING = "running"
    """The function may be running."""
    ENDING = "ending"
    """The function has ended; its result is being stored."""
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    RETRIED = "retried"
    RELEASED = "released"
    LOST = "lost"
    SUPERSEDED = "superseded"


_ENDS: Final[Mapping[State, Phase]] = {
    State.SUCCEEDED: Phase.SUCCEEDED,
    State.FAILED: Phase.FAILED,
    State.CANCELLED: Phase.CANCELLED,
}
_ENDED: Final = frozenset(_ENDS.values())
_OUTCOMES: Final[Mapping[Phase, AttemptOutcome]] = {
    phase: cast("AttemptOutcome", phase.value) for phase in Phase
}

NEXT: Final[Mapping[Phase, frozenset[Phase]]] = {
    Phase.CLAIMED: _ENDED | {Phase.BEGINNING, Phase.RELEASED, Phase.SUPERSEDED},
    Phase.BEGINNING: _ENDED | {Phase.RUNNING, Phase.RELEASED, Phase.SUPERSEDED},
    Phase.RUNNING: _ENDED | {Phase.ENDING, Phase.RELEASED},
    Phase.ENDING: _ENDED | {Phase.RETRIED, Phase.RELEASED, Phase.LOST, Phase.SUPERSEDED},
    Phase.SUCCEEDED: frozenset(),
    Phase.FAILED: frozenset(),
    Phase.CANCELLED: frozenset(),
    Phase.RETRIED: frozenset(),
    Phase.RELEASED: frozenset(),
    Phase.LOST: frozenset(),
    # The store can refuse the result before the thread that released the work has set RELEASED.
    Phase.SUPERSEDED: frozenset({Phase.RELEASED}),
}
"""The allowed transitions."""
_UNDER_WAY: Final = frozenset({Phase.CLAIMED, Phase.BEGINNING, Phase.RUNNING, Phase.ENDING})


class StopRequest(enum.IntEnum):
    """A request to stop an attempt; of several requests, the highest counts."""

    NOTHING = 0
    CANCEL = 1
    """Stop, because a caller cancelled the operation."""
    RELEASE = 2
    """Stop, so that another process can do the work."""


class HeldWork(PerProcess):
    """The attempts of this process, by operation name.

    ``claim_soon`` wakes the thread that claims work, and ``renew_soon`` the maintenance thread,
    which renews the lease.
    """

    stopping: bool = False

    def __init__(
        self, runtime: Runtime, claim_soon: Callable[[], None], renew_soon: Callable[[], None]
    ) -> None:
        self.runtime = runtime
        self._claim_soon = claim_soon
        self._renew_soon = renew_soon
        self.process: int = os.getpid()
        # Re-entrant: a garbage collection under the lock may close a coroutine, which calls remove.
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._attempts: dict[str, Attempt] = {}
        self._to_release: list[Attempt] = []
        self.skipped: set[str] = set()
        """Names of operations whose requests only another version of the application can read."""

    def attempts(self) -> Collection[Attempt]:
        """Return the attempts of this process."""
        with self._lock:
            return list(self._attempts.values())

    @property
    def ending(self) -> bool:
        """True if the result of some work is being stored."""
        return any(attempt.ending for attempt in self.attempts())

    def runs(self, name: str) -> bool:
        """Return True if this process has an attempt at the operation."""
        return name in self._attempts

    def held(self) -> frozenset[str]:
        """Return the names of the operations at which this process has attempts."""
        if not self._attempts:
            return frozenset()
        with self._lock:
            return frozenset(self._attempts)

    def skip(self, name: str) -> None:
        """Do not claim this operation again.

        Only another version of the application can read its request.
        """
        if len(self.skipped) >= _SKIPPED_AT_MOST:
            self.skipped.clear()
        self.skipped.add(name)

    def announce_work(self) -> None:
        """Wake the processes that claim work, including this process."""
        self.runtime.store.notify_others(WORK_WAITS)
        self._claim_soon()

    def release_later(self, attempt: Attempt) -> None:
        """Have the maintenance thread release the work of this attempt."""
        with self._lock:
            self._to_release.append(attempt)
        self._renew_soon()

    def remove(self, attempt: Attempt) -> None:
        """Forget an attempt that has ended."""
        with self._lock:
            # After a lost lease, the name can belong to a later attempt.
            if self._attempts.get(attempt.name) is not attempt:
                return
            del self._attempts[attempt.name]
            if self.stopping:
                self._changed.notify_all()
        if attempt.spec.options.concurrency is not None:  # the limit may let other work begin
            self.announce_work()
        elif attempt.suspect:
            self._claim_soon()


class Attempt:
    """A task for an executor: one attempt at an operation, from its claim to its result.

    ``record`` is the operation as claimed for this process. ``request`` is the request message if
    this process has just started the operation; otherwise ``packed`` is the stored request.
    """

    ended: Record | None = None
    """The record of the ended operation, once this attempt has stored the end."""
    over: bool = False
    """True if the attempt has ended, was released, or was lost."""
    _phase = Phase.CLAIMED
    _asked = StopRequest.NOTHING
    _control: JobControl | None = None
    _awaited_by: tuple[asyncio.AbstractEventLoop, asyncio.Task[Any]] | None = None
    """The event loop and the task in which the function runs."""
    _began_at: float | None = None
    """When the attempt began, in seconds of the runtime's clock; None if its end needs no event."""
    _trace: AttemptTrace = NO_ATTEMPT_TRACE
    _has_overrun: bool = False
    """True if it was logged that the function runs longer than its time limit."""

    def __init__(
        self,
        record: Record,
        spec: MethodSpec,
        holder: HeldWork,
        *,
        request: object | None = None,
        packed: AnyMessage | None = None,
    ) -> None:
        self.name: str = record.name
        self.method: str = spec.full_name
        self.is_async: bool = spec.is_async
        self.create_time: datetime = record.create_time
        self.spec = spec
        self._holder = holder
        self._runtime = holder.runtime
        self._process = holder.process
        if record.method != spec.full_name:  # the record names the method by an alias
            record = attrs.evolve(record, method=spec.full_name)
        self._record = record
        self.suspect: bool = record.lost_attempts >= SUSPECT
        """True if this work has lost its worker so often that the work itself may kill workers."""
        self._request = request
        self._packed = packed
        self._lock = threading.RLock()  # re-entrant: a thread that holds it may request a stop

    def _become(self, phase: Phase) -> bool:
        """Change the phase, and return True, if ``NEXT`` allows it. The caller holds the lock."""
        allowed = phase in NEXT[self._phase]
        if allowed:
            self._phase = phase
            self.over = phase not in _UNDER_WAY
        return allowed

    def _ask(self, what: StopRequest) -> None:
        with self._lock:
            self._asked = max(self._asked, what)

    def warn_of_overrun(self) -> None:
        """Log once if a plain function still runs some time after its time limit."""
        control, limit = self._control, self.spec.options.time_limit
        if limit is None or control is None or self.over or self.is_async or self._has_overrun:
            return
        left = control.seconds_left
        if left is None or left > -_OVERRUN_SECONDS:
            return
        self._has_overrun = True
        line = (
            "%s: %s still runs, but its time_limit of %g s is over: call job.raise_if_cancelled()"
            " in the function, or use a ProcessExecutor, which can end it"
        )
        log.warning(line, self.name, self.method, limit.total_seconds(), extra=self._facts)

    # -- by the workers -----------------------------------------------------------------------

    @property
    def executing(self) -> bool:
        """True if a worker has begun the attempt, even after the attempt has ended."""
        return self._control is not None

    @property
    def start_unseen(self) -> bool:
        """True if the metadata has a start time field that the claim did not fill."""
        return self.spec.stamp(self._record) is not self._record

    @property
    def ending(self) -> bool:
        """True if the function has ended, and its result is being stored."""
        return self._phase is Phase.ENDING

    def show_start(self, missed: Callable[[], object] | None = None) -> None:
        """Store the start time in the metadata soon, unless it is stored or the work has ended.

        ``missed`` is called if the store is unavailable.
        """
        if not self.over and self.start_unseen:
            change = note_start(self._record.attempt, self.spec.stamp)
            self._runtime.updater.apply_later(self.name, change, missed)

    def cancel(self) -> None:
        """Pass a stored cancel request on to the function, if the function is running.

        Each lease renewal and each read of the store finds the same request again, but the function
        is told only once, so that its cleanup is not interrupted. Several threads may call this at
        the same time; each thread waits until the first call is done.
        """
        with self._lock:
            self._ask(StopRequest.CANCEL)
            control = self._control
            if control is None or control.cancel_requested:
                return
            control.stop()  # before task.cancel(): a coroutine that begins just now sees this
            awaited = self._awaited_by
            if awaited is not None:
                loop, task = awaited
                with contextlib.suppress(RuntimeError):  # the loop is closed
                    loop.call_soon_threadsafe(self._interrupt, task)

    def _interrupt(self, task: asyncio.Task[Any]) -> None:  # on the loop
        if self._awaited_by is not None:  # otherwise the function has ended meanwhile
            task.cancel()

    def request_release(self) -> None:
        """Stop the function; the attempt then releases the operation."""
        self._ask(StopRequest.RELEASE)
        self.cancel()

    def release_later(self) -> None:
        """Have the operation released soon, because this process cannot do the work.

        This has no effect once the function has ended: then the result is stored.
        """
        with self._lock:
            if self.over or self._phase is Phase.ENDING:
                return
            self._ask(StopRequest.RELEASE)
        self._holder.release_later(self)

    @property
    def release_requested(self) -> bool:
        """True if the attempt was asked to release the operation."""
        return self._asked is StopRequest.RELEASE

    @property
    def released(self) -> bool:
        """True if the operation waits again in the store."""
        return self._phase is Phase.RELEASED

    def end_refused(self) -> None:
        """End the operation with INTERNAL, because the executor failed to take its work."""
        text = "the executor could not take the work of the method"
        status = internal(self.spec, self._runtime.domain, text, "METHOD_FAILED")
        try:
            run(self._store(FinalResult(status)))
        finally:
            self._holder.remove(self)

    def release(self) -> Flow[None]:
        """Release the operation: it waits again in the store, for any process.

        If the store is unavailable, this only stops the function. When the function has returned,
        its worker tries again to release the operation.
        """
        self._ask(StopRequest.RELEASE)
        begun = self._phase not in (Phase.CLAIMED, Phase.BEGINNING)
        try:
            after = yield from store_stop(self._runtime, self.spec, self._record, begun=begun)
            if after is not None and after.done:
                self._end_as(_ENDS[after.state], error_type(after.result))
            else:
                self._end_as(Phase.RELEASED)
            emit_stored_end(self._runtime.events, after)
            self._holder.announce_work()
        except (NotApplied, LeaseLost, OperationNotFound):
            pass  # the operation has ended, or another process has it
        except Exception as exc:  # the work is recovered when the lease expires
            log.error("%s: could not be released: %s", self.name, exc, extra=self._facts)
        self.cancel()

    # -- by the executor ----------------------------------------------------------------------

    def run(self, through: RemoteCall | None = None, later: Later | None = None) -> bool:
        """Do the work in this thread; an async function gets an event loop of its own.

        ``through``, if given, calls the function in another process. The function runs in an empty
        context: it sees no context variables of the caller, or of earlier work in this thread. See
        ``Task.run`` for ``later`` and the result.
        """
        return contextvars.Context().run(self._run, through, later)

    def _run(self, through: RemoteCall | None, later: Later | None) -> bool:
        try:
            if self.is_async and through is None:
                import asyncio  # imported late: asyncio is half the cost of importing lro

                asyncio.run(self.arun(at_once=True))
            elif (refused := self._begin()) is not None:
                run(refused)
            elif later is None:
                run(self._finish(self._call(through)))
            else:
                return run_or_leave(self._finish(self._call(through)), later)
            return False
        except BaseException:
            self._holder.remove(self)
            raise

    async def arun(self, watch: LoopWatch | None = None, *, at_once: bool = False) -> None:
        """Do the work of an async function on this event loop; see ``Task.arun``.

        With ``at_once``, the steps of the attempt are taken on the event loop, even if they block.
        """
        import asyncio

        try:
            refused = self._begin()
            flow = self._finish(await self._await(watch)) if refused is None else refused
            # If writes do not block, taking steps here is cheaper than switching coroutines.
            if at_once or not self._runtime.store.writes_block:
                run(flow)
            else:
                await on_loop(flow)
        except (asyncio.CancelledError, GeneratorExit):  # the event loop is ending, or was closed
            self.release_later()
            raise
        except BaseException:
            self._holder.remove(self)
            raise

    # -- begin --------------------------------------------------------------------------------

    def _begin(self) -> Flow[None] | None:
        """Prepare the call of the function.

        If the function must not be called, return the flow that stores the reason.
        """
        with self._lock:
            if not self._become(Phase.BEGINNING):  # the work was released meanwhile
                return self._refuse(None)
        control, outcome = self._control_of(self._record), None
        self._observe_begin(control)
        if control.cancel_requested:
            outcome = self._failure(control, Cancelled())
        elif self._record.begin_before is not None:
            outcome = self._too_late()
        if outcome is None and self._request is None:
            outcome = self._read_request()
        if outcome is None:
            with self._lock:  # no request to release comes in between
                if self._asked is not StopRequest.RELEASE and self._become(Phase.RUNNING):
                    return None
            outcome = "released"
        return self._refuse(outcome)

    def _refuse(self, outcome: Outcome | None) -> Flow[None]:
        """Store the outcome of an attempt whose function is not called, and forget the attempt."""
        if outcome is not None:
            yield from self._store(outcome)
        self._holder.remove(self)

    def _control_of(self, record: Record) -> JobControl:
        limit, clock = self.spec.options.time_limit, self._runtime.clock
        control = JobControl(
            name=self.name,
            method=self.method,
            caller=record.caller,
            attempt=record.attempt,
            publish=self._report,
            recall=self.spec.unpack_metadata,
            seen=record.metadata,
            clock=clock,
            stop_at=None if limit is None else clock() + limit.total_seconds(),
            domain=self._runtime.domain,
            awaits=self.is_async,
            remember=self._checkpoints,
        )
        self._control = control
        if record.cancel_requested or self._asked:  # a stop was requested after the claim
            control.stop()
        return control

    def _too_late(self) -> Outcome | None:
        error = too_late(self._record, self._runtime.store)
        if error is None:
            return None
        status = self.spec.types.status_of(error, self._runtime.domain)
        return FinalResult(status, expired=True)

    def _read_request(self) -> Outcome | None:
        """Read the stored request; return the outcome of the attempt if this is impossible."""
        spec, packed = self.spec, self._packed
        assert packed is not None  # every claim returns the stored request
        try:
            self._request, self._packed = spec.types.unpack_request(packed, spec.request), None
        except Exception as exc:  # maybe stored by another version of the method
            if spec.types.present_name(packed.type_name) != spec.types.name_of(spec.request):
                line = "%s: this process cannot read its request, a %s: left to others"
                log.warning(line, self.name, packed.type_name, extra=self._facts)
                self._holder.skip(self.name)
                return "released"
            line = "%s: its stored request cannot be read: %s"
            log.error(line, self.name, loggable(exc), extra=self._facts)
            text = "the stored request of the operation cannot be read"
            return FinalResult(internal(spec, self._runtime.domain, text, UNREADABLE))
        return None

    # -- call ---------------------------------------------------------------------------------

    def _call(self, through: RemoteCall | None) -> Outcome:
        """Call the function in this thread, or ``through`` another process."""
        spec, control = self.spec, self._control
        assert control is not None  # the attempt has begun
        function: Any = spec.function
        try:
            if through is not None:
                return FinalResult(spec.pack_response(through(spec, self._request, control)))
            with control:
                if spec.around is None and not self._runtime.surroundings:
                    return FinalResult(spec.pack_response(function(*self._arguments(control))))
                with contextlib.ExitStack() as stack:
                    for surrounding in self._runtime.surroundings:
                        stack.enter_context(surrounding())
                    stack.enter_context(spec.surroundings(control.job))
                    return FinalResult(spec.pack_response(function(*self._arguments(control))))
        except BaseException as exc:  # SystemExit too: it ends the job, not the thread
            self._raise_if_interrupted(exc)
            return self._failure(control, exc)

    async def _await(self, watch: LoopWatch | None) -> Outcome:
        """Await the function on this event loop, at most for the time limit."""
        import asyncio

        control, loop, this = self._control, asyncio.get_running_loop(), asyncio.current_task()
        assert control is not None  # the attempt has begun
        assert this is not None  # a coroutine runs in a task
        coroutine = self._awaited(control)
        # A cancellation of a task of its own does not come from a loop that ends.
        task = this if watch is not None else loop.create_task(coroutine)
        self._awaited_by = loop, task
        limit = self.spec.options.time_limit
        timer = None if limit is None else _Timer(loop, limit.total_seconds(), task)
        outcome: Outcome | None = None
        try:
            if watch is None:
                outcome = await task
            else:
                returned = await _watched(coroutine, watch.suspended)
                if this.cancelling():  # perhaps by the last step of the function
                    await asyncio.sleep(0)  # raises that cancellation here, not in a write
                outcome = returned
        except asyncio.CancelledError:
            if this.cancelling() if watch is None else watch.loop_ends():
                return "released"
        except GeneratorExit:  # the event loop was closed
            self._ask(StopRequest.RELEASE)
            with contextlib.suppress(RuntimeError):  # the function awaits during its cleanup
                coroutine.close()
            raise
        finally:
            self._awaited_by = None
            if timer is not None:
                timer.cancel()
        if timer is not None and timer.late and (outcome is None or _has_failed(outcome)):
            return self._failure(control, overdue())
        if outcome is None:  # cancelled by a caller, or by the function by mistake
            error = Cancelled() if control.cancel_requested else asyncio.CancelledError()
            return self._failure(control, error)
        return outcome

    async def _awaited(self, control: JobControl) -> Outcome:
        import asyncio

        spec = self.spec
        function: Any = spec.function
        try:
            control.raise_if_cancelled()
            with control:
                if spec.around is None:
                    result = await function(*self._arguments(control))
                    return FinalResult(spec.pack_response(result))
                with spec.surroundings(control.job):
                    result = await function(*self._arguments(control))
                    return FinalResult(spec.pack_response(result))
        except asyncio.CancelledError:
            raise
        except BaseException as exc:  # SystemExit too: it ends the job, not the event loop
            if isinstance(exc, GeneratorExit) and not self._awaited_here:
                raise  # not the function's error: the event loop was closed
            self._raise_if_interrupted(exc)
            return self._failure(control, exc)

    @property
    def _awaited_here(self) -> bool:
        """True if the task of the function runs now; otherwise its coroutine is being closed."""
        import asyncio

        awaited = self._awaited_by
        return event_loop_runs() and awaited is not None and asyncio.current_task() is awaited[1]

    def _raise_if_interrupted(self, error: BaseException) -> None:
        """Have the work released, and raise the error, if a signal raised it, as Ctrl-C does."""
        if interrupts(error):
            self.release_later()
            raise error

    def _arguments(self, control: JobControl) -> tuple[object, ...]:
        return (self._request, Job(control)) if self.spec.takes_job else (self._request,)

    def _failure(self, control: JobControl, error: BaseException) -> Outcome:
        self._end_forked(error)
        if isinstance(error, AttemptEnded):
            return error.ending
        if isinstance(error, WorkerDied):
            log.error("%s: attempt %d: %s", *_named(control), error, extra=self._facts)
            return "lost"
        if isinstance(error, Cancelled) and self.release_requested:
            return "released"
        return failure(self.spec, self._runtime.domain, control, error)

    def _end_forked(self, error: BaseException | None = None) -> None:
        """End this process if it is a child that the function has forked.

        The function has returned in the child, too. Only the parent process goes on.
        """
        if self._process == self._holder.process:
            return
        code = error.code if isinstance(error, SystemExit) else int(error is not None)
        if code:
            line = "%s: its function forked a process and failed there"
            log.error(line, self.name, exc_info=error, extra=self._facts)
        os._exit(code if isinstance(code, int) else int(code is not None))

    # -- report -------------------------------------------------------------------------------

    def _report(self, control: JobControl, metadata: object) -> Flow[None]:
        attempt, packed = control.attempt, self.spec.pack_metadata(metadata)
        yield from self._accepted(control, "metadata", self._store_report, attempt, packed)
        reported = MetadataReported(name=self.name, method=self.spec.full_name, attempt=attempt)
        self._runtime.events.emit(reported)

    def _store_report(self, attempt: int, packed: AnyMessage) -> Flow[Record | None]:
        now = self._runtime.store.now()
        change = report(packed, attempt, now)
        return self._runtime.updater.applied(self.name, change, self.spec.stamp)

    def _accepted(
        self,
        control: JobControl,
        what: str,
        action: Callable[P, Flow[T]],
        *args: P.args,
        **more: P.kwargs,
    ) -> Flow[T]:
        """Make a call of the store that only the current attempt may make.

        Raises:
            Cancelled: The store is unavailable, and this process is stopping.
            LeaseLost: Another worker has the operation, or the operation has ended.
        """
        attempt = control.attempt
        try:
            return (yield from self._once_available(action, *args, **more))
        except Unavailable as exc:  # no retry: this process is stopping
            raise Cancelled() from exc
        except (LeaseLost, NotApplied, OperationNotFound) as exc:
            if not control.ended:  # otherwise this attempt itself has ended meanwhile
                self._refused(attempt, f"{what} of attempt {attempt}", exc)
            if isinstance(exc, LeaseLost):
                raise
            raise LeaseLost(self.name, attempt, attempt) from exc

    # -- checkpoints --------------------------------------------------------------------------

    def _checkpoints(self, control: JobControl) -> Checkpoints:
        load = functools.partial(self._load, control) if control.attempt > 1 else None
        keep = functools.partial(self._keep, control)
        return Checkpoints(self.spec.types, self.spec.limits, keep, load)

    def _keep(self, control: JobControl, key: str, value: AnyMessage) -> Flow[None]:
        write = CheckpointWrite(self._runtime.store, self.name, control.attempt, key, value)
        return self._accepted(control, f"checkpoint {key!r}", only, write)

    def _load(self, control: JobControl) -> Flow[Mapping[str, AnyMessage]]:
        store = self._runtime.store
        read = MayBlock(functools.partial(store.checkpoints, self.name), blocks=store.writes_block)
        return self._accepted(control, "what is read", only, read)

    # -- end ----------------------------------------------------------------------------------

    def _finish(self, outcome: Outcome) -> Flow[None]:
        """Store the outcome of the function, and forget the attempt.

        If the event loop ends before the outcome was handed to the store, a thread stores it.
        """
        if self._process != self._holder.process:
            self._end_forked()
        try:
            with self._lock:
                self._become(Phase.ENDING)
            assert self._control is not None  # set before the function was called
            self._control.end()
            yield from self._store(outcome)
        except GeneratorExit:
            CONTINUATIONS.run_soon(lambda *_: run(self._finish(outcome)), None, None)
            raise
        except BaseException:
            self._holder.remove(self)
            raise
        self._holder.remove(self)

    def _store(self, outcome: Outcome, *, may_fail: bool = True) -> Flow[None]:
        """Store the outcome of the attempt; if a defect prevents that, store INTERNAL instead.

        Raises:
            Exception: Storing INTERNAL failed, too (``may_fail`` is false), or the attempt is over.
        """
        attempt = self._record.attempt
        try:
            if isinstance(outcome, FinalResult):
                yield from self._write_end(attempt, outcome)
            elif outcome == "released":
                yield from self.release()
            elif outcome == "lost":
                yield from self._once_available(self._store_loss)
        except (NotApplied, OperationNotFound, LeaseLost) as exc:
            self._refused(attempt, f"the result of attempt {attempt}", exc)
        except Unavailable as exc:
            line = "%s: its result could not be stored: %s"
            log.warning(line, self.name, exc, extra=self._facts)
        except Exception:  # a defect: without a result, the operation would never end
            if self.over or not may_fail:
                raise
            line = "%s: attempt %d: its outcome cannot be stored"
            log.exception(line, self.name, attempt, extra=self._facts)
            text = "the outcome of the method cannot be stored"
            status = internal(self.spec, self._runtime.domain, text, "METHOD_FAILED")
            yield from self._store(FinalResult(status), may_fail=False)
        if not self.over:
            self._end_as(Phase.SUPERSEDED)

    def _store_loss(self) -> Flow[None]:
        after = yield from store_loss(self._runtime, self.spec, self._record)
        self._end_as(Phase.LOST)
        emit_stored_end(self._runtime.events, after)
        self._holder.announce_work()

    def _write_end(self, attempt: int, ending: FinalResult) -> Flow[None]:
        """Store the end of the operation, or, if the failed work is retried, the failure.

        The result and the final metadata are stored in one write (spec §2.2). If the result cannot
        be encoded or stored, the operation ends with INTERNAL, or with the status of
        :class:`MessageTooLarge`.

        Raises:
            NotApplied, OperationNotFound: The operation has ended already, or was deleted.
            LeaseLost: Another worker has the operation.
            Unavailable: The store is unavailable, and this process is stopping.
        """
        spec, domain, failure = self.spec, self._runtime.domain, ending.failure
        if failure is not None and failure.again:
            due = self._due_again(failure)
            if isinstance(due, datetime):
                yield from self._once_available(self._store_retry, ending, due)
                return
            line = "%s: attempt %d raised %s: no further attempt is allowed: %s"
            log.error(line, self.name, attempt, failure.error, due, extra=self._facts)
        try:
            self.ended = yield from self._once_available(self._store_end, attempt, ending)
        except Exception as exc:
            if isinstance(exc, LroError) and not isinstance(exc, InvalidArgument):
                raise  # InvalidArgument: no store could keep this result
            line = "%s: attempt %d: its result could not be written"
            log.exception(line, self.name, attempt, extra=self._facts)
            text, why = "the result of the method cannot be encoded", EncodingError.reason
            if isinstance(exc, FinalMetadataFailed):
                text, why = "the final metadata of the method cannot be made", "METHOD_FAILED"
            instead = FinalResult(internal(spec, domain, text, why))
            if isinstance(exc.__cause__, MessageTooLarge):
                instead = FinalResult(spec.types.status_of(exc.__cause__, domain))
            ending, store = instead, functools.partial(self._store_end, final_metadata=False)
            self.ended = yield from self._once_available(store, attempt, ending)
        self._observe_end(ending)

    def _due_again(self, failure: Failure) -> datetime | str:
        """Return the time of the retry after this failure, or the limit that ends the operation."""
        record, options = self._record, self.spec.options
        if record.attempt >= options.max_attempts:
            return f"max_attempts={options.max_attempts}"
        now, retry, failures = self._runtime.store.now(), options.retry, record.failure_count + 1
        if failure.after is not None:
            due = now + timedelta(seconds=failure.after)
        else:
            assert retry is not None  # without `after`, only an error that `retry` covers gets here
            due = now + retry.pause(failures)
        if retry is None:
            return due
        if failures >= retry.attempts:
            return f"attempts={retry.attempts}"
        began = record.start_time or record.create_time  # a claim keeps the first start time
        if retry.within is not None and due - began > retry.within:
            return f"the next one would begin after the end of within={retry.within}"
        return due

    def _store_retry(self, ending: FinalResult, due: datetime) -> Flow[None]:
        assert ending.failure is not None  # only failed work is retried
        failed = self._failed(ending.failure)
        after = yield from store_retry(self._runtime, self.spec, self._record, failed, due)
        if after is None:  # the record was deleted
            self._observe_end(ending)
        elif after.done:  # a caller cancelled the operation
            self._end_as(_ENDS[after.state], error_type(after.result))
        else:
            line = "%s: attempt %d raised %s: retried at %s"
            said = self.name, failed.attempt, failed.error, due.isoformat(" ", "milliseconds")
            log.info(line, *said, extra=self._facts)
            self._end_as(Phase.RETRIED, error_type(ending.result))
        emit_stored_end(self._runtime.events, after)
        self._holder.announce_work()

    def _failed(self, failure: Failure) -> FailedAttempt:
        now = self._runtime.store.now()
        return FailedAttempt(self._record.attempt, now, failure.error, failure.text)

    def _store_end(
        self, attempt: int, ending: FinalResult, *, final_metadata: bool = True
    ) -> Flow[Record | None]:
        spec, updater = self.spec, self._runtime.updater
        change = end(
            ending.result,
            now=self._runtime.store.now(),
            keep_for=spec.keep_for,
            attempt=attempt,
            acknowledge=ending.acknowledge,
        )
        if ending.failure is not None:
            change = with_failure(change, self._failed(ending.failure))
        if final_metadata and spec.options.final_metadata is not None:
            return updater.ended(spec, self.name, change, ending.state)
        return updater.applied(self.name, change, spec.stamp)

    def _once_available(
        self, action: Callable[P, Flow[T]], *args: P.args, **more: P.kwargs
    ) -> Flow[T]:
        """Call the store, and retry for as long as it is unavailable.

        The number of tries has no limit: a process that gave up would keep its lease, and so keep
        an operation that no thread works on.

        Raises:
            Unavailable: The store is unavailable, and the attempt was asked to release the work.
        """
        pause, said = _FIRST_PAUSE_SECONDS, False
        while True:
            try:
                return (yield from action(*args, **more))
            except Unavailable as exc:
                if self.release_requested:
                    raise
                if not said:
                    line = "%s: retried until the store is available: %s"
                    log.warning(line, self.name, exc, extra=self._facts)
                said = True
            yield Pause(pause)
            pause = min(2 * pause, _MAX_PAUSE_SECONDS)

    # -- to observers -------------------------------------------------------------------------

    @property
    def _facts(self) -> Mapping[str, object]:
        return about(self.name, self.spec.full_name, self._record.attempt)

    def _refused(self, attempt: int, what: str, error: LroError) -> None:
        log.warning("%s: %s was refused: %s", self.name, what, error, extra=self._facts)
        refused = WriteRefused(name=self.name, method=self.spec.full_name, attempt=attempt)
        self._runtime.events.emit(refused)

    def _observe_begin(self, control: JobControl) -> None:
        events, record = self._runtime.events, self._record
        if self._request is None:  # else the start has just refreshed the tracer
            events.tracer.refresh()
        began_at = self._runtime.clock()
        waited: float | None = None
        if record.attempt == 1 and record.start_time is not None:
            waited = max(0.0, (record.start_time - record.create_time).total_seconds())
        if events.tracer.on:
            control.trace = self._trace = events.tracer.begin_attempt(record)
        events.emit_begin(record, waited)
        with self._lock:
            self._began_at, over = began_at, self.over
        if over:  # released meanwhile: the release could not yet report the end
            self._end_as(self._phase)

    def _end_as(self, phase: Phase, why: str = "") -> None:
        """Change to a final phase, and report the end once, if the beginning was reported."""
        with self._lock:
            self._become(phase)
            began_at, self._began_at = self._began_at, None
        if began_at is None:
            return
        outcome = _OUTCOMES[phase]
        if self._trace is not NO_ATTEMPT_TRACE:
            self._trace.end(outcome, why)
        seconds = self._runtime.clock() - began_at
        self._runtime.events.emit_over(self._record, outcome, seconds, why)

    def _observe_end(self, ending: FinalResult) -> None:
        after = self.ended
        if after is None:  # record deleted: only the events show the end
            end_time = max(self._runtime.store.now(), self.create_time)
            fields = {"state": ending.state, "result": ending.result, "end_time": end_time}
            after = self._record.next_version(**fields)
        self._end_as(_ENDS[after.state], error_type(after.result))
        self._runtime.events.emit_end(after, expired=ending.expired)


@types.coroutine
def _watched(
    coroutine: Coroutine[Any, Any, T], suspended: Callable[[], None]
) -> Generator[Any, Any, T]:
    """Await a coroutine, and call ``suspended`` if its first step does not end it."""
    try:
        awaited = coroutine.send(None)
    except StopIteration as end:
        returned: T = end.value
        return returned
    suspended()
    while True:
        try:
            yield awaited
        except GeneratorExit:
            coroutine.close()
            raise
        except BaseException as exc:
            try:
                awaited = coroutine.throw(exc)
            except StopIteration as end:
                returned = end.value
                return returned
        else:
            break
    return (yield from coroutine.__await__())


def _has_failed(outcome: Outcome) -> bool:
    return isinstance(outcome, FinalResult) and outcome.state is not State.SUCCEEDED


class _Timer:
    """Cancels a task after its time limit."""

    late = False
    """True if the task was still running at the limit."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, seconds: float, task: asyncio.Task[Outcome]
    ) -> None:
        self._task = task
        self.cancel = loop.call_later(seconds, self._over).cancel

    def _over(self) -> None:
        self.late = self._task.cancel()  # False if the task has ended


# -- outcomes of a function's error ---------------------------------------------------------------


def failure(spec: MethodSpec, domain: str, control: JobControl, error: BaseException) -> Outcome:
    """Return the outcome of an attempt whose function raised ``error``.

    An error of ``lro`` keeps its code and text; any other error becomes INTERNAL for callers.
    """
    try:
        outcome = _outcome(spec, domain, control, error)
        if isinstance(outcome, FinalResult):
            spec.limits.check_result(outcome.result)
            if not isinstance(error, _NEVER_RETRIED):
                outcome = attrs.evolve(outcome, failure=_failure_of(spec.options, error))
        return outcome
    except MessageTooLarge as exc:
        line = "%s: attempt %d: its error: %s"
        log.error(line, *_named(control), exc, exc_info=error, extra=facts_of(control))
        return FinalResult(spec.types.status_of(exc, domain))
    except EncodingError as exc:
        return _outcome(spec, domain, control, exc)
    except BaseException:  # raised by code of the application's error class, such as __str__
        line = "%s: attempt %d: its error cannot be described"
        log.exception(line, *_named(control), extra=facts_of(control))
        text = "the method failed with an error that cannot be described"
        return FinalResult(internal(spec, domain, text, "METHOD_FAILED"))


def internal(spec: MethodSpec, domain: str, text: str, reason: str) -> Status:
    """Return the status INTERNAL with this text, which must not reveal internals."""
    return spec.types.status_of(StatusError(Code.INTERNAL, text, why=reason), domain)


def _outcome(spec: MethodSpec, domain: str, control: JobControl, error: BaseException) -> Outcome:
    if isinstance(error, LeaseLost):
        log.warning("%s: %s", control.name, error, extra=facts_of(control))
        return "superseded"
    if isinstance(error, Cancelled):
        status = spec.types.status_of(Cancelled(), domain)
        return FinalResult(status, acknowledge=control.cancel_requested)
    if isinstance(error, EncodingError):
        line = "%s: attempt %d: %s"
        said = loggable(error)
        log.error(line, *_named(control), said, exc_info=said, extra=facts_of(control))
        if isinstance(error, MessageTooLarge):  # callers may see the error's text
            return FinalResult(spec.types.status_of(error, domain))
        what = "metadata" if error.type_name == spec.info.metadata_type else "result"
        text = f"the {what} of the method cannot be encoded"
        return FinalResult(internal(spec, domain, text, error.reason))
    if isinstance(error, LroError):
        status = spec.types.status_of(error, domain)
        if status.code != Code.OK:
            return FinalResult(status)
    line = "%s: attempt %d failed"
    level = logging.WARNING if _failure_of(spec.options, error).again else logging.ERROR
    log.log(level, line, *_named(control), exc_info=error, extra=facts_of(control))
    text = "the method failed with an internal error"
    return FinalResult(internal(spec, domain, text, "METHOD_FAILED"))


def _failure_of(options: Options, error: BaseException) -> Failure:
    after = error.retry_after.total_seconds() if isinstance(error, RetryLater) else None
    named = options.retry is not None and options.retry.covers(error)
    again = (named or after is not None) and not isinstance(error, EncodingError)
    try:
        text = failure_text(str(loggable(error)))
    except BaseException:  # str() of the application's error may raise even SystemExit
        text = ""
    again = again and not options.at_most_once
    return Failure(type(error).__qualname__, text, again, after)


def _named(control: JobControl) -> tuple[str, int]:
    return control.name, control.attempt


def facts_of(control: JobControl) -> Mapping[str, object]:
    """Return the ``extra`` of log lines about an attempt."""
    return about(control.name, control.method, control.attempt)
