"""Records that this process read or wrote last: most calls want one of them, unchanged."""

from __future__ import annotations

import threading
from collections import OrderedDict
from datetime import datetime
from typing import Final

import attrs

from lro._model.record import Record
from lro.stores._rows import Stamp, stamp_of

MAX_BYTES: Final = 32_000_000
"""About how much memory the records of one cache take, all together."""

_RECORD_BYTES: Final = 2_000
"""About how much memory a record takes without its messages."""
_BYTES_PER_CHARACTER: Final = 8
"""About how much memory a message takes for each character of its stored text."""


class RecordCache:
    """The last records known, each of which may be outdated.

    A record is current if the stored one has the same stamp (:func:`stamp_of`). That also holds
    after a database was restored to an older state, which no connection need have noticed. Only
    committed records may be kept: the stamp of a change that was undone may come back with another.
    """

    def __init__(self) -> None:
        self.reset_after_fork()

    def reset_after_fork(self) -> None:
        """Begin empty: in a forked child a thread of the parent may have held the lock."""
        self._lock = threading.Lock()
        self._kept: OrderedDict[str, tuple[Stamp, Record, int]] = OrderedDict()
        self._bytes = 0

    def get(self, name: str) -> Record | None:
        """The record of this name as it was last known; None if it is not kept."""
        kept = self._kept.get(name)
        return None if kept is None else kept[1]

    def current(self, name: str, stamp: Stamp) -> Record | None:
        """The record of this name, if it was kept with this stamp."""
        kept = self._kept.get(name)
        return kept[1] if kept is not None and kept[0] == stamp else None

    def text_length(self, name: str) -> int:
        """The characters of stored text that a record was kept with; 0 if it is not kept."""
        kept = self._kept.get(name)
        return 0 if kept is None else kept[2]

    def keep(self, record: Record, text_length: int) -> Record:
        """Keep a record whose messages have this many characters as text; drop the oldest ones.

        A record that would take an eighth of the cache is not kept.

        Returns:
            The record.
        """
        size = _size(text_length)
        with self._lock:
            self._drop(record.name)
            if 8 * size <= MAX_BYTES:
                self._kept[record.name] = stamp_of(record), record, text_length
                self._bytes += size
            while self._bytes > MAX_BYTES:
                self._drop(next(iter(self._kept)))
        return record

    def forget(self, name: str) -> None:
        """Drop the record of this name: it is removed from the store."""
        with self._lock:
            self._drop(name)

    def renewed(self, owner: str, until: datetime, name: str) -> None:
        """Note that the lease of a record was prolonged, if this owner holds it."""
        with self._lock:
            kept = self._kept.get(name)
            if kept is None or kept[1].owner != owner or kept[1].lease_until is None:
                return
            record = attrs.evolve(kept[1], lease_until=until)
            self._kept[name] = stamp_of(record), record, kept[2]

    def _drop(self, name: str) -> None:
        kept = self._kept.pop(name, None)
        if kept is not None:
            self._bytes -= _size(kept[2])


def _size(text_length: int) -> int:
    return _RECORD_BYTES + _BYTES_PER_CHARACTER * text_length
