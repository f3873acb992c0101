"""What both faces of a client hold: settings, types, the registry of waits, an observer."""

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
from lro_client._observer import ClientObserver
from lro_client._tokens import public_address
from lro_client._watch.poller import Pollers
from lro_client._watch.registry import WatchRegistry
from lro_client._watch.strategy import Scheduler, Strategy

if TYPE_CHECKING:
    from lro_client._journal.journal import Journal

_MAX_OWN_CALLS: Final = 4
"""Maximum number of waits with a call of their own; further ones share a few connections."""

_RESET_LOCK: Final = threading.Lock()
_CLOSED: Final = Status(Code.CANCELLED, "the client was closed")


class Runner(Protocol):
    """What of a driver is the same on both faces."""

    def start(self, flow: Flow[None]) -> None:
        """Run a flow in the background."""
        ...

    def wake(self) -> None:
        """End the ``Idle`` of the one flow that sleeps."""
        ...

    def channel(self) -> Channel:
        """A channel that the driver can receive from."""
        ...

    def place(self) -> object:
        """Where background flows run; in another place the client starts over."""
        ...

    def close(self, error: Exception) -> None:
        """End all pauses with this error."""
        ...

    def max_pollers(self, wanted: int) -> int:
        """Maximum number of background flows."""
        ...


class ClientState:
    """The part of a client that is the same for threads and event loops."""

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
        self.address: str = public_address(str(getattr(transport, "address", "")))
        self.observer: ClientObserver = _observer(journal, self.address, types)
        self.config: FlowConfig = FlowConfig(
            clock=clock,
            retry=retry or Retry(),
            polling=polling or Polling(),
            call_seconds=min(call_seconds, _arguments.MAX_TIMEOUT_SECONDS),
        )
        self._runner = runner
        self._offered = _offered(transport)
        self._max_own_calls = getattr(transport, "calls_at_once", _MAX_OWN_CALLS)
        self._place: object = runner.place()
        self._lock, self._table = threading.Lock(), self._new_registry()

    @property
    def registry(self) -> WatchRegistry:
        """The operations that are waited for together."""
        self._reset_if_moved()
        return self._table

    def _reset_if_moved(self) -> None:
        # In a forked process no thread goes on with the waits, and locks may be held.
        here = self._runner.place()
        if here == self._place:
            return
        with _RESET_LOCK:
            if here != self._place:
                closed = self._table.closed
                self.config.server.own_calls = 0
                self._lock, self._table = threading.Lock(), self._new_registry()
                self._table.closed, self._place = closed, here

    def _new_registry(self) -> WatchRegistry:
        runner = self._runner
        table = WatchRegistry(
            self.config.clock,
            max_pollers=lambda: runner.max_pollers(self.config.max_pollers),
            start_poller=lambda: runner.start(pollers.poller()),
            wake_poller=runner.wake,
        )
        pollers = Pollers(self.config, table, Scheduler(self.config, table, self._offered))
        return table

    def channel(self) -> Channel:
        """A channel that the driver can receive from."""
        return self._runner.channel()

    @contextmanager
    def own_call(self) -> Iterator[bool]:
        """Whether a wait may have a call of its own, rather than join all others."""
        self._reset_if_moved()
        server, lock = self.config.server, self._lock
        with lock:
            has = server.own_calls < self._max_own_calls
            server.own_calls += has
        try:
            yield has
        finally:
            with lock:
                server.own_calls = max(0, server.own_calls - has)

    def close(self) -> None:
        """End every wait with an error."""
        error = CallError("GetOperation", _CLOSED)
        self.registry.close(error)
        self._runner.close(error)


def _observer(journal: Journal | None, address: str, types: TypeRegistry) -> ClientObserver:
    if journal is None:
        return ClientObserver()
    from lro_client._journal.journal import Journal  # which loads SQLite
    from lro_client._journal.observer import JournalObserver

    _arguments.check_optional("journal", journal, Journal)
    return JournalObserver(journal, address, types)


def _offered(transport: object) -> frozenset[Strategy]:
    found = {Strategy.ONE, Strategy.HOLD, Strategy.LISTED}
    if getattr(transport, "batches", False):
        found.add(Strategy.BATCH)
    if hasattr(transport, "stream"):
        found.add(Strategy.STREAM)
    return frozenset(found)
