"""The webhook port: the interface of what sends the webhooks of a service."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Final, Protocol

import attrs

if TYPE_CHECKING:
    from lro._engine.store_port import Store
    from lro._messages.registry import TypeRegistry
    from lro._model.operation import Record

EVENTS: Final = ("operation.succeeded", "operation.failed", "operation.cancelled")
"""The names of the events that are notified: one of these when an operation ends."""


@attrs.frozen(kw_only=True)
class Endpoint:
    """A URL that is notified of the ends of operations, and how it is called.

    ``id`` names the endpoint in stored and signed data; by default it is derived from the URL.
    ``secrets`` (``whsec_...``) sign each request; give the old and the new one while you replace
    one. ``events`` and ``methods`` select what is notified; no methods means all. ``format`` is
    ``standard``, ``cloudevents``, or one that the service's webhooks define. A ``thin`` payload
    only names the operation; a ``full`` one contains it. ``headers`` are added to each request and
    may contain secrets.
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
    """The part of a service that its webhook sender uses."""

    store: Store
    types: TypeRegistry
    domain: str

    @property
    def renamed(self) -> Mapping[str, str]:
        """The current names of methods, by alias."""
        ...


class WebhookSender(Protocol):
    """Sends the pending webhooks of ended operations. The service calls it.

    ``Record.notify_at``, set by the write that ends the operation, marks a pending webhook. A
    process that dies before it has sent one loses nothing: another process sends it.
    """

    def attach(self, service: NotifyingService) -> None:
        """Connect to a service, whose constructor calls this once.

        Raises:
            DeclarationError: The store is not a :class:`lro.adapters.OutboxStore`.
        """
        ...

    def encode(self, notify: object) -> str:
        """Return the value of ``Record.notify`` for the endpoints that a start names.

        Raises:
            InvalidArgument: An endpoint is not valid; the field is ``notify``.
        """
        ...

    def notifies(self, record: Record) -> bool:
        """Return True if an ended operation is to be notified.

        Called within the change that ends it, maybe more than once, so it must be quick and have no
        side effects.
        """
        ...

    def begin(self) -> None:
        """Start the thread that sends, in this process. Idempotent.

        Raises:
            RuntimeError: There are too many threads.
        """
        ...

    def wake(self) -> None:
        """Wake the thread: a notification may be due. Never blocks; called in any thread."""
        ...

    def run_due(self) -> float:
        """Send what is due, and return the seconds until the next notification is.

        Raises:
            Unavailable: The store cannot be reached.
        """
        ...

    def stop(self) -> None:
        """End the thread soon. Idempotent."""
        ...

    def reset_after_fork(self) -> None:
        """Start again without a thread: threads do not survive a fork."""
        ...
