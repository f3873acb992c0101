"""The records that this process wrote or read last: nearly always they are still as they were."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final

import attrs

from lro._model.record import Record
from lro.stores._rows import COLUMNS

ROOM: Final = 32_000_000
"""Bytes of all records that are kept, about."""

_RECORD_BYTES: Final = 2_000
_READ: Final = 8
"""So many times the memory of its text a message takes, about, once it is read."""
_LARGE: Final = COLUMNS.index("metadata"), COLUMNS.index("result")


class KnownRecords:
    """Guesses: nobody relies on one before the server has said that it holds.

    It holds as long as its stamp is the same in the table (``stamp_of``): also after the server
    has gone on from an older state, which no connection need have noticed.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: OrderedDict[str, tuple[Record, int]] = OrderedDict()
        self._size = 0

    def get(self, name: str) -> Record | None:
        """The record of this name as it was last seen."""
        kept = self._kept.get(name)
        return None if kept is None else kept[0]

    def keep(self, record: Record, row: Sequence[Any]) -> Record:
        """Keep a record, which stands in this row, and drop the oldest ones; the same record."""
        size = _RECORD_BYTES + _READ * sum(len(row[place] or "") for place in _LARGE)
        with self._lock:
            self._drop(record.name)
            if size <= ROOM // 8:
                self._kept[record.name] = record, size
                self._size += size
            while self._size > ROOM:
                self._drop(next(iter(self._kept)))
        return record

    def drop(self, name: str) -> None:
        """The record of this name is gone."""
        with self._lock:
            self._drop(name)

    def renewed(self, owner: str, until: datetime, name: str) -> None:
        """The lease of this record was prolonged, if this owner holds it."""
        with self._lock:
            kept = self._kept.get(name)
            if kept is None or kept[0].owner != owner or kept[0].lease_until is None:
                return
            self._kept[name] = attrs.evolve(kept[0], lease_until=until), kept[1]

    def __len__(self) -> int:
        """How many records are kept."""
        return len(self._kept)

    def _drop(self, name: str) -> None:
        kept = self._kept.pop(name, None)
        if kept is not None:
            self._size -= kept[1]
