"""Waiting for an operation: exact limits, no thread per waiter, one look per ring (spec §4)."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from lro._bell import Bell
from lro._errors import DeadlineExceeded, InvalidTimeout
from lro._operation import Operation
from lro._times import Duration

if TYPE_CHECKING:
    from lro._loops import LoopRooms

Look = Callable[[str], Operation]
"""Gives the present operation of a name, or raises OperationNotFound."""

LOOK_AGAIN_SECONDS: Final = 1.0
"""How soon a waiter learns of what another process has written."""

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


class WaitingRoom:
    """Everybody who waits in this process.

    A blocking waiter parks its own thread. Waiters of an event loop are futures: one listener a
    name and loop, however many wait, and one look at the store a ring, shared by all of them.
    Bells are not heard across processes: ``changes`` is the change counter of a store that several
    share, which is looked at every second while somebody waits.
    """

    def __init__(
        self,
        bell: Bell,
        look: Look,
        *,
        clock: Callable[[], float] = time.monotonic,
        park: Park = threading.Event.wait,
        changes: Callable[[], int] | None = None,
    ) -> None:
        self._bell = bell
        self._look = look
        self._clock = clock
        self._park = park
        self._changes = changes
        self._loops: LoopRooms | None = None

    def wait(self, name: str, limit: float) -> Operation:
        """Block until the operation is done, or ``limit`` seconds are over; its state then.

        Raises:
            OperationNotFound: There is no such operation, or it was removed meanwhile.
        """
        end = self._clock() + limit
        operation = self._look(name)
        if operation.done or limit <= 0:
            return operation
        rung = threading.Event()
        self._bell.listen(name, rung.set)
        try:
            while True:
                rung.clear()
                operation = self._look(name)
                left = end - self._clock()
                if operation.done or left <= 0:
                    return operation
                self._park(rung, left if self._changes is None else min(left, LOOK_AGAIN_SECONDS))
        finally:
            self._bell.leave(name, rung.set)

    async def await_(self, name: str, limit: float) -> Operation:
        """The same for a coroutine: suspends, blocks nothing, costs no thread.

        Raises:
            OperationNotFound: There is no such operation, or it was removed meanwhile.
        """
        operation = self._look(name)
        if operation.done or limit <= 0:
            return operation
        found = await self._of_loops().wait(name, limit)
        return self._look(name) if found is None else found

    def __len__(self) -> int:
        """How many coroutines wait."""
        return 0 if self._loops is None else len(self._loops)

    def _of_loops(self) -> LoopRooms:
        if self._loops is None:
            from lro._loops import LoopRooms  # brings asyncio, which not every process needs

            self._loops = LoopRooms(self._bell, self._look, self._changes, LOOK_AGAIN_SECONDS)
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
