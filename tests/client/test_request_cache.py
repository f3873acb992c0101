"""Requests that are built once, by clients that were made here."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from typing import Any

import httpx
import pytest
import respx

import lro
from lro_client import NO_RETRY, AsyncHttpTransport, CallError, HttpTransport, Polling
from lro_client.transports import _own_clients
from lro_client.transports._own_clients import RequestCache
from tests.client.faces import Face
from tests.client.messages import NAME, TYPES
from tests.client.sockets import serving

GET = {"method": "GET", "url": f"http://test/v1/{NAME}", "timeout": 5.0}
WAIT = {
    "method": "POST",
    "url": f"http://test/v1/{NAME}:wait",
    "content": b'{"timeout":"20s"}',
    "headers": {"content-type": "application/json"},
    "timeout": 7.0,
}


def test_requests_with_changing_parts_are_built_each_time() -> None:
    """Cookies that a server has set since, headers of tracing, and queries."""
    with httpx.Client(verify=False) as client:
        known = RequestCache()
        traced = known.request(client, {**WAIT, "headers": {"traceparent": "00-1-2-3"}})
        assert traced.headers["traceparent"] == "00-1-2-3"
        assert "traceparent" not in known.request(client, WAIT).headers
        assert known.request(client, {**GET, "params": {"a": "b"}}).url.query == b"a=b"
        many = {**WAIT, "content": b"x" * 2000}
        assert known.request(client, many) is not known.request(client, many)
        assert all(len(body) < 2000 for _, _, body in known._known)
        client.cookies.set("sticky", "7")
        assert known.request(client, GET).headers["cookie"] == "sticky=7"


def test_few_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that were used last."""
    monkeypatch.setattr(_own_clients, "MAX_KNOWN_REQUESTS", 2)
    with httpx.Client(verify=False) as client:
        known = RequestCache()
        asked = [{**GET, "url": f"http://test/{number}"} for number in (1, 2, 1, 3)]
        for one in asked:
            known.request(client, one)
        assert [url for _, url, _ in known._known] == ["http://test/1", "http://test/3"]


@pytest.fixture(params=["httpx", "aiohttp"])
def made(request: pytest.FixtureRequest, face: Face) -> Callable[..., Any]:
    """Makes transports with HTTP clients of their own."""
    if request.param == "httpx":
        return {"sync": HttpTransport, "async": AsyncHttpTransport}[face.name]
    if face.name == "sync":
        return HttpTransport
    pytest.importorskip("httpx_aiohttp")
    from lro_client.transports.aiohttp import AiohttpTransport

    return AiohttpTransport


class Recording:
    """A server that keeps what it was asked, and says that the operation is done in the end."""

    def __init__(self, *, polls: int = 1, header: bytes = b"") -> None:
        self.asked: list[bytes] = []
        self._polls = polls
        self._header = header

    def __call__(self, connection: Any, over: object) -> None:
        while request := connection.recv(65536):
            self.asked.append(request)
            done = b"true" if len(self.asked) == self._polls else b"false"
            body = b'{"name":"%s","done":%s}' % (NAME.encode(), done)
            head = b"HTTP/1.1 200 OK\r\n%sContent-Length: %d\r\n\r\n"
            connection.sendall(head % (self._header, len(body)) + body)


ONLY_GET = Polling(wait_first=False)
"""Requests without a body come in one piece."""


def test_a_client_of_its_own(face: Face, made: Callable[..., Any]) -> None:
    """Polls of it, on a real socket, keep a session that the server has begun."""
    recording = Recording(polls=3, header=b"Set-Cookie: sticky=7\r\n")
    with serving(recording) as url:
        client = face.client(transport=made(base_url=url), polling=ONLY_GET)
        assert client.operation(NAME, **TYPES).wait(30).done
        client.close()
    assert [one.lower().count(b"sticky=7") for one in recording.asked] == [0, 1, 1]


def test_a_get_has_no_body(face: Face, made: Callable[..., Any]) -> None:
    """Some servers refuse one, even an empty one that is sent in chunks."""
    recording = Recording()
    with serving(recording) as url:
        client = face.client(transport=made(base_url=url))
        client.get(NAME)
        client.close()
    (asked,) = recording.asked
    assert b"chunked" not in asked.lower()
    assert b"content-length" not in asked.lower()


def test_the_proxy_of_the_environment(
    face: Face, made: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with any client of httpx."""
    recording = Recording()
    with serving(recording) as url:
        monkeypatch.setenv("HTTP_PROXY", url)
        client = face.client(transport=made(base_url="http://inside.invalid"))
        assert client.get(NAME).name == NAME
        client.close()
    assert recording.asked[0].startswith(b"GET http://inside.invalid/v1/operations/")


def test_large_headers_are_read(face: Face, made: Callable[..., Any]) -> None:
    """As large ones as httpx reads."""
    with serving(Recording(header=b"X-Long: " + b"x" * 60_000 + b"\r\n")) as url:
        client = face.client(transport=made(base_url=url))
        assert client.get(NAME).name == NAME
        client.close()


def test_a_name_in_the_address_is_sent(face: Face, made: Callable[..., Any]) -> None:
    """The client of the HTTP library makes a header of it."""
    recording = Recording()
    with serving(recording) as url:
        client = face.client(transport=made(base_url=url.replace("//", "//ann:secret@")))
        client.get(NAME)
        client.close()
    assert b"authorization: basic yw5uonnly3jlda==" in recording.asked[0].lower()


def test_a_closed_client_says_so(face: Face, made: Callable[..., Any]) -> None:
    """Also where the connection would still be there."""
    with serving(Recording()) as url:
        client = face.client(transport=made(base_url=url), retry=NO_RETRY)
        client.get(NAME)
        client.close()
        with pytest.raises(CallError, match="the client was closed"):
            client.get(NAME)


def test_certificates_are_read_by_the_first_https_call(
    face: Face, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client of a server without TLS has none until then."""
    read: list[object] = []
    load = ssl.SSLContext.load_verify_locations

    def noted(context: ssl.SSLContext, *args: object, **more: object) -> None:
        read.append((args, more))
        load(context, *args, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(ssl.SSLContext, "load_verify_locations", noted)
    with respx.mock() as server:
        server.route().mock(return_value=httpx.Response(200, json={"name": NAME, "done": True}))
        client = face.make("http://test")
        assert client.get(NAME).done
        assert read == []
        for _ in range(2):
            assert client.start("https://there/v1/run", lro.Struct({}), **TYPES).done
        assert len(read) == 1
        client.close()
        secure = face.make("https://test")
        assert len(read) == 2
        assert secure.get(NAME).done
        secure.close()
        assert len(read) == 2
