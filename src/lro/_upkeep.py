"""One background thread a process: renews leases, finds orphans, removes what has expired."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection
from datetime import datetime, timedelta
from typing import Final

from lro._errors import LroError
from lro._ledger import Ledger
from lro._record import Record

log = logging.getLogger("lro")

_BATCH: Final = 100
_EXPIRY_BATCH: Final = 1000
_EXPIRY_PERIOD: Final = timedelta(minutes=1)


class Upkeep:
    """Keeps the store in order, by :meth:`turn`; :meth:`start` has a thread do that.

    ``holds_work`` says whether this process has leases to renew, ``held`` whose; ``cancel`` is told
    the names of held operations that are asked to stop, ``adopt`` is given each orphan.
    """

    def __init__(
        self,
        ledger: Ledger,
        *,
        owner: str,
        lease: timedelta,
        holds_work: Callable[[], bool],
        held: Callable[[], Collection[str]],
        cancel: Callable[[str], None],
        adopt: Callable[[Record], None],
    ) -> None:
        self._ledger = ledger
        self._owner = owner
        self._lease = lease
        self._holds_work = holds_work
        self._held = held
        self._cancel = cancel
        self._adopt = adopt
        self._renew_at: datetime | None = None
        self._hunt_at: datetime | None = None
        self._expire_at: datetime | None = None
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

    def nudge(self) -> None:
        """This process has work to hold now: see to its lease in time."""
        if self._renew_at is None:
            self._wake.set()

    def turn(self) -> float:
        """Do what is due; the seconds until something will be.

        Idle, a process asks its store once a lease for orphans and once a minute for what has
        expired: no lease made after a look can run out before the next one.
        """
        now = self._ledger.store.now()
        if not self._holds_work():
            self._renew_at = None
        # Asked once more: work that came just before the line above has not nudged us.
        if self._renew_at is None and self._holds_work():
            self._renew_at = now + self._lease / 3
        elif self._renew_at is not None and self._renew_at <= now:
            self._renew(now)
        if self._hunt_at is None or self._hunt_at <= now:
            self._hunt(now)
        if self._expire_at is None or self._expire_at <= now:
            self._expire(now)
        due = [at for at in (self._renew_at, self._hunt_at, self._expire_at) if at is not None]
        return max(0.01, (min(due) - now).total_seconds())

    def _renew(self, now: datetime) -> None:
        asked = self._ledger.store.renew(self._owner, now + self._lease, self._held())
        # Only now: after a failure the next turn begins with it again, before it hunts.
        self._renew_at = now + self._lease / 3
        for name in asked:
            self._cancel(name)

    def _hunt(self, now: datetime) -> None:
        found = self._ledger.store.orphans(_BATCH)
        for record in found.records:
            try:
                self._adopt(record)
            except LroError as exc:
                log.info("%s: not taken over now: %s", record.name, exc)
            except Exception:  # one that cannot be must not be in the way of the others
                log.exception("%s: cannot be taken over", record.name)
        latest = now + self._lease
        next_end = found.next_lease_end
        self._hunt_at = latest if next_end is None else min(latest, max(next_end, now))
        if found.records:
            # What could not be taken over (a full queue, an unknown method) is tried again soon.
            self._hunt_at = min(self._hunt_at, now + timedelta(seconds=1))

    def _expire(self, now: datetime) -> None:
        removed = self._ledger.store.expire(_EXPIRY_BATCH)
        for name in removed:
            self._ledger.bell.ring(name)
        self._expire_at = now + (timedelta() if len(removed) == _EXPIRY_BATCH else _EXPIRY_PERIOD)

    def _live(self) -> None:
        while not self._stopped:
            try:
                seconds = self.turn()
            except LroError as exc:
                log.warning("upkeep: %s", exc)
                seconds = 1.0
            except Exception:
                log.exception("upkeep failed and goes on")
                seconds = 1.0
            self._wake.wait(seconds)
            self._wake.clear()
