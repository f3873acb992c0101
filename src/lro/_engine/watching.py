"""Waits and watches on event loops: notifications of changes, and shared reads (spec §3.11)."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import hashlib
import logging
import threading
import weakref
from collections.abc import AsyncGenerator, Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Final, TypeAlias, TypeVar

import attrs

from lro._base.errors import LroError, OperationNotFound, ResourceExhausted, Unavailable
from lro._base.status import AnyMessage
from lro._engine.access import VisibleRecords
from lro._engine.change_listener import LOOK_AGAIN_SECONDS, ChangeListener
from lro._engine.flow import in_thread
from lro._engine.limits import ByteBudget, HeldCall, ReplyReservation
from lro._engine.process import living
from lro._engine.runtime import RecordUpdater, stopping
from lro._engine.store_port import READ_BYTES, Found
from lro._model.operation import MAX_NAMES, MissingOperation, Operation, Record, WatchItem

log = logging.getLogger("lro")

GATHER_SECONDS: Final = 0.01
"""Changes within this number of seconds are read together."""

_READ_ON_LOOP: Final = 64
"""Maximum number of records that an event loop reads from SQLite at once: about 0.5 ms."""

BATCH: Final = 100
"""Maximum number of operations that a stream reads at once, and holds until they are sent."""

_TICK_SECONDS: Final = 0.25
"""Seconds between checks for changes by other processes that were notified without a name."""

_REST: Final = 20
"""After a full rescan that took t seconds, wait this factor times t."""

_RETRY_SECONDS: Final = 0.5

T = TypeVar("T")

See: TypeAlias = Callable[[Sequence[str], int], VisibleRecords]
"""Read the records of these names that a caller can see, at most this number of bytes."""


@attrs.frozen
class _Sent:
    edition: tuple[int, datetime]
    metadata: bytes


class WatchList:
    """The operations of a stream that have not ended, and the last edition of each that was sent.

    The list keeps a name and a few bytes for each operation, however large the operations are and
    however slow the reader is: a state is read when the reader asks for it. An operation that was
    sent as done or gone is removed, since it cannot change.
    """

    def __init__(self, names: Iterable[str]) -> None:
        self._left: dict[str, _Sent | None] = dict.fromkeys(names)
        self._due = dict.fromkeys(self._left)

    @property
    def over(self) -> bool:
        """True if all operations were sent as done or gone."""
        return not self._left

    @property
    def left(self) -> Collection[str]:
        """The names of the operations that have not ended."""
        return self._left.keys()

    def changed(self, name: str) -> None:
        """Mark an operation to be read again, because it may have changed."""
        if name in self._left:
            self._due[name] = None

    def differs(self, name: str, edition: tuple[int, datetime] | None) -> bool:
        """Return True if this edition (None: gone) was not sent, and no read of the name is due."""
        if name not in self._left or name in self._due:
            return False  # the operation has ended, or is read anyway
        sent = self._left[name]
        return sent is None or sent.edition != edition

    def take(self, limit: int) -> list[str]:
        """Return at most ``limit`` names to read now: the names that were marked first."""
        names = [name for name, _ in zip(self._due, range(limit), strict=False)]
        for name in names:
            del self._due[name]
        return names

    def read(self, names: Iterable[str], found: Mapping[str, Record]) -> list[WatchItem]:
        """Return the items to send for names that were taken, given their visible records."""
        seen = [self._read(name, found.get(name)) for name in names]
        return [one for one in seen if one is not None]

    def _read(self, name: str, record: Record | None) -> WatchItem | None:
        if record is None:
            self._drop(name)
            return MissingOperation(name)
        if record.done:
            self._drop(name)
            return record.operation
        before = self._left[name]
        if before is not None and before.edition == record.edition:
            return None
        now = _Sent(record.edition, _print(record.metadata))
        self._left[name] = now
        # Claims and cancel requests also make new versions, which look the same to callers.
        return None if before is not None and before.metadata == now.metadata else record.operation

    def _drop(self, name: str) -> None:
        del self._left[name]
        self._due.pop(name, None)


class WatchStream:
    """A watch of operations: iterate over it, once, to get their states.

    It yields the state of each operation, and the state again whenever it has changed. Operations
    that do not exist, or no longer exist, come as :class:`MissingOperation`. The stream ends when
    all operations are done or gone. Of several changes in a row, it may yield only the last.
    """

    def __init__(
        self, names: Iterable[str], see: See, hub: WatchHub, places: Iterable[HeldCall]
    ) -> None:
        self.list: WatchList = WatchList(names)
        self.reservation: ReplyReservation | None = None
        """Bytes reserved from one read to the next; code that takes this over must release it."""
        self._places = tuple(places)
        self._see = see
        self._hub = hub
        self._woken = asyncio.Event()

    async def __aiter__(self) -> AsyncGenerator[WatchItem, None]:
        """Yield each state.

        Raises:
            Unavailable: The service is stopping.
        """
        async with contextlib.aclosing(self.batches(LOOK_AGAIN_SECONDS)) as batches:
            async for batch in batches:
                self._release()  # from here on, the caller holds the items
                for one in batch:
                    yield one

    async def batches(self, idle_seconds: float) -> AsyncGenerator[list[WatchItem], None]:
        """Yield states read together; after ``idle_seconds`` without a state, yield an empty list.

        While the store cannot be reached, no states are yielded.

        Raises:
            Unavailable: The service is stopping.
        """
        watchers, loop = self._hub.here(), asyncio.get_running_loop()
        watchers.enter(self)
        try:
            idle_at = loop.time() + idle_seconds
            while not self.list.over:
                self._release()
                found = await self._next(watchers, idle_at)
                if found or loop.time() >= idle_at:
                    yield found
                    idle_at = loop.time() + idle_seconds
        finally:
            self._release()
            for place in self._places:
                place.release()
            watchers.remove(self)

    def _release(self) -> None:
        if self.reservation is not None:
            self.reservation.release()
            self.reservation = None

    def wake(self) -> None:
        """Wake the stream to read soon. Call it in the thread of the loop."""
        self._woken.set()

    async def _next(self, watchers: LoopWatchers, idle_at: float) -> list[WatchItem]:
        self._woken.clear()
        if self._hub.closed:
            raise stopping()
        names = self.list.take(BATCH)
        if not names:
            await self._sleep(idle_at)
            return []
        try:
            most = self._hub.max_bytes
            reservation = self.reservation = await self._hub.replies.atake(most)
            seen = await self._hub.read(lambda: self._see(names, reservation.bytes))
        except (Unavailable, ResourceExhausted):  # the names are read again after a pause
            for name in names:
                self.list.changed(name)
            await asyncio.sleep(_RETRY_SECONDS)
            return []
        reservation.resize(sum(record.weight for record in seen.records.values()))
        for name in seen.rest:
            names.remove(name)
            self.list.changed(name)
        found = self.list.read(names, seen.records)
        watchers.forget(self, (name for name in names if name not in self.list.left))
        return found

    async def _sleep(self, until: float) -> None:
        timer = asyncio.get_running_loop().call_at(until, self._woken.set)
        try:
            await self._woken.wait()
        finally:
            timer.cancel()


class WatchHub:
    """The waits and watches of a process: one :class:`LoopWatchers` for each event loop.

    A stream takes the bytes of each read, at most ``max_bytes``, from ``replies``.
    """

    def __init__(
        self,
        updater: RecordUpdater,
        change_listener: ChangeListener,
        replies: ByteBudget,
        max_bytes: int,
        *,
        closed: bool = False,
    ) -> None:
        self.updater = updater
        self.change_listener = change_listener
        self.replies = replies
        self.max_bytes = max_bytes
        self.closed = closed
        self._lock = threading.Lock()
        self._loops: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, LoopWatchers] = (
            weakref.WeakKeyDictionary()
        )

    def watch(self, names: Iterable[str], see: See, places: Iterable[HeldCall] = ()) -> WatchStream:
        """Watch these operations, and free ``places`` at the end."""
        return WatchStream(names, see, self, places)

    async def read(self, call: Callable[[], T]) -> T:
        """Call a function that reads the store, in a thread if it may block the loop."""
        if self.updater.store.writes_block:
            return await in_thread(call)
        return call()

    def here(self) -> LoopWatchers:
        """Return the waits and watches of the running loop."""
        loop = asyncio.get_running_loop()
        watchers = self._loops.get(loop)
        if watchers is None:  # only this thread adds this loop
            watchers = LoopWatchers(loop, self)
            with self._lock:  # the loops of several threads may call this at once
                self._loops[loop] = watchers
        return watchers

    @property
    def waiting(self) -> int:
        """The number of coroutines that wait."""
        with self._lock:
            return sum(self._loops[loop].waiting for loop in living(self._loops))

    @property
    def watching(self) -> int:
        """The number of streams that watch."""
        with self._lock:
            return sum(len(self._loops[loop].streams) for loop in living(self._loops))


class Watched:
    """The waits and streams of one event loop for a name, and the listener for that name."""

    __slots__ = ("name", "streams", "waits", "watchers")

    def __init__(self, name: str, watchers: LoopWatchers) -> None:
        self.name: str = name
        self.watchers: LoopWatchers = watchers
        self.waits: set[asyncio.Future[Operation | None]] = set()
        self.streams: set[WatchStream] = set()

    def __call__(self, ended: bool, stored: Record | None) -> None:
        """Record a notification. Called in the thread that notifies."""
        self.watchers.notified(self, ended, stored)


class PendingWait:
    """A wait for the end of one operation, from :meth:`LoopWatchers.begin`.

    ``future`` gives the operation once it is done. It gives None if the caller must read it: at
    the timeout, if the operation no longer exists, or if the service is closed.
    """

    __slots__ = ("future", "timer", "watched")

    def __init__(
        self, watched: Watched, future: asyncio.Future[Operation | None], timer: asyncio.TimerHandle
    ) -> None:
        self.watched: Watched = watched
        self.future: asyncio.Future[Operation | None] = future
        self.timer: asyncio.TimerHandle = timer

    def end(self) -> None:
        """Free the resources of the wait. Call it once, however the wait has ended."""
        self.timer.cancel()
        watched = self.watched
        if self.future in watched.waits:  # otherwise the answer has freed the resources
            watched.waits.remove(self.future)
            watched.watchers.unlisten_if_unused(watched)


class LoopWatchers:
    """The waits and watches of one event loop, with one listener for each name.

    A wait is a watch of one name that ends when the operation is done. One read of the store
    answers all waits whose operations may have ended; a stream reads its own names when its reader
    asks for more. Only the thread of the loop may call it, except for :meth:`notified`.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, hub: WatchHub) -> None:
        self.streams: set[WatchStream] = set()
        self._loop = weakref.ref(loop)
        self._hub = hub
        self._notifier = hub.updater.notifier
        self._watched: dict[str, Watched] = {}
        self._lock = threading.Lock()
        self._ended: dict[Watched, Record | None] = {}
        self._answering: asyncio.Task[None] | None = None
        self._reading: Sequence[str] = ()
        """The names that ``_answering`` reads now."""
        self._changed: dict[Watched, None] = {}
        self._gathering = False
        self._gathered_at = 0.0
        self._looking: asyncio.Task[None] | None = None

    # -- waits --------------------------------------------------------------------------------

    def begin(self, name: str, limit: float) -> PendingWait:
        """Begin a wait for the end of an operation, for ``limit`` seconds.

        Read the operation after this call: if the read does not show the end, a notification will.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Operation | None] = loop.create_future()
        watched = self._watched_of(name)
        watched.waits.add(future)
        return PendingWait(watched, future, loop.call_later(limit, _answer, future, None))

    @property
    def waiting(self) -> int:
        """The number of coroutines that wait. Any thread may read it: one step makes the copy."""
        return sum(len(watched.waits) for watched in list(self._watched.values()))

    def _answer_soon(self) -> None:
        if self._answering is None and (names := self._take_ended()):
            self._reading = names
            self._answering = asyncio.get_running_loop().create_task(self._answer_waits())
            self._answering.add_done_callback(self._answered)

    async def _answer_waits(self) -> None:
        """Answer the waits for ended operations until no further operations may have ended."""
        while self._reading:
            await self._answer_those(self._reading)
            self._reading = self._take_ended()

    def _answered(self, task: asyncio.Task[None]) -> None:
        """End the task. If all tasks were cancelled, perhaps before it began, some may go on."""
        self._answering = None
        for watched in map(self._watched.get, self._reading if task.cancelled() else ()):
            if watched is not None:
                self.notified(watched, True, None)
        if self._ended:  # more have ended: the next notification would not wake the loop
            self._call_soon(self._answer_soon)

    def _take_ended(self) -> list[str]:
        """Answer the waits whose ends this process has stored, and return the names to read."""
        with self._lock:
            ended, self._ended = self._ended, {}
        stored = [record for record in ended.values() if record is not None]
        shown: dict[str, Operation | None] = {}
        with contextlib.suppress(Exception):  # the clock failed: these ends are read
            now = self._hub.updater.store.now()
            shown = {one.name: one.operation for one in stored if one.visible(now)}
        self._resolve_waits(shown)
        return [watched.name for watched in ended if watched.waits]

    async def _answer_those(self, names: Sequence[str]) -> None:
        store, rest = self._hub.updater.store, names
        most = MAX_NAMES if store.reads_block or not store.writes_block else _READ_ON_LOOP
        while rest:
            some, rest = rest[:most], rest[most:]
            if self._hub.closed:
                self._resolve_waits(dict.fromkeys(some))
                continue
            try:
                ends = functools.partial(self._ends, some)
                found, left = await in_thread(ends) if store.reads_block else ends()
            except LroError:
                continue  # the store may be available again before the waits time out
            except Exception:  # code outside this library may raise anything
                log.exception("reading what has ended failed; other ends are read")
                continue
            self._resolve_waits(found)
            rest = [*left, *rest]
            if rest and not store.reads_block:
                await asyncio.sleep(0)  # let other tasks run

    def _ends(self, names: Sequence[str]) -> tuple[Mapping[str, Operation | None], Sequence[str]]:
        """Read which operations are done, or gone (None); return them, and the names not read."""
        found, now = self._find(names), self._hub.updater.store.now()
        ends: dict[str, Operation | None] = dict.fromkeys(names)
        for name in found.rest:
            del ends[name]
        for record in found.records:
            if record.visible(now):
                if record.done:
                    ends[record.name] = record.operation
                else:
                    del ends[record.name]
        return ends, found.rest

    def _find(self, names: Sequence[str]) -> Found:
        store = self._hub.updater.store
        if store.reads_block:
            return store.find(names, READ_BYTES)
        records = []  # read by get(), because find() weighs the records and so is slower
        for name in names:
            try:
                records.append(store.get(name))
            except OperationNotFound:
                continue
        return Found(records)

    def _resolve_waits(self, ends: Mapping[str, Operation | None]) -> None:
        """Answer all waits for these names, and free their resources."""
        for name, operation in ends.items():
            watched = self._watched.get(name)
            if watched is None:
                continue  # all waits have ended meanwhile
            for future in watched.waits:
                _answer(future, operation)
            watched.waits.clear()
            self.unlisten_if_unused(watched)

    # -- streams ------------------------------------------------------------------------------

    def enter(self, stream: WatchStream) -> None:
        """Notify a stream of changes from now on."""
        self.streams.add(stream)
        for name in stream.list.left:
            self._watched_of(name).streams.add(stream)
        if self._looking is None:
            self._looking = asyncio.get_running_loop().create_task(
                self._look_again(self._hub.updater.unnamed_changes)
            )
        self._hub.change_listener.ensure_running()

    def remove(self, stream: WatchStream) -> None:
        """Remove a stream, and stop its listeners."""
        self.forget(stream, stream.list.left)
        self.streams.discard(stream)
        if not self.streams and self._looking is not None:
            self._looking.cancel()
            self._looking = None

    def forget(self, stream: WatchStream, names: Iterable[str]) -> None:
        """Stop notifying a stream of these names."""
        for name in names:
            watched = self._watched[name]
            watched.streams.discard(stream)
            self.unlisten_if_unused(watched)

    def _gather_soon(self) -> None:
        loop = asyncio.get_running_loop()
        loop.call_at(max(loop.time(), self._gathered_at + GATHER_SECONDS), self._gather)

    def _gather(self) -> None:
        self._gathered_at = asyncio.get_running_loop().time()
        with self._lock:
            changed, self._changed, self._gathering = self._changed, {}, False
        for watched in changed:
            for stream in watched.streams:
                stream.list.changed(watched.name)
                stream.wake()

    async def _look_again(self, unnamed_changes: int) -> None:
        """While there are streams, look for changes whose notifications were lost."""
        loop = asyncio.get_running_loop()
        looked_at, rest = loop.time(), 0.0
        while True:
            await asyncio.sleep(_TICK_SECONDS)
            now, present = loop.time(), self._hub.updater.unnamed_changes
            pause = LOOK_AGAIN_SECONDS if present == unnamed_changes else 0.0
            if now - looked_at < max(rest, pause):
                continue
            try:
                await self._look()
                unnamed_changes = present
            except LroError as exc:  # the store is unavailable; the next look may succeed
                log.info("not looked at what is watched: %s", exc)
            except Exception:  # code outside this library may raise anything
                log.exception("looking at what is watched failed, and goes on")
            looked_at = loop.time()
            rest = _REST * (looked_at - now)

    async def _look(self) -> None:
        names = [watched.name for watched in self._watched.values() if watched.streams]
        for first in range(0, len(names), MAX_NAMES):
            some = names[first : first + MAX_NAMES]
            editions = await self._hub.read(functools.partial(self._editions, some))
            await asyncio.sleep(0)  # let other tasks run, even if the read was made on the loop
            for name in some:
                watched = self._watched.get(name)
                for stream in () if watched is None else watched.streams:
                    if stream.list.differs(name, editions.get(name)):
                        stream.list.changed(name)
                        stream.wake()

    def _editions(self, names: Sequence[str]) -> dict[str, tuple[int, datetime]]:
        editions: dict[str, tuple[int, datetime]] = {}
        rest = names
        while rest:
            found = self._hub.updater.store.find(rest, self._hub.max_bytes)
            editions.update((record.name, record.edition) for record in found.records)
            rest = found.rest
        return editions

    # -- both ---------------------------------------------------------------------------------

    def notified(self, watched: Watched, ended: bool, stored: Record | None) -> None:
        """Record a notification. Called in the thread that notifies, so it must be quick."""
        answer = gather = False
        with self._lock:
            if ended and watched.waits:
                answer, self._ended[watched] = not self._ended, stored
            if watched.streams:
                gather, self._gathering = not self._gathering, True
                self._changed[watched] = None
        if answer:
            self._call_soon(self._answer_soon)
        if gather:
            self._call_soon(self._gather_soon)

    def unlisten_if_unused(self, watched: Watched) -> None:
        """Stop listening for a name that no wait or stream of this event loop uses any more."""
        if not watched.waits and not watched.streams:
            del self._watched[watched.name]
            self._notifier.unlisten(watched.name, watched)

    def _watched_of(self, name: str) -> Watched:
        watched = self._watched.get(name)
        if watched is None:
            watched = self._watched[name] = Watched(name, self)
            self._notifier.listen(name, watched)
        return watched

    def _call_soon(self, action: Callable[[], None]) -> None:
        loop = self._loop()
        if loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: nothing waits there
                loop.call_soon_threadsafe(action)


def _answer(future: asyncio.Future[Operation | None], found: Operation | None) -> None:
    if not future.done():
        future.set_result(found)


def _print(metadata: AnyMessage | None) -> bytes:
    """Return a few bytes that differ for different metadata, also for 1, 1.0 and true."""
    if metadata is None:
        return b""
    text = repr((metadata.type_url, metadata.payload))
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()
