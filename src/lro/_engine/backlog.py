"""The limit on the number of operations that wait in a store."""

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
"""The maximum age, in seconds, of a count by which a start is admitted."""
_SHARE: Final = 10
"""While starts are refused, the pause between counts is this many times as long as a count took."""


class Backlog(PerProcess):
    """Refuses starts while ``most`` operations wait in the store.

    Counting takes long if many operations wait, so starts share a count for up to a second. A start
    is admitted if that count, plus the starts that this process has admitted since, is below the
    limit. Otherwise the store is counted again, because work may have begun meanwhile. A count that
    has reached the limit refuses further starts while the next count is made, and for ten times as
    long as the count took, but for a second at most. If several starts need a count at the same
    time, one of them counts for all. A count may miss operations that are being stored.
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
        """Admit one more waiting operation.

        Raises:
            ResourceExhausted: Too many operations wait already.
            Unavailable: The store cannot be read.
        """
        counts: int | None = None
        while not self._lets_in(counted=counts is not None and self._counts > counts):
            counts = self._counts
            count = functools.partial(self._count, counts)
            yield MayBlock(count, blocks=self._store.reads_block)

    def _lets_in(self, *, counted: bool) -> bool:
        """Admit or refuse by the newest count; return False if a newer count is needed first.

        ``counted`` is true if the newest count was made after this start began. Such a count is
        fresh enough to refuse the start.

        Raises:
            ResourceExhausted: Too many operations wait already.
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
