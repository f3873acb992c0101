"""``Webhooks``: the endpoints of a service, the options of sending, and the engine's port."""

from __future__ import annotations

import random
import re
import ssl
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Final

import attrs
import httpx

from lro import Operation
from lro._webhooks.deliveries import LOOKUP, Deliveries
from lro._webhooks.delivery import Delivery, DeliveryOptions, EndpointDisabled
from lro._webhooks.endpoints import (
    CLOUDEVENTS,
    MAX_ENDPOINTS,
    SIGNED,
    STANDARD,
    EndpointRules,
    check_secrets,
    is_subscribed,
)
from lro._webhooks.payloads import Format, Formats
from lro._webhooks.schedule import SCHEDULE
from lro._webhooks.transport import Resolve, WebhookTransport, system_addresses
from lro.adapters import Endpoint, NotifyingService, OutboxStore, Record, keeps_outbox
from lro.errors import (
    DeclarationError,
    InvalidArgument,
    OperationNotFound,
    check,
    check_count,
    check_flag,
    check_function,
    check_instance,
    check_plain_function,
    check_seconds,
    check_takes,
    check_text,
    check_texts,
)

MAX_NOTIFY: Final = 64 * 1024
"""Most bytes of the endpoints of a start that a record keeps."""

TIMEOUT_SECONDS: Final = 20.0
CONNECTIONS: Final = 8


class Webhooks:
    """Notify others when operations end: ``Service(..., webhooks=Webhooks([...]))``.

    Each end of an operation is an event ``operation.succeeded``, ``operation.failed`` or
    ``operation.cancelled``. Events are sent to ``endpoints``, to the endpoints of the start
    (``notify=``), and to those that ``lookup`` returns for an operation and its caller; ``lookup``
    runs in the sending thread, and may block. ``secrets`` sign for endpoints without any. Pending
    deliveries are stored in the operation's record, in the same write that ends it. So each event
    is delivered at least once, always with the same ``webhook-id``.

    Only 2xx is success. Failed deliveries are retried by ``schedule``, the seconds between attempts
    (by default those of Standard Webhooks 1.0.0, 75.6 hours in all), or when Retry-After says, at
    most a day later. ``on_disabled`` is called with an :class:`EndpointDisabled` if a receiver
    answers 410, or if a delivery has failed for the whole schedule.

    URLs must have https and one of ``ports`` (None allows any); ``allow_http`` also allows http and
    port 80. Hosts need a global address, which is checked when the connection is made;
    ``allow_private`` allows any. All requests go through ``proxy``, the URL of an egress proxy,
    which must then check addresses itself. Redirects are not followed, and proxies of the
    environment are not used. ``ssl_context`` has the trusted certificates, ``resolve`` returns the
    addresses of a host and port.

    ``timeout`` bounds a request, from 0.1 to 60 seconds. A process uses at most ``connections``,
    and one for each host. ``formats`` adds functions that make bodies, by name; endpoints with such
    a format need no secret. ``clock`` returns seconds, ``random`` a number from 0 to 1.

    Raises:
        DeclarationError: An argument is not of its type.
        InvalidArgument: An endpoint or secret cannot be used.
    """

    def __init__(
        self,
        endpoints: Sequence[Endpoint] = (),
        *,
        lookup: Callable[[Operation, str], Iterable[Endpoint]] | None = None,
        secrets: Sequence[str] = (),
        on_disabled: Callable[[EndpointDisabled], object] | None = None,
        allow_private: bool = False,
        allow_http: bool = False,
        ports: Collection[int] | None = (443,),
        proxy: str | None = None,
        ssl_context: ssl.SSLContext | None = None,
        resolve: Resolve = system_addresses,
        formats: Mapping[str, Format] | None = None,
        schedule: Sequence[float] = SCHEDULE,
        timeout: float = TIMEOUT_SECONDS,
        connections: int = CONNECTIONS,
        clock: Callable[[], float] = time.monotonic,
        random: Callable[[], float] = random.random,
    ) -> None:
        _check_functions(lookup, on_disabled, resolve, clock, random)
        _check_sending(allow_private, allow_http, ports, proxy, ssl_context)
        check_seconds("timeout", timeout, most=60.0)
        check_count("connections", connections, most=100)
        check_texts("secrets", secrets)
        check_secrets("secrets", secrets)
        _check_schedule(schedule)
        self._formats = _checked_formats(formats)
        self._rules = EndpointRules(
            secrets=tuple(secrets),
            allow_private=allow_private or proxy is not None,
            allow_http=allow_http,
            ports=None if ports is None else frozenset(ports) | ({80} if allow_http else set()),
            formats=SIGNED | self._formats.keys(),
        )
        self._transport = WebhookTransport(
            timeout=timeout,
            allow_private=allow_private,
            proxy=proxy,
            ssl_context=ssl_context,
            resolve=resolve,
        )
        self._options = DeliveryOptions(
            rules=self._rules,
            endpoints=tuple(self._checked("endpoints", endpoints)),
            lookup=lookup,
            on_disabled=on_disabled,
            schedule=tuple(schedule),
            timeout=timeout,
            connections=connections,
            clock=clock,
            random=random,
        )
        self._store: OutboxStore | None = None
        self._renamed: Mapping[str, str] = {}
        self._delivery: Delivery | None = None

    def _checked(self, at: str, endpoints: object) -> list[Endpoint]:
        """Check endpoints, and return them with their ids.

        Raises:
            InvalidArgument: They are not endpoints, or one is not allowed.
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

    # -- the port of the engine ---------------------------------------------------------------

    def attach(self, service: NotifyingService) -> None:
        """Attach these webhooks to a service, whose constructor calls this.

        Raises:
            DeclarationError: Its store is not an :class:`lro.adapters.OutboxStore`, or another
                service has these webhooks.
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
        self._delivery = Delivery(store, self._transport, formats, self._options, self._renamed)

    @property
    def delivery(self) -> Delivery:
        """The delivery for the service of these webhooks.

        Raises:
            DeclarationError: They are not attached to a service.
        """
        if self._delivery is None:
            raise DeclarationError("webhooks", "belongs to no service: Service(..., webhooks=...)")
        return self._delivery

    def encode(self, notify: object) -> str:
        """Return the text in which a record keeps the endpoints of a start; empty for none.

        Raises:
            InvalidArgument: There are more than 10, one cannot be used, or they are too large.
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
        endpoints = self._options.endpoints
        if record.notify:
            try:
                endpoints += Deliveries.of(record.notify).endpoints
            except Exception:  # the operation must end; the delivery reports the error
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
        """Stop the threads; other processes send what is not sent within two seconds."""
        self.delivery.stop()

    def reset_after_fork(self) -> None:
        """Start over without the threads and connections of the parent process."""
        self._transport.reset_after_fork()
        self.delivery.reset_after_fork()

    # -- for operators ------------------------------------------------------------------------

    def pending_of(self, name: str) -> Mapping[str, int]:
        """Return the failed attempts of an operation's pending deliveries, by the endpoint's id.

        An abandoned delivery has -1. An empty id stands for endpoints that are not known yet.

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


def _check_functions(
    lookup: object, on_disabled: object, resolve: object, clock: object, random: object
) -> None:
    if lookup is not None:
        check_plain_function("lookup", lookup)
        check_takes("lookup", lookup, 2, "a function of an operation and its caller")
    if on_disabled is not None:
        check_plain_function("on_disabled", on_disabled)
        check_takes("on_disabled", on_disabled, 1, "a function of an EndpointDisabled")
    check_takes("resolve", resolve, 2, "a function of a host and a port")
    check_function("clock", clock)
    check_function("random", random)


def _check_sending(
    allow_private: object, allow_http: object, ports: object, proxy: object, context: object
) -> None:
    check_flag("allow_private", allow_private)
    check_flag("allow_http", allow_http)
    if ports is not None:
        check_instance("ports", ports, Collection, "several ports, in a tuple or list, or None")
        assert isinstance(ports, Collection)
        for port in ports:
            check_count("ports", port, most=65_535)
    if proxy is not None:
        check_text("proxy", proxy, empty=False)
        fine = _is_proxy(str(proxy))
        check("proxy", "another text", "a URL such as 'http://egress:4750'", fine=fine)
    if context is not None:
        check_instance("ssl_context", context, ssl.SSLContext, "an ssl.SSLContext")


def _is_proxy(text: str) -> bool:
    try:
        url = httpx.URL(text)
        url.host.encode("idna")  # as it will be looked up
        fine = url.scheme in ("http", "https") and re.fullmatch(r"[^\s%]+", url.host) is not None
        return fine and (url.port or 0) < 1 << 16 and not (url.query or url.fragment)
    except (httpx.InvalidURL, ValueError):
        return False


def _check_schedule(schedule: object) -> None:
    check_instance("schedule", schedule, (list, tuple), "several seconds, in a tuple or list")
    assert isinstance(schedule, list | tuple)
    for seconds in schedule:
        check_seconds("schedule", seconds, zero=True, most=30 * 86_400.0)


def _checked_formats(formats: object) -> dict[str, Format]:
    if formats is None:
        return {}
    check_instance("formats", formats, Mapping, "functions by the names of formats")
    assert isinstance(formats, Mapping)
    for name, function in formats.items():
        check_text("formats", name, empty=False)
        check("formats", name, "a name that this library does not have", fine=name not in SIGNED)
        check_takes("formats", function, 3, "a function of an operation, an endpoint and an event")
    return dict(formats)
