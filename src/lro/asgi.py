"""The HTTP edge as ASGI applications, to mount in Starlette, FastAPI, Django, or to serve alone."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any as Anything
from typing import TypeAlias
from urllib.parse import quote

from lro._operation import Operation
from lro._service import Service
from lro.http import Edge, HttpReply, HttpRequest, OperationsEdge, StartEdge, adrive

Scope: TypeAlias = MutableMapping[str, Anything]
Receive: TypeAlias = Callable[[], Awaitable[MutableMapping[str, Anything]]]
Send: TypeAlias = Callable[[MutableMapping[str, Anything]], Awaitable[None]]

_SAFE = "/:@!$&'()*+,;=-._~"


class EdgeApp:
    """Serves an :class:`lro.http.Edge`. A caller who goes away frees its waiter (spec §4.8).

    Served alone, it closes the service when the server stops; mounted, that is the application's
    part, since a mounted application hears nothing of the end.
    """

    def __init__(self, edge: Edge) -> None:
        self.edge = edge

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The ASGI interface."""
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
            return
        if scope["type"] != "http":
            raise ValueError(f"lro serves http, not {scope['type']}")
        body = await _body(receive, self.edge.max_body)
        if body is None:
            return  # the caller went away before the request was complete
        request = _request(scope, body)
        service = self.edge.service

        async def hold(waiting: Awaitable[Operation]) -> object:
            return await _while_there(waiting, receive)

        try:
            reply = await adrive(self.edge.exchange(request), service, hold)
        except _GoneAway:
            return
        await send_reply(reply, send)

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        while True:
            message = await receive()
            if message["type"] == "lifespan.startup":
                await send({"type": "lifespan.startup.complete"})
            else:
                await asyncio.to_thread(self.edge.service.close)
                await send({"type": "lifespan.shutdown.complete"})
                return


class OperationsApp(EdgeApp):
    """The five verbs as an ASGI application; the arguments are those of ``OperationsEdge``."""

    def __init__(self, service: Service, **options: Anything) -> None:
        super().__init__(OperationsEdge(service, **options))


class StartApp(EdgeApp):
    """A starting method as an ASGI application; the arguments are those of ``StartEdge``."""

    def __init__(self, service: Service, method: Anything, **options: Anything) -> None:
        super().__init__(StartEdge(service, method, **options))


class _GoneAway(BaseException):  # not for the exchange, which turns errors into replies
    pass


async def _body(receive: Receive, limit: int) -> bytes | None:
    message = await receive()
    if message["type"] == "http.disconnect":
        return None
    if not message.get("more_body"):
        return bytes(message.get("body", b""))
    body = bytearray(message.get("body", b""))
    while message.get("more_body") and len(body) <= limit:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        body += message.get("body", b"")
    return bytes(body)


def _request(scope: Scope, body: bytes) -> HttpRequest:
    headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
    return HttpRequest(
        method=scope["method"],
        path=_raw_path(scope),
        query=scope.get("query_string", b"").decode("latin-1"),
        headers=headers,
        body=body,
    )


def _raw_path(scope: Scope) -> str:
    raw = scope.get("raw_path")
    path = raw.decode("latin-1").partition("?")[0] if raw else quote(scope["path"], safe=_SAFE)
    root = scope.get("root_path", "")
    if root:
        prefix = quote(root, safe=_SAFE)
        for start in (prefix, root):
            if path.startswith(start):
                return path[len(start) :] or "/"
    return str(path)


async def _while_there(waiting: Awaitable[Operation], receive: Receive) -> Operation:
    wait = asyncio.ensure_future(waiting)
    gone = asyncio.ensure_future(receive())
    try:
        await asyncio.wait({wait, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not wait.done():
            raise _GoneAway
        return wait.result()
    finally:
        wait.cancel()
        gone.cancel()


async def send_reply(reply: HttpReply, send: Send) -> None:
    """Send a reply as an ASGI application does, for the endpoints of your own."""
    headers = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in reply.headers]
    if reply.body:
        headers.append((b"content-length", str(len(reply.body)).encode("ascii")))
    await send({"type": "http.response.start", "status": reply.status, "headers": headers})
    await send({"type": "http.response.body", "body": reply.body})
