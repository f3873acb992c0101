"""``Webhooks``: a service's endpoints, the options for sending, and the interface to the engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Unpack

import attrs

from lro._webhooks.deliveries import LOOKUP, Deliveries
from lro._webhooks.delivery import Delivery
from lro._webhooks.endpoints import (
    CLOUDEVENTS,
    MAX_ENDPOINTS,
    SIGNED,
    STANDARD,
    EndpointRules,
    is_subscribed,
)
from lro._webhooks.options import MAX_NOTIFY, WebhookKeywords, WebhookOptions
from lro._webhooks.payloads import Formats
from lro._webhooks.transport import WebhookTransport
from lro.adapters import Endpoint, NotifyingService, OutboxStore, Record, keeps_outbox
from lro.errors import DeclarationError, InvalidArgument, OperationNotFound, check_keywords


class Webhooks:
    """Notify receivers when operations end: ``Service(..., webhooks=Webhooks([...]))``.

    Each end of an operation is an event ``operation.succeeded``, ``operation.failed`` or
    ``operation.cancelled``. Events are sent to ``endpoints``, to the endpoints of the start
    (``notify=``), and to the endpoints that ``lookup`` returns for an operation and its caller;
    ``lookup`` runs in the sending thread, and may block. ``secrets`` sign the events for endpoints
    that have no secrets.
    Pending deliveries are stored in the operation's record, in the same write that ends the
    operation. So each event is delivered at least once, always with the same ``webhook-id``.

    Only 2xx is success. Failed deliveries are retried by ``schedule``, the seconds between attempts
    (by default the schedule of Standard Webhooks 1.0.0, 75.6 hours in all), or after the pause that
    Retry-After asks for, at most a day. ``on_disabled`` is called with an :class:`EndpointDisabled`
    if a receiver answers 410, or if a delivery has failed for the whole schedule.

    URLs must have https and one of ``ports`` (None allows any); ``allow_http`` also allows http and
    port 80. Hosts need a global address, which is checked when the connection is made;
    ``allow_private`` allows any address. All requests go through ``proxy``, the URL of an egress
    proxy, which must then check the addresses itself. Redirects are not followed, and proxies of
    the environment are not used. ``ssl_context`` has the trusted certificates; ``resolve`` returns
    the addresses of a host and port.

    ``timeout`` bounds a request, from 0.1 to 60 seconds. A process uses at most ``connections``
    connections, and at most one to each host. ``formats`` adds functions that make bodies, by name;
    endpoints with such a format need no secret. ``clock`` returns seconds; ``random`` returns a
    number from 0 to 1.

    Raises:
        DeclarationError: An argument is not of its type.
        InvalidArgument: An endpoint or secret cannot be used.
    """

    def __init__(
        self, endpoints: Sequence[Endpoint] = (), **options: Unpack[WebhookKeywords]
    ) -> None:
        check_keywords("Webhooks", options, WebhookKeywords)
        given = self._options = WebhookOptions(**options)
        self._formats = dict(given.formats or {})
        ports = {*(given.ports or ()), *([80] if given.allow_http else [])}
        self._rules = EndpointRules(
            secrets=tuple(given.secrets),
            allow_private=given.allow_private or given.proxy is not None,
            allow_http=given.allow_http,
            ports=None if given.ports is None else frozenset(ports),
            formats=SIGNED | self._formats.keys(),
        )
        self._transport = WebhookTransport(
            timeout=given.timeout,
            allow_private=given.allow_private,
            proxy=given.proxy,
            ssl_context=given.ssl_context,
            resolve=given.resolve,
        )
        self._endpoints = tuple(self._checked("endpoints", endpoints))
        self._store: OutboxStore | None = None
        self._renamed: Mapping[str, str] = {}
        self._delivery: Delivery | None = None

    def _checked(self, at: str, endpoints: object) -> list[Endpoint]:
        """Check endpoints, and return them with their ids.

        Raises:
            InvalidArgument: A value is not an endpoint, or an endpoint is not allowed.
        """
        if not isinstance(endpoints, list | tuple):
            raise InvalidArgument(at, "must be several lro.webhooks.Endpoint, in a tuple or list")
        found = []
        for place, one in enumerate(endpoints):
            if not isinstance(one, Endpoint):
                raise InvalidArgument(f"{at}[{place}]", "must be an lro.webhooks.Endpoint")
            checked = self._rules.checked(f"{at}[{place}]", one)
            found.append(attrs.evolve(one, id=checked.id))
        return found

    # -- called by the engine -----------------------------------------------------------------

    def attach(self, service: NotifyingService) -> None:
        """Attach these webhooks to a service, whose constructor calls this.

        Raises:
            DeclarationError: The service's store is not an :class:`lro.adapters.OutboxStore`, or
                another service has these webhooks.
        """
        store = service.store
        if not keeps_outbox(store):
            text = (
                f"needs a store that keeps pending deliveries, and {type(store).__name__} does not"
            )
            raise DeclarationError("webhooks", text)
        if self._delivery is not None:
            raise DeclarationError("webhooks", "belongs to another service already")
        own = Formats(service.types, service.domain)
        formats = {STANDARD: own.standard, CLOUDEVENTS: own.cloudevents, **self._formats}
        self._store, self._renamed = store, service.renamed
        self._delivery = Delivery(
            store,
            self._transport,
            formats,
            self._options,
            self._rules,
            self._endpoints,
            self._renamed,
        )

    @property
    def delivery(self) -> Delivery:
        """The delivery that sends the webhooks of the service.

        Raises:
            DeclarationError: These webhooks are not attached to a service.
        """
        if self._delivery is None:
            raise DeclarationError("webhooks", "belongs to no service: Service(..., webhooks=...)")
        return self._delivery

    def encode(self, notify: object) -> str:
        """Return the text in which a record keeps the endpoints of a start; empty for none.

        Raises:
            InvalidArgument: There are more than 10 endpoints, an endpoint cannot be used, or the
                endpoints together are too large.
        """
        endpoints = self._checked("notify", notify)
        if len(endpoints) > MAX_ENDPOINTS:
            raise InvalidArgument("notify", f"must be at most {MAX_ENDPOINTS} endpoints")
        text = Deliveries(tuple(endpoints)).to_text()
        if len(text) > MAX_NOTIFY:
            raise InvalidArgument("notify", f"must have at most {MAX_NOTIFY} bytes in all")
        return text

    def notifies(self, record: Record) -> bool:
        """Return True if any endpoint may want the event for the end of a record."""
        if self._options.lookup is not None:
            return True
        endpoints = self._endpoints
        if record.notify:
            try:
                endpoints += Deliveries.of(record.notify).endpoints
            except Exception:  # the delivery reports the error; the operation must be able to end
                return True
        return any(is_subscribed(one, record, self._renamed) for one in endpoints)

    def begin(self) -> None:
        """Start a thread that sends pending deliveries. Idempotent.

        Raises:
            RuntimeError: There are too many threads.
        """
        self.delivery.begin()

    def wake(self) -> None:
        """Look for due deliveries now. Never waits."""
        self.delivery.wake()

    def run_due(self) -> float:
        """Send due deliveries in this thread, and return the seconds until the next is due.

        Raises:
            Unavailable: The store cannot be reached.
        """
        return self.delivery.run_due()

    def stop(self) -> None:
        """Stop the threads. Leave deliveries that take more than two seconds to other processes."""
        self.delivery.stop()

    def reset_after_fork(self) -> None:
        """Start over without the threads and connections of the parent process."""
        self._transport.reset_after_fork()
        self.delivery.reset_after_fork()

    # -- for operators ------------------------------------------------------------------------

    def pending_of(self, name: str) -> Mapping[str, int]:
        """Return the number of failed attempts of each pending delivery, by the endpoint's id.

        An abandoned delivery has the number -1. An empty id stands for endpoints that are not known
        yet.

        Raises:
            OperationNotFound: There is no such operation, or it has not ended.
            Unavailable: The store cannot be reached.
        """
        record = next(iter(self._attached().find([name]).records), None)
        if record is None or not record.done:
            raise OperationNotFound(name)
        deliveries = Deliveries.of(record.notify)
        if deliveries.pending is None:
            return {} if record.notify_at is None else {LOOKUP: 0}
        tries = {id: delivery.attempts for id, delivery in deliveries.pending.items()}
        return {**tries, **dict.fromkeys(deliveries.failed, -1)}

    def retry(self, name: str) -> None:
        """Send the pending and the abandoned deliveries of an operation now.

        Each delivery gets its whole schedule again.

        Raises:
            OperationNotFound: There is no such operation, or it has not ended.
            Unavailable: The store cannot be reached.
        """
        store = self._attached()

        def change(record: Record) -> Record:
            if not record.done:
                raise OperationNotFound(name)
            deliveries = Deliveries.of(record.notify).restarted(store.now())
            if not deliveries.pending:  # nothing is pending or abandoned
                return record
            return record.next_version(notify=deliveries.to_text(), notify_at=deliveries.next_due)

        store.update(name, change)
        self.wake()

    def _attached(self) -> OutboxStore:
        _ = self.delivery
        assert self._store is not None
        return self._store
