"""The bound of how many operations may wait in a store."""

from __future__ import annotations

import functools
import math
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Final

from lro._base.errors import ResourceExhausted
from lro._engine.flow import Flow, MayBlock
from lro._engine.process import PerProcess
from lro._engine.store_port import Store

_KNOWN_SECONDS: Final = 1.0
"""How old the count may be by which a start is let in."""
_SHARE: Final = 10
"""By how much longer than a count the time is before the next one, where starts are refused."""


class Backlog(PerProcess):
    """Refuses starts while ``most`` operations wait in the store.

    Counting takes long where many wait. So a start is let in by a count of the last second, and by
    how many this process has let in since that count began. Work may have begun since, so a start
    is refused by a count alone; while the next one is made, others are refused by the one before.
    One start counts for all that need a count at the time. It may miss what is being stored then.
    """

    def __init__(self, store: Store, most: int, clock: Callable[[], float]) -> None:
        self._store = store
        self._most = most
        self._clock = clock
        self._lock, self._counting = threading.Lock(), threading.Lock()
        self._counts = 0
        self._waiting = self._added = 0
        self._counted_at = self._count_again_at = -math.inf
        self._took = 0.0

    def admit(self) -> Flow[None]:
        """Let an operation wait.

        Raises:
            ResourceExhausted: Too many wait already.
            Unavailable: The store cannot be read.
        """
        counts: int | None = None
        while not self._lets_in(counted=counts is not None and self._counts > counts):
            counts = self._counts
            count = functools.partial(self._count, counts)
            yield MayBlock(count, blocks=self._store.reads_block)

    def _lets_in(self, *, counted: bool) -> bool:
        """Decide by the newest count; False if there has to be another, unless it was ``counted``.

        Raises:
            ResourceExhausted: Too many wait already.
        """
        with self._lock:
            now, waiting = self._clock(), self._waiting
            old = not counted and now - self._counted_at >= _KNOWN_SECONDS
            if waiting >= self._most:
                if old or (not counted and now >= self._count_again_at):
                    self._count_again_at = now + _SHARE * self._took
                    return False
            elif old or waiting + self._added >= self._most:
                return False
            else:
                self._added += 1
                return True
        text = f"the queue is full: {waiting} operations wait (Limits.backlog: {self._most})"
        raise ResourceExhausted(text, timedelta(seconds=1))

    def _count(self, counts: int) -> None:
        with self._counting:
            if self._counts > counts:  # another start has counted meanwhile
                return
            began, before = self._clock(), self._added
            waiting = self._store.count_waiting(self._most)
            with self._lock:
                self._waiting, self._added = waiting, self._added - before
                self._counted_at = self._clock()
                self._took = self._counted_at - began
                self._count_again_at = self._counted_at + _SHARE * self._took
                self._counts += 1
