"""Serves the demo page, its samples, and drawings of results, without a web framework."""

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
TYPES: Final = {"": "text/html", "page.css": "text/css", "page.js": "text/javascript"}
HEADERS: Final = """
content-security-policy: default-src 'none'; script-src 'self'; style-src 'self'; \
img-src 'self' data:; connect-src 'self'; base-uri 'none'; form-action 'none'; \
frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'
cache-control: no-store
cross-origin-opener-policy: same-origin
cross-origin-resource-policy: same-origin
referrer-policy: no-referrer
x-content-type-options: nosniff"""


def answer(service: Service, path: str, query: str) -> HttpReply:
    """Answer a GET of a path that ``PATHS`` matches. This blocks, so call it in a thread."""
    if (name := path[1:]) in TYPES:
        return _reply(TYPES[name], (FOLDER / (name or "page.html")).read_bytes())
    from examples.analysis import demo, drawing  # a slow import, for which the page must not wait

    match name.split("/", 1):
        case ["pictures", name] if name in demo.PICTURES:
            return _reply("image", demo.picture(name).content)
        case ["samples", name] if name in NAMES:
            return json_reply(200, service.types.dump(demo.sample(name)))
        case ["drawings", name]:
            found = re.fullmatch(r"reference=(\d{1,5})x(\d{1,5})", query)
            operation = service.get(name)
            if operation.response is None:
                raise StatusError(Code.FAILED_PRECONDITION, f"{name} has no response to draw")
            size = (int(found[1]), int(found[2])) if found else None
            result = service.types.unpack_any(operation.response)
            return json_reply(200, attrs.asdict(drawing.draw(result, size)))
    raise RouteNotFound(path)


def _reply(kind: str, content: bytes) -> HttpReply:
    return HttpReply(200, (("content-type", kind), *re.findall("(.+?): (.+)", HEADERS)), content)
