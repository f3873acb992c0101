"""Limits of the resources that callers and workers can use, and the budget of large replies."""

from __future__ import annotations

import collections
import contextlib
import logging
import queue
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

import attrs

from lro._base.arguments import check, check_count
from lro._base.by_fields import ByFields
from lro._base.errors import EncodingError, MessageTooLarge, TooManyHeld
from lro._base.status import AnyMessage, Status
from lro._engine.process import PerProcess
from lro._messages.json_text import dumps
from lro._model.operation import fits_by_estimate

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor


log = logging.getLogger("lro")

LARGE_AT_ONCE: Final = 1
"""How many large replies are made at once. A message in memory may take ten times its JSON size."""

_LOOK_SECONDS: Final = 0.5


class HeldCall:
    """Places taken in a :class:`CallCount`.

    They are freed at the end of a ``with`` block, or when this object is collected. A forked child
    begins with empty counts and with another ``freed``, so it does not free places that its parent
    took.
    """

    __slots__ = ("_caller", "_freed", "_places")

    def __init__(self, freed: collections.deque[tuple[str, int]], caller: str, places: int) -> None:
        self._freed: collections.deque[tuple[str, int]] | None = freed
        self._caller = caller
        self._places = places

    def release(self) -> None:
        """Free the places. Idempotent."""
        freed, self._freed = self._freed, None
        if freed is not None:
            freed.append((self._caller, self._places))

    def __enter__(self) -> HeldCall:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def __del__(self) -> None:
        if self._freed is not None:
            self.release()


class CallCount(PerProcess):
    """Counts calls in progress, in total and for each caller with a name.

    ``each`` is the limit for one caller. It does not apply to callers without a name, because they
    cannot be distinguished.
    """

    def __init__(
        self, what: str, limit: int, setting: str, each: int | None = None, each_setting: str = ""
    ) -> None:
        self._what = what
        self._limit, self._setting = limit, setting
        self._each, self._each_setting = each, each_setting
        self._lock = threading.Lock()
        self._held = 0
        self._of_caller: dict[str, int] = {}
        self.freed: collections.deque[tuple[str, int]] = collections.deque()
        """Callers and their numbers of places to free later. The garbage collector may call
        :meth:`HeldCall.release` at any line of this class, perhaps while the lock is held. So that
        method takes no lock and changes no count: it only appends here."""

    @property
    def held(self) -> int:
        """The number of places that are held."""
        with self._lock:
            self._take_freed()
            return self._held

    def take(self, caller: str, places: int = 1) -> HeldCall:
        """Take this number of places, until the returned object frees them.

        Raises:
            TooManyHeld: This caller, or all callers together, would hold too many places.
        """
        with self._lock:
            if self.freed:
                self._take_freed()
            if self._held + places > self._limit:
                raise TooManyHeld(self._what, self._limit, self._setting)
            if caller and self._each is not None:
                mine = self._of_caller.get(caller, 0) + places
                if mine > self._each:
                    what = f"{self._what} for one caller"
                    raise TooManyHeld(what, self._each, self._each_setting)
                self._of_caller[caller] = mine
            self._held += places
        return HeldCall(self.freed, caller, places)

    def _take_freed(self) -> None:
        while self.freed:
            caller, places = self.freed.popleft()
            self._held -= places
            if caller and self._each is not None:
                left = self._of_caller.pop(caller) - places
                if left:
                    self._of_caller[caller] = left


class ReplyReservation:
    """Bytes reserved for one reply, from the read of its operations until the reply is sent."""

    def __init__(self, budget: ByteBudget, size: int, *, large: bool) -> None:
        self._budget = budget
        self.bytes: int = size
        self._large = large

    def resize(self, size: int) -> None:
        """Keep ``size`` bytes after the reply is made, and free all further bytes."""
        before, self.bytes = self.bytes, size
        large, self._large = self._large, False
        self._budget.give_back(before - size, large=large)

    def release(self) -> None:
        """Free all bytes. Idempotent."""
        self.resize(0)

    @contextlib.contextmanager
    def sending(self, cut: Callable[[], object]) -> Iterator[None]:
        """While the reply is being sent, let any thread call ``cut`` to abort it."""
        self._budget.sending[self] = (self._budget.clock(), cut)
        try:
            yield
        finally:
            self._budget.sending.pop(self, None)

    def __del__(self) -> None:
        if self.bytes or self._large:
            self._budget.freed.append((self.bytes, self._large))


class ByteBudget(PerProcess):
    """The byte budget of the replies in progress: List, BatchGet, Watch, and any large reply.

    Calls wait in a queue, so that calls for many bytes are not starved. A slow reader cannot hold
    up other calls: if a reply takes longer than ``SLOW_SECONDS`` to send, it is aborted when
    another call waits. If no call waits, sending may take any time. A semaphore that counts whole
    pages would have the same bound, but in a test it refused 30 of 50 callers that took a second
    each to read 200 kB.

    The replies are made in a few threads that do nothing else. The C library keeps the freed memory
    of each thread for that thread, so more threads could keep several times the memory in use. One
    of the threads is reserved for small replies.
    """

    WAIT_SECONDS: Final = 6.0
    """How many seconds a call waits for bytes before the call is refused.

    Longer than ``SLOW_SECONDS``, after which a slow reply gives its bytes to a waiting call. Under
    WSGI, the reply to a Wait waits for bytes after the Wait (``THREAD_WAIT``), and some servers
    kill a process that answers one call for 30 seconds.
    """

    SLOW_SECONDS: Final = 5.0
    """If sending a reply takes more seconds than this, it is aborted as soon as another call waits.
    """

    def __init__(self, limit: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.limit = limit
        self.clock = clock
        self._lock = threading.Lock()
        self._held = self._large = 0
        self._threads: ThreadPoolExecutor | None = None
        self._queue: collections.deque[Callable[[], None]] = collections.deque()
        self.sending: dict[ReplyReservation, tuple[float, Callable[[], object]]] = {}
        self.freed: collections.deque[tuple[int, bool]] = collections.deque()
        """For each reservation to free later, its bytes and whether its reply is large. The garbage
        collector may delete a reservation at any line of this class, perhaps while the lock is
        held. So the deletion takes no lock and changes no count: it only appends here."""

    @property
    def held(self) -> int:
        """The number of bytes that are held."""
        with self._lock:
            self._take_freed()
            return self._held

    @property
    def threads(self) -> ThreadPoolExecutor:
        """The threads in which the replies are made."""
        with self._lock:
            if self._threads is None:
                from concurrent.futures import ThreadPoolExecutor

                self._threads = ThreadPoolExecutor(LARGE_AT_ONCE + 1, "lro-replies")
            return self._threads

    def close(self) -> None:
        """Let the threads end after their present work."""
        with self._lock:
            self._threads = None  # a pool ends when it is collected; a late call makes a new one

    def take(self, least: int, most: int | None = None) -> ReplyReservation:
        """Wait for ``most`` bytes, or ``least`` if fewer are free or a large reply is being made.

        Raises:
            TooManyHeld: The wait took more than ``WAIT_SECONDS``.
        """
        woken: queue.SimpleQueue[None] = queue.SimpleQueue()  # a put may interrupt a get
        with self._queued(lambda: woken.put(None)) as mine:
            end = self.clock() + self.WAIT_SECONDS
            while (reservation := self._granted(mine, least, most)) is None:
                with contextlib.suppress(queue.Empty):
                    woken.get(timeout=self._look_within(end))
            return reservation

    async def atake(self, least: int, most: int | None = None) -> ReplyReservation:
        """:meth:`take` for coroutines: no thread waits."""
        import asyncio

        loop, woken = asyncio.get_running_loop(), asyncio.Event()

        def wake() -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(woken.set)

        with self._queued(wake) as mine:
            end = self.clock() + self.WAIT_SECONDS
            while (reservation := self._granted(mine, least, most)) is None:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self._look_within(end)):
                        await woken.wait()
                woken.clear()
            return reservation

    def give_back(self, size: int, *, large: bool = False) -> None:
        """Free these bytes, and wake the first call that waits."""
        self.freed.append((size, large))
        with contextlib.suppress(IndexError):  # no call waits
            self._queue[0]()

    def _take_freed(self) -> None:
        while self.freed:
            size, large = self.freed.popleft()
            self._held -= size
            self._large -= large

    @contextlib.contextmanager
    def _queued(self, wake: Callable[[], None]) -> Iterator[Callable[[], None]]:
        self._queue.append(wake)
        try:
            yield wake
        finally:
            self._queue.remove(wake)
            self.give_back(0)  # the next call may be granted its bytes

    def _granted(
        self, mine: Callable[[], None], least: int, most: int | None
    ) -> ReplyReservation | None:
        with self._lock:
            if self._queue[0] is not mine:
                return None
            self._take_freed()
            free = self.limit - self._held
            size, large = least, False
            if most is not None and most <= free and self._large < LARGE_AT_ONCE:
                size, large = most, True
            elif least == most or least > free:
                return None
            self._large += large
            self._held += size
        return ReplyReservation(self, size, large=large)

    def _look_within(self, end: float) -> float:
        """Return the seconds until the next try; abort the slowest reply if its time is up."""
        now = self.clock()
        if now >= end:
            raise TooManyHeld("bytes of replies are held", self.limit, "replies_bytes")
        sending = self.sending.copy()
        if sending:
            reservation, (since, cut) = min(sending.items(), key=lambda item: item[1][0])
            if now - since >= self.SLOW_SECONDS and self.sending.pop(reservation, None) is not None:
                log.warning("a reply of %d bytes is read too slowly: aborted", reservation.bytes)
                cut()
        return min(_LOOK_SECONDS, end - now)


_KIB: Final = 1024
_MIB: Final = 1024 * 1024


@attrs.frozen(kw_only=True, eq=False, repr=False)
class Limits(ByFields):
    """The limits of a service for its callers and workers (docs/reference/limits.md).

    The defaults protect a server with 512 MB of memory. Sizes are in bytes. The size of a message
    is that of its binary form if it is stored in that form, else that of its JSON.

    ``metadata_bytes`` and ``response_bytes`` bound one message of an operation; ``response_bytes``
    also bounds an error with its details. ``page_bytes`` bounds a page of List, a reply to
    BatchGet, and the events that a stream of Watch sends at once. Each of these replies has at
    least one operation, whatever its size. ``replies_bytes`` bounds the total of these replies, and
    of replies with one operation above 64 KiB, from the read of the operations until the reply is
    sent. ``waits`` bounds the calls of Wait in progress, ``streams`` the calls of Watch, and
    ``watched`` the operations in all streams. ``waits_per_caller`` and ``streams_per_caller`` apply
    to each caller with a name. ``backlog`` bounds the operations that wait in the store for a
    worker: beyond it, a start that would have to wait is refused with RESOURCE_EXHAUSTED.
    ``checkpoint_bytes`` bounds a checkpoint or the result of a step, ``checkpoints_bytes`` the
    total of the checkpoints and results of an operation. A checkpoint or result counts with its key
    and 100 more bytes.

    Raises:
        DeclarationError: A limit is below 1 (``backlog``: below 0), or ``replies_bytes`` is below
            ``page_bytes``.
    """

    metadata_bytes: int = 256 * _KIB
    response_bytes: int = 4 * _MIB
    page_bytes: int = 8 * _MIB
    replies_bytes: int = 16 * _MIB
    waits: int = 20_000
    waits_per_caller: int = 10_000
    streams: int = 1_000
    streams_per_caller: int = 500
    watched: int = 200_000
    backlog: int = 100_000
    checkpoint_bytes: int = 256 * _KIB
    checkpoints_bytes: int = 4 * _MIB

    def __attrs_post_init__(self) -> None:
        for field in attrs.fields(Limits):
            least = 0 if field.name == "backlog" else 1
            check_count(field.name, getattr(self, field.name), least=least)
        wanted = f"at least page_bytes, which is {self.page_bytes}"
        enough = self.replies_bytes >= self.page_bytes
        check("replies_bytes", self.replies_bytes, wanted, fine=enough)

    @property
    def least_bytes(self) -> int:
        """The least number of bytes reserved for a page, even if many pages are read at once."""
        return max(1, min(self.page_bytes, self.replies_bytes // 16))

    def check_metadata(self, packed: AnyMessage) -> AnyMessage:
        """Return the message if it is small enough to be the metadata of an operation.

        Raises:
            MessageTooLarge: The message is too large.
        """
        if not fits_by_estimate(packed, self.metadata_bytes):
            _check(packed, self.metadata_bytes, "metadata_bytes")
        return packed

    def check_result(self, result: AnyMessage | Status | None) -> None:
        """Check that a result is small enough, and that the details of an error can be stored.

        Raises:
            MessageTooLarge: The result is too large.
            EncodingError: A detail has no JSON form.
        """
        if isinstance(result, AnyMessage):
            if not fits_by_estimate(result, self.response_bytes):
                _check(result, self.response_bytes, "response_bytes")
        elif result is not None:
            size = len(result.message.encode("utf-8", "surrogatepass"))
            for detail in result.details:
                each = size_of(detail)
                if not each and not isinstance(detail.payload, bytes):
                    raise EncodingError(detail.type_name, "", "has no JSON form")
                size += each
            if size > self.response_bytes:
                name = "google.rpc.Status"
                raise MessageTooLarge(name, size, self.response_bytes, "response_bytes")


DEFAULT_LIMITS: Final = Limits()


def _check(packed: AnyMessage, limit: int, setting: str) -> None:
    size = size_of(packed)
    if size > limit:
        raise MessageTooLarge(packed.type_name, size, limit, setting)


def size_of(packed: AnyMessage) -> int:
    """Return a packed message's size in bytes, or 0 if it has no JSON form: stores refuse it."""
    payload = packed.payload
    if isinstance(payload, bytes):
        return len(payload)
    try:
        return len(dumps(payload))
    except (ValueError, TypeError):
        return 0
