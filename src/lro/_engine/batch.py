"""The verbs for many operations at once: BatchGet and Watch (spec §3.11)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, TypeVar

from lro._base.errors import BatchTooLarge
from lro._engine.access import Access
from lro._engine.budget import ByteBudget, CallCount
from lro._engine.hooks import Flow, flow_of, on_loop, verb
from lro._engine.limits import Limits
from lro._engine.record_updater import RecordUpdater
from lro._engine.store_port import READ_BYTES
from lro._engine.waiting import stopping
from lro._model.names import parse_names
from lro._model.operation import BatchGetOperationsResponse, Show, as_they_are

if TYPE_CHECKING:
    from lro._engine.watch_hub import WatchHub, WatchStream

T = TypeVar("T")


class ManyOperations:
    """The part of a service that reads and watches many operations at once."""

    def __init__(
        self,
        access: Access,
        updater: RecordUpdater,
        *,
        listening: Callable[[], None],
        serving: Callable[[], None],
        limits: Limits,
        replies: ByteBudget,
    ) -> None:
        self._access = access
        self._serving = serving
        self._replies = replies
        self._bounds = limits
        self._streams = CallCount(
            "calls of Watch are held",
            limits.streams,
            "streams",
            limits.streams_per_caller,
            "streams_per_caller",
        )
        self._watched = CallCount("operations are watched", limits.watched, "watched")
        self._changes = updater
        self._listening = listening
        self._over = False
        self._lookouts: WatchHub | None = None
        self._watch_lock = threading.Lock()

    @verb
    def batch_get(
        self, names: Sequence[str], *, caller: str = ""
    ) -> Flow[BatchGetOperationsResponse]:
        """The latest states of 1 to 1000 operations, in the order of their names (spec §3.11).

        What is not there, or this caller cannot see, is ``missing``. A name given twice is
        answered once.

        Raises:
            MalformedRequest: There are no names, or too many.
            InvalidOperationName: One is malformed; ``field`` says which.
            PermissionDenied: The ``authorize`` hook refuses one of them.
            HookFailed: The ``authorize`` hook does not answer as it must.
            MethodNotSupported: BatchGet is switched off.
            BatchTooLarge: Together they have more bytes than ``Limits.page_bytes``.
        """
        wanted = yield from flow_of(self.begin_batch)(names, caller=caller)
        found, missing = self.read_batch(wanted, caller, as_they_are)
        return BatchGetOperationsResponse(tuple(found), tuple(missing))

    @verb
    def begin_batch(self, names: Sequence[str], *, caller: str = "") -> Flow[Sequence[str]]:
        """What :meth:`read_batch` takes: the checked names, which this caller may ask for.

        Raises:
            MalformedRequest, InvalidOperationName, PermissionDenied, HookFailed,
                MethodNotSupported: As for :meth:`batch_get`.
        """
        self._serving()
        self._access.require("BatchGetOperations")
        wanted = parse_names(names)
        yield from self._access.permit_each(caller, "GetOperation", wanted)
        return wanted

    def read_batch(
        self, wanted: Sequence[str], caller: str, show: Show[T]
    ) -> tuple[Sequence[T], Sequence[str]]:
        """What ``show`` makes of the operations, a few at a time; and the missing names.

        Asks no hook.

        Raises:
            BatchTooLarge: As for :meth:`batch_get`.
        """
        shown: dict[str, Iterable[T]] = {}
        rest, room = wanted, self._bounds.page_bytes
        while rest:  # those that this caller cannot see are no part of the reply
            rest, room = self._show_some(wanted, rest, caller, room, show, shown)
        found = [one for name in wanted for one in shown.get(name, ())]
        return found, [name for name in wanted if name not in shown]

    def _show_some(
        self,
        wanted: Sequence[str],
        names: Sequence[str],
        caller: str,
        room: int,
        show: Show[T],
        shown: dict[str, Iterable[T]],
    ) -> tuple[Sequence[str], int]:
        """Show some of these names, and let them go; the names and bytes that are left."""
        limit, least = self._bounds.page_bytes, self._bounds.least_bytes
        seen = self._access.seen(names, caller, min(max(room, least), READ_BYTES))
        for record in seen.records.values():
            if room < limit and record.weight > room:
                raise BatchTooLarge(len(wanted), limit)
            room -= record.weight
        found = [seen.records[name].operation for name in wanted if name in seen.records]
        # Those of further looks may come between them; but if there is none, that takes less time.
        whole = not shown and not seen.rest
        for some in [found] if found and whole else [[one] for one in found]:
            shown.update((one.name, ()) for one in some)
            shown[some[0].name] = show(some)
        return seen.rest, room

    async def watch(self, names: Sequence[str], *, caller: str = "") -> WatchStream:
        """Watch 1 to 1000 operations until all are done or gone (spec §3.11).

        ``async for`` over what this gives, once: the state of each, then that of each again
        whenever it has changed. No thread is held, however many watch.

        Raises:
            MalformedRequest, InvalidOperationName, PermissionDenied, HookFailed: As for
                :meth:`batch_get`.
            MethodNotSupported: Watch is switched off.
            Unavailable: The store cannot be reached now, or the service is stopping.
            ResourceExhausted: There are too many streams, or operations watched (``Limits``).
        """
        self._serving()
        self._access.require("WatchOperations")
        wanted = parse_names(names)

        def begin() -> Flow[None]:
            yield from self._access.permit_each(caller, "GetOperation", wanted)
            # A store that is away is told of at once.
            self._access.seen(wanted[:1], caller, self._bounds.least_bytes)

        lookouts = self._of_lookouts()
        await on_loop(begin(), blocks=self._access.writes_block)
        if lookouts.closed:
            raise stopping()
        places = self._streams.take(caller), self._watched.take("", len(wanted))
        return lookouts.watching(
            wanted, lambda some, most: self._access.seen(some, caller, most), places
        )

    @property
    def watching(self) -> int:
        """How many streams watch operations."""
        return 0 if self._lookouts is None else len(self._lookouts)

    def _of_lookouts(self) -> WatchHub:
        from lro._engine.watch_hub import WatchHub  # brings asyncio, which not every process needs

        with self._watch_lock:
            if self._lookouts is None:
                self._lookouts = WatchHub(
                    self._changes, self._listening, self._replies, self._bounds.least_bytes
                )
                if self._over:
                    self._lookouts.close()
            return self._lookouts

    def _end_watching(self) -> None:
        """Send all watchers home: the service is stopping."""
        with self._watch_lock:
            self._over = True
            if self._lookouts is not None:
                self._lookouts.close()

    def _forget_watchers(self) -> None:
        """Begin anew: in a forked process, nobody watches."""
        self._watch_lock = threading.Lock()
        self._lookouts = None
