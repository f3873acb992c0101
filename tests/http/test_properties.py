"""Any request gets a well-formed reply, and never a 500."""

from __future__ import annotations

import io
import json
from datetime import timedelta
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

import lro
from lro import asgi, wsgi
from lro.http import HttpReply, Start
from tests.http.counting_service import CountMetadata, build, details_of
from tests.http.test_asgi import part, scope_of, serve
from tests.http.test_starts import read_image

ODD = st.sampled_from('\ud800\udcff\x00\n\x7f\xffü٣%/:;=&+,"\\[]{} ')
ANY = st.text(ODD | st.characters(), max_size=12)
METHODS = st.sampled_from(["GET", "HEAD", "DELETE", "POST", "OPTIONS", "PUT"]) | ANY
START = "/v1/things:read"
PIECES = st.sampled_from(
    ["/v1", "/operations", "/x", "/projects", "/p", ":wait", ":cancel", "/", "%2F", "%ff", ".."]
)
ONES = ["/v1/operations", "/v1/operations/x", "/v1/projects/p/operations/x"]
VERBS = ["", ":wait", ":cancel", ":batchGet"]
GOOD = st.tuples(st.sampled_from(ONES), st.sampled_from(VERBS)).map("".join)
PATHS = st.lists(PIECES | ANY, max_size=6).map("".join) | GOOD | st.just(START)
NAMES = st.sampled_from(["filter", "pageSize", "page_token", "alt", "$alt", "key", "name"]) | ANY
QUERIES = st.lists(st.tuples(NAMES, st.sampled_from("=&+%;"), ANY).map("".join), max_size=3).map(
    "&".join
)
MEDIA = st.sampled_from(["application/json", "image/png", ";charset=", "text/plain;a*=b'c'd"])
HEADERS = st.dictionaries(
    st.sampled_from(["content-type", "x-server-timeout", "content-length", "prefer"]),
    MEDIA | st.sampled_from(["1", "0.5", "0"]) | ANY,
    max_size=3,
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
FIELDS = ("timeout", "name", "names", "steps", "label", "requestId", "validateOnly")
KEYS = st.sampled_from(FIELDS) | ANY
BODIES = st.binary(max_size=60) | st.dictionaries(KEYS, VALUES, max_size=3).map(
    lambda value: json.dumps(value).encode("utf-8", "surrogatepass")
)
FINE = {501, 503, 504}


def counting() -> Any:
    """Make a service with two operations, whose waits return at once."""
    built = build(max_wait=timedelta(0))
    for parent in ("", "projects/p"):
        built.start(parent, metadata=CountMetadata(percent=1))
    return built


COUNTING = counting()
OPTIONS: dict[str, Any] = {
    "starts": {START: Start(COUNTING.count, raw=read_image)},
    "parents": ["projects/*"],
    "max_body": 50,
}


def check(method: str, reply: HttpReply) -> None:
    """Check that the reply is complete, and not caused by a bug."""
    headers = dict(reply.headers)
    assert len(headers) == len(reply.headers)
    assert headers["cache-control"] == "no-store"
    assert 200 <= reply.status < 500 or reply.status in FINE
    if reply.status == 204 or method == "HEAD":
        assert reply.body == b""
        return
    value = json.loads(reply.body)
    if reply.status != 200:
        assert list(value) == ["error"]
        assert value["error"]["code"] == reply.status
        assert value["error"]["status"] in lro.Code.__members__
        details_of(value)


BYTES = st.binary(max_size=20)
RAW_PATHS, RAW_QUERIES = (
    texts.map(lambda text: text.encode("utf-8", "replace")) | BYTES for texts in (PATHS, QUERIES)
)
RAW_HEADERS = st.lists(st.tuples(BYTES, BYTES), max_size=3) | HEADERS.map(
    lambda headers: [
        (key.encode(), value.encode("utf-8", "replace")) for key, value in headers.items()
    ]
)


@settings(max_examples=150)
@given(METHODS, RAW_PATHS, RAW_QUERIES, RAW_HEADERS, BODIES)
def test_asgi_application_answers_any_request(
    method: str, path: bytes, query: bytes, headers: list[tuple[bytes, bytes]], body: bytes
) -> None:
    """Any bytes that an ASGI server can pass get a reply."""
    more = {"raw_path": path, "query_string": query, "headers": headers}
    scope = scope_of(method, "", path=path.decode("utf-8", "surrogateescape"), **more)
    start, end = serve(asgi.OperationsApp(COUNTING.service, **OPTIONS), scope, part(body)).sent
    found = [(name.decode(), value.decode()) for name, value in start["headers"]]
    check(method, HttpReply(start["status"], tuple(found), end["body"]))


LATIN = st.text(st.characters(max_codepoint=255), max_size=20)
LATIN_HEADERS = st.dictionaries(LATIN, LATIN, max_size=3)


@settings(max_examples=60)
@given(METHODS, LATIN | PATHS, LATIN | QUERIES, HEADERS | LATIN_HEADERS, BODIES)
def test_wsgi_application_answers_any_request(
    method: str, path: str, query: str, headers: dict[str, str], body: bytes
) -> None:
    """Any text that a WSGI server can pass gets a reply."""
    environ: dict[str, Any] = {
        "REQUEST_METHOD": method,
        "PATH_INFO": path,
        "QUERY_STRING": query,
        "CONTENT_LENGTH": next(iter(headers.values()), str(len(body))),
        "wsgi.input": io.BytesIO(body),
        **{f"HTTP_{name.upper()}": value for name, value in headers.items()},
    }
    found: list[Any] = []
    chunks = wsgi.OperationsApp(COUNTING.service, **OPTIONS)(
        environ, lambda *args: found.extend(args)
    )
    status, listed = found
    named = tuple((name.lower(), value) for name, value in listed)
    check(method, HttpReply(int(status[:3]), named, b"".join(chunks)))
