"""Operations in a Starlette application: its routes, callers and starts.

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
FindCaller: TypeAlias = Callable[[Request], str | int | Awaitable[str | int | None] | None]


class StarletteOperations(FrameworkOperations[FindCaller, Response]):
    """A service in a Starlette application.

    ``caller`` returns the name of a request's caller, or None for a caller without a name; it may
    raise an HTTPException to refuse the call. A plain function is called in a thread.
    ``console`` is a path such as ``"/console"`` at which the console is served, or an
    :class:`lro.console.Console`; without ``caller`` it answers only on this machine. ``starts`` and
    the other options are those of :class:`lro.http.OperationsEdge`.

    Raises:
        DeclarationError: As for ``OperationsEdge``; or the service has ``owner_only`` and there is
            no ``caller``.
    """

    refusal: ClassVar[type[Exception]] = HTTPException

    def arguments(self, native: Any) -> tuple[Any, ...]:
        """Return the ASGI scope as a request of Starlette."""
        return (Request(native),)

    def ours(self, error: HTTPException) -> LroError:
        """Convert an HTTP exception to an error of this library."""
        return error_of(error.status_code, error.detail, error.headers)

    def response(self, reply: HttpReply) -> Response:
        """Convert a reply to a response of Starlette."""
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

        The caller is that of the request. ``requestId`` and ``validateOnly`` in the JSON body are
        honoured. Without ``message``, the body is the message. The other arguments are those of
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
    """Return the request to an endpoint with its body, read until it ends or exceeds the limit.

    Raises:
        StatusError: The caller has disconnected.
    """
    body = await read_once(request, edge.options.max_body)
    if body is None:
        raise gone_away()
    asked = heard_by(
        request_of(request.scope, raw_path(request.scope), body, caller), request.receive
    )
    return attrs.evolve(asked, mount=lambda _: _mount(request))


async def read_once(request: Request, limit: int) -> bytes | None:
    """Return the body as :func:`lro.asgi.read_body` does, even if the application has read it.

    The body is empty if the application has read it as a form and Starlette has not kept it.
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
    """Return the path before ``/v1/operations``, as our routes can be mounted anywhere."""
    try:
        path = request.url_for("GetOperation", operation="-").path
    except NoMatchFound:
        return None
    return mount_path(unquote(path.removesuffix("/v1/operations/-")))


class _Endpoint:
    """An ASGI application that answers a route of the edge, with every HTTP method."""

    def __init__(self, edge: OperationsEdge, rule: PathRule) -> None:
        self._edge, self._rule = edge, rule

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = path_below(scope, self._rule.filled(scope["path_params"]))
        await respond(self._edge, scope, receive, send, path=path)
