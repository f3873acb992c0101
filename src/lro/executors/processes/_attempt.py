"""In the child: one call of a function, and what its job does."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import threading
import time
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

from lro._base.errors import Cancelled, EncodingError, LeaseLost
from lro._base.status import Status
from lro._engine.job import FinalResult, Job
from lro._engine.method_spec import MethodSpec
from lro._engine.outcomes import failure
from lro._engine.patience import arepeated, repeated
from lro.executors.processes._messages import (
    Answer,
    Call,
    Done,
    Failed,
    FromChild,
    Last,
    NotFound,
    Report,
    Stopped,
    Void,
    Why,
    refused,
)
from lro.executors.processes._prepare import MainFailed, prepare

log = logging.getLogger("lro")


class Unprepared(Exception):
    """The function cannot be imported, or its request not be read; the cause says why."""


class RemoteAttempt:
    """One call: :meth:`returned` or else :meth:`failed`, then :meth:`tell`.

    The thread that listens to the parent makes it, and tells it to :meth:`stop`; the main thread
    does the rest.
    """

    def __init__(self, call: Call, send: Callable[[FromChild], None]) -> None:
        self.call = call
        self.why: Why | None = None
        """Why it is to stop, if it is."""
        self._send = send
        self._spec: MethodSpec | None = None
        self._interrupt: Callable[[], None] | None = None
        self._reporting = threading.Lock()
        self._numbers = itertools.count(1)
        self._answers: SimpleQueue[Answer] = SimpleQueue()
        self._told = False
        self._job: Job[Any] = Job(
            name=call.name,
            attempt=call.attempt,
            publish=self._publish,
            recall=self._recall,
            clock=time.monotonic,
            stop_at=call.stop_at,
            domain=call.domain,
        )

    # -- by the thread that listens -----------------------------------------------------------

    def stop(self, why: Why) -> None:
        """Have the function learn of it when it looks, or at its next ``await``."""
        self.why = why
        if why is Why.ASKED:  # what is overdue, the job sees by its clock
            self._job._stop()
        interrupt = self._interrupt
        if interrupt is not None:
            interrupt()

    def answered(self, answer: Answer) -> None:
        """Let a report know what became of it."""
        self._answers.put(answer)

    # -- by the main thread -------------------------------------------------------------------

    def returned(self) -> object:
        """Call the function, as often as the method says.

        Raises:
            Unprepared: It could not be called.
            BaseException: What the function raised.
        """
        try:
            spec = self._spec = prepare(self.call.recipe)
            request: object = spec.types.unpack(self.call.request, spec.request)
        except BaseException as exc:  # importing the application may raise anything
            raise Unprepared(self.call.name) from exc
        function: Any = spec.function
        options = spec.options
        arguments = (request, self._job) if spec.takes_job else (request,)
        if spec.is_async:
            return asyncio.run(self._awaited(spec, arguments))
        if options.calls == 1:
            return function(*arguments)
        return repeated(options, self._job)(function, *arguments)

    def done(self, returned: object) -> Done:
        """The last message, after the function has returned.

        Raises:
            EncodingError: What it returned cannot be encoded, or is no response of the method.
        """
        assert self._spec is not None  # else the function was not called
        return Done(self._spec.pack_response(returned))

    def failed(self, error: BaseException) -> Last:
        """The last message, after an error."""
        spec = self._spec
        if spec is None or isinstance(error, Unprepared):
            return self._unprepared(error)
        if isinstance(error, Cancelled):
            return Stopped(Why.ASKED)
        if isinstance(error, LeaseLost):
            return Void(error.current)
        if spec.is_async and self.why is Why.OVERDUE:
            return Stopped(Why.OVERDUE)
        if isinstance(error, asyncio.CancelledError) and self.why is not None:
            return Stopped(self.why)
        job = self._job
        outcome = failure(spec, self.call.domain, job, error, handing_back=False)
        assert isinstance(outcome, FinalResult)  # what leads to another one is dealt with above
        assert isinstance(outcome.result, Status)
        return Failed(outcome.result)

    def tell(self, last: Last) -> None:
        """Send the last message; nothing is reported after it.

        One that cannot be encoded becomes one that says so.
        """
        with self._reporting:
            self._told = True
            try:
                self._send(last)
            except EncodingError as exc:
                self._send(self.failed(exc))

    def _unprepared(self, error: BaseException) -> Last:
        if self.why is not None:
            return Stopped(self.why)
        name, method = self.call.name, self.call.recipe.method
        log.error("%s: %s cannot be run in this process", name, method, exc_info=error.__cause__)
        return NotFound(in_main=isinstance(error.__cause__, MainFailed))

    async def _awaited(self, spec: MethodSpec, arguments: tuple[object, ...]) -> object:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None

        def interrupt() -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: the function is over
                loop.call_soon_threadsafe(task.cancel)

        self._interrupt = interrupt
        function: Any = spec.function
        options = spec.options
        try:
            if self.why is not None:  # it came before there was anything to interrupt
                raise self.why.error()
            if options.calls == 1:
                return await function(*arguments)
            return await arepeated(options, self._job)(function, *arguments)
        finally:
            self._interrupt = None

    def _recall(self) -> object:
        if self._spec is None:
            return None
        return self._spec.unpack_metadata(self.call.metadata)

    def _publish(self, metadata: object) -> None:
        assert self._spec is not None  # the function has the job, so it was prepared
        packed = self._spec.pack_metadata(metadata)
        with self._reporting:
            if self._told:  # a thread that the function left behind: its work goes on unseen
                return
            number = next(self._numbers)
            self._send(Report(number, packed))
            answer = self._answers.get()
            while answer.number != number:  # that one's sender was interrupted
                answer = self._answers.get()
        if answer.refusal is not None:
            raise refused(answer.refusal, self.call.name, self.call.attempt)
