"""The options of ``Webhooks``, checked."""

from __future__ import annotations

import random
import re
import ssl
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Final, TypeAlias, TypedDict

import attrs
import httpx

from lro import Operation
from lro._webhooks.endpoints import SIGNED, check_secrets
from lro._webhooks.payloads import Format
from lro._webhooks.schedule import SCHEDULE
from lro._webhooks.transport import Resolve, system_addresses
from lro.adapters import Endpoint
from lro.errors import (
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
"""Most bytes that a start's endpoints may take in the operation's record."""

TIMEOUT_SECONDS: Final = 20.0
CONNECTIONS: Final = 8


@attrs.frozen
class EndpointDisabled:
    """The argument of ``on_disabled``: an endpoint that should not be called again.

    ``reason`` is GONE if the receiver answered 410, or FAILING if a delivery failed for the whole
    schedule. ``name`` is the name of the operation. The service keeps calling the endpoint until
    the application disables it.
    """

    endpoint: Endpoint
    reason: str
    name: str


Lookup: TypeAlias = Callable[[Operation, str], Iterable[Endpoint]]


class WebhookKeywords(TypedDict, total=False):
    """The keyword arguments of ``Webhooks``."""

    lookup: Lookup | None
    secrets: Sequence[str]
    on_disabled: Callable[[EndpointDisabled], object] | None
    allow_private: bool
    allow_http: bool
    ports: Collection[int] | None
    proxy: str | None
    ssl_context: ssl.SSLContext | None
    resolve: Resolve
    formats: Mapping[str, Format] | None
    schedule: Sequence[float]
    timeout: float
    connections: int
    clock: Callable[[], float]
    random: Callable[[], float]


@attrs.frozen(kw_only=True, eq=False)
class WebhookOptions:
    """The options of ``Webhooks``.

    Raises:
        DeclarationError: An option is not of its type, or out of its bounds.
        InvalidArgument: A secret cannot be used.
    """

    lookup: Lookup | None = None
    secrets: Sequence[str] = attrs.field(default=(), repr=False)
    on_disabled: Callable[[EndpointDisabled], object] | None = None
    allow_private: bool = False
    allow_http: bool = False
    ports: Collection[int] | None = (443,)
    proxy: str | None = attrs.field(default=None, repr=False)
    ssl_context: ssl.SSLContext | None = None
    resolve: Resolve = system_addresses
    formats: Mapping[str, Format] | None = None
    schedule: Sequence[float] = SCHEDULE
    timeout: float = TIMEOUT_SECONDS
    connections: int = CONNECTIONS
    clock: Callable[[], float] = time.monotonic
    random: Callable[[], float] = random.random

    def __attrs_post_init__(self) -> None:
        self._check_functions()
        self._check_sending()
        check_seconds("timeout", self.timeout, most=60.0)
        check_count("connections", self.connections, most=100)
        check_texts("secrets", self.secrets)
        check_secrets("secrets", self.secrets)
        wanted = "several seconds, in a tuple or list"
        check_instance("schedule", self.schedule, (list, tuple), wanted)
        for seconds in self.schedule:
            check_seconds("schedule", seconds, zero=True, most=30 * 86_400.0)

    def _check_functions(self) -> None:
        if self.lookup is not None:
            check_plain_function("lookup", self.lookup)
            wanted = "a function of an operation and its caller"
            check_takes("lookup", self.lookup, 2, wanted)
        if self.on_disabled is not None:
            check_plain_function("on_disabled", self.on_disabled)
            check_takes("on_disabled", self.on_disabled, 1, "a function of an EndpointDisabled")
        check_takes("resolve", self.resolve, 2, "a function of a host and a port")
        check_function("clock", self.clock)
        check_function("random", self.random)
        formats = {} if self.formats is None else self.formats
        check_instance("formats", formats, Mapping, "functions by the names of formats")
        wanted = "a function of an operation, an endpoint and an event"
        for name, function in formats.items():
            check_text("formats", name, empty=False)
            new = name not in SIGNED
            check("formats", name, "a name that this library does not have", fine=new)
            check_takes("formats", function, 3, wanted)

    def _check_sending(self) -> None:
        check_flag("allow_private", self.allow_private)
        check_flag("allow_http", self.allow_http)
        if self.ports is not None:
            wanted = "several ports, in a tuple or list, or None"
            check_instance("ports", self.ports, Collection, wanted)
            for port in self.ports:
                check_count("ports", port, most=65_535)
        if self.proxy is not None:
            check_text("proxy", self.proxy, empty=False)
            fine = _is_proxy(str(self.proxy))
            check("proxy", "another text", "a URL such as 'http://egress:4750'", fine=fine)
        if self.ssl_context is not None:
            check_instance("ssl_context", self.ssl_context, ssl.SSLContext, "an ssl.SSLContext")


def _is_proxy(text: str) -> bool:
    try:
        url = httpx.URL(text)
        url.host.encode("idna")  # the resolver encodes it too
        fine = url.scheme in ("http", "https") and re.fullmatch(r"[^\s%]+", url.host) is not None
        return fine and (url.port or 0) < 1 << 16 and not (url.query or url.fragment)
    except (httpx.InvalidURL, ValueError):
        return False
