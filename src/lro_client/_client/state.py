"""What both faces of a client hold: settings, types, the registry of waits."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, Protocol

from lro import Code, Status, TypeRegistry
from lro_client import _arguments
from lro_client._addresses import public_address
from lro_client._errors import CallError
from lro_client._flow.policy import Polling, Retry
from lro_client._flow.single import FlowConfig
from lro_client._flow.steps import Channel, Flow
from lro_client._watch.poller import Pollers
from lro_client._watch.registry import WatchRegistry
from lro_client._watch.strategy import Scheduler, Strategy

_MAX_OWN_CALLS: Final = 4
"""Maximum number of waits with a call of their own; further ones share a few connections."""

_NEW_LOCK: Final = threading.Lock()
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

    def is_past(self, place: object) -> bool:
        """Whether nothing runs in a place any more."""
        ...

    def at(self, place: object, act: Callable[[], object]) -> None:
        """Do this in that place."""
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
    ) -> None:
        _arguments.check_optional("polling", polling, Polling)
        _arguments.check_optional("retry", retry, Retry)
        _arguments.check_seconds("call_seconds", call_seconds)
        self.types = types
        self.address: str = public_address(str(getattr(transport, "address", "")))
        self.config: FlowConfig = FlowConfig(
            clock=clock,
            retry=retry or Retry(),
            polling=polling or Polling(),
            call_seconds=min(call_seconds, _arguments.MAX_TIMEOUT_SECONDS),
        )
        self._runner = runner
        self._offered = _offered(transport)
        self._max_own_calls = getattr(transport, "calls_at_once", _MAX_OWN_CALLS)
        self._closed: Exception | None = None
        self._registries: dict[object, WatchRegistry] = {}
        _ = self.registry

    @property
    def registry(self) -> WatchRegistry:
        """The operations that are waited for together, in this place."""
        # In a forked process no thread goes on with the waits, and locks may be held.
        here = self._runner.place()
        found = self._registries.get(here)
        if found is not None:
            return found
        with _NEW_LOCK:
            for other in [one for one in self._registries if self._runner.is_past(one)]:
                del self._registries[other]
            return self._registries.setdefault(here, self._new_registry())

    def _new_registry(self) -> WatchRegistry:
        runner, config = self._runner, self.config

        def max_pollers() -> int:
            return runner.max_pollers(found.max_calls(config.polling.connections))

        found = WatchRegistry(
            config.clock,
            max_pollers=max_pollers,
            start_poller=lambda: runner.start(pollers.poller()),
            wake_poller=runner.wake,
        )
        found.closed = self._closed
        pollers = Pollers(config, found, Scheduler(config, found, self._offered))
        return found

    def channel(self) -> Channel:
        """A channel that the driver can receive from."""
        return self._runner.channel()

    @contextmanager
    def own_call(self) -> Iterator[bool]:
        """Whether a wait may have a call of its own, rather than join all others."""
        registry = self.registry
        with registry.lock:
            has = registry.own_calls < self._max_own_calls
            registry.own_calls += has
        try:
            yield has
        finally:
            with registry.lock:
                registry.own_calls -= has

    def close(self) -> None:
        """End every wait with an error."""
        self._closed = error = CallError("GetOperation", _CLOSED)
        for place, registry in list(self._registries.items()):
            self._runner.at(place, functools.partial(registry.close, error))
        self._runner.close(error)


def _offered(transport: object) -> frozenset[Strategy]:
    found = {Strategy.ONE, Strategy.HOLD, Strategy.LISTED}
    if getattr(transport, "batches", False):
        found.add(Strategy.BATCH)
    if hasattr(transport, "stream"):
        found.add(Strategy.STREAM)
    return frozenset(found)
