"""The work of this process: how it is begun, cancelled and released."""

from __future__ import annotations

import base64
import contextlib
import functools
import heapq
import logging
import math
import os
import threading
import time
import typing
from collections.abc import Callable, Collection, Mapping
from datetime import datetime, timedelta
from typing import Final

from lro._base.errors import (
    Cancelled,
    LeaseLost,
    LroError,
    NotApplied,
    OperationNotFound,
    Unavailable,
)
from lro._base.status import AnyMessage
from lro._engine.attempt import Attempt, HeldWork
from lro._engine.endings import emit_stored_end, ended_by
from lro._engine.events import CancelRequested, about
from lro._engine.executor_port import LAST_SECONDS, ExecutorUsage, NoWorkers, Slot
from lro._engine.flow import Flow, MayBlock, run_all
from lro._engine.method_spec import MethodSpec
from lro._engine.process import installed_version
from lro._engine.runtime import Runtime, stopping
from lro._engine.store_port import Claim, Worker
from lro._model.operation import (
    Record,
    State,
    check_name,
    is_unowned,
    request_cancel,
    requeue,
    withdraw,
)

log = logging.getLogger("lro")

_SHOW_SECONDS: Final = 0.1
"""Claimed work that runs for longer than this gets a separate write of its start time."""
_SHOW_AGAIN_SECONDS: Final = 5.0
"""Pause before the write of a start time is retried, after the store was unavailable."""
_STEP_SECONDS: Final = 0.1
"""How often a drain checks whether another call has ended the drain."""
_REFUSED: Final = timedelta(seconds=1)
"""Pause before the name of an operation that could not begin is sent to the executor again."""


class ClaimLimits(typing.TypedDict):
    """The fields of :class:`Claim` that describe methods."""

    limits: Mapping[str, int | None]
    keyed: Collection[str]
    rates: Mapping[str, tuple[int, timedelta]]


class StartingRecord:
    """A write that stores one record as running here, or claims several: a context manager.

    While it is ``open``, a stopping service waits, for a second at most, before it releases its
    work. ``attempt`` is the attempt of a record that is stored as running here, and else None. It
    counts as work of this process from the start, so its lease is renewed. Unless the work was
    submitted, the end forgets the attempt, or releases it if the record may have been stored.
    """

    __slots__ = ("_work", "attempt", "open")

    def __init__(self, work: LocalWork, attempt: Attempt | None) -> None:
        self.attempt: Attempt | None = attempt
        self.open: bool = True
        self._work = work

    def __enter__(self) -> StartingRecord:
        return self

    def __exit__(self, _: object, error: BaseException | None, *__: object) -> None:
        if self.open:
            self.end(error)

    def end(self, error: BaseException | None) -> None:
        """End the write, which has failed with this error, if any, without submitted work."""
        if self.attempt is not None:
            refused = isinstance(error, LroError) and not isinstance(error, Unavailable)
            if error is None or refused:
                self._work.remove(self.attempt)
            else:  # the record may have been stored nevertheless
                self._work.release_later(self.attempt)
        self._work.end_write(self)


class LocalWork(HeldWork):
    """Holds the attempts of this process, and begins, cancels and releases their work.

    ``owner`` is the random name of this process in the store. ``specs`` are the methods, by name
    and by alias. ``new_work`` is called when an attempt is added.
    """

    def __init__(
        self,
        runtime: Runtime,
        specs: Mapping[str, MethodSpec],
        *,
        new_work: Callable[[], None],
        claim_soon: Callable[[], None],
        renew_soon: Callable[[], None],
    ) -> None:
        super().__init__(runtime, claim_soon, renew_soon)
        self._store = runtime.store
        self._half_lease = runtime.lease / 2
        self._updater = runtime.updater
        self._specs = specs
        self._new_work = new_work
        self._runs_nothing = isinstance(runtime.executor, NoWorkers)
        self._take_name()
        self._unseen: list[tuple[float, int, Attempt]] = []
        """A heap of attempts with their ids, ordered by when to store their start times."""
        self._reading = threading.Lock()
        self.paused: frozenset[str] | None = None
        """The paused method names, as last read; None before the first read."""
        self._writes = 0
        self._drain_over = threading.Event()
        self.closed: bool = False
        """True while the service is closed, and no longer stopping."""

    def _take_name(self) -> None:
        self.owner: str = base64.urlsafe_b64encode(os.urandom(12)).decode("ascii")
        self._since: datetime | None = None

    def as_worker(self) -> Worker:
        """Return this process's row for the store; it is valid for one lease from now."""
        import socket

        now = self._store.now()
        self._since = self._since or now
        usage: ExecutorUsage | None = getattr(self.runtime.executor, "usage", None)
        capacity = 0 if self._runs_nothing else None if usage is None else usage.workers
        functions = [name for name, spec in [*self._specs.items()] if spec.function is not None]
        return Worker(
            owner=self.owner,
            host=socket.gethostname(),
            pid=self.process,
            version=installed_version(),
            methods=[] if self._runs_nothing else functions,
            capacity=capacity,
            start_time=self._since,
            seen_time=now,
            alive_until=now + self.runtime.lease,
        )

    def read_paused(self) -> None:
        """Read which methods are paused; work of a paused method is not begun.

        Raises:
            Unavailable: The store cannot be read now.
        """
        with self._reading:  # so that an older read cannot overwrite a newer one
            self.paused = frozenset(self._store.paused())

    def is_paused(self, spec: MethodSpec) -> bool:
        """Return True if any name of the method was paused at the last read."""
        if not self.paused:
            return False
        return not self.paused.isdisjoint((spec.full_name, *spec.options.aliases))

    def claim_limits(self, specs: Collection[tuple[str, MethodSpec]]) -> ClaimLimits:
        """Return the limits of these methods, by each name under which their work is stored.

        Names of methods without a function are left out. If a method is paused under one of its
        names, its further names are left out. The paused name is included, because the store knows
        whether it is still paused.
        """
        paused, known = self.paused or (), [one for one in specs if one[1].function is not None]
        options = {n: s.options for n, s in known if n in paused or not self.is_paused(s)}
        return {
            "limits": {name: one.concurrency for name, one in options.items()},
            "keyed": [name for name, one in options.items() if one.concurrency_key is not None],
            "rates": {name: one.rate for name, one in options.items() if one.rate is not None},
        }

    def lose_all(self) -> None:
        """Stop all work and take another owner name, because this process counts as lost.

        Other processes have the work, or will claim it. The store refuses late writes of the
        stopped functions.
        """
        with self._lock:
            attempts = list(self._attempts.values())
            self._attempts.clear()
            self._take_name()
        for attempt in attempts:
            attempt.request_release()

    def unregister(self) -> None:
        """Remove this process's row; if the store is unavailable, the row's lease will expire."""
        if self._since is not None:
            with contextlib.suppress(Unavailable):
                self._store.leave(self.owner)

    def writing(self, attempt: Attempt | None = None) -> StartingRecord:
        """Begin a write that claims work, or that stores the record of this attempt."""
        with self._lock:
            self._writes += 1
            if attempt is not None:
                self._attempts[attempt.name] = attempt
        return StartingRecord(self, attempt)

    def end_write(self, write: StartingRecord) -> None:
        """Count a write as ended. Idempotent."""
        with self._lock:
            if write.open:
                write.open = False
                self._writes -= 1
                if self.stopping:
                    self._changed.notify_all()

    def submit(
        self,
        record: Record,
        slot: Slot,
        *,
        packed: AnyMessage | None = None,
        start: StartingRecord | None = None,
    ) -> Attempt:
        """Submit the work of a claimed record to the executor, or send the name of a waiting one.

        If the executor cannot take the work now, the work is released; a name is sent again later.
        If this process has counted as lost since the claim, the work is left to other processes.
        ``start`` is the open write, which ends as soon as the attempt is registered.
        """
        held = record.owner != ""  # otherwise the executor sends its name
        started = None if start is None else start.attempt
        attempt = started or Attempt(record, self._specs[record.method], self, packed=packed)
        try:
            shown = packed is None or not attempt.start_unseen
            if held and not self._hold(attempt, record, start):
                slot.release()
                return attempt
            if not held and start is not None:
                self.end_write(start)
        except BaseException:
            slot.release()
            if held and (started is None or start is None or not start.open):
                self.release_later(attempt)  # otherwise ``start`` releases it
            raise
        try:
            if held and not shown:
                if self.runtime.executor.submits_block:  # the function may run in this thread
                    self._show(attempt)
                else:
                    self._show_later(attempt, _SHOW_SECONDS)
            slot.submit(attempt)
        except BaseException as exc:
            facts = about(record.name, record.method)
            if held and isinstance(exc, Exception) and not isinstance(exc, Unavailable):
                log.exception("%s: the executor failed to take it", record.name, extra=facts)
                attempt.end_refused()
            else:
                log.info("%s: not begun here: %s", record.name, exc, extra=facts)
                if held:
                    self.release_later(attempt)
            if not isinstance(exc, Exception):
                raise
        return attempt

    def _hold(self, attempt: Attempt, record: Record, write: StartingRecord | None = None) -> bool:
        """Register the attempt, and end the write that has claimed or stored the record.

        Return False, and do neither, if this process counted as lost after the claim.
        """
        with self._lock:
            if record.owner != self.owner:
                return False
            self._attempts[attempt.name] = attempt
            if write is not None:
                self.end_write(write)
        self._new_work()
        until = record.lease_until
        assert until is not None  # the record is claimed
        # A write that may block may have taken long.
        if self._store.writes_block and until - self._store.now() < self._half_lease:
            self._renew_soon()
        return True

    def show_starts(self) -> float:
        """Store the start times that are due; return the seconds until the next one is due.

        Work that ends before its start time is due needs no such write.
        """
        now, due = self.runtime.clock(), []
        with self._lock:
            while self._unseen and self._unseen[0][0] <= now:
                due.append(heapq.heappop(self._unseen)[-1])
            left = self._unseen[0][0] - now if self._unseen else math.inf
        for attempt in due:
            self._show(attempt)
        return left

    def _show(self, attempt: Attempt) -> None:
        attempt.show_start(functools.partial(self._show_later, attempt, _SHOW_AGAIN_SECONDS))

    def _show_later(self, attempt: Attempt, seconds: float) -> None:
        with self._lock:
            while self._unseen and self._unseen[0][-1].over:
                heapq.heappop(self._unseen)
            entry = self.runtime.clock() + seconds, id(attempt), attempt
            heapq.heappush(self._unseen, entry)

    def run_operation(self, name: str) -> None:
        """Claim the work of one operation and do it in this thread, unless another process has it.

        If its method is paused or a limit is reached, the operation continues to wait in the store,
        and its name is sent again later.

        Raises:
            InvalidOperationName: The name is malformed.
            Unavailable: The store cannot be reached, or the service is stopping.
        """
        check_name(name)
        try:
            method = self._store.get(name).method
        except OperationNotFound:
            return
        spec = self._specs.get(method)
        if spec is None or spec.function is None:
            line = "%s: its method %s is not declared here: left to others"
            log.error(line, name, method, extra=about(name, method))
            return
        if spec.options.aliases:
            self.read_paused()
        until = self._store.now() + self.runtime.lease
        limits = self.claim_limits([(method, spec)])
        claim = Claim(self.owner, until, max_count=1, excluded=self.skipped, name=name, **limits)
        with self.writing() as claiming:
            if self.stopping:
                raise self.refusal()
            for record, packed in self._store.claim(claim).works:
                attempt = Attempt(record, spec, self, packed=packed)
                try:
                    if not self._hold(attempt, record, claiming):
                        return
                    if spec.options.rate is not None:  # this start may delay further work
                        self.announce_work()
                    attempt.show_start()
                    attempt.run()
                except BaseException:  # perhaps from a signal handler, before the work began
                    self.remove(attempt)
                    raise
                return
        self._requeue(name)

    def _requeue(self, name: str) -> None:
        """Have the name of an operation that could not begin sent again, when a worker is free.

        If only another release can read the work, its name is sent again after ``redelivery``.
        """
        pause = self.runtime.executor.redelivery if name in self.skipped else None
        due = self._store.now() + (pause or _REFUSED)
        with contextlib.suppress(OperationNotFound):
            after = self._store.update(name, requeue(due))
            if after is not None and after.lease_until == due:
                self.announce_work()

    def cancel(self, record: Record, caller: str, lost_owners: Collection[str] = ()) -> Flow[None]:
        """Store the request to cancel an operation, and pass it on to the work.

        The work of the ``lost_owners`` ends at once: no process will continue it.

        Raises:
            OperationNotFound: The operation was removed meanwhile.
        """
        spec = self._specs.get(record.method)
        ask, before = request_cancel(self._store.now()), record

        def change(seen: Record) -> Record | None:
            nonlocal before
            before = seen  # another caller may have cancelled since the record was read
            return ask(seen)

        stamp = spec.stamp if spec else None
        after = yield from self._updater.applied(record.name, change, stamp)
        assert after is not None  # a cancel request removes no record
        events = self.runtime.events
        if after.cancel_pending and not before.cancel_requested:
            method = events.renamed.get(record.method, record.method)
            events.emit(CancelRequested(name=record.name, method=method, caller=caller))
        if record.name in self._attempts:  # this may wait for the attempt's lock
            yield MayBlock(functools.partial(self.cancel_held, record.name), writes=True)
        if after.cancel_pending and is_unowned(after, lost_owners):
            yield from self._end_unheld(record.name, spec, lost_owners)

    def _end_unheld(
        self, name: str, spec: MethodSpec | None, lost_owners: Collection[str]
    ) -> Flow[None]:
        """End an operation that nobody works on, even if its method is no longer declared."""
        status = self.runtime.types.status_of(Cancelled(), self.runtime.domain)
        keep_for = self.runtime.keep_for if spec is None else spec.keep_for
        change = withdraw(status, self._store.now(), keep_for, lost_owners)
        # If the operation has just been claimed, its worker finds the cancel request.
        with contextlib.suppress(LeaseLost, NotApplied, OperationNotFound):
            if spec is None:
                after = yield from self._updater.applied(name, change)
            else:
                after = yield from ended_by(self.runtime, spec, name, change, State.CANCELLED)
            emit_stored_end(self.runtime.events, after)

    def cancel_held(self, name: str) -> None:
        """Pass a stored cancel request on to the work, if this process has it."""
        attempt = self._attempts.get(name)
        if attempt is not None:
            attempt.cancel()

    def has_suspect(self) -> bool:
        """Return True if this process runs work that may kill its workers."""
        return any(attempt.suspect for attempt in self.attempts())

    def release_queued(self) -> None:
        """Try once to release the queued work, which this process cannot do.

        Work that cannot be released now is logged, and recovered when its lease has expired.
        """
        while self._to_release:
            with self._lock:
                some, self._to_release = self._to_release, []
            for attempt in some:
                self.remove(attempt)
            _release(some)

    def stop(self, drain: timedelta) -> None:
        """Begin no more work, give running work time to end, and release what has not ended."""
        attempts: list[Attempt] = []
        functions_ended = False
        try:
            self.stopping = True
            self.runtime.executor.stop()
            with self._changed:  # wait, so that records being stored are released, too
                self._changed.wait_for(lambda: not self._writes, LAST_SECONDS)
            attempts = list(self._attempts.values())
            if attempts:
                text = "stopping: waits up to %g s (drain) for running operations: %d"
                log.info(text, drain.total_seconds(), len(attempts))
            over = self._drained(drain.total_seconds())
            self._end_functions(LAST_SECONDS, over=over)
            functions_ended = True
        finally:  # even if a second signal ends the drain
            try:
                if not functions_ended:
                    self._end_functions(0.0)
            finally:
                with self._lock:  # the executor refuses work that comes later
                    left = [*self._to_release, *self._attempts.values()]
                _release(left)
            if attempts:
                back = sum(attempt.released for attempt in attempts)
                log.info("stopped: operations released: %d of %d", back, len(attempts))

    def _end_functions(self, seconds: float, *, over: bool = False) -> None:
        """Ask running functions to stop, and kill those that still run after ``seconds``.

        If all functions have ended (``over``), wait as long for their results to be stored.
        """
        executor = self.runtime.executor
        for attempt in self.attempts():
            attempt.request_release()  # functions that return in time are released first
        if over or executor.join(seconds):
            with self._changed:
                held = self._attempts.values()
                self._changed.wait_for(lambda: not any(a.executing for a in held), seconds)
            return
        kill: Callable[[], None] | None = getattr(executor, "kill", None)
        if kill is not None:
            kill()  # running functions must stop: their work is released next
            executor.join(LAST_SECONDS)

    def reopen(self) -> None:
        """Begin work again after :meth:`stop`, under another owner name.

        Functions that did not end in the drain may still run. Their work was released, so the store
        refuses what they write.
        """
        with self._lock:
            self._attempts.clear()
            self._to_release.clear()
            self._take_name()
            self.paused = None
            self._drain_over = threading.Event()
            self.stopping: bool = False
            self.closed = False

    def note_closed(self) -> None:
        """Say in the errors of later calls that the service is closed, not that it is stopping."""
        self.closed = True

    def refusal(self) -> Unavailable:
        """Return the error of a call that arrives after :meth:`stop` was called."""
        return stopping(closed=self.closed)

    def end_drain(self) -> None:
        """End the wait for running work in :meth:`stop`, called in another thread now or later."""
        self._drain_over.set()

    def _drained(self, seconds: float) -> bool:
        """Wait for running work, in short steps; return True if all of it has ended."""
        now, over = time.monotonic(), False
        end = now + seconds
        while not self._drain_over.is_set():
            step = max(0.0, min(end - now, _STEP_SECONDS))
            over = self.runtime.executor.join(step)
            began, now = now, time.monotonic()
            if over or now >= end or now - began < step / 2:  # join() cannot wait here
                break
        return over


def _release(attempts: Collection[Attempt]) -> None:
    """Release the work of these attempts, in shared commits."""
    run_all([attempt.release() for attempt in attempts])
