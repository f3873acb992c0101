"""The work that a process has: how it gets it, cancels it, and gives it up."""

from __future__ import annotations

import contextlib
import functools
import logging
import math
import secrets
import socket
import threading
import time
import typing
from collections import deque
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
from lro._engine.endings import emit_stored_end
from lro._engine.events import CancelRequested, about
from lro._engine.executor_port import ExecutorUsage, NoWorkers, Slot
from lro._engine.flow import Flow, MayBlock, run_all
from lro._engine.method_spec import MethodSpec
from lro._engine.runtime import Runtime, stopping
from lro._engine.store_port import Claim, Worker
from lro._model.operation import Record, call_back, is_unheld, request_cancel, withdraw

log = logging.getLogger("lro")

_LAST_SECONDS: Final = 1.0
"""How long work that is to stop may take for that, before other processes may begin it again."""
_SHOW_SECONDS: Final = 0.1
"""How long claimed work must go on before a write of its own says when it began."""
_SHOW_AGAIN_SECONDS: Final = 5.0
"""How soon that is tried again, after the store was away."""
_STEP_SECONDS: Final = 0.1
"""How soon a drain that is ended by another call ends."""
_REFUSED: Final = timedelta(seconds=1)
"""How soon the name of work that could not begin may be sent again."""


class ClaimLimits(typing.TypedDict):
    """What a claim says of methods, as :class:`Claim` has it."""

    limits: Mapping[str, int | None]
    keyed: Collection[str]
    rates: Mapping[str, tuple[int, timedelta]]


class StartingRecord:
    """The time in which a record is stored, or claimed; the store stays open until it is over.

    If it is stored as begun here, this process holds the work meanwhile: its lease is renewed. If
    nobody takes the work on then, it is handed back.
    """

    def __init__(self, workers: Workers, attempt: Attempt | None) -> None:
        self.attempt: Attempt | None = attempt
        self._workers = workers
        self._taken = False

    def __enter__(self) -> StartingRecord:
        self._workers.start_begins(self.attempt)
        return self

    def taken(self) -> None:
        """End it before the block does: the work is in hand."""
        self._taken = True
        self._workers.start_over()

    def __exit__(self, _: object, error: BaseException | None, *__: object) -> None:
        if self._taken:
            return
        if self.attempt is not None:
            refused = isinstance(error, LroError) and not isinstance(error, Unavailable)
            if error is None or refused:
                self._workers.retire(self.attempt)
            else:  # it may have been stored all the same
                self._workers.abandon(self.attempt)
        self._workers.start_over()


class Workers(HeldWork):
    """The work that this process has begun: how it gets it, cancels it, and gives it up.

    ``owner`` is the random name under which the process holds it; ``specs`` are the methods, by
    their names and aliases. ``new_work`` is called when it has more of it.
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
        self.stopping: bool = False
        self._store = runtime.store
        self._updater = runtime.updater
        self._specs = specs
        self._new_work = new_work
        self._runs_nothing = isinstance(runtime.executor, NoWorkers)
        super().__init__(runtime, claim_soon, renew_soon)

    def reset_after_fork(self) -> None:
        """Take another name, and hold nothing: the parent process has all work."""
        super().reset_after_fork()
        self._take_name()
        self._unseen: deque[tuple[float, Attempt]] = deque()
        """Work whose start is still to be shown, and when."""
        self._reading = threading.Lock()
        self.paused: frozenset[str] | None = None
        """The names that are paused, as far as this process knows; None: it has not read them."""
        self._starts = threading.Condition(self._lock)
        self._starting = 0
        self._drain_over = threading.Event()

    def _take_name(self) -> None:
        self.owner: str = secrets.token_urlsafe(12)
        self._since: datetime | None = None

    def as_worker(self) -> Worker:
        """What the store is to know of this process; it lives for a lease from now on."""
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
        """Read which methods are paused: a start begins no work of these.

        Raises:
            Unavailable: The store cannot be read now.
        """
        with self._reading:  # or what was read first could be written last
            self.paused = frozenset(self._store.paused())

    def is_paused(self, spec: MethodSpec) -> bool:
        """Return True if a method is paused by any of its names, as far as this process knows."""
        names = spec.full_name, *spec.options.aliases
        return self.paused is not None and not self.paused.isdisjoint(names)

    def claim_limits(self, specs: Collection[tuple[str, MethodSpec]]) -> ClaimLimits:
        """What a claim says of these methods, by the names under which their work is stored.

        What is paused by another name is left out here; the store does so with a paused name.
        """
        paused, known = self.paused or (), [one for one in specs if one[1].function is not None]
        options = {n: s.options for n, s in known if n in paused or not self.is_paused(s)}
        return {
            "limits": {name: one.concurrency for name, one in options.items()},
            "keyed": [name for name, one in options.items() if one.concurrency_key is not None],
            "rates": {name: one.rate for name, one in options.items() if one.rate is not None},
        }

    def lose_all(self) -> None:
        """Stop all work, and go on under another name: this process counts as lost.

        Others have the work, or will have it; what its functions still write is refused.
        """
        with self._lock:
            attempts = list(self._attempts.values())
            self._attempts.clear()
            self._take_name()
        for attempt in attempts:
            attempt.give_up()

    def end(self) -> None:
        """Tell the store that this process has ended; if it cannot be told, it finds out."""
        if self._since is not None:
            with contextlib.suppress(Unavailable):
                self._store.leave(self.owner)

    def starting(self, record: Record, request: object) -> StartingRecord:
        """Make the context in which a record is stored, begun here or not."""
        attempt: Attempt | None = None
        if record.owner == self.owner:
            attempt = Attempt(record, self._specs[record.method], self, request=request)
        return StartingRecord(self, attempt)

    def claiming(self) -> StartingRecord:
        """Make the context in which work is claimed, and taken in hand."""
        return StartingRecord(self, None)

    def start_begins(self, attempt: Attempt | None) -> None:
        """Take note that a record is being stored, as begun by this attempt or not."""
        with self._lock:
            self._starting += 1
            if attempt is not None:
                self._attempts[attempt.name] = attempt

    def start_over(self) -> None:
        """Take note that a record is stored, and this process knows what it has of it."""
        with self._lock:
            self._starting -= 1
            self._starts.notify_all()

    def begin(
        self,
        record: Record,
        slot: Slot,
        *,
        packed: AnyMessage | None = None,
        start: StartingRecord | None = None,
    ) -> Attempt:
        """Have a worker do the work of a record that is claimed for this process, or send its name.

        What the executor cannot take now is handed back; a name is sent again later. ``start`` is
        over as soon as this process holds the work.
        """
        held = record.owner == self.owner
        attempt = None if start is None else start.attempt
        attempt = attempt or Attempt(record, self._specs[record.method], self, packed=packed)
        try:
            shown = packed is None or not attempt.start_unseen
            if held:
                self._hold(attempt, record)
            if start is not None:
                start.taken()
        except BaseException:
            slot.release()
            raise
        try:
            if held and not shown:
                if self.runtime.executor.submits_block:  # it may run in this thread
                    self._show(attempt)
                else:
                    self._show_later(attempt, _SHOW_SECONDS)
            slot.submit(attempt)
        except BaseException as exc:
            facts = about(record.name, record.method)
            if held and isinstance(exc, Exception) and not isinstance(exc, Unavailable):
                log.exception("%s: the executor has failed to take it", record.name, extra=facts)
                attempt.end_refused()
            else:
                log.info("%s: not begun here: %s", record.name, exc, extra=facts)
                if held:
                    self.abandon(attempt)
            if not isinstance(exc, Exception):
                raise
        return attempt

    def _hold(self, attempt: Attempt, record: Record) -> None:
        with self._lock:
            self._attempts[attempt.name] = attempt
        self._new_work()
        until = record.lease_until
        assert until is not None  # it is claimed
        if until - self._store.now() < self.runtime.lease / 2:  # it was stored late
            self._renew_soon()

    def show_starts(self) -> float:
        """Show callers that claimed work has begun, if it goes on; return when to do so again.

        That is in seconds. Work that is over soon needs no write for this.
        """
        now, due = self.runtime.clock(), []
        with self._lock:
            while self._unseen and self._unseen[0][0] <= now:
                due.append(self._unseen.popleft()[1])
            left = self._unseen[0][0] - now if self._unseen else math.inf
        for attempt in due:
            self._show(attempt)
        return left

    def _show(self, attempt: Attempt) -> None:
        attempt.show_start(functools.partial(self._show_later, attempt, _SHOW_AGAIN_SECONDS))

    def _show_later(self, attempt: Attempt, seconds: float) -> None:
        with self._lock:
            while self._unseen and self._unseen[0][1].over:
                self._unseen.popleft()
            self._unseen.append((self.runtime.clock() + seconds, attempt))

    def run_operation(self, name: str) -> None:
        """Claim the work of a stored operation and do it in this thread, unless it is held.

        Work that may not begin now, as its method is paused or a limit is reached, goes on waiting
        in the store: its name is sent again when it may.

        Raises:
            Unavailable: The store cannot be reached, or the service is stopping.
        """
        try:
            method = self._store.get(name).method
        except OperationNotFound:
            return
        spec = self._specs.get(method)
        if spec is None or spec.function is None:
            line = "%s: of the unknown method %s, left to others"
            log.error(line, name, method, extra=about(name, method))
            return
        if spec.options.aliases:
            self.read_paused()
        until = self._store.now() + self.runtime.lease
        limits = self.claim_limits([(method, spec)])
        claim = Claim(self.owner, until, most=1, without=self.left, only=name, **limits)
        with self.claiming() as claiming:
            if self.stopping:
                raise stopping()
            for record, packed in self._store.claim(claim).works:
                attempt = Attempt(record, spec, self, packed=packed)
                try:
                    self._hold(attempt, record)
                    claiming.taken()
                    if spec.options.rate is not None:  # from now on it is known when more may begin
                        self.work_waits()
                    attempt.show_start()
                    attempt.run()
                except BaseException:  # also a signal, before the work has begun
                    self.retire(attempt)
                    raise
                return
        self._call_back(name)

    def _call_back(self, name: str) -> None:
        """Have the name of work that could not begin sent again, when there is room for it.

        Work that is left to others is sent again after the time of redelivery.
        """
        pause = self.runtime.executor.redelivery if name in self.left else None
        due = self._store.now() + (pause or _REFUSED)
        with contextlib.suppress(OperationNotFound):
            after = self._store.update(name, call_back(due))
            if after is not None and after.lease_until == due:
                self.work_waits()

    def cancel(self, record: Record, caller: str, abandoned: Collection[str] = ()) -> Flow[None]:
        """Store the request to cancel an operation, and let it reach the work, wherever that is.

        ``abandoned`` are owners whose work nobody goes on with: what they have ends at once.

        Raises:
            OperationNotFound: It was removed meanwhile.
        """
        spec = self._specs.get(record.method)
        ask, before = request_cancel(self._store.now()), record

        def change(seen: Record) -> Record | None:
            nonlocal before
            before = seen  # another caller may have asked since the record was read
            return ask(seen)

        stamp = spec.stamp if spec else None
        after = yield from self._updater.applied(record.name, change, stamp)
        assert after is not None  # the request removes nothing
        events = self.runtime.events
        if events and after.cancel_pending and not before.cancel_requested:
            method = events.renamed.get(record.method, record.method)
            events.emit(CancelRequested(name=record.name, method=method, caller=caller))
        if record.name in self._attempts:  # it may wait for its turn
            yield MayBlock(functools.partial(self.cancel_held, record.name))
        if after.cancel_pending and is_unheld(after, abandoned):
            yield from self._end_unheld(record.name, spec, abandoned)

    def _end_unheld(
        self, name: str, spec: MethodSpec | None, abandoned: Collection[str]
    ) -> Flow[None]:
        """End what nobody is at, also if it is of a method that is gone."""
        status = self.runtime.types.status_of(Cancelled(), self.runtime.domain)
        keep_for = self.runtime.keep_for if spec is None else spec.keep_for
        change = withdraw(status, self._store.now(), keep_for, abandoned)
        # If it has just been claimed, its worker learns of the request.
        with contextlib.suppress(LeaseLost, NotApplied, OperationNotFound):
            stamp = None if spec is None else spec.stamp
            after = yield from self._updater.applied(name, change, stamp)
            emit_stored_end(self.runtime.events, after)

    def cancel_held(self, name: str) -> None:
        """Let a request to cancel, which is stored, reach the work if this process holds it."""
        attempt = self._attempts.get(name)
        if attempt is not None:
            attempt.cancel()

    def has_suspect(self) -> bool:
        """Whether this process does work that may have killed its workers."""
        return any(attempt.suspect for attempt in self.attempts())

    def release_abandoned(self) -> None:
        """Hand back what could not go on here.

        Raises:
            Unavailable: The store is away.
        """
        while self._abandoned:
            with self._lock:
                some, self._abandoned = self._abandoned, []
            for attempt in some:
                self.retire(attempt)
            _release(some)

    def stop(self, drain: timedelta) -> None:
        """Start nothing more; give running work time to end; hand the rest back."""
        attempts: list[Attempt] = []
        executor, over = self.runtime.executor, False
        try:
            self.stopping = True
            executor.stop()
            with self._starts:  # what is being stored is handed back, or waits
                self._starts.wait_for(lambda: not self._starting, _LAST_SECONDS)
            attempts = list(self._attempts.values())
            if attempts:
                text = "stopping: operations in hand: %d, time to end: %g s at most"
                log.info(text, len(attempts), drain.total_seconds())
            over = self._drained(drain.total_seconds())
            if not over:
                for attempt in list(self._attempts.values()):
                    attempt.give_up()  # what stops in time hands itself back: no other has begun it
                kill: Callable[[], None] | None = getattr(executor, "kill", None)
                if not executor.join(_LAST_SECONDS) and kill is not None:
                    kill()  # its work is handed back next, and must not go on here
                    executor.join(_LAST_SECONDS)
        finally:  # also where a second signal ends the drain
            with self._lock:  # what the executor has not got yet, it refuses
                held = self._attempts.values()
                left = [*self._abandoned, *(a for a in held if not (over and a.executing))]
            _release(left)
            if attempts:
                back = sum(attempt.handed_back for attempt in attempts)
                log.info("stopped: operations handed back: %d of %d", back, len(attempts))

    def end_drain(self) -> None:
        """Have :meth:`stop`, which another thread is in or comes to, wait for no work."""
        self._drain_over.set()

    def _drained(self, seconds: float) -> bool:
        """Wait for running work, in steps between which the drain may be ended."""
        now, over = time.monotonic(), False
        end = now + seconds
        while not self._drain_over.is_set():
            step = max(0.0, min(end - now, _STEP_SECONDS))
            over = self.runtime.executor.join(step)
            began, now = now, time.monotonic()
            if over or now >= end or now - began < step / 2:  # it cannot wait on its own loop
                break
        return over


def _release(attempts: Collection[Attempt]) -> None:
    """Hand work back; the writes share groups."""
    run_all([attempt.released() for attempt in attempts])


@functools.cache
def installed_version() -> str:
    """The release of this library that is installed; empty if that is not known."""
    import importlib.metadata  # only where work runs: it takes as long as half of importing lro

    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        return importlib.metadata.version("lro")
    return ""
