"""Operations in a Quart application: its views, callers and starts.

Needs the extra ``quart``.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from http import HTTPStatus
from typing import Any, ClassVar, TypeAlias, TypeVar, Unpack, cast

from lro import Method
from lro.asgi import Scope, raw_path, request_of
from lro.errors import LroError, MissingExtra
from lro.http import (
    EndpointStartKeywords,
    EventStream,
    HttpReply,
    HttpRequest,
    OperationsEdge,
    on_loop,
)
from lro.integrations._base import (
    FrameworkOperations,
    PathRule,
    error_of,
    mounted_at,
    path_below,
    rules_by_path,
)

try:
    from quart import Quart, Response, request
    from werkzeug.exceptions import HTTPException
except ImportError as _exc:
    raise MissingExtra("the integration into Quart", "quart") from _exc

__all__ = ["QuartOperations"]

Req = TypeVar("Req")
Meta = TypeVar("Meta")
FindCaller: TypeAlias = Callable[[], str | int | Awaitable[str | int | None] | None]
View: TypeAlias = Callable[..., Any]


class QuartOperations(FrameworkOperations[FindCaller, Response]):
    """A service in a Quart application: ``QuartOperations(service, ...).init_app(app)``.

    ``caller`` returns the caller's name, or None for a caller without a name. It is called in the
    context of the request, so it can use ``quart.request``, and ``current_user`` of Quart-Auth. A
    plain function is called in a thread. To refuse the call, ``caller`` may raise an HTTPException,
    as ``abort`` does. ``console`` is a path such as ``"/console"`` at which the console is served,
    or an :class:`lro.console.Console`; without ``caller`` it answers only on this machine. The
    other options are those of :class:`lro.http.OperationsEdge`.

    Raises:
        DeclarationError: As for ``OperationsEdge``; or the service has ``owner_only`` and there is
            no ``caller``.
    """

    _prefix = ""
    refusal: ClassVar[type[Exception]] = HTTPException
    nobody = "lambda: None"

    def arguments(self, native: Any) -> tuple[Any, ...]:  # noqa: ARG002 - Quart has it in a context
        """Return no arguments: the request is in Quart's context."""
        return ()

    def ours(self, error: HTTPException) -> LroError:
        """Convert an HTTP exception to an error of this library."""
        return error_of(error.code or 500, error.description or "", dict(error.get_headers()))

    def response(self, reply: HttpReply | EventStream) -> Response:
        """Convert a reply to a response of Quart."""
        if isinstance(reply, EventStream):
            response = Response(reply.events, reply.status, dict(reply.headers))
            response.timeout = None  # no time limit: the stream lasts as long as the operations run
            return response
        return Response(*reply.parts)

    def init_app(
        self, app: Quart, *, url_prefix: str = "", decorators: Sequence[Callable[[View], View]] = ()
    ) -> None:
        """Add the views below a prefix; from then on the service starts and stops with ``app``.

        ``decorators``, such as ``login_required``, are applied to each view. Functions that you
        register with ``app.after_serving`` after this call run once the service is closed.
        """
        self._prefix = url_prefix
        for edge in self.edges:
            for path, (rule, methods) in rules_by_path(edge, "<*>", "<path:*>").items():
                app.add_url_rule(
                    url_prefix + path,
                    f"lro:{path}",
                    self._view(edge, rule, decorators),
                    methods=sorted(methods),
                    provide_automatic_options=False,
                )
        app.before_serving(self.edge.service.edges.start_up)
        app.after_serving(self.edge.service.edges.shut_down)

    async def start(
        self,
        method: Method[Req, Any, Meta],
        message: Req | None = None,
        **options: Unpack[EndpointStartKeywords[Meta]],
    ) -> Response:
        """Start an operation for the current request; return the operation, or the error.

        The caller is that of the request. ``requestId`` and ``validateOnly`` in the JSON body are
        honoured. Without ``message``, the body is the message. The other arguments are those of
        ``Method.start``.
        """
        try:
            asked = await self._request(raw_path(_scope()))
        except HTTPException as exc:  # the body is too large for Quart, or too slow
            asked = request_of(_scope(), request.path)
            return self.refuse(asked, self.ours(exc))
        asked = mounted_at(asked, self._prefix)
        return await on_loop(self.started(asked, method, message, options))

    def _view(
        self, edge: OperationsEdge, rule: PathRule, decorators: Sequence[Callable[[View], View]]
    ) -> View:
        async def answer(**values: str) -> Response:
            path = path_below(_scope(), rule.filled(values))
            exchange = edge.exchange(await self._request(path))
            return self.response(await on_loop(exchange))

        view: View = answer
        for decorate in decorators:
            view = decorate(view)

        async def answer_or_refuse(**values: str) -> Any:
            try:
                return await view(**values)
            except HTTPException as exc:
                if (exc.code or 0) < HTTPStatus.BAD_REQUEST:
                    raise
                asked = request_of(_scope(), request.path)
                return self.refuse(asked, self.ours(exc))

        return answer_or_refuse

    async def _request(self, path: str) -> HttpRequest:
        body: Any = await request.get_data()
        return request_of(_scope(), path, body)


def _scope() -> Scope:
    scope: Any = request.scope
    return cast(Scope, scope)
