"""Waiters of event loops: futures, one listener a name and loop, one look a ring."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import weakref
from collections.abc import Callable, Coroutine

from lro._bell import Bell
from lro._errors import LroError
from lro._operation import Operation

Look = Callable[[str], Operation]


class LoopRooms:
    """A room for each event loop that has waiters."""

    def __init__(
        self, bell: Bell, look: Look, changes: Callable[[], int] | None, period: float
    ) -> None:
        self._bell = bell
        self._look = look
        self._changes = changes
        self._period = period
        self._lock = threading.Lock()
        self._rooms: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _LoopRoom]
        self._rooms = weakref.WeakKeyDictionary()

    def wait(self, name: str, limit: float) -> Coroutine[None, None, Operation | None]:
        """The operation once it is done; None says: look yourself.

        That is when ``limit`` seconds are over, and when the operation cannot be found any more.
        """
        # The coroutine of the room itself: each one between costs ten thousand waiters a wake-up.
        return self._room(asyncio.get_running_loop()).wait(name, limit)

    def __len__(self) -> int:
        """How many coroutines wait."""
        with self._lock:
            return sum(map(len, self._rooms.values()))

    def _room(self, loop: asyncio.AbstractEventLoop) -> _LoopRoom:
        with self._lock:  # the loops of several threads may come at once
            room = self._rooms.get(loop)
            if room is None:
                room = _LoopRoom(loop, self._bell, self._look, self._changes, self._period)
                self._rooms[loop] = room
            return room


_Waiters = set["asyncio.Future[Operation | None]"]


class _LoopRoom:
    """The waiters of one event loop. Touched by that loop's thread only, but for listeners."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        bell: Bell,
        look: Look,
        changes: Callable[[], int] | None,
        period: float,
    ) -> None:
        self._loop = weakref.ref(loop)
        self._bell = bell
        self._look = look
        self._changes = changes
        self._period = period
        self._sweeper: asyncio.TimerHandle | None = None
        self._swept = -1
        self._waiters: dict[str, tuple[_Waiters, Callable[[], None]]] = {}

    async def wait(self, name: str, limit: float) -> Operation | None:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Operation | None] = loop.create_future()
        timer = loop.call_later(limit, _answer, future, None)
        try:
            self._enter(name, future)
            return await future
        finally:
            timer.cancel()
            self._leave(name, future)

    def __len__(self) -> int:
        # Other threads ask too: a copy made in one step does not change while it is counted.
        return sum(len(waiters) for waiters, _ in list(self._waiters.values()))

    def _enter(self, name: str, future: asyncio.Future[Operation | None]) -> None:
        if name in self._waiters:
            self._waiters[name][0].add(future)
        else:
            listener = self._listener(name)
            self._waiters[name] = ({future}, listener)
            self._bell.listen(name, listener)
            if self._sweeper is None and self._changes is not None:
                self._sweep()
            self._look_again(name)  # it may have ended between the first look and listening

    def _listener(self, name: str) -> Callable[[], None]:
        def rung() -> None:  # in the thread that rings
            loop = self._loop()
            if loop is not None:
                with contextlib.suppress(RuntimeError):  # it is closed: nobody waits there
                    loop.call_soon_threadsafe(self._look_again, name)

        return rung

    def _look_again(self, name: str) -> None:
        if name not in self._waiters:
            return
        found: Operation | None = None
        try:
            found = self._look(name)
        except LroError:
            pass  # each waiter looks and fails by itself: they do not share one exception
        if found is None or found.done:
            for future in self._waiters[name][0]:
                _answer(future, found)

    def _sweep(self) -> None:
        # What another process wrote rings no bell here: one cheap look for all who wait.
        self._sweeper = None
        if not self._waiters or self._changes is None:
            return
        with contextlib.suppress(LroError):  # not now, then: in a moment
            seen = self._changes()
            if seen != self._swept:
                self._swept = seen
                for name in list(self._waiters):
                    self._look_again(name)
        loop = asyncio.get_running_loop()
        self._sweeper = loop.call_later(self._period, self._sweep)

    def _leave(self, name: str, future: asyncio.Future[Operation | None]) -> None:
        waiters, listener = self._waiters[name]
        waiters.discard(future)
        if not waiters:
            del self._waiters[name]
            self._bell.leave(name, listener)


def _answer(future: asyncio.Future[Operation | None], found: Operation | None) -> None:
    if not future.done():
        future.set_result(found)
