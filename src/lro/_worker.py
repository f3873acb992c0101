"""One attempt at one operation: claim it, call the function, write down how it ended."""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any as Anything

import attrs

from lro._any import Any
from lro._errors import (
    Cancelled,
    DeadlineExceeded,
    LeaseLost,
    LroError,
    NotApplied,
    OperationNotFound,
    StatusError,
    Unavailable,
)
from lro._faults import EncodingError
from lro._jobs import Job
from lro._ledger import Ledger
from lro._patience import arepeated, offered, repeated
from lro._scalars import got
from lro._spec import MethodSpec
from lro._states import Record, State, claim, end, release, report
from lro._status import Code, Status
from lro._wellknown import Empty

log = logging.getLogger("lro")


@attrs.frozen
class Ending:
    """How an attempt ended: the result, and whether it answers a request to cancel."""

    result: Any | Status
    acknowledge: bool = False

    @property
    def state(self) -> State:
        """The state that it leads to."""
        if isinstance(self.result, Any):
            return State.SUCCEEDED
        return State.CANCELLED if self.result.code == Code.CANCELLED else State.FAILED


@attrs.frozen
class HandBack:
    """The attempt was interrupted by the process's own end: somebody else shall do the work."""


@attrs.frozen
class Void:
    """Another worker has the operation: whatever this attempt did counts for nothing."""


class Run:
    """A task for an executor: one operation's work, from claim to result.

    ``request`` is the message if this process has it still, else it is read from the store.
    """

    def __init__(
        self,
        *,
        name: str,
        spec: MethodSpec,
        ledger: Ledger,
        owner: str,
        lease: timedelta,
        domain: str,
        request: object | None,
        retire: Callable[[str], None],
    ) -> None:
        self.name = name
        self.group = spec.full_name
        self.group_limit = spec.options.concurrency
        self.is_async = spec.is_async
        self._spec = spec
        self._ledger = ledger
        self._owner = owner
        self._lease = lease
        self._domain = domain
        self._request = request
        self._retire = retire
        self._job: Job[Anything] | None = None
        self._interrupt: Callable[[], None] | None = None
        self._cancel_asked = False
        self._handing_back = False

    # -- from the service's side --------------------------------------------------------------

    def cancel(self) -> None:
        """Let a request to cancel reach the function, if it runs."""
        self._cancel_asked = True
        job, interrupt = self._job, self._interrupt
        if job is not None:
            job._stop()
        if interrupt is not None:
            interrupt()

    def end_unbegun(self) -> None:
        """End the operation as cancelled, its task having been withdrawn before it began."""
        try:
            self._begin()
        finally:
            self._retire(self.name)

    def hand_back(self) -> None:
        """Give the operation up for others to do: its lease ends now."""
        self._handing_back = True
        job = self._job
        try:
            if job is None:
                attempt = self._ledger.store.get(self.name).attempt
            else:
                attempt = job.attempt
            self._ledger.apply(self.name, release(attempt, self._now()))
        except (NotApplied, LeaseLost, OperationNotFound):
            pass  # it is over, or not ours any more
        self.cancel()

    # -- from the executor's side -------------------------------------------------------------

    def run(self) -> None:
        """Do the work in this thread; an async function gets an event loop of its own."""
        if self.is_async:
            import asyncio  # with the first coroutine: it is half of what importing us would cost

            asyncio.run(self.arun())
            return
        try:
            job = self._begin()
            if job is not None:
                self._finish(job, self._called(job))
        finally:
            self._retire(self.name)

    async def arun(self) -> None:
        """Do the work on this event loop; a function that is not async gets a thread."""
        import asyncio

        if not self.is_async:
            await asyncio.to_thread(self.run)
            return
        try:
            job = self._begin()
            if job is not None:
                ending = await self._acalled(job)
                await asyncio.to_thread(self._finish, job, ending)
        finally:
            self._retire(self.name)

    # -- the attempt --------------------------------------------------------------------------

    def _now(self) -> datetime:
        return self._ledger.store.now()

    def _begin(self) -> Job[Anything] | None:
        try:
            return self._claim()
        except (NotApplied, LeaseLost, OperationNotFound) as exc:
            log.info("%s: not begun: %s", self.name, exc)
        except LroError:
            log.exception("%s: cannot be begun", self.name)
        return None

    def _claim(self) -> Job[Anything] | None:
        now = self._now()
        taken = claim(self._owner, now + self._lease, now)
        record = self._ledger.apply(self.name, taken, self._spec.stamp)
        assert record is not None  # a claim removes nothing
        limit = self._spec.options.time_limit
        job: Job[Anything] = Job(
            name=self.name,
            attempt=record.attempt,
            publish=lambda metadata: self._publish(record.attempt, metadata),
            clock=self._now,
            stop_at=None if limit is None else now + limit,
        )
        self._job = job
        if self._cancel_asked:  # after the claim was written, before the line above
            job._stop()
        if record.cancel_requested:
            job._stop()
            self._finish(job, self._failure(job, Cancelled()))
            return None
        if self._request is None:
            packed = self._ledger.store.request(self.name)
            self._request = self._spec.types.unpack(packed, self._spec.request)
        return job

    def _publish(self, attempt: int, metadata: object) -> None:
        if not isinstance(metadata, self._spec.metadata):
            wanted = f"must be a {self._spec.metadata.__name__}, got {got(metadata)}"
            raise EncodingError(self._spec.info.metadata_type, "", wanted)
        packed = self._spec.types.pack(metadata)
        try:
            self._ledger.apply(self.name, report(packed, attempt, self._now()), self._spec.stamp)
        except (NotApplied, OperationNotFound):
            pass  # ended or deleted meanwhile: the work goes on unseen (spec §2.7)

    def _arguments(self, job: Job[Anything]) -> tuple[object, ...]:
        return (self._request, job) if self._spec.takes_job else (self._request,)

    def _called(self, job: Job[Anything]) -> Ending | HandBack | Void:
        function = self._spec.function
        assert function is not None
        options = self._spec.options
        try:
            if options.attempts == 1:
                returned = function(*self._arguments(job))
            else:
                again = repeated(options.attempts, options.retry_on, job.sleep)
                returned = again(function, *self._arguments(job))
            return self._success(returned)
        except BaseException as exc:  # also SystemExit: it ends the job, no thread
            return self._failure(job, exc)

    async def _acalled(self, job: Job[Anything]) -> Ending | HandBack | Void:
        import asyncio

        loop = asyncio.get_running_loop()
        inner = asyncio.ensure_future(self._awaited(job))

        def interrupt() -> None:
            loop.call_soon_threadsafe(inner.cancel)

        self._interrupt = interrupt
        limit = self._spec.options.time_limit
        overdue = False
        try:
            await asyncio.wait({inner}, timeout=None if limit is None else limit.total_seconds())
            if not inner.done():
                overdue = inner.cancel()
                await asyncio.wait({inner})
            return self._success(inner.result())
        except BaseException as exc:
            late = DeadlineExceeded("the time limit of the method is over")
            return self._failure(job, late if overdue else exc)
        finally:
            self._interrupt = None
            inner.cancel()

    async def _awaited(self, job: Job[Anything]) -> object:
        function: Anything = self._spec.function
        options = self._spec.options
        job.raise_if_cancelled()
        if options.attempts == 1:
            return await function(*self._arguments(job))
        again = arepeated(options.attempts, options.retry_on)
        return await again(function, *self._arguments(job))

    def _success(self, returned: object) -> Ending:
        spec = self._spec
        if returned is None and spec.response is Empty:
            returned = Empty()
        if not isinstance(returned, spec.response):
            wanted = f"must be a {spec.response.__name__}, got {got(returned)}"
            raise EncodingError(spec.info.response_type, "", wanted)
        return Ending(spec.types.pack(returned))

    def _failure(self, job: Job[Anything], error: BaseException) -> Ending | HandBack | Void:
        if isinstance(error, LeaseLost):
            log.warning("%s: %s", self.name, error)
            return Void()
        if isinstance(error, Cancelled) or _is_task_cancellation(error):
            if self._handing_back:
                return HandBack()
            if not job.cancel_requested and not isinstance(error, Cancelled):
                return HandBack()  # the event loop is being shut down
            status = self._spec.types.status_of(Cancelled(), self._domain)
            return Ending(status, acknowledge=job.cancel_requested)
        if isinstance(error, EncodingError):
            log.error("%s: attempt %d: %s", self.name, job.attempt, error, exc_info=error)
            return Ending(self._internal("what the method gave cannot be encoded", error.reason))
        if isinstance(error, LroError) and 1 <= error.status_code <= 16:
            return Ending(self._spec.types.status_of(error, self._domain))
        log.error("%s: attempt %d failed", self.name, job.attempt, exc_info=error)
        return Ending(self._internal("the method failed with an internal error", "METHOD_FAILED"))

    def _internal(self, text: str, reason: str) -> Status:
        error = StatusError(Code.INTERNAL, text, why=reason)
        return self._spec.types.status_of(error, self._domain)

    def _finish(self, job: Job[Anything], ending: Ending | HandBack | Void) -> None:
        if isinstance(ending, Ending):
            try:
                self._write(job, ending)
            except LroError as exc:
                log.error("%s: its result could not be stored: %s", self.name, exc)
        elif isinstance(ending, HandBack) and not self._handing_back:
            self.hand_back()

    def _write(self, job: Job[Anything], ending: Ending) -> None:
        spec = self._spec
        try:
            self._end_patiently(job.attempt, ending)
        except (NotApplied, OperationNotFound) as exc:
            log.info("%s: its late result was dropped: %s", self.name, exc)
        except LeaseLost as exc:
            log.warning("%s: a stale write was refused: %s", self.name, exc)
        except Exception as exc:  # settle() is the application's code
            if spec.options.settle is None or isinstance(exc, Unavailable):
                raise
            log.exception("%s: the last metadata could not be made", self.name)
            text = "the last metadata of the method cannot be made"
            self._end(job.attempt, Ending(self._internal(text, "METHOD_FAILED")), settle=False)

    def _end_patiently(self, attempt: int, ending: Ending) -> None:
        try:
            self._end(attempt, ending)
        except Unavailable:
            offered(lambda: self._end(attempt, ending))

    def _end(self, attempt: int, ending: Ending, *, settle: bool = True) -> Record | None:
        spec = self._spec

        def stamp(record: Record) -> Any | None:
            if not settle:
                return spec.stamp(record)
            last = spec.settled(record.metadata, ending.state)
            return spec.stamp(record.with_metadata(last))

        return self._ledger.apply(
            self.name,
            end(
                ending.result,
                now=self._now(),
                expiry=spec.expiry,
                attempt=attempt,
                acknowledge=ending.acknowledge,
            ),
            stamp,
        )


def _is_task_cancellation(error: BaseException) -> bool:
    import asyncio

    return isinstance(error, asyncio.CancelledError)
