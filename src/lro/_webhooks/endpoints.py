"""Endpoints: checks, subscriptions to events, and their JSON in a record."""

from __future__ import annotations

import hashlib
import ipaddress
import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any, Final

import attrs
import httpx

from lro import State
from lro._webhooks.addresses import is_global
from lro.adapters import EVENTS, Endpoint, Record
from lro.errors import DeclarationError, InvalidArgument, got
from lro.wire import WEBHOOK_HEADERS, webhook_key

MAX_URL: Final = 2048
MAX_ENDPOINTS: Final = 10
"""Most endpoints that a start may name."""
MAX_HEADERS: Final = 20
MAX_HEADER: Final = 4096
"""Most characters in the value of a header that an endpoint adds to its webhooks."""
MAX_SECRETS: Final = 5

STANDARD: Final = "standard"
CLOUDEVENTS: Final = "cloudevents"
SIGNED: Final = frozenset({STANDARD, CLOUDEVENTS})
"""The formats that must be signed, because receivers can trust only signed events."""

_EVENT_OF: Final[Mapping[State, str]] = {
    State.SUCCEEDED: EVENTS[0],
    State.FAILED: EVENTS[1],
    State.CANCELLED: EVENTS[2],
}
_ID: Final = re.compile(r"[A-Za-z0-9_-]{1,128}", re.ASCII)
_TOKEN: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,200}", re.ASCII)
_VALUE: Final = re.compile(r"[\x21-\x7e](?:[\x20-\x7e]*[\x21-\x7e])?", re.ASCII)
_OURS: Final = frozenset(
    {"connection", "content-length", "content-type", "host", "proxy-authorization"}
    | {"transfer-encoding", "user-agent"}
    | {*WEBHOOK_HEADERS}
)
_SECRET_BYTES: Final = range(24, 65)
"""Valid lengths of a secret (Standard Webhooks 1.0.0, "Signature scheme": 192 to 512 bits)."""


@attrs.frozen(kw_only=True)
class EndpointRules:
    """Allowed schemes, ports and formats of endpoints, and secrets for endpoints that have none."""

    secrets: tuple[str, ...] = attrs.field(default=(), repr=False)
    allow_private: bool = False
    allow_http: bool = False
    ports: frozenset[int] | None = frozenset({443})
    """None allows any port."""
    formats: frozenset[str] = SIGNED
    hints: tuple[str, str, str] = (
        "allow_http=True allows http",
        "ports= allows others",
        "allow_private=True allows it",
    )
    """The endings of error messages, which say how to allow other schemes, ports and addresses."""

    def checked(self, at: str, endpoint: Endpoint) -> Endpoint:
        """Check an endpoint, and return it with its id and its secrets; errors name it as ``at``.

        Raises:
            InvalidArgument: The endpoint is not allowed. No error shows a secret.
        """
        endpoint = self.with_secrets(at, endpoint)
        id = endpoint.id or derived_id(endpoint.url)
        if _ID.fullmatch(id) is None:
            text = "must be 1 to 128 of the characters A-Z a-z 0-9 _ -"
            raise InvalidArgument(f"{at}.id", text)
        return attrs.evolve(endpoint, id=id)

    def with_secrets(self, at: str, endpoint: Endpoint) -> Endpoint:
        """Check an endpoint except for its id, and return it with the secrets that sign its events.

        Raises:
            InvalidArgument: As for :meth:`checked`.
        """
        _check_texts(at, endpoint)
        self._check_url(f"{at}.url", endpoint.url)
        _check_choice(f"{at}.format", endpoint.format, self.formats)
        _check_choice(f"{at}.payload", endpoint.payload, ("thin", "full"))
        for event in endpoint.events:
            _check_choice(f"{at}.events", event, EVENTS)
        _check_headers(f"{at}.headers", endpoint.headers)
        secrets = tuple(endpoint.secrets) or self.secrets
        check_secrets(f"{at}.secrets", secrets)
        if not secrets and endpoint.format in SIGNED:
            raise InvalidArgument(f"{at}.secrets", "must have one, by which receivers know us")
        return attrs.evolve(endpoint, secrets=secrets)

    def _check_url(self, at: str, text: str) -> None:
        try:
            url = httpx.URL(text)
            host, port, _ = url.host, url.port, url.netloc  # netloc may raise, too
        except (httpx.InvalidURL, ValueError):  # ValueError: an IDNA name or non-ASCII text
            raise InvalidArgument(at, "is not a URL") from None
        schemes = {"https", "http"} if self.allow_http else {"https"}
        if url.scheme not in schemes or not host:
            wanted = "http or https" if self.allow_http else "https"
            hint = "" if self.allow_http else f"; {self.hints[0]}"
            raise InvalidArgument(at, f"must be an absolute {wanted} URL{hint}")
        if url.userinfo:
            raise InvalidArgument(at, "must not have a user name or password")
        port = port or {"https": 443, "http": 80}[url.scheme]
        if self.ports is not None and port not in self.ports:
            raise InvalidArgument(at, f"must not have port {port}; {self.hints[1]}")
        if not self.allow_private and _is_address(host) and not is_global(host):
            text = f"must not have an address that is not global; {self.hints[2]}"
            raise InvalidArgument(at, text)


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _check_texts(at: str, endpoint: Endpoint) -> None:
    for name in ("url", "id", "format", "payload"):
        value = getattr(endpoint, name)
        if not isinstance(value, str) or len(value) > MAX_URL:
            text = f"must be a text of at most {MAX_URL} characters"
            raise InvalidArgument(f"{at}.{name}", text)
    for name in ("secrets", "events", "methods"):
        value = getattr(endpoint, name)
        fine = isinstance(value, Collection) and not isinstance(value, (str, bytes))
        if not fine or not all(isinstance(one, str) for one in value):
            raise InvalidArgument(f"{at}.{name}", "must be several texts, in a tuple or list")


def _check_choice(at: str, value: str, known: Collection[str]) -> None:
    if value not in known:
        raise InvalidArgument(at, f"must be one of {', '.join(sorted(known))}, got {got(value)}")


def _check_headers(at: str, headers: object) -> None:
    if not isinstance(headers, Mapping) or len(headers) > MAX_HEADERS:
        raise InvalidArgument(at, f"must be at most {MAX_HEADERS} texts by name")
    for name, value in headers.items():
        if not isinstance(name, str) or _TOKEN.fullmatch(name) is None or name.lower() in _OURS:
            raise InvalidArgument(at, f"{got(name)} cannot be the name of one")
        fine = isinstance(value, str) and len(value) <= MAX_HEADER
        if not fine or _VALUE.fullmatch(value) is None:
            text = f"the value of {name} must be at most {MAX_HEADER} printable ASCII characters"
            raise InvalidArgument(at, text)


def check_secrets(at: str, secrets: Collection[str]) -> None:
    """Check the secrets of an endpoint.

    Raises:
        InvalidArgument: A secret is not base64 of 24 to 64 bytes, or there are too many secrets.
    """
    if len(secrets) > MAX_SECRETS:
        raise InvalidArgument(at, f"must be at most {MAX_SECRETS}")
    for secret in secrets:
        try:
            fine = len(webhook_key(secret)) in _SECRET_BYTES
        except DeclarationError:
            fine = False
        if not fine:
            raise InvalidArgument(at, "must each be base64 of 24 to 64 bytes, after whsec_")


def derived_id(url: str) -> str:
    """Return an id for an endpoint that has none; the id does not reveal the URL."""
    return f"ep_{hashlib.sha256(url.encode('utf-8', 'surrogatepass')).hexdigest()[:24]}"


def event_of(record: Record) -> str:
    """Return the type of the event for an operation's end; empty if it has not ended."""
    return _EVENT_OF.get(record.state, "")


def is_subscribed(endpoint: Endpoint, record: Record, renamed: Mapping[str, str]) -> bool:
    """Return True if an endpoint is notified of the end of a record's operation.

    The endpoint may name the method as the record does, or by its present name in ``renamed``.
    """
    if event_of(record) not in endpoint.events:
        return False
    names = {record.method, renamed.get(record.method, record.method)}
    return not endpoint.methods or not names.isdisjoint(endpoint.methods)


def endpoint_to_json(endpoint: Endpoint) -> dict[str, Any]:
    """Return the fields of an endpoint that differ from the defaults, for a record."""
    kept = attrs.asdict(endpoint, recurse=False)
    for name in ("secrets", "events", "methods"):
        kept[name] = list(kept[name])
    kept["headers"] = dict(kept["headers"])
    plain = {**attrs.asdict(Endpoint(url=""), recurse=False), "events": list(EVENTS)}
    return {name: value for name, value in kept.items() if value and value != plain[name]}


def endpoints_from_json(kept: list[dict[str, Any]]) -> Iterator[Endpoint]:
    """Read the endpoints that a record keeps."""
    for one in kept:
        fields = dict(one)
        for name in ("secrets", "events", "methods"):
            if name in fields:
                fields[name] = tuple(fields[name])
        yield Endpoint(**fields)
