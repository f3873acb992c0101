"""The HTTP edge as ASGI applications, to mount in Starlette or FastAPI, or to serve alone."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import (
    Awaitable,
    Callable,
    Iterable,
    Iterator,
    Mapping,
    MutableMapping,
    Sequence,
)
from datetime import timedelta
from typing import Any, Final, TypeAlias, TypeVar, Unpack
from urllib.parse import unquote

from lro._base.arguments import check_takes
from lro._base.errors import LroError, MalformedRequest, RouteNotFound
from lro._engine.flow import on_loop
from lro._engine.limits import ReplyReservation
from lro._engine.runtime import stopping
from lro._engine.service import Service
from lro._http.edge import EdgeKeywords, OperationsEdge, RouteResult
from lro._http.requests import mount_path, raw_form, strip_mount, wire_text
from lro._http.responses import JSON_HEADERS, EventStream, HttpReply
from lro._http.routes import HttpRequest, http_request
from lro._model.operation import Operation

__all__ = ["App", "EdgeApp", "OperationsApp", "Receive", "Scope", "Send"]

Scope: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send: TypeAlias = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]

T = TypeVar("T")

MAX_HEADERS: Final = 1000
"""Maximum number of headers of a request; a repeated header counts each time."""

_PIECE: Final = 256 * 1024
"""Size, in bytes, of the pieces of a reply that the server gets, because it copies each piece."""

_BODILESS: Final = frozenset({"GET", "HEAD", "DELETE", "OPTIONS"})
"""HTTP methods whose body is ignored (spec §5.9(4)), so it is not read."""

_LAST_SECONDS: Final = 1.0
"""Maximum seconds for the last send of a cancelled call, whose caller may no longer read it."""


class EdgeApp:
    """An edge, such as a console or metrics, as an ASGI application, to mount or to serve alone.

    ``fallback`` is the application that gets all paths that the edge does not serve, for frameworks
    that cannot mount. When the server stops, the service is closed, unless this application is
    mounted in another application.

    Raises:
        DeclarationError: ``fallback`` is not an ASGI application.
    """

    edge: OperationsEdge

    def __init__(self, edge: OperationsEdge, fallback: App | None = None) -> None:
        if fallback is not None:
            wanted = "an ASGI application, which takes scope, receive and send"
            check_takes("fallback", fallback, 3, wanted)
        self.edge = edge
        self._fallback = fallback

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The ASGI interface."""
        edge = self.edge
        if edge.service.edges.background.pending:
            edge.service.edges.start_maintenance()  # the first call is for lifespan
        if scope["type"] == "http":
            path = raw_path(scope)
            if path == "/":
                path = edge.path_at(path, scope["path"])
            found = edge.route(scope["method"], path, shared=self._fallback is not None)
            if self._fallback is None or not isinstance(found, RouteNotFound | MalformedRequest):
                await respond(edge, scope, receive, send, path=path, found=found)
                return
        if scope["type"] == "lifespan":
            await self._lifespan(scope, receive, send)
        elif self._fallback is not None:
            await self._fallback(scope, receive, send)
        elif scope["type"] == "websocket":
            # The websocket is closed before it is accepted, so the caller gets 403.
            await send({"type": "websocket.close"})
        else:
            raise ValueError(f"lro serves http, not {scope['type']}")

    async def _lifespan(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._fallback is None:
            await live(self.edge.service, receive, send)
            return
        received = answered = False

        async def receive_noted() -> MutableMapping[str, Any]:
            nonlocal received
            message = await receive()
            received = True
            if message["type"] == "lifespan.shutdown":
                await self.edge.service.edges.shut_down()
            return message

        async def send_noted(message: MutableMapping[str, Any]) -> None:
            nonlocal answered
            answered = True
            if message["type"] == "lifespan.startup.complete":
                await self.edge.service.edges.start_up()
            await send(message)

        try:
            await self._fallback(scope, receive_noted, send_noted)
        except Exception:
            if answered:
                raise
        if not answered:  # the application does not implement lifespan
            if received:
                await send({"type": "lifespan.startup.complete"})
            await live(self.edge.service, receive, send)


class OperationsApp(EdgeApp):
    """Serve the verbs, and the methods that callers can start, as an ASGI application.

    ``fallback`` is the application that gets all other paths, websockets, and the server's start
    and stop. A framework that cannot mount applications, such as Django, can be the fallback. When
    the server stops, this application closes the service before it tells ``fallback``, which may
    then close resources that running work uses. A server does not notify a mounted application when
    it stops, so the framework's application must close the service. The other options are those of
    :class:`lro.http.OperationsEdge`.

    When a caller disconnects, the resources of the call are freed (spec §4.8). If a stopping server
    cancels a call, the answer is UNAVAILABLE, unless an answer has begun. A stream that has begun
    is ended properly.

    Raises:
        DeclarationError: ``fallback`` is not an ASGI application; or as for ``OperationsEdge``.
    """

    def __init__(
        self, service: Service, *, fallback: App | None = None, **options: Unpack[EdgeKeywords]
    ) -> None:
        super().__init__(OperationsEdge(service, **options), fallback)


async def live(service: Service, receive: Receive, send: Send) -> None:
    """Answer the server's start by opening the service, and its stop by closing the service."""
    while True:
        message = await receive()
        if message["type"] == "lifespan.startup":
            await service.edges.start_up()
            await send({"type": "lifespan.startup.complete"})
        else:
            await service.edges.shut_down()
            await send({"type": "lifespan.shutdown.complete"})
            return


async def respond(
    edge: OperationsEdge,
    scope: Scope,
    receive: Receive,
    send: Send,
    *,
    path: str,
    found: RouteResult | None = None,
    caller: str | None = None,
    read: Callable[[], Awaitable[bytes | None]] | None = None,
) -> None:
    """Let an edge answer a call to the raw path ``path``.

    ``found`` is the result of ``edge.route``, if it was already called. ``caller`` is the caller's
    name, if a framework has found it. ``read`` replaces :func:`read_body` for a framework that may
    already have read the body, for instance to check a signature.
    """
    sender = _Sender(send)
    try:
        body = b""
        if scope["method"] not in _BODILESS:
            received = await (read() if read else read_body(receive, edge.options.max_body))
            if received is None:
                return  # the caller disconnected before the request was complete
            body = received
        request = request_of(scope, path, body, caller, receive)
        answer = await on_loop(edge.exchange(request, found))
        if isinstance(answer, EventStream):
            await while_there(receive, sender.stream(answer))
        elif answer.reserved is None:
            await sender.send(answer)
        else:
            await sender.send_reserved(answer, answer.reserved)
    except GoneAway as gone:
        if gone.__cause__ is not None:
            # Raise the error of the connection, which the server must see.
            raise gone.__cause__ from None
    except asyncio.CancelledError:  # the server is stopping
        if not sender.begun:
            refusal = edge.refusal(request_of(scope, path, b"", caller), stopping())
            await _in_time(sender.send(refusal))
        elif not sender.over:
            raise


class GoneAway(BaseException):
    """The caller has disconnected. A BaseException, because an Exception would become a reply."""


async def read_body(receive: Receive, limit: int) -> bytes | None:
    """Read the body until it ends or exceeds the limit; return None if the caller disconnected."""
    pieces = bytearray()
    while len(pieces) <= limit:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        body, more = message.get("body", b""), message.get("more_body")
        if not more and not pieces:
            return bytes(body)  # most bodies have one piece, which need not be copied
        pieces += body
        if not more:
            break
    return bytes(pieces)


class _Headers(Mapping[str, str]):
    """Headers that are decoded at the first access, because most polls need none.

    The first access raises MalformedRequest if there are more than :data:`MAX_HEADERS` headers.
    """

    def __init__(self, raw: Sequence[tuple[bytes, bytes]]) -> None:
        self._raw = raw
        self._values: dict[str, str] | None = None

    @property
    def _decoded(self) -> dict[str, str]:
        if self._values is None:  # a cached_property would take a lock
            if len(self._raw) > MAX_HEADERS:
                raise MalformedRequest("headers", f"must be at most {MAX_HEADERS}")
            self._values = _decode(self._raw)
        return self._values

    def __getitem__(self, name: str) -> str:
        return self._decoded[name]

    def get(self, name: str, default: Any = None) -> Any:
        return self._decoded.get(name, default)

    def __iter__(self) -> Iterator[str]:
        return iter(self._decoded)

    def __len__(self) -> int:
        return len(self._decoded)


def _decode(raw: Iterable[tuple[bytes, bytes]]) -> dict[str, str]:
    """Return headers by name; the values of a repeated header are joined (RFC 9110 §5.3)."""
    found: dict[str, str] = {}
    for raw_name, raw_value in raw:
        name, value = raw_name.decode("latin-1"), raw_value.decode("latin-1")
        found[name] = f"{found[name]}, {value}" if name in found else value
    return found


def request_of(
    scope: Scope,
    path: str,
    body: bytes = b"",
    caller: str | None = None,
    receive: Receive | None = None,
) -> HttpRequest:
    """Return the request of a scope; ``path`` is its raw path.

    ``receive`` is called after the body was read, to learn that the caller disconnects.
    """
    method, query, client = scope["method"], scope.get("query_string"), scope.get("client")
    raw = scope["headers"]
    if not isinstance(raw, list):
        raw = list(raw)
    late = method in _BODILESS or len(raw) > MAX_HEADERS
    fields = {
        "method": method,
        "path": path,
        "query": wire_text(query) if query else "",
        "headers": _Headers(raw) if late else _decode(raw),
        "body": body,
        "scheme": scope.get("scheme", "http"),
        "native": scope,
        "caller": caller,
        "peer": client[0] if client else "",
        "mount": _mount,
        "while_connected": None if receive is None else functools.partial(while_there, receive),
        "one_thread": False,
    }
    return http_request(fields)


def _mount(request: HttpRequest) -> str | None:
    """Return the part of the path before ``request.path``, as the caller knows it.

    Usually ``root_path`` is the beginning of the path. Behind a proxy that strips a prefix from the
    path, ``root_path`` is that prefix, or the prefix and a mount point, and the path begins after
    the prefix.
    """
    scope: Scope = request.native
    root = scope.get("root_path", "")
    raw = raw_form(wire_text(scope.get("raw_path") or b"").partition("?")[0], scope["path"])
    if not raw.endswith(request.path):
        return None
    cut_off = ""
    if strip_mount(raw, root) is None:
        inner = root.removeprefix(scope.get("app_root_path", ""))
        cut_off = root if strip_mount(raw, inner) is None else root.removesuffix(inner)
    return mount_path(cut_off + unquote(raw.removesuffix(request.path), errors="surrogateescape"))


def raw_path(scope: Scope) -> str:
    """Return the raw path below the mount point of the application."""
    root, path = scope.get("root_path", ""), scope["path"]
    if not root and path.isascii() and scope.get("raw_path") == path.encode("ascii"):
        return str(path)  # the path has no escapes, and nothing is mounted
    raw = raw_form(wire_text(scope.get("raw_path") or b"").partition("?")[0], path)
    # Behind a proxy that strips a prefix, the path has the mount point, but not the prefix.
    for mount in (root, root.removeprefix(scope.get("app_root_path", ""))):
        below = strip_mount(raw, mount)
        if below is not None:
            return below
    return raw


async def while_there(receive: Receive, waiting: Awaitable[T]) -> T:
    """Await something; cancel it when the caller disconnects.

    Raises:
        GoneAway: The caller has disconnected.
    """
    wait = asyncio.ensure_future(waiting)
    gone = asyncio.ensure_future(_disconnected(receive))
    try:
        await asyncio.wait({wait, gone}, return_when=asyncio.FIRST_COMPLETED)
        if wait.done():
            return wait.result()
        raise GoneAway from gone.exception()
    finally:
        wait.cancel()
        gone.cancel()
        await asyncio.gather(wait, gone, return_exceptions=True)


async def waited(
    service: Service,
    name: str,
    seconds: timedelta | float | None,
    caller: str,
    receive: Receive | None,
) -> Operation | None:
    """Wait for an operation; return the operation when it is done or the time has passed.

    Return None if the wait fails: too many calls wait, Wait is refused or switched off, or
    ``receive`` reports that the caller disconnected.
    """
    service.edges.end_waits_at_signals()
    wait: Awaitable[Operation] = service.wait_async(name, seconds, caller=caller)
    try:
        return await (wait if receive is None else while_there(receive, wait))
    except (LroError, GoneAway):
        return None


async def _disconnected(receive: Receive) -> None:
    for _ in range(2):  # middleware may repeat the end of the body
        if (await receive())["type"] == "http.disconnect":
            return
    # Do not spin: middleware that repeats the body for ever never reports a disconnect.
    await asyncio.get_running_loop().create_future()


_ENCODED: Final = [(n.encode("latin-1"), v.encode("latin-1")) for n, v in JSON_HEADERS]
"""The first headers of most replies, encoded once."""


async def _in_time(sending: Awaitable[None]) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_LAST_SECONDS):
            await sending


class _Sender:
    """Sends the answer to one call, and knows whether the answer has begun and has ended."""

    begun = over = False

    def __init__(self, send: Send) -> None:
        self._send = send

    async def send(self, reply: HttpReply) -> None:
        """Send a whole reply."""
        body = reply.body
        await self._begin(reply, len(body))
        if len(body) > _PIECE:
            for begin in range(0, len(body) - _PIECE, _PIECE):
                piece = body[begin : begin + _PIECE]
                await self._send({"type": "http.response.body", "body": piece, "more_body": True})
            body = body[-(len(body) % _PIECE or _PIECE) :]
        await self._send({"type": "http.response.body", "body": body})
        self.over = True

    async def send_reserved(self, reply: HttpReply, turn: ReplyReservation) -> None:
        """Send a reply with reserved bytes, and free the bytes."""
        try:
            with contextlib.suppress(GoneAway), _broken_off_if_slow(turn):
                await self.send(reply)
        finally:
            turn.release()

    async def stream(self, reply: EventStream) -> None:
        """Send a streaming reply piece by piece."""
        async with contextlib.aclosing(reply.events) as events:
            await self._begin(reply)
            try:
                async for piece in events:
                    with _broken_off_if_slow(reply.held()):
                        message = {"type": "http.response.body", "body": piece, "more_body": True}
                        await self._send(message)
            except asyncio.CancelledError:  # the caller has disconnected, or the server is stopping
                await _in_time(self._end())
                raise
        await self._end()

    def _begin(self, reply: HttpReply | EventStream, length: int = 0) -> Awaitable[None]:
        headers: list[tuple[bytes, bytes]] = []
        own = reply.headers
        if own[: len(_ENCODED)] == JSON_HEADERS:
            headers, own = [*_ENCODED], own[len(_ENCODED) :]
        for name, value in own:
            headers.append((name.encode("latin-1"), value.encode("latin-1")))
        if length:
            headers.append((b"content-length", b"%d" % length))
        self.begun = True
        start = {"type": "http.response.start", "status": reply.status, "headers": headers}
        return self._send(start)

    async def _end(self) -> None:
        await self._send({"type": "http.response.body", "body": b""})
        self.over = True


@contextlib.contextmanager
def _broken_off_if_slow(turn: ReplyReservation | None) -> Iterator[None]:
    """Let calls that wait for the reserved bytes abort a send that takes too long.

    Raises:
        GoneAway: The send was aborted.
    """
    if turn is None:
        yield
        return
    task, loop = asyncio.current_task(), asyncio.get_running_loop()
    assert task is not None
    state = {"sending": True, "cut": False}

    def cut() -> None:
        if state["sending"]:
            state["cut"] = task.cancel()

    try:
        with turn.sending(functools.partial(loop.call_soon_threadsafe, cut)):
            yield
    except asyncio.CancelledError:
        if not state["cut"]:
            raise
        task.uncancel()
        raise GoneAway from None
    finally:
        state["sending"] = False
