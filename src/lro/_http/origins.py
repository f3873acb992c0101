"""The rule by which requests from pages of other sites are refused (spec §5.9(5)).

A browser sends what it holds for a server, such as cookies and client certificates, with every
request to it, whichever site's page asks for that. So a call that changes something needs more:
the page has to be this server's own, or of a site that is trusted.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Final

from lro._base.arguments import check, check_texts
from lro._base.errors import CrossSiteRequest

CHANGING: Final = frozenset({"POST", "PUT", "PATCH", "DELETE"})
"""The methods that the rule is about; the others change nothing."""

MAX_ORIGIN: Final = 300
"""The longest origin that is read: a host name has at most 253 characters."""

_ORIGIN: Final = re.compile(
    r"(?P<scheme>[a-z][a-z0-9+.-]*)://"
    r"(?P<host>[a-z0-9._-]+|\[[0-9a-f:.]+\])"
    r"(?::(?P<port>[1-9][0-9]{0,4}))?"
)
_DEFAULT_PORTS: Final = {"http": "80", "https": "443"}
_SAME_SITE: Final = frozenset({"same-origin", "none"})


def read_origin(text: str) -> tuple[str, str] | None:
    """The scheme and authority of an origin, in lower case and without a default port.

    None for ``null``, for several origins, and for what is more than an origin: a path, a user.
    """
    found = _ORIGIN.fullmatch(text.lower()) if len(text) <= MAX_ORIGIN else None
    if found is None:
        return None
    scheme, host, port = found["scheme"], found["host"], found["port"]
    default = port is None or port == _DEFAULT_PORTS.get(scheme)
    return scheme, host if default else f"{host}:{port}"


def trusted(trusted_origins: Collection[str]) -> frozenset[tuple[str, str]]:
    """The origins that an application trusts, as :func:`read_origin` reads them.

    Raises:
        DeclarationError: One is not an origin, ``scheme://host`` or ``scheme://host:port``.
    """
    check_texts("trusted_origins", trusted_origins)
    found = set()
    for text in trusted_origins:
        wanted = "origins such as 'https://app.example.com', without a path"
        if text == "*":
            wanted += ", each by its name ('*' would let every site in)"
        origin = read_origin(text)
        check("trusted_origins", text, wanted, fine=origin is not None)
        assert origin is not None
        found.add(origin)
    return frozenset(found)


def check_site(
    headers: Mapping[str, str],
    scheme: str,
    trusted_origins: frozenset[tuple[str, str]],
) -> None:
    """Refuse the call of a page of another site, unless that site is trusted.

    For calls whose method is one of ``CHANGING``. ``scheme`` is that of the connection, as the
    server knows it. Other programs than browsers send no ``Sec-Fetch-Site`` and no ``Origin``, and
    pass.

    Raises:
        CrossSiteRequest: The page is of another site, which is not trusted.
    """
    site, text = headers.get("sec-fetch-site"), headers.get("origin")
    if site in _SAME_SITE or (site is None and text is None):
        return
    origin = read_origin(text or "")
    if origin in trusted_origins:
        return
    # Browsers send Sec-Fetch-Site to https and localhost only, and old ones never do.
    if site is None and origin is not None and _is_own(origin, scheme, headers.get("host", "")):
        return
    raise CrossSiteRequest(text or "")


def _is_own(origin: tuple[str, str], scheme: str, host: str) -> bool:
    theirs = origin[0]
    # Behind a proxy that ends TLS, the server knows of http while the page is of https. That is
    # let pass: it is as safe as the server's own. A page of http never passes at https, since
    # a person who controls the network of a caller can write such a page.
    if theirs != scheme and (theirs, scheme) != ("https", "http"):
        return False
    return read_origin(f"{theirs}://{host}") == origin
