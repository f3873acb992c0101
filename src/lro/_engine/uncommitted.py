"""What was started within transactions of the application that may not have been committed yet."""

from __future__ import annotations

import heapq
import math
import threading
from collections.abc import Callable, Mapping
from typing import Final

_SHARE: Final = 4
"""How much longer the time from the start to a look is than that to the next look."""
_SHORTEST_SECONDS: Final = 0.01
_LONGEST_SECONDS: Final = 0.5
"""The bounds of the time between two looks."""
_SECONDS: Final = 60.0
"""How long a name is looked for. After that it is left to the orphan scans."""
_MOST: Final = 10_000
"""How many names are looked for. What is more is left to the orphan scans."""
_AT_ONCE: Final = 1000


class Uncommitted:
    """Names of operations whose records are not there before a transaction commits.

    No database says when a transaction of the application has ended. So this process looks for the
    records, by the seconds of ``clock``: often shortly after the start, more seldom later.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.reset_after_fork()

    def reset_after_fork(self) -> None:
        """Forget all names: the parent process looks for them."""
        self._lock = threading.Lock()
        self._looks: list[tuple[float, float, str]] = []
        """A heap: when the next look is due, since when the name is looked for, the name."""

    def add(self, name: str) -> None:
        """Look for a record from now on."""
        self.keep(name, self._clock())

    def keep(self, name: str, since: float) -> None:
        """Go on looking for a record, or leave it to the orphan scans."""
        at = self._clock()
        age = at - since
        if age >= _SECONDS:
            return
        pause = min(max(age / _SHARE, _SHORTEST_SECONDS), _LONGEST_SECONDS)
        with self._lock:
            if len(self._looks) < _MOST:
                heapq.heappush(self._looks, (at + pause, since, name))

    def take_due(self) -> Mapping[str, float]:
        """Take what is to be looked for now: names, and since when each is looked for."""
        at = self._clock()
        due: dict[str, float] = {}
        with self._lock:
            while self._looks and self._looks[0][0] <= at and len(due) < _AT_ONCE:
                _, since, name = heapq.heappop(self._looks)
                due[name] = since
        return due

    @property
    def next_look(self) -> float:
        """When the next look is due; infinity if there is nothing to be looked for."""
        with self._lock:
            return self._looks[0][0] if self._looks else math.inf
