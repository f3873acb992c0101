"""Watchers on event loops: who hears of a change, who reads it, and when all is looked at again."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import threading
import weakref
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from datetime import datetime
from typing import Final, TypeAlias, TypeVar

import attrs

from lro._base.errors import LroError, ResourceExhausted, Unavailable
from lro._engine.access import Seen
from lro._engine.budget import ByteBudget, HeldCall, ReplyReservation
from lro._engine.change_listener import LOOK_AGAIN_SECONDS
from lro._engine.record_updater import RecordUpdater
from lro._engine.waiting import stopping
from lro._engine.watching import Sighting, WatchList
from lro._model.names import MAX_NAMES

log = logging.getLogger("lro")

GATHER_SECONDS: Final = 0.01
"""Changes of so short a time are read together."""

BATCH: Final = 100
"""How many operations a watcher reads at once: what is read is held until it is sent."""

_TICK_SECONDS: Final = 0.25
"""How often a lookout asks whether other processes have changed it is not known what."""

_REST: Final = 20
"""A look at everything is followed by a rest of so many times its length."""

_RETRY_SECONDS: Final = 0.5


T = TypeVar("T")

See: TypeAlias = Callable[[Sequence[str], int], Seen]
"""Reads the records of these names that a caller can see, up to so many bytes."""


class WatchHub:
    """A lookout for each event loop that has watchers.

    ``listening`` is called when somebody watches: see to it that other processes are heard. What a
    stream reads, at most ``max_bytes`` at once, has its turn of ``replies``.
    """

    def __init__(
        self,
        updater: RecordUpdater,
        listening: Callable[[], None],
        replies: ByteBudget,
        max_bytes: int,
    ) -> None:
        self.updater = updater
        self.listening = listening
        self.replies = replies
        self.max_bytes = max_bytes
        self.closed = False
        self._lock = threading.Lock()
        self._lookouts: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, LoopWatchers] = (
            weakref.WeakKeyDictionary()
        )

    def watching(
        self, names: Iterable[str], see: See, places: Iterable[HeldCall] = ()
    ) -> WatchStream:
        """These operations, watched; ``places`` are freed when that ends."""
        return WatchStream(names, see, self, places)

    async def read(self, call: Callable[[], T]) -> T:
        """What a call that reads the store gives; in a thread, if it may block the loop."""
        if self.updater.store.writes_block:
            return await asyncio.to_thread(call)
        return call()

    def here(self) -> LoopWatchers:
        """The lookout of the running loop."""
        loop = asyncio.get_running_loop()
        with self._lock:  # the loops of several threads may come at once
            return self._lookouts.setdefault(loop, LoopWatchers(loop, self))

    def close(self) -> None:
        """Send all watchers home: the service is stopping."""
        self.closed = True
        self.updater.watch_notifier.notify_all()

    def __len__(self) -> int:
        """How many streams watch."""
        with self._lock:
            return sum(len(lookout.streams) for lookout in self._lookouts.values())


class WatchStream:
    """Operations being watched: iterate over it, once, to be told of them.

    First comes the state of each, then that of each again whenever it has changed; those that are
    not there, or not any more, come as :class:`MissingOperation`. It ends when all are done or
    gone. Of several changes in a row, only the last may be told.
    """

    def __init__(
        self, names: Iterable[str], see: See, lookouts: WatchHub, places: Iterable[HeldCall]
    ) -> None:
        self.list = WatchList(names)
        self.turn: ReplyReservation | None = None
        """Of what was read last, until the next is asked for; whoever has taken it releases it."""
        self._places = tuple(places)
        self._see = see
        self._lookouts = lookouts
        self._woken = asyncio.Event()

    async def __aiter__(self) -> AsyncGenerator[Sighting, None]:
        """Each sighting.

        Raises:
            Unavailable: The service is stopping.
        """
        async with contextlib.aclosing(self.batches(LOOK_AGAIN_SECONDS)) as batches:
            async for batch in batches:
                self._release()  # whoever iterates holds what it is told
                for one in batch:
                    yield one

    async def batches(self, idle_seconds: float) -> AsyncGenerator[list[Sighting], None]:
        """Sightings that were read together; an empty list when there was none for so long.

        While the store cannot be reached, there is none.

        Raises:
            Unavailable: The service is stopping.
        """
        lookout, loop = self._lookouts.here(), asyncio.get_running_loop()
        lookout.enter(self)
        try:
            idle_at = loop.time() + idle_seconds
            while not self.list.over:
                self._release()
                found = await self._next(lookout, idle_at)
                if found or loop.time() >= idle_at:
                    yield found
                    idle_at = loop.time() + idle_seconds
        finally:
            self._release()
            for place in self._places:
                place.release()
            lookout.leave(self)

    def _release(self) -> None:
        if self.turn is not None:
            self.turn.release()
            self.turn = None

    def wake(self) -> None:
        """There may be something to be read. On the loop's thread."""
        self._woken.set()

    async def _next(self, lookout: LoopWatchers, idle_at: float) -> list[Sighting]:
        self._woken.clear()
        if self._lookouts.closed:
            raise stopping()
        names = self.list.take(BATCH)
        if not names:
            await self._sleep(idle_at)
            return []
        try:
            most = self._lookouts.max_bytes
            turn = self.turn = await self._lookouts.replies.atake(most)
            seen = await self._lookouts.read(lambda: self._see(names, turn.bytes))
        except (Unavailable, ResourceExhausted):  # later there may be room, and the store be back
            for name in names:
                self.list.changed(name)
            await asyncio.sleep(_RETRY_SECONDS)
            return []
        turn.resize(sum(record.weight for record in seen.records.values()))
        for name in seen.rest:
            names.remove(name)
            self.list.changed(name)
        found = self.list.read(names, seen.records)
        lookout.forget(self, (name for name in names if name not in self.list.left))
        return found

    async def _sleep(self, until: float) -> None:
        timer = asyncio.get_running_loop().call_at(until, self._woken.set)
        try:
            await self._woken.wait()
        finally:
            timer.cancel()


@attrs.frozen
class _Watched:
    """Who watches a name, and what the bell calls."""

    streams: set[WatchStream]
    listener: Callable[[], None]


class LoopWatchers:
    """The watchers of one event loop. Touched by its thread only, but for listeners."""

    def __init__(self, loop: asyncio.AbstractEventLoop, house: WatchHub) -> None:
        self.streams: set[WatchStream] = set()
        self._loop = weakref.ref(loop)
        self._house = house
        self._bell = house.updater.watch_notifier
        self._watched: dict[str, _Watched] = {}
        self._lock = threading.Lock()
        self._rung: dict[str, None] = {}
        self._called = False
        self._gathered_at = 0.0
        self._looking: asyncio.Task[None] | None = None

    def enter(self, stream: WatchStream) -> None:
        """Tell a stream from now on which of its names have changed."""
        self.streams.add(stream)
        for name in stream.list.left:
            watched = self._watched.get(name)
            if watched is None:
                watched = self._watched[name] = _Watched(set(), self._listener(name))
                self._bell.listen(name, watched.listener)
            watched.streams.add(stream)
        if self._looking is None:
            self._looking = asyncio.get_running_loop().create_task(
                self._look_again(self._house.updater.unnamed_changes)
            )
        self._house.listening()

    def leave(self, stream: WatchStream) -> None:
        """Free all that a stream holds here."""
        self.forget(stream, stream.list.left)
        self.streams.discard(stream)
        if not self.streams and self._looking is not None:
            self._looking.cancel()
            self._looking = None

    def forget(self, stream: WatchStream, names: Iterable[str]) -> None:
        """Tell a stream of these names no more."""
        for name in names:
            watched = self._watched[name]
            watched.streams.discard(stream)
            if not watched.streams:
                del self._watched[name]
                self._bell.leave(name, watched.listener)

    def _listener(self, name: str) -> Callable[[], None]:
        def rung() -> None:  # in the thread that rings
            with self._lock:
                self._rung[name] = None
                first, self._called = not self._called, True
            loop = self._loop()
            if first and loop is not None:
                with contextlib.suppress(RuntimeError):  # it is closed: nobody watches there
                    loop.call_soon_threadsafe(self._gather_soon)

        return rung

    def _gather_soon(self) -> None:
        loop = asyncio.get_running_loop()
        loop.call_at(max(loop.time(), self._gathered_at + GATHER_SECONDS), self._gather)

    def _gather(self) -> None:
        self._gathered_at = asyncio.get_running_loop().time()
        with self._lock:
            rung, self._rung, self._called = self._rung, {}, False
        for name in rung:
            watched = self._watched.get(name)
            for stream in watched.streams if watched else ():
                stream.list.changed(name)
                stream.wake()

    async def _look_again(self, elsewhere: int) -> None:
        """What no ring has told of, for as long as somebody watches."""
        loop = asyncio.get_running_loop()
        looked_at, rest = loop.time(), 0.0
        while True:
            await asyncio.sleep(_TICK_SECONDS)
            now, stirred = loop.time(), self._house.updater.unnamed_changes
            if now - looked_at < max(rest, LOOK_AGAIN_SECONDS if stirred == elsewhere else 0.0):
                continue
            try:
                await self._look()
                elsewhere = stirred
            except LroError as exc:  # the store is away, and the next look may see it again
                log.info("not looked at what is watched: %s", exc)
            except Exception:  # whatever code of others has raised
                log.exception("looking at what is watched failed, and goes on")
            looked_at = loop.time()
            rest = _REST * (looked_at - now)

    async def _look(self) -> None:
        names = list(self._watched)
        for first in range(0, len(names), MAX_NAMES):
            some = names[first : first + MAX_NAMES]
            editions = await self._house.read(functools.partial(self._editions, some))
            await asyncio.sleep(0)  # nor may this hold up the loop where reading does not
            for name in some:
                watched = self._watched.get(name)
                for stream in watched.streams if watched else ():
                    if stream.list.differs(name, editions.get(name)):
                        stream.list.changed(name)
                        stream.wake()

    def _editions(self, names: Sequence[str]) -> dict[str, tuple[int, datetime]]:
        editions: dict[str, tuple[int, datetime]] = {}
        rest = names
        while rest:
            found = self._house.updater.store.find(rest, self._house.max_bytes)
            editions.update((record.name, record.edition) for record in found.records)
            rest = found.rest
        return editions
