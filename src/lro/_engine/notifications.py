"""What the service needs of what notifies others of ends: the contract of its ``webhooks``."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Final, Protocol

import attrs

if TYPE_CHECKING:
    from lro._engine.store_port import Store
    from lro._messages.registry import TypeRegistry
    from lro._model.operation import Record

EVENTS: Final = ("operation.succeeded", "operation.failed", "operation.cancelled")
"""What is notified of an operation: one of these, when it ends."""


@attrs.frozen(kw_only=True)
class Endpoint:
    """Where the ends of operations are notified: a URL, and how it is called.

    ``id`` stands for the endpoint in what is stored and signed; by default it is derived from the
    URL. ``secrets`` sign what is sent (``whsec_...``); with several, by each, while one replaces
    another. ``events`` and ``methods`` are what is notified; no methods: all. ``format`` is
    ``standard``, ``cloudevents``, or one that the service's webhooks define. A ``thin`` payload
    names the operation, a ``full`` one has it in whole. ``headers`` are sent along: they may be
    secret too.
    """

    url: str
    id: str = ""
    secrets: tuple[str, ...] = attrs.field(default=(), repr=False)
    events: Collection[str] = EVENTS
    methods: Collection[str] = ()
    format: str = "standard"
    payload: str = "thin"
    headers: Mapping[str, str] = attrs.field(factory=dict[str, str], repr=False)


class NotifyingService(Protocol):
    """What a service shows to what sends its notifications."""

    store: Store
    types: TypeRegistry
    domain: str

    @property
    def renamed(self) -> Mapping[str, str]:
        """The present names of methods, by their aliases."""
        ...


class Notifications(Protocol):
    """What sends the notifications that records owe. The service calls it; it reads the store.

    The debt stands in the record (``Record.notify_at``), set by the update that ends the operation:
    what sends it may die at any time, and another process goes on.
    """

    def attach(self, service: NotifyingService) -> None:
        """Serve this service. Called once, by its constructor.

        Raises:
            DeclarationError: Its store is no :class:`lro.adapters.OutboxStore`.
        """
        ...

    def encode(self, notify: object) -> str:
        """Return what ``Record.notify`` keeps of the endpoints that a start names.

        Raises:
            InvalidArgument: They cannot be used; its field is ``notify``.
        """
        ...

    def owed(self, record: Record) -> bool:
        """Whether an operation that ends owes a notification; ``record`` is the ended one.

        Called within the change that ends it, maybe more than once: quick and without effects.
        """
        ...

    def begin(self) -> None:
        """Start sending in a thread, in this process. Idempotent.

        Raises:
            RuntimeError: There are too many threads.
        """
        ...

    def wake(self) -> None:
        """Take note that something may be due now. Never waits; in any thread."""
        ...

    def run_due(self) -> float:
        """Send what is due, and return the seconds until more will be.

        Raises:
            Unavailable: The store cannot be reached.
        """
        ...

    def stop(self) -> None:
        """End the thread within a short grace. Idempotent."""
        ...

    def reset_after_fork(self) -> None:
        """Begin again without a thread: that of the parent process does not come along."""
        ...
