"""Hide the secrets in addresses of servers, and compare addresses."""

from __future__ import annotations

import re
from typing import Final

_ADDRESS: Final = re.compile(
    r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*://|)(?:[^/?#]*@)?(?P<rest>[^?#]*).*", re.DOTALL
)
_PORT: Final = {"http://": ":80", "https://": ":443"}
_DOTS: Final = frozenset({".", ".."})


def public_address(url: str) -> str:
    """Return a server's URL without the parts that may be secret: user info, query, fragment."""
    found = _ADDRESS.fullmatch(url)
    assert found is not None  # each group can match an empty text
    return found["scheme"] + found["rest"]


def server_of(address: str) -> str:
    """Return the scheme, host and port of an address, which identify the server."""
    found = _ADDRESS.fullmatch(address)
    assert found is not None  # each group can match an empty text
    scheme, rest = found["scheme"].lower(), found["rest"]
    if scheme.startswith("grpc"):
        return scheme + rest.lower()  # a gRPC target is not always a URL
    host = rest.partition("/")[0].lower()
    return scheme + host.removesuffix(_PORT.get(scheme, "")).removesuffix(":")


def dotted(path: str) -> bool:
    """Return True if a segment of the path is ``.`` or ``..``, which HTTP libraries resolve."""
    return not _DOTS.isdisjoint(path.split("/"))
