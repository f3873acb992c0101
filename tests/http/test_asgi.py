"""The edge as an ASGI application, tested by its ASGI messages."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any
from urllib.parse import unquote

import pytest

import lro
from lro import asgi, wsgi
from lro.asgi import OperationsApp
from tests.http.counting_service import CountService, Wrapped, begun, build
from tests.waiting import until_async

Message = MutableMapping[str, Any]


def scope_of(method: str, raw: str, **more: Any) -> Message:
    """Return the scope of a request with this raw path, which may include a query."""
    raw, _, query = raw.partition("?")
    return {
        "type": "http",
        "method": method,
        "path": unquote(raw),
        "raw_path": raw.encode(),
        "query_string": query.encode(),
        "headers": [],
        **more,
    }


class Line:
    """A connection: ``receive`` returns the messages, then waits for ever or calls ``last``."""

    def __init__(
        self, messages: Iterable[Message], last: Callable[[], Awaitable[Message]] | None = None
    ) -> None:
        self.taken = 0
        self.sent: list[Message] = []
        self._rest = iter(messages)
        self._last = last

    async def receive(self) -> Message:
        for message in self._rest:
            self.taken += 1
            return message
        if self._last is not None:
            return await self._last()
        return await asyncio.get_running_loop().create_future()

    async def send(self, message: Message) -> None:
        self.sent.append(message)

    @property
    def reply(self) -> tuple[int, dict[bytes, bytes], Any]:
        """The status, headers and parsed body of the only reply."""
        start, end = self.sent
        headers = dict(start["headers"])
        assert len(headers) == len(start["headers"])
        return start["status"], headers, json.loads(end["body"] or b"null")


def part(body: bytes, more: bool = False) -> Message:
    return {"type": "http.request", "body": body, "more_body": more}


GONE: Message = {"type": "http.disconnect"}


def serve(app: Any, scope: Message, *messages: Message) -> Line:
    """Send a request to an application, and return the connection."""
    line = Line(messages or [part(b"")])
    asyncio.run(app(scope, line.receive, line.send))
    return line


# -- replies ----------------------------------------------------------------------------------


@pytest.mark.parametrize("more", [{}, {"raw_path": None}, {"query_string": b"alt=json"}])
def test_reply_has_status_headers_and_body(more: dict[str, Any]) -> None:
    """The reply has status, headers and body, whether or not the server passes a raw path."""
    counting, name = begun()
    app = OperationsApp(counting.service)
    status, headers, body = serve(app, scope_of("GET", f"/v1/{name}", **more)).reply
    assert (status, body) == (200, {"name": name})
    assert headers[b"content-length"] == str(len(json.dumps(body, separators=(",", ":")))).encode()
    assert headers[b"cache-control"] == b"no-store"


def test_head_and_options_have_no_body() -> None:
    """A HEAD reply has the length of the GET reply; a 204 reply has no length."""
    app = OperationsApp(build().service)
    got = serve(app, scope_of("GET", "/v1/operations/x"))
    head = serve(app, scope_of("HEAD", "/v1/operations/x"))
    assert head.sent[1]["body"] == b""
    assert head.reply[:2] == got.reply[:2]
    status, headers, body = serve(app, scope_of("OPTIONS", "/v1/operations/x")).reply
    assert (status, body, b"content-length" in headers) == (204, None, False)


def test_hook_sees_all_values_of_a_repeated_header() -> None:
    """A hook gets all values of a repeated header, so that no value can hide another."""
    seen: list[Any] = []

    def authenticate(headers: Any) -> str:
        seen.extend([len(headers), dict(headers), headers.get("y", "none")])
        return "ann"

    headers = [(b"authorization", b"Bearer a"), (b"x", b""), (b"authorization", b"Bearer b")]
    app = OperationsApp(build().service, authenticate=authenticate)
    serve(app, scope_of("GET", "/v1/operations", headers=headers))
    assert seen == [2, {"authorization": "Bearer a, Bearer b", "x": ""}, "none"]


def test_hook_that_needs_a_second_argument_gets_the_scope() -> None:
    """A hook with a second parameter gets the scope, in which a middleware may put a caller."""
    seen: list[Any] = []

    def authenticate(headers: Any, scope: Any, more: str = "") -> str:
        seen.extend([headers["x"], scope["user"], more])
        return "ann"

    scope = scope_of("GET", "/v1/operations", headers=[(b"x", b"1")]) | {"user": "ann"}
    serve(OperationsApp(build().service, authenticate=authenticate), scope)
    assert seen == ["1", "ann", ""]


def test_body_in_several_parts_is_joined() -> None:
    """The edge joins the parts of a body."""
    counting, name = begun()
    app = OperationsApp(counting.service)
    parts = [part(b'{"time', True), part(b"", True), part(b'out": "0s"', True), part(b"}")]
    assert serve(app, scope_of("POST", f"/v1/{name}:wait"), *parts).reply[0] == 200


@pytest.mark.parametrize("size", [1, 10, 11, 50])
def test_body_over_the_limit_is_read_no_further(size: int) -> None:
    """The body is read only until it exceeds the limit, and the reply is 413."""
    app = OperationsApp(build().service, max_body=100)
    line = serve(app, scope_of("POST", "/v1/operations/x:wait"), *[part(b" " * size, True)] * 1000)
    status, _, body = line.reply
    assert (status, body["error"]["details"][0]["reason"]) == (413, "REQUEST_TOO_LARGE")
    assert line.taken == 100 // size + 1


@pytest.mark.parametrize(
    "messages", [[GONE], [part(b"{", True), GONE], [part(b"", True), part(b"", True), GONE]]
)
def test_request_cut_by_a_disconnect_gets_no_reply(messages: list[Message]) -> None:
    """If the caller disconnects before the body is complete, no reply is sent."""
    app = OperationsApp(build(Wrapped(pytest.fail, "get", "update")).service)
    assert serve(app, scope_of("POST", "/v1/operations/x:cancel"), *messages).sent == []


@pytest.mark.parametrize("blocks", [True, False])
def test_blocking_store_calls_and_large_replies_run_in_a_thread(blocks: bool) -> None:
    """Blocking store calls, List and BatchGet run in a thread, not on the event loop."""
    threads: set[int] = set()
    store = Wrapped(lambda: threads.add(threading.get_ident()), "get", "update", "page", "find")
    store.reads_block = store.writes_block = blocks  # type: ignore[attr-defined]
    counting = build(store)
    name = counting.start()
    app = OperationsApp(counting.service)
    calls = [("GET", "operations")]
    calls += [("POST", "operations:batchGet")]
    if blocks:
        calls += [("GET", name), ("POST", f"{name}:cancel")]
    for method, path in calls:
        body = json.dumps({"names": [name]} if path.startswith("operations:") else {})
        assert serve(app, scope_of(method, f"/v1/{path}"), part(body.encode())).reply[0] == 200
    assert threading.get_ident() not in threads
    assert threads


# -- waiting ----------------------------------------------------------------------------------


def calling(counting: CountService, scope: Message, line: Line) -> asyncio.Future[None]:
    """Begin a call in a task."""
    return asyncio.ensure_future(OperationsApp(counting.service)(scope, line.receive, line.send))


def wait(counting: CountService, line: Line, during: Callable[[str], object]) -> str:
    """Call :wait, run ``during`` while the call waits, and return the operation's name."""
    name = counting.start()

    async def both() -> None:
        call = calling(counting, scope_of("POST", f"/v1/{name}:wait"), line)
        await until_async(lambda: counting.service.edges.waiters.waiting)
        during(name)
        await call

    try:
        asyncio.run(both())
    finally:
        assert counting.service.edges.waiters.waiting == 0
    return name


@pytest.mark.parametrize("messages", [[part(b"")], [part(b"")] * 2, [part(b"")] * 1000])
@pytest.mark.parametrize(("end", "status"), [("finish", 200), ("delete", 404)])
def test_wait_ends_when_the_operation_ends_or_is_deleted(
    messages: list[Message], end: str, status: int
) -> None:
    """A wait ends with its operation, even if the server repeats the end of the request's body."""
    counting = build()
    line = Line(messages)
    ends = {"finish": counting.finish, "delete": counting.service.delete}
    wait(counting, line, ends[end])
    assert line.reply[0] == status
    assert line.taken == min(len(messages), 3)  # the edge must not read on and on


def later(answer: Message | Exception) -> tuple[asyncio.Event, Callable[[], Awaitable[Message]]]:
    """Return an event, and a ``receive`` that waits for the event and then returns ``answer``."""
    event = asyncio.Event()

    async def receive() -> Message:
        await event.wait()
        if isinstance(answer, Exception):
            raise answer
        return answer

    return event, receive


def test_disconnect_at_the_end_of_an_operation_is_harmless(counting: CountService) -> None:
    """If the caller disconnects when the operation ends, the reply is sent, but nobody reads it."""
    ended, gone = later(GONE)

    def end(name: str) -> None:
        counting.finish(name)
        asyncio.get_running_loop().call_soon(ended.set)

    line = Line([part(b"")], gone)
    wait(counting, line, end)
    assert line.reply[0] == 200


def test_error_of_receive_is_raised_to_the_server() -> None:
    """An error of ``receive`` ends a wait and is raised to the server; no waiter is left."""
    broken, fail = later(ConnectionError("the line is dead"))
    with pytest.raises(ConnectionError, match="dead"):
        wait(build(), Line([part(b"")], fail), lambda _: broken.set())


@pytest.mark.parametrize("verb", ["wait", "watch"])
def test_wait_cancelled_by_the_stopping_server_gets_503(verb: str, counting: CountService) -> None:
    """When the server stops, a wait gets 503 with Retry-After, and a stream ends normally."""
    name, line = counting.start(), Line([part(b"")])

    async def both() -> None:
        scope = scope_of("POST" if verb == "wait" else "GET", f"/v1/{name}:{verb}")
        call = calling(counting, scope, line)
        await until_async(lambda: counting.service.edges.waiters.waiting or len(line.sent) > 1)
        call.cancel()
        await call
        assert (
            counting.service.edges.waiters.waiting,
            counting.service.edges.waiters.watching,
        ) == (0, 0)

    asyncio.run(both())
    if verb == "wait":
        status, headers, body = line.reply
        assert (status, headers[b"retry-after"]) == (503, b"1")
        assert body["error"]["message"] == "the service is stopping"
        assert body["error"]["details"][1]["retryDelay"] == "1s"
    else:
        assert line.sent[-1] == {"type": "http.response.body", "body": b""}


def test_watch_of_a_stopping_service_gets_503() -> None:
    """Once the service stops, Watch gets a 503 like other calls, not a stream that ends at once."""
    counting, name = begun()
    counting.service.edges.end_waits()
    line = serve(OperationsApp(counting.service), scope_of("GET", f"/v1/{name}:watch"))
    status, headers, _ = line.reply
    assert (status, headers[b"retry-after"]) == (503, b"1")


# -- mounted ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("more", "resource"),
    [
        ({}, "operations/a%2Fb"),
        ({"root_path": "/api", "prefix": "/api"}, "operations/a%2Fb"),
        ({"root_path": "/ü x", "prefix": "/%C3%BC%20x"}, "operations/a%2Fb"),
        ({"root_path": "/api"}, "operations/a%2Fb"),
        ({"root_path": "/api/sub", "app_root_path": "/api", "prefix": "/sub"}, "operations/a%2Fb"),
        ({"raw_path": b""}, "operations/a/b"),
        ({"raw_path": b"/stale"}, "operations/a/b"),
        ({"raw_path": b"/v1/operations/a%2Fb?x=y"}, "operations/a%2Fb"),
    ],
)
def test_raw_path_is_read_below_the_mount(more: dict[str, Any], resource: str) -> None:
    """The path of the mount point is removed from the raw path."""
    prefix = more.pop("prefix", "")
    scope = {**scope_of("GET", f"{prefix}/v1/operations/a%2Fb"), **more}
    status, _, body = serve(OperationsApp(build().service), scope).reply
    assert (status, body["error"]["details"][1]["resourceName"]) == (404, resource)


def test_unescaped_bytes_in_a_path_are_read_as_utf8() -> None:
    """Unescaped UTF-8 in a path is accepted, but other unescaped bytes are refused (spec §5.3)."""
    app = OperationsApp(build().service)
    good = scope_of("GET", "/", path="/v1/operations/ü", raw_path="/v1/operations/ü".encode())
    assert serve(app, good).reply[2]["error"]["details"][1]["resourceName"] == "operations/ü"
    bad = scope_of("GET", "/", path="/v1/operations/\udcff", raw_path=b"/v1/operations/\xff")
    assert serve(app, bad).reply[0] == 400


async def other(scope: Message, receive: Any, send: Any) -> None:
    """An application behind the edge, which answers with the type of its scope."""
    await send({"type": "http.response.start", "status": 299, "headers": []})
    await send({"type": "http.response.body", "body": json.dumps(scope["type"]).encode()})


@pytest.mark.parametrize(
    ("scope", "status"),
    [
        (scope_of("GET", "/v1/operations"), 200),
        (scope_of("PUT", "/v1/operations"), 405),
        (scope_of("GET", "/v1/operations/x"), 404),
        (scope_of("GET", "/v1/operations/x/"), 299),
        (scope_of("GET", "/images"), 299),
        (scope_of("GET", "/%zz"), 299),
        ({"type": "websocket", "path": "/v1/operations"}, 299),
    ],
)
def test_fallback_gets_paths_that_are_not_served(scope: Message, status: int) -> None:
    """The edge passes a request to the fallback if the path is none of the edge's routes."""
    assert serve(OperationsApp(build().service, fallback=other), scope).reply[0] == status


async def without_lifespan(scope: Message, receive: Any, send: Any) -> None:
    """An application that ignores lifespan events."""


async def hasty(scope: Message, receive: Any, send: Any) -> None:
    """An application for requests only, which fails after it has received the startup event."""
    await receive()
    raise KeyError("path")


@pytest.mark.parametrize("behind", [None, without_lifespan, hasty])
def test_lifespan_closes_the_service(behind: Any, counting: CountService) -> None:
    """Whatever the fallback does, the shutdown event of the server closes the service."""
    starts = [{"type": "lifespan.startup"}, {"type": "lifespan.shutdown"}]
    line = serve(OperationsApp(counting.service, fallback=behind), {"type": "lifespan"}, *starts)
    wanted = ["lifespan.startup.complete", "lifespan.shutdown.complete"]
    assert [message["type"] for message in line.sent] == wanted
    with pytest.raises(lro.errors.Unavailable):
        counting.start()


def test_lifespan_events_reach_the_mounted_application(counting: CountService) -> None:
    """The fallback gets startup, and shutdown after the service; its errors reach the server."""

    async def listening(scope: Message, receive: Any, send: Any) -> None:
        while (message := await receive())["type"] != "lifespan.shutdown":
            assert counting.start()
            await send({"type": f"{message['type']}.complete"})
        with pytest.raises(lro.errors.Unavailable, match="the service is closed"):
            counting.start()
        raise OSError("cannot stop")

    starts = [{"type": "lifespan.startup"}, {"type": "lifespan.shutdown"}]
    with pytest.raises(OSError, match="cannot stop"):
        serve(OperationsApp(counting.service, fallback=listening), {"type": "lifespan"}, *starts)


def test_websockets_are_refused() -> None:
    """The caller of a WebSocket gets 403, and the server logs no traceback."""
    scope = {"type": "websocket", "path": "/v1/operations"}
    assert serve(OperationsApp(build().service), scope).sent == [{"type": "websocket.close"}]
    with pytest.raises(ValueError, match="not telnet"):  # ASGI requires an error
        serve(OperationsApp(build().service), {"type": "telnet"})


@pytest.mark.parametrize("make", [asgi.OperationsApp, wsgi.OperationsApp])
def test_wrong_arguments_of_an_application_are_refused(make: Any, counting: CountService) -> None:
    """An application of the edge needs a Service, and its fallback must be a callable."""
    with pytest.raises(lro.DeclarationError, match="service: must be a Service"):
        make(counting)
    with pytest.raises(lro.DeclarationError, match=r"fallback: must be an? (A|W)SGI"):
        make(counting.service, fallback="an application")


def wsgi_app(environ: Any, start_response: Any) -> list[bytes]:
    """A WSGI application."""
    return []


class Application:
    """An ASGI application that is an object."""

    async def __call__(self, *_: Any) -> None:
        """Do nothing."""


def test_wsgi_fallback_of_an_asgi_application_is_refused() -> None:
    """A fallback of the wrong kind, ASGI or WSGI, is refused at once, not at its first request."""
    service = build().service
    made: dict[Any, tuple[str, list[Any], list[Any]]] = {
        asgi.OperationsApp: (
            "an ASGI application, which takes scope, receive and send, got ",
            [wsgi_app, wsgi.OperationsApp(service)],
            [Application(), other],
        ),
        wsgi.OperationsApp: (
            "a WSGI application, which takes environ and start_response, got ",
            [other, asgi.OperationsApp(service)],
            [wsgi_app, max],  # Python may not know the parameters of C functions
        ),
    }
    for make, (wanted, wrong, right) in made.items():
        for one in wrong:
            with pytest.raises(lro.DeclarationError, match=f"fallback: must be {wanted}"):
                make(service, fallback=one)
        assert all(make(service, fallback=one) for one in right)
    with pytest.raises(lro.DeclarationError, match="fallback: must be a plain function"):
        wsgi.OperationsApp(service, fallback=Application())  # type: ignore[arg-type]
