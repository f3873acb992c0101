"""The registry of operations that are waited for: their listeners, states and due times."""

from __future__ import annotations

import collections
import heapq
import math
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final, TypeAlias

import attrs

from lro import Operation
from lro_client._flow.poll_state import ANSWERED, Fits, PollState, any_fits
from lro_client._tracing import log

MAX_BATCH_NAMES: Final = 1000
"""Maximum number of names in one BatchGet or Watch (spec §3.11)."""

GATHER_SECONDS: Final = 0.01
"""Seconds until new names are polled, so that names added at about the same time share a call."""


@attrs.frozen(eq=False, repr=False)
class StateChanged:
    """An operation has changed, or is done."""

    name: str
    operation: Operation


@attrs.frozen(eq=False, repr=False)
class WatchFailed:
    """An operation is gone, or cannot be read any more."""

    name: str
    error: Exception


WatchEvent: TypeAlias = StateChanged | WatchFailed
Listener: TypeAlias = Callable[[WatchEvent], object]
Notifications: TypeAlias = list[tuple[Sequence[Listener], WatchEvent]]


@attrs.frozen(eq=False, repr=False)
class WatchOptions:
    """The options of a listener: whether it wants every change or only the end, and its deadline.

    ``fits`` returns True if the result of an operation is of the declared class.
    """

    wants_progress: bool = False
    deadline: float = math.inf
    fits: Fits = any_fits


class Listeners:
    """The listeners of one operation, or of all operations with the same listeners. Immutable."""

    __slots__ = ("first_deadline", "last_deadline", "wants", "wants_progress")

    def __init__(self, wants: Mapping[Listener, WatchOptions]) -> None:
        self.wants: Mapping[Listener, WatchOptions] = wants
        self.wants_progress: bool = any(want.wants_progress for want in wants.values())
        """True if a listener wants every change."""
        deadlines = [want.deadline for want in wants.values()]
        self.first_deadline: float = min(deadlines, default=math.inf)
        self.last_deadline: float = max(deadlines, default=math.inf)

    def deadline(self, now: float) -> float:
        """Return the next deadline, at which a last poll is made."""
        ends = (want.deadline for want in self.wants.values())
        return min((end for end in ends if end > now), default=math.inf)


_NO_LISTENERS: Final = Listeners({})


@attrs.define(eq=False, kw_only=True, repr=False)
class WatchedOperation(PollState):
    """An operation with listeners. Times are in seconds by the client's clock."""

    due: float = math.inf
    """When the next poll is due, or infinity during a call."""
    listeners: Listeners = _NO_LISTENERS
    """This object is replaced, never changed."""
    collection: str = attrs.field(default=attrs.Factory(lambda self: _collection(self.name), True))
    """The part of the name up to and including "operations". Several segments may follow."""
    max_batch: int = MAX_BATCH_NAMES
    """Maximum batch size for this operation, halved each time the server refuses a batch."""
    asked_alone: bool = attrs.field(default=attrs.Factory(lambda self: not self.collection, True))
    """True if the operation needs its own call, after a refused batch or without a collection."""
    streamed: bool = False
    """True while a stream watches the operation."""
    reported: bool = False
    """True once that stream has reported the operation."""

    def fits_all(self, operation: Operation) -> bool:
        """Return True if the result is of the class that each listener has declared."""
        return all(want.fits(operation) for want in self.listeners.wants.values())


def _collection(name: str) -> str:
    parent, found, _ = name.rpartition("/operations/")
    if found:
        return sys.intern(f"{parent}/operations")  # shared by thousands of operations
    return "operations" if name.startswith("operations/") else name.rpartition("/")[0]


class WatchRegistry:
    """The operations that are waited for. Thread-safe. Listeners are called without its lock.

    ``start_poller`` is called, with the lock held, when one more poller is needed, but at most
    ``max_pollers()`` pollers run. ``wake_poller`` wakes the sleeping poller. At most one poller
    sleeps. None of these functions may call the registry.
    """

    def __init__(
        self,
        clock: Callable[[], float],
        *,
        max_pollers: Callable[[], int],
        start_poller: Callable[[], object],
        wake_poller: Callable[[], object],
    ) -> None:
        self.lock: threading.Lock = threading.Lock()
        self.clock = clock
        self.entries: dict[str, WatchedOperation] = {}
        self.collections: dict[str, int] = {}
        """Number of entries of each collection."""
        self.closed: Exception | None = None
        self.own_calls: int = 0
        """Number of waits that make their own calls."""
        self._max_pollers = max_pollers
        self._start_poller = start_poller
        self._wake_poller = wake_poller
        self._moments: list[float] = []
        """A heap of the moments at which an entry may be due."""
        self._due: dict[float, collections.deque[WatchedOperation]] = {}
        """The entries that are due at each moment. Entries of one batch are adjacent."""
        self._pollers = 0
        self._starting = 0
        """Number of pollers that were started and have no batch yet."""
        self._sleeping_until: float | None = None
        """When the sleeping poller wakes up, or None if no poller sleeps."""

    def max_calls(self, connections: int) -> int:
        """Return the maximum number of calls in flight for all entries."""
        return max(1, connections - self.own_calls)

    # -- for waiters --------------------------------------------------------------------------

    def subscribe(
        self, name: str, listener: Listener, want: WatchOptions, known: Operation | None = None
    ) -> WatchedOperation:
        """Subscribe to the end of an operation or, if progress is wanted, to every change."""
        return self.subscribe_all(listener, want, {name: known})[name]

    def subscribe_all(
        self, listener: Listener, want: WatchOptions, known: Mapping[str, Operation | None]
    ) -> dict[str, WatchedOperation]:
        """Subscribe to many names. Pollers see no name before all names have been added."""
        news: list[WatchEvent] = []
        with self.lock:
            now, alone = self.clock(), Listeners({listener: want})
            found = {
                name: self._joined(name, alone, want, seen, now, news)
                for name, seen in known.items()
            }
            if found and self.closed is None:
                self.ensure_poller()
        for one in news:
            listener(one)
        return found

    def _joined(
        self,
        name: str,
        listeners: Listeners,
        want: WatchOptions,
        known: Operation | None,
        now: float,
        news: list[WatchEvent],
    ) -> WatchedOperation:
        entry = self.entries.get(name)
        if self.closed is not None:
            news.append(WatchFailed(name, self.closed))
            return WatchedOperation(name=name, since=now, operation=known)
        if entry is None:
            entry = self.entries[name] = WatchedOperation(
                name=name, since=now, operation=known, due=now + GATHER_SECONDS
            )
            self._count_of(entry, 1)
        elif want.wants_progress:
            # Poll now, because a Wait that is already held cannot be ended early.
            entry.due = min(entry.due, now)
            if entry.polls and entry.operation is not None:
                news.append(StateChanged(name, entry.operation))
        others = entry.listeners.wants
        entry.listeners = Listeners({**others, **listeners.wants}) if others else listeners
        if min(entry.due, want.deadline) < math.inf:  # otherwise a call for the entry is in flight
            self.push(entry, entry.due)
        return entry

    def leave(self, name: str, listener: Listener) -> None:
        """Remove a listener."""
        with self.lock:
            entry = self.entries.get(name)
            if entry is None or listener not in entry.listeners.wants:
                return
            wants = {one: want for one, want in entry.listeners.wants.items() if one != listener}
            entry.listeners = Listeners(wants) if wants else _NO_LISTENERS
            if not wants:
                self._drop(entry)

    def close(self, error: Exception) -> None:
        """Notify all listeners that no further events will come."""
        with self.lock:
            self.closed = error
            entries = list(self.entries.values())
            self.entries.clear()
            self.collections.clear()
            self._wake_poller()
        for entry in entries:
            notify_all([(tuple(entry.listeners.wants), WatchFailed(entry.name, error))])

    # -- for pollers, with the lock held --------------------------------------------------------

    def push(self, entry: WatchedOperation, due: float) -> None:
        """Make an entry due at ``due``, or at a listener's next deadline if that is earlier."""
        self.push_all((entry,), due)

    def push_all(self, entries: Iterable[WatchedOperation], due: float) -> None:
        """Make entries due at ``due``, in their order."""
        together = self._due_at(due)
        for entry in entries:
            entry.due = due
            if entry.listeners.first_deadline >= due:
                together.append(entry)
            else:
                entry.due = min(due, entry.listeners.deadline(self.clock()))
                self._due_at(entry.due).append(entry)

    def _due_at(self, moment: float) -> collections.deque[WatchedOperation]:
        found = self._due.get(moment)
        if found is None:
            found = self._due[moment] = collections.deque()
            heapq.heappush(self._moments, moment)
        return found

    def due(self, until: float) -> Iterator[tuple[WatchedOperation, float]]:
        """Remove and yield the entries due by ``until``, in order, each with its due time.

        An entry does not become due again until it is pushed.
        """
        known = self.entries
        while (moment := self.next_due) <= until:
            together = self._due[moment]
            while together:
                entry = together.popleft()
                if entry.due == moment and known.get(entry.name) is entry:
                    entry.due = math.inf
                    yield entry, moment

    @property
    def next_due(self) -> float:
        """The time at which the next entry is due."""
        while self._moments:
            moment = self._moments[0]
            together = self._due[moment]
            while together:
                entry = together[0]
                if entry.due == moment and self.entries.get(entry.name) is entry:
                    return moment
                together.popleft()
            heapq.heappop(self._moments)
            del self._due[moment]
        return math.inf

    def ensure_poller(self) -> None:
        """Make sure that a poller handles the next entry."""
        if self._sleeping_until is not None:
            if self.next_due < self._sleeping_until:
                self._wake_poller()
        elif not self._starting and self._pollers < self._max_pollers():
            self._start_poller()  # fails if no more threads can be started
            self._pollers += 1
            self._starting += 1

    def poller_started(self) -> None:
        """Note that a poller has started."""
        self._starting = max(0, self._starting - 1)

    def poller_woke(self) -> None:
        """Note that the sleeping poller has woken up."""
        self._sleeping_until = None

    def try_sleep(self, until: float) -> bool:
        """Let a poller sleep until ``until``. Return False if another poller sleeps already."""
        if self._sleeping_until is not None:
            if until < self._sleeping_until:
                self._wake_poller()
            return False
        self._sleeping_until = until
        return True

    def poller_exited(self) -> None:
        """Note that a poller ends. If no entries are left, end the sleeping poller too."""
        self._pollers -= 1
        if not self.entries:
            self._wake_poller()

    def take_state(self, entry: WatchedOperation, operation: Operation) -> Notifications:
        """Store a state, and return the notifications to send."""
        if self.entries.get(entry.name) is not entry:
            return []
        entry.failures = ANSWERED
        listeners, last = entry.listeners, entry.operation
        if operation.done or listeners.wants_progress or operation.metadata is not None:
            # Other states are not kept: they may have only the operation's name.
            entry.operation = operation
        if operation.done:
            self._drop(entry)
            return [(tuple(listeners.wants), StateChanged(entry.name, operation))]
        if not listeners.wants_progress or operation == last:
            return []
        interested = [one for one, want in listeners.wants.items() if want.wants_progress]
        return [(interested, StateChanged(entry.name, operation))]

    def give_up(self, entry: WatchedOperation, error: Exception) -> Notifications:
        """Stop watching an operation, and return the notifications of the error."""
        if self.entries.get(entry.name) is not entry:
            return []
        self._drop(entry)
        return [(tuple(entry.listeners.wants), WatchFailed(entry.name, error))]

    def give_up_all(self, error: Exception) -> Notifications:
        """Stop watching all operations, and return the notifications of the error."""
        return [one for entry in list(self.entries.values()) for one in self.give_up(entry, error)]

    def _drop(self, entry: WatchedOperation) -> None:
        del self.entries[entry.name]
        self._count_of(entry, -1)

    def _count_of(self, entry: WatchedOperation, change: int) -> None:
        count = self.collections.get(entry.collection, 0) + change
        if count:
            self.collections[entry.collection] = count
        else:
            del self.collections[entry.collection]


def notify_all(notifications: Notifications) -> None:
    """Call the listeners without the lock. If a listener fails, call the remaining listeners."""
    for listeners, news in notifications:
        for listener in listeners:
            try:
                listener(news)
            except Exception:
                log.exception("%s: a listener could not be notified", news.name)
