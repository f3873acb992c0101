"""Waiters of event loops: futures, one listener a name and loop, one look a ring."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import weakref
from collections.abc import Callable, Coroutine

import attrs

from lro._base.errors import LroError, Unavailable
from lro._engine.notifier import Notifier
from lro._model.operation import Operation


@attrs.frozen(eq=False)
class LoopWaiters:
    """A room for each event loop that has waiters; for the rest see ``Waiters``."""

    bell: Notifier
    look: Callable[[str], Operation]
    look_blocks: bool = attrs.field(kw_only=True)
    listening: Callable[[], None] = attrs.field(kw_only=True)
    closed: Callable[[], bool] = attrs.field(kw_only=True)
    _lock: threading.Lock = attrs.field(factory=threading.Lock, init=False)
    _rooms: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _LoopRoom] = attrs.field(
        factory=weakref.WeakKeyDictionary, init=False
    )

    def wait(self, name: str, limit: float) -> Coroutine[None, None, Operation | None]:
        """The operation once it is done; None says: look yourself.

        That is when ``limit`` seconds are over, when the operation cannot be found any more, and
        when the service is closed.
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
                room = _LoopRoom(loop, self)
                self._rooms[loop] = room
            return room


_Waiters = set["asyncio.Future[Operation | None]"]
_Found = tuple[Operation | None] | None
"""What waiters are to be told, in a tuple; None: nothing yet."""


class _LoopRoom:
    """The waiters of one event loop. Touched by that loop's thread only, but for listeners."""

    def __init__(self, loop: asyncio.AbstractEventLoop, house: LoopWaiters) -> None:
        self._loop = weakref.ref(loop)
        self._house = house
        self._waiters: dict[str, tuple[_Waiters, Callable[[], None]]] = {}
        self._looks: dict[str, asyncio.Task[None]] = {}
        self._again: set[str] = set()

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
            self._house.bell.listen(name, listener)
            self._house.listening()
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
        if self._house.closed():
            self._tell(name, None)
        elif not self._house.look_blocks:
            self._found(name, self._find(name))
        elif name in self._looks:
            self._again.add(name)  # the look under way may be too early for this ring
        else:
            self._looks[name] = asyncio.get_running_loop().create_task(self._look_aside(name))

    async def _look_aside(self, name: str) -> None:
        self._again.add(name)
        try:
            while name in self._again and name in self._waiters:
                self._again.discard(name)
                self._found(name, await asyncio.to_thread(self._find, name))
        finally:
            self._again.discard(name)
            del self._looks[name]

    def _find(self, name: str) -> _Found:
        try:
            return (self._house.look(name),)
        except Unavailable:
            return None  # the store may be back before the time is over
        except LroError:
            return (None,)  # each waiter looks and fails by itself: they share no exception

    def _found(self, name: str, found: _Found) -> None:
        if found is not None and (found[0] is None or found[0].done):
            self._tell(name, found[0])

    def _tell(self, name: str, found: Operation | None) -> None:
        waiters, _ = self._waiters.get(name, ((), None))
        for future in waiters:
            _answer(future, found)

    def _leave(self, name: str, future: asyncio.Future[Operation | None]) -> None:
        waiters, listener = self._waiters[name]
        waiters.discard(future)
        if not waiters:
            del self._waiters[name]
            self._house.bell.leave(name, listener)


def _answer(future: asyncio.Future[Operation | None], found: Operation | None) -> None:
    if not future.done():
        future.set_result(found)
