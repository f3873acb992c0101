"""What both faces of a client hold: settings, types, the table of what is waited for, a journal."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, Protocol

from lro import Code, Status, TypeRegistry
from lro_client import _arguments
from lro_client._errors import CallError
from lro_client._flow.policy import Polling, Retry
from lro_client._flow.single import FlowConfig
from lro_client._flow.steps import Channel, Flow
from lro_client._observer import Observer
from lro_client._tokens import public_address
from lro_client._watch.poller import Poller
from lro_client._watch.registry import WatchRegistry
from lro_client._watch.strategy import Scheduler, Strategy

if TYPE_CHECKING:
    from lro_client._journal import Journal

_SINGLES: Final = 4
"""Up to so many operations are waited for by a call each; more of them share a few connections."""

_MOVING: Final = threading.Lock()
_CLOSED: Final = Status(Code.CANCELLED, "the client was closed")


class Runner(Protocol):
    """What of a driver is the same on both faces."""

    def aside(self, flow: Flow[None]) -> None:
        """Have a flow run beside the caller."""
        ...

    def ring(self) -> None:
        """End the rest of the one flow that rests."""
        ...

    def box(self) -> Channel:
        """A box that the driver can take from."""
        ...

    def here(self) -> object:
        """Where flows run aside; another place is a new beginning."""
        ...

    def close(self, error: Exception) -> None:
        """End all pauses with this."""
        ...

    def lanes(self, wanted: int) -> int:
        """How many flows may run aside at once."""
        ...


class ClientState:
    """The part of a client that does nothing by itself."""

    def __init__(
        self,
        transport: object,
        runner: Runner,
        *,
        types: TypeRegistry,
        polling: Polling | None,
        retry: Retry | None,
        clock: Callable[[], float],
        call_seconds: float,
        journal: Journal | None,
    ) -> None:
        _arguments.check_optional("polling", polling, Polling)
        _arguments.check_optional("retry", retry, Retry)
        _arguments.check_seconds("call_seconds", call_seconds)
        self.types = types
        self.address = public_address(str(getattr(transport, "address", "")))
        self.observer = _observer(journal, self.address, types)
        self.config = FlowConfig(
            clock=clock,
            retry=retry or Retry(),
            polling=polling or Polling(),
            call_seconds=call_seconds,
        )
        self._runner = runner
        self._offered = _offered(transport)
        self._most_alone = getattr(transport, "calls_at_once", _SINGLES)
        self._here: object = runner.here()
        self._lock, self._table = threading.Lock(), self._laid()

    @property
    def table(self) -> WatchRegistry:
        """What is waited for."""
        self._settle()
        return self._table

    def _settle(self) -> None:
        # In a forked process nobody goes on with what was waited for, and locks may be held.
        here = self._runner.here()
        if here == self._here:
            return
        with _MOVING:
            if here != self._here:
                closed = self._table.closed
                self.config.server.held = 0
                self._lock, self._table = threading.Lock(), self._laid()
                self._table.closed, self._here = closed, here

    def _laid(self) -> WatchRegistry:
        runner = self._runner
        table = WatchRegistry(
            self.config.clock,
            most=lambda: runner.lanes(self.config.lanes),
            hire=lambda: runner.aside(lanes.lane()),
            ring=runner.ring,
        )
        lanes = Poller(self.config, table, Scheduler(self.config, table, self._offered))
        return table

    def box(self) -> Channel:
        """A box that the face's driver can take from."""
        return self._runner.box()

    @contextmanager
    def alone(self) -> Iterator[bool]:
        """Whether a wait may have a call for itself, rather than join all others."""
        self._settle()
        server, lock = self.config.server, self._lock
        with lock:
            has = server.held < self._most_alone
            server.held += has
        try:
            yield has
        finally:
            with lock:
                server.held = max(0, server.held - has)

    def close(self) -> None:
        """Send home everybody who waits."""
        error = CallError("GetOperation", _CLOSED)
        self.table.close(error)
        self._runner.close(error)


def _observer(journal: Journal | None, address: str, types: TypeRegistry) -> Observer:
    if journal is None:
        return Observer()
    from lro_client import _journal, _journal_observer  # which load SQLite

    _arguments.check_optional("journal", journal, _journal.Journal)
    return _journal_observer.JournalObserver(journal, address, types)


def _offered(transport: object) -> frozenset[Strategy]:
    found = {Strategy.ONE, Strategy.HOLD, Strategy.LISTED}
    if getattr(transport, "batches", False):
        found.add(Strategy.BATCH)
    if hasattr(transport, "stream"):
        found.add(Strategy.STREAM)
    return frozenset(found)
