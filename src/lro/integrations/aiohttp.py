"""Operations in an aiohttp server: routes, callers, start and stop with the application."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from typing import Any, ClassVar, Final, TypeAlias, TypeVar, Unpack

import attrs

from lro import Method
from lro.asgi import Scope, request_of, respond
from lro.errors import LroError, MalformedRequest, MissingExtra, RequestTooLarge, check_instance
from lro.http import EndpointStartKeywords, HttpReply, HttpRequest, OperationsEdge, on_loop
from lro.integrations._base import (
    FrameworkOperations,
    PathRule,
    below_prefix,
    error_of,
    gone_away,
    heard_by,
    rules_by_path,
)

try:
    from aiohttp import web
except ImportError as _exc:
    raise MissingExtra("lro.integrations.aiohttp", "aiohttp") from _exc

Req = TypeVar("Req")
Meta = TypeVar("Meta")
FindCaller: TypeAlias = Callable[[web.Request], str | int | Awaitable[str | int | None] | None]

_LOOK_SECONDS: Final = 0.5
"""Seconds between checks whether a caller has disconnected, which aiohttp does not report."""


class AiohttpOperations(FrameworkOperations[FindCaller, web.Response]):
    """The operations of a service, for an aiohttp application.

    ``caller`` returns the name of a request's caller, or None for a caller without a name. It is a
    plain function, called in a thread, or a coroutine function. It may raise aiohttp's HTTP
    exceptions and :class:`lro.errors.Unauthenticated`. The other options are those of
    :class:`lro.http.OperationsEdge`. With ``starts``, POSTs to these paths start operations.
    ``console`` is a path such as ``"/console"`` at which the console is served, or an
    :class:`lro.console.Console`; without ``caller`` it answers only on this machine.

    Raises:
        DeclarationError: As for ``OperationsEdge``.
    """

    refusal: ClassVar[type[Exception]] = web.HTTPException
    _operation: web.Resource | None = None

    def arguments(self, native: Any) -> tuple[Any, ...]:
        """Return the aiohttp request, the only argument of ``caller``."""
        return (native["aiohttp.request"],)

    def ours(self, error: web.HTTPException) -> LroError:
        """Convert an HTTP exception to an error of this library."""
        return error_of(error.status, error.text or error.reason, error.headers)

    def response(self, reply: HttpReply) -> web.Response:
        """Convert a reply to a response of aiohttp."""
        body, status, headers = reply.parts
        return web.Response(body=body, status=status, headers=headers)

    def setup(self, app: web.Application) -> None:
        """Serve the operations in an aiohttp application or subapplication.

        The service starts and stops with the application. Resources that you added to
        ``cleanup_ctx`` before this call are closed after the service, so running work can use them.
        """
        check_instance("app", app, web.Application, "an aiohttp.web.Application")
        for edge in self.edges:
            for path, (rule, methods) in rules_by_path(edge, "{*}", "{*:(?s:.+)}").items():
                resource = app.router.add_resource(path)
                if rule.rpc == "GetOperation" and rule.parts[0] == "/v1/operations/":
                    self._operation = resource
                for method in sorted(methods):
                    resource.add_route(method, functools.partial(self._answer, edge, rule))
        app.cleanup_ctx.append(self._running)
        app.on_shutdown.append(self._end_waits)

    async def start(
        self,
        request: web.Request,
        method: Method[Req, Any, Meta],
        message: Req | None = None,
        **options: Unpack[EndpointStartKeywords[Meta]],
    ) -> web.Response:
        """Start an operation for a request, in a handler of your own.

        The caller is that of the request. ``requestId`` and ``validateOnly`` in the JSON body are
        honoured. Without ``message``, the body is the message. The other arguments are those of
        ``Method.start``.

        Returns:
            The response: the operation, or the error.
        """
        scope = _scope(request)
        path = _raw_path(scope)
        try:
            body = await request.read()
        except web.HTTPRequestEntityTooLarge as exc:
            error: LroError = RequestTooLarge("body", exc.text or exc.reason)
            return self.refuse(request_of(scope, path), error)
        except web.RequestPayloadError:
            return self._unreadable(scope, path)
        except OSError:  # the caller left before the end of the body
            return self.refuse(request_of(scope, path), gone_away())
        asked = attrs.evolve(request_of(scope, path, body), mount=self._mount)
        asked = heard_by(asked, _Exchange(request).receive)
        return await on_loop(self.started(asked, method, message, options))

    def _mount(self, _: HttpRequest) -> str | None:
        """Return the path before ``/v1/operations``, with the prefix of a subapplication."""
        if self._operation is None:
            return None
        path = self._operation.url_for(operation="-").raw_path
        return path.removesuffix("/v1/operations/-")

    async def _answer(
        self, edge: OperationsEdge, rule: PathRule, request: web.Request
    ) -> web.StreamResponse:
        scope, exchange = _scope(request), _Exchange(request)
        path = below_prefix(_raw_path(scope), request.path, rule.filled(request.match_info))
        try:
            await respond(edge, scope, exchange.receive, exchange.send, path=path)
        except web.RequestPayloadError:
            return self._unreadable(scope, path)
        return exchange.response or web.Response(status=499)  # the caller has disconnected

    def _unreadable(self, scope: Scope, path: str) -> web.Response:
        error = MalformedRequest("body", "could not be read to its end")
        response = self.refuse(request_of(scope, path), error)
        response.force_close()  # the start of the next request cannot be found
        return response

    async def _running(self, app: web.Application) -> AsyncIterator[None]:
        async with self.edge.service.lifespan(app):
            yield

    async def _end_waits(self, _: web.Application) -> None:
        await asyncio.to_thread(self.edge.service.edges.end_waits)


def _scope(request: web.Request) -> Scope:
    """Return the parts of an ASGI scope that the edge reads."""
    path, _, query = request.raw_path.partition("?")
    return {
        "type": "http",
        "method": request.method,
        "path": request.path,
        "raw_path": path.encode("latin-1", "replace"),
        "query_string": query.encode("latin-1", "replace"),
        "headers": [(name.lower(), value) for name, value in request.raw_headers],
        "scheme": request.scheme,
        "client": (request.remote, 0) if request.remote else None,
        "aiohttp.request": request,
    }


def _raw_path(scope: Scope) -> str:
    raw: bytes = scope["raw_path"]
    return raw.decode("latin-1")


class _Exchange:
    """The ASGI functions with which the edge reads a request of aiohttp and answers it."""

    def __init__(self, request: web.Request) -> None:
        self.response: web.StreamResponse | None = None
        self._request = request
        self._read = False

    async def receive(self) -> MutableMapping[str, Any]:
        """Return the next part of the body; after its end, wait until the caller disconnects.

        Exceptions that aiohttp raises for a body that does not match its encoding propagate.
        """
        if not self._read:
            try:
                body = await self._request.content.readany()
            except OSError:  # the caller left before the end of the body
                return {"type": "http.disconnect"}
            more = not self._request.content.at_eof()
            self._read = not more
            return {"type": "http.request", "body": body, "more_body": more}
        while self._request.transport is not None and not self._request.transport.is_closing():
            await asyncio.sleep(_LOOK_SECONDS)
        return {"type": "http.disconnect"}

    async def send(self, message: MutableMapping[str, Any]) -> None:
        """Send the head of the answer, or a part of its body."""
        if message["type"] == "http.response.start":
            headers = [
                (name.decode(), value.decode("latin-1")) for name, value in message["headers"]
            ]
            self.response = web.StreamResponse(status=message["status"], headers=headers)
            await self.response.prepare(self._request)
            return
        assert self.response is not None  # the edge sends the head first
        await self.response.write(message["body"])
        if not message.get("more_body"):
            await self.response.write_eof()


__all__ = ["AiohttpOperations"]
