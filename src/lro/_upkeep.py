"""One background thread a process: renews leases, finds orphans, removes what has expired."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection
from datetime import UTC, datetime, timedelta
from typing import Final

from lro._errors import LroError, Unavailable
from lro._ledger import Ledger
from lro._record import Record

log = logging.getLogger("lro")

_BATCH: Final = 100
_EXPIRY_BATCH: Final = 1000
_EXPIRY_SECONDS: Final = 60.0
_STEP_SECONDS: Final = 1.0
_HURRY_SECONDS: Final = 0.1
"""The least between two hunts, lest what cannot begin be tried and handed back without a pause."""
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class Upkeep:
    """Keeps the store in order, by :meth:`turn`; :meth:`start` has a thread do that.

    ``held`` are the operations whose leases this process is to renew; ``cancel`` is told those that
    are asked to stop, ``adopt`` is given each orphan of ``methods``, which are looked for once in
    ``patience``, by default a lease; ``unbegun`` hands back what could not begin. What is due when
    goes by ``clock``, in seconds, which nobody can set; leases end by the store's clock, which one
    can.
    """

    def __init__(
        self,
        ledger: Ledger,
        *,
        owner: str,
        lease: timedelta,
        patience: timedelta | None = None,
        held: Callable[[], Collection[str]],
        cancel: Callable[[str], None],
        adopt: Callable[[Record], None],
        methods: Callable[[], Collection[str]],
        unbegun: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._ledger = ledger
        self._lease = lease
        self._period = lease.total_seconds() / 3
        self._patience = (patience or lease).total_seconds()
        self._held = held
        self._cancel = cancel
        self._adopt = adopt
        self._methods = methods
        self._return_unbegun = unbegun
        self._clock = clock
        self._lead: float | None = None
        self.forked(owner)

    def forked(self, owner: str) -> None:
        """Begin anew, for another owner: in a forked process, the thread is gone."""
        self._owner = owner
        self._renew_at: float | None = None
        self._hunt_at = self._hurry_at = self._calm_until = self._expire_at = self._clock()
        self._urgent = False
        self._away = False
        self._wake = threading.Event()
        self._stopped = False
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin to turn in a thread of its own, which work cannot block."""
        self._thread = threading.Thread(target=self._live, name="lro-upkeep", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread."""
        self._stopped = True
        self._wake.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def hunt(self) -> None:
        """There is an orphan: see to it now."""
        self._urgent = True
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
        at, now = self._clock(), self._ledger.store.now()
        if not self._held():
            self._renew_at = None
        elif self._renew_at is None:  # it may have begun a third of a lease ago
            self._renew_at = at
        self._follow_clock(at, now)
        if self._away:
            self._follow_outage(at)
        self._return_unbegun()
        if self._renew_at is not None and self._renew_at <= at:
            self._renew(at, now)
        if self._next_hunt() <= at:
            self._urgent = False
            self._hunt(at, now)
        if self._expire_at <= at:
            self._expire(at)
        # New work wakes nobody: one looks often enough to find it in time, which asks no store.
        due = [self._next_hunt(), self._expire_at, at + self._period]
        if self._renew_at is not None:
            due.append(self._renew_at)
        return max(0.01, min(due) - self._clock())

    def _next_hunt(self) -> float:
        return max(self._calm_until, self._hurry_at if self._urgent else self._hunt_at)

    def _follow_clock(self, at: float, now: datetime) -> None:
        # Somebody has set the store's clock: all leases seem over, or to last too long.
        lead = (now - _EPOCH).total_seconds() - at
        before, self._lead = self._lead, lead
        if before is None or abs(lead - before) < _STEP_SECONDS:
            return
        log.warning("the store's clock was set by %+.1f s: leases are renewed", lead - before)
        self._let_all_renew(at)

    def _follow_outage(self, at: float) -> None:
        # Nobody could renew a lease while the store was away, so leases that ran out meanwhile say
        # nothing of who lives.
        self._ledger.store.orphans((), 1)  # raises unless it is back
        log.warning("upkeep: the store is there again")
        self._away = False
        self._let_all_renew(at)

    def _let_all_renew(self, at: float) -> None:
        # Those who live renew their leases before anybody hunts.
        if self._renew_at is not None:
            self._renew_at = at
        self._calm_until = at + self._period + _STEP_SECONDS

    def _renew(self, at: float, now: datetime) -> None:
        asked = self._ledger.store.renew(self._owner, now + self._lease, self._held())
        # Only now: after a failure the next turn begins with it again, before it hunts.
        self._renew_at = at + self._period
        for name in asked:
            self._cancel(name)

    def _hunt(self, at: float, now: datetime) -> None:
        found = self._ledger.store.orphans(self._methods(), _BATCH)
        for record in found.records:
            if self._renew_at is not None and self._renew_at <= self._clock():
                break  # our own work first: the rest is found again at once
            try:
                self._adopt(record)
            except LroError as exc:
                log.info("%s: not taken over now: %s", record.name, exc)
            except BaseException:  # one that cannot be must not be in the way of the others
                log.exception("%s: cannot be taken over", record.name)
        latest = self._patience
        next_end = found.next_lease_end
        if next_end is not None:
            latest = min(latest, max(0.0, (next_end - now).total_seconds()))
        # What could not be taken over (a full queue, say) is tried again soon.
        self._hunt_at = at + (min(latest, 1.0) if found.records else latest)
        self._hurry_at = at + _HURRY_SECONDS

    def _expire(self, at: float) -> None:
        self._expire_at = at + _EXPIRY_SECONDS
        try:
            removed = self._ledger.store.expire(_EXPIRY_BATCH)
        except Unavailable as exc:  # leases come first; if the store is away, they will tell
            log.warning("upkeep: what has expired cannot be removed now: %s", exc)
            return
        for name in removed.names:
            self._ledger.ring(name)
        self._expire_at = at if removed.more else at + _EXPIRY_SECONDS

    def _live(self) -> None:
        while not self._stopped:
            try:
                seconds = self.turn()
            except Unavailable:
                seconds = 1.0
            except BaseException:  # whatever code of others has raised: leases are to be renewed
                log.exception("upkeep failed and goes on")
                seconds = 1.0
            self._wake.wait(seconds)
            self._wake.clear()
