"""Records and who waits for them: a change is stored first, then the bell rings."""

from __future__ import annotations

from lro._bell import Bell
from lro._ports import Store
from lro._record import Record
from lro._states import Change, Stamp, stamped


class Ledger:
    """Applies changes to the store and wakes the waiters of what has changed."""

    def __init__(self, store: Store, bell: Bell) -> None:
        self.store = store
        self.bell = bell

    def apply(self, name: str, change: Change, stamp: Stamp | None = None) -> Record | None:
        """The record after the change; None if the change has removed it.

        ``stamp`` brings the metadata up to date in the same step.

        Raises:
            OperationNotFound: There is no such record, or callers cannot see it.
            NotApplied, LeaseLost, CancellationNotRequested: What the change itself refuses.
        """
        after = self.store.update(name, change if stamp is None else stamped(change, stamp))
        self.bell.ring(name)
        return after
