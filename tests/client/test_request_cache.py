"""Requests that are built once, by clients that were made here."""

from __future__ import annotations

import httpx
import pytest

from lro_client import AsyncHttpTransport, HttpTransport, Polling
from lro_client.transports import http
from lro_client.transports.http import RequestCache
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


@pytest.mark.parametrize("asked", [GET, WAIT])
def test_the_same_request(asked: dict[str, object]) -> None:
    """But for its time, it is what the client would build."""
    with httpx.Client(verify=False) as client:
        known, plain = RequestCache(), client.build_request(**asked)
        for seconds in (5.0, 0.1):
            found = known.request(client, {**asked, "timeout": seconds})
            assert (found.method, found.url) == (plain.method, plain.url)
            assert found.headers.raw == plain.headers.raw
            assert found.read() == plain.read()
            assert found.extensions["timeout"]["read"] == seconds


def test_two_of_a_kind_keep_their_times() -> None:
    """One that is in flight is not changed by the next."""
    with httpx.Client(verify=False) as client:
        known = RequestCache()
        first = known.request(client, GET)
        second = known.request(client, {**GET, "timeout": 1.0})
        assert (first.extensions["timeout"]["read"], second.extensions["timeout"]["read"]) == (5, 1)


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
    monkeypatch.setattr(http, "MAX_KNOWN_REQUESTS", 2)
    with httpx.Client(verify=False) as client:
        known = RequestCache()
        asked = [{**GET, "url": f"http://test/{number}"} for number in (1, 2, 1, 3)]
        for one in asked:
            known.request(client, one)
        assert [url for _, url, _ in known._known] == ["http://test/1", "http://test/3"]


def test_a_client_of_its_own(face: Face) -> None:
    """Polls of it, on a real socket, keep a session that the server has begun."""
    asked: list[bytes] = []

    def behave(connection: object, over: object) -> None:
        while request := connection.recv(65536):  # type: ignore[attr-defined]
            asked.append(request)
            done = b"true" if len(asked) == 3 else b"false"
            body = b'{"name":"%s","done":%s}' % (NAME.encode(), done)
            head = b"HTTP/1.1 200 OK\r\nSet-Cookie: sticky=7\r\nContent-Length: %d\r\n\r\n"
            connection.sendall(head % len(body) + body)  # type: ignore[attr-defined]

    made = {"sync": HttpTransport, "async": AsyncHttpTransport}[face.name]
    with serving(behave) as url:
        polling = Polling(wait_first=False)  # a request without a body comes in one piece
        client = face.client(transport=made(base_url=url), polling=polling)
        assert client.operation(NAME, **TYPES).wait(30).done
        client.close()
    assert [b"sticky=7" in one for one in asked] == [False, True, True]
