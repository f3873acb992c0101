"""The state of a client, blocking or async: configuration, types and registry of waits."""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, TypedDict

from lro import Code, Status, TypeRegistry
from lro_client import _arguments
from lro_client._addresses import public_address
from lro_client._errors import CallError
from lro_client._flow.policy import Polling, Retry
from lro_client._flow.single import FlowConfig
from lro_client._flow.steps import Channel
from lro_client._watch.poller import Pollers
from lro_client._watch.registry import WatchRegistry
from lro_client._watch.strategy import Scheduler, Strategy
from lro_client.transports._credentials import AsyncSendOptions, SendOptions

if TYPE_CHECKING:
    from lro_client._flow.async_driver import AsyncDriver
    from lro_client._flow.drivers import Driver

_MAX_OWN_CALLS: Final = 4
"""Maximum number of waits that get their own call. Further waits share a few connections."""

_NEW_LOCK: Final = threading.Lock()
_CLOSED: Final = Status(Code.CANCELLED, "the client was closed")


class CommonOptions(TypedDict, total=False):
    """The options that blocking and async clients have in common."""

    polling: Polling | None
    retry: Retry | None
    call_seconds: float
    clock: Callable[[], float]


class ClientOptions(CommonOptions, SendOptions, total=False):
    """The options of a blocking client."""


class AsyncClientOptions(CommonOptions, AsyncSendOptions, total=False):
    """The options of an async client."""


def credentials_in(options: ClientOptions | AsyncClientOptions) -> Any:
    """Return the options of a client that its HTTP transport takes."""
    return {name: options[name] for name in SendOptions.__optional_keys__ if name in options}  # type: ignore[literal-required]


def config_of(options: ClientOptions | AsyncClientOptions) -> FlowConfig:
    """Check the options of a client, and return the configuration of its flows."""
    for name in options.keys() - ClientOptions.__optional_keys__:
        raise TypeError(f"a client has no option {name!r}")
    polling, retry = options.get("polling"), options.get("retry")
    seconds, clock = options.get("call_seconds", 30.0), options.get("clock", time.monotonic)
    _arguments.check_optional("polling", polling, Polling)
    _arguments.check_optional("retry", retry, Retry)
    _arguments.check_seconds("call_seconds", seconds)
    _arguments.check_function("clock", clock)
    return FlowConfig(
        clock=clock,
        retry=retry or Retry(),
        polling=polling or Polling(),
        call_seconds=min(seconds, _arguments.MAX_TIMEOUT_SECONDS),
    )


class ClientState:
    """The part of a client that is the same for blocking and async clients."""

    def __init__(
        self,
        transport: object,
        driver: Driver | AsyncDriver,
        config: FlowConfig,
        types: TypeRegistry,
    ) -> None:
        self.types = types
        self.address: str = public_address(str(getattr(transport, "address", "")))
        self.config = config
        self._driver = driver
        self._offered = _offered(transport)
        self._max_own_calls = getattr(transport, "calls_at_once", _MAX_OWN_CALLS)
        self._closed: Exception | None = None
        self._registries: dict[object, WatchRegistry] = {}
        _ = self.registry

    @property
    def registry(self) -> WatchRegistry:
        """The registry of this process or event loop."""
        # A forked process needs its own registry: it inherits held locks, but no threads.
        here = self._driver.place()
        found = self._registries.get(here)
        if found is not None:
            return found
        with _NEW_LOCK:
            for other in [one for one in self._registries if self._driver.is_past(one)]:
                del self._registries[other]
            return self._registries.setdefault(here, self._new_registry())

    def _new_registry(self) -> WatchRegistry:
        driver, config = self._driver, self.config

        def max_pollers() -> int:
            return driver.max_pollers(found.max_calls(config.polling.connections))

        found = WatchRegistry(
            config.clock,
            max_pollers=max_pollers,
            start_poller=lambda: driver.start(pollers.poller()),
            wake_poller=driver.wake,
        )
        found.closed = self._closed
        pollers = Pollers(config, found, Scheduler(config, found, self._offered))
        return found

    def channel(self) -> Channel:
        """Return a channel that the driver can receive from."""
        return self._driver.channel()

    @contextmanager
    def own_call(self) -> Iterator[bool]:
        """Yield True if a wait can make its own calls. Otherwise it shares the pollers' calls."""
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
            self._driver.at(place, functools.partial(registry.close, error))
        self._driver.close(error)


def _offered(transport: object) -> frozenset[Strategy]:
    found = {Strategy.GET, Strategy.WAIT, Strategy.LIST}
    if getattr(transport, "batches", False):
        found.add(Strategy.BATCH)
    if hasattr(transport, "stream"):
        found.add(Strategy.STREAM)
    return frozenset(found)
