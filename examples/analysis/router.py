"""Routes requests of the ``/v1`` router (spec §10); needs no web framework."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Final, TypeAlias, TypeVar
from urllib.parse import unquote

import attrs

from lro.errors import HttpMethodNotAllowed, MalformedRequest, MethodNotSupported, RouteNotFound
from lro.types import Json

H = TypeVar("H")

NAMES: Final = (
    "detect",
    "verify",
    "compare",
    "segment",
    "classify",
    "authenticate",
    "score",
    "explain",
    "extract",
    "track",
)
"""The ten sub-routers, in the order of spec §10.1."""

ENDPOINTS: Final = tuple(f"POST /v1/{name}" for name in NAMES)
VERSION: Final = "1.0.0"
OPERATIONAL: Final = "operational"
HEALTH_ALLOW: Final = ("GET", "HEAD", "OPTIONS")

_BAD_ESCAPE: Final = re.compile(r"%(?![0-9A-Fa-f]{2})")


@attrs.frozen
class ToRouter:
    """A route to a sub-router, for any HTTP method; ``rest`` is the raw path after the name."""

    name: str
    rest: str


@attrs.frozen
class ToHealth:
    """A route to the health report; ``head`` is true for HEAD, whose reply has no body."""

    head: bool


@attrs.frozen
class Allowed:
    """A route for OPTIONS, which is answered with 204 and these methods in ``Allow``."""

    allow: tuple[str, ...]


Answer: TypeAlias = ToRouter | ToHealth | Allowed


def route(method: str, path: str) -> Answer:
    """Return the route of a method and a raw path without query (spec §10.2, §10.3)."""
    _check_escapes(path)
    # A prefix ends at a raw slash, so split before decoding.
    first, *raw = path.split("/", 3)
    prefix = [unquote(segment) for segment in raw[:2]]
    if first or len(prefix) < 2 or prefix[0] != "v1":
        raise RouteNotFound(path)
    below = raw[2:]
    if prefix[1] in NAMES:
        return ToRouter(prefix[1], "".join(f"/{rest}" for rest in below))
    if prefix[1] != "health" or below:
        raise RouteNotFound(path)
    if method == "OPTIONS":
        return Allowed(HEALTH_ALLOW)
    if method not in ("GET", "HEAD"):
        raise HttpMethodNotAllowed(method, path, HEALTH_ALLOW)
    return ToHealth(head=method == "HEAD")


def default_answer(method: str, to: ToRouter, handler: H | None) -> H:
    """Return the handler of a sub-router's POST endpoint, by the rules of the default sub-router.

    The root of a sub-router is ``""`` and ``"/"``, which accept only POST (spec §10.2)."""
    path = f"/v1/{to.name}{to.rest}"
    if to.rest not in ("", "/"):
        raise RouteNotFound(path)
    if method != "POST":
        raise HttpMethodNotAllowed(method, path, ("POST",))
    if handler is None:
        raise MethodNotSupported(f"POST /v1/{to.name}")
    return handler


def health(
    now: datetime, ok: bool = True, status: str = OPERATIONAL
) -> tuple[int, dict[str, Json]]:
    """Return the HTTP status and the JSON body of the health report (spec §10.3).

    ``now`` is the time of the response. ``status`` is ``operational`` if and only if ``ok``."""
    if now.tzinfo is None:
        raise ValueError(f"the moment of the response needs a time zone, got {now!r}")
    if ok != (status == OPERATIONAL):
        raise ValueError(f"a router whose ok is {ok} cannot be {status!r}")
    timestamp = now.astimezone(UTC).replace(tzinfo=None).isoformat(timespec="milliseconds")
    body: dict[str, Json] = {
        "ok": ok,
        "version": VERSION,
        "endpoints": list(ENDPOINTS),
        "status": status,
        "timestamp": f"{timestamp}Z",
    }
    return (200 if ok else 503), body


def _check_escapes(path: str) -> None:
    if _BAD_ESCAPE.search(path):
        raise MalformedRequest("path", "it has a malformed percent-escape")
    try:
        path.encode()  # fails for lone surrogates, which stand for bytes that are not UTF-8
        unquote(path, errors="strict")
    except UnicodeError:
        raise MalformedRequest("path", "its bytes are not UTF-8") from None
