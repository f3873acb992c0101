"""The executor that runs functions in child processes, and supervises each call."""

from __future__ import annotations

import errno
import logging
import os
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Final, Never

from lro._base.arguments import check_count, check_span, refuse_keywords
from lro._base.errors import DeclarationError, LeaseLost, Unavailable
from lro._base.status import AnyMessage
from lro._engine.attempt import facts_of, internal
from lro._engine.executor_port import CancelSupport, Later, Task
from lro._engine.flow import run
from lro._engine.job import AttemptEnded, FinalResult, JobControl, WorkerDied
from lro._engine.method_spec import MethodSpec
from lro._engine.process import is_worker_process
from lro.executors.processes._function_reference import (
    FunctionReference,
    check_importable,
    reference_to,
)
from lro.executors.processes._messages import (
    AttemptReplaced,
    Done,
    Failed,
    FinalMessage,
    FromChild,
    Keep,
    LogLine,
    Ready,
    Report,
    Request,
    RequestAnswer,
    RunFunction,
    Stop,
    Stopped,
    StopReason,
    refusal,
)
from lro.executors.processes._process import LEAVE_SECONDS, ChildPool, ChildProcess
from lro.executors.threads import PooledExecutor, WorkerPlace

log = logging.getLogger("lro")


_CHECK_SECONDS: Final = 1.0
"""Seconds between checks that the child lives.

Its pipe may not show its end, because another process may keep the pipe open.
"""


class CallSupervisor:
    """Runs a call in a child, publishes the reports of the call, and stops the call if necessary.

    A function that must stop is first asked to stop. After ``grace`` seconds it is interrupted, and
    after another ``grace`` seconds its process is killed. If the function ends earlier, its own
    outcome counts.
    """

    def __init__(
        self,
        process: ChildProcess,
        call: RunFunction,
        *,
        spec: MethodSpec,
        control: JobControl,
        grace: float,
    ) -> None:
        self.unusable = True
        """True if the child is dead, busy, or possibly in a broken state after an interrupt."""
        self._interrupted = False
        self._process = process
        self._call = call
        self._spec = spec
        self._control = control
        self._grace = grace
        self._stop_reason: StopReason | None = None
        self._due = 0.0
        self._steps = iter((self._request_stop, self._interrupt, self._kill))

    def response(self) -> AnyMessage:
        """Call the function and return its response.

        Raises:
            AttemptEnded: The function failed, or could not be called.
            Cancelled, DeadlineExceeded: The function was stopped.
            LeaseLost: Another worker has the operation.
            WorkerDied: The child process has ended.
        """
        self._control.on_stop(self._process.wake)
        try:
            self._process.send(self._call)
            while not isinstance(message := self._receive(), FinalMessage):
                self._handle(message)
        except (EOFError, OSError):
            raise self._death() from None
        self.unusable = self._interrupted
        return self._result(message)

    def _receive(self) -> FromChild:
        while True:
            message = self._process.receive(self._escalate())
            if message is None and not self._process.alive:
                message = self._process.receive(0)  # a message that the child sent before it ended
                if message is None:
                    raise EOFError
            if message is not None:
                return message

    # -- stopping -----------------------------------------------------------------------------

    def _escalate(self) -> float:
        """Take the next step of a stop when it is due; return the seconds until the next check."""
        now = time.monotonic()
        if self._stop_reason is None:
            self._stop_reason, self._due = self._reason(now), now
        if self._stop_reason is None:
            limit = self._call.stop_at
            return _CHECK_SECONDS if limit is None else min(_CHECK_SECONDS, limit - now)
        if self._due <= now:
            next(self._steps)()
            self._due = now + self._grace
        return min(_CHECK_SECONDS, self._due - now)

    def _reason(self, now: float) -> StopReason | None:
        if self._control.cancel_requested:
            return StopReason.ASKED
        limit = self._call.stop_at
        return StopReason.OVERDUE if limit is not None and limit <= now else None

    def _request_stop(self) -> None:
        assert self._stop_reason is not None  # the reason is set before any step
        if self._process.still_sending:  # the child has not received all of the call
            self._kill()
        self._process.send(Stop(self._stop_reason))

    def _interrupt(self) -> None:
        line = "%s: attempt %d has not stopped: interrupted"
        log.warning(line, *self._name_and_attempt, extra=facts_of(self._control))
        self._interrupted = True
        self._process.terminate()

    def _kill(self) -> None:
        line = "%s: attempt %d has not stopped: its process is killed"
        log.warning(line, *self._name_and_attempt, extra=facts_of(self._control))
        self._process.kill()
        raise EOFError

    # -- messages of the child ----------------------------------------------------------------

    def _handle(self, message: Ready | LogLine | Request) -> None:
        if isinstance(message, Ready):
            self._process.started = True
        elif isinstance(message, LogLine):
            line = logging.getLogger(message.logger)
            line.log(message.level, "%s", message.text, extra=facts_of(self._control))
        else:
            self._process.send(self._answer(message))

    def _answer(self, request: Request) -> RequestAnswer:
        control = self._control
        try:
            if isinstance(request, Report):
                control.report(self._spec.types.unpack(request.metadata, self._spec.metadata))
            elif isinstance(request, Keep):
                run(control.checkpoints.keep(request.key, request.value))
            elif (load := control.checkpoints.load) is not None:
                return RequestAnswer(request.number, None, dict(run(load())))
        except Exception as exc:  # the child raises this error in the function
            return RequestAnswer(request.number, refusal(exc))
        return RequestAnswer(request.number)

    def _result(self, message: FinalMessage) -> AnyMessage:
        if isinstance(message, Done):
            return message.response
        if isinstance(message, Failed):
            raise AttemptEnded(FinalResult(message.status, failure=message.failure))
        if isinstance(message, Stopped):
            raise message.why.error()
        if isinstance(message, AttemptReplaced):
            raise LeaseLost(self._call.name, self._call.attempt, message.current)
        raise not_callable(self._spec, self._call.domain, in_main=message.in_main)

    def _death(self) -> Exception:
        how = self._process.reap()
        why = self._stop_reason or self._reason(time.monotonic())  # the child may notice first
        if why is not None:
            line, facts = "%s: attempt %d has stopped: %s", facts_of(self._control)
            log.info(line, *self._name_and_attempt, how, extra=facts)
            return why.error()
        if not self._process.started and not self._process.killed:
            line = "%s: attempt %d: no process for it could start: %s"
            log.error(line, *self._name_and_attempt, how, extra=facts_of(self._control))
            return not_callable(self._spec, self._call.domain)
        return WorkerDied(how)

    @property
    def _name_and_attempt(self) -> tuple[str, int]:
        return self._call.name, self._call.attempt


def not_callable(spec: MethodSpec, domain: str, *, in_main: bool = False) -> AttemptEnded:
    """Return the failure of an operation whose function cannot be called in another process.

    If ``in_main``, the status names the usual reason: a main module without a guard runs on import.
    """
    text = "the method cannot be run by the worker process"
    if in_main:
        text += (
            ', which cannot import the main module: it needs its guard, if __name__ == "__main__"'
        )
    return AttemptEnded(FinalResult(internal(spec, domain, text, "METHOD_FAILED")))


_GRACE: Final = timedelta(seconds=5)
_EXHAUSTED: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.EAGAIN, errno.ENOMEM})
"""Errors of a start that may succeed later: too many files or processes, or too little memory."""
_RETRY_SECONDS: Final = 0.5
"""Seconds until a start is retried."""


class ProcessExecutor(PooledExecutor):
    """Runs functions in at most ``workers`` child processes.

    The executor has no queue: an operation without a free child waits in the store until a child of
    this process or a worker of another process is free.

    Use it for work that is CPU-bound, holds the GIL, may crash, or must be stoppable at any point.
    By default there are as many children as processors. A child is started when it is first needed,
    and replaced after ``recycle`` calls, unless ``recycle`` is None.

    A function that must stop, or has exceeded its time limit, gets an exception at its next check
    or ``await``. If it continues for ``grace``, SIGTERM raises ``Cancelled`` or
    ``DeadlineExceeded`` wherever the function is. If it continues for another ``grace``, its
    process is killed, with all processes that the function has started. If a child dies, its work
    counts as lost: see ``Options.at_most_once``. When this process dies, its children end.

    A child imports the function. So the function's own name in its module must refer to the
    function, or to the method that ``@service.method`` returned. Other objects of that module, such
    as a service and its store, do no work in the child, so a function cannot start operations. If
    the module has the plain function (``service.method(...)(function)``), its message classes must
    be importable too, and the child does not know codecs that were registered by hand. A main
    module that contains a function needs the usual guard, ``if __name__ == "__main__"``.

    Nothing is pickled: requests, results, metadata and errors are sent as packed messages. A child
    inherits standard output and error. Its log lines are logged in this process with their logger
    and level, except those of loggers that have handlers of their own in the child. Needs POSIX.

    Raises:
        DeclarationError: An argument is of a wrong type or out of its bounds, or the system has no
            POSIX signals.
    """

    def __init__(
        self,
        workers: int | None = None,
        *,
        grace: timedelta = _GRACE,
        recycle: int | None = None,
        **others: Never,
    ) -> None:
        refuse_keywords("ProcessExecutor", others, ("workers", "grace", "recycle"))
        if os.name != "posix":
            raise DeclarationError("ProcessExecutor", f"needs POSIX signals; this is {os.name}")
        if recycle is not None:
            check_count("recycle", recycle)
        check_span("grace", grace, zero=True)
        count = workers if workers is not None else os.cpu_count() or 1
        self._grace = grace.total_seconds()
        super().__init__(count, "lro-process")
        self._pool = ChildPool(recycle)
        self._references: dict[str, tuple[MethodSpec, FunctionReference]] = {}

    @property
    def cancel_support(self) -> CancelSupport:
        """A function that does not stop is killed with its process."""
        return CancelSupport.FORCED

    def check_method(self, spec: MethodSpec) -> None:
        """Check that a child process can find the method's function, as far as is known now.

        Raises:
            DeclarationError: The function is a lambda, a function within a function, or a bound
                method.
        """
        check_importable(spec)

    def reserve(self) -> WorkerPlace | None:
        """Reserve a free worker; None if all are busy."""
        if is_worker_process():
            text = (
                "this process runs functions for another one, and starts none: is the main module"
            )
            raise Unavailable(f'{text} without its guard, if __name__ == "__main__"?')
        return super().reserve()

    def stop(self) -> None:
        """Begin no more tasks, and end the idle children."""
        super().stop()
        self._pool.close()

    def reopen(self) -> None:
        """Begin tasks again after :meth:`stop`, in new children."""
        self._pool.reopen()
        super().reopen()

    def join(self, seconds: float) -> bool:
        """Wait at most ``seconds`` seconds for running tasks; return True if none is left.

        If the executor is stopped, wait a few seconds more for its children to end.
        """
        over = super().join(seconds)
        if over and self._places.stopped:
            self._pool.reap(LEAVE_SECONDS)
        return over

    def kill(self) -> None:
        """Kill all children, and the processes that they started."""
        self._pool.kill()

    def _run_task(self, task: Task, later: Later) -> bool:  # noqa: ARG002
        child = ChildLease(self._pool, self._reference, self._grace)
        try:
            return task.run(child.call)
        finally:
            child.release()

    def _reference(self, spec: MethodSpec) -> FunctionReference:
        known = self._references.get(spec.full_name)
        if known is None or known[0] is not spec:
            known = self._references[spec.full_name] = (spec, reference_to(spec))
        return known[1]


class ChildLease:
    """The child process that one task uses, from the call of its function to :meth:`release`."""

    def __init__(
        self, pool: ChildPool, reference: Callable[[MethodSpec], FunctionReference], grace: float
    ) -> None:
        self._pool = pool
        self._reference = reference
        self._grace = grace
        self._process: ChildProcess | None = None
        self._unusable = False

    def call(self, spec: MethodSpec, request: object, control: JobControl) -> object:
        """Call the method's function in a child; implements ``RemoteCall``."""
        try:
            call = self._call(spec, request, control)
            self._process = self._take_child(control)
        except (DeclarationError, OSError) as exc:
            line, facts = "%s: attempt %d: %s", facts_of(control)
            log.error(line, control.name, control.attempt, exc, exc_info=exc, extra=facts)
            raise not_callable(spec, control.domain) from None
        self._process.calls += 1
        supervision = CallSupervisor(
            self._process, call, spec=spec, control=control, grace=self._grace
        )
        try:
            return supervision.response()
        finally:
            self._unusable = supervision.unusable

    def _take_child(self, control: JobControl) -> ChildProcess:
        while True:
            try:
                return self._pool.take()
            except OSError as exc:
                if exc.errno not in _EXHAUSTED:
                    raise
                line = "%s: waits until a process can be started: %s"
                log.warning(line, control.name, exc, extra=facts_of(control))
            control.pause(_RETRY_SECONDS)

    def release(self) -> None:
        """Return the child to the pool."""
        if self._process is not None:
            self._pool.give_back(self._process, unusable=self._unusable)

    def _call(self, spec: MethodSpec, request: object, control: JobControl) -> RunFunction:
        present, left = control.metadata, control.seconds_left
        return RunFunction(
            reference=self._reference(spec),
            name=control.name,
            attempt=control.attempt,
            caller=control.caller,
            domain=control.domain,
            request=spec.types.pack(request, spec.request),
            metadata=None if present is None else spec.types.pack(present, spec.metadata),
            stop_at=None if left is None else time.monotonic() + left,
            trace_context=control.trace.context,
        )
