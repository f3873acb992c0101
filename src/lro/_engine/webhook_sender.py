"""The webhook port: the interface that a sender of webhooks implements."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Final, Protocol

import attrs

from lro._base.by_fields import ByFields

if TYPE_CHECKING:
    from lro._engine.store_port import Store
    from lro._messages.registry import TypeRegistry
    from lro._model.operation import Record

EVENTS: Final = ("operation.succeeded", "operation.failed", "operation.cancelled")
"""The names of the events: one for each way in which an operation can end."""


@attrs.frozen(kw_only=True, eq=False, repr=False)
class Endpoint(ByFields):
    """A URL to which a webhook is sent when an operation ends, and how to call it.

    ``id`` names the endpoint in stored and signed data; by default it is derived from the URL.
    ``secrets`` (``whsec_...``) sign each request; while you replace a secret, give the old and the
    new one. ``events`` and ``methods`` select the ends that are sent; if ``methods`` is empty, all
    methods are selected. ``format`` is ``standard``, ``cloudevents``, or a format that the
    service's webhooks define. A ``thin`` payload only names the operation; a ``full`` payload
    contains it. ``headers`` are added to each request and may contain secrets.
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

    ``Record.notify_at``, set by the write that ends the operation, marks a pending webhook. If a
    process dies before it has sent a webhook, another process sends it.
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
        """Return True if webhooks are to be sent about the end of an operation.

        This is called within the change that ends the operation, maybe more than once, so it must
        be quick and have no side effects.
        """
        ...

    def begin(self) -> None:
        """Start the thread that sends, in this process. Idempotent.

        Raises:
            RuntimeError: There are too many threads.
        """
        ...

    def wake(self) -> None:
        """Wake the thread: a webhook may be due. Any thread may call this; it never blocks."""
        ...

    def run_due(self) -> float:
        """Send the webhooks that are due, and return the seconds until the next one is due.

        Raises:
            Unavailable: The store cannot be reached.
        """
        ...

    def stop(self) -> None:
        """End the thread soon. Idempotent."""
        ...

    def reset_after_fork(self) -> None:
        """Forget the thread, and start afresh: threads do not survive a fork."""
        ...
