"""Records read or written lately: most calls want what the last one knew already."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Hashable
from typing import Final

from lro._model.record import Record

SIZE: Final = 4096
WEIGHT: Final = 4 * 1024 * 1024
"""How many characters of stored text the records that are kept may stand for, all together.

Read messages of many small objects take more than ten times the memory of their text.
"""


class RecentRecords:
    """The last records known, each good for one stamp, which changes whenever it does.

    At most ``SIZE`` of them, and fewer where their texts are long. What is kept must be committed:
    the stamp of a change that was undone may come back with another one.
    """

    def __init__(self) -> None:
        self.renew()

    def renew(self) -> None:
        """Begin anew, in a forked child: a thread of the parent may have been amid a change."""
        self._lock = threading.Lock()
        self._kept: OrderedDict[str, tuple[Hashable, Record, int]] = OrderedDict()
        self._weight = 0

    def get(self, name: str, stamp: Hashable) -> Record | None:
        """The record of this name, if it was kept with this stamp."""
        kept = self._kept.get(name)
        return kept[1] if kept is not None and kept[0] == stamp else None

    def last(self, name: str) -> Record | None:
        """The record of this name as it was last known, which it may be no longer."""
        kept = self._kept.get(name)
        return kept[1] if kept is not None else None

    def weight(self, name: str) -> int:
        """The characters that the record of this name was kept with; 0 if it was not."""
        kept = self._kept.get(name)
        return kept[2] if kept is not None else 0

    def keep(self, record: Record, stamp: Hashable, weight: int = 0) -> Record:
        """Keep a record that stands for so many characters, dropping the oldest; that record."""
        with self._lock:
            self._weight += weight - self._drop(record.name)
            self._kept[record.name] = (stamp, record, weight)
            while len(self._kept) > SIZE or self._weight > WEIGHT:
                _, (_, _, gone) = self._kept.popitem(last=False)
                self._weight -= gone
        return record

    def forget(self, name: str) -> None:
        """Keep the record of this name no longer: it is removed."""
        with self._lock:
            self._weight -= self._drop(name)

    def _drop(self, name: str) -> int:
        kept = self._kept.pop(name, None)
        return kept[2] if kept is not None else 0
