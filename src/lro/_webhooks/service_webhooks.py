"""``Webhooks``: the endpoints of a service and how they are called, and the port to its engine."""

from __future__ import annotations

import random
import re
import ssl
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Final

import attrs
import httpx

from lro import DescribedOperation
from lro._webhooks.debts import LOOKUP, Debts
from lro._webhooks.delivery import Delivery, DeliveryOptions, EndpointDisabled
from lro._webhooks.endpoints import (
    CLOUDEVENTS,
    MAX_ENDPOINTS,
    SIGNED,
    STANDARD,
    EndpointRules,
    check_secrets,
    wants,
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
"""The most bytes that a record keeps of the endpoints of its start."""

TIMEOUT_SECONDS: Final = 20.0
CONNECTIONS: Final = 8


class Webhooks:
    """Notifies others when operations end: ``Service(..., webhooks=Webhooks([...]))``.

    Each end of an operation is an event ``operation.succeeded``, ``operation.failed`` or
    ``operation.cancelled``. It is sent to ``endpoints``; to those that ``lookup`` gives for an
    operation and its caller, called in the thread that sends, where it may block; and to those that
    the start has named by ``notify=``. ``secrets`` sign for endpoints that have none of their own.
    What is owed stands in the record from its end on: it is sent at least once, with the same
    ``webhook-id`` each time.

    Only 2xx is success. What fails is tried again after ``schedule``, seconds between two tries (by
    default those of Standard Webhooks 1.0.0, 75.6 hours), or when Retry-After says, at most a day
    later. ``on_disabled`` is called with an :class:`EndpointDisabled` when a receiver answers 410,
    and when a notification was tried for the whole schedule and is given up.

    URLs must be https at one of ``ports`` (None: any), or http too with ``allow_http``, which also
    allows port 80. A host must have an address that is global, unless ``allow_private``; this is
    checked where the connection is made. With ``proxy``, the URL of an egress proxy, all goes
    through that, and it is the proxy that must check addresses. Redirects are not followed, and
    proxies of the environment are not used. ``ssl_context`` says which certificates are trusted,
    ``resolve`` gives the addresses of a host and port.

    ``timeout`` bounds a request in seconds, from 0.1 to 60. A process sends over up to
    ``connections`` at once, and to a host one at a time. ``formats`` are further bodies, by the
    name that endpoints say; with those, endpoints need no secret. ``clock`` gives seconds,
    ``random`` numbers from 0 to 1.

    Raises:
        DeclarationError: An argument is not of its type.
        InvalidArgument: An endpoint or secret cannot be used.
    """

    def __init__(
        self,
        endpoints: Sequence[Endpoint] = (),
        *,
        lookup: Callable[[DescribedOperation, str], Iterable[Endpoint]] | None = None,
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
        """These endpoints, each with its id.

        Raises:
            InvalidArgument: They are not endpoints, or one cannot be used.
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
        """Serve this service: it calls this itself.

        Raises:
            DeclarationError: Its store is not an :class:`lro.adapters.OutboxStore`, or another
                service has these webhooks.
        """
        store = service.store
        if not keeps_outbox(store):
            text = f"needs a store that keeps what is owed, and {type(store).__name__} does not"
            raise DeclarationError("webhooks", text)
        if self._delivery is not None:
            raise DeclarationError("webhooks", "belongs to another service already")
        own = Formats(service.types, service.domain)
        formats = {STANDARD: own.standard, CLOUDEVENTS: own.cloudevents, **self._formats}
        self._store, self._renamed = store, service.renamed
        self._delivery = Delivery(store, self._transport, formats, self._options, self._renamed)

    @property
    def delivery(self) -> Delivery:
        """What sends, for the service that these webhooks belong to.

        Raises:
            DeclarationError: They belong to none.
        """
        if self._delivery is None:
            raise DeclarationError("webhooks", "belongs to no service: Service(..., webhooks=...)")
        return self._delivery

    def encode(self, notify: object) -> str:
        """What a record keeps of the endpoints that a start names; empty for none.

        Raises:
            InvalidArgument: There are more than 10, one cannot be used, or they are too large.
        """
        endpoints = self._checked("notify", notify)
        if len(endpoints) > MAX_ENDPOINTS:
            raise InvalidArgument("notify", f"must be at most {MAX_ENDPOINTS} endpoints")
        text = Debts(tuple(endpoints)).to_text()
        if len(text) > MAX_NOTIFY:
            raise InvalidArgument("notify", f"must have at most {MAX_NOTIFY} bytes in all")
        return text

    def owed(self, record: Record) -> bool:
        """Whether the end of a record may have to be sent to any endpoint."""
        if self._options.lookup is not None:
            return True
        endpoints = self._options.endpoints
        if record.notify:
            try:
                endpoints += Debts.of(record.notify).endpoints
            except Exception:  # whatever it is: the operation ends, and the delivery reports it
                return True
        return any(wants(one, record, self._renamed) for one in endpoints)

    def begin(self) -> None:
        """Send what is owed in a thread. Idempotent.

        Raises:
            RuntimeError: There are too many threads.
        """
        self.delivery.begin()

    def wake(self) -> None:
        """Look for what is due now. Never waits."""
        self.delivery.wake()

    def run_due(self) -> float:
        """Send what is due, in this thread, and return the seconds until more will be.

        Raises:
            Unavailable: The store cannot be reached.
        """
        return self.delivery.run_due()

    def stop(self) -> None:
        """End the threads; what is not sent within two seconds is left to other processes."""
        self.delivery.stop()

    def reset_after_fork(self) -> None:
        """Begin again without threads and connections, which are those of the parent process."""
        self._transport.reset_after_fork()
        self.delivery.reset_after_fork()

    # -- for operators ------------------------------------------------------------------------

    def owed_of(self, name: str) -> Mapping[str, int]:
        """What an operation owes: by the id of the endpoint, after how many tries.

        What was given up has -1. An empty id stands for the endpoints that are not known yet.

        Raises:
            OperationNotFound: There is no such operation, or it has not ended.
            Unavailable: The store cannot be reached.
        """
        record = next(iter(self._attached().find([name]).records), None)
        if record is None or not record.done:
            raise OperationNotFound(name)
        debts = Debts.of(record.notify)
        if debts.owed is None:
            return {} if record.notify_at is None else {LOOKUP: 0}
        tries = {id: debt.attempts for id, debt in debts.owed.items()}
        return {**tries, **dict.fromkeys(debts.failed, -1)}

    def retry(self, name: str) -> None:
        """Owe again what was given up of an operation, and have all that it owes sent now.

        Each notification has its whole schedule again.

        Raises:
            OperationNotFound: There is no such operation, or it has not ended.
            Unavailable: The store cannot be reached.
        """
        store = self._attached()

        def change(record: Record) -> Record:
            if not record.done:
                raise OperationNotFound(name)
            debts = Debts.of(record.notify).again(store.now())
            if not debts.owed:  # nothing was given up, or all is due already
                return record
            return record.next_version(notify=debts.to_text(), notify_at=debts.next_due)

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
        check_takes("lookup", lookup, 2, "a function of a described operation and its caller")
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
