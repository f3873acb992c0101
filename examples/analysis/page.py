"""The demo page, the samples that it offers, and what to draw of a result; knows no framework."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import attrs

from examples.analysis.router import NAMES
from lro import Code, Service, StatusError
from lro.errors import RouteNotFound
from lro.http import HttpReply, json_reply

PATHS: Final = re.compile(r"/(?:|page\.css|page\.js|(?:samples|pictures|drawings)/.*)")
FOLDER: Final = Path(__file__).parent / "page"
TYPES: Final = {"page.html": "text/html", "page.css": "text/css", "page.js": "text/javascript"}
GUARDS: Final = (
    (
        "content-security-policy",
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
        "require-trusted-types-for 'script'; trusted-types 'none'",
    ),
    ("x-content-type-options", "nosniff"),
    ("referrer-policy", "no-referrer"),
    ("cross-origin-opener-policy", "same-origin"),
    ("cross-origin-resource-policy", "same-origin"),
    ("cache-control", "no-store"),
)


def answer(service: Service, path: str, query: str) -> HttpReply:
    """The reply to a GET of a path that ``PATHS`` matches; it takes long enough for a thread.

    ``reference=WIDTHxHEIGHT`` in the query is the size of the second picture of verify.

    Raises:
        LroError: There is no such thing, or the operation has no response to draw.
    """
    match path[1:].split("/", 1):
        case ["" | "page.css" | "page.js" as name]:
            name = name or "page.html"
            kind = ("content-type", f"{TYPES[name]}; charset=utf-8")
            return HttpReply(200, (kind, *GUARDS), (FOLDER / name).read_bytes())
        case ["drawings", name]:
            from examples.analysis.drawing import draw

            operation, found = service.get(name), re.search(r"reference=(\d{1,5})x(\d{1,5})", query)
            if operation.response is None:
                raise StatusError(Code.FAILED_PRECONDITION, f"{name} has no response to draw")
            size = (int(found[1]), int(found[2])) if found else None
            drawing = draw(service.types.unpack_any(operation.response), size)
            return json_reply(200, attrs.asdict(drawing))
        case ["samples", name] if name in NAMES:
            from examples.analysis.samples import sample

            return json_reply(200, service.types.dump(sample(name)))
        case ["pictures", name]:
            from examples.analysis.samples import PICTURES, picture

            if name in PICTURES:
                return HttpReply(200, (("content-type", "image"), *GUARDS), picture(name).content)
    raise RouteNotFound(path)
