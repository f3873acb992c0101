"""Waits for operations. Limits are exact, and a wait on an event loop needs no thread (spec §4)."""

from __future__ import annotations

import functools
import math
import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from lro._base.errors import DeadlineExceeded, InvalidTimeout, Unavailable
from lro._engine.change_listener import ChangeListener
from lro._engine.flow import read_on_loop
from lro._engine.limits import ByteBudget, CallCount, Limits
from lro._engine.process import PerProcess
from lro._engine.runtime import RecordUpdater
from lro._messages.times import Duration
from lro._model.operation import Operation, Record

if TYPE_CHECKING:
    import asyncio

    from lro._engine.local_work import LocalWork
    from lro._engine.watching import See, WatchHub, WatchStream


LATE_SECONDS: Final = 0.05
"""Seconds after which a wait reads an operation whose work runs here, if reads block.

This process stores its end and passes it to the wait, so that short work needs no read. The read
finds what another process has done before the wait, such as a deletion.
"""


def wait_limit(
    timeout: Duration | timedelta | float | None, deadline_seconds: float | None, maximum: timedelta
) -> float:
    """Return the limit of a wait in seconds: the smallest of the three arguments (spec §4.1-§4.4).

    Raises:
        InvalidTimeout: The timeout is negative or not a valid duration.
        DeadlineExceeded: The deadline has passed already.
    """
    limit = min(maximum.total_seconds(), timeout_seconds(timeout))
    if deadline_seconds is not None:
        if deadline_seconds <= 0:
            raise DeadlineExceeded()
        limit = min(limit, deadline_seconds)
    return limit


def timeout_seconds(timeout: Duration | timedelta | float | None) -> float:
    """Return a timeout in seconds; infinity for None.

    Raises:
        InvalidTimeout: The timeout is negative or not a valid duration.
    """
    if timeout is None:
        return math.inf
    span = _as_duration(timeout)
    if not span.valid or span.total_seconds < 0:
        raise InvalidTimeout(
            "timeout", f"must be a duration of 0 or more, got {span.seconds} s {span.nanos} ns"
        )
    return span.total_seconds


class Waiters(PerProcess):
    """The waits for operations and the watches of this process.

    A wait outside event loops blocks its thread. Waits and watches on an event loop share listeners
    that :class:`~lro._engine.watching.WatchHub` keeps for that loop. ``limits`` bounds the number
    of waits and watches. For each read, a watch takes at most ``limits.least_bytes`` bytes from the
    budget ``replies``.
    """

    _closed = False

    def __init__(
        self,
        updater: RecordUpdater,
        change_listener: ChangeListener,
        limits: Limits,
        replies: ByteBudget,
        work: LocalWork,
    ) -> None:
        self._updater = updater
        self._work = work
        self._store = updater.store
        self._change_listener = change_listener
        self._limits = limits
        self._replies = replies
        self._clock = time.monotonic
        self._park: Callable[[threading.Event, float], object] = _park
        self._waits = CallCount(
            "calls of Wait are held",
            limits.waits,
            "waits",
            limits.waits_per_caller,
            "waits_per_caller",
        )
        self._streams = CallCount(
            "calls of Watch are held",
            limits.streams,
            "streams",
            limits.streams_per_caller,
            "streams_per_caller",
        )
        self._watched = CallCount("operations are watched", limits.watched, "watched")
        self._lock = threading.Lock()
        self._hub: WatchHub | None = None

    def wait(self, name: str, limit: float, caller: str = "") -> Operation:
        """Block until the operation is done, at most ``limit`` seconds, and return its state then.

        Raises:
            OperationNotFound: There is no such operation, or it was removed meanwhile.
            Unavailable: The store cannot be reached at the first read or the last one, or the
                service is stopping.
            ResourceExhausted: There are too many waits.
        """
        with self._waits.take(caller):
            return self.until_done(name, limit)

    def until_done(self, name: str, limit: float) -> Operation:
        """Wait like :meth:`wait`, but do not count the wait; ``limit`` may be inf.

        This method serves the waits of the application itself, such as those of a handle.

        Raises:
            OperationNotFound, Unavailable: As for :meth:`wait`.
        """
        end = self._clock() + limit
        if limit <= 0:
            return self._read(name)
        notified = threading.Event()
        last: list[Record | None] = [None]

        def listener(ended: bool, stored: Record | None) -> None:
            if ended:
                last[0] = stored
                notified.set()

        self._updater.notifier.listen(name, listener)
        try:
            if self._store.reads_block and self._work.runs(name):
                self._park(notified, min(limit, LATE_SECONDS))
            operation = self._latest(name, last)
            if operation.done:
                return operation
            self._change_listener.ensure_running()
            return self._wait_until(end, name, notified, last)
        finally:
            self._updater.notifier.unlisten(name, listener)

    def _wait_until(
        self, end: float, name: str, notified: threading.Event, last: Sequence[Record | None]
    ) -> Operation:
        """Wait for a notification, and return the operation once it is done.

        ``last`` holds the record of the last notification, if this process has stored that end, and
        otherwise None. A stored end need not be read again.
        """
        while not self._closed:
            self._park(notified, min(max(0.0, end - self._clock()), threading.TIMEOUT_MAX))
            notified.clear()
            if self._closed:
                break
            left = end - self._clock()
            try:
                operation = self._latest(name, last)
                if operation.done or left <= 0:
                    return operation
            except Unavailable:  # the store may be available again before the limit
                if left <= 0:
                    raise
        raise self._work.refusal()

    async def wait_async(self, name: str, limit: float, caller: str = "") -> Operation:
        """:meth:`wait` for coroutines: no thread waits."""
        with self._waits.take(caller):
            return await self.until_done_async(name, limit)

    async def until_done_async(self, name: str, limit: float) -> Operation:
        """:meth:`until_done` for coroutines: no thread waits."""
        if limit <= 0:
            return await self._read_async(name)
        wait = self._of_loops().here().begin(name, limit)
        try:
            operation: Operation | None
            if not self._store.reads_block:
                operation = self._read(name)
            elif self._work.runs(name):
                operation = await self._read_late(name, wait.future)
            else:
                operation = await self._read_async(name)
            if operation is not None and operation.done:
                return operation
            self._change_listener.ensure_running()
            found = None if self._closed else await wait.future
        finally:
            wait.end()
        if found is not None:
            return found
        if self._closed:
            raise self._work.refusal()
        return await self._read_async(name)

    def watch(self, names: Sequence[str], see: See, caller: str = "") -> WatchStream:
        """Watch operations; ``see`` reads the operations that the caller can see.

        Raises:
            Unavailable: The service is stopping.
            ResourceExhausted: There are too many streams or watched operations.
        """
        if self._closed:
            raise self._work.refusal()
        places = self._streams.take(caller), self._watched.take("", len(names))
        return self._of_loops().watch(names, see, places)

    def close(self) -> None:
        """End all waits and watches with the error that the service is stopping."""
        with self._lock:
            self._closed = True
            if self._hub is not None:
                self._hub.closed = True
        self._updater.notifier.notify_all()

    def reopen(self) -> None:
        """Allow waits and watches again after :meth:`close`."""
        with self._lock:
            self._closed, self._hub = False, None

    @property
    def waits(self) -> int:
        """How many calls of Wait are in progress, in threads and coroutines."""
        return self._waits.held

    @property
    def streams(self) -> int:
        """How many calls of Watch are in progress."""
        return self._streams.held

    @property
    def open(self) -> int:
        """How many listeners there are: one per waiting thread, and one per name on each loop."""
        return len(self._updater.notifier)

    @property
    def waiting(self) -> int:
        """How many coroutines wait for operations."""
        return 0 if self._hub is None else self._hub.waiting

    @property
    def watching(self) -> int:
        """How many streams watch operations."""
        return 0 if self._hub is None else self._hub.watching

    def _latest(self, name: str, last: Sequence[Record | None]) -> Operation:
        stored = last[0]
        return self._read(name) if stored is None else self._shown(stored)

    def _read(self, name: str) -> Operation:
        return self._shown(self._store.get(name))

    def _shown(self, record: Record) -> Operation:
        return record.require_visible(self._store.now()).operation

    async def _read_async(self, name: str) -> Operation:
        if not self._store.reads_block:
            return self._read(name)
        return self._shown(await read_on_loop(self._store, name))

    async def _read_late(
        self, name: str, end: asyncio.Future[Operation | None]
    ) -> Operation | None:
        """Read an operation after a moment; return None if its end comes first."""
        read: asyncio.Future[Any] = read_on_loop(self._store, name, LATE_SECONDS)
        end.add_done_callback(functools.partial(_give_up, read))
        record: Record | None = await read
        return None if record is None else self._shown(record)

    def _of_loops(self) -> WatchHub:
        if self._hub is not None:
            return self._hub
        from lro._engine.watching import WatchHub  # imports asyncio, which few processes need

        with self._lock:
            if self._hub is None:
                self._hub = WatchHub(
                    self._updater,
                    self._change_listener,
                    self._replies,
                    self._limits.least_bytes,
                    closed=self._closed,
                )
            return self._hub


def _give_up(read: asyncio.Future[Any], _: object) -> None:
    if not read.done():
        read.set_result(None)


def _park(notified: threading.Event, seconds: float) -> None:
    notified.wait(seconds)  # gevent may have replaced the class threading.Event


def _as_duration(timeout: Duration | timedelta | float) -> Duration:
    if isinstance(timeout, Duration):
        return timeout
    if isinstance(timeout, timedelta):
        return Duration.from_timedelta(timeout)
    try:
        return Duration.from_timedelta(timedelta(seconds=timeout))
    except (TypeError, ValueError, OverflowError):
        raise InvalidTimeout("timeout", f"must be a duration or seconds, got {timeout!r}") from None
