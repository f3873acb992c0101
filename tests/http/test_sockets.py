"""The edge behind real servers, at the level of bytes (spec §4.8, §5.9)."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from lro import asgi, wsgi
from tests.http.counting_service import CountService, build, details_of
from tests.http.servers import HOST, uvicorn_serving, waitress_serving
from tests.waiting import PATIENCE, until

SERVERS = {
    "uvicorn": (uvicorn_serving, asgi.OperationsApp),
    "waitress": (waitress_serving, wsgi.OperationsApp),
}


class Line:
    """A connection to a server."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection((HOST, port), timeout=PATIENCE)

    def send(self, method: str, path: str, body: bytes = b"", *headers: str) -> Line:
        """Send exactly this request; only a Content-Length is added if a body needs one."""
        lines = [f"{method} {path} HTTP/1.1", f"Host: {HOST}", *headers]
        if body and not any("length" in line.lower() or "chunked" in line for line in headers):
            lines.append(f"Content-Length: {len(body)}")
        self.socket.sendall("\r\n".join([*lines, "", ""]).encode("latin-1") + body)
        return self

    def reply(self, method: str = "GET") -> tuple[int, http.client.HTTPMessage, Any]:
        """Return the status, headers and parsed body of the next reply."""
        response = http.client.HTTPResponse(self.socket, method=method)
        response.begin()
        body = response.read()
        if response.headers.get_content_type() != "application/json":
            return response.status, response.headers, body
        return response.status, response.headers, json.loads(body or b"null")

    def close(self) -> None:
        self.socket.close()


class Server:
    """A counting service behind a server, with connections to the server."""

    def __init__(self, kind: str, counting: CountService, port: int) -> None:
        self.kind = kind
        self.counting = counting
        self.port = port
        self._lines: list[Line] = []

    def line(self) -> Line:
        self._lines.append(Line(self.port))
        return self._lines[-1]

    def until(self, claim: Callable[[], bool]) -> None:
        """Send further requests to the server until the condition holds."""
        other = self.line()

        def look() -> bool:
            assert other.send("GET", "/v1/operations/none").reply()[0] == 404
            return claim()

        until(look)

    def close(self) -> None:
        for line in self._lines:
            line.close()


@contextlib.contextmanager
def served(kind: str, counting: CountService, **options: Any) -> Iterator[Server]:
    """Serve a counting service with one of the servers."""
    serving, make = SERVERS[kind]
    with serving(make(counting.service, **options)) as port:
        server = Server(kind, counting, port)
        try:
            yield server
        finally:
            server.close()


@pytest.fixture(params=SERVERS, scope="module")
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    """A counting service behind a server; tests run with each server."""
    with served(request.param, build(), max_body=10_000) as found:
        yield found


@pytest.fixture(scope="module")
def uvicorn() -> Iterator[Server]:
    """A counting service behind uvicorn."""
    with served("uvicorn", build(), max_body=10_000) as found:
        yield found


def test_start_is_repeated_by_its_idempotency_key() -> None:
    """Both kinds of application read the header of a start from the connection."""
    for kind in SERVERS:
        counting = build()
        with served(kind, counting, starts={"/v1/things:count": counting.count}) as server:
            names = {
                server.line()
                .send("POST", "/v1/things:count", b'{"steps": 1}', f"Idempotency-Key: {key}")
                .reply()[2]["name"]
                for key in ("order-17", '"order-17"')
            }
            assert len(names) == 1


def test_a_caller_who_disconnects_frees_the_waiter(
    uvicorn: Server, caplog: pytest.LogCaptureFixture
) -> None:
    """If a caller disconnects, only the waiter is removed, and nothing is logged (spec §4.8)."""
    name = uvicorn.counting.start()
    leaving = [uvicorn.line().send("POST", f"/v1/{name}:wait") for _ in range(5)]
    staying = uvicorn.line().send("POST", f"/v1/{name}:wait", b'{"timeout": "50s"}')
    uvicorn.until(lambda: uvicorn.counting.service.edges.waiters.waiting == 6)
    for line in leaving:
        line.close()
    uvicorn.until(lambda: uvicorn.counting.service.edges.waiters.waiting == 1)
    assert not uvicorn.counting.service.get(name).done
    uvicorn.counting.finish(name)
    assert staying.reply()[2]["done"] is True
    assert caplog.records == []


def test_a_watcher_who_disconnects_frees_everything(
    uvicorn: Server, caplog: pytest.LogCaptureFixture
) -> None:
    """A disconnect ends the caller's watch, and logs nothing; other watchers still see the end."""
    service, name = uvicorn.counting.service, uvicorn.counting.start()
    lines = [uvicorn.line().send("GET", f"/v1/{name}:watch") for _ in range(5)]
    uvicorn.until(lambda: service.edges.waiters.watching == 5)
    for line in lines[1:]:
        line.close()
    uvicorn.until(lambda: service.edges.waiters.watching == 1)
    uvicorn.counting.finish(name)
    status, headers, body = lines[0].reply()
    assert (status, headers["x-accel-buffering"]) == (200, "no")
    assert body.count(b"event: operation\n") == 2
    assert b'"done":true' in body
    assert (service.edges.waiters.watching, caplog.records) == (0, [])


def test_wsgi_wait_ends_with_operation_or_its_deletion(counting: CountService) -> None:
    """Under WSGI, a wait holds a thread of the server until the operation ends or is deleted."""
    with served("waitress", counting) as server:
        for end, status in ((counting.finish, 200), (counting.service.delete, 404)):
            name = counting.start()
            waiter = server.line().send("POST", f"/v1/{name}:wait")
            until(lambda: counting.service.edges.waiters.waits)
            end(name)
            assert waiter.reply()[0] == status


def test_requests_on_one_connection_follow_each_other(server: Server) -> None:
    """Each reply on a connection ends where its headers say, also for HEAD and errors."""
    name = server.counting.start()
    line = server.line()
    assert line.send("HEAD", f"/v1/{name}").reply("HEAD")[0] == 200
    assert line.send("GET", "/v1/operations/none").reply()[0] == 404
    assert line.send("POST", f"/v1/{name}:cancel", b"{}").reply()[2] == {}
    assert line.send("GET", f"/v1/{name}").reply()[2] == {"name": name}
    assert line.send("OPTIONS", f"/v1/{name}").reply()[0] == 204


def test_unexpected_body_of_get_or_delete_is_ignored(server: Server) -> None:
    """The body of a GET or DELETE is ignored, and does not disturb the next request."""
    for size in (1, 20_000, 200_000):
        name = server.counting.start()
        line = server.line()
        assert line.send("GET", f"/v1/{name}", b"{" * size).reply()[2] == {"name": name}
        assert line.send("DELETE", f"/v1/{name}", b"{" * size).reply()[2] == {}
        assert line.send("GET", f"/v1/{name}").reply()[0] == 404


def test_only_headers_with_a_meaning_are_checked(server: Server) -> None:
    """Odd values of Content-Type and X-Server-Timeout are refused; other headers are ignored."""
    for status, *headers in (
        (415, "Content-Type: ;;;=\xff"),
        (400, "X-Server-Timeout: 1", "X-Server-Timeout: 2"),
        (504, "X-Server-Timeout: 0"),
        (404, "X-Junk: " + "x" * 8000, "X-Latin: \xe9\xff"),
        (404, "Cookie: ;;;", "If-None-Match: *", "Range: bytes=0-1"),
    ):
        line = server.line().send("POST", "/v1/operations/none:wait", b"{}", *headers)
        assert line.reply()[0] == status


def test_paths_and_queries_arrive_unnormalized(server: Server) -> None:
    """Neither the server nor the edge normalizes a path or query before it is routed."""
    for path, status, reason in (
        ("operations/%ff", 400, "MALFORMED_REQUEST"),
        ("operations/%", 400, "MALFORMED_REQUEST"),
        ("operations/../x", 400, "INVALID_OPERATION_NAME"),
        ("operations/%00", 400, "INVALID_OPERATION_NAME"),
        ("/operations/x", 404, "ROUTE_NOT_FOUND"),
        ("operations/a%2Fb%3Await", 404, "OPERATION_NOT_FOUND"),
        ("operations?pageSize=1&pageSize=2", 400, "MALFORMED_REQUEST"),
    ):
        found, _, body = server.line().send("GET", f"/v1/{path}").reply()
        assert (found, details_of(body)["ErrorInfo"]["reason"]) == (status, reason)


def test_wrong_content_length_is_refused_and_others_are_served(server: Server) -> None:
    """A wrong Content-Length is refused by server or edge, and further requests are served."""
    for length in ("junk", "-1", "1, 2", "9" * 30):
        header = f"Content-Length: {length}"
        line = server.line().send("POST", "/v1/operations/none:cancel", b"{}", header)
        line.socket.shutdown(socket.SHUT_WR)
        with contextlib.suppress(ConnectionError, http.client.HTTPException):
            assert 400 <= line.reply()[0] < 500
        assert server.line().send("GET", "/v1/operations").reply()[0] == 200


@pytest.mark.parametrize(
    "half",
    [
        b"POST /v1/operations/none:cancel HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n{",
        b"POST /v1/operations/none:cancel HTTP/1.1\r\nHost: x\r\n"
        b"Transfer-Encoding: chunked\r\n\r\n5\r\n{",
        b"GET /v1/opera",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"",
    ],
)
def test_caller_who_breaks_off_changes_nothing(server: Server, half: bytes) -> None:
    """An incomplete request changes nothing, and other requests are served."""
    line = server.line()
    line.socket.sendall(half)
    line.close()
    assert server.line().send("GET", "/v1/operations").reply()[0] == 200
    assert server.counting.service.edges.waiters.waiting == 0


def test_chunked_body_is_read_to_its_end(server: Server) -> None:
    """A chunked body, which has no length, is read to its end."""
    name = server.counting.start()
    chunks = b'5\r\n{"tim\r\nb\r\neout":"0s"}\r\n0\r\n\r\n'
    line = server.line().send("POST", f"/v1/{name}:wait", chunks, "Transfer-Encoding: chunked")
    assert line.reply()[2] == {"name": name}


def test_body_over_the_limit_is_refused_by_the_edge(server: Server) -> None:
    """The edge answers 413 to a body over the limit, even if the body never ends."""
    path = "/v1/operations/none:cancel"
    status, headers, reply = server.line().send("POST", path, b" " * 10_001).reply()
    assert (status, headers["cache-control"]) == (413, "no-store")
    assert details_of(reply)["ErrorInfo"]["reason"] == "REQUEST_TOO_LARGE"
    if server.kind == "uvicorn":  # waitress reads the whole body before it calls the application
        line = server.line().send("POST", path, b"", "Transfer-Encoding: chunked")
        line.socket.sendall(b"4e20\r\n" + b" " * 20_000 + b"\r\n")
        assert line.reply()[0] == 413
