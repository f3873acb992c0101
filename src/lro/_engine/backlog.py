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
from lro._engine.store_port import Store

_KNOWN_SECONDS: Final = 1.0
"""How old the number may be by which a start is let in."""
_SHARE: Final = 10
"""By how much longer than a count the time is before the next one, where starts are refused."""


class Backlog:
    """Refuses starts while ``most`` operations wait in the store.

    Counting takes long where many wait. So what is known is a number that is at most a second old,
    and how many this process has added since, with those that it was storing then. Work may have
    begun since, so that a start is refused by a count alone. One start counts for all that need it.
    While it counts again what was full, others go by the count before, unless it is too old.
    """

    def __init__(self, store: Store, most: int, clock: Callable[[], float]) -> None:
        self._store = store
        self._most = most
        self._clock = clock
        self.reset_after_fork()

    def reset_after_fork(self) -> None:
        """Know nothing: in a forked child a thread of the parent may have held the lock."""
        self._lock, self._asking = threading.Lock(), threading.Lock()
        self._counts = 0
        self._counted = self._added = self._storing = 0
        self._counted_at = -math.inf
        self._took = 0.0
        self._counting = self._was_full = False

    def admit(self) -> Flow[None]:
        """Let an operation wait; call :meth:`settled` when it is stored, or has failed.

        Raises:
            ResourceExhausted: Too many wait already.
            Unavailable: The store cannot be read.
        """
        if self._has_to_count():
            try:
                count = functools.partial(self._count, self._counts)
                yield MayBlock(count, blocks=self._store.reads_block)
            finally:
                self._counting = False
        with self._lock:
            if self._is_full:
                waiting, bound = self._counted + self._added, f"Limits.backlog: {self._most}"
                text = f"the queue is full: {waiting} operations wait ({bound})"
                raise ResourceExhausted(text, timedelta(seconds=1))
            self._added += 1
            self._storing += 1

    def settled(self) -> None:
        """Know that an operation that was let in is stored, or never will be."""
        with self._lock:
            self._storing -= 1

    def _count(self, before: int) -> None:
        with self._asking:
            if self._counts > before:  # another start has counted meanwhile
                return
            began = self._clock()
            counted = self._store.count_waiting(self._most)
            with self._lock:
                self._counted, self._added = counted, self._storing
                self._was_full = self._is_full
                self._counted_at = self._clock()
                self._took = self._counted_at - began
                self._counts += 1

    def _has_to_count(self) -> bool:
        with self._lock:
            age = self._clock() - self._counted_at
            if age >= _KNOWN_SECONDS or (self._is_full and not self._was_full):
                return True
            due = age >= (_SHARE * self._took if self._was_full else _KNOWN_SECONDS / 2)
            turn = due and not self._counting
            self._counting = self._counting or turn
            return turn

    @property
    def _is_full(self) -> bool:
        return self._counted + self._added >= self._most
