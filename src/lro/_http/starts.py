"""The HTTP calls that start methods: their routes, and how their requests are read."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, Generic, TypeAlias, TypeVar, cast

import attrs

from lro._base.arguments import check, check_instance, check_plain_function, check_text
from lro._base.errors import (
    DeclarationError,
    HttpMethodNotAllowed,
    LroError,
    MalformedRequest,
    RouteNotFound,
)
from lro._base.status import Json
from lro._engine.access import application_call
from lro._engine.events import Sent
from lro._engine.flow import Flow, InThreads, only
from lro._engine.handle import Handle
from lro._engine.methods import Method
from lro._engine.service import Service
from lro._engine.starting import StartSettings
from lro._engine.webhook_sender import Endpoint
from lro._http.requests import (
    MANY_BYTES,
    check_unread,
    keyed_request_id,
    media_type,
    parse_query,
    read_json,
    read_object,
    read_parameters,
    take_field,
)
from lro._http.responses import HttpReply, error_reply, operation_reply
from lro._http.routes import HttpRequest, Match, Route, RouteTable
from lro._messages.json_text import canonical
from lro._model.http_rules import Literal, Template
from lro._model.operation import Operation
from lro._model.transcoding import WHOLE, HttpRule, Parameters, RequestBinding

Req = TypeVar("Req")
R = TypeVar("R")

_METHOD: Final = "a method: decorate the function with service.method(...)"
_STARTS: Final = "True, False, or a dict of paths, each with a method or an lro.http.Start"


@attrs.frozen
class Start(Generic[Req]):
    """A method that an edge starts, and functions that make its arguments from the HTTP request.

    ``parent`` takes the request and returns the parent of the new operation. ``notify`` takes the
    request and returns the endpoints to notify of the end (``notify`` of ``Method.start``).
    ``metadata`` takes the request message and returns the first metadata. ``raw`` reads bodies that
    are not JSON: it takes the media type, in lower case and without parameters, and the bytes; it
    returns the request message, or None for a media type that it does not read. If the media type
    is a JSON type, the body must be strict JSON in UTF-8, and ``requestId`` and ``validateOnly``
    are honoured. ``http_method`` and ``body`` are as in :class:`lro.Options`; by default they are
    as declared for the method.

    Raises:
        DeclarationError: ``method`` is not a declared method, or another argument has a wrong type.
    """

    method: Method[Req, Any, Any]
    parent: Callable[[HttpRequest], str] | None = attrs.field(default=None, kw_only=True)
    metadata: Callable[[Req], object] | None = attrs.field(default=None, kw_only=True)
    notify: Callable[[HttpRequest], Sequence[Endpoint]] | None = attrs.field(
        default=None, kw_only=True
    )
    raw: Callable[[str, bytes], Req | None] | None = attrs.field(default=None, kw_only=True)
    http_method: str | None = attrs.field(default=None, kw_only=True)
    body: str | None = attrs.field(default=None, kw_only=True)

    def __attrs_post_init__(self) -> None:
        check_instance("method", self.method, Method, _METHOD)
        for name in ("http_method", "body"):
            if getattr(self, name) is not None:
                check_text(name, getattr(self, name))
        for name in ("parent", "metadata", "notify", "raw"):
            function = getattr(self, name)
            if function is not None:
                check_plain_function(name, function)


Starts: TypeAlias = Mapping[str, Method[Any, Any, Any] | Start[Any]] | bool
"""The starts of an edge, by path; or True for all methods that have a path."""


WHOLE_BODY: Final = HttpRule(template=Template.parse("/own"))
"""The rule for an endpoint of the application, at any path: the body is the request."""

_OWN_FIELDS: Final = frozenset({"requestId", "request_id", "validateOnly", "validate_only"})
"""The library's fields in a body, by their JSON and proto names."""

NOTHING_BOUND: Final[Mapping[str, str]] = MappingProxyType({})

NOTHING_READ: Final[tuple[Parameters, bool]] = (), False
"""The result of :meth:`StartHandler.read_query` for a start without a query."""

_StartRequest: TypeAlias = tuple[Req, str, bool, dict[str, Json] | None]
"""The message, the request id, whether to validate only, and the JSON that was sent."""


class StartHandler(Generic[Req]):
    """Reads the requests of one method by an HTTP rule, and starts its operations."""

    def __init__(
        self, service: Service, full_name: str, rule: HttpRule, start: Start[Req] | None = None
    ) -> None:
        self.full_name = full_name
        self.rule = rule
        """The HTTP method, path and body of the start."""
        self._start = service.edges.start_flow(full_name)
        self._observe_refusal = functools.partial(service.edges.starter.observe_refusal, full_name)
        message: type[Req] = service.edges.specs[full_name].request
        request = service.types.name_of(message)
        self._load = service.types.loader(message)
        self._shape = service.types.codec(request).shape
        # A message with the field has the request id of AIP-155, like its form over gRPC.
        self._only_uuid = self._shape is not None and "request_id" in self._shape.spellings
        self.binding: RequestBinding | None = RequestBinding.of(rule, self._shape, request)
        self._raw = start.raw if start else None
        functions = {name: getattr(start, name, None) for name in ("parent", "metadata", "notify")}
        self._functions = {name: call for name, call in functions.items() if call is not None}
        if self._raw is not None and self.binding is not None:
            why = f"reads the whole request, and {rule.template.text} gives a part of it"
            raise DeclarationError("raw", why)

    def read_query(self, query: str) -> tuple[Parameters, bool]:
        """Return the fields in a query, and True if enum values are to be printed as numbers.

        Raises:
            MalformedRequest: The query is malformed, or has a parameter that is not allowed.
        """
        if self.rule.body != WHOLE:
            return read_parameters(query)
        # ``parent`` and ``notify`` may read parameters that the library does not know.
        if {"parent", "notify"} & self._functions.keys():
            return (), False
        return (), parse_query(self.full_name, query).enum_numbers

    def start(
        self,
        request: HttpRequest,
        caller: str,
        bound: Mapping[str, str] = NOTHING_BOUND,
        parameters: Parameters = (),
        *,
        message: Req | None = None,
        given: Mapping[str, object] = NOTHING_BOUND,
    ) -> Flow[Operation]:
        """Start the operation that a request asks for.

        ``bound`` has the variables of the path, and ``parameters`` the fields in the query.
        ``message`` is the request message if the application has already made it. ``given`` has
        further options of the start, which override the options in the body.
        """
        try:
            read: _StartRequest[Req] | None = None
            if message is not None:
                read = message, *self._read_own_fields(request), None
            else:
                if self.rule.body and not request.body:
                    check_unread(request.headers)
                if self._raw is not None:
                    read = yield from self._read_raw(self._raw, request)
            message, request_id, validate_only, fields = read or self._read_json(
                request, bound, parameters
            )
            request_id = keyed_request_id(request.headers, request_id, only_uuid=self._only_uuid)
        except LroError as exc:
            self._observe_refusal(exc)
            raise
        options: dict[str, Any] = {"request_id": request_id, **given}
        for name, function in self._functions.items():
            argument = message if name == "metadata" else request
            options[name] = yield application_call(name, function, argument)
        sent: Sent | None = None
        if fields is not None and options["request_id"]:
            sent = functools.partial(canonical, fields)
        settings = StartSettings(
            validate_only=validate_only,
            caller=caller,
            headers=request.headers,
            sent=sent,
            only_uuid=self._only_uuid,
            **options,
        )
        return (yield from self._start(message, settings))

    def _read_own_fields(self, request: HttpRequest) -> tuple[str, bool]:
        """Read the library's fields in a JSON body that the application has already read.

        Every JSON media type counts as JSON. A body that is not strict JSON is refused even if the
        application could read it. Otherwise ``validateOnly`` would be lost, and the work would run.

        Raises:
            MalformedRequest: The media type is JSON, and the body is not strict JSON in UTF-8.
            InvalidArgument: One of the fields is not of its type.
        """
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        said = kind.endswith(("/json", "+json"))
        if not request.body.strip() or (kind and not said):
            return "", False
        try:
            value = read_json(request.body)
        except MalformedRequest:
            if said:
                raise
            return "", False
        return self._take_own(value) if isinstance(value, dict) else ("", False)

    def _read_raw(
        self, raw: Callable[[str, bytes], Req | None], request: HttpRequest
    ) -> Flow[_StartRequest[Req] | None]:
        """Let the application read a body; None if it does not read the body's media type."""
        content_type = request.headers.get("content-type")
        if not content_type:
            return None
        message: Req | None = yield application_call(
            "raw", raw, media_type(content_type)[0], request.body
        )
        return None if message is None else (message, *self._read_own_fields(request), None)

    def _read_json(
        self,
        request: HttpRequest,
        bound: Mapping[str, str] = NOTHING_BOUND,
        parameters: Parameters = (),
    ) -> _StartRequest[Req]:
        content: dict[str, Json] | None = None
        if self.rule.body:
            content = read_object(request.headers.get("content-type"), request.body)
        if self.binding is not None:
            blank = not request.body.strip()
            content = self.binding.fields(None if blank else content, bound, parameters)
        fields = content or {}
        request_id, validate_only = "", False
        if not _OWN_FIELDS.isdisjoint(fields):
            request_id, validate_only = self._take_own(fields)
        return self._load(fields), request_id, validate_only, fields

    def _take_own(self, fields: dict[str, Json]) -> tuple[str, bool]:
        request_id = take_field(fields, "request_id", str, "", self._shape)
        return request_id, take_field(fields, "validate_only", bool, False, self._shape)


def start_handlers(service: Service, starts: Starts) -> list[StartHandler[Any]]:
    """Return the handlers of the starts; True means all methods declared with a path so far.

    Raises:
        DeclarationError: ``starts`` is not of its type, or is True and no method has a path; or a
            method belongs to another service, or has a path that does not fit its request.
    """
    if isinstance(starts, Mapping):
        return [_handler(service, path, given) for path, given in starts.items()]
    check("starts", starts, _STARTS, fine=isinstance(starts, bool))
    specs = service.edges.specs.items() if starts else ()
    found: list[StartHandler[Any]]
    found = [StartHandler(service, name, spec.rule) for name, spec in specs if spec.options.path]
    if starts and not found:
        text = (
            "is True, but no method of the service has been declared with path= by now, such as"
            ' service.method(..., path="/v1/images:resize")'
        )
        raise DeclarationError("starts", text)
    return found


def _handler(service: Service, path: str, given: object) -> StartHandler[Any]:
    check_text("starts", path)
    start = given if isinstance(given, Start) else Start(cast("Method[Any, Any, Any]", given))
    service.edges.check_own(start.method)
    options = start.method.spec.options
    http_method = options.http_method if start.http_method is None else start.http_method
    body = start.body
    if body is None and http_method == options.http_method:
        body = options.body
    rule = HttpRule.of("starts", path, http_method, body)
    return StartHandler(service, start.method.full_name, rule, start)


def start_routes(
    verbs: RouteTable, starts: Iterable[StartHandler[Any]]
) -> tuple[Sequence[Route], Mapping[str, StartHandler[Any]]]:
    """Return the routes of the starts, and their handlers by the ``rpc`` of the route.

    Raises:
        DeclarationError: A path is already used by another start or by a verb.
    """
    routes: list[Route] = []
    taken: dict[tuple[object, ...], StartHandler[Any]] = {}
    found: dict[str, StartHandler[Any]] = {}
    for start in starts:
        template, method = start.rule.template, start.rule.method
        rpc = f"{method} {template.text}"
        texts = [one.text if isinstance(one, Literal) else one for one in template.segments]
        key = (method, *texts, template.verb and template.verb.text)
        other = taken[key].full_name if key in taken else rpc_at(verbs, method, template)
        if other is not None:
            text = f"{template.text!r} cannot start {start.full_name}: it is served as {other}"
            raise DeclarationError("starts", text)
        taken[key] = found[rpc] = start
        routes.append(Route(method=method, template=template, rpc=rpc))
    return routes, found


def rpc_at(table: RouteTable, method: str, template: Template) -> str | None:
    """Return the RPC that a table already has at the paths of a template."""
    try:
        found = table.find(method, template.example)
    except (RouteNotFound, HttpMethodNotAllowed):
        return None
    assert isinstance(found, Match)  # ``find`` returns other results only for OPTIONS
    return found.rpc


StartResult: TypeAlias = Handle[Any, Any] | Operation
"""``Method.start`` returns a handle, ``Service.start`` an operation."""


def answer(service: Service, start: Callable[[], StartResult], poll_seconds: int = 1) -> HttpReply:
    """Start an operation, and return the reply with the operation or the error of ``start``.

    Use this function in endpoints of a framework: with Starlette, FastAPI and Flask, return
    ``Response(*answer(...).parts)``. Only :class:`lro.LroError` becomes a reply; the framework
    handles all other exceptions.
    """
    try:
        return _started_reply(service, start(), poll_seconds)
    except LroError as exc:
        return _refused_start(service, exc)


async def answer_async(
    service: Service, start: Awaitable[StartResult], poll_seconds: int = 1
) -> HttpReply:
    """:func:`answer` for coroutines: ``await answer_async(service, resize.start_async(...))``."""
    try:
        return _started_reply(service, await start, poll_seconds)
    except LroError as exc:
        return _refused_start(service, exc)


def _started_reply(service: Service, started: StartResult, poll_seconds: int) -> HttpReply:
    operation = started.operation if isinstance(started, Handle) else started
    return operation_reply(
        operation, service.types, poll_seconds, started=True, domain=service.domain
    )


def _refused_start(service: Service, error: LroError) -> HttpReply:
    return error_reply(error, service.types, service.domain, asked="a call that starts work")


def start_of_size(service: Service, flow: Flow[R], size: int) -> Flow[R]:
    """Start work whose message has ``size`` bytes; a large message is handled in threads.

    Parsing and storing a large message both take too long for an event loop.
    """
    if size < MANY_BYTES:
        return flow
    service.edges.runtime.executor.begin_here()
    return only(InThreads(flow))
