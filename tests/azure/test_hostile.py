"""Hostile requests: each gets a reply of the protocol, and none gets a 500."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import lro
from lro.azure import AzureEdge
from lro.executors.inline import InlineExecutor
from lro.http import HttpRequest
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


REQUESTS = st.builds(
    HttpRequest,
    method=st.sampled_from(
        ["POST", "GET", "HEAD", "DELETE", "PUT", "OPTIONS", "PATCH", "get", "X"]
    ),
    path=PATHS,
    query=QUERIES,
    headers=st.dictionaries(st.sampled_from(NAMES), st.sampled_from(VALUES) | LATIN, max_size=5),
    body=BODIES,
)


@pytest.fixture(scope="module")
def edge() -> AzureEdge:
    """An edge whose operations end at once."""
    service = lro.Service(MemoryStore(), InlineExecutor(), maintenance=False)

    @service.method("media.v1.Videos.Transcode", path=PATH)
    def transcode(request: TranscodeRequest) -> TranscodeResponse:
        return TranscodeResponse(uri=request.source)

    return AzureEdge(service, starts=True)


@settings(max_examples=300)
@given(REQUESTS)
def test_hostile_request_is_answered_in_the_terms_of_the_protocol(
    edge: AzureEdge, asked: HttpRequest
) -> None:
    """The reply to a hostile request is a monitor, or an error whose code is also in a header.

    Tests of other edges send hostile requests to the ASGI and WSGI applications.
    """
    reply = edge.handle(asked)
    headers = dict(reply.headers)
    assert reply.status in (200, 202, 204, 400, 403, 404, 405, 412, 415), reply
    assert not any({*value} & {*"\r\n\0"} for value in headers.values())
    if asked.method == "HEAD" or reply.status == 204:
        assert reply.body == b""
    elif reply.status < 300:
        states = ("Succeeded", "NotStarted", "Running", "Canceled")
        assert json.loads(reply.body)["status"] in states
    else:
        assert json.loads(reply.body)["error"]["code"] == headers["x-ms-error-code"]
