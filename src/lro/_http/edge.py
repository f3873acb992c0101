"""The HTTP edge without a framework: from a request to its reply, and the POSTs that start methods.

An exchange is a flow: it yields steps as the verbs of the service do, and returns the reply. Hosts
with an event loop follow it by ``on_loop``, hosts with threads by ``run``.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from http import HTTPStatus
from types import MappingProxyType
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Final,
    Generic,
    NoReturn,
    Protocol,
    TypeAlias,
    TypedDict,
    TypeVar,
    Unpack,
    cast,
)
from urllib.parse import quote

import attrs

from lro._base.arguments import (
    check,
    check_count,
    check_flag,
    check_instance,
    check_keywords,
    check_plain_function,
    check_seconds,
    check_text,
    check_texts,
)
from lro._base.errors import (
    DeclarationError,
    HookFailed,
    HttpMethodNotAllowed,
    InvalidTimeout,
    LroError,
    MalformedRequest,
    OperationNotFound,
    RequestTooLarge,
    ResourceExhausted,
    RouteNotFound,
    StreamsNotSupported,
    Unavailable,
    got,
    one_line,
)
from lro._base.status import Json
from lro._engine.access import OPERATOR_VERBS, VERBS, Hook, application_call, ask_caller
from lro._engine.events import Sent
from lro._engine.flow import Flow, FlowStep, InThreads, MayBlock, flow_of, only, run
from lro._engine.handle import Handle
from lro._engine.limits import ByteBudget, ReplyReservation
from lro._engine.listing import Batch, Listing
from lro._engine.methods import Method
from lro._engine.notifications import Endpoint
from lro._engine.service import Service
from lro._engine.starting import EndpointStartKeywords, StartSettings
from lro._http.preferences import read_preferences
from lro._http.requests import (
    CHANGING,
    MANY_BYTES,
    NO_QUERY,
    Query,
    check_site,
    check_unread,
    media_type,
    parse_query,
    read_json,
    read_names,
    read_object,
    read_parameters,
    read_request,
    take_field,
    trusted,
)
from lro._http.responses import (
    HEARTBEAT_SECONDS,
    EventStream,
    HttpReply,
    Redact,
    allow_reply,
    batch_reply,
    error_reply,
    event_stream,
    json_reply,
    operation_reply,
    page_reply,
    shown_together,
)
from lro._http.routes import (
    Allowed,
    HttpRequest,
    Match,
    Route,
    RouteTable,
    WhileConnected,
    default_routes,
    extension_routes,
)
from lro._messages.json_text import canonical
from lro._model.description import View
from lro._model.http_rules import Literal, Template
from lro._model.operation import (
    ListOperationsRequest,
    Operation,
    RerunOperationRequest,
    Show,
    WaitOperationRequest,
    is_small,
    normalise_parent,
    parse_name,
)
from lro._model.transcoding import WHOLE, HttpRule, Parameters, RequestBinding

if TYPE_CHECKING:
    from lro._engine.watching import WatchStream


@attrs.frozen
class Wait(FlowStep):
    """A step: wait for an operation, as ``Service.wait`` and ``Service.wait_async`` do.

    On an event loop, ``while_connected`` cancels the wait when the caller disconnects.
    """

    service: Service
    request: WaitOperationRequest
    deadline_seconds: float | None
    caller: str
    while_connected: WhileConnected | None = None

    def here(self) -> Operation:
        """Block this thread until the wait is over."""
        operation: Operation = self._begin(self.service.wait)
        return operation

    def wait(self) -> Awaitable[Operation]:
        """Wait without a thread."""
        waiting: Awaitable[Operation] = self._begin(self.service.wait_async)
        return waiting if self.while_connected is None else self.while_connected(waiting)

    def _begin(self, wait: Callable[..., Any]) -> Any:
        self.service.end_waits_at_signals()
        name, timeout = self.request.name, self.request.timeout
        return wait(name, timeout, deadline_seconds=self.deadline_seconds, caller=self.caller)


@attrs.frozen
class Watch(FlowStep):
    """A step: watch operations, as ``Service.watch`` does. Only an event loop can."""

    service: Service
    names: tuple[str, ...]
    caller: str

    def here(self) -> NoReturn:
        """Refuse the stream.

        Raises:
            StreamsNotSupported: Always: a stream would hold the thread while the operations run.
        """
        raise StreamsNotSupported("WatchOperations")

    def wait(self) -> Awaitable[WatchStream]:
        """Begin the stream."""
        self.service.end_waits_at_signals()
        return self.service.watch(self.names, caller=self.caller)


@attrs.frozen
class Reserve(FlowStep):
    """A step: set bytes aside for a reply, as ``ByteBudget.take`` and ``atake`` do."""

    budget: ByteBudget
    least: int
    most: int

    def here(self) -> ReplyReservation:
        """Block this thread until the bytes are free."""
        return self.budget.take(self.least, self.most)

    def wait(self) -> Awaitable[ReplyReservation]:
        """Wait without a thread until the bytes are free."""
        return self.budget.atake(self.least, self.most)


R = TypeVar("R")

Exchange: TypeAlias = Flow[HttpReply | EventStream]
"""The flow that answers a request."""


def in_few_threads(service: Service, make: Callable[[], R]) -> Flow[R]:
    """Make a reply of many operations in one of the few threads that there are for such replies."""
    reply: R = yield InThreads(only(MayBlock(make)), service.replies.threads)
    return reply


def identify(hook: Hook | None, headers: Mapping[str, str], native: object) -> Flow[str]:
    """Return the caller, as the hook ``authenticate`` says; the empty text without a hook.

    ``native`` is the request as the server has it.
    """
    return "" if hook is None else (yield from ask_caller(hook, headers, native))


def get_operation(
    service: Service, name: str, caller: str, view: View = "BASIC"
) -> Flow[Operation]:
    """Return the present state of an operation, by the short way if no store or hook can block."""
    if view == "BASIC" and service.access.immediate and not service.background.pending:
        return service.access.read(name, caller)
    return (yield from flow_of(service.get)(name, view=view, caller=caller))


Req = TypeVar("Req")
Meta = TypeVar("Meta")


_METHOD: Final = "a method: decorate the function with service.method(...)"
_STARTS: Final = "True, False, or a dict of paths, each with a method or an lro.http.Start"


@attrs.frozen
class Start(Generic[Req]):
    """A method that an edge starts, with what is made of the HTTP request.

    ``parent`` gives the parent of the new operation for a request, ``metadata`` its first metadata
    for the request message, ``notify`` for a request the endpoints that its end is notified to
    (``notify`` of ``Method.start``). ``raw`` reads bodies of other media types than JSON: it takes
    the media type, in lower case and without parameters, and the bytes, and returns the request
    message, or None for a type that it does not read. If the type is one of JSON, the body must be
    strict JSON in UTF-8, and ``requestId`` and ``validateOnly`` count. ``http_method`` and ``body``
    are as in :class:`lro.Options`, and by default what the method was declared with.

    Raises:
        DeclarationError: ``method`` is not a declared method, or another argument is not of its
            type.
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
"""The starts that an edge serves: those of a dict, by path; or all methods that have a path."""


_WHOLE_BODY: Final = HttpRule(template=Template.parse("/own"))
"""The rule of an endpoint of the application, whatever its path: the body is the request."""

NOTHING_BOUND: Final[Mapping[str, str]] = MappingProxyType({})

_StartRequest: TypeAlias = tuple[Req, str, bool, Sent | None]
"""The message of a start, its request id, and whether it is only to be validated."""


class StartHandler(Generic[Req]):
    """Reads the requests of one method by an HTTP rule, and starts its operations."""

    def __init__(
        self, service: Service, full_name: str, rule: HttpRule, start: Start[Req] | None = None
    ) -> None:
        self.full_name = full_name
        self.rule = rule
        """How it is called: for the routes, and for descriptions of them."""
        self._start = service.start_flow(full_name)
        self._observe_refusal = functools.partial(service.observe_refusal, full_name)
        self._types = service.types
        self._request: type[Req] = service.specs[full_name].request
        request = service.types.name_of(self._request)
        self._shape = service.types.codec(request).shape
        self.binding: RequestBinding | None = RequestBinding.of(rule, self._shape, request)
        self._parent = start.parent if start else None
        self._metadata = start.metadata if start else None
        self._notify = start.notify if start else None
        self._raw = start.raw if start else None
        if self._raw is not None and self.binding is not None:
            why = f"reads the whole request, and {rule.template.text} gives a part of it"
            raise DeclarationError("raw", why)

    def read_query(self, query: str) -> tuple[Parameters, bool]:
        """The fields of the request in a query, and the wish for enum numbers.

        Raises:
            MalformedRequest: The query is malformed, or has what is not for it.
        """
        if not query:  # as most are
            return (), False
        if self.rule.body != WHOLE:
            return read_parameters(query)
        if self._parent or self._notify:  # a function that may read the query, which has its own
            return (), False
        return (), parse_query(self.full_name, query).enum_numbers

    def start(
        self,
        request: HttpRequest,
        caller: str,
        bound: Mapping[str, str] = NOTHING_BOUND,
        parameters: Parameters = (),
        request_id: str = "",
    ) -> Flow[Operation]:
        """Start the operation that a request asks for.

        ``bound`` are the variables of its path, ``parameters`` those of its query. ``request_id``
        is given by a header, and stands before that of the body.
        """
        try:
            self._check_unread(request)
            read = None if self._raw is None else (yield from self._read_raw(self._raw, request))
            found = read or self._read_json(request, bound, parameters)
            message, own_id, validate_only, sent = found
        except LroError as exc:
            self._observe_refusal(exc)
            raise
        parent: Any = ""
        if self._parent is not None:
            parent = yield application_call("parent", self._parent, request)
        metadata: object = None
        if self._metadata is not None:
            metadata = yield application_call("metadata", self._metadata, message)
        notify: Any = ()
        if self._notify is not None:
            notify = yield application_call("notify", self._notify, request)
        options = StartSettings(
            request_id=request_id or own_id,
            validate_only=validate_only,
            parent=parent,
            metadata=metadata,
            notify=notify,
            caller=caller,
            headers=lambda: request.headers,
            sent=sent,
        )
        return (yield from self._start(message, options))

    def start_own(
        self,
        request: HttpRequest,
        caller: str,
        message: Req | None,
        given: EndpointStartKeywords[Any],
    ) -> Flow[Operation]:
        """Start an operation for an endpoint of the application, which may have the message."""
        try:
            sent = None
            if message is None:
                self._check_unread(request)
                message, request_id, validate_only, sent = self._read_json(request)
            else:
                request_id, validate_only = self._read_own_fields(request)
        except LroError as exc:
            self._observe_refusal(exc)
            raise
        options = StartSettings(
            request_id=request_id,
            validate_only=validate_only,
            caller=caller,
            headers=lambda: request.headers,
            sent=sent,
            **given,
        )
        return (yield from self._start(message, options))

    def _check_unread(self, request: HttpRequest) -> None:
        if self.rule.body and not request.body:
            check_unread(request.headers)

    def _read_own_fields(self, request: HttpRequest) -> tuple[str, bool]:
        """Read the library's fields in a body that the application has read, if it is JSON.

        Any JSON media type counts. A body that only the application's reader takes is refused, for
        its ``validateOnly`` would be lost, and the work would run.

        Raises:
            MalformedRequest: The media type is JSON, and the body is not JSON in UTF-8.
            InvalidArgument: One of the fields is of another kind.
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
        """What the application reads of a body of another media type, if it does."""
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
        request_id, validate_only = self._take_own(fields)
        message = self._types.load(fields, self._request)
        return message, request_id, validate_only, functools.partial(canonical, fields)

    def _take_own(self, fields: dict[str, Json]) -> tuple[str, bool]:
        request_id = take_field(fields, "request_id", str, "", self._shape)
        return request_id, take_field(fields, "validate_only", bool, False, self._shape)


def start_handlers(service: Service, starts: Starts) -> list[StartHandler[Any]]:
    """The starts that an edge serves: True stands for the methods declared by now with a path.

    Raises:
        DeclarationError: ``starts`` is not of its type, or is True and there is no such method; a
            method is not one of this service; or its request cannot be made at its path.
    """
    if isinstance(starts, Mapping):
        return [_handler(service, path, given) for path, given in starts.items()]
    check("starts", starts, _STARTS, fine=isinstance(starts, bool))
    specs = service.specs.items() if starts else ()
    found: list[StartHandler[Any]]
    found = [StartHandler(service, name, spec.rule) for name, spec in specs if spec.options.path]
    if starts and not found:
        text = "is True, but no method of the service has been declared with path= by now"
        raise DeclarationError("starts", text)
    return found


def _handler(service: Service, path: str, given: object) -> StartHandler[Any]:
    check_text("starts", path)
    start = given if isinstance(given, Start) else Start(cast("Method[Any, Any, Any]", given))
    service.check_own(start.method)
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
    """The routes of the starts beside those of the verbs, and the starts by their ``rpc``.

    Raises:
        DeclarationError: Two starts, or a start and a verb, are served at one path.
    """
    routes: list[Route] = []
    taken: dict[tuple[object, ...], StartHandler[Any]] = {}
    found: dict[str, StartHandler[Any]] = {}
    for start in starts:
        template, method = start.rule.template, start.rule.method
        rpc = f"{method} {template.text}"
        texts = [one.text if isinstance(one, Literal) else one for one in template.segments]
        key = (method, *texts, template.verb and template.verb.text)
        other = taken[key].full_name if key in taken else _rpc_at(verbs, method, template)
        if other is not None:
            raise _served_twice(template.text, start.full_name, other)
        taken[key] = found[rpc] = start
        routes.append(Route(method=method, template=template, rpc=rpc))
    return routes, found


_PAGE: Final = "OpenAPI document"
"""Stands for an RPC where a page is served."""


class ExtraPage(Protocol):
    """A page that an edge serves to every caller, such as :class:`lro.openapi.Document`."""

    @property
    def path(self) -> str:
        """The path of the GET that the page answers."""
        ...

    def reply(self, edge: OperationsEdge) -> HttpReply:
        """Make the reply, which the edge keeps."""
        ...


def _page_route(routes: Sequence[Route], path: object) -> Route:
    check("openapi", path, "an lro.openapi.Document", fine=isinstance(path, str))
    route = Route(method="GET", template=str(path), rpc=_PAGE)
    other = _rpc_at(RouteTable(routes), "GET", route.template)
    if other is not None:
        raise DeclarationError("openapi", f"{path!r} is served already, as {other}")
    return route


def _rpc_at(table: RouteTable, method: str, template: Template) -> str | None:
    """The RPC that a table already has for a call to a path of a template."""
    texts = (one.written if isinstance(one, Literal) else "x" for one in template.segments)
    verb = f":{template.verb.written}" if template.verb else ""
    try:
        found = table.find(method, f"/{'/'.join(texts)}{verb}")
    except (RouteNotFound, HttpMethodNotAllowed):
        return None
    assert isinstance(found, Match)  # only OPTIONS gives anything else
    return found.rpc


def _served_twice(path: str, name: str, other: str) -> DeclarationError:
    return DeclarationError("starts", f"{path!r} cannot start {name}: it is served as {other}")


Started: TypeAlias = Handle[Any, Any] | Operation
"""What a start gives: a method's own a handle, one by the method's name an operation."""


def answer(service: Service, start: Callable[[], Started], poll_seconds: int = 1) -> HttpReply:
    """The reply to a call that starts an operation: the operation, or the error of ``start``.

    For endpoints written in a framework; ``Response(*answer(...).parts)`` is what they return in
    Starlette, FastAPI and Flask. An exception that is not an :class:`lro.LroError` passes, for the
    framework to report.
    """
    try:
        return _started_reply(service, start(), poll_seconds)
    except LroError as exc:
        return _refused_start(service, exc)


async def answer_async(
    service: Service, start: Awaitable[Started], poll_seconds: int = 1
) -> HttpReply:
    """:func:`answer` for coroutines: ``await answer_async(service, resize.start_async(...))``."""
    try:
        return _started_reply(service, await start, poll_seconds)
    except LroError as exc:
        return _refused_start(service, exc)


def _started_reply(service: Service, started: Started, poll_seconds: int) -> HttpReply:
    operation = started.operation if isinstance(started, Handle) else started
    return operation_reply(
        operation, service.types, poll_seconds, started=True, domain=service.domain
    )


def _refused_start(service: Service, error: LroError) -> HttpReply:
    return error_reply(error, service.types, service.domain, asked="a call that starts work")


DEFAULT_MAX_BODY: Final = 1024 * 1024
_LARGEST_BODY: Final = 1 << 40
"""The largest bound of bodies, in bytes: servers take no larger number where they read one."""

Caller: TypeAlias = str | Awaitable[str | None] | None
Authenticate: TypeAlias = (
    Callable[[Mapping[str, str]], Caller] | Callable[[Mapping[str, str], Any], Caller]
)
"""The hook that gives the caller: request headers, names in lower case -> the caller's name.

A function that needs a second argument gets the request as the server has it: the scope under ASGI,
the environ under WSGI, and what a framework's middleware has put into them.
Return None for a caller without a name: all such callers count as one. Raise
:class:`lro.errors.Unauthenticated` to refuse. Anything else that is returned or raised is a
mistake: the call ends with INTERNAL, and the log says what it was. Under ASGI a plain function is
called in a thread, and a coroutine function is awaited; WSGI refuses coroutine functions.
"""

Found: TypeAlias = Match | Allowed | LroError
"""What an edge has at a path: a route, the answer to OPTIONS, or the error of having none."""

_SECONDS: Final = re.compile(r"[0-9]+(\.[0-9]+)?", re.ASCII)


class CommonEdgeKeywords(TypedDict, total=False):
    """Options that edges of all kinds take: see :class:`OperationsEdge`."""

    parents: Sequence[str]
    trusted_origins: Collection[str]
    max_body: int
    poll_seconds: int


class IntegrationKeywords(CommonEdgeKeywords, total=False):
    """Options of an edge in a framework, which finds the caller itself."""

    heartbeat_seconds: float
    accepted: bool


class EdgeKeywords(IntegrationKeywords, total=False):
    """The keyword arguments of :class:`OperationsEdge`."""

    starts: Starts
    authenticate: Authenticate | None
    openapi: ExtraPage | None


@attrs.frozen(kw_only=True, eq=False)
class EdgeOptions:
    """The options of an edge: see :class:`OperationsEdge`.

    Raises:
        DeclarationError: One is not of its type, or out of its bounds.
    """

    starts: Starts = False
    parents: Sequence[str] = ()
    authenticate: Authenticate | None = None
    trusted_origins: Collection[str] = ()
    max_body: int = DEFAULT_MAX_BODY
    poll_seconds: int = 1
    heartbeat_seconds: float = HEARTBEAT_SECONDS
    accepted: bool = False
    openapi: ExtraPage | None = None

    def __attrs_post_init__(self) -> None:
        check_texts("parents", self.parents)
        check_count("max_body", self.max_body, most=_LARGEST_BODY)
        check_count("poll_seconds", self.poll_seconds)
        check_seconds("heartbeat_seconds", self.heartbeat_seconds, most=15)
        check_flag("accepted", self.accepted)


class OperationsEdge:
    """The five verbs over HTTP (spec §5.5), the extensions of spec §3.11, and starts (spec §9).

    ``starts`` are the methods that start operations, each as a POST to its path with its request in
    a JSON body: a dict such as ``{"/v1/images:resize": resize}``, whose values are methods or
    :class:`Start`; or True for every method that has been declared with ``path=`` by now. Beside
    the request's own fields the body may hold ``requestId`` and ``validateOnly`` (spec §9.1, §9.7).
    A path may have variables, and the body may be one field of the request (spec §5.16).
    ``parents`` are further parent patterns such as ``projects/*/locations/*`` (spec §5.6).
    ``authenticate`` gives the caller of a request; without it no caller has a name, which is
    refused where the service has ``owner_only``, and the log warns of it where the service has
    ``authorize``. ``trusted_origins`` are the origins, such as ``https://app.example.com``, whose
    pages may make calls that change something, beside this server's own (spec §5.9(5)).
    ``max_body`` bounds bodies in bytes, ``poll_seconds`` is the polling interval that callers are
    recommended, from 1; ``heartbeat_seconds`` is how often a quiet stream of Watch has a comment,
    at most 15. ``accepted``: starts are answered 202, and not 200, while their operations are not
    done, with ``Location`` (spec §9.8). ``openapi`` is an :class:`lro.openapi.Document`, which
    serves the OpenAPI document of all this at its path; by default it is not served.

    Raises:
        DeclarationError: An option is not of its type, or out of its bounds; or a parent is not
            such a pattern; or a start is not a method of this service; or its path has variables
            that are no fields of its request, or is served already, as that of ``openapi`` may be;
            or the service has ``owner_only`` and there is no ``authenticate``.
    """

    offered: ClassVar[Collection[str]] = (*VERBS, *OPERATOR_VERBS)
    """The verbs that this kind of edge has routes for."""

    def __init__(self, service: Service, **options: Unpack[EdgeKeywords]) -> None:
        check_instance("service", service, Service, "a Service")
        check_keywords(type(self).__name__, options, EdgeKeywords)
        given = EdgeOptions(**options)
        service.access.check_named(type(self).__name__, given.authenticate)
        self.service = service
        self.options: EdgeOptions = given
        self._hook = (
            None if given.authenticate is None else Hook("authenticate", given.authenticate)
        )
        self._trusted_origins = trusted(given.trusted_origins)
        self._redact: Redact | None = None
        self.mount = ""
        """The path below which all is this edge's, and nothing elsewhere; empty: its routes are."""
        self.pages: Sequence[str] = ()
        """Paths without data below that, which are for every caller."""
        self.streams = True
        """Whether the host can answer Watch, and the document has it."""
        self._page_reply: HttpReply | None = None
        routed = (*default_routes(given.parents), *extension_routes(given.parents))
        offered = (route for route in routed if route.rpc in self.offered)
        self.verb_routes: Sequence[Route] = tuple(offered)
        self._verb_table = RouteTable(self.verb_routes)
        self.start_routes: Sequence[Route]
        self.start_routes, self._starts = start_routes(
            self._verb_table, start_handlers(service, given.starts)
        )
        routes = [*self.verb_routes, *self.start_routes]
        if given.openapi is not None:
            path = getattr(given.openapi, "path", given.openapi)
            routes.append(_page_route(self.verb_routes, path))
        self._routes = RouteTable(routes)
        self._own_starts: dict[str, StartHandler[Any]] = {}
        self._verbs: Mapping[str, Callable[[HttpRequest, str, str], Exchange]] = {
            "GetOperation": self._get,
            "ListOperations": self._list,
            "DeleteOperation": self._delete,
            "CancelOperation": self._cancel,
            "WaitOperation": self._wait,
            "BatchGetOperations": self._batch_get,
            "WatchOperations": self._watch,
            "RerunOperation": self._rerun,
        }

    def check_plain(self, where: str) -> None:
        """Check that ``where``, which has no event loop, can ask the hooks of this edge.

        Raises:
            DeclarationError: ``authenticate``, or ``authorize`` of the service, is a coroutine
                function.
        """
        if self._hook is not None:
            self._hook.check_plain(where)
        self.service.access.check_plain(where)

    def route(self, method: str, path: str, *, shared: bool = False) -> Found:
        """What this edge has at a raw path, or the error that says why it has nothing there.

        :class:`RouteNotFound` and :class:`MalformedRequest` say that the path is not this edge's.
        ``shared``: another application has the other methods of a path at which operations are only
        started. It lists what a POST there creates, for instance.
        """
        try:
            return self._routes.find(method, path)
        except HttpMethodNotAllowed as exc:
            if not shared:
                return exc
        except LroError as exc:
            return exc
        try:
            return self._verb_table.find(method, path)
        except LroError as exc:
            return exc

    def path_at(self, path: str, whole: str) -> str:  # noqa: ARG002
        """Return the path that :meth:`route` takes for a mount point itself.

        ``path`` is the raw path below the mount, ``/``; ``whole`` is the decoded path with the
        mount, which may end without a slash.
        """
        return path

    def exchange(self, request: HttpRequest, found: Found | None = None) -> Exchange:
        """Answer a request; every failure becomes an error reply.

        ``found`` is what :meth:`route` has returned for it, where that was asked before.
        """
        try:
            found = found or self.route(request.method, request.path)
            if isinstance(found, LroError):
                raise found
            if isinstance(found, Allowed):
                return allow_reply(found.allow)
            if request.method in CHANGING:
                check_site(request.headers, request.scheme, self._trusted_origins)
            start = self._starts.get(found.rpc)
            if start is None:
                if found.rpc is _PAGE:
                    return self._page(request)
                self.service.access.require(found.rpc)
            caller = yield from self._caller(request)
            if start is not None:
                reply = yield from self._start(request, start, caller, found.bindings)
            else:
                name = found.bindings["name"]
                reply = yield from self._verbs[found.rpc](request, name, caller)
        except Exception as exc:
            return self.refusal(request, exc)
        return reply.headless if request.method == "HEAD" else reply

    @property
    def start_handlers(self) -> Sequence[StartHandler[Any]]:
        """The starts that this edge serves."""
        return tuple(self._starts.values())

    def _page(self, request: HttpRequest) -> HttpReply:
        if self._page_reply is None:
            assert self.options.openapi is not None
            self._page_reply = self.options.openapi.reply(self)
        reply = self._page_reply
        return reply.headless if request.method == "HEAD" else reply

    def refusal(self, request: HttpRequest, error: Exception) -> HttpReply:
        """The reply to a request that failed."""
        service, asked = self.service, one_line(f"{request.method} {request.path}")
        reply = error_reply(error, service.types, service.domain, asked=asked)
        return reply.headless if request.method == "HEAD" else reply

    @property
    def starts(self) -> Mapping[str, str]:
        """The full names of the methods that are started here, by the ``rpc`` of the route."""
        return {rpc: start.full_name for rpc, start in self._starts.items()}

    def start(
        self,
        request: HttpRequest,
        method: Method[Req, Any, Meta],
        message: Req | None = None,
        **options: Unpack[EndpointStartKeywords[Meta]],
    ) -> Flow[tuple[Operation, HttpReply]]:
        """Start an operation for an endpoint that the application writes itself.

        The flow returns the operation, and the reply that carries it. What holds for the paths of
        ``starts`` holds here: pages of other sites are refused, the caller is found, ``requestId``
        and ``validateOnly`` count if the body has them, and ``Prefer`` counts. Without ``message``
        the body is read as there. With it, the body may have any media type; one of JSON, such as
        ``application/vnd.acme+json``, needs a body that is strict JSON in UTF-8. The rest is as for
        ``Method.start``.

        Raises:
            HookFailed: The method is of another service.
            LroError: The operation is not started.
            TypeError: There is no such option.
        """
        check_keywords("start", options, EndpointStartKeywords)
        handler = self._own_starts.get(method.full_name)
        if handler is None:
            try:
                self.service.check_own(method)
            except DeclarationError as exc:  # no fault of the caller
                raise HookFailed("endpoint", str(exc)) from exc
            handler = StartHandler(self.service, method.full_name, _WHOLE_BODY)
            self._own_starts[method.full_name] = handler
        if request.method in CHANGING:
            check_site(request.headers, request.scheme, self._trusted_origins)
        caller = yield from self._caller(request)
        flow = handler.start_own(request, caller, message, options)
        operation = yield from self._starting(request, flow)
        return (yield from self._answered(request, operation, caller))

    def _caller(self, request: HttpRequest) -> Flow[str]:
        if request.caller is not None or self._hook is None:
            return str.__str__(request.caller or "")  # as ask_caller makes it plain
        return (yield from identify(self._hook, request.headers, request.native))

    def handle(self, request: HttpRequest, found: Found | None = None) -> HttpReply:
        """Answer a request in this thread, which cannot stream: Watch is UNIMPLEMENTED here.

        ``found`` is as for :meth:`exchange`.
        """
        reply = run(self.exchange(request, found))
        assert isinstance(reply, HttpReply)  # only what is followed is streamed
        return reply

    def _start(
        self, request: HttpRequest, start: StartHandler[Any], caller: str, bound: Mapping[str, str]
    ) -> Exchange:
        parameters, enum_numbers = start.read_query(request.query)
        flow = start.start(request, caller, bound, parameters)
        operation = yield from self._starting(request, flow)
        return (yield from self._answered(request, operation, caller, enum_numbers))[1]

    def _answered(
        self, request: HttpRequest, operation: Operation, caller: str, enum_numbers: bool = False
    ) -> Flow[tuple[Operation, HttpReply]]:
        """The reply to a start, and the operation in it, as the caller prefers it (RFC 7240)."""
        applied, accepted = [], self.options.accepted
        if "prefer" in request.headers:
            preferred = read_preferences(request.headers["prefer"])
            wait = preferred.wait
            if wait and not operation.done:
                operation, waited = yield from self._awaited(request, operation, wait, caller)
                wait = wait if waited else None
            if preferred.respond_async and not operation.done:
                applied.append("respond-async")
            if wait is not None:
                applied.append(f"wait={min(wait, int(self.service.max_wait.total_seconds()))}")
            accepted = accepted or (preferred.respond_async and preferred.wait is not None)
        show = functools.partial(self._started, request, enum_numbers, accepted)
        if is_small(operation):
            reply = show(operation)
        else:
            operation = Operation(name=operation.name)

            def read_again(_: ReplyReservation) -> HttpReply:
                nonlocal operation
                operation = self.service.access.read(operation.name, caller)
                return show(operation)

            try:
                reply = yield from self._many(read_again, self.service.limits.page_bytes)
            except (OperationNotFound, ResourceExhausted, Unavailable):
                reply = show(operation)  # it is stored, so that the start is not refused
        if applied:
            more = ("preference-applied", ", ".join(applied))
            reply = attrs.evolve(reply, headers=(*reply.headers, more))
        return operation, reply

    def _awaited(
        self, request: HttpRequest, operation: Operation, seconds: int, caller: str
    ) -> Flow[tuple[Operation, bool]]:
        """A started operation when it is done or the time is over; whether it was waited for."""
        try:
            self.service.require("WaitOperation")
            wanted = WaitOperationRequest(operation.name)
            return (yield self._waiting(request, wanted, float(seconds), caller)), True
        except Exception as exc:
            # It is stored, so that the start is not refused, because there are too many waits for
            # instance. A hook that failed is reported in the log.
            self.refusal(request, exc)
            return operation, False

    def _started(
        self, request: HttpRequest, enum_numbers: bool, accepted: bool, operation: Operation
    ) -> HttpReply:
        reply = operation_reply(
            operation,
            self.service.types,
            self.options.poll_seconds,
            enum_numbers=enum_numbers,
            started=True,
            accepted=accepted,
            redact=self._redact,
            domain=self.service.domain,
        )
        location = self.path_of(request, operation) if reply.status == HTTPStatus.ACCEPTED else None
        if location is None:
            return reply
        return attrs.evolve(reply, headers=(*reply.headers, ("location", location)))

    def path_of(self, request: HttpRequest, operation: Operation) -> str | None:
        """The path of an operation, percent-encoded, as the caller of a request knows it.

        None where that is not known, or the operation is not served here because of its parent.
        """
        path = f"/v1/{quote(operation.name, safe='/')}"
        mount = request.mount(request)
        try:
            self._verb_table.find("GET", path)
        except LroError:
            return None
        return None if mount is None else f"{mount}{path}"

    def _waiting(
        self, request: HttpRequest, wanted: WaitOperationRequest, limit: float | None, caller: str
    ) -> Wait:
        return Wait(self.service, wanted, limit, caller, request.while_connected)

    def _starting(self, request: HttpRequest, flow: Flow[Operation]) -> Flow[Operation]:
        self._check_size(request)
        if len(request.body) < MANY_BYTES:
            return flow
        # To read a large body and to write it down both take too long for an event loop.
        self.service.begin_here()
        return only(InThreads(flow))

    def _get(self, request: HttpRequest, name: str, caller: str) -> Exchange:
        query = _query_of(request, "GetOperation")
        operation = yield from get_operation(self.service, name, caller, query.view)
        return (yield from self._shown(operation, query, caller))

    def _list(self, request: HttpRequest, name: str, caller: str) -> Exchange:
        query = _query_of(request, "ListOperations")
        fields: Mapping[str, Any] = query.fields
        wanted = ListOperationsRequest(name=name, **fields)

        # Apart from the reading: a hook that blocks must not hold a thread that makes replies.
        begin = flow_of(self.service.begin_list)(wanted, view=query.view, caller=caller)
        listing: Listing = yield InThreads(begin)

        def listed(turn: ReplyReservation) -> HttpReply:
            return page_reply(*listing.page(turn.bytes, self._show(query)))

        return (yield from self._many(listed, self.service.limits.least_bytes))

    def _delete(self, request: HttpRequest, name: str, caller: str) -> Exchange:
        _query_of(request, "DeleteOperation")
        yield from flow_of(self.service.delete)(name, caller=caller)
        return json_reply(200, {})

    def _cancel(self, request: HttpRequest, name: str, caller: str) -> Exchange:
        _query_of(request, "CancelOperation")
        yield self._body(request, "CancelOperation", name)
        yield from flow_of(self.service.cancel)(name, caller=caller)
        return json_reply(200, {})

    def _rerun(self, request: HttpRequest, name: str, caller: str) -> Exchange:
        query = _query_of(request, "RerunOperation")
        wanted: RerunOperationRequest = yield self._body(request, "RerunOperation", name)
        rerun = flow_of(self.service.rerun)
        operation = yield from rerun(name, request_id=wanted.request_id, caller=caller)
        return (yield from self._answered(request, operation, caller, query.enum_numbers))[1]

    def _wait(self, request: HttpRequest, name: str, caller: str) -> Exchange:
        query = _query_of(request, "WaitOperation")
        wanted: WaitOperationRequest = yield self._body(request, "WaitOperation", name)
        deadline = _deadline(request.headers.get("x-server-timeout"))
        operation: Operation = yield self._waiting(request, wanted, deadline, caller)
        return (yield from self._shown(operation, query, caller))

    def _batch_get(self, request: HttpRequest, collection: str, caller: str) -> Exchange:
        query = _query_of(request, "BatchGetOperations")
        names: tuple[str, ...] = yield self._names(request, collection)

        begin = flow_of(self.service.begin_batch)(names, view=query.view, caller=caller)
        batch: Batch = yield InThreads(begin)

        def found(_: ReplyReservation) -> HttpReply:
            return batch_reply(*batch.read(self._show(query)))

        return (yield from self._many(found, self.service.limits.page_bytes))

    def _many(self, make: Callable[[ReplyReservation], HttpReply], least: int) -> Flow[HttpReply]:
        """A reply of many operations or a large one: bytes are set aside until it is sent."""
        most = self.service.limits.page_bytes
        turn: ReplyReservation = yield Reserve(self.service.replies, least, most)

        def made() -> HttpReply:
            try:
                reply = make(turn)
            except BaseException:
                turn.release()
                raise
            turn.resize(len(reply.body))
            return attrs.evolve(reply, turn=turn)

        # To look for matches, and to print many operations, takes long even in memory.
        return (yield from in_few_threads(self.service, made))

    def _watch(self, request: HttpRequest, name: str, caller: str) -> Exchange:
        query = _query_of(request, "WatchOperations")
        if request.method == "POST":
            names: tuple[str, ...] = yield self._names(request, name)
        else:
            parse_name(name)
            names = (name,)
        watching: WatchStream = yield Watch(self.service, names, caller)
        return event_stream(
            watching,
            self.service.types,
            self.service.domain,
            enum_numbers=query.enum_numbers,
            heartbeat_seconds=self.options.heartbeat_seconds,
            redact=self._redact,
        )

    def _names(self, request: HttpRequest, collection: str) -> MayBlock:
        parent = normalise_parent(collection)
        return self._read(
            request, lambda kind, body: read_names(parent, kind, body, self.service.types)
        )

    def _show(self, query: Query) -> Show[bytes]:
        return functools.partial(
            shown_together,
            types=self.service.types,
            domain=self.service.domain,
            enum_numbers=query.enum_numbers,
            redact=self._redact,
        )

    def _body(self, request: HttpRequest, rpc: str, name: str) -> MayBlock:
        return self._read(
            request, lambda kind, body: read_request(rpc, name, kind, body, self.service.types)
        )

    def _read(self, request: HttpRequest, read: Callable[[str | None, bytes], object]) -> MayBlock:
        self._check_size(request)
        kind, body = request.headers.get("content-type"), request.body
        return MayBlock(functools.partial(read, kind, body), blocks=len(body) >= MANY_BYTES)

    def _check_size(self, request: HttpRequest) -> None:
        if len(request.body) > self.options.max_body:
            raise RequestTooLarge("body", f"must have at most {self.options.max_body} bytes")

    def _shown(self, operation: Operation, query: Query, caller: str) -> Flow[HttpReply]:
        """The reply that shows an operation; a large one is read again when there is room."""
        show = functools.partial(
            operation_reply,
            types=self.service.types,
            poll_seconds=self.options.poll_seconds,
            enum_numbers=query.enum_numbers,
            redact=self._redact,
            domain=self.service.domain,
        )
        if is_small(operation):
            return show(operation)
        name, description = operation.name, operation.description
        del operation

        def read_again(_: ReplyReservation) -> HttpReply:
            found = self.service.access.read(name, caller)
            return show(attrs.evolve(found, description=description))

        return (yield from self._many(read_again, self.service.limits.page_bytes))


def _query_of(request: HttpRequest, rpc: str) -> Query:
    return parse_query(rpc, request.query) if request.query else NO_QUERY


def _deadline(header: str | None) -> float | None:
    if header is None:
        return None
    text = header.strip()
    if not _SECONDS.fullmatch(text):
        raise InvalidTimeout("X-Server-Timeout", f"must be seconds such as 2.5, got {got(header)}")
    return float(text)
