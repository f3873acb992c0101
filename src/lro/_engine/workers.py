"""The work that a process has: how it comes by it, and how it gives it up."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Final

from lro._base.errors import Cancelled, LeaseLost, NotApplied, OperationNotFound, Unavailable
from lro._engine.attempt import Attempt, WorkerIdentity
from lro._engine.executor_port import Executor, Slot
from lro._engine.method_spec import MethodSpec
from lro._engine.record_updater import RecordUpdater
from lro._model.record import Record
from lro._model.transitions import Change, if_unchanged_since, release, take_over, withdraw

log = logging.getLogger("lro")

_LAST_SECONDS: Final = 1.0
"""How long work that is to stop may take for that, before others may begin it anew."""


class Workers:
    """The work that this process has, begun or waiting, under the name of ``owner``.

    ``nudge`` is called when there is new work, ``scan_orphans`` when some has lost its worker,
    ``renew`` when little was left of a lease by the time that it was stored.
    """

    def __init__(
        self,
        *,
        updater: RecordUpdater,
        executor: Executor,
        owner: str,
        lease: timedelta,
        domain: str,
        clock: Callable[[], float],
        nudge: Callable[[], None],
        scan_orphans: Callable[[], None],
        renew: Callable[[], None],
    ) -> None:
        self._updater = updater
        self._executor = executor
        self._lease = lease
        self.domain = domain
        self._clock = clock
        self._nudge = nudge
        self._scan_orphans = scan_orphans
        self._renew = renew
        self.stopping = False
        self.forked(owner)

    def forked(self, owner: str) -> None:
        """Begin anew, for another owner: in a forked process, all work is the parent's."""
        self.owner = owner
        self._lock = threading.Lock()
        self._starting: set[Attempt] = set()
        self._unbegun: list[Record] = []
        self._runs: dict[str, Attempt] = {}
        self._rooms: dict[str, threading.Semaphore] = {}
        self._worker = WorkerIdentity(
            updater=self._updater,
            owner=owner,
            lease=self._lease,
            domain=self.domain,
            clock=self._clock,
            retire=self._retire,
            stored=self._stored,
        )

    @contextlib.contextmanager
    def starting(
        self, spec: MethodSpec, record: Record, request: object, *, begun: bool
    ) -> Iterator[Attempt]:
        """The work of an operation that is stored meanwhile: from now on this process has it.

        ``begun``: the record says that this process has begun it. Unless it begins, it is handed
        back. The store is not closed before all these blocks are left.
        """
        held = record if record.owner == self.owner else None
        run = Attempt(record.name, spec, self._worker, request, held, begun=begun)
        with self._lock:
            self._starting.add(run)
            if self._executor.redelivery is None:
                self._runs[run.name] = run
        try:
            yield run
            self._stored(record)
        except BaseException:
            run.revoke()
            raise
        finally:
            if run.revoked:
                self._retire(run)
            self._starting.discard(run)
            run.start_over()

    def begin(self, run: Attempt, slot: Slot) -> Record | None:
        """Have the work of a stored operation done: in this process, or by whoever claims it.

        Returns:
            How it has ended, if it has done so already, in this process.

        Raises:
            Unavailable: The executor refuses.
        """
        slot.submit(run)
        if self._executor.redelivery is None:
            self._nudge()
        return run.ended

    def work(self, spec: MethodSpec, name: str) -> None:
        """Claim the work of a stored operation and do it in this thread, unless somebody has it.

        Raises:
            Unavailable: The service is stopping.
        """
        task = Attempt(name, spec, self._worker)
        with self._room_for(spec):
            with self._lock:
                if self.stopping:
                    raise Unavailable("the service is stopping")
                if name in self._runs:
                    return
                self._runs[name] = task
            self._nudge()
            task.run()

    def _room_for(self, spec: MethodSpec) -> contextlib.AbstractContextManager[object]:
        limit = spec.options.concurrency
        if limit is None:
            return contextlib.nullcontext()
        with self._lock:
            return self._rooms.setdefault(spec.full_name, threading.Semaphore(limit))

    def resume(self, spec: MethodSpec, seen: Record) -> None:
        """Take over work that nobody holds.

        Raises:
            LeaseLost: Somebody does hold it, or has held it since it was ``seen`` so.
            ResourceExhausted, Unavailable: There is no room for it.
        """
        slot = self._executor.reserve()
        try:
            taken = self._updater.apply(seen.name, if_unchanged_since(seen, self._taking_over()))
            assert taken is not None  # a take-over removes nothing
        except BaseException:
            slot.release()
            raise
        try:
            with self.starting(spec, taken, None, begun=False) as run:
                self.begin(run, slot)
        except BaseException:
            if taken.owner:  # the executor is stopping: others must not wait for our lease
                self._updater.apply(seen.name, release(taken.attempt, self._updater.store.now()))
            raise

    def _taking_over(self) -> Change:
        now, redelivery = self._updater.store.now(), self._executor.redelivery
        if redelivery is None:
            return take_over(self.owner, now + self._lease, now)

        def change(record: Record) -> Record | None:
            # The longer it has waited, the longer is the queue that it may still stand in.
            until = now + max(redelivery, now - record.create_time)
            return take_over("", until, now)(record)

        return change

    def cancel_unclaimed(self, spec: MethodSpec, name: str) -> None:
        """End an operation that is asked to stop, if nobody has its work."""
        status = spec.types.status_of(Cancelled(), self.domain)
        change = withdraw(status, self._updater.store.now(), spec.expiry)
        try:
            self._updater.apply(name, change, spec.stamp)
        except (LeaseLost, NotApplied, OperationNotFound):
            pass  # it has just been claimed, and its worker learns of the request

    def cancel(self, name: str) -> None:
        """Let a request to cancel reach the work, if this process holds it."""
        run = self._runs.get(name)
        if run is None:
            return
        # The caller and a thread that hears of it may both come: the second waits for the end.
        with run.cancelling:
            if self._executor.withdraw(name):
                run.end_not_started()
            else:
                run.cancel()

    def has(self, name: str) -> bool:
        """Whether this process has the work of this operation."""
        return name in self._runs

    def held(self) -> frozenset[str]:
        """The names of the operations whose work this process has, begun or waiting."""
        if not self._runs:
            return frozenset()
        with self._lock:
            return frozenset(self._runs)

    def release_not_started(self) -> None:
        """Hand back what is stored as begun by this process, which could not begin it after all.

        Raises:
            Unavailable: The store is away.
        """
        while self._unbegun:
            record = self._unbegun[0]
            back = release(record.attempt, self._updater.store.now())
            with contextlib.suppress(NotApplied, LeaseLost, OperationNotFound):
                self._updater.apply(record.name, if_unchanged_since(record, back))
                self._scan_orphans()
            self._unbegun.remove(record)

    def stop(self, drain: timedelta) -> None:
        """Start nothing more; give running work time to end; hand the rest back (design §5)."""
        # A store that is away is not asked once for each: what it does not hear of is taken over
        # when the leases run out.
        there, over = True, False
        runs: list[Attempt] = []
        try:
            self.stopping = True
            runs = list(self._runs.values())
            if runs:
                seconds = drain.total_seconds()
                text = "stopping: operations in hand: %d, time to end: %g s at most"
                log.info(text, len(runs), seconds)
            for task in self._executor.stop():
                run = self._runs.get(task.name)
                if run is not None:
                    there = there and run.release()
                    self._retire(run)
            until = time.monotonic() + drain.total_seconds() + _LAST_SECONDS
            # What is just being stored is refused by the executor now, and handed back.
            for run in [*self._starting]:
                run.await_start(max(0.0, until - time.monotonic()))
            over = self._executor.join(drain.total_seconds())
            if not over:
                for run in list(self._runs.values()):
                    run.give_up()  # what stops in time hands itself back: no other has begun it
                self._executor.join(_LAST_SECONDS)
        finally:  # also where a second signal ends the drain
            for run in [] if over else list(self._runs.values()):
                there = there and run.release()
            if runs:
                back = sum(run.handed_back for run in runs)
                log.info("stopped: operations handed back: %d of %d", back, len(runs))

    def _stored(self, record: Record) -> None:
        """This record is stored by now; it may have waited, for whoever kept the store locked."""
        until = record.lease_until
        if until is None or record.owner != self.owner:
            return
        if until - self._updater.store.now() < self._lease / 2:
            self._renew()

    def _retire(self, run: Attempt) -> None:
        with self._lock:
            if self._runs.get(run.name) is run:  # not a later one, begun after a lost lease
                del self._runs[run.name]
            if run.not_started is not None:
                self._unbegun.append(run.not_started)
        if run.lost:
            self._scan_orphans()
