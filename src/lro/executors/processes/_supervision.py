"""In the parent: one call of a function in a child, from the question to the answer."""

from __future__ import annotations

import logging
import time
from typing import Final

from lro._base.any import Any
from lro._base.errors import LeaseLost
from lro._engine.attempt import internal
from lro._engine.job import Ended, FinalResult, JobControl, WorkerDied
from lro._engine.method_spec import MethodSpec
from lro.executors.processes._messages import (
    AttemptReplaced,
    Done,
    Failed,
    FinalMessage,
    FromChild,
    FunctionCall,
    LogLine,
    Ready,
    Report,
    ReportAnswer,
    ReportRefusal,
    Stop,
    Stopped,
    StopReason,
    refusal,
)
from lro.executors.processes._process import ChildProcess

log = logging.getLogger("lro")


_LOOK_SECONDS: Final = 1.0
"""How often it is checked that the child lives: another process may hold its connection open."""


class CallSupervisor:
    """Has a child do a call, publishes what it reports, and stops it when that is to be.

    Work that is to stop is asked to; after ``grace`` seconds the function is interrupted, and after
    as many more its process is killed. What it ends with before that is what it ended with.
    """

    def __init__(
        self,
        process: ChildProcess,
        call: FunctionCall,
        *,
        spec: MethodSpec,
        control: JobControl,
        grace: float,
    ) -> None:
        self.unusable = True
        """Whether the child is dead, busy, or was interrupted where that may break something."""
        self._interrupted = False
        self._process = process
        self._call = call
        self._spec = spec
        self._control = control
        self._grace = grace
        self._why: StopReason | None = None
        self._due = 0.0
        self._steps = iter((self._request_stop, self._interrupt, self._kill))

    def response(self) -> Any:
        """The response of the function.

        Raises:
            Ended: It failed, or could not be called.
            Cancelled, DeadlineExceeded: It was stopped.
            LeaseLost: Another worker has the operation.
            WorkerDied: Its process is gone.
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
                message = self._process.receive(0)  # its last words
                if message is None:
                    raise EOFError
            if message is not None:
                return message

    # -- stopping -----------------------------------------------------------------------------

    def _escalate(self) -> float:
        """Take the next step if it is due; return the seconds until the next check."""
        now = time.monotonic()
        if self._why is None:
            self._why, self._due = self._reason(now), now
        if self._why is None:
            limit = self._call.stop_at
            return _LOOK_SECONDS if limit is None else min(_LOOK_SECONDS, limit - now)
        if self._due <= now:
            next(self._steps)()
            self._due = now + self._grace
        return min(_LOOK_SECONDS, self._due - now)

    def _reason(self, now: float) -> StopReason | None:
        if self._control.cancel_requested:
            return StopReason.ASKED
        limit = self._call.stop_at
        return StopReason.OVERDUE if limit is not None and limit <= now else None

    def _request_stop(self) -> None:
        assert self._why is not None  # the first step follows a reason to stop
        if self._process.still_sending:  # it does not even know of the call
            self._kill()
        self._process.send(Stop(self._why))

    def _interrupt(self) -> None:
        log.warning("%s: attempt %d has not stopped: interrupted", *self._named)
        self._interrupted = True
        self._process.terminate()

    def _kill(self) -> None:
        log.warning("%s: attempt %d has not stopped: its process is killed", *self._named)
        self._process.kill()
        raise EOFError

    # -- what the child says ------------------------------------------------------------------

    def _handle(self, message: Ready | LogLine | Report) -> None:
        if isinstance(message, Ready):
            self._process.started = True
        elif isinstance(message, LogLine):
            log.log(message.level, "%s", message.text)
        else:
            self._process.send(ReportAnswer(message.number, self._published(message)))

    def _published(self, report: Report) -> ReportRefusal | None:
        try:
            self._control.report(self._spec.types.unpack(report.metadata, self._spec.metadata))
        except Exception as exc:  # raised where the function waits
            return refusal(exc)
        return None

    def _result(self, message: FinalMessage) -> Any:
        if isinstance(message, Done):
            return message.response
        if isinstance(message, Failed):
            raise Ended(FinalResult(message.status))
        if isinstance(message, Stopped):
            raise message.why.error()
        if isinstance(message, AttemptReplaced):
            raise LeaseLost(self._call.name, self._call.attempt, message.current)
        raise not_callable(self._spec, self._call.domain, in_main=message.in_main)

    def _death(self) -> Exception:
        how = self._process.reap()
        why = self._why or self._reason(time.monotonic())  # it may have seen that before we did
        if why is not None:
            log.info("%s: attempt %d has stopped: %s", *self._named, how)
            return why.error()
        if not self._process.started and not self._process.killed:
            log.error("%s: attempt %d: no process for it could start: %s", *self._named, how)
            return not_callable(self._spec, self._call.domain)
        return WorkerDied(how)

    @property
    def _named(self) -> tuple[str, int]:
        return self._call.name, self._call.attempt


def not_callable(spec: MethodSpec, domain: str, *, in_main: bool = False) -> Ended:
    """The end of an operation whose function cannot be called in another process.

    The usual reason has nothing to hide: a main module does its work when it is imported again.
    """
    text = "the method cannot be run by the worker process"
    if in_main:
        text += (
            ', which cannot import the main module: it needs its guard, if __name__ == "__main__"'
        )
    return Ended(FinalResult(internal(spec, domain, text, "METHOD_FAILED")))
