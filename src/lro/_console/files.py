"""The files of the page, read and packed once, and the headers of all replies of the console."""

from __future__ import annotations

import functools
import gzip
import hashlib
import re
from collections.abc import Collection, Mapping
from importlib import resources
from importlib.resources.abc import Traversable
from typing import Final

import attrs

from lro.errors import check, check_texts
from lro.http import HttpReply, read_origin

SHELL: Final = "index.html"
"""The HTML page, which contains no data, and refers to the other files."""

NOSNIFF: Final = ("x-content-type-options", "nosniff")
_YEAR: Final = "public, max-age=31536000, immutable"
_LEVEL: Final = 9
_TYPES: Final = {
    "html": "text/html",
    "css": "text/css",
    "js": "text/javascript",
    "svg": "image/svg+xml",
}
_LEXEMES: Final = re.compile(
    rb"""("(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*'|`(?:\\.|[^`\\])*`)"""
    rb"|/\*.*?\*/\s*|//[^\n]*\s*"
    rb"|(/(?! )(?:\\.|\[(?:\\.|[^\]\\])*\]|[^/\\\[\n])+/[a-z]*)"
    rb"| *([-=+*/?:,;{}()<>&|!]) *|(\n)\s+",
    re.DOTALL,
)
"""Matches string literals, comments, regular expressions, spaced operators, and indentation.

So scripts must have a space after each division sign, and no string literal in a template literal.
"""
_SIGNS: Final = re.compile(rb"""("[^"]*")|/\*.*?\*/\s*|\s*([{};,])\s*|(:) |\n\s*""", re.DOTALL)
_NO_GZIP: Final = re.compile(r"gzip\s*;\s*q=0(\.0*)?\s*$")


def secure_headers(frame: Collection[str] = ()) -> tuple[tuple[str, str], ...]:
    """Return the headers of every reply; pages of the origins in ``frame`` may frame the console.

    The page loads nothing from other sites, no text becomes a script or a style (CSP with Trusted
    Types), and no other site can refer to the page's window.

    Raises:
        DeclarationError: A value of ``frame`` is neither ``self`` nor an origin.
    """
    check_texts("frame", frame)
    wanted = "'self', or origins such as 'https://portal.example.com', without a path"
    for text in frame:
        check("frame", text, wanted, fine=text == "self" or read_origin(text) is not None)
    framed = " ".join("'self'" if text == "self" else text for text in frame) or "'none'"
    policy = (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
        f"connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors {framed}; "
        "require-trusted-types-for 'script'; trusted-types 'none'"
    )
    return (
        ("content-security-policy", policy),
        NOSNIFF,
        ("referrer-policy", "no-referrer"),
        ("cross-origin-opener-policy", "same-origin"),
        ("cross-origin-resource-policy", "same-origin"),
        ("permissions-policy", ", ".join(f"{feature}=()" for feature in _FEATURES)),
    )


_FEATURES: Final = (
    "accelerometer",
    "camera",
    "geolocation",
    "gyroscope",
    "magnetometer",
    "microphone",
    "midi",
    "payment",
    "usb",
)
"""Permissions that web pages can ask for, which the console denies itself."""


@attrs.frozen
class PackedFile:
    """A file as it is sent, plain and gzipped, with the headers for both forms."""

    content: bytes
    packed: bytes
    headers: tuple[tuple[str, str], ...]
    etag: str

    def reply(self, headers: Mapping[str, str]) -> HttpReply:
        """Reply to a GET with these headers: 304 if the caller has the file already."""
        known = headers.get("if-none-match", "").split(",")
        if any(one.strip() == self.etag for one in known):
            return HttpReply(304, self.headers)
        if takes_gzip(headers.get("accept-encoding", "")):
            return HttpReply(200, (*self.headers, ("content-encoding", "gzip")), self.packed)
        return HttpReply(200, self.headers, self.content)


def takes_gzip(accepted: str) -> bool:
    """Return True if the header ``Accept-Encoding`` allows gzip (RFC 9110 §12.5.3)."""
    for one in accepted.lower().split(","):
        if one.strip().partition(";")[0].strip() == "gzip":
            return not _NO_GZIP.match(one.strip())
    return False


def _packed(name: str, content: bytes, caching: str) -> PackedFile:
    kind = _TYPES[name.rpartition(".")[2]]
    etag = f'W/"{_hash(content)}"'  # weak, because the plain and the gzipped form have the same tag
    headers = (
        ("content-type", f"{kind}; charset=utf-8"),
        ("cache-control", caching),
        ("etag", etag),
        ("vary", "accept-encoding"),
    )
    # Leave out the timestamp, so that each process sends the same bytes.
    return PackedFile(content, gzip.compress(content, _LEVEL, mtime=0), headers, etag)


def _hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


def _whole(one: Traversable) -> bytes:
    """Return a file, or the concatenated files of a folder: a script is written in parts."""
    if not one.is_dir():
        return one.read_bytes()
    parts = sorted(one.iterdir(), key=lambda part: part.name)
    return b"".join(part.read_bytes() for part in parts)


def _sent(name: str, content: bytes) -> bytes:
    """Return a script or a style sheet as it is sent: without comments and unnecessary spaces."""
    kept = {"js": _LEXEMES, "css": _SIGNS}.get(name.rpartition(".")[2])
    return (
        content
        if kept is None
        else kept.sub(lambda one: one[one.lastindex or 0] if one.lastindex else b"", content)
    )


@functools.cache
def page_files() -> Mapping[str, PackedFile]:
    """Return the files by path below the console: ``/`` is the page.

    The names of the other files, by which the page refers to them, contain a hash of the content.
    So browsers can cache these files for a year, and still load a new release at once.
    """
    assets = resources.files("lro._console").joinpath("assets")
    found = {one.name: _sent(one.name, _whole(one)) for one in assets.iterdir()}
    page = found.pop(SHELL)
    files = {}
    for name, content in sorted(found.items()):
        stem, _, suffix = name.rpartition(".")
        hashed = f"{stem}.{_hash(content)}.{suffix}"
        page = page.replace(f'"{name}"'.encode(), f'"{hashed}"'.encode())
        files[f"/{hashed}"] = _packed(name, content, _YEAR)
    return {"/": _packed(SHELL, page, "no-cache"), **files}
