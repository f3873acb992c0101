"""Addresses of servers: what may be shown of them, and when two are one server's."""

from __future__ import annotations

import re
from typing import Final

_ADDRESS: Final = re.compile(
    r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*://|)(?:[^/?#]*@)?(?P<rest>[^?#]*).*", re.DOTALL
)
_PORT: Final = {"http://": ":80", "https://": ":443"}
_DOTS: Final = frozenset({".", ".."})


def public_address(url: str) -> str:
    """A server's URL without what may be secret in it: user info, query and fragment."""
    found = _ADDRESS.fullmatch(url)
    assert found is not None  # every part may be empty
    return found["scheme"] + found["rest"]


def server_of(address: str) -> str:
    """The scheme, host and port of an address: where those of two differ, so do the servers."""
    found = _ADDRESS.fullmatch(address)
    assert found is not None  # every part may be empty
    scheme, rest = found["scheme"].lower(), found["rest"]
    if scheme.startswith("grpc"):
        return scheme + rest.lower()  # a target of gRPC has a form of its own
    host = rest.partition("/")[0].lower()
    return scheme + host.removesuffix(_PORT.get(scheme, "")).removesuffix(":")


def dotted(path: str) -> bool:
    """Return whether a segment is ``.`` or ``..``, which HTTP libraries resolve."""
    return not _DOTS.isdisjoint(path.split("/"))
