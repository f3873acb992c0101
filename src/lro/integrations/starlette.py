"""Operations in a Starlette application: routes, callers, starts.

Needs the extra ``starlette``.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, ClassVar, TypeAlias, TypeVar, Unpack
from urllib.parse import unquote

import attrs

from lro import Method
from lro.asgi import Receive, Scope, Send, raw_path, request_of, respond
from lro.errors import LroError, MissingExtra
from lro.http import (
    EndpointStartKeywords,
    HttpReply,
    HttpRequest,
    OperationsEdge,
    mount_path,
    on_loop,
)
from lro.integrations._base import (
    FrameworkOperations,
    PathRule,
    error_of,
    gone_away,
    heard_by,
    path_below,
    rules_by_path,
)

try:
    from starlette.exceptions import HTTPException
    from starlette.requests import ClientDisconnect, Request
    from starlette.responses import Response
    from starlette.routing import BaseRoute, NoMatchFound, Route
except ImportError as _exc:
    raise MissingExtra("the integration into Starlette", "starlette") from _exc

__all__ = ["StarletteOperations"]

Req = TypeVar("Req")
Meta = TypeVar("Meta")
FindCaller: TypeAlias = Callable[[Request], str | Awaitable[str | None] | None]


class StarletteOperations(FrameworkOperations[FindCaller, Response]):
    """A service in a Starlette application.

    ``caller`` gives the caller's name for a request, or None for a caller without a name; an
    HTTPException that it raises refuses the call. Plain functions are called in a thread.
    ``console`` is a path such as ``"/console"`` at which the console is served, or an
    :class:`lro.console.Console`; without ``caller`` it answers only on this machine. ``starts`` and
    the other options are those of :class:`lro.http.OperationsEdge`.

    Raises:
        DeclarationError: As for ``OperationsEdge``; or the service has ``owner_only`` and there is
            no ``caller``.
    """

    refusal: ClassVar[type[Exception]] = HTTPException

    def arguments(self, native: Any) -> tuple[Any, ...]:
        """Return the request."""
        return (Request(native),)

    def ours(self, error: HTTPException) -> LroError:
        """Return the error of ours for an HTTP exception."""
        return error_of(error.status_code, error.detail, error.headers)

    def response(self, reply: HttpReply) -> Response:
        """Return the reply as a response of the framework."""
        return Response(*reply.parts)

    @property
    def routes(self) -> list[BaseRoute]:
        """The routes, for ``Starlette(routes=...)`` or a ``Mount``."""
        return [
            Route(path, _Endpoint(edge, rule), methods=methods, name=rule.rpc)
            for edge in self.edges
            for path, (rule, methods) in rules_by_path(edge, "{*}", "{*:path}").items()
        ]

    async def start(
        self,
        request: Request,
        method: Method[Req, Any, Meta],
        message: Req | None = None,
        **options: Unpack[EndpointStartKeywords[Meta]],
    ) -> Response:
        """Start an operation for a request; return the operation, or the error.

        The caller is that of the request. ``requestId`` and ``validateOnly`` count if the request's
        JSON body has them. Without ``message`` the body is the message. The rest is as for
        ``Method.start``.
        """
        try:
            wanted = await request_with_body(self.edge, request)
        except LroError as exc:
            asked = request_of(request.scope, raw_path(request.scope))
            return self.refuse(asked, exc)
        return await on_loop(self.started(wanted, method, message, options))


async def request_with_body(
    edge: OperationsEdge, request: Request, caller: str | None = None
) -> HttpRequest:
    """A request to an endpoint, with its body, which is read until it is over the limit at most.

    Raises:
        StatusError: The caller has gone away.
    """
    body = await read_once(request, edge.options.max_body)
    if body is None:
        raise gone_away()
    asked = heard_by(
        request_of(request.scope, raw_path(request.scope), body, caller), request.receive
    )
    return attrs.evolve(asked, mount=lambda _: _mount(request))


async def read_once(request: Request, limit: int) -> bytes | None:
    """The body, also if the application has read it; as for :func:`lro.asgi.read_body`.

    It is empty if only a form is left of it.
    """
    body = bytearray()
    try:
        async for piece in request.stream():
            body += piece
            if len(body) > limit:
                break
    except ClientDisconnect:
        return None
    except RuntimeError:
        pass
    return bytes(body)


def _mount(request: Request) -> str | None:
    """The path before those of the operations, which may be anywhere in the application."""
    try:
        path = request.url_for("GetOperation", operation="-").path
    except NoMatchFound:
        return None
    return mount_path(unquote(path.removesuffix("/v1/operations/-")))


class _Endpoint:
    """Answers a route of the edge as an ASGI application, so that it gets every method."""

    def __init__(self, edge: OperationsEdge, rule: PathRule) -> None:
        self._edge, self._rule = edge, rule

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = path_below(scope, self._rule.filled(scope["path_params"]))
        await respond(self._edge, scope, receive, send, path=path)
