"""Records read lately: a poll nearly always finds what the last one found."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Hashable
from typing import Final

from lro._record import Record

SIZE: Final = 256


class RecentRecords:
    """The last ``SIZE`` records read, each good for one stamp, which changes whenever it does."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: OrderedDict[str, tuple[Hashable, Record]] = OrderedDict()

    def get(self, name: str, stamp: Hashable) -> Record | None:
        """The record of this name, if it was kept with this stamp."""
        kept = self._kept.get(name)
        return kept[1] if kept is not None and kept[0] == stamp else None

    def keep(self, record: Record, stamp: Hashable) -> Record:
        """Keep a record, dropping the oldest; the same record."""
        with self._lock:
            self._kept[record.name] = (stamp, record)
            if len(self._kept) > SIZE:
                self._kept.popitem(last=False)
        return record
