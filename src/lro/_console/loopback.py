"""Checks that a request comes from this machine, as far as a server can know."""

from __future__ import annotations

import ipaddress
import re
from typing import Final

from lro.errors import PermissionDenied
from lro.http import HttpRequest, read_origin

_HOST: Final = re.compile(r"(?P<name>\[[0-9a-f:.]+\]|[^:\[\]]+)(?::[0-9]{1,5})?", re.IGNORECASE)

_FORWARDED: Final = frozenset({"forwarded", "via", "x-real-ip"})
_FORWARDING: Final = "x-forwarded-"

_ONLY: Final = "this console has no authenticate=, so it answers only calls of this machine"
_WAY: Final = (
    "say who may see it: authenticate=, a function that gives the caller of a request or raises"
    " Unauthenticated"
)


def is_loopback(text: str) -> bool:
    """Return True for a loopback address, including an IPv4 loopback address within IPv6."""
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return bool((mapped or address).is_loopback)


def is_loopback_host(host: str) -> bool:
    """Return True if the header ``Host`` names this machine: ``localhost`` or a loopback address.

    An attacker's name server can resolve any other name to a loopback address, so that a web page
    under that name reaches this server (DNS rebinding).
    """
    name = name_of_host(host)
    return name == "localhost" or is_loopback(name)


def name_of_host(host: str) -> str:
    """Return the name or address in a header ``Host``, without a port; empty if it has no name."""
    found = _HOST.fullmatch(host)
    return found["name"].strip("[]").lower() if found else ""


def check_loopback(request: HttpRequest) -> None:
    """Refuse a request that does not come from this machine, or may have come through a proxy.

    A peer without an IP address is refused too, because such a peer is on a Unix socket, and is
    usually a proxy.

    Raises:
        PermissionDenied: The message says why, and how to admit callers.
    """
    why = ""
    headers = request.headers
    proxied = [one for one in headers if one in _FORWARDED or one.startswith(_FORWARDING)]
    origin = headers.get("origin")
    if not is_loopback(request.peer):
        why = f"the call comes from {request.peer or 'an unknown address'}"
    elif proxied:
        why = f"the call has come through a proxy, which sends {proxied[0][:40]}"
    elif not is_loopback_host(headers.get("host", "")):
        why = f"the call is for the host {headers.get('host', '')[:80]!r}"
    elif origin is not None and not is_loopback_host((read_origin(origin) or ("", ""))[1]):
        why = f"the call is from a page of {origin[:80]!r}"
    if why:
        raise PermissionDenied(f"{_ONLY}; {why}. To let callers in, {_WAY}")
