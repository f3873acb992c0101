"""The parts that are shared within one service: store, executor, lease, updater of records."""

from __future__ import annotations

import functools
import logging
import threading
from collections.abc import Callable, Collection
from contextlib import AbstractContextManager
from datetime import timedelta
from typing import TypeAlias

import attrs

from lro._base.by_fields import ByFields
from lro._base.errors import LroError, Unavailable, one_line
from lro._base.status import AnyMessage
from lro._engine.events import EventDispatch, about
from lro._engine.executor_port import Executor
from lro._engine.flow import Flow, MayBlock, UpdateWrite, read
from lro._engine.method_spec import MethodSpec
from lro._engine.process import PerProcess
from lro._engine.statistics import Statistics
from lro._engine.store_port import Store
from lro._engine.webhook_sender import WebhookSender
from lro._messages.registry import TypeRegistry
from lro._model.operation import Change, Record, Stamp, State, delete, with_derived

log = logging.getLogger("lro")

Listener: TypeAlias = Callable[[bool, Record | None], None]
"""Called with True if the operation may have ended or been removed, else with False.

The second argument is the record if this process has just stored the end, and otherwise None.
"""


class Notifier(PerProcess):
    """Calls listeners by operation name.

    A notification carries only an end that this process has stored; otherwise the listener reads
    the store. The notifying thread calls the listeners, so they must be quick.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()  # re-entrant: the garbage collector may end a wait anywhere
        self._listeners: dict[str, tuple[Listener, ...]] = {}
        """The tuples are replaced, never changed, so that notifying takes no lock."""
        self._names: frozenset[str] | None = None

    def listen(self, name: str, listener: Listener) -> None:
        """Call ``listener`` at each notification for this name, until :meth:`unlisten`."""
        with self._lock:
            others = self._listeners.get(name, ())
            self._listeners[name] = (*others, listener)
            if not others:
                self._names = None

    def unlisten(self, name: str, listener: Listener) -> None:
        """Stop calling ``listener``. Idempotent."""
        with self._lock:
            listeners = self._listeners.get(name, ())
            if listeners == (listener,):
                del self._listeners[name]
                self._names = None
            elif listener in listeners:
                rest = list(listeners)
                rest.remove(listener)
                self._listeners[name] = tuple(rest)

    def notify(self, name: str, *, ended: bool = True, stored: Record | None = None) -> None:
        """Call the listeners of a name. ``ended``: the operation may have ended or been removed.

        ``stored`` is the ended record that this process has just stored.
        """
        for listener in self._listeners.get(name, ()):
            listener(ended, stored)

    def changed(self, name: str, after: Record | None) -> None:
        """Call the listeners of a name: this process has stored this record, or has removed it."""
        for listener in self._listeners.get(name, ()):
            done = after is not None and after.done
            ended = after is None or after.state is not State.IN_PROGRESS
            listener(ended, after if done else None)

    def notify_all(self) -> None:
        """Call every listener."""
        for name in self.names():
            self.notify(name)

    def names(self) -> frozenset[str]:
        """Return the names that have listeners; the same object until these names change."""
        with self._lock:
            if self._names is None:
                self._names = frozenset(self._listeners)
            return self._names

    def __bool__(self) -> bool:
        """Return True if there is any listener."""
        return bool(self._listeners)

    def __len__(self) -> int:
        """Return the number of listeners."""
        with self._lock:
            return sum(len(listeners) for listeners in self._listeners.values())


class _Outdated(Exception):
    """The metadata has changed since the final metadata was computed from it."""


class RecordUpdater:
    """Applies changes to the store, and notifies waiters and watchers of them."""

    def __init__(
        self,
        store: Store,
        events: EventDispatch | None = None,
        webhooks: WebhookSender | None = None,
    ) -> None:
        self.store = store
        self.webhooks = webhooks
        self._sends = None if webhooks is None else webhooks.notifies
        self.events: EventDispatch = EventDispatch() if events is None else events
        self.notifier: Notifier = Notifier()
        self.unnamed_changes = 0
        """Number of notifications from other processes that did not name the changed operation."""

    def apply(self, name: str, change: Change, stamp: Stamp | None = None) -> Record | None:
        """Store a change as :meth:`applied` does, in this thread."""
        return self._notified(
            name, self.store.update(name, with_derived(change, stamp, self._sends))
        )

    def apply_later(
        self, name: str, change: Change, missed: Callable[[], object] | None = None
    ) -> None:
        """Store a change soon; ignore refusals, and call ``missed`` if the store is unavailable."""

        def done(after: Record | None, error: BaseException | None) -> None:
            if error is None:
                self._notified(name, after)
            elif isinstance(error, Unavailable) and missed is not None:
                missed()

        try:
            self.store.update_later(name, with_derived(change, None, self._sends), done)
        except LroError as exc:  # refused at once
            done(None, exc)

    def applied(self, name: str, change: Change, stamp: Stamp | None = None) -> Flow[Record | None]:
        """Store a change, and return the record after it; None if the change has removed it.

        Then notify the listeners of this and other processes. ``stamp`` updates derived fields in
        the same write. A record that ends also gets its pending webhooks in that write.

        Raises:
            OperationNotFound: There is no such record, or callers cannot see it.
            NotApplied, LeaseLost, CancellationNotRequested: Raised by the change.
        """
        whole, store = with_derived(change, stamp, self._sends), self.store
        if store.writes_block:
            return self._notified(name, (yield UpdateWrite(store, name, whole)))
        return self._notified(name, store.update(name, whole))

    def ended(
        self, spec: MethodSpec, name: str, change: Change, state: State
    ) -> Flow[Record | None]:
        """Apply a change that ends an operation in this state, with the method's final metadata.

        The application's function runs before the write, so that it cannot hold up the store.

        Raises:
            FinalMetadataFailed: The final metadata cannot be computed.
            LroError: The store or the change refuses the write.
        """
        if spec.options.final_metadata is None:
            return self.applied(name, change, spec.stamp)
        return self._ended_with_final(spec, name, change, state)

    def _ended_with_final(
        self, spec: MethodSpec, name: str, change: Change, state: State
    ) -> Flow[Record | None]:
        while True:
            seen = (yield from read(self.store, name)).metadata
            compute = functools.partial(spec.final_metadata, seen, state)
            final = yield MayBlock(compute, writes=True)

            def stamp(
                record: Record, seen: AnyMessage | None = seen, final: AnyMessage | None = final
            ) -> Record:
                if record.metadata != seen:
                    raise _Outdated
                return spec.stamp(record.with_metadata(final))

            try:
                return (yield from self.applied(name, change, stamp))
            except _Outdated:
                continue  # a cancel request can change the metadata

    def deleted(self, name: str, caller: str, lost_owners: Collection[str] = ()) -> Flow[None]:
        """Delete a record and its pending webhooks, and log the caller.

        The work of ``lost_owners`` ends with the record; the empty owner stands for waiting work.

        Raises:
            OperationNotFound: There is no such record, or callers cannot see it.
        """
        last: Record | None = None
        change = delete(self.store.now(), lost_owners)

        def deletion(record: Record) -> Record | None:
            nonlocal last
            last = record  # the operation may have ended since the caller read it
            return change(record)

        yield from self.applied(name, deletion)
        if last is not None:
            by = f" by {one_line(caller)}" if caller else ""
            pending = ", with its pending webhooks" if last.notify_at else ""
            log.info("%s: deleted%s%s", name, by, pending, extra=about(name, last.method))

    def _notified(self, name: str, after: Record | None) -> Record | None:
        self.notifier.changed(name, after)
        if self.store.shared:
            self.store.notify_others(name)
        if self.webhooks is not None and after is not None and after.notify_at is not None:
            self.webhooks.wake()
        return after


class FirstUse:
    """Makes the first call of the store outside the event loop: the store may have to connect."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.pending: bool = store.reads_block

    def reset(self) -> None:
        """Connect again at the next call, because the store has been opened again."""
        self.pending = self._store.reads_block

    def connect(self) -> Flow[None]:
        """Read the store's clock in a step that may block.

        Raises:
            Unavailable: The store cannot be reached.
        """
        yield MayBlock(self._store.now)
        self.pending = False


@attrs.frozen(kw_only=True, eq=False, repr=False)
class Runtime(ByFields):
    """The shared parts of one service.

    ``domain`` names the service in error details. ``clock`` is a monotonic clock in seconds, used
    by maintenance, time limits and pages. The store has its own clock.
    """

    store: Store
    first_use: FirstUse
    updater: RecordUpdater
    executor: Executor
    lease: timedelta
    domain: str
    clock: Callable[[], float]
    types: TypeRegistry = attrs.field(factory=TypeRegistry)
    """The registered message types of the service."""
    keep_for: timedelta = timedelta(days=30)
    """How long ended operations of undeclared methods are kept."""
    statistics: Statistics | None = None
    """Counts the events of this process; None if the service keeps no statistics."""
    surroundings: list[Callable[[], AbstractContextManager[object]]] = attrs.field(factory=list)
    """Make the context managers in which a thread of this process calls a plain function."""
    webhooks: WebhookSender | None = attrs.field(init=False)
    """The webhook sender of the updater, or None."""
    events: EventDispatch = attrs.field(init=False)
    """The event dispatch of the updater, for the events of this process."""

    def __attrs_post_init__(self) -> None:
        object.__setattr__(self, "events", self.updater.events)  # an attribute: it is read often
        object.__setattr__(self, "webhooks", self.updater.webhooks)


def stopping(*, closed: bool = False) -> Unavailable:
    """Return the error of a call that a closing or closed service refuses or interrupts."""
    if closed:
        cure = "`with service`, or the start of its application, opens it again"
        return Unavailable(f"the service is closed; {cure}")
    return Unavailable("the service is stopping")
