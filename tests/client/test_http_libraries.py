"""Calls over httpx, httpx2 and aiohttp, which must all behave and fail in the same way."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import importlib
import importlib.util
import socket
import ssl
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import attrs
import httpx
import pytest
import respx

import lro
import lro.asgi
from lro_client import NO_RETRY, CallError, Polling, PollTimeout
from lro_client.transports import (
    AsyncHttpTransport,
    Call,
    HttpTransport,
    WatchOperationsRequest,
    _own_clients,
)
from tests.client import sockets
from tests.client.faces import FACES, Face
from tests.client.messages import NAME, TYPES, ResizeMetadata, ResizeRequest, ResizeResponse
from tests.client.real_service import PATH, Harness, application, serving

httpx2 = pytest.importorskip("httpx2", reason="httpx2 is not installed")


@attrs.frozen
class Making:
    """Makes clients with one HTTP library; if possible, the client makes its own HTTP client."""

    package: str
    face: Face
    closing: contextlib.ExitStack

    def http(self, **options: Any) -> Any:
        if self.package == "httpx":
            return self.face.http(verify=False, **options)
        if self.face.name == "sync":
            return self.closing.enter_context(httpx2.Client(verify=False, **options))
        if self.package == "aiohttp":
            made = pytest.importorskip("httpx_aiohttp").HttpxAiohttpClient(verify=False, **options)
        else:
            made = httpx2.AsyncClient(verify=False, **options)
        self.closing.callback(self.face.run, made.aclose)
        return made

    def client(self, url: str, auth: Any = None, **options: Any) -> Any:
        if self.package == "httpx2" or auth is not None:
            return self.face.client(url, http=self.http(auth=auth), **options)
        own: Any = {"sync": HttpTransport, "async": AsyncHttpTransport}[self.face.name]
        if self.package == "aiohttp":
            own = importlib.import_module("lro_client.transports.aiohttp").AiohttpTransport
        return self.face.client("", transport=own(base_url=url), **options)


LIBRARIES = ["httpx-sync", "httpx-async", "httpx2-sync", "httpx2-async", "aiohttp-async"]
OWN = pytest.mark.parametrize(
    "making", [one for one in LIBRARIES if "httpx2" not in one], indirect=True
)
"""Runs a test only with HTTP clients that our client makes itself."""


@pytest.fixture(params=LIBRARIES)
def making(request: pytest.FixtureRequest) -> Iterator[Making]:
    package, name = request.param.split("-")
    pytest.importorskip(package, reason=f"{package} is not installed")
    with contextlib.ExitStack() as closing:
        face = FACES[name]()
        closing.callback(face.close)
        yield Making(package, face, closing)


@pytest.fixture
def url(harness: Harness) -> Iterator[str]:
    """The URL of a real server on a socket."""
    with serving(application(lro.asgi, harness)) as found:
        yield found


def test_every_library_runs_all_calls(making: Making, harness: Harness, url: str) -> None:
    """Start, timeout, updates, result, list, cancel and delete work against a real server."""
    client = making.client(url)
    with pytest.raises(CallError) as caught:
        client.start(PATH, ResizeRequest(), **TYPES)
    assert caught.value.code is lro.Code.INVALID_ARGUMENT
    assert any(isinstance(one, lro.types.BadRequest) for one in caught.value.details())
    handle = client.start(PATH, ResizeRequest(source="a.png"), **TYPES)
    with pytest.raises(PollTimeout):
        handle.result(timeout=0.3)
    updates = iter(handle.updates(every=0.05))
    assert not next(updates).done
    harness.say(ResizeMetadata(50), ResizeResponse(7))
    assert list(updates)[-1].done
    assert handle.result(timeout=120) == ResizeResponse(7)
    assert [one.name for one in client.list()] == [handle.name]
    handle.cancel()
    handle.delete()
    with pytest.raises(CallError) as caught:
        client.get(handle.name)
    assert caught.value.code is lro.Code.NOT_FOUND


TROUBLES: dict[str, tuple[sockets.Behaviour, lro.Code, bool]] = {
    "silence": (sockets.silent, lro.Code.DEADLINE_EXCEEDED, True),
    "a body cut short": (sockets.cutting, lro.Code.UNAVAILABLE, True),
    "a reset": (sockets.resetting, lro.Code.UNAVAILABLE, True),
    "a closed connection": (sockets.closing_later, lro.Code.UNAVAILABLE, True),
    "no HTTP": (sockets.answering("nonsense"), lro.Code.UNAVAILABLE, True),
    "no gzip": (
        sockets.answering("200 OK\r\nContent-Encoding: gzip", "no gzip"),
        lro.Code.UNKNOWN,
        True,
    ),
}


@pytest.mark.parametrize(("behave", "code", "passing"), TROUBLES.values(), ids=TROUBLES)
def test_every_library_reports_the_same_errors(
    making: Making, behave: sockets.Behaviour, code: lro.Code, passing: bool
) -> None:
    """An error has the same code with every library, and is equally retryable."""
    seconds = 0.3 if behave is sockets.silent else 120
    with sockets.serving(behave) as url:
        client = making.client(url, retry=NO_RETRY, call_seconds=seconds)
        with pytest.raises(CallError) as caught:
            client.get("operations/a")
    assert (caught.value.code, caught.value.passing) == (code, passing)


def test_refused_connection_is_unavailable_and_retryable(making: Making) -> None:
    """A refused connection is UNAVAILABLE, and the call can be retried."""
    with sockets.refusing() as port:
        client = making.client(f"http://127.0.0.1:{port}", retry=NO_RETRY)
        with pytest.raises(CallError) as caught:
            client.get("operations/a")
    assert (caught.value.code, caught.value.passing) == (lro.Code.UNAVAILABLE, True)


@pytest.mark.parametrize(
    "making", [one for one in LIBRARIES if "aiohttp" not in one], indirect=True
)
@pytest.mark.parametrize("streams", [False, True], ids=["call", "stream"])
@pytest.mark.parametrize("own", [False, True], ids=["given", "own"])
def test_close_while_a_call_connects_leaves_no_connection(
    making: Making, monkeypatch: pytest.MonkeyPatch, streams: bool, own: bool
) -> None:
    """A connection that is being made when the client closes is closed too, and not kept."""
    look_up, left = socket.getaddrinfo, threading.Event()
    reply = sockets.answering("200 OK\r\nContent-Type: text/event-stream", ":\n\n")

    def behave(connection: socket.socket, over: threading.Event) -> None:
        with contextlib.suppress(ConnectionError):  # a close before all data is read is a reset
            reply(connection, over)
        if not over.is_set():
            left.set()

    def closing(host: str | bytes, port: int, *more: Any, **named: Any) -> Any:
        if host in ("close.test", b"close.test"):
            if making.face.name == "sync":
                close()
            else:  # the event loop resolves the host in a thread
                loop = making.face.runner.get_loop()  # type: ignore[attr-defined]
                asyncio.run_coroutine_threadsafe(close(), loop).result(120)
        return look_up("127.0.0.1", port, *more, **named)

    monkeypatch.setattr(socket, "getaddrinfo", closing)
    with sockets.serving(behave) as url:
        kind: Any = {"sync": HttpTransport, "async": AsyncHttpTransport}[making.face.name]
        base_url = url.replace("127.0.0.1", "close.test")
        http = None if own else making.http()
        transport = kind(http, base_url=base_url)
        if http is None:
            close = transport.close
        else:
            close = http.close if making.face.name == "sync" else http.aclose
        watch = WatchOperationsRequest("operations", ("operations/a",))
        get = lro.wire.GetOperationRequest("operations/a")
        ask: tuple[Any, ...] = (transport.send, Call(request=get, budget=120))
        if streams:
            ask = transport.stream, Call(request=watch, budget=120), print
        with pytest.raises(CallError, match="the client was closed"):
            making.face.run(*ask)
        assert left.wait(120)


def test_stream_whose_headers_drip_is_given_up(face: Face) -> None:
    kind: Any = {"sync": HttpTransport, "async": AsyncHttpTransport}[face.name]
    watch = WatchOperationsRequest("operations", ("operations/a",))
    with sockets.serving(sockets.dripping_headers) as url:
        transport = kind(base_url=url)
        with pytest.raises(CallError, match=r"no complete answer within 0\.2 s"):
            face.run(transport.stream, Call(request=watch, budget=0.2), print)
        face.run(transport.close)


class Recording:
    """A server that records requests; the operation is done at request number ``polls``."""

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
"""A policy that sends only Gets; they have no body, so each request arrives in one piece."""


def test_http_client_made_by_default_keeps_no_cookies(making: Making) -> None:
    """A client keeps no cookies by default, as an invalid cookie would break all later calls."""
    recording = Recording(polls=3, header="Set-Cookie: user=José\r\n".encode())
    kept = pytest.raises(CallError, match="INVALID_ARGUMENT: UnicodeEncodeError")
    with sockets.serving(recording) as url:
        client = making.client(url, polling=ONLY_GET)
        with kept if making.package == "httpx2" else contextlib.nullcontext():
            assert client.operation(NAME, **TYPES).wait(30).done
        client.close()
    assert not any(b"user=" in one for one in recording.asked)


def test_get_has_no_body(making: Making) -> None:
    """A Get must have no body at all, because some servers refuse even an empty one."""
    recording = Recording(header=b"X-Long: " + b"x" * 60_000 + b"\r\n")
    with sockets.serving(recording) as url:
        client = making.client(url.replace("//", "//ann:secret@"), retry=NO_RETRY)
        assert client.get(NAME).name == NAME
        client.close()
        if making.package != "httpx2":  # an httpx2 client is the caller's, and stays open
            with pytest.raises(CallError, match="the client was closed"):
                client.get(NAME)
    (asked,) = recording.asked
    assert b"chunked" not in asked.lower()
    assert b"content-length" not in asked.lower()
    assert b"authorization: basic yw5uonnly3jlda==" in asked.lower()


def test_proxy_of_the_environment_is_used(making: Making, monkeypatch: pytest.MonkeyPatch) -> None:
    recording = Recording()
    with sockets.serving(recording) as url:
        monkeypatch.setenv("HTTP_PROXY", url)
        client = making.client("http://inside.invalid")
        assert client.get(NAME).name == NAME
        client.close()
    assert recording.asked[0].startswith(b"GET http://inside.invalid/v1/operations/")


@OWN
@pytest.mark.parametrize("left_out", ["fd00::/8", "[::1]", "[::1]:80", "10.0.0.0/8", "a b"])
def test_unparsable_entries_of_no_proxy_are_ignored(
    making: Making, monkeypatch: pytest.MonkeyPatch, left_out: str
) -> None:
    """NO_PROXY entries that httpx cannot parse, but VPNs and clusters set, are ignored."""
    recording = Recording(polls=2)
    with sockets.serving(recording) as url, sockets.refusing() as port:
        monkeypatch.setenv("HTTP_PROXY", f"127.0.0.1:{port}")
        monkeypatch.setenv("NO_PROXY", f"{left_out}, .example.com, 127.0.0.1")
        client = making.client(url)
        assert not client.get(NAME).done
        client.close()
        monkeypatch.setenv("NO_PROXY", f"{left_out},*")
        client = making.client(url)
        assert client.get(NAME).done
        client.close()
    assert len(recording.asked) == 2


@pytest.mark.parametrize(
    ("name", "value", "why"),
    [
        ("HTTPS_PROXY", "http://host:port", "Invalid port"),
        ("ALL_PROXY", "ftp://user:secret@host", "Unknown scheme"),
        ("ALL_PROXY", "socks5://host:1080", "socks"),
        ("SSL_CERT_FILE", "nowhere.pem", "No such file"),
    ],
)
@OWN
def test_unusable_environment_variable_is_named_in_the_error(
    making: Making, monkeypatch: pytest.MonkeyPatch, name: str, value: str, why: str
) -> None:
    """Making a client fails if an environment variable is unusable; the error names the variable.

    The variable for certificates matters only if the base URL has the scheme https.
    """
    monkeypatch.setitem(sys.modules, "socksio", None)
    monkeypatch.setenv(name, value)
    with pytest.raises(lro.DeclarationError, match=f"^{name}: .*{why}") as caught:
        making.client("https://test")
    assert "secret" not in str(caught.value)
    if name == "SSL_CERT_FILE":
        making.client("http://test")


@OWN
def test_idle_connection_is_closed_before_the_server_closes_it(making: Making) -> None:
    """The client closes idle connections before the server does, so that no start is lost."""
    connections, recording = list[socket.socket](), Recording(polls=2)

    def behave(connection: socket.socket, over: object) -> None:
        connections.append(connection)
        recording(connection, over)

    with sockets.serving(behave) as url:
        client = making.client(url)
        client.get(NAME)
        time.sleep(1.2)
        assert client.get(NAME).done
        client.close()
    assert len(connections) == 2


def test_calls_go_through_a_replaced_send_of_the_http_library(
    face: Face, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tracing library that replaces ``send`` also sees the calls of clients made earlier."""
    kind = httpx.Client if face.name == "sync" else httpx.AsyncClient
    seen, send = [], kind.send

    @functools.wraps(send)
    def traced(client: Any, request: httpx.Request, **options: Any) -> Any:
        seen.append(request.url.path)
        return send(client, request, **options)

    recording = Recording(polls=2)
    with sockets.serving(recording) as url:
        client = face.make(url)
        client.get(NAME)
        assert not seen
        monkeypatch.setattr(kind, "send", traced)
        assert client.get(NAME).done
        client.close()
    assert seen == [f"/v1/{NAME}"]


class Guard:
    """An ASGI application that rejects requests without an allowed Authorization header."""

    def __init__(self, app: Any, allowed: set[bytes]) -> None:
        self.app, self.allowed, self.seen = app, allowed, list[bytes]()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        found = dict(scope["headers"]).get(b"authorization", b"")
        self.seen.append(found)
        if found in self.allowed:
            await self.app(scope, receive, send)
            return
        await send({"type": "http.response.start", "status": 401, "headers": []})
        await send({"type": "http.response.body", "body": b"{}"})


@attrs.define
class Credentials:
    """Credentials like those of google-auth, with numbered tokens."""

    token_state: Any = None
    token: str | None = None
    fetched: int = 0

    def refresh(self, request: Callable[..., Any]) -> None:
        from google.auth.credentials import TokenState

        self.fetched += 1
        self.token, self.token_state = f"t{self.fetched}", TokenState.FRESH

    def apply(self, headers: dict[str, str]) -> None:
        headers["authorization"] = f"Bearer {self.token}"

    def before_request(self, request: Any, method: str, url: str, headers: dict[str, str]) -> None:
        if self.token is None:
            self.refresh(request)
        self.apply(headers)


def test_every_library_takes_google_credentials(making: Making, harness: Harness) -> None:
    """With google-auth credentials, a request is sent once more with a new token after a 401."""
    google = pytest.importorskip("lro_client.google", reason="google-auth is not installed")
    guard = Guard(application(lro.asgi, harness), {b"Bearer t2"})
    harness.say(ResizeResponse(7))
    with serving(guard) as url:
        client = making.client(url, auth=google.GoogleAuth(Credentials()))
        handle = client.start(PATH, ResizeRequest(source="a.png"), **TYPES)
        assert handle.result(timeout=120) == ResizeResponse(7)
    assert guard.seen[:2] == [b"Bearer t1", b"Bearer t2"]
    assert set(guard.seen[1:]) == {b"Bearer t2"}


def test_missing_http_library_names_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the HTTP library, the error contains the command that installs the extra."""
    monkeypatch.setitem(sys.modules, "httpx_aiohttp", None)
    source = importlib.util.find_spec("lro_client.transports.aiohttp")
    assert source is not None
    assert source.loader is not None
    with pytest.raises(lro.errors.MissingExtra) as caught:
        source.loader.exec_module(importlib.util.module_from_spec(source))
    wanted = "the aiohttp transport needs the extra 'aiohttp': pip install 'lro[aiohttp]'"
    assert str(caught.value) == wanted


def test_repeated_delete_after_a_lost_reply_succeeds(making: Making) -> None:
    """A repeated delete succeeds on NOT_FOUND, also on a connection that was used before."""
    asked: list[bytes] = []

    def behave(connection: socket.socket, over: object) -> None:
        while request := connection.recv(65536):
            asked.append(request.split(b" ", 1)[0])
            if asked.count(b"DELETE") == 1:
                return
            body = (
                b"{}"
                if request.startswith(b"GET")
                else b'{"error": {"code": 404, "status": "NOT_FOUND"}}'
            )
            status = b"200 OK" if request.startswith(b"GET") else b"404 Not Found"
            head = b"HTTP/1.1 %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
            connection.sendall(head % (status, len(body)) + body)

    with sockets.serving(behave) as url:
        client = making.client(url)
        with contextlib.suppress(CallError):
            client.get("operations/a")
        client.delete("operations/a")
    assert asked == [b"GET", b"DELETE", b"DELETE"]


# -- the cache of built requests -------------------------------------------------------------------

GET = {"method": "GET", "url": f"http://test/v1/{NAME}", "timeout": 5.0}
WAIT = {
    "method": "POST",
    "url": f"http://test/v1/{NAME}:wait",
    "content": b'{"timeout":"20s"}',
    "headers": {"content-type": "application/json"},
    "timeout": 7.0,
}


def test_requests_with_changing_parts_are_not_cached() -> None:
    """Requests with tracing headers, a query or a large body are not cached."""
    with httpx.Client(verify=False) as client:
        known = _own_clients.RequestCache()
        traced = known.request(client, {**WAIT, "headers": {"traceparent": "00-1-2-3"}})
        assert traced.headers["traceparent"] == "00-1-2-3"
        assert "traceparent" not in known.request(client, WAIT).headers
        assert known.request(client, {**GET, "params": {"a": "b"}}).url.query == b"a=b"
        many = {**WAIT, "content": b"x" * 2000}
        assert known.request(client, many) is not known.request(client, many)
        assert all(len(body) < 2000 for _, _, body in known._known)


def test_number_of_cached_requests_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_own_clients, "MAX_KNOWN_REQUESTS", 2)
    with httpx.Client(verify=False) as client:
        known = _own_clients.RequestCache()
        asked = [{**GET, "url": f"http://test/{number}"} for number in (1, 2, 1, 3)]
        for one in asked:
            known.request(client, one)
        assert [url for _, url, _ in known._known] == ["http://test/1", "http://test/3"]


def test_certificates_are_read_by_the_first_https_call(
    face: Face, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that makes no HTTPS calls reads no certificates."""
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
