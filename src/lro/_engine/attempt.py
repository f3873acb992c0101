"""One attempt at one operation: claim it, call the function, write down how it ended."""

from __future__ import annotations

import contextvars
import logging
import threading
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any, TypeVar

import attrs

from lro._base.errors import (
    Cancelled,
    LeaseLost,
    NotApplied,
    OperationNotFound,
    Unavailable,
)
from lro._engine.calling import FunctionCall
from lro._engine.ends import write_end
from lro._engine.executor_port import RemoteCall
from lro._engine.job import FinalResult, Job, Outcome, Released, WorkerLostOutcome
from lro._engine.method_spec import MethodSpec
from lro._engine.outcomes import failure, internal
from lro._engine.patience import retry_while_unavailable
from lro._engine.record_updater import RecordUpdater
from lro._model.record import Record
from lro._model.transitions import claim, if_unchanged_since, lose, release, report

log = logging.getLogger("lro")

T = TypeVar("T")


@attrs.frozen(kw_only=True)
class WorkerIdentity:
    """One process as it works: the name under which it holds operations, and for how long."""

    updater: RecordUpdater
    owner: str
    lease: timedelta
    domain: str
    clock: Callable[[], float]
    """The seconds that time limits go by: nobody can set it."""
    retire: Callable[[Attempt], None]
    """Told of every run that is over."""
    stored: Callable[[Record], None]
    """Told of every record that was claimed."""


class Attempt:
    """A task for an executor: one operation's work, from claim to result.

    ``request`` is the message if this process has it still, else it is read from the store;
    ``held`` the record as it is stored, held by this process; ``begun`` says that it is claimed.
    """

    def __init__(
        self,
        name: str,
        spec: MethodSpec,
        worker: WorkerIdentity,
        request: object | None = None,
        held: Record | None = None,
        *,
        begun: bool = False,
    ) -> None:
        self.name = name
        self.group = spec.full_name
        self.group_limit = spec.options.concurrency
        self.is_async = spec.is_async
        self._spec = spec
        self._worker = worker
        self._updater = worker.updater
        self._domain = worker.domain
        self._retire = worker.retire
        self._request = request
        self._held = held
        self._begun = held if begun else None
        self._job: Job[Any] | None = None
        self._call: FunctionCall | None = None
        self._cancel_asked = False
        self._handing_back = self._over = False
        self._deciding = threading.Lock()
        self.cancelling = threading.RLock()
        self._started = self.revoked = self._start_over = False
        self._watch: threading.Event | None = None
        self.lost = False
        self.handed_back = False
        """Whether the store has the operation as one for others to do."""
        self.ended: Record | None = None
        """What this run has stored as the end of the operation."""

    # -- from the service's side --------------------------------------------------------------

    @property
    def not_started(self) -> Record | None:
        """The record, if it says that this process has the work, which it has not begun."""
        return self._held if self._job is None else None

    def await_start(self, seconds: float) -> None:
        """Wait until the call that starts it is over, or it has begun; at most so long."""
        with self._deciding:
            if self._started or self._start_over:
                return
            # Made only where somebody waits, which is when the service stops.
            self._watch = self._watch or threading.Event()
        self._watch.wait(seconds)

    def start_over(self) -> None:
        """The call that starts it is over."""
        with self._deciding:
            self._start_over = True
            if self._watch is not None:
                self._watch.set()

    def revoke(self) -> bool:
        """Let it never begin, whoever has it; False if it has begun."""
        with self._deciding:
            self.revoked = not self._started
            return self.revoked

    def cancel(self) -> None:
        """Let a request to cancel reach the function, if it runs. Once: it may be tidying up."""
        self._cancel_asked = True
        job = self._job
        if job is None or job.cancel_requested:
            return
        job._stop()  # first: a coroutine that begins just now looks at it
        if self._call is not None:
            self._call.interrupt()

    def end_not_started(self) -> None:
        """End the operation as cancelled, its task having been withdrawn before it began."""
        try:
            seen = self._seen_unbegun()
            status = self._spec.types.status_of(Cancelled(), self._domain)
            self._finish(seen.attempt, FinalResult(status, acknowledge=True))
        except (LeaseLost, OperationNotFound):
            pass  # deleted meanwhile, or for the process that has it to end
        finally:
            self._retire(self)

    def give_up(self) -> bool:
        """Stop the work, which then hands itself back; False."""
        self._handing_back = True
        self.cancel()
        return False

    def release(self) -> bool:
        """Give the operation up for others to do: its lease ends now. Whether the store took it."""
        self._handing_back = True
        job = self._job
        try:
            if job:
                back = release(job.attempt, self._now())
            else:
                seen = self._seen_unbegun()
                back = if_unchanged_since(seen, release(seen.attempt, self._now()))
            self._updater.apply(self.name, back)
            self.handed_back = True
        except (NotApplied, LeaseLost, OperationNotFound):
            pass  # it is over, or not ours any more
        except Exception as exc:  # nobody renews its lease: it counts as lost when that is over
            log.error("%s: could not be handed back: %s", self.name, exc)
            return self.give_up()
        self.cancel()
        return True

    def _seen_unbegun(self) -> Record:
        """The record of work that has not begun here.

        Raises:
            LeaseLost: Another process has taken it over, since this one was silent for a lease.
            OperationNotFound: It was deleted.
        """
        seen = self._updater.store.get(self.name)
        if seen.owner not in ("", self._worker.owner):
            raise LeaseLost(seen.name, seen.attempt, seen.attempt)
        return seen

    # -- from the executor's side -------------------------------------------------------------

    def run(self, through: RemoteCall | None = None) -> None:
        """Do the work in this thread; an async function gets an event loop of its own.

        The function itself may be called ``through`` another process.
        """
        if self.is_async and through is None:
            import asyncio  # with the first coroutine: it is half of what importing us would cost

            try:
                asyncio.run(self._awork(alone=True))
            finally:
                self._retire(self)  # also where no loop could be made
            return
        try:
            job = self._begin()
            if job is not None:
                self._finish(job.attempt, self._calling(job).called(through))
        finally:
            self._retire(self)

    async def arun(self) -> None:
        """Do the work of an async function on this event loop."""
        await self._awork(alone=False)

    async def _awork(self, *, alone: bool) -> None:
        import asyncio

        async def apart(action: Callable[..., T], *arguments: Any) -> T:
            # Who shares an event loop must not hold it up while the store writes.
            if alone or not self._updater.store.writes_block:
                return action(*arguments)
            # Not by asyncio.to_thread: what it raises does not say whether the action has begun.
            loop, context = asyncio.get_running_loop(), contextvars.copy_context()
            try:
                done = loop.run_in_executor(None, lambda: context.run(action, *arguments))
            except RuntimeError:  # no thread is to be had, as at the end of the interpreter
                return action(*arguments)
            return await done

        try:
            job = await apart(self._begin)
            if job is not None:
                await apart(self._finish, job.attempt, await self._calling(job).acalled())
        finally:
            self._retire(self)

    # -- the attempt --------------------------------------------------------------------------

    def _now(self) -> datetime:
        return self._updater.store.now()

    def _begin(self) -> Job[Any] | None:
        with self._deciding:
            if self.revoked:
                return None
            self._started = True
            if self._watch is not None:
                self._watch.set()
        try:
            job = self._job_of(self._retry_while_unavailable(self._claimed))
        except (NotApplied, LeaseLost, OperationNotFound, Unavailable) as exc:
            log.info("%s: not begun: %s", self.name, exc)
            return None
        if self._handing_back:  # the claim took again what was just given back
            self.release()
        elif job.cancel_requested:
            self._finish(job.attempt, self._cancelled(job))
        elif self._request is not None or self._read_request(job):
            return job
        return None

    def _claimed(self) -> Record:
        now = self._now()
        # It may have waited for so long that others have seen its lease run out, or soon will.
        if self._begun is not None and now - self._begun.create_time < self._worker.lease / 3:
            return self._begun
        taken = claim(self._worker.owner, now + self._worker.lease, now)
        record = self._updater.apply(self.name, taken, self._spec.stamp)
        assert record is not None  # a claim removes nothing
        self._worker.stored(record)
        return record

    def _job_of(self, record: Record) -> Job[Any]:
        limit = self._spec.options.time_limit
        job: Job[Any] = Job(
            name=self.name,
            attempt=record.attempt,
            publish=lambda metadata: self._publish(record.attempt, metadata),
            recall=lambda: self._spec.unpack_metadata(record.metadata),
            clock=self._worker.clock,
            stop_at=None if limit is None else self._worker.clock() + limit.total_seconds(),
            domain=self._domain,
        )
        self._job = job
        if record.cancel_requested or self._cancel_asked:  # the latter may have come since
            job._stop()
        return job

    def _read_request(self, job: Job[Any]) -> bool:
        spec = self._spec
        try:
            packed = self._retry_while_unavailable(lambda: self._updater.store.request(self.name))
            self._request = spec.types.unpack(packed, spec.request)
        except Unavailable:  # and the service is closing
            return False
        except Exception as exc:  # an older version of the method may have stored it
            log.error("%s: its stored request cannot be read: %s", self.name, exc)
            text = "the stored request of the operation cannot be read"
            status = internal(spec, self._domain, text, "REQUEST_UNREADABLE")
            self._finish(job.attempt, FinalResult(status))
            return False
        return True

    def _retry_while_unavailable(self, action: Callable[[], T]) -> T:
        # For as long as it takes: after giving up, this process would go on to renew the lease of
        # an operation on which nobody works.
        return retry_while_unavailable(action, name=self.name, until=lambda: self._handing_back)

    def _publish(self, attempt: int, metadata: object) -> None:
        packed, worker = self._spec.pack_metadata(metadata), self._worker

        def apply() -> None:
            change = report(packed, attempt, self._now(), worker.owner, worker.lease)
            self._updater.apply(self.name, change, self._spec.stamp)

        try:
            self._retry_while_unavailable(apply)
        except Unavailable as exc:  # nor will it be asked again: this process hands back its work
            raise Cancelled() from exc
        except LeaseLost as exc:
            self._updater.refused(self.name, f"metadata of attempt {attempt}", exc)
            raise
        except (NotApplied, OperationNotFound) as exc:
            if not self._over:  # else it comes from a thread that the function has left behind
                self._updater.refused(self.name, f"metadata of attempt {attempt}", exc)
                raise LeaseLost(self.name, attempt, attempt) from exc

    def _calling(self, job: Job[Any]) -> FunctionCall:
        self._call = FunctionCall(
            self._spec,
            self._request,
            job,
            domain=self._domain,
            handing_back=lambda: self._handing_back,
        )
        return self._call

    def _cancelled(self, job: Job[Any]) -> Outcome:
        back = self._handing_back
        return failure(self._spec, self._domain, job, Cancelled(), handing_back=back)

    def _finish(self, attempt: int, outcome: Outcome) -> None:
        self._over = True
        if isinstance(outcome, Released):
            self.release()
        try:
            if isinstance(outcome, FinalResult):
                self._write(attempt, outcome)
            elif isinstance(outcome, WorkerLostOutcome):
                change = lose(attempt, self._now())
                self._retry_while_unavailable(lambda: self._updater.apply(self.name, change))
                self.lost = True
        except (NotApplied, OperationNotFound, LeaseLost) as exc:
            self._updater.refused(self.name, f"the result of attempt {attempt}", exc)
        except Unavailable as exc:
            log.warning("%s: its result could not be stored: %s", self.name, exc)

    def _write(self, attempt: int, ending: FinalResult) -> None:
        self.ended = write_end(
            self.name,
            attempt,
            ending,
            spec=self._spec,
            updater=self._updater,
            domain=self._domain,
            retry_while_unavailable=self._retry_while_unavailable,
        )
