"""Background work of a process: renew the lease, recover lost work, remove expired operations."""

from __future__ import annotations

import contextlib
import logging
import math
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final

from lro._base.errors import LeaseLost, LroError, NotApplied, Unavailable, one_line
from lro._engine.change_listener import ChangeListener
from lro._engine.claims import Claims
from lro._engine.endings import emit_stored_end, store_expiry, store_loss
from lro._engine.events import LeaseRenewed, OperationsExpired, about
from lro._engine.executor_port import CancelSupport, NoWorkers
from lro._engine.flow import Flow, run_all
from lro._engine.live_workers import IDLE_RENEWAL, stranded
from lro._engine.local_work import LocalWork
from lro._engine.method_spec import MethodSpec
from lro._engine.process import PerProcess, installed_version
from lro._engine.runtime import Runtime
from lro._engine.store_port import Orphans
from lro._model.operation import Record
from lro._schedules.runner import Schedules

log = logging.getLogger("lro")

_BATCH: Final = 100
_EXPIRY_BATCH: Final = 1000
_EXPIRY_SECONDS: Final = 60.0
_STRANDED_AGE: Final = timedelta(minutes=1)
"""Work that has been due for longer than this is logged if no live worker declares its method."""
_STEP_SECONDS: Final = 1.0
_SCAN_PAUSE_SECONDS: Final = 0.1
"""Minimum interval between requested scans: a scan that finds nothing is not repeated at once."""
_DECLARED_SECONDS: Final = 0.5
"""Delay of the scan after a method is declared, while its module may still be loading."""
_GRACE_SECONDS: Final = 1.0
_LEAST_PAUSE_SECONDS: Final = 0.01
"""Minimum interval between two runs of the due tasks."""
_TRIES: Final = 5
"""How many times a write is tried in one grace period, while the store is unavailable."""
_GRACES: Final = 4
"""A lease lasts for at least this number of grace periods."""
LEAST_LEASE: Final = timedelta(seconds=_LEAST_PAUSE_SECONDS * _TRIES * _GRACES)
"""The shortest allowed lease. Within a shorter lease, a write could not be tried often enough."""
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class Maintenance(PerProcess):
    """Renews the lease of this process, finds lost workers, and removes expired operations.

    :meth:`run_due` runs the due tasks; :meth:`start` calls it in a thread. The runtime's monotonic
    clock decides when a task is due. Leases expire by the store's clock, which may be set to
    another time.

    An expired lease does not prove that its worker is dead: perhaps no process could write to the
    store until a moment ago. A process that did not try to write cannot know this. So this process
    looks for expired leases twice, with a grace period in between, and each look also writes
    (``Store.orphans``). A live worker retries its renewal several times in a grace period, so it
    has renewed its lease by the second look. A worker counts as lost if its lease had expired at
    both looks. A worker whose process is known to have ended is lost at once.
    """

    def __init__(self, runtime: Runtime, work: LocalWork, specs: Mapping[str, MethodSpec]) -> None:
        self.schedules: Schedules = Schedules(
            runtime.store, runtime.clock, lambda: self._wake.set()
        )
        lease = runtime.lease
        self._runtime = runtime
        self._store = runtime.store
        self._work = work
        self._specs = specs
        self._clock = runtime.clock
        self._statistics = runtime.statistics
        self._period = lease.total_seconds() / 3
        self._grace = min(_GRACE_SECONDS, lease.total_seconds() / _GRACES)
        self._lead: float | None = None

        self._renew_at = self._idle_at = self._clock()
        self._scan_at = self._calm_until = self._expire_at = self._clock()
        self._renew_asked_at = self._declared_at = self._scan_asked_at = math.inf
        self._asking = threading.Lock()
        """Guards the times that other threads may only bring forward."""
        self._renewed_at: float | None = None
        self._strays: Collection[str] = frozenset()
        self._overdue: dict[str, tuple[datetime | None, float]] = {}
        """By owner: when its lease expired, and when the first look found the expired lease."""
        self._scan_took = 0.0
        self._stuck = 0  # number of lost operations that the last scan could not recover
        self._looked_at = -math.inf
        self._away = False
        self._stranded: Collection[str] = frozenset()
        self._wake = threading.Event()
        self._stopped = False
        self._thread: threading.Thread | None = None

    def _after_fork(self) -> None:
        schedules = self.schedules
        super()._after_fork()
        self.schedules = schedules
        schedules.reset_after_fork()

    def start(self) -> None:
        """Start the maintenance thread, which runs no functions of methods. Idempotent."""
        if self._thread is not None:
            return
        installed_version()  # imports a module here: a fork while a thread imports breaks the child
        thread = threading.Thread(target=self._live, name="lro-maintenance", daemon=True)
        thread.start()
        self._thread = thread

    def stop(self) -> None:
        """End the thread."""
        self._stopped = True
        self.schedules.stop()
        self._wake.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def method_declared(self) -> None:
        """Update this process's row soon, and scan for lost work of the new method."""
        at = self._clock() + _DECLARED_SECONDS
        with self._asking:
            self._declared_at = min(self._declared_at, at)
        self._ask_scan(at)

    def look_at(self, moment: datetime) -> None:
        """At the given time, scan for work that is too late to begin."""
        seconds = max(0.0, (moment - self._store.now()).total_seconds())
        self._ask_scan(self._clock() + seconds)

    def _ask_scan(self, at: float) -> None:
        with self._asking:
            self._scan_asked_at = min(self._scan_asked_at, at)
        self._wake.set()

    def request_renewal(self) -> None:
        """Let the thread renew the lease now, and release the work that this process cannot do.

        This is called when a record was stored with little of its lease left, and when work was
        added to the queue of :meth:`LocalWork.release_queued`.
        """
        self._renew_asked_at = -math.inf
        self._wake.set()

    def run_due(self) -> float:
        """Run the due tasks, and return the seconds until the next one is due.

        An idle process scans for lost workers and their work once per lease. Once a minute, it
        renews its lease and removes expired operations. A lease that begins after a scan cannot
        expire before the next scan.

        Raises:
            Unavailable: The store cannot be reached.
        """
        try:
            return self._run_due()
        except Unavailable as exc:
            if not self._away:  # log it once; the next tries follow within a second
                log.warning("maintenance: %s (%s)", exc, exc.__cause__)
            self._away = True
            raise

    def _run_due(self) -> float:
        self._runtime.executor.begin_here()  # releases the work of an event loop that was closed
        at, held = self._clock(), self._work.held()
        if not held:
            self._renewed_at = None
        self._follow_clock()
        if self._away:
            self._follow_outage()
        elif self._renewal_at() <= at:
            self._renew()
        if self._renewal_at() > self._clock():  # the lease is renewed first
            self._work.release_queued()
            for task, due in self._due().items():
                if due <= self._clock():
                    task()
        # New work does not wake this thread: the thread checks often enough, without reading the
        # store.
        next_at = min(self._renewal_at(), *self._due().values(), at + self._period)
        return max(_LEAST_PAUSE_SECONDS, next_at - self._clock())

    def _renewal_at(self) -> float:
        working = self._work.held() or self._strays
        asked = min(self._renew_asked_at, self._declared_at)
        return min(asked, self._idle_at, self._renew_at if working else math.inf)

    def _due(self) -> Mapping[Callable[[], object], float]:
        """Return the tasks, except the renewal, and when each task is due."""
        asked = max(self._looked_at + _SCAN_PAUSE_SECONDS, self._scan_asked_at)
        table: dict[Callable[[], object], float] = {
            self._scan_orphans: max(self._calm_until, min(self._scan_at, asked)),
            self._expire: self._expire_at,
        }
        if self._statistics is not None:
            table[self._statistics.flush] = self._statistics.flush_at
        if not self._work.stopping:
            table[self._run_schedules] = self._clock() + self.schedules.due_in()
        return table

    def _run_schedules(self) -> None:
        # Schedules run in a thread of their own: the application's hooks may block, but the renewal
        # of the lease must not wait.
        self.schedules.run(apart=self._thread is threading.current_thread())

    def _follow_clock(self) -> None:
        # If the store's clock was set, all leases seem to have expired, or to last too long.
        asked, now, answered = self._clock(), self._store.now(), self._clock()
        if answered - asked >= _STEP_SECONDS:
            return  # a slow answer, as on a new connection, does not tell when the clock was read
        lead = (now - _EPOCH).total_seconds() - answered
        before, self._lead = self._lead, lead
        if before is None or abs(lead - before) < _STEP_SECONDS:
            return
        log.warning("the store's clock was set by %+.1f s: the lease is renewed", lead - before)
        self._renew_asked_at = -math.inf
        self._let_all_renew()

    def _follow_outage(self) -> None:
        # Only a write proves that the store is back: a locked SQLite file can still be read.
        self._renew()
        log.warning("maintenance: the store is available again")
        self._away = False
        self._let_all_renew()

    def _let_all_renew(self) -> None:
        # This process scans only after the live processes have had time to renew their leases.
        self._overdue.clear()
        self._calm_until = self._clock() + self._period + _STEP_SECONDS

    def _renew(self) -> None:
        # The next renewal is timed from before this write, so it comes soon if this write was slow.
        at, count = self._clock(), len(self._work.held())
        self._renew_asked_at = self._declared_at = math.inf
        renewed = self._store.renew(self._work.as_worker())
        # These times are set after the write: if it fails, the next run renews again before it
        # scans.
        self._renew_at, self._idle_at = at + self._period, at + IDLE_RENEWAL.total_seconds()
        if renewed is None:
            log.warning("this worker counts as lost: others have its work, which stops here")
            self._work.lose_all()
            self._renew_asked_at = -math.inf
            return
        self._observe_renewal(count)
        if self._runtime.executor.cancel_support is not CancelSupport.FORCED:
            for attempt in self._work.attempts():
                attempt.warn_of_overrun()
        for name in renewed.cancel_requested:
            self._work.cancel_held(name)
        # Strays: operations given to this process by a claim whose answer was lost.
        strays = frozenset(renewed.older) - self._work.held()
        again, self._strays = strays & frozenset(self._strays), strays
        if again:
            found = self._store.find(again).records
            self._recover([record for record in found if record.owner == self._work.owner])

    def _observe_renewal(self, count: int) -> None:
        lease, at = self._runtime.lease.total_seconds(), self._clock()
        before, self._renewed_at = self._renewed_at, at
        if count > 0:
            margin = lease if before is None else max(0.0, lease - (at - before))
            self._runtime.events.emit(LeaseRenewed(count=count, margin_seconds=margin))

    def _scan_orphans(self) -> None:
        began = self._clock()
        # The scan stays due until it succeeds. It may miss work that other threads report from here
        # on: their requests make another scan due.
        self._scan_at, self._scan_asked_at = began, math.inf
        methods = [name for name, spec in [*self._specs.items()] if spec.function is not None]
        found = self._store.orphans(methods, _BATCH + self._stuck)
        at, now = self._clock(), self._store.now()
        took, before, self._scan_took = at - began, self._scan_took, at - began
        # If the scan waited for a lock, renewals waited, too, so the looks start over. A scan that
        # takes equally long each time is slow, but does not wait for a lock. The looks also start
        # over after a long gap between two of them: perhaps no process could write meanwhile.
        waited = took > self._grace / 2 and took > 2 * before
        if waited or at - self._looked_at > self._grace + _STEP_SECONDS + before:
            self._overdue.clear()
        records = found.records
        if self._lose(found, at):
            records = self._store.orphans(methods, _BATCH + self._stuck).records
        self._stuck = self._recover(records)
        self._end_unbegun(found.unbegun)
        # The grace period of newly overdue owners begins now: the recovery may have taken long.
        self._looked_at = self._clock()
        for owner, (until, since) in self._overdue.items():
            if since == at:
                self._overdue[owner] = until, self._looked_at
        latest = self._runtime.lease
        if found.next_look is not None:
            latest = min(latest, max(timedelta(0), found.next_look - now))
        self._scan_at = at + latest.total_seconds()
        if self._overdue or records:
            self._scan_at = min(self._scan_at, self._looked_at + self._grace)

    def _lose(self, found: Orphans, at: float) -> bool:
        """Declare workers lost that are dead, or overdue at both looks; return True if any is."""
        before, self._overdue = self._overdue, {}
        lost = False
        for owner, until in found.overdue.items():
            if owner == self._work.owner:  # this process, late or unaware of the work
                self._renew()
                continue
            known = before.get(owner)
            since = at if known is None or known[0] != until else known[1]
            if at - since < self._grace and owner not in found.dead:
                self._overdue[owner] = until, since
            elif self._store.lose(owner, until):
                log.warning("the worker %s%s counts as lost", owner, self._place_of(owner))
                lost = True
        return lost

    def _place_of(self, owner: str) -> str:
        """Return the process and machine of a worker as a text for the log, if they are known."""
        with contextlib.suppress(LroError):
            for worker in self._store.workers():
                if worker.owner == owner and worker.host:
                    return f" (process {worker.pid} on {one_line(worker.host)})"
        return ""

    def _recover(self, lost: Sequence[Record]) -> int:
        """Let lost work wait again, or end it, in shared commits; no free worker is needed.

        Returns:
            The number of operations whose recovery failed.
        """
        flows, stuck = [self._recovered(record) for record in lost], 0
        for record, found in zip(lost, run_all(flows), strict=True):
            facts = about(record.name, record.method, record.attempt)
            if isinstance(found, LroError):
                _log_left(record.name, "not recovered now", found, facts)
            elif isinstance(found, BaseException):
                line, stuck = "%s: cannot be recovered", stuck + 1
                log.error(line, record.name, exc_info=found, extra=facts)
        if lost:
            self._work.announce_work()
        return stuck

    def _end_unbegun(self, late: Sequence[Record]) -> None:
        """End work that is too late to begin."""
        specs = [self._specs.get(record.method) for record in late]
        flows = [
            store_expiry(self._runtime, spec, record)
            for spec, record in zip(specs, late, strict=True)
        ]
        for record, found in zip(late, run_all(flows), strict=True):
            if isinstance(found, BaseException):
                facts = about(record.name, record.method, record.attempt)
                _log_left(record.name, "not ended as too late", found, facts)
            else:
                emit_stored_end(self._runtime.events, found, expired=True)
                self._ask_scan(-math.inf)  # that scan finds when to scan next

    def _recovered(self, record: Record) -> Flow[None]:
        after = yield from store_loss(self._runtime, self._specs[record.method], record)
        emit_stored_end(self._runtime.events, after)

    def _expire(self) -> None:
        at = self._clock()
        self._expire_at = at + _EXPIRY_SECONDS
        try:
            removed = self._store.expire(_EXPIRY_BATCH)
        except Unavailable as exc:  # a failed renewal reports that the store is unavailable
            log.warning("maintenance: expired operations cannot be removed now: %s", exc)
            return
        for name in removed.names:
            self._runtime.updater.notifier.notify(name)
        if removed.names:
            self._runtime.events.tracer.refresh()
            self._runtime.events.emit(OperationsExpired(methods=removed.methods))
        if removed.more:
            self._expire_at = at
            return
        try:
            self._report_stranded()
        except Unavailable as exc:
            log.warning("maintenance: waiting work cannot be counted now: %s", exc)

    def _report_stranded(self) -> None:
        """Log each method with waiting work and no live worker, unless it was logged before."""
        store, known = self._store, self._stranded
        found = stranded(store.waiting(), store.workers(), store.now(), _STRANDED_AGE)
        self._stranded = frozenset(work.method for work in found)
        for work in found:
            if work.method not in known:
                line = "%s: no live worker declares this method: operations that wait: %d, since %s"
                log.warning(line, work.method, work.count, work.due_time)

    def _live(self) -> None:
        while not self._stopped:
            try:
                seconds = self.run_due()
            except Unavailable:
                seconds = self._grace / _TRIES
            except BaseException:  # raised by a store or a hook: the lease must still be renewed
                log.exception("maintenance failed and goes on")
                seconds = 1.0
            self._wake.wait(seconds)
            self._wake.clear()


class Background(PerProcess):
    """The background threads of one process: maintenance, claims, change listener, webhooks.

    ``maintained`` is true if :meth:`start` starts the threads; ``pending`` is true until it has
    done so. ``service`` is kept here, so that it lives as long as its threads and methods do.
    """

    def __init__(
        self,
        runtime: Runtime,
        specs: Mapping[str, MethodSpec],
        *,
        maintained: bool,
        service: object,
    ) -> None:
        self._maintained = maintained
        self._service = service
        self.pending: bool = maintained
        self._stopped = False
        self._starting = threading.Lock()
        self._runtime = runtime
        self.work: LocalWork = LocalWork(
            runtime,
            specs,
            new_work=self._new_work,
            claim_soon=self._claim_soon,
            renew_soon=lambda: self.maintenance.request_renewal(),
        )
        self.claims: Claims | None = None
        """Claims waiting work; None in a process without workers."""
        if not isinstance(runtime.executor, NoWorkers):
            self.claims = Claims(runtime, specs, self.work)
        self.maintenance: Maintenance = Maintenance(runtime, self.work, specs)
        self.change_listener: ChangeListener = ChangeListener(
            runtime.updater, self.work, self.claims
        )

    def start(self) -> None:
        """Start the threads, unless they have started or are not wanted."""
        if not self.pending:
            return
        self._runtime.executor.begin_here()
        with self._starting:
            if self._stopped or not self.pending:
                return
            try:
                if self._runtime.webhooks is not None:
                    self._runtime.webhooks.begin()
                self.maintenance.start()
                if self.claims is not None:
                    self.claims.start()
                    self.change_listener.ensure_running()
            except RuntimeError as exc:  # too many threads: the next call tries again
                log.warning("leases are not renewed now: %s", exc)
                return
            self.pending = False

    def stop(self) -> None:
        """End the threads."""
        with self._starting:
            self._stopped = True
        with contextlib.ExitStack() as steps:
            if self._runtime.statistics is not None:
                steps.callback(self._runtime.statistics.close)
            steps.callback(self.work.unregister)
            steps.callback(self.maintenance.stop)
            if self.claims is not None:
                steps.callback(self.claims.stop)
            if self._runtime.webhooks is not None:
                steps.callback(self._runtime.webhooks.stop)
            steps.callback(self.change_listener.stop)

    def reopen(self) -> None:
        """Undo :meth:`stop`; the threads start at the next use, as in a forked child."""
        self.work.reopen()
        for part in (self.maintenance, self.claims, self.change_listener, self):
            if part is not None:
                part.start_over()
        self._stopped = False

    def run_due(self) -> float:
        """Run the due tasks, and return the seconds until the next one is due.

        Raises:
            Unavailable: The store cannot be reached.
        """
        seconds = self.maintenance.run_due()
        if self.claims is not None:
            self.claims.look_soon()  # a clock of a test may have moved since the last look
            seconds = min(seconds, self.claims.run_due())
        if self._runtime.webhooks is None:
            return seconds
        return min(seconds, self._runtime.webhooks.run_due())

    def _after_fork(self) -> None:
        # The threads start when the child is used: it may serve no call, or only run a function.
        self.pending = self._maintained
        self._starting = threading.Lock()
        if self._runtime.webhooks is not None:
            self._runtime.webhooks.reset_after_fork()

    def _new_work(self) -> None:
        if self.pending:
            self.start()  # the threads renew the lease and receive cancel requests
        if self._runtime.store.shared:
            self.change_listener.ensure_running()

    def method_declared(self) -> None:
        """Look for work of a method that has just been declared."""
        self.maintenance.method_declared()
        if self.claims is not None:
            self.claims.look_soon()

    def _claim_soon(self) -> None:
        if self.claims is not None:
            self.claims.claim_soon()

    @property
    def freed(self) -> Callable[[], None]:
        """The function to call when a worker has become free."""
        return _nobody if self.claims is None else self.claims.freed


def _log_left(name: str, what: str, error: BaseException, facts: Mapping[str, object]) -> None:
    """Log why a scan left an operation as it was. Another process was often just faster."""
    level = logging.DEBUG if isinstance(error, (LeaseLost, NotApplied)) else logging.INFO
    why = str(error).removeprefix(f"{name}: ")  # errors about an operation begin with its name
    log.log(level, "%s: %s: %s", name, what, why, extra=facts)


def _nobody() -> None:
    """Do nothing: this process has no workers."""
