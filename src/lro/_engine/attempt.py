"""One attempt at one operation: call the function, report, write how it ended.

The life of an attempt is a table, ``NEXT``: each state of ``Life`` with the states that may follow.
Two threads change it: the one that does the work, and one that stops the process and hands back
what has not ended. So a change may come too late; then ``Attempt._become`` refuses it, and the
first one counts. Any thread may ask an attempt to stop, in any state, and what is asked only rises:
``StopRequest``. One lock guards both, so that no function is entered once its work is to be handed
back.
"""

from __future__ import annotations

import contextlib
import contextvars
import enum
import functools
import logging
import os
import threading
from collections.abc import Callable, Collection, Coroutine, Mapping
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
    loggable,
)
from lro._base.status import AnyMessage, Code, Status
from lro._engine.endings import emit_stored_end, store_loss, store_retry, store_stop, too_late
from lro._engine.events import (
    AttemptBegan,
    AttemptOver,
    MetadataReported,
    WriteRefused,
    about,
    emit_end,
    error_type,
)
from lro._engine.executor_port import RemoteCall
from lro._engine.flow import CheckpointWrite, Flow, MayBlock, Pause, on_loop, only, run
from lro._engine.job import (
    NO_ATTEMPT_TRACE,
    AttemptEnded,
    AttemptOutcome,
    AttemptTrace,
    Checkpoints,
    Failure,
    FinalResult,
    JobControl,
    Outcome,
    WorkerDied,
    current_job,
    enter_job,
    event_loop_runs,
    overdue,
)
from lro._engine.method_spec import FinalMetadataFailed, MethodSpec, Options
from lro._engine.runtime import Runtime
from lro._engine.store_port import SUSPECT, WORK_WAITS
from lro._model.operation import (
    FailedAttempt,
    Record,
    State,
    end,
    failure_text,
    note_start,
    report,
    with_failure,
)

if TYPE_CHECKING:
    import asyncio

log = logging.getLogger("lro")

P = ParamSpec("P")
T = TypeVar("T")

_FIRST_PAUSE_SECONDS: Final = 0.05
_MAX_PAUSE_SECONDS: Final = 1.0
"""The first and the longest pause before a store that is away is asked again."""
_LEFT_AT_MOST: Final = 1_000
"""How many operations a process remembers that it leaves to others."""

_NEVER_RETRIED: Final = (Cancelled, LeaseLost)
"""What no method retries, whatever ``Retry.on`` says: the work is to stop."""


class Life(enum.Enum):
    """Where in its life an attempt is. What is over has the outcome as its value."""

    __hash__ = object.__hash__  # a member is one object; Enum's own hash is a call in Python

    CLAIMED = "claimed"
    """This process has it, and no worker has begun it."""
    BEGINNING = "beginning"
    """A worker makes ready what the function is given."""
    RUNNING = "running"
    """The function may have been entered."""
    ENDING = "ending"
    """The function has ended, and how is being stored."""
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    RETRIED = "retried"
    RELEASED = "released"
    LOST = "lost"
    SUPERSEDED = "superseded"


_ENDS: Final[Mapping[State, Life]] = {
    State.SUCCEEDED: Life.SUCCEEDED,
    State.FAILED: Life.FAILED,
    State.CANCELLED: Life.CANCELLED,
}
_ENDED: Final = frozenset(_ENDS.values())

NEXT: Final[Mapping[Life, frozenset[Life]]] = {
    Life.CLAIMED: _ENDED | {Life.BEGINNING, Life.RELEASED, Life.SUPERSEDED},
    Life.BEGINNING: _ENDED | {Life.RUNNING, Life.RELEASED, Life.SUPERSEDED},
    Life.RUNNING: _ENDED | {Life.ENDING, Life.RELEASED},
    Life.ENDING: _ENDED | {Life.RETRIED, Life.RELEASED, Life.LOST, Life.SUPERSEDED},
    Life.SUCCEEDED: frozenset(),
    Life.FAILED: frozenset(),
    Life.CANCELLED: frozenset(),
    Life.RETRIED: frozenset(),
    Life.RELEASED: frozenset(),
    Life.LOST: frozenset(),
    # The store may refuse a result before the thread that has handed the work back knows it.
    Life.SUPERSEDED: frozenset({Life.RELEASED}),
}
"""Which states may follow each."""
_UNDER_WAY: Final = frozenset({Life.CLAIMED, Life.BEGINNING, Life.RUNNING, Life.ENDING})


class StopRequest(enum.IntEnum):
    """Requests to stop an attempt: the highest one counts."""

    NOTHING = 0
    CANCEL = 1
    """To stop, since a caller has asked for that."""
    HAND_BACK = 2
    """To stop, so that another process does the work."""


class HeldWork:
    """The attempts of this process, by the names of their operations.

    ``claim_soon`` and ``renew_soon`` wake the threads of the process that do so.
    """

    def __init__(
        self, runtime: Runtime, claim_soon: Callable[[], None], renew_soon: Callable[[], None]
    ) -> None:
        self.runtime = runtime
        self._claim_soon = claim_soon
        self._renew_soon = renew_soon
        self.reset_after_fork()

    def reset_after_fork(self) -> None:
        """Hold nothing: the parent process has all work."""
        self.process: int = os.getpid()
        # Where garbage is collected while it is held, a coroutine may be closed that retires work.
        self._lock = threading.RLock()
        self._attempts: dict[str, Attempt] = {}
        self._abandoned: list[Attempt] = []
        self.left: set[str] = set()
        """The names of the operations that are left to processes of another release."""

    def attempts(self) -> Collection[Attempt]:
        """The attempts that this process has begun."""
        with self._lock:
            return list(self._attempts.values())

    def held(self) -> frozenset[str]:
        """The names of the operations whose work this process has."""
        if not self._attempts:
            return frozenset()
        with self._lock:
            return frozenset(self._attempts)

    def leave(self, name: str) -> None:
        """Leave an operation to processes of another release, which know its request."""
        if len(self.left) >= _LEFT_AT_MOST:
            self.left.clear()
        self.left.add(name)

    def work_waits(self) -> None:
        """Have waiting work claimed: by this process, or by another one that has a free worker."""
        self.runtime.store.notify_others(WORK_WAITS)
        self._claim_soon()

    def abandon(self, attempt: Attempt) -> None:
        """Hand back soon what cannot go on here."""
        with self._lock:
            self._abandoned.append(attempt)
        self._renew_soon()

    def retire(self, attempt: Attempt) -> None:
        """Forget an attempt that is over."""
        with self._lock:
            # Not a later one, begun after a lost lease.
            if self._attempts.get(attempt.name) is attempt:
                del self._attempts[attempt.name]
        if attempt.spec.options.concurrency is not None:  # it may be the turn of another one
            self.work_waits()
        elif attempt.suspect:
            self._claim_soon()


class Attempt:
    """A task for an executor: one attempt at an operation, from its claim to its result.

    ``record`` is the operation as it is claimed for this process. ``request`` is the message, where
    this process has it still; else ``packed`` is the stored request.
    """

    ended: Record | None = None
    """What this attempt has stored as the end of the operation."""
    _life = Life.CLAIMED
    _asked = StopRequest.NOTHING
    _control: JobControl | None = None
    _awaited_by: tuple[asyncio.AbstractEventLoop, asyncio.Task[Outcome]] | None = None
    """The loop that awaits the function, and the task in which it does."""
    _began_at: float | None = None
    """When it began, in seconds of the runtime's clock, if its end is to be reported."""
    _trace: AttemptTrace = NO_ATTEMPT_TRACE

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
        if record.method != spec.full_name:  # an earlier release has stored it
            record = attrs.evolve(record, method=spec.full_name)
        self._record = record
        self._request = request
        self._packed = packed
        self._lock = threading.RLock()  # an executor may do the work in the thread that stops it

    def _become(self, life: Life) -> bool:
        """Go on to this state if the table allows it; return if so. The caller has the lock."""
        allowed = life in NEXT[self._life]
        if allowed:
            self._life = life
        return allowed

    def _ask(self, what: StopRequest) -> None:
        with self._lock:
            self._asked = max(self._asked, what)

    # -- by the workers -----------------------------------------------------------------------

    @property
    def executing(self) -> bool:
        """Whether a worker has begun it."""
        return self._control is not None

    @property
    def start_unseen(self) -> bool:
        """True if metadata has a field for the start time, and the claim has not filled it."""
        return self.spec.stamp(self._record) is not self._record

    @property
    def over(self) -> bool:
        """True if the attempt has ended, was handed back, or was lost."""
        return self._life not in _UNDER_WAY

    def show_start(self, missed: Callable[[], object] | None = None) -> None:
        """Have metadata say soon when the work began, unless that is shown or the work is over.

        ``missed`` is called if the store is away.
        """
        if not self.over and self.start_unseen:
            change = note_start(self._record.attempt, self.spec.stamp)
            self._runtime.updater.apply_later(self.name, change, missed)

    @property
    def suspect(self) -> bool:
        """Whether this work may be what has killed its workers."""
        return self._record.lost_attempts >= SUSPECT

    def cancel(self) -> None:
        """Pass a stored request to cancel on to the function, if it runs.

        The function is asked once: the same request is found again by each renewal of the lease
        and each look at the store, and a function that is tidying up must not be interrupted. The
        caller, the listener and the renewal may come at once: each waits until this is done.
        """
        with self._lock:
            self._ask(StopRequest.CANCEL)
            control = self._control
            if control is None or control.cancel_requested:
                return
            control.stop()  # first: a coroutine that begins just now looks at it
            awaited = self._awaited_by
            if awaited is not None:
                loop, task = awaited
                with contextlib.suppress(RuntimeError):  # the loop is closed: the function is over
                    loop.call_soon_threadsafe(task.cancel)

    def give_up(self) -> None:
        """Stop the work, which then hands itself back."""
        self._ask(StopRequest.HAND_BACK)
        self.cancel()

    def abandon(self) -> None:
        """Have the work handed back, which cannot go on here."""
        self._ask(StopRequest.HAND_BACK)
        self._holder.abandon(self)

    @property
    def given_up(self) -> bool:
        """True if other processes are to do the work."""
        return self._asked is StopRequest.HAND_BACK

    @property
    def handed_back(self) -> bool:
        """True if the store says that other processes are to do the work."""
        return self._life is Life.RELEASED

    def end_refused(self) -> None:
        """End with INTERNAL what the executor has failed to take."""
        text = "the executor could not take the work of the method"
        status = internal(self.spec, self._runtime.domain, text, "METHOD_FAILED")
        try:
            run(self._store(FinalResult(status)))
        finally:
            self._holder.retire(self)

    def released(self) -> Flow[None]:
        """Hand the operation back for other processes to do.

        While the store is away, the work stops, and hands itself back.
        """
        self._ask(StopRequest.HAND_BACK)
        begun = self._life not in (Life.CLAIMED, Life.BEGINNING)
        try:
            after = yield from store_stop(self._runtime, self.spec, self._record, begun=begun)
            if after is not None and after.done:
                self._be_over(_ENDS[after.state], error_type(after.result))
            else:
                self._be_over(Life.RELEASED)
            emit_stored_end(self._runtime.events, after)
            self._holder.work_waits()
        except (NotApplied, LeaseLost, OperationNotFound):
            pass  # it is over, or another process has it
        except Exception as exc:  # found when the lease is over with which it was begun
            log.error("%s: could not be handed back: %s", self.name, exc, extra=self._facts)
        self.cancel()

    # -- by the executor ----------------------------------------------------------------------

    def run(self, through: RemoteCall | None = None) -> None:
        """Do the work in this thread; an async function gets an event loop of its own.

        The function itself may be called ``through`` another process. It has a context of its own:
        it sees no context variable of the caller, or of the work before it in this thread.
        """
        contextvars.Context().run(self._run, through)

    def _run(self, through: RemoteCall | None) -> None:
        try:
            if self.is_async and through is None:
                import asyncio  # with the first coroutine: it is half of the cost of importing lro

                asyncio.run(self._do(at_once=True))
            elif control := run(self._begin()):
                run(self._finish(self._call(control, through)))
        finally:
            self._holder.retire(self)

    def arun(self) -> Coroutine[Any, Any, None]:
        """Do the work of an async function on this event loop."""
        # What holds up no loop is done at once, which takes less than a change of coroutines.
        return self._do(at_once=not self._runtime.store.writes_block, retire=True)

    async def _do(self, *, at_once: bool, retire: bool = False) -> None:
        """Begin, await the function, and end; ``at_once``: no other work waits meanwhile."""
        try:
            control = run(self._begin()) if at_once else await on_loop(self._begin())
            if control is None:
                return
            finish = self._finish(await self._await(control))
            if at_once:
                run(finish)
            else:
                await on_loop(finish)
        finally:
            if retire:
                self._holder.retire(self)

    # -- begin --------------------------------------------------------------------------------

    def _begin(self) -> Flow[JobControl | None]:
        """Make ready what the function is given; None if it is not to be called."""
        with self._lock:
            if not self._become(Life.BEGINNING):  # it was handed back before a worker came to it
                return None
        control = self._control_of(self._record)
        self._observe_begin(control)
        if not self.given_up:
            if control.cancel_requested:
                yield from self._store(self._failure(control, Cancelled()))
                return None
            if self._record.begin_before is not None:
                error = too_late(self._record, self._runtime.store)
                if error is not None:
                    status = self.spec.types.status_of(error, self._runtime.domain)
                    yield from self._store(FinalResult(status, expired=True))
                    return None
            if self._request is None and not (yield from self._read_request()):
                return None
            with self._lock:  # a request to hand it back comes before this or after
                if not self.given_up and self._become(Life.RUNNING):
                    return control
        yield from self.released()
        return None

    def _control_of(self, record: Record) -> JobControl:
        limit, clock = self.spec.options.time_limit, self._runtime.clock
        control = JobControl(
            name=self.name,
            method=self.spec.full_name,
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
        if record.cancel_requested or self._asked:  # the latter may have come since
            control.stop()
        return control

    def _read_request(self) -> Flow[bool]:
        spec, packed = self.spec, self._packed
        assert packed is not None  # a claim brings the request
        try:
            if spec.types.present_name(packed.type_name) != spec.types.name_of(spec.request):
                line = "%s: its request is a %s, which this process does not read: left to others"
                log.warning(line, self.name, packed.type_name, extra=self._facts)
                self._holder.leave(self.name)
                yield from self.released()
                return False
            self._request, self._packed = spec.types.unpack_request(packed, spec.request), None
        except Exception as exc:  # an older version of the method may have stored it
            line = "%s: its stored request cannot be read: %s"
            log.error(line, self.name, loggable(exc), extra=self._facts)
            text = "the stored request of the operation cannot be read"
            status = internal(spec, self._runtime.domain, text, "REQUEST_UNREADABLE")
            yield from self._store(FinalResult(status))
            return False
        return True

    # -- call ---------------------------------------------------------------------------------

    def _call(self, control: JobControl, through: RemoteCall | None) -> Outcome:
        """Call the function in this thread, or ``through`` another process."""
        function: Any = self.spec.function
        try:
            if through is not None:
                returned = through(self.spec, self._request, control)
                return FinalResult(self.spec.pack_response(returned))
            with current_job(control), self.spec.surroundings(control.job):
                returned = function(*self._arguments(control))
                return FinalResult(self.spec.pack_response(returned))
        except BaseException as exc:  # also SystemExit: it ends the job, no thread
            return self._failure(control, exc)

    async def _await(self, control: JobControl) -> Outcome:
        """Await the function on this event loop, at most until the time limit is over."""
        import asyncio

        loop = asyncio.get_running_loop()
        # In a task of its own, the only one that the function can cancel.
        inner = loop.create_task(self._awaited(control))
        self._awaited_by = loop, inner
        limit = self.spec.options.time_limit
        timer = None if limit is None else _Timer(loop, limit.total_seconds(), inner)
        outcome: Outcome | None = None
        try:
            outcome = await inner
        except asyncio.CancelledError:
            this = asyncio.current_task()
            assert this is not None  # a coroutine runs in a task
            if this.cancelling():  # the event loop is being shut down
                return "released"
        finally:
            self._awaited_by = None
            if timer is not None:
                timer.cancel()
        if isinstance(outcome, str) or (outcome and outcome.state is State.SUCCEEDED):
            return outcome
        if timer is not None and timer.late:
            return self._failure(control, overdue())
        if outcome is None:  # it may also have cancelled itself, which is its own mistake
            error = Cancelled() if control.cancel_requested else asyncio.CancelledError()
            return self._failure(control, error)
        return outcome

    async def _awaited(self, control: JobControl) -> Outcome:
        import asyncio

        function: Any = self.spec.function
        try:
            control.raise_if_cancelled()
            enter_job(control)
            with self.spec.surroundings(control.job):
                returned = await function(*self._arguments(control))
                return FinalResult(self.spec.pack_response(returned))
        except asyncio.CancelledError:
            raise
        except BaseException as exc:  # also SystemExit: it ends the job, no event loop
            if isinstance(exc, GeneratorExit) and not event_loop_runs():
                raise  # not of the function: its loop was closed
            return self._failure(control, exc)

    def _arguments(self, control: JobControl) -> tuple[object, ...]:
        return (self._request, control.job) if self.spec.takes_job else (self._request,)

    def _failure(self, control: JobControl, error: BaseException) -> Outcome:
        self._end_forked(error)
        if isinstance(error, AttemptEnded):
            return error.ending
        if isinstance(error, WorkerDied):
            log.error("%s: attempt %d: %s", *_named(control), error, extra=self._facts)
            return "lost"
        if isinstance(error, Cancelled) and self.given_up:
            return "released"
        return failure(self.spec, self._runtime.domain, control, error)

    def _end_forked(self, error: BaseException | None = None) -> None:
        """End this process if the function has forked it and has left: its parent goes on."""
        if self._process == self._holder.process:
            return
        code = error.code if isinstance(error, SystemExit) else int(error is not None)
        if code:
            line = "%s: its function has left in a process that it has forked"
            log.error(line, self.name, exc_info=error, extra=self._facts)
        os._exit(code if isinstance(code, int) else int(code is not None))

    # -- report -------------------------------------------------------------------------------

    def _report(self, control: JobControl, metadata: object) -> Flow[None]:
        attempt, packed = control.attempt, self.spec.pack_metadata(metadata)
        yield from self._accepted(control, "metadata", self._store_report, attempt, packed)
        if events := self._runtime.events:
            method = self.spec.full_name
            events.emit(MetadataReported(name=self.name, method=method, attempt=attempt))

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
        """Do something with the store that only the current attempt may do.

        Raises:
            Cancelled: The store is away, and this process stops.
            LeaseLost: Another worker has the operation, or it is over.
        """
        attempt = control.attempt
        try:
            return (yield from self._once_available(action, *args, **more))
        except Unavailable as exc:  # the store is not asked again: this process stops
            raise Cancelled() from exc
        except (LeaseLost, NotApplied, OperationNotFound) as exc:
            if not control.is_over:  # else the end of this very attempt has overtaken this
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
        """Store how the function has ended."""
        self._end_forked()
        with self._lock:
            self._become(Life.ENDING)
        assert self._control is not None  # the function was given it
        self._control.over()
        yield from self._store(outcome)

    def _store(self, outcome: Outcome, *, may_fail: bool = True) -> Flow[None]:
        """Store how the attempt has ended; if that fails by a defect, it has ended with INTERNAL.

        Raises:
            Exception: That fails too, and it is over then or it ``may_fail`` no more.
        """
        attempt = self._record.attempt
        try:
            if isinstance(outcome, FinalResult):
                yield from self._write_end(attempt, outcome)
            elif outcome == "released":
                yield from self.released()
            elif outcome == "lost":
                yield from self._once_available(self._store_loss)
        except (NotApplied, OperationNotFound, LeaseLost) as exc:
            self._refused(attempt, f"the result of attempt {attempt}", exc)
        except Unavailable as exc:
            line = "%s: its result could not be stored: %s"
            log.warning(line, self.name, exc, extra=self._facts)
        except Exception:  # a defect: the operation must not stay with a process that does nothing
            if self.over or not may_fail:
                raise
            log.exception("%s: attempt %d: cannot be ended", self.name, attempt, extra=self._facts)
            text = "the method has ended in a way that cannot be stored"
            status = internal(self.spec, self._runtime.domain, text, "METHOD_FAILED")
            yield from self._store(FinalResult(status), may_fail=False)
        if not self.over:
            self._be_over(Life.SUPERSEDED)

    def _store_loss(self) -> Flow[None]:
        after = yield from store_loss(self._runtime, self.spec, self._record)
        self._be_over(Life.LOST)
        emit_stored_end(self._runtime.events, after)
        self._holder.work_waits()

    def _write_end(self, attempt: int, ending: FinalResult) -> Flow[None]:
        """End the operation, with its final metadata, in one step (spec §2.2).

        What cannot be encoded, or kept by the store, ends that operation with INTERNAL, and
        nothing else.

        Raises:
            NotApplied, OperationNotFound: It is over, or was deleted.
            LeaseLost: Another worker has it.
            Unavailable: The store has not come back.
        """
        spec, domain = self.spec, self._runtime.domain
        if (due := self._due_again(ending.failure)) is not None:
            yield from self._once_available(self._store_retry, ending, due)
            return
        if ending.failure is not None and ending.failure.again:
            line = "%s: attempt %d raised %s: no further attempt is allowed"
            log.error(line, self.name, attempt, ending.failure.error, extra=self._facts)
        try:
            self.ended = yield from self._once_available(self._store_end, attempt, ending)
        except Exception as exc:
            if isinstance(exc, LroError) and not isinstance(exc, InvalidArgument):
                raise  # InvalidArgument: no store could keep what the method gave
            line = "%s: attempt %d: its end could not be written"
            log.exception(line, self.name, attempt, extra=self._facts)
            text, why = "what the method gave cannot be encoded", EncodingError.reason
            if isinstance(exc, FinalMetadataFailed):
                text, why = "the last metadata of the method cannot be made", "METHOD_FAILED"
            instead = FinalResult(internal(spec, domain, text, why))
            if isinstance(exc.__cause__, MessageTooLarge):
                instead = FinalResult(spec.types.status_of(exc.__cause__, domain))
            ending, store = instead, functools.partial(self._store_end, final_metadata=False)
            self.ended = yield from self._once_available(store, attempt, ending)
        self._observe_end(ending)

    def _due_again(self, failure: Failure | None) -> datetime | None:
        """When the work is due again after a failed attempt; None if the operation ends."""
        record, options = self._record, self.spec.options
        if failure is None or not failure.again or record.attempt >= options.max_attempts:
            return None
        now, retry, failures = self._runtime.store.now(), options.retry, record.failure_count + 1
        if failure.after is not None:
            due = now + timedelta(seconds=failure.after)
        else:
            assert retry is not None  # its errors name this one
            due = now + retry.pause(failures)
        if retry is None:
            return due
        late = retry.within is not None and due - record.create_time > retry.within
        return None if late or failures >= retry.attempts else due

    def _store_retry(self, ending: FinalResult, due: datetime) -> Flow[None]:
        assert ending.failure is not None  # it is tried again after that
        failed = self._failed(ending.failure)
        after = yield from store_retry(self._runtime, self.spec, self._record, failed, due)
        if after is None:  # it was deleted
            self._observe_end(ending)
        elif after.done:  # a caller has asked for it to stop
            self._be_over(_ENDS[after.state], error_type(after.result))
        else:
            line = "%s: attempt %d raised %s: it is tried again at %s"
            said = self.name, failed.attempt, failed.error, due.isoformat(" ", "seconds")
            log.info(line, *said, extra=self._facts)
            self._be_over(Life.RETRIED, error_type(ending.result))
        emit_stored_end(self._runtime.events, after)
        self._holder.work_waits()

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
        if final_metadata:
            return updater.ended(spec, self.name, change, ending.state)
        return updater.applied(self.name, change, spec.stamp)

    def _once_available(
        self, action: Callable[P, Flow[T]], *args: P.args, **more: P.kwargs
    ) -> Flow[T]:
        """Do something with the store, as often as it takes while the store is unavailable.

        For as long as it takes: after giving up, this process would go on to live, and so to hold
        an operation on which no thread works.

        Raises:
            Unavailable: The store has not come back before the work was to be handed back.
        """
        pause, said = _FIRST_PAUSE_SECONDS, False
        while True:
            try:
                return (yield from action(*args, **more))
            except Unavailable as exc:
                if self.given_up:
                    raise
                if not said:
                    line = "%s: repeated until the store is there: %s"
                    log.warning(line, self.name, exc, extra=self._facts)
                said = True
            yield Pause(pause)
            pause = min(2 * pause, _MAX_PAUSE_SECONDS)

    # -- to observers -------------------------------------------------------------------------

    @property
    def _facts(self) -> Mapping[str, object]:
        return about(self.name, self.spec.full_name, self._record.attempt)

    def _refused(self, attempt: int, what: str, error: LroError) -> None:
        write = WriteRefused(name=self.name, method=self.spec.full_name, attempt=attempt)
        self._runtime.updater.refused(write, what, error)

    def _observe_begin(self, control: JobControl) -> None:
        events, record = self._runtime.events, self._record
        # Where this process has made the start, that has looked just now.
        observed = events if self._request is not None else events.look()
        if events.statistics is None and not observed:
            return
        self._began_at = self._runtime.clock()
        waited: float | None = None
        if record.attempt == 1 and record.start_time is not None:
            waited = max(0.0, (record.start_time - record.create_time).total_seconds())
            if events.statistics is not None:
                events.statistics.note(self.spec.full_name, "queue", "", "", waited)
        if not observed:
            return
        control.trace = self._trace = events.begin_attempt(record)
        events.emit(
            AttemptBegan(
                name=self.name,
                method=self.spec.full_name,
                attempt=record.attempt,
                queue_seconds=waited,
                trace_context=record.trace_context,
            )
        )

    def _be_over(self, life: Life, why: str = "") -> None:
        """Be over, and report it, unless that was done, or the begin was not reported."""
        with self._lock:
            self._become(life)
            began_at, self._began_at = self._began_at, None
        if began_at is None:
            return
        outcome = cast("AttemptOutcome", life.value)
        self._trace.end(outcome, why)
        seconds, events = self._runtime.clock() - began_at, self._runtime.events
        if events.statistics is not None:
            code = why if outcome == "failed" else ""
            events.statistics.note(self.spec.full_name, "attempt", outcome, code, seconds)
        if not events:
            return
        events.emit(
            AttemptOver(
                name=self.name,
                method=self.spec.full_name,
                attempt=self._record.attempt,
                outcome=outcome,
                seconds=seconds,
                error_type=why,
            )
        )

    def _observe_end(self, ending: FinalResult) -> None:
        events = self._runtime.events
        self._be_over(_ENDS[ending.state], error_type(ending.result))
        if events.statistics is None and not events:
            return
        after = self.ended
        if after is None:  # it was deleted: callers do not see its end
            end_time = max(self._runtime.store.now(), self.create_time)
            fields = {"state": ending.state, "result": ending.result, "end_time": end_time}
            after = self._record.next_version(**fields)
        emit_end(events, after, expired=ending.expired)


class _Timer:
    """Cancels a task when its time is over."""

    late = False
    """Whether the task was still going on then."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, seconds: float, task: asyncio.Task[Outcome]
    ) -> None:
        self._task = task
        self.cancel = loop.call_later(seconds, self._over).cancel

    def _over(self) -> None:
        self.late = self._task.cancel()  # false if it has ended


# -- what a function's error leads to -------------------------------------------------------------


def failure(spec: MethodSpec, domain: str, control: JobControl, error: BaseException) -> Outcome:
    """Return how an attempt ends whose function raised ``error``.

    An error of ``lro`` keeps its code and text; of any other error, callers learn only INTERNAL.
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
    except BaseException:  # of the application's error: it has facts of a wrong kind, say
        line = "%s: attempt %d: its error cannot be described"
        log.exception(line, *_named(control), extra=facts_of(control))
        text = "the method failed with an error that cannot be described"
        return FinalResult(internal(spec, domain, text, "METHOD_FAILED"))


def internal(spec: MethodSpec, domain: str, text: str, reason: str) -> Status:
    """Return INTERNAL with this text, which discloses nothing."""
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
        if isinstance(error, MessageTooLarge):  # its text is for callers, too
            return FinalResult(spec.types.status_of(error, domain))
        text = "what the method gave cannot be encoded"
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
    except BaseException:  # also SystemExit, of a class of the application's
        text = ""
    again = again and not options.at_most_once
    return Failure(type(error).__qualname__, text, again, after)


def _named(control: JobControl) -> tuple[str, int]:
    return control.name, control.attempt


def facts_of(control: JobControl) -> Mapping[str, object]:
    """The ``extra`` of log lines about an attempt."""
    return about(control.name, control.method, control.attempt)
