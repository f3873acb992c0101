"""Calling a method's function, in either colour, and what became of it."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from typing import Any

from lro._base.errors import Cancelled, DeadlineExceeded
from lro._engine.executor_port import RemoteCall
from lro._engine.job import (
    Ended,
    FinalResult,
    Job,
    Outcome,
    Released,
    Superseded,
    WorkerDied,
    WorkerLostOutcome,
)
from lro._engine.method_spec import MethodSpec
from lro._engine.outcomes import failure
from lro._engine.patience import arepeated, repeated
from lro._model.record import State

log = logging.getLogger("lro")


class FunctionCall:
    """One attempt's call of the function, once more where the method's options say so."""

    def __init__(
        self,
        spec: MethodSpec,
        request: object,
        job: Job[Any],
        *,
        domain: str,
        handing_back: Callable[[], bool],
    ) -> None:
        self._spec = spec
        self._request = request
        self._job = job
        self._domain = domain
        self._handing_back = handing_back
        self._interrupt: Callable[[], None] | None = None

    def interrupt(self) -> None:
        """Interrupt a coroutine at its next await. Nothing happens to any other function."""
        interrupt = self._interrupt
        if interrupt is not None:
            interrupt()

    @property
    def _arguments(self) -> tuple[object, ...]:
        return (self._request, self._job) if self._spec.takes_job else (self._request,)

    def called(self, through: RemoteCall | None) -> Outcome:
        """Call it in this thread; the function itself may be called ``through`` another process."""
        function: Any = self._spec.function
        options = self._spec.options
        try:
            if through is not None:  # who calls it there also repeats it
                return self._success(through(self._spec, self._request, self._job))
            if options.calls == 1:
                return self._success(function(*self._arguments))
            again = repeated(options, self._job)
            return self._success(again(function, *self._arguments))
        except BaseException as exc:  # also SystemExit: it ends the job, no thread
            return self._failure(exc)

    async def acalled(self) -> Outcome:
        """Await it on this event loop."""
        import asyncio

        loop = asyncio.get_running_loop()
        inner = asyncio.ensure_future(self._awaited())

        def interrupt() -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: the function is over
                loop.call_soon_threadsafe(inner.cancel)

        self._interrupt = interrupt
        limit = self._spec.options.time_limit
        try:
            await asyncio.wait({inner}, timeout=None if limit is None else limit.total_seconds())
            overdue = inner.cancel()  # false if it has ended
            if overdue:
                await asyncio.wait({inner})
        except asyncio.CancelledError:  # the event loop is being shut down
            inner.cancel()
            return Released()
        finally:
            self._interrupt = None
        outcome = None if inner.cancelled() else inner.result()
        if isinstance(outcome, (Superseded, Released, WorkerLostOutcome)) or (
            outcome and outcome.state is State.SUCCEEDED
        ):
            return outcome
        if overdue:
            return self._failure(DeadlineExceeded("the time limit of the method is over"))
        if outcome is None:  # it may also have cancelled itself, which is its own mistake
            error = Cancelled() if self._job.cancel_requested else asyncio.CancelledError()
            return self._failure(error)
        return outcome

    async def _awaited(self) -> Outcome:
        import asyncio

        function: Any = self._spec.function
        options = self._spec.options
        try:
            self._job.raise_if_cancelled()
            if options.calls == 1:
                return self._success(await function(*self._arguments))
            again = arepeated(options, self._job)
            return self._success(await again(function, *self._arguments))
        except (asyncio.CancelledError, GeneratorExit):
            raise
        except BaseException as exc:  # also SystemExit: it ends the job, no event loop
            return self._failure(exc)

    def _success(self, returned: object) -> FinalResult:
        return FinalResult(self._spec.pack_response(returned))

    def _failure(self, error: BaseException) -> Outcome:
        if isinstance(error, Ended):
            return error.ending
        if isinstance(error, WorkerDied):
            log.error("%s: attempt %d: %s", self._job.name, self._job.attempt, error)
            return WorkerLostOutcome()
        return failure(
            self._spec, self._domain, self._job, error, handing_back=self._handing_back()
        )
