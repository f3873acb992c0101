"""Records and who waits for them: a change is stored first, then the bell rings."""

from __future__ import annotations

import logging
import threading

from lro._base.errors import LroError
from lro._engine.notifier import Notifier
from lro._engine.store_port import Store
from lro._model.record import Record, State
from lro._model.transitions import Change, Stamp, with_derived

log = logging.getLogger("lro")


class RecordUpdater:
    """Applies changes to the store and wakes who waits for what has changed, here or elsewhere."""

    def __init__(self, store: Store, notifier: Notifier) -> None:
        self.store = store
        self.notifier = notifier
        self.watch_notifier = Notifier()
        """Rung at every change, for those who want to hear of progress too."""
        self.unnamed_changes = 0
        """How often other processes have changed it is not known what."""
        self._lock = threading.Lock()
        self._late = 0

    def forked(self) -> None:
        """Begin anew: in a forked process, nobody waits."""
        self.notifier.forked()
        self.watch_notifier.forked()
        self._lock = threading.Lock()

    def apply(self, name: str, change: Change, stamp: Stamp | None = None) -> Record | None:
        """The record after the change; None if the change has removed it.

        Whoever waits here is woken if the change has ended it or hidden it, and other processes
        are told of the change. ``stamp`` brings what is derived up to date in the same step.

        Raises:
            OperationNotFound: There is no such record, or callers cannot see it.
            NotApplied, LeaseLost, CancellationNotRequested: What the change itself refuses.
        """
        after = self.store.update(name, change if stamp is None else with_derived(change, stamp))
        # Who waits, waits for the end: progress would only have them all look in vain.
        if after is None or after.state is not State.IN_PROGRESS:
            self.notifier.notify(name)
        self.watch_notifier.notify(name)
        self.store.notify_others(name)
        return after

    def notify(self, name: str) -> None:
        """This record was changed otherwise: by another process, or because its time was over."""
        self.notifier.notify(name)
        self.watch_notifier.notify(name)

    @property
    def wanted(self) -> bool:
        """Whether anybody waits or watches here."""
        return self.notifier.wanted or self.watch_notifier.wanted

    def names(self) -> frozenset[str]:
        """The names that somebody waits for or watches here."""
        return self.notifier.names() | self.watch_notifier.names()

    @property
    def late_writes(self) -> int:
        """How many writes of workers of this process were refused, their leases being lost."""
        return self._late

    def refused(self, name: str, what: str, error: LroError) -> None:
        """Count and log a write of a worker that had lost its lease."""
        with self._lock:
            self._late += 1
        log.warning("%s: %s was refused: %s", name, what, error)
