"""Waiting for an operation: exact limits, no thread per waiter, one look per ring (spec §4)."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING

from lro._base.errors import DeadlineExceeded, InvalidTimeout, Unavailable
from lro._engine.notifier import Notifier
from lro._messages.times import Duration
from lro._model.operation import Operation

if TYPE_CHECKING:
    from lro._engine.loop_waiters import LoopWaiters

Look = Callable[[str], Operation]
"""Gives the present operation of a name, or raises OperationNotFound."""

Park = Callable[[threading.Event, float], bool]


def wait_limit(
    timeout: Duration | timedelta | float | None,
    deadline_seconds: float | None,
    maximum: timedelta,
) -> float:
    """How long a wait may hold, in seconds: the smallest of the three (spec §4.1-§4.4).

    Raises:
        InvalidTimeout: The timeout is negative or no valid duration.
        DeadlineExceeded: The deadline is over already.
    """
    limit = maximum.total_seconds()
    if timeout is not None:
        span = _as_duration(timeout)
        if not span.valid or span.total_seconds < 0:
            raise InvalidTimeout(
                "timeout", f"must be a duration of 0 or more, got {span.seconds} s {span.nanos} ns"
            )
        limit = min(limit, span.total_seconds)
    if deadline_seconds is not None:
        if deadline_seconds <= 0:
            raise DeadlineExceeded()
        limit = min(limit, deadline_seconds)
    return limit


def stopping() -> Unavailable:
    """What waiters are told when the service is closed."""
    return Unavailable("the service is stopping")


class Waiters:
    """Everybody who waits in this process.

    A blocking waiter parks its own thread. Waiters of an event loop are futures: one listener a
    name and loop, however many wait, and one look at the store a ring, shared by all of them.
    ``look_blocks`` says that an event loop must not look by itself. ``listening`` is called once
    somebody listens: see to it that the bell rings for what other processes write.
    """

    def __init__(
        self,
        bell: Notifier,
        look: Look,
        *,
        clock: Callable[[], float] = time.monotonic,
        park: Park = threading.Event.wait,
        look_blocks: bool = False,
        listening: Callable[[], None] = lambda: None,
    ) -> None:
        self._bell = bell
        self._look = look
        self._clock = clock
        self._park = park
        self._look_blocks = look_blocks
        self._listening = listening
        self._closed = False
        self._loops: LoopWaiters | None = None

    def wait(self, name: str, limit: float) -> Operation:
        """Block until the operation is done, or ``limit`` seconds are over; its state then.

        Raises:
            OperationNotFound: There is no such operation, or it was removed meanwhile.
            Unavailable: The store cannot be reached at the first look or the last one, or the
                service is stopping.
        """
        end = self._clock() + limit
        operation = self._look(name)
        if operation.done or limit <= 0:
            return operation
        rung = threading.Event()
        self._bell.listen(name, rung.set)
        try:
            self._listening()
            while True:
                rung.clear()
                if self._closed:
                    raise stopping()
                left = end - self._clock()
                try:
                    operation = self._look(name)
                    if operation.done or left <= 0:
                        return operation
                except Unavailable:  # it may be back before the time is over
                    if left <= 0:
                        raise
                self._park(rung, left)
        finally:
            self._bell.leave(name, rung.set)

    async def wait_async(self, name: str, limit: float) -> Operation:
        """The same for a coroutine: suspends, blocks nothing, costs no thread."""
        operation = await self._alook(name)
        if operation.done or limit <= 0:
            return operation
        if self._closed:  # others who wait for it may be told just now, and not be told again
            raise stopping()
        found = await self._of_loops().wait(name, limit)
        if found is None and self._closed:
            raise stopping()
        return await self._alook(name) if found is None else found

    def close(self) -> None:
        """Send everybody home: the service is stopping."""
        self._closed = True
        self._bell.notify_all()

    def forked(self) -> None:
        """Begin anew: in a forked process, nobody waits."""
        self._loops = None

    async def _alook(self, name: str) -> Operation:
        if not self._look_blocks:
            return self._look(name)
        import asyncio

        return await asyncio.to_thread(self._look, name)

    def __len__(self) -> int:
        """How many coroutines wait."""
        return 0 if self._loops is None else len(self._loops)

    def _of_loops(self) -> LoopWaiters:
        if self._loops is None:
            from lro._engine.loop_waiters import (
                LoopWaiters,  # brings asyncio, which not every process needs
            )

            self._loops = LoopWaiters(
                self._bell,
                self._look,
                look_blocks=self._look_blocks,
                listening=self._listening,
                closed=lambda: self._closed,
            )
        return self._loops


def _as_duration(timeout: Duration | timedelta | float) -> Duration:
    if isinstance(timeout, Duration):
        return timeout
    if isinstance(timeout, timedelta):
        return Duration.from_timedelta(timeout)
    try:
        return Duration.from_timedelta(timedelta(seconds=timeout))
    except (TypeError, ValueError, OverflowError):
        raise InvalidTimeout("timeout", f"must be a duration or seconds, got {timeout!r}") from None
