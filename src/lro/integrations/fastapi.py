"""Operations in a FastAPI application: routes, dependencies, ``/docs``, start and stop.

Needs the extra ``fastapi``.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Coroutine
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar, Unpack, get_args, get_origin
from urllib.parse import unquote

import lro
from lro import Method, Service
from lro.asgi import raw_path, request_of, respond
from lro.errors import DeclarationError, HookFailed, InvalidFields, LroError, MissingExtra
from lro.http import (
    EndpointStartKeywords,
    HttpReply,
    IntegrationKeywords,
    OperationsEdge,
    Starts,
    name_of_caller,
    on_loop,
    read_object,
)
from lro.integrations._base import (
    PAGE,
    FrameworkOperations,
    PathRule,
    error_of,
    path_below,
    path_rules,
    rules_by_path,
)
from lro.openapi._document import Describer, OperationSchemas
from lro.types import FieldViolation, TypeRegistry

try:
    from fastapi import APIRouter, Depends, Request, Response
    from fastapi.exceptions import RequestValidationError
    from fastapi.routing import APIRoute
    from fastapi.utils import deep_dict_update
    from pydantic import GetCoreSchemaHandler
    from starlette.exceptions import HTTPException

    from lro.integrations._fastapi_document import as_in_fastapi, route_options, type_with
    from lro.integrations.starlette import read_once, request_with_body
except ImportError as _exc:
    raise MissingExtra("the integration into FastAPI", "fastapi") from _exc

if TYPE_CHECKING:
    from lro.console import Console

__all__ = ["FastAPIOperations", "Operation", "RequestOperations"]

Req = TypeVar("Req")
Resp = TypeVar("Resp")
Meta = TypeVar("Meta")


class Operation(Response, Generic[Resp, Meta]):
    """The response, and the return type, of an endpoint that starts an operation.

    ``Operation[ResizeResponse, ResizeMetadata]`` shows both classes in ``/docs``. ``operation`` is
    the operation in its state after the start.
    """

    def __init__(self, operation: lro.Operation, reply: HttpReply) -> None:
        super().__init__(*reply.parts)
        self.operation = operation

    @property
    def name(self) -> str:
        """The name of the operation."""
        return self.operation.name

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> Any:
        schemas = OperationSchemas(TypeRegistry())  # only the router knows the service
        return handler.generate_schema(type_with(schemas, schemas.operation_of(*get_args(source))))


class _ServedOperations(FrameworkOperations[Callable[..., Any], Response]):
    nobody = "lambda: None"
    dependency = True


class FastAPIOperations:
    """A service in a FastAPI application.

    ``caller`` is a dependency, plain or async, with or without ``yield``; its value is the caller's
    name, or None for a caller without a name. The other options are those of
    :class:`lro.http.OperationsEdge`.

    In an endpoint, ``Annotated[RequestOperations, Depends(operations)]`` starts operations for the
    caller of the request.

    Raises:
        DeclarationError: As for ``OperationsEdge``; or the service has ``owner_only`` and there is
            no ``caller``.
    """

    def __init__(
        self,
        service: Service,
        *,
        caller: Callable[..., Any] | None = None,
        **options: Unpack[IntegrationKeywords],
    ) -> None:
        self.service = service
        self._options = options
        self._caller = caller
        self._edge = self._served(False, "").edge
        described = self._describer = Describer(service)
        model = type_with(described.schemas, described.error_body)
        self._error = {"model": model, "description": described.error["description"]}
        kind = inspect.Parameter.KEYWORD_ONLY
        parameters = [inspect.Parameter("request", kind, annotation=Request)]
        if caller is not None:
            default = Depends(caller)
            parameters.append(inspect.Parameter("caller", kind, default=default, annotation=Any))
        # FastAPI reads the dependencies of a callable from its signature.
        self.__signature__: inspect.Signature = inspect.Signature(parameters)

    def _served(self, starts: Starts, console: str | Console) -> _ServedOperations:
        return _ServedOperations(
            self.service, starts=starts, caller=self._caller, console=console, **self._options
        )

    async def __call__(self, *, request: Request, caller: Any = None) -> RequestOperations:
        """Return the operations for the caller of a request; FastAPI calls this for a dependency.

        Raises:
            DeclarationError: The endpoint is not on :meth:`router`, and the application has no
                handler for this library's errors.
            HookFailed: The value of ``caller`` is neither a text, nor a whole number, nor None.
        """
        handled = isinstance(request.scope.get("route"), OperationsRoute)
        if not handled and LroError not in request.app.exception_handlers:
            wanted = "must be declared on operations.router(), or the application needs"
            way = "app.add_exception_handler(lro.LroError, operations.refuse)"
            raise DeclarationError(request.url.path, f"{wanted} {way}")
        return RequestOperations(self._edge, request, name_of_caller("caller", caller))

    def router(
        self, *, starts: Starts = False, console: str | Console = "", **options: Any
    ) -> APIRouter:
        """Make a router of the operations and of ``starts``, which are as for ``OperationsApp``.

        ``console`` is a path such as ``"/console"`` at which the console is served, or an
        :class:`lro.console.Console`; without ``caller`` it answers only on this machine.
        ``options`` are those of ``APIRouter``, such as ``prefix``, ``tags`` and ``dependencies``.
        Declare your own endpoints that start operations on this router. All their errors, even
        those of FastAPI's validation and of dependencies, are then answered in this library's
        format. The service starts and closes with the application that includes the router.

        Raises:
            DeclarationError: As for ``OperationsApp``.
        """
        served = self._served(starts, console)
        edge = served.edge
        options = {"tags": ["Operations"], **options}
        heading = [getattr(tag, "value", tag) for tag in options["tags"] or ["Operations"]]
        self._describer.add(edge, heading[0])
        options["responses"] = {"default": self._error, **options.get("responses", {})}
        known = {"edge": edge, "describer": self._describer}
        options.setdefault("route_class", type("OperationsRoute", (OperationsRoute,), known))
        options.setdefault("lifespan", self.service.lifespan)
        router = APIRouter(**options)
        calls = {unquote(path): said for path, said in self._describer.paths.items()}
        for rule in path_rules(edge):
            said = calls.get(rule.path("{*}", "{*}"), {}).get(rule.method.lower())
            if said is not None:
                router.add_api_route(
                    rule.path("{*}", "{*:path}"),
                    self._endpoint(edge, rule),
                    methods=[rule.method],
                    name=rule.rpc,
                    response_class=Response,
                    **route_options(said),
                )
        for one in served.edges:
            for path, (rule, methods) in rules_by_path(one, "{*}", "{*:path}").items():
                endpoint = self._endpoint(one, rule)  # the edge itself refuses other HTTP methods
                router.add_api_route(path, endpoint, methods=list(methods), include_in_schema=False)
        return router

    def _endpoint(self, edge: OperationsEdge, rule: PathRule) -> Callable[..., Any]:
        async def call(operations: RequestOperations = Depends(self)) -> Response:  # noqa: B008
            request = operations.request
            path = path_below(request.scope, rule.filled(request.path_params))
            return _EdgeReply(edge, path, operations.caller, request)

        async def page(request: Request) -> Response:
            return _EdgeReply(edge, path_below(request.scope, rule.filled({})), "", request)

        return page if rule.rpc == PAGE else call

    async def refuse(self, request: Request, error: Exception) -> Response:
        """Turn an ``LroError`` into a response, for endpoints that are not on :meth:`router`.

        Register this handler by ``app.add_exception_handler(lro.LroError, operations.refuse)``.
        """
        return _refusal(self._edge, request, error)


class RequestOperations:
    """The operations for the caller of a request; see :class:`FastAPIOperations`."""

    def __init__(self, edge: OperationsEdge, request: Request, caller: str) -> None:
        self.request = request
        self.caller = caller
        self._edge = edge

    def start(
        self,
        method: Method[Req, Resp, Meta],
        message: Req | None = None,
        **options: Unpack[EndpointStartKeywords[Meta]],
    ) -> Coroutine[Any, Any, Operation[Resp, Meta]]:
        """Start an operation of the caller; await this. See ``Method.start`` for other arguments.

        ``requestId`` and ``validateOnly`` in the request's JSON body are honoured. Without
        ``message``, the body is the message.

        Raises:
            LroError: The operation is not started; the route turns the error into the reply.
            HookFailed: The endpoint is a plain ``def``, so it cannot await the start.
        """
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            text = "must be declared with `async def`, and await the start"
            raise HookFailed(f"the endpoint at {self.request.url.path}", text) from None
        return self._start(method, message, options)

    async def _start(
        self, method: Method[Req, Resp, Meta], message: Req | None, options: Any
    ) -> Operation[Resp, Meta]:
        wanted = await request_with_body(self._edge, self.request, self.caller)
        return Operation(*await on_loop(self._edge.start(wanted, method, message, **options)))


class OperationsRoute(APIRoute):
    """A route that answers all errors in this library's format."""

    edge: ClassVar[OperationsEdge]
    describer: ClassVar[Describer]

    def __init__(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
        super().__init__(path, endpoint, **options)
        if get_origin(self.response_model) is Operation:
            said = as_in_fastapi(self.describer.started(*get_args(self.response_model)))
            deep_dict_update(said, self.openapi_extra or {})
            self.openapi_extra = said
            self.response_model: Any = None
            self.response_field: Any = None

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return FastAPI's handler, with its errors turned into replies."""
        handle = super().get_route_handler()

        async def handle_or_refuse(request: Request) -> Response:
            try:
                return await handle(request)
            except LroError as exc:
                return _refusal(self.edge, request, exc)
            except HTTPException as exc:
                if exc.status_code < 400:
                    raise
                error = error_of(exc.status_code, str(exc.detail), exc.headers)
                return _refusal(self.edge, request, error, exc.headers)
            except RequestValidationError as exc:
                return _refusal(self.edge, request, await _invalid(request, exc))

        return handle_or_refuse


class _EdgeReply(Response):
    def __init__(self, edge: OperationsEdge, path: str, caller: str, request: Request) -> None:
        super().__init__()
        read = partial(read_once, request, edge.options.max_body)
        self._respond = partial(respond, edge, path=path, caller=caller, read=read)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await self._respond(scope, receive, send)


def _refusal(
    edge: OperationsEdge, request: Request, error: Exception, headers: Any = None
) -> Response:
    asked = request_of(request.scope, raw_path(request.scope))
    response = Response(*edge.refusal(asked, error).parts)
    for name, value in (headers or {}).items():
        response.headers.setdefault(name, value)
    return response


async def _invalid(request: Request, error: RequestValidationError) -> LroError:
    """Convert FastAPI's validation error; if the edge refuses the body, return the edge's error."""
    found = error.errors()
    if any(one["loc"][:1] == ("body",) for one in found):
        try:
            read_object(request.headers.get("content-type"), await request.body())
        except LroError as exc:
            return exc
    violations = []
    for one in found[:100]:
        place = one["loc"][1:] if len(one["loc"]) > 1 else one["loc"]
        field = ".".join(map(str, place))
        violations.append(FieldViolation(field=field, description=one["msg"]))
    return InvalidFields(*violations)
