"""Waiting for an operation: exact limits, no thread per waiter, one look per ring (spec §4)."""

from __future__ import annotations

import asyncio
import threading
import time
import weakref
from collections.abc import Callable
from datetime import timedelta

from lro._bell import Bell
from lro._errors import DeadlineExceeded, InvalidTimeout, LroError
from lro._operation import Operation
from lro._times import Duration

Look = Callable[[str], Operation]
"""Gives the present operation of a name, or raises OperationNotFound."""

Park = Callable[[threading.Event, float], bool]


def wait_limit(
    timeout: Duration | timedelta | None, deadline_seconds: float | None, maximum: timedelta
) -> float:
    """How long a wait may hold, in seconds: the smallest of the three (spec §4.1-§4.4).

    Raises:
        InvalidTimeout: The timeout is negative or no valid duration.
        DeadlineExceeded: The deadline is over already.
    """
    limit = maximum.total_seconds()
    if timeout is not None:
        span = Duration.from_timedelta(timeout) if isinstance(timeout, timedelta) else timeout
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
    """

    def __init__(self, bell: Bell, look: Look, *, park: Park | None = None) -> None:
        self._bell = bell
        self._look = look
        self._park = park or _park
        self._loops: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _LoopRoom]
        self._loops = weakref.WeakKeyDictionary()

    def wait(
        self, name: str, limit: float, *, clock: Callable[[], float] | None = None
    ) -> Operation:
        """Block until the operation is done, or ``limit`` seconds are over; its state then.

        Raises:
            OperationNotFound: There is no such operation, or it was removed meanwhile.
        """
        clock = clock or time.monotonic
        end = clock() + limit
        operation = self._look(name)
        if operation.done or limit <= 0:
            return operation
        rung = threading.Event()
        self._bell.listen(name, rung.set)
        try:
            while True:
                rung.clear()
                operation = self._look(name)
                left = end - clock()
                if operation.done or left <= 0:
                    return operation
                self._park(rung, left)
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
        loop = asyncio.get_running_loop()
        room = self._loops.get(loop)
        if room is None:
            room = self._loops[loop] = _LoopRoom(loop, self._bell, self._look)
        found = await room.wait(name, limit)
        return self._look(name) if found is None else found

    def __len__(self) -> int:
        """How many coroutines wait."""
        return sum(len(room) for room in self._loops.values())


_Waiters = set["asyncio.Future[Operation | None]"]


class _LoopRoom:
    """The waiters of one event loop. Touched by that loop's thread only, but for ``_rung``."""

    def __init__(self, loop: asyncio.AbstractEventLoop, bell: Bell, look: Look) -> None:
        self._loop = weakref.ref(loop)
        self._bell = bell
        self._look = look
        self._waiters: dict[str, tuple[_Waiters, Callable[[], None]]] = {}

    async def wait(self, name: str, limit: float) -> Operation | None:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Operation | None] = loop.create_future()
        if name in self._waiters:
            self._waiters[name][0].add(future)
        else:
            listener = self._listener(name)
            self._waiters[name] = ({future}, listener)
            self._bell.listen(name, listener)
            self._answer(name)  # it may have ended between the first look and listening
        timer = loop.call_later(limit, _give_up, future)
        try:
            return await future
        finally:
            timer.cancel()
            self._leave(name, future)

    def __len__(self) -> int:
        return sum(len(waiters) for waiters, _ in self._waiters.values())

    def _listener(self, name: str) -> Callable[[], None]:
        def rung() -> None:  # in the thread that rings
            loop = self._loop()
            if loop is not None and not loop.is_closed():
                loop.call_soon_threadsafe(self._answer, name)

        return rung

    def _answer(self, name: str) -> None:
        if name not in self._waiters:
            return
        waiters = self._waiters[name][0]
        try:
            operation = self._look(name)
        except LroError as exc:
            for future in waiters:
                if not future.done():
                    future.set_exception(exc)
            return
        if operation.done:
            for future in waiters:
                if not future.done():
                    future.set_result(operation)

    def _leave(self, name: str, future: asyncio.Future[Operation | None]) -> None:
        waiters, listener = self._waiters[name]
        waiters.discard(future)
        if not waiters:
            del self._waiters[name]
            self._bell.leave(name, listener)


def _give_up(future: asyncio.Future[Operation | None]) -> None:
    if not future.done():
        future.set_result(None)


def _park(rung: threading.Event, seconds: float) -> bool:
    return rung.wait(seconds)
