"""Raw paths: as a server hands them over, as seen from where an application is mounted.

Routing needs the path as it stands on the wire, because ``%2F`` and ``%3A`` are not ``/`` and ``:``
(spec §5.2, §5.4). Servers give it beside the decoded one, which is what frameworks cut and rewrite.
"""

from __future__ import annotations

from typing import Final
from urllib.parse import quote, unquote

from lro._model.http_rules import MAX_PATH

_SAFE: Final = "/:@!$&'()*+,;=-._~"


def wire_text(data: bytes) -> str:
    """Bytes of a request line as text; what is not UTF-8 becomes lone surrogates.

    The readers of paths and queries refuse those (spec §5.3(3)).
    """
    return data.decode("utf-8", "surrogateescape")


def raw_form(raw: str, decoded: str) -> str:
    """The raw path of a decoded one: ``raw`` if it says the same, else the decoded one encoded.

    They differ where something on the way rewrote the path, or where the server gives no raw one.
    Bytes that are not UTF-8 may have been decoded in either of two ways. What is too long for any
    route is not decoded, and given back as it is.
    """
    longest = max(raw, decoded, key=len)
    if len(longest) > MAX_PATH:
        return longest
    if raw and decoded in (unquote(raw, errors=how) for how in ("surrogateescape", "replace")):
        return raw
    return quote(decoded, safe=_SAFE, errors="surrogatepass")  # refused as no UTF-8


def strip_mount(path: str, mount: str) -> str | None:
    """The raw path below a mount point, which is decoded; None if it is not below.

    The mount point itself is ``/``. A mount point ends at a segment boundary.
    """
    if not mount:
        return path
    if len(path) > MAX_PATH:
        return None
    end = -1
    while end < len(path):
        end = path.find("/", end + 1)
        end = len(path) if end < 0 else end
        seen = unquote(path[:end], errors="surrogateescape")
        if seen == mount:
            return path[end:] or "/"
        if len(seen) > len(mount):
            break
    return None
