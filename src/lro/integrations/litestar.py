"""Operations in a Litestar application: a plugin with its handlers, guards and dependencies.

Needs the extra ``litestar``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Final, Generic, TypeAlias, TypeVar, Unpack

import attrs

from lro import Method, Service
from lro.asgi import raw_path, request_of, respond
from lro.errors import InvalidFields, LroError, MissingExtra, check_function
from lro.http import (
    EndpointStartKeywords,
    Hook,
    HttpReply,
    IntegrationKeywords,
    OperationsEdge,
    Starts,
    name_of_caller,
    on_loop,
)
from lro.integrations._base import (
    EVERY_METHOD,
    FrameworkOperations,
    PathRule,
    error_of,
    heard_by,
    mounted_at,
    path_rules,
)
from lro.types import FieldViolation

try:
    from litestar import Request, Response, Router, route
    from litestar.config.app import AppConfig
    from litestar.connection import ASGIConnection
    from litestar.di import Provide
    from litestar.exceptions import HTTPException, InternalServerException
    from litestar.handlers import BaseRouteHandler
    from litestar.plugins import InitPlugin
except ImportError as _exc:
    raise MissingExtra("the integration into Litestar", "litestar") from _exc

if TYPE_CHECKING:
    from lro.console import Console

__all__ = ["LitestarOperations", "Operation", "OperationsPlugin"]

T = TypeVar("T")
Req = TypeVar("Req")
Resp = TypeVar("Resp")
Meta = TypeVar("Meta")
AnyRequest: TypeAlias = Request[Any, Any, Any]
Guard: TypeAlias = Callable[[ASGIConnection[Any, Any, Any, Any], BaseRouteHandler], Any]

_INJECTED: Final = "by its name"
"""Marks dependencies: newer versions of Litestar warn of dependencies without this mark."""


@attrs.frozen
class OperationBody(Generic[Resp, Meta]):
    """The schema of an operation in the OpenAPI document of the application."""

    name: str
    metadata: Meta | None = None
    done: bool = False
    error: dict[str, Any] | None = None
    response: Resp | None = None


class OperationReply(Response[T]):
    """The reply to a start."""

    def __init__(self, reply: HttpReply) -> None:
        headers = dict(reply.headers)
        kind = headers.pop("content-type")
        body: Any = reply.body
        super().__init__(body, status_code=reply.status, headers=headers, media_type=kind)


Operation: TypeAlias = OperationReply[OperationBody[Resp, Meta]]
"""The return type of a handler that starts operations: ``Operation[Resized, ResizeMetadata]``."""


class LitestarOperations:
    """A dependency of handlers: the operations for the caller of a request."""

    def __init__(self, edge: OperationsEdge, request: AnyRequest, caller: str, prefix: str) -> None:
        self.caller = caller
        self._edge, self._request, self._prefix = edge, request, prefix

    async def start(
        self,
        method: Method[Req, Resp, Meta],
        message: Req | None = None,
        **options: Unpack[EndpointStartKeywords[Meta]],
    ) -> Operation[Resp, Meta]:
        """Start an operation of the caller. The other arguments are those of ``Method.start``.

        ``requestId`` and ``validateOnly`` in the request's JSON body are honoured. Without
        ``message``, the body is the message.

        Raises:
            LroError: The operation is not started; the plugin turns the error into the reply.
        """
        scope: Any = self._request.scope
        wanted = request_of(scope, raw_path(scope), await self._request.body(), self.caller)
        receive: Any = self._request.receive
        wanted = heard_by(mounted_at(wanted, self._prefix), receive)
        return OperationReply(
            (await on_loop(self._edge.start(wanted, method, message, **options)))[1]
        )


class OperationsPlugin(InitPlugin, FrameworkOperations[Callable[..., Any], Response[Any]]):
    """A service in a Litestar application: ``Litestar(plugins=[OperationsPlugin(service)])``.

    ``caller`` is a dependency; its value is the caller's name, or None for a caller without a name.
    ``guards`` protect the routes of operations and ``starts``, which are served below ``prefix``.
    ``console`` is a path below ``prefix``, such as ``"/console"``, at which the console is served,
    or an :class:`lro.console.Console`; without ``caller`` it answers only on this machine. The
    other options are those of :class:`lro.http.OperationsEdge`. A handler that has a parameter
    ``operations: NamedDependency[LitestarOperations]`` gets the operations for its caller. The
    service is started and closed with the application.

    Raises:
        DeclarationError: As for ``OperationsEdge``; or the service has ``owner_only`` and there is
            no ``caller``.
    """

    dependency = True

    def __init__(
        self,
        service: Service,
        *,
        starts: Starts = False,
        caller: Callable[..., Any] | None = None,
        guards: Sequence[Guard] = (),
        prefix: str = "",
        console: str | Console = "",
        **options: Unpack[IntegrationKeywords],
    ) -> None:
        FrameworkOperations.__init__(
            self, service, starts=starts, caller=caller, console=console, **options
        )
        self._caller = _without_name if caller is None else caller
        check_function("caller", self._caller)
        self._guards, self._prefix = guards, prefix

    def __deepcopy__(self, _: object) -> OperationsPlugin:
        return self  # Litestar copies routers, and with them the objects of bound methods

    @property
    def exception_handlers(self) -> dict[Any, Any]:
        """Exception handlers that answer in this library's format, for your own route handlers."""
        return {LroError: self._refuse, HTTPException: self._refuse}

    def on_app_init(self, app_config: AppConfig) -> AppConfig:
        """Add the route handlers, the dependency, an exception handler, and the lifespan."""
        threaded = None if Hook("caller", self._caller).awaited else True
        caller = Provide(self._caller, sync_to_thread=threaded)
        operations = Provide(self._operations)
        app_config.dependencies |= {"operations_caller": caller, "operations": operations}
        app_config.exception_handlers.setdefault(LroError, self._refuse)
        app_config.lifespan.append(self.edge.service.lifespan)
        app_config.route_handlers.append(
            Router(
                self._prefix or "/",
                route_handlers=list(self._handlers()),
                guards=self._guards,
                exception_handlers=self.exception_handlers,
                tags=["operations"],
            )
        )
        return app_config

    async def _operations(
        self, request: AnyRequest, operations_caller: Annotated[Any, _INJECTED]
    ) -> LitestarOperations:
        caller = name_of_caller("caller", operations_caller)
        return LitestarOperations(self.edge, request, caller, self._prefix)

    def _refuse(self, request: AnyRequest, error: Exception) -> Response[Any]:
        scope: Any = request.scope
        headers = {}
        if isinstance(error, HTTPException):
            headers = {name.lower(): text for name, text in (error.headers or {}).items()}
            error = _ours(error)
        reply = OperationReply[Any](self.edge.refusal(request_of(scope, raw_path(scope)), error))
        reply.headers = {**headers, **reply.headers}
        return reply

    def _handlers(self) -> Any:
        """Yield one handler for each path and HTTP method.

        Litestar cannot match a verb after a parameter, so one handler serves both Cancel and Wait.
        """
        described: dict[str, dict[str, list[PathRule]]] = {}
        for rule in path_rules(self.edge):
            path = _path(rule)
            described.setdefault(path, {}).setdefault(rule.method, []).append(rule)
        for edge in self.edges[1:]:
            for path in (*edge.pages, f"{edge.mount}/{{console_path:path}}"):
                if path == edge.mount or path[-1] != "/":  # Litestar ignores a slash at the end
                    public = path in edge.pages
                    yield self._handler(path, sorted(EVERY_METHOD), edge=edge, public=public)
        for path, methods in described.items():
            starts = set(self.edge.starts.values())
            if not any(rule.rpc in starts for rules in methods.values() for rule in rules):
                others = EVERY_METHOD - set(methods)
                yield self._handler(path, sorted(others))  # first, so Litestar adds no OPTIONS
            for method, rules in methods.items():
                yield self._handler(path, [method], rules)

    def _handler(
        self,
        path: str,
        methods: Any,
        rules: Sequence[PathRule] = (),
        edge: OperationsEdge | None = None,
        public: bool = False,
    ) -> Any:
        def answered(request: AnyRequest, caller: str) -> Any:
            scope: Any = request.scope
            below = "/" + raw_path(scope).split("/", segments + 1)[-1]
            if public and scope["raw_path"].endswith(b"/"):  # Litestar has cut off the slash
                below = f"{below.rstrip('/')}/"
            return _EdgeReply(edge or self.edge, below, caller, request)

        async def call(
            request: AnyRequest, operations: Annotated[LitestarOperations, _INJECTED]
        ) -> Any:
            return answered(request, operations.caller)

        async def page(request: AnyRequest) -> Any:
            return answered(request, "")

        segments = self._prefix.strip("/").count("/") + 1 if self._prefix.strip("/") else 0
        handler: Any = page if public else call
        handler.__annotations__["return"] = _EdgeReply[self._body_of(rules)]  # type: ignore[misc]
        names = [rule.rpc.rpartition(".")[2] for rule in rules]
        handler.__name__ = "_or_".join(names) or handler.__name__  # part of the operationId
        return route(
            path,
            http_method=methods,
            status_code=200,
            include_in_schema=bool(rules),
            summary=" or ".join(names),
        )(handler)

    def _body_of(self, rules: Sequence[PathRule]) -> Any:
        for rule in rules:
            spec = self.edge.service.edges.specs.get(rule.rpc)
            if spec is not None:
                return OperationBody[spec.response, spec.metadata]  # type: ignore[name-defined]
            if rule.rpc == "GetOperation":
                return OperationBody[Any, Any]
        return dict[str, Any]


def _path(rule: PathRule) -> str:
    parts = rule.parts[:-1] if len(rule.parts) % 2 and rule.parts[-1][0] == ":" else rule.parts
    return attrs.evolve(rule, parts=parts).path("{*:str}", "{*:path}")


def _without_name() -> None:
    """Return None as the caller's name, for a plugin without ``caller``."""


def _ours(error: HTTPException) -> LroError:
    found = [one for one in error.extra or () if isinstance(one, Mapping) and "message" in one]
    if error.status_code != 400 or not found:
        return error_of(error.status_code, error.detail, error.headers)
    return InvalidFields(
        *(
            FieldViolation(field=str(one.get("key", "")), description=str(one["message"]))
            for one in found
        )
    )


class _EdgeReply(Response[T]):
    def __init__(self, edge: OperationsEdge, path: str, caller: str, request: AnyRequest) -> None:
        nothing: Any = None
        super().__init__(nothing)
        read = partial(_read, request)
        self._respond = partial(respond, edge, path=path, caller=caller, read=read)

    def to_asgi_response(self, *_: Any, **__: Any) -> Any:
        """Return an ASGI application with which the edge answers the request."""
        return self._respond


async def _read(request: AnyRequest) -> bytes | None:
    """Return the body, even if the application has read it; None if the caller has disconnected.

    Litestar limits the size of the body by ``request_max_body_size``.
    """
    try:
        return await request.body()
    except InternalServerException:  # a lost client, or a form already read
        return None if request.is_connected else b""
