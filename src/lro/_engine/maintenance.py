"""One background thread a process: renews leases, finds orphans, removes what has expired."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Collection
from datetime import UTC, datetime, timedelta
from typing import Final

import attrs

from lro._base.errors import LroError, Unavailable
from lro._engine.record_updater import RecordUpdater
from lro._model.record import Record

log = logging.getLogger("lro")

_BATCH: Final = 100
_EXPIRY_BATCH: Final = 1000
_EXPIRY_SECONDS: Final = 60.0
_STEP_SECONDS: Final = 1.0
_HURRY_SECONDS: Final = 0.1
"""The least between two hunts, lest what cannot begin be tried and handed back without a pause."""
_DECLARED_SECONDS: Final = 0.5
"""How soon after a method is declared its lost work is looked for: its module may still load."""
_GRACE_SECONDS: Final = 1.0
_REST_SECONDS: Final = 0.01
"""The least between two turns."""
_TRIES: Final = 5
"""How often in a period of grace what could not be written is tried."""
_GRACES: Final = 4
"""How many periods of grace a lease has, at least."""
LEAST_LEASE: Final = timedelta(seconds=_REST_SECONDS * _TRIES * _GRACES)
"""The shortest lease that is renewed as often as its period of grace asks for."""
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


@attrs.frozen
class _Suspect:
    """A record whose lease was over at a look: whose it was, and since when that is so."""

    seen: tuple[str, int, datetime | None]
    since: float


class Maintenance:
    """Keeps the store in order, by :meth:`run_maintenance`; :meth:`start` has a thread do that.

    ``held`` are the operations whose leases this process is to renew; ``cancel`` is told those that
    are asked to stop, ``recover`` is given each orphan of ``methods``, which are looked for once in
    ``patience``, by default a lease; ``not_started`` hands back what could not begin. What is due
    when goes by ``clock``, in seconds, which nobody can set; leases end by the store's clock, which
    one can.

    A lease that is over does not prove that its process is dead: perhaps nobody could write to the
    store, or to this record, until a moment ago. This process cannot know, if it wanted to write
    nothing then. So it looks twice, and each look also writes (``Store.orphans``): a record counts
    as lost if its lease was over at both, with a period of grace between them. Whoever lives has
    tried to renew its lease all the time, several times in a period of grace, and has done so by
    then.
    """

    def __init__(
        self,
        updater: RecordUpdater,
        *,
        owner: str,
        lease: timedelta,
        patience: timedelta | None = None,
        held: Callable[[], Collection[str]],
        cancel: Callable[[str], None],
        recover: Callable[[Record], None],
        methods: Callable[[], Collection[str]],
        not_started: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._updater = updater
        self._lease = lease
        self._period = lease.total_seconds() / 3
        self._grace = min(_GRACE_SECONDS, lease.total_seconds() / _GRACES)
        self.retry_seconds = self._grace / _TRIES
        """How soon what could not be written is tried again."""
        self._patience = (patience or lease).total_seconds()
        self._held = held
        self._cancel = cancel
        self._recover = recover
        self._methods = methods
        self._return_unbegun = not_started
        self._clock = clock
        self._lead: float | None = None
        self.forked(owner)

    def forked(self, owner: str) -> None:
        """Begin anew, for another owner: in a forked process, the thread is gone."""
        self._owner = owner
        self._renew_at: float | None = None
        self._left: Collection[str] = ()
        self._retry_at = math.inf
        self._hunt_at = self._hurry_at = self._calm_until = self._expire_at = self._clock()
        self._asked_at = math.inf
        self._renew_now = False
        self._suspects: dict[str, _Suspect] = {}
        self._looked_at = -math.inf
        self._away = False
        self._wake = threading.Event()
        self._stopped = False
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin to turn in a thread of its own, which work cannot block."""
        thread = threading.Thread(target=self._live, name="lro-upkeep", daemon=True)
        thread.start()
        self._thread = thread

    def stop(self) -> None:
        """End the thread."""
        self._stopped = True
        self._wake.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def request_orphan_scan(self) -> None:
        """There is an orphan: see to it now."""
        self._ask(0.0)

    def declared(self) -> None:
        """Another method is declared: look for its lost work soon."""
        self._ask(_DECLARED_SECONDS)

    def _ask(self, seconds: float) -> None:
        self._asked_at = min(self._asked_at, self._clock() + seconds)
        self._wake.set()

    def request_renewal(self) -> None:
        """Little is left of a lease, because it was long in being stored: renew all now."""
        self._renew_now = True
        self._wake.set()

    def turn(self) -> float:
        """Do what is due; the seconds until something will be.

        Idle, a process asks its store once a lease for orphans and once a minute for what has
        expired: no lease made after a look can run out before the next one.

        Raises:
            Unavailable: The store cannot be reached.
        """
        try:
            return self._turn()
        except Unavailable as exc:
            if not self._away:  # once: it is tried every second
                log.warning("upkeep: %s (%s)", exc, exc.__cause__)
            self._away = True
            raise

    def _turn(self) -> float:
        at, held = self._clock(), self._held()
        if not held:
            self._renew_at = None
        elif self._renew_at is None or self._renew_now:  # it may have begun long ago
            self._renew_at = at
        self._renew_now = False
        self._follow_clock(at)
        if self._away:
            self._follow_outage(held)
        elif self._renew_at is not None and self._renew_at <= at:
            self._renew(held)
        elif self._retry_at <= at:
            self._renew(frozenset(held).intersection(self._left))
        if self._renew_at is None or self._clock() < self._renew_at:  # leases come first
            self._return_unbegun()
            if self._next_scan() <= self._clock():
                self._scan_orphans()
            if self._expire_at <= self._clock():
                self._expire()
        # New work wakes nobody: one looks often enough to find it in time, which asks no store.
        due = [self._next_scan(), self._expire_at, self._retry_at, at + self._period]
        if self._renew_at is not None:
            due.append(self._renew_at)
        return max(_REST_SECONDS, min(due) - self._clock())

    def _next_scan(self) -> float:
        asked_at = max(self._hurry_at, self._asked_at)
        return max(self._calm_until, min(self._hunt_at, asked_at))

    def _follow_clock(self, at: float) -> None:
        # Somebody has set the store's clock: all leases seem over, or to last too long.
        lead = (self._updater.store.now() - _EPOCH).total_seconds() - at
        before, self._lead = self._lead, lead
        if before is None or abs(lead - before) < _STEP_SECONDS:
            return
        log.warning("the store's clock was set by %+.1f s: leases are renewed", lead - before)
        if self._renew_at is not None:
            self._renew_at = at
        self._let_all_renew()

    def _follow_outage(self, held: Collection[str]) -> None:
        # It is back when a write has worked: SQLite can be read while others have its write lock.
        self._renew(held)
        log.warning("upkeep: the store is there again")
        self._away = False
        self._let_all_renew()

    def _let_all_renew(self) -> None:
        # Those who live renew their leases before anybody hunts.
        self._suspects.clear()
        self._calm_until = self._clock() + self._period + _STEP_SECONDS

    def _renew(self, names: Collection[str]) -> None:
        # By what was the time before: a write that had to wait is soon to be followed by another.
        at, until = self._clock(), self._updater.store.now() + self._lease
        renewed = self._updater.store.renew(self._owner, until, names)
        # Only now: after a failure the next turn begins with it again, before it hunts.
        if self._renew_at is not None and self._renew_at <= at:
            self._renew_at = at + self._period
        for name in set(renewed.left).difference(self._left):
            log.warning("%s: its lease cannot be renewed now: others have locked its record", name)
        self._left = renewed.left
        self._retry_at = at + self.retry_seconds if self._left else math.inf
        for name in renewed.cancel_requested:
            self._cancel(name)

    def _scan_orphans(self) -> None:
        self._asked_at = math.inf
        began = self._clock()
        found = self._updater.store.orphans(self._methods(), _BATCH)
        at, now = self._clock(), self._updater.store.now()
        # If it had to wait, so had all who renew their leases; and between two looks that are far
        # apart nobody may have been able to write.
        if at - began > self._grace / 2 or at - self._looked_at > self._grace + _STEP_SECONDS:
            self._suspects.clear()
        for record in self._lost(found.records, at):
            if self._renew_at is not None and self._renew_at <= self._clock():
                break  # our own work first: the rest is found again at once
            try:
                self._recover(record)
            except LroError as exc:
                log.info("%s: not taken over now: %s", record.name, exc)
            except BaseException:  # one that cannot be must not be in the way of the others
                log.exception("%s: cannot be taken over", record.name)
        # The grace of those that are new begins now: what was taken over may have taken long.
        self._looked_at = self._clock()
        for name, suspect in self._suspects.items():
            if suspect.since == at:
                self._suspects[name] = attrs.evolve(suspect, since=self._looked_at)
        latest = self._patience
        next_end = found.next_lease_end
        if next_end is not None:
            latest = min(latest, max(0.0, (next_end - now).total_seconds()))
        # What could not be taken over (a full queue, say) is tried again soon.
        self._hunt_at = at + latest
        if found.records:
            self._hunt_at = min(self._hunt_at, self._looked_at + self._grace)
        self._hurry_at = self._looked_at + _HURRY_SECONDS

    def _lost(self, records: Collection[Record], at: float) -> list[Record]:
        """Those of these records whose lease is over that nobody has."""
        before, self._suspects = self._suspects, {}
        lost = []
        for record in records:
            if record.given_up:
                lost.append(record)
                continue
            seen, since = (record.owner, record.attempt, record.lease_until), at
            known = before.get(record.name)
            if known is not None and known.seen == seen:
                since = known.since
            self._suspects[record.name] = _Suspect(seen, since)
            if at - since >= self._grace:
                lost.append(record)
        return lost

    def _expire(self) -> None:
        at = self._clock()
        self._expire_at = at + _EXPIRY_SECONDS
        try:
            removed = self._updater.store.expire(_EXPIRY_BATCH)
        except Unavailable as exc:  # leases come first; if the store is away, they will tell
            log.warning("upkeep: what has expired cannot be removed now: %s", exc)
            return
        for name in removed.names:
            self._updater.notify(name)
        self._expire_at = at if removed.more else at + _EXPIRY_SECONDS

    def _live(self) -> None:
        while not self._stopped:
            try:
                seconds = self.turn()
            except Unavailable:
                seconds = self.retry_seconds
            except BaseException:  # whatever code of others has raised: leases are to be renewed
                log.exception("upkeep failed and goes on")
                seconds = 1.0
            self._wake.wait(seconds)
            self._wake.clear()
