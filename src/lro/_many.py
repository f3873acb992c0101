"""The verbs for many operations at once: BatchGet and Watch (spec §3.11)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from lro._access import Access
from lro._budget import ByteBudget, CallCount
from lro._faults import BatchTooLarge
from lro._hooks import Flow, flow_of, on_loop, verb
from lro._ledger import Ledger
from lro._limits import Limits
from lro._names import parse_names
from lro._operation import BatchGetOperationsResponse
from lro._record import Record
from lro._waiting import stopping

if TYPE_CHECKING:
    from lro._lookouts import Lookouts, Watching


class ManyOperations:
    """The part of a service that reads and watches many operations at once."""

    def __init__(
        self,
        access: Access,
        ledger: Ledger,
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
        self._changes = ledger
        self._listening = listening
        self._over = False
        self._lookouts: Lookouts | None = None
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
        return self.read_batch(wanted, caller)

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

    def read_batch(self, wanted: Sequence[str], caller: str) -> BatchGetOperationsResponse:
        """The operations of a BatchGet. Asks no hook.

        Raises:
            BatchTooLarge: As for :meth:`batch_get`.
        """
        found = self._found(wanted, caller)
        return BatchGetOperationsResponse(
            tuple(found[name].operation for name in wanted if name in found),
            tuple(name for name in wanted if name not in found),
        )

    def _found(self, wanted: Sequence[str], caller: str) -> Mapping[str, Record]:
        limit = self._bounds.page_bytes
        found: dict[str, Record] = {}
        rest, room = wanted, limit
        while rest:  # those that this caller cannot see are no part of the reply
            seen = self._access.seen(rest, caller, max(room, self._bounds.least_bytes))
            for record in seen.records.values():
                if found and record.weight > room:
                    raise BatchTooLarge(len(wanted), limit)
                room -= record.weight
                found[record.name] = record
            rest = seen.rest
        return found

    async def watch(self, names: Sequence[str], *, caller: str = "") -> Watching:
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

    def _of_lookouts(self) -> Lookouts:
        from lro._lookouts import Lookouts  # brings asyncio, which not every process needs

        with self._watch_lock:
            if self._lookouts is None:
                self._lookouts = Lookouts(
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
