"""Hostile requests: each is answered in the terms of the protocol, and none with 500."""

from __future__ import annotations

import asyncio
import io
import json
from typing import Any
from urllib.parse import unquote_to_bytes

import attrs
from hypothesis import given, settings
from hypothesis import strategies as st

import lro
from lro.azure import AzureApp, WsgiAzureApp
from lro.executors.inline import InlineExecutor
from lro.stores.memory import MemoryStore
from tests.azure.works import PATH, TranscodeRequest, TranscodeResponse

NAMES = (
    *("operation-id", "repeatability-request-id", "repeatability-first-sent", "host", "prefer"),
    *("content-type", "origin", "sec-fetch-site", "x-server-timeout", "traceparent"),
)
VALUES = (
    *("application/json", "text/plain; charset=\x00", "here", "a b", "[::1", "https://evil"),
    *("Sun, 06 Nov 1994 08:49:37 GMT", "Sun, 99 Nov 9999 99:99:99 GMT", "cross-site", "wait=1"),
    *("00000000-0000-0000-0000-000000000000", "{0b9f5d0e6a0e4f0a9a530d3a6f6f7c11}", "\xff\xfe"),
)
LATIN = st.text(st.characters(max_codepoint=255), max_size=40)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["source", "width", "requestId", "validateOnly", "name", "@type"])
            | st.text(max_size=4),
            inner,
            max_size=4,
        )
    ),
    max_leaves=8,
)
BODIES = st.binary(max_size=60) | JSON.map(lambda value: json.dumps(value).encode())
SEGMENT = st.sampled_from(
    ["x", "", "-", "..", "a%2Fb", "%00", "%ff", "%zz", "x:cancel", ":", "a:b"]
)
PATHS = st.just(PATH) | st.lists(
    SEGMENT | st.text(st.characters(min_codepoint=33, max_codepoint=126), max_size=6)
).map(lambda parts: "/v1/operations/" + "/".join(parts)).map(
    lambda path: path.replace("?", "").replace("#", "")
)
QUERIES = st.sampled_from(
    [
        *("", "api-version=1", "api-version=%0d%0a", "api-version", "api-version=1&api-version=2"),
        *("x=1", "&&=", "%", "alt=json", "alt=proto", "width=1"),
    ]
) | st.text(st.characters(min_codepoint=33, max_codepoint=126), max_size=12)


@attrs.frozen
class Hostile:
    """A request, as a server hands it over."""

    method: str
    path: str
    query: str
    headers: dict[str, str]
    body: bytes


REQUESTS = st.builds(
    Hostile,
    st.sampled_from(["POST", "GET", "HEAD", "DELETE", "PUT", "OPTIONS", "PATCH", "get", "X"]),
    PATHS,
    QUERIES,
    st.dictionaries(st.sampled_from(NAMES), st.sampled_from(VALUES) | LATIN, max_size=5),
    BODIES,
)


def service() -> lro.Service:
    made = lro.Service(MemoryStore(), InlineExecutor(), maintenance=False)

    @made.method("media.v1.Videos.Transcode", path=PATH)
    def transcode(request: TranscodeRequest) -> TranscodeResponse:
        return TranscodeResponse(uri=request.source)

    return made


OVER_ASGI = AzureApp(service(), starts=True)
OVER_WSGI = WsgiAzureApp(service(), starts=True)


def by_asgi(asked: Hostile) -> tuple[int, dict[str, str], bytes]:
    sent: list[Any] = []

    async def receive() -> Any:
        return {"type": "http.request", "body": asked.body}

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {
        "type": "http",
        "method": asked.method,
        "path": unquote_to_bytes(asked.path).decode(errors="replace"),
        "raw_path": asked.path.encode(),
        "query_string": asked.query.encode(),
        "headers": [
            (name.encode(), text.encode("latin-1")) for name, text in asked.headers.items()
        ],
    }
    asyncio.run(OVER_ASGI(scope, receive, send))
    headers = {name.decode(): value.decode("latin-1") for name, value in sent[0]["headers"]}
    return sent[0]["status"], headers, b"".join(one["body"] for one in sent[1:])


def by_wsgi(asked: Hostile) -> tuple[int, dict[str, str], bytes]:
    begun: list[Any] = []
    environ = {
        "REQUEST_METHOD": asked.method,
        "PATH_INFO": unquote_to_bytes(asked.path).decode("latin-1"),
        "RAW_URI": asked.path,
        "QUERY_STRING": asked.query,
        "CONTENT_LENGTH": str(len(asked.body)),
        "wsgi.input": io.BytesIO(asked.body),
        "wsgi.url_scheme": "http",
    }
    for name, text in asked.headers.items():
        key = name.upper().replace("-", "_")
        environ[key if key == "CONTENT_TYPE" else f"HTTP_{key}"] = text
    body = b"".join(OVER_WSGI(environ, lambda *args: begun.append(args)))
    status, headers = begun[0]
    return int(status[:3]), {name.lower(): value for name, value in headers}, body


@settings(max_examples=150)
@given(REQUESTS)
def test_hostile_request_is_answered_in_the_terms_of_the_protocol(asked: Hostile) -> None:
    """With a monitor, or an error whose code stands in a header too; never with 500."""
    for answer in (by_asgi, by_wsgi):
        status, headers, body = answer(asked)
        assert status in (200, 202, 204, 400, 403, 404, 405, 412, 415), (status, body)
        assert not any({*value} & {*"\r\n\0"} for value in headers.values())
        if asked.method == "HEAD" or status == 204:
            assert body == b""
        elif status < 300:
            assert json.loads(body)["status"] in ("Succeeded", "NotStarted", "Running", "Canceled")
        else:
            assert json.loads(body)["error"]["code"] == headers["x-ms-error-code"]
