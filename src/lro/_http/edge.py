"""The HTTP edge without a framework: from a request to its reply."""

from __future__ import annotations

import functools
import re
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import timedelta
from http import HTTPStatus
from typing import Any, ClassVar, Final, Protocol, TypeAlias, TypedDict, TypeVar, Unpack
from urllib.parse import quote

import attrs

from lro._base.arguments import (
    check,
    check_count,
    check_flag,
    check_instance,
    check_keywords,
    check_seconds,
    check_span,
    check_texts,
)
from lro._base.errors import (
    DeclarationError,
    HookFailed,
    HttpMethodNotAllowed,
    InvalidTimeout,
    LroError,
    OperationNotFound,
    RequestTooLarge,
    ResourceExhausted,
    Unavailable,
    got,
    one_line,
)
from lro._engine.access import OPERATOR_VERBS, VERBS, ask_caller, caller_hook
from lro._engine.flow import Flow, InThreads, MayBlock, flow_of, run
from lro._engine.limits import ReplyReservation
from lro._engine.listing import Batch, Listing
from lro._engine.methods import Method
from lro._engine.service import Service
from lro._engine.starting import EndpointStartKeywords
from lro._http.exchange import Authenticate, Exchange, Reserve, Wait, Watch, in_few_threads
from lro._http.requests import (
    CHANGING,
    MANY_BYTES,
    NO_QUERY,
    Preferences,
    Query,
    check_site,
    parse_query,
    read_names,
    read_preferences,
    read_request,
    trusted,
)
from lro._http.responses import (
    HEARTBEAT_SECONDS,
    HttpReply,
    Redact,
    allow_reply,
    batch_reply,
    error_reply,
    event_stream,
    json_reply,
    log,
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
    default_routes,
    extension_routes,
)
from lro._http.starts import (
    NOTHING_READ,
    WHOLE_BODY,
    StartHandler,
    Starts,
    rpc_at,
    start_handlers,
    start_of_size,
    start_routes,
)
from lro._model.operation import (
    ListOperationsRequest,
    Operation,
    Render,
    RerunOperationRequest,
    WaitOperationRequest,
    check_name,
    is_small,
    normalise_parent,
)

Req = TypeVar("Req")
Meta = TypeVar("Meta")


_PAGE: Final = "OpenAPI document"
"""The ``rpc`` of the route to a page, which calls no RPC."""


class ExtraPage(Protocol):
    """A page that an edge serves to every caller, such as :class:`lro.openapi.Document`."""

    @property
    def path(self) -> str:
        """The path of the GET that the page answers."""
        ...

    def reply(self, edge: OperationsEdge) -> HttpReply:
        """Make the reply; the edge caches it."""
        ...


def _page_route(routes: Sequence[Route], page: object) -> Route:
    path = getattr(page, "path", None)
    check("openapi", page, "an lro.openapi.Document", fine=isinstance(path, str))
    route = Route(method="GET", template=str(path), rpc=_PAGE)
    other = rpc_at(RouteTable(routes), "GET", route.template)
    if other is not None:
        raise DeclarationError("openapi", f"{path!r} is served already, as {other}")
    return route


DEFAULT_MAX_BODY: Final = 1024 * 1024
THREAD_WAIT: Final = timedelta(seconds=20)
"""The longest Wait in hosts in which a call occupies a thread, unless ``max_wait`` is set."""
ONE_THREAD_WAIT: Final = timedelta(seconds=1)
"""The longest Wait in a process that answers one call at a time, unless ``max_wait`` is set."""
DEFAULT_MAX_WAITING: Final = 3
"""Number of waiting calls that leaves a thread for others: waitress has four by default."""
_ONE_THREAD: Final = (
    "this process answers one call at a time, so a call of Wait lasts at most %g s:"
    " set more threads (gunicorn: --threads), or max_wait"
)
_LARGEST_BODY: Final = 1 << 40
"""The largest allowed ``max_body``, in bytes; servers do not accept larger limits."""

RouteResult: TypeAlias = Match | Allowed | LroError
"""The route at a path, the methods at the path for OPTIONS, or the error of a missing route."""

_SECONDS: Final = re.compile(r"[0-9]+(\.[0-9]+)?", re.ASCII)


class CommonEdgeKeywords(TypedDict, total=False):
    """Options of all kinds of edges: see :class:`OperationsEdge`."""

    parents: Sequence[str]
    trusted_origins: Collection[str]
    max_body: int
    poll_seconds: int


class IntegrationKeywords(CommonEdgeKeywords, total=False):
    """Options of an edge in a framework that authenticates callers itself."""

    heartbeat_seconds: float
    accepted: bool
    max_wait: timedelta | None
    max_waiting: int


class EdgeKeywords(IntegrationKeywords, total=False):
    """The keyword arguments of :class:`OperationsEdge`."""

    starts: Starts
    authenticate: Authenticate | None
    openapi: ExtraPage | None


@attrs.frozen(kw_only=True, eq=False)
class EdgeOptions:
    """The options of an edge: see :class:`OperationsEdge`.

    Raises:
        DeclarationError: An option is not of its type, or out of its bounds.
    """

    starts: Starts = False
    parents: Sequence[str] = ()
    authenticate: Authenticate | None = None
    trusted_origins: Collection[str] = ()
    max_body: int = DEFAULT_MAX_BODY
    poll_seconds: int = 1
    heartbeat_seconds: float = HEARTBEAT_SECONDS
    accepted: bool = False
    max_wait: timedelta | None = None
    max_waiting: int = DEFAULT_MAX_WAITING
    openapi: ExtraPage | None = None

    def __attrs_post_init__(self) -> None:
        check_texts("parents", self.parents)
        check_count("max_body", self.max_body, most=_LARGEST_BODY)
        check_count("poll_seconds", self.poll_seconds)
        check_seconds("heartbeat_seconds", self.heartbeat_seconds, most=15)
        check_flag("accepted", self.accepted)
        if self.max_wait is not None:
            check_span("max_wait", self.max_wait, zero=True)
        check_count("max_waiting", self.max_waiting, least=0)


class OperationsEdge:
    """Serves the five verbs over HTTP (spec §5.5), the extensions of spec §3.11, and starts (§9).

    ``starts`` has the methods that callers can start by a POST with the request as JSON. It is a
    dict from paths to methods or :class:`Start`, such as ``{"/v1/images:resize": resize}``, or True
    for all methods declared with ``path=`` so far. In addition to the request's fields, the body
    may have ``requestId`` and ``validateOnly`` (spec §9.1, §9.7). A path may have variables, and
    the body may be one field of the request (spec §5.16).

    ``parents`` are further parent patterns such as ``projects/*/locations/*`` (spec §5.6).
    ``authenticate`` returns the name of a request's caller. Without it, callers have no names: a
    service with ``owner_only`` refuses such an edge, and a service with ``authorize`` logs a
    warning. ``trusted_origins`` are origins such as ``https://app.example.com``: their pages may
    make calls that change something, like pages of this server (spec §5.9(5)).

    ``max_body`` is the maximum size of a body, in bytes. ``poll_seconds`` is the polling interval
    recommended to callers, at least 1. ``heartbeat_seconds`` is the interval of the comments that
    are sent in a Watch stream without events, at most 15. With ``accepted``, a start whose
    operation is not done is answered with 202 and ``Location``, not with 200 (spec §9.8).
    ``max_wait`` is the longest time that a Wait, or a start with ``Prefer: wait``, may last; the
    service's ``max_wait`` is a bound, too. By default only the latter applies, but under WSGI 20
    seconds do, because a call that waits occupies a thread, and servers stop processes whose calls
    last long: gunicorn after 30 seconds. In a WSGI process with a single thread, 1 second does.
    Under WSGI, at most ``max_waiting`` calls wait at a time; further calls get the present state at
    once (spec §4.7, §4.8). Choose a number below the number of threads of a process.
    ``openapi`` is an :class:`lro.openapi.Document`, which serves the OpenAPI document at its path;
    by default no document is served.

    Raises:
        DeclarationError: An option is not of its type or out of bounds; a parent is not a pattern;
            a start is not a method of this service; a path has variables that are not fields of the
            request, or is served already; or the service has ``owner_only`` and there is no
            ``authenticate``.
    """

    offered: ClassVar[Collection[str]] = (*VERBS, *OPERATOR_VERBS)
    """The verbs for which edges of this class have routes."""

    def __init__(self, service: Service, **options: Unpack[EdgeKeywords]) -> None:
        check_instance("service", service, Service, "a Service")
        check_keywords(type(self).__name__, options, EdgeKeywords)
        given = EdgeOptions(**options)
        service.edges.access.check_named(type(self).__name__, given.authenticate)
        self.service = service
        self.options: EdgeOptions = given
        self._hook = (
            None if given.authenticate is None else caller_hook("authenticate", given.authenticate)
        )
        self._trusted_origins = trusted(given.trusted_origins)
        self._redact: Redact | None = None
        self.mount = ""
        """The prefix below which this edge serves all paths; empty if it serves only its routes."""
        self.pages: Sequence[str] = ()
        """Static paths below the prefix, which need no authentication."""
        self.streams: bool = True
        """True if the host can stream; the OpenAPI document then has Watch."""
        longest = service.edges.max_wait
        own = longest if given.max_wait is None else given.max_wait
        self.max_wait: timedelta = min(longest, own)
        """The longest time that a call may wait for an operation."""
        self._room: threading.Semaphore | None = None
        self._one_thread_told = False
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
            routes.append(_page_route(self.verb_routes, given.openapi))
        self._routes = RouteTable(routes)
        self._own_starts: dict[str, StartHandler[Any]] = {}
        self._verbs = self._exchanges()

    def _exchanges(self) -> Mapping[str, Callable[[HttpRequest, str, str], Exchange]]:
        """Return functions by verb, which take the request, the name in the path and the caller."""
        return {
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
        """Check that the host ``where``, which has no event loop, can call the hooks of this edge.

        Raises:
            DeclarationError: ``authenticate``, or ``authorize`` or ``staff`` of the service, is a
                coroutine function.
        """
        if self._hook is not None:
            self._hook.check_plain(where)
        self.service.edges.access.check_plain(where)

    def occupy_threads(self, where: str) -> None:
        """Prepare for the host ``where``, in which each call occupies a thread until its reply.

        Watch is not offered, and a Wait lasts for at most ``THREAD_WAIT``, or the option
        ``max_wait``. At most ``max_waiting`` calls wait at a time.

        Raises:
            DeclarationError: As for :meth:`check_plain`.
        """
        self.check_plain(where)
        self.streams = False
        self._room = threading.Semaphore(self.options.max_waiting)
        if self.options.max_wait is None:
            self.max_wait = min(self.max_wait, THREAD_WAIT)

    def route(self, method: str, path: str, *, shared: bool = False) -> RouteResult:
        """Return the route of this edge at a raw path, or the error of a missing route.

        :class:`RouteNotFound` and :class:`MalformedRequest` mean that another application serves
        the path. With ``shared``, another application serves the other HTTP methods at the path of
        a start: for instance, a GET that lists the resources that the POST creates.
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
        """Return the path for :meth:`route` if a request is for the mount point itself.

        ``path`` is the raw path below the mount, which is ``/``. ``whole`` is the decoded path that
        includes the mount, and may end without a slash.
        """
        return path

    def exchange(self, request: HttpRequest, found: RouteResult | None = None) -> Exchange:
        """Answer a request; every failure becomes an error reply.

        ``found`` is the result of :meth:`route`, if the host has already called it.
        """
        try:
            found = found or self.route(request.method, request.path)
            if not isinstance(found, Match):
                if isinstance(found, Allowed):
                    return allow_reply(found.allow)
                raise found
            if request.method in CHANGING:
                check_site(request.headers, request.scheme, self._trusted_origins)
            start = self._starts.get(found.rpc)
            if start is None:
                if found.rpc is _PAGE:
                    return self._page(request)
                self.service.edges.access.require(found.rpc)
            caller = ""
            if self._hook is not None or request.caller:
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
        """Return the handlers of the starts that this edge serves."""
        return tuple(self._starts.values())

    def _page(self, request: HttpRequest) -> HttpReply:
        if self._page_reply is None:
            assert self.options.openapi is not None
            self._page_reply = self.options.openapi.reply(self)
        reply = self._page_reply
        return reply.headless if request.method == "HEAD" else reply

    def refusal(self, request: HttpRequest, error: Exception) -> HttpReply:
        """Return the reply to a request that failed."""
        service, asked = self.service, one_line(f"{request.method} {request.path}")
        reply = error_reply(error, service.types, service.domain, asked=asked)
        return reply.headless if request.method == "HEAD" else reply

    @property
    def starts(self) -> Mapping[str, str]:
        """The full names of the methods that this edge starts, by the ``rpc`` of the route."""
        return {rpc: start.full_name for rpc, start in self._starts.items()}

    def start(
        self,
        request: HttpRequest,
        method: Method[Req, Any, Meta],
        message: Req | None = None,
        **options: Unpack[EndpointStartKeywords[Meta]],
    ) -> Flow[tuple[Operation, HttpReply]]:
        """Start an operation for an endpoint that the application has written.

        The flow returns the operation and its reply. As with ``starts``, calls by pages of other
        sites are refused, the caller is authenticated, and ``requestId``, ``validateOnly`` and
        ``Prefer`` are honoured. Without ``message``, the body is the message in JSON. With
        ``message``, the body may have any media type, but a body of a JSON type, such as
        ``application/vnd.acme+json``, must be strict JSON in UTF-8. The other arguments are those
        of ``Method.start``.

        Raises:
            HookFailed: The method belongs to another service.
            LroError: The operation is not started.
            TypeError: An option does not exist.
        """
        check_keywords("start", options, EndpointStartKeywords)
        handler = self._own_starts.get(method.full_name)
        if handler is None:
            try:
                self.service.edges.check_own(method)
            except DeclarationError as exc:  # the application made the mistake, not the caller
                raise HookFailed("endpoint", str(exc)) from exc
            handler = StartHandler(self.service, method.full_name, WHOLE_BODY)
            self._own_starts[method.full_name] = handler
        if request.method in CHANGING:
            check_site(request.headers, request.scheme, self._trusted_origins)
        caller = yield from self._caller(request)
        flow = handler.start(request, caller, message=message, given=options)
        flow = self._starting(request, flow)
        return (yield from self._start_reply(request, (yield from flow), caller))

    def _caller(self, request: HttpRequest) -> Flow[str]:
        if request.caller is not None or self._hook is None:
            return str.__str__(request.caller or "")  # a plain str, as ``ask_caller`` returns it
        return (yield from ask_caller(self._hook, request.headers, request.native))

    def handle(self, request: HttpRequest, found: RouteResult | None = None) -> HttpReply:
        """Answer a request in this thread. A thread cannot stream, so Watch is UNIMPLEMENTED.

        ``found`` is as for :meth:`exchange`.
        """
        reply = run(self.exchange(request, found))
        # ``run`` refuses the step Watch, the only step that makes a stream.
        assert isinstance(reply, HttpReply)
        return reply

    def _start(
        self, request: HttpRequest, start: StartHandler[Any], caller: str, bound: Mapping[str, str]
    ) -> Exchange:
        read = start.read_query(request.query) if request.query else NOTHING_READ
        parameters, enum_numbers = read
        flow = self._starting(request, start.start(request, caller, bound, parameters))
        return (yield from self._start_reply(request, (yield from flow), caller, enum_numbers))[1]

    def _start_reply(
        self, request: HttpRequest, operation: Operation, caller: str, enum_numbers: bool = False
    ) -> Flow[tuple[Operation, HttpReply]]:
        """Return the operation, and the reply to its start according to ``Prefer`` (RFC 7240).

        Callers must not keep the operation, as for :meth:`_shown`.
        """
        applied, accepted = "", self.options.accepted
        if "prefer" in request.headers:
            preferred = read_preferences(request.headers["prefer"])
            operation, applied = yield from self._preferred(request, operation, caller, preferred)
            accepted = accepted or (preferred.respond_async and preferred.wait is not None)
        if is_small(operation):
            reply = self._print(operation, enum_numbers, request, accepted)
        else:
            show = functools.partial(
                self._print, enum_numbers=enum_numbers, start=request, accepted=accepted
            )
            name = operation.name
            del operation
            operation, reply = yield from self._large_start(name, show)
        if applied:
            headers = (*reply.headers, ("preference-applied", applied))
            reply = attrs.evolve(reply, headers=headers)
        return operation, reply

    def _large_start(
        self, name: str, show: Callable[[Operation], HttpReply]
    ) -> Flow[tuple[Operation, HttpReply]]:
        """Read a started operation again when its bytes are reserved; return it and its reply."""
        operation = Operation(name=name)

        def read_again(_: ReplyReservation) -> HttpReply:
            nonlocal operation
            operation = self.service.edges.access.read(name, None)  # the call has started it
            return show(operation)

        try:
            reply = yield from self._large(read_again, self.service.edges.limits.page_bytes)
        except (OperationNotFound, ResourceExhausted, Unavailable):
            reply = show(operation)  # the start has succeeded, because the operation is stored
        return operation, reply

    def _preferred(
        self, request: HttpRequest, operation: Operation, caller: str, preferred: Preferences
    ) -> Flow[tuple[Operation, str]]:
        """Do what ``Prefer`` asks for; return the operation, and the preferences applied."""
        applied, wait = [], preferred.wait
        if wait and not operation.done:
            operation, waited = yield from self._wait_preferred(request, operation, wait, caller)
            wait = wait if waited else None
        if preferred.respond_async and not operation.done:
            applied.append("respond-async")
        if wait is not None:
            most = int(self._longest_wait(request).total_seconds())
            applied.append(f"wait={min(wait, most)}")
        return operation, ", ".join(applied)

    def _wait_preferred(
        self, request: HttpRequest, operation: Operation, seconds: int, caller: str
    ) -> Flow[tuple[Operation, bool]]:
        """Wait for a started operation; return it, and False if the wait was refused."""
        try:
            self.service.edges.access.require("WaitOperation")
            wanted = WaitOperationRequest(operation.name)
            wait = self._waiting(request, wanted, float(seconds), caller)
            return (yield wait), True
        except Exception as exc:
            # The operation is stored, so the start has succeeded, even if the wait is refused
            # (too many calls wait, for instance). If a hook has failed, ``refusal`` logs the error.
            self.refusal(request, exc)
            return operation, False

    def path_of(self, request: HttpRequest, operation: Operation) -> str | None:
        """Return the percent-encoded path of an operation, as seen by the caller of the request.

        Return None if the path is unknown, or if this edge does not serve the operation's parent.
        """
        path = f"/v1/{quote(operation.name, safe='/')}"
        mount = request.mount(request)
        try:
            self._verb_table.find("GET", path)
        except LroError:
            return None
        return None if mount is None else f"{mount}{path}"

    def _starting(self, request: HttpRequest, flow: Flow[Operation]) -> Flow[Operation]:
        if len(request.body) > self.options.max_body:
            raise self._too_large()
        return start_of_size(self.service, flow, len(request.body))

    def _get(self, request: HttpRequest, name: str, caller: str) -> Exchange:
        query = _query_of(request, "GetOperation")
        access, view = self.service.edges.access, query.view
        if view == "BASIC" and access.immediate and not self.service.edges.background.pending:
            # Get is the most frequent call.
            return (yield from self._shown(access.read(name, caller), query))
        found = flow_of(self.service.get)(name, view=view, caller=caller)
        return (yield from self._shown((yield from found), query))

    def _list(self, request: HttpRequest, name: str, caller: str) -> Exchange:
        query = _query_of(request, "ListOperations")
        fields: Mapping[str, Any] = query.fields
        wanted = ListOperationsRequest(name=name, **fields)

        # ``begin`` calls a hook of the application, and must not run in one of the few threads that
        # make large replies, because the hook may block.
        begin = self.service.edges.begin_list(wanted, view=query.view, caller=caller)
        listing: Listing = yield InThreads(begin)

        def listed(reserved: ReplyReservation) -> HttpReply:
            return page_reply(*listing.page(reserved.bytes, self._show(query)))

        return (yield from self._large(listed, self.service.edges.limits.least_bytes))

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
        flow = flow_of(self.service.rerun)(name, request_id=wanted.request_id, caller=caller)
        numbers = query.enum_numbers
        return (yield from self._start_reply(request, (yield from flow), caller, numbers))[1]

    def _wait(self, request: HttpRequest, name: str, caller: str) -> Exchange:
        query = _query_of(request, "WaitOperation")
        wanted: WaitOperationRequest = yield self._body(request, "WaitOperation", name)
        deadline = _deadline(request.headers.get("x-server-timeout"))
        wait = self._waiting(request, wanted, deadline, caller)
        return (yield from self._shown((yield wait), query))

    def _waiting(
        self,
        request: HttpRequest,
        wanted: WaitOperationRequest,
        deadline_seconds: float | None,
        caller: str,
    ) -> Wait:
        return Wait(
            self.service,
            wanted,
            deadline_seconds,
            caller,
            request.while_connected,
            self._longest_wait(request),
            self._room,
        )

    def _longest_wait(self, request: HttpRequest) -> timedelta:
        if not request.one_thread or self.options.max_wait is not None:
            return self.max_wait
        if not self._one_thread_told:
            self._one_thread_told = True
            log.warning(_ONE_THREAD, ONE_THREAD_WAIT.total_seconds())
        return min(self.max_wait, ONE_THREAD_WAIT)

    def _batch_get(self, request: HttpRequest, collection: str, caller: str) -> Exchange:
        query = _query_of(request, "BatchGetOperations")
        names: tuple[str, ...] = yield self._names(request, collection)

        begin = self.service.edges.begin_batch(names, view=query.view, caller=caller)
        batch: Batch = yield InThreads(begin)

        def found(_: ReplyReservation) -> HttpReply:
            return batch_reply(*batch.read(self._show(query)))

        return (yield from self._large(found, self.service.edges.limits.page_bytes))

    def _large(self, make: Callable[[ReplyReservation], HttpReply], least: int) -> Flow[HttpReply]:
        """Make a reply that may be large; its bytes are reserved until it is sent."""
        reserved: ReplyReservation = yield Reserve(self.service, least)

        def made() -> HttpReply:
            try:
                reply = make(reserved)
            except BaseException:
                reserved.release()
                raise
            reserved.resize(len(reply.body))
            return attrs.evolve(reply, reserved=reserved)

        # To find matches and to print many operations takes long, even with a store in memory.
        return (yield from in_few_threads(self.service, made))

    def _watch(self, request: HttpRequest, name: str, caller: str) -> Exchange:
        query = _query_of(request, "WatchOperations")
        if request.method == "POST":
            names: tuple[str, ...] = yield self._names(request, name)
        else:
            check_name(name)
            names = (name,)
        watching = yield Watch(self.service, names, caller)
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

    def _show(self, query: Query) -> Render[bytes]:
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
        if len(request.body) > self.options.max_body:
            raise self._too_large()
        kind, body = request.headers.get("content-type"), request.body
        return MayBlock(functools.partial(read, kind, body), blocks=len(body) >= MANY_BYTES)

    def _too_large(self) -> RequestTooLarge:
        return RequestTooLarge("body", f"must have at most {self.options.max_body} bytes")

    def _shown(self, operation: Operation, query: Query) -> Flow[HttpReply]:
        """Reply with an operation; a large operation is read again when its bytes are reserved.

        Callers must not keep the operation, so that it is freed while the call waits for the bytes.
        """
        if is_small(operation):
            return self._print(operation, query.enum_numbers)
        name, description = operation.name, operation.description
        del operation

        def read_again(_: ReplyReservation) -> HttpReply:
            found = self.service.edges.access.read(name, None)  # the caller has been shown it
            return self._print(attrs.evolve(found, description=description), query.enum_numbers)

        return (yield from self._large(read_again, self.service.edges.limits.page_bytes))

    def _print(
        self,
        operation: Operation,
        enum_numbers: bool,
        start: HttpRequest | None = None,
        accepted: bool = False,
    ) -> HttpReply:
        """Reply with an operation; ``start`` is the request that started it."""
        reply = operation_reply(
            operation,
            self.service.types,
            self.options.poll_seconds,
            enum_numbers=enum_numbers,
            started=start is not None,
            accepted=accepted,
            redact=self._redact,
            domain=self.service.domain,
        )
        if start is None or reply.status != HTTPStatus.ACCEPTED:
            return reply
        location = self.path_of(start, operation)
        if location is None:
            return reply
        return attrs.evolve(reply, headers=(*reply.headers, ("location", location)))


def _query_of(request: HttpRequest, rpc: str) -> Query:
    return parse_query(rpc, request.query) if request.query else NO_QUERY


def _deadline(header: str | None) -> float | None:
    if header is None:
        return None
    text = header.strip()
    if not _SECONDS.fullmatch(text):
        raise InvalidTimeout("X-Server-Timeout", f"must be seconds such as 2.5, got {got(header)}")
    return float(text)
