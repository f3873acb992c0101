"""The work that a process has: how it gets it, cancels it, and gives it up."""

from __future__ import annotations

import contextlib
import functools
import logging
import secrets
import threading
import time
from collections.abc import Collection, Mapping
from datetime import timedelta
from typing import Final, Protocol

from lro._base.errors import Cancelled, LeaseLost, NotApplied, OperationNotFound
from lro._engine.attempt import Attempt
from lro._engine.events import CancelRequested, about, emit_end
from lro._engine.executor_port import Slot
from lro._engine.flow import Flow, MayBlock
from lro._engine.method_spec import MethodSpec
from lro._engine.runtime import Runtime, stopping
from lro._model.operation import (
    Change,
    Record,
    if_unchanged_since,
    release,
    request_cancel,
    take_over,
    withdraw,
)

log = logging.getLogger("lro")

_LAST_SECONDS: Final = 1.0
"""How long work that is to stop may take for that, before other processes may begin it again."""
_LEFT_AT_MOST: Final = 1_000
"""How many operations a process remembers that it leaves to others."""
_STEP_SECONDS: Final = 0.1
"""How soon a drain that is ended by another call ends."""


class Overseer(Protocol):
    """What looks after the work of a process: see ``Background``."""

    def new_work(self) -> None:
        """Begin to renew leases and to receive requests to cancel."""
        ...

    def request_orphan_scan(self) -> None:
        """Look soon for work that has lost its worker."""
        ...

    def request_renewal(self) -> None:
        """Renew all leases soon: little is left of one."""
        ...


class Workers:
    """The work that this process has, begun or waiting.

    ``owner`` is the random name under which the process holds it; ``specs`` are the methods.
    """

    def __init__(
        self, runtime: Runtime, specs: Mapping[str, MethodSpec], overseer: Overseer
    ) -> None:
        self.runtime = runtime
        self.stopping: bool = False
        self._store = runtime.store
        self._updater = runtime.updater
        self._specs = specs
        self._overseer = overseer
        self.reset_after_fork()

    def reset_after_fork(self) -> None:
        """Take another owner's name, and hold nothing: the parent process has all work."""
        self.owner: str = secrets.token_urlsafe(12)
        # Where garbage is collected while it is held, a coroutine may be closed that retires work.
        self.lock: threading.RLock = threading.RLock()
        self._starting: set[Attempt] = set()
        self._not_started: list[Record] = []
        self._attempts: dict[str, Attempt] = {}
        self._rooms: dict[str, threading.Semaphore] = {}
        self.left: set[str] = set()
        """The names of the operations that are left to processes of another release."""
        self._drain_over = threading.Event()

    def starting(
        self, spec: MethodSpec, record: Record, request: object, *, begun: bool
    ) -> Attempt:
        """The attempt at an operation that is stored within its ``with`` block.

        ``begun``: the record says that this process has begun it. Unless it begins, it is handed
        back.
        """
        held = record if record.owner == self.owner else None
        return Attempt(record.name, spec, self, request, held, begun=begun)

    def start_begins(self, attempt: Attempt) -> None:
        """Take note of an attempt whose operation is being stored."""
        with self.lock:
            self._starting.add(attempt)
            if self.runtime.executor.redelivery is None:
                self._attempts[attempt.name] = attempt

    def start_over(self, attempt: Attempt) -> None:
        """Take note that the start of this attempt's operation is over."""
        if attempt.revoked:
            self.retire(attempt)
        self._starting.discard(attempt)
        attempt.start_over()

    def begin(self, attempt: Attempt, slot: Slot) -> None:
        """Have the work of a stored operation done: in this process, or by the one that claims it.

        Raises:
            Unavailable: The executor refuses.
        """
        slot.submit(attempt)
        if self.runtime.executor.redelivery is None:
            self._overseer.new_work()

    def run_operation(self, name: str) -> None:
        """Claim the work of a stored operation and do it in this thread, unless it is held.

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
        task = Attempt(name, spec, self)
        with self._room_for(spec):
            with self.lock:
                if self.stopping:
                    raise stopping()
                if name in self._attempts:
                    return
                self._attempts[name] = task
            self._overseer.new_work()
            task.run()

    def _room_for(self, spec: MethodSpec) -> contextlib.AbstractContextManager[object]:
        limit = spec.options.concurrency
        if limit is None:
            return contextlib.nullcontext()
        with self.lock:
            return self._rooms.setdefault(spec.full_name, threading.Semaphore(limit))

    def resume(self, spec: MethodSpec, seen: Record) -> None:
        """Take over work that no process holds.

        Raises:
            LeaseLost: Another process holds it, or has held it since it was ``seen`` so.
            ResourceExhausted, Unavailable: There is no room for it.
        """
        slot = self.runtime.executor.reserve()
        try:
            taken = self._updater.apply(seen.name, if_unchanged_since(seen, self._taking_over()))
            assert taken is not None  # a take-over removes nothing
        except BaseException:
            slot.release()
            raise
        try:
            with self.starting(spec, taken, None, begun=False) as attempt:
                self.begin(attempt, slot)
        except BaseException:
            if taken.owner:  # the executor is stopping: others must not wait for our lease
                self._updater.apply(seen.name, release(taken.attempt, self._store.now()))
            raise

    def _taking_over(self) -> Change:
        now, redelivery = self._store.now(), self.runtime.executor.redelivery
        if redelivery is None:
            return take_over(self.owner, now + self.runtime.lease, now)

        def change(record: Record) -> Record | None:
            # The longer it has waited, the longer is the queue that it may still stand in.
            until = now + max(redelivery, now - record.create_time)
            return take_over("", until, now)(record)

        return change

    def cancel(self, record: Record, caller: str) -> Flow[None]:
        """Store the request to cancel an operation, and let it reach the work, wherever that is.

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
            events.emit(CancelRequested(name=record.name, method=record.method, caller=caller))
        if record.name in self._attempts:  # it may wait for its turn, and write the end of the work
            yield MayBlock(functools.partial(self.cancel_held, record.name))
        if spec is not None and after.cancel_pending and after.unclaimed:
            yield from self._end_unclaimed(record.name, spec)

    def _end_unclaimed(self, name: str, spec: MethodSpec) -> Flow[None]:
        status = spec.types.status_of(Cancelled(), self.runtime.domain)
        change = withdraw(status, self._store.now(), spec.keep_for)
        # If it has just been claimed, its worker learns of the request.
        with contextlib.suppress(LeaseLost, NotApplied, OperationNotFound):
            after = yield from self._updater.applied(name, change, spec.stamp)
            if after is not None:
                self.runtime.events.look()  # it may be the first that this process has to do
                emit_end(self.runtime.events, after)

    def cancel_held(self, name: str) -> None:
        """Let a request to cancel, which is stored, reach the work if this process holds it."""
        attempt = self._attempts.get(name)
        if attempt is None:
            return
        with self.lock:
            attempt.cancelling = attempt.cancelling or threading.RLock()
        # The caller, the listener and the renewal may come at once: each waits until this is done.
        with attempt.cancelling:
            if self.runtime.executor.withdraw(name):
                attempt.end_not_started()
            else:
                attempt.cancel()

    def leave(self, name: str) -> None:
        """Leave an operation to processes of another release, which know its request."""
        if len(self.left) >= _LEFT_AT_MOST:
            self.left.clear()
        self.left.add(name)

    def attempts(self) -> Collection[Attempt]:
        """The attempts whose work this process has, begun or waiting."""
        with self.lock:
            return list(self._attempts.values())

    def held(self) -> frozenset[str]:
        """The names of the operations whose work this process has, begun or waiting."""
        if not self._attempts:
            return frozenset()
        with self.lock:
            return frozenset(self._attempts)

    def release_not_started(self) -> None:
        """Hand back what is stored as begun by this process, which could not begin or end it.

        Raises:
            Unavailable: The store is away.
        """
        for task in self.runtime.executor.abandoned():
            attempt = self._attempts.get(task.name)
            if attempt is not None:
                attempt.release()
                self.retire(attempt)
                self._overseer.request_orphan_scan()
        while self._not_started:
            record = self._not_started[0]
            back = release(record.attempt, self._store.now())
            with contextlib.suppress(NotApplied, LeaseLost, OperationNotFound):
                self._updater.apply(record.name, if_unchanged_since(record, back))
                self._overseer.request_orphan_scan()
            self._not_started.remove(record)

    def stop(self, drain: timedelta) -> None:
        """Start nothing more; give running work time to end; hand the rest back."""
        # A store that is away is not asked once for each: what it does not hear of is taken over
        # when the leases run out.
        there, over = True, False
        attempts: list[Attempt] = []
        try:
            self.stopping = True
            attempts = list(self._attempts.values())
            if attempts:
                seconds = drain.total_seconds()
                text = "stopping: operations in hand: %d, time to end: %g s at most"
                log.info(text, len(attempts), seconds)
            for task in self.runtime.executor.stop():
                attempt = self._attempts.get(task.name)
                if attempt is not None:
                    there = there and attempt.release()
                    self.retire(attempt)
            until = time.monotonic() + drain.total_seconds() + _LAST_SECONDS
            # What is just being stored is refused by the executor now, and handed back.
            for attempt in [*self._starting]:
                attempt.await_start(max(0.0, until - time.monotonic()))
            over = self._drained(drain.total_seconds())
            if not over:
                for attempt in list(self._attempts.values()):
                    attempt.give_up()  # what stops in time hands itself back: no other has begun it
                self.runtime.executor.join(_LAST_SECONDS)
        finally:  # also where a second signal ends the drain
            for attempt in [] if over else list(self._attempts.values()):
                there = there and attempt.release()
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

    def stored(self, record: Record) -> None:
        """Renew the leases soon if this record was stored late, for instance after a lock."""
        until = record.lease_until
        assert until is not None  # this process holds it
        if until - self._store.now() < self.runtime.lease / 2:
            self._overseer.request_renewal()

    def retire(self, attempt: Attempt) -> None:
        """Forget an attempt that is over, or never begins."""
        with self.lock:
            if (
                self._attempts.get(attempt.name) is attempt
            ):  # not a later one, begun after a lost lease
                del self._attempts[attempt.name]
            if attempt.not_started is not None:
                self._not_started.append(attempt.not_started)
        if attempt.lost:
            self._overseer.request_orphan_scan()
