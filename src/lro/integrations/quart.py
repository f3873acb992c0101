"""Operations in a Quart application: views, callers, starts.

Needs the extra ``quart``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, Unpack, cast

from lro import Method, Service
from lro.asgi import Scope, raw_path, request_of
from lro.errors import LroError, MissingExtra
from lro.http import (
    EndpointStartKeywords,
    EventStream,
    HttpReply,
    HttpRequest,
    IntegrationKeywords,
    OperationsEdge,
    Starts,
    on_loop,
)
from lro.integrations._base import (
    PathRule,
    caller_hook,
    edges_with,
    error_of,
    make_edge,
    mounted_at,
    path_below,
    rules_by_path,
    start_reply,
)

try:
    from quart import Quart, Response, request
    from werkzeug.exceptions import HTTPException
except ImportError as _exc:
    raise MissingExtra("the integration into Quart", "quart") from _exc

if TYPE_CHECKING:
    from lro.console import Console

__all__ = ["Operations"]

Req = TypeVar("Req")
Meta = TypeVar("Meta")
FindCaller: TypeAlias = Callable[[], str | Awaitable[str | None] | None]
View: TypeAlias = Callable[..., Any]


class Operations:
    """A service in a Quart application: ``Operations(service, ...).init_app(app)``.

    ``caller`` gives the caller's name, or None for a caller without a name; it is called in the
    context of the request, so that ``quart.request`` and ``current_user`` of Quart-Auth are there.
    A plain function is called in a thread. An HTTPException that it raises, as ``abort`` does,
    refuses the call. ``decorators`` are put around the views of the operations and ``starts``,
    such as ``login_required``. ``console`` is a path such as ``"/console"`` at which the console is
    served, or an :class:`lro.console.Console`; without ``caller`` it answers only on this machine.
    The other options are those of :class:`lro.http.OperationsEdge`.

    Raises:
        DeclarationError: As for ``OperationsEdge``; or the service has ``owner_only`` and there is
            no ``caller``.
    """

    def __init__(
        self,
        service: Service,
        *,
        starts: Starts = False,
        caller: FindCaller | None = None,
        decorators: Sequence[Callable[[View], View]] = (),
        console: str | Console = "",
        **options: Unpack[IntegrationKeywords],
    ) -> None:
        hook = None if caller is None else caller_hook(caller, lambda _: (), HTTPException, _ours)
        self.edge: OperationsEdge = make_edge(
            service, caller=hook, starts=starts, options=options, none="lambda: None"
        )
        self._edges = edges_with(self.edge, console, hook, options)
        self._decorators = decorators
        self._prefix = ""

    def init_app(self, app: Quart, prefix: str = "") -> None:
        """Add the views, below ``prefix``, and have the service start and stop with ``app``.

        The service is closed before what ``app`` closes by functions that are registered later.
        """
        self._prefix = prefix
        for edge in self._edges:
            for path, (rule, methods) in rules_by_path(edge, "<*>", "<path:*>").items():
                app.add_url_rule(
                    prefix + path,
                    f"lro:{path}",
                    self._view(edge, rule),
                    methods=sorted(methods),
                    provide_automatic_options=False,
                )
        app.before_serving(self._start)
        app.after_serving(self._stop)

    async def start(
        self,
        method: Method[Req, Any, Meta],
        message: Req | None = None,
        **options: Unpack[EndpointStartKeywords[Meta]],
    ) -> Response:
        """What a view that starts an operation returns: the operation, or the error.

        The caller is that of the request. ``requestId`` and ``validateOnly`` count if the request's
        JSON body has them. Without ``message`` the body is the message. The rest is as for
        ``Method.start``.
        """
        try:
            asked = await self._request(raw_path(_scope()))
        except HTTPException as exc:  # the body is too large for Quart, or does not come
            asked = request_of(_scope(), request.path)
            return _response(self.edge.refusal(asked, _ours(exc)))
        asked = mounted_at(asked, self._prefix)
        return _response(await on_loop(start_reply(self.edge, asked, method, message, options)))

    def _view(self, edge: OperationsEdge, rule: PathRule) -> View:
        async def answer(**values: str) -> Response:
            path = path_below(_scope(), rule.filled(values))
            exchange = edge.exchange(await self._request(path))
            return _response(await on_loop(exchange))

        view: View = answer
        for decorate in self._decorators:
            view = decorate(view)

        async def answer_or_refuse(**values: str) -> Any:
            try:
                return await view(**values)
            except HTTPException as exc:
                if (exc.code or 0) < HTTPStatus.BAD_REQUEST:
                    raise
                asked = request_of(_scope(), request.path)
                return _response(self.edge.refusal(asked, _ours(exc)))

        return answer_or_refuse

    async def _request(self, path: str) -> HttpRequest:
        body: Any = await request.get_data()
        return request_of(_scope(), path, body)

    async def _start(self) -> None:
        self.edge.service.start_maintenance()

    async def _stop(self) -> None:
        await asyncio.to_thread(self.edge.service.close)


def _ours(error: HTTPException) -> LroError:
    return error_of(error.code or 500, error.description or "", dict(error.get_headers()))


def _scope() -> Scope:
    scope: Any = request.scope
    return cast(Scope, scope)


def _response(reply: HttpReply | EventStream) -> Response:
    if isinstance(reply, EventStream):
        response = Response(reply.events, reply.status, dict(reply.headers))
        response.timeout = None  # it goes on for as long as the operations run
        return response
    return Response(*reply.parts)
