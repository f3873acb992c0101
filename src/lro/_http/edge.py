"""The edge over HTTP, without a framework: the verbs, and the methods that start operations."""

from __future__ import annotations

import functools
import re
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Any, Final, TypeAlias

import attrs

from lro._base.arguments import check_count, check_instance, check_seconds, check_texts
from lro._base.errors import InvalidTimeout, LroError, RequestTooLarge, got
from lro._engine.access import Flow, Hook, flow_of
from lro._engine.limits import ReplyReservation
from lro._engine.listing import Listing
from lro._engine.service import Service
from lro._http.requests import (
    CHANGING,
    MANY_BYTES,
    NO_QUERY,
    Query,
    check_site,
    parse_query,
    read_names,
    read_request,
    trusted,
)
from lro._http.responses import (
    HEARTBEAT_SECONDS,
    HttpReply,
    allow_reply,
    batch_reply,
    error_reply,
    event_stream,
    json_reply,
    operation_reply,
    page_reply,
    shown_together,
)
from lro._http.routes import Allowed, HttpRequest, Match, default_routes, extension_routes
from lro._http.starts import StartHandler, Starts, start_handlers, with_starts
from lro._http.steps import (
    Call,
    Exchange,
    Reserve,
    Steps,
    Wait,
    Watch,
    drive,
    get_operation,
    identify,
)
from lro._model.names import normalise_parent, parse_name
from lro._model.operation import ListOperationsRequest, Operation, Show, WaitOperationRequest

DEFAULT_MAX_BODY: Final = 1024 * 1024

Authenticate = Callable[[Mapping[str, str]], str | Awaitable[str | None] | None]
"""The hook that gives the caller: request headers, names in lower case -> the caller's name.

Return None for a caller without a name: all such callers count as one. Raise
:class:`lro.errors.Unauthenticated` to refuse. Anything else that is returned or raised is a
mistake: the call ends with INTERNAL, and the log says what it was. Under ASGI a plain function is
called in a thread, and a coroutine function is awaited; WSGI refuses coroutine functions.
"""

Found: TypeAlias = Match | Allowed | LroError
"""What an edge has at a path: a route, the answer to OPTIONS, or the error of having none."""

_SECONDS: Final = re.compile(r"[0-9]+(\.[0-9]+)?", re.ASCII)


class OperationsEdge:
    """The five verbs over HTTP (spec §5.5), the extensions of spec §3.11, and starts (spec §9).

    ``starts`` are the methods that start operations, each as a POST to its path with its request in
    a JSON body: a dict such as ``{"/v1/images:resize": resize}``, whose values are methods or
    :class:`Start`; or True for every method that has been declared with ``path=`` by now. Beside
    the request's own fields the body may hold ``requestId`` and ``validateOnly`` (spec §9.1, §9.7).
    ``parents`` are further parent patterns such as ``projects/*/locations/*`` (spec §5.6).
    ``authenticate`` gives the caller of a request; without it no caller has a name, which is
    refused where the service has ``owner_only``, and the log warns of it where the service has
    ``authorize``. ``trusted_origins`` are the origins, such as ``https://app.example.com``, whose
    pages may make calls that change something, beside this server's own (spec §5.9(5)).
    ``max_body`` bounds bodies in bytes, ``poll_seconds`` is the polling interval that callers are
    recommended, from 1; ``heartbeat_seconds`` is how often a quiet stream of Watch has a comment,
    at most 15.

    Raises:
        DeclarationError: An option is not of its type, or out of its bounds; or a parent is not
            such a pattern; or a start is not a method of this service; or its path has variables,
            or is served already; or the service has ``owner_only`` and there is no
            ``authenticate``.
    """

    def __init__(
        self,
        service: Service,
        *,
        starts: Starts = False,
        parents: Sequence[str] = (),
        authenticate: Authenticate | None = None,
        trusted_origins: Collection[str] = (),
        max_body: int = DEFAULT_MAX_BODY,
        poll_seconds: int = 1,
        heartbeat_seconds: float = HEARTBEAT_SECONDS,
    ) -> None:
        check_instance("service", service, Service, "a Service")
        check_texts("parents", parents)
        check_count("max_body", max_body)
        check_count("poll_seconds", poll_seconds)
        check_seconds("heartbeat_seconds", heartbeat_seconds, most=15)
        service.access.check_named(type(self).__name__, authenticate)
        self.service = service
        self.max_body = max_body
        self._hook = None if authenticate is None else Hook("authenticate", authenticate)
        self._trusted_origins = trusted(trusted_origins)
        self._poll_seconds = poll_seconds
        self._heartbeat_seconds = heartbeat_seconds
        self._starts = start_handlers(service, starts)
        verbs = (*default_routes(parents), *extension_routes(parents))
        self._routes = with_starts(verbs, self._starts)
        self._verbs: Mapping[str, Callable[[HttpRequest, str, str], Exchange]] = {
            "GetOperation": self._get,
            "ListOperations": self._list,
            "DeleteOperation": self._delete,
            "CancelOperation": self._cancel,
            "WaitOperation": self._wait,
            "BatchGetOperations": self._batch_get,
            "WatchOperations": self._watch,
        }

    def check_plain(self, where: str) -> None:
        """Do nothing if ``where``, which has no event loop, can ask the hooks of this edge.

        Raises:
            DeclarationError: ``authenticate``, or ``authorize`` of the service, is a coroutine
                function.
        """
        if self._hook is not None:
            self._hook.check_plain(where)
        self.service.access.check_plain(where)

    def route(self, method: str, path: str) -> Found:
        """What this edge has at a raw path, or the error that says why it has nothing there.

        :class:`RouteNotFound` and :class:`MalformedRequest` say that the path is not this edge's.
        """
        try:
            return self._routes.find(method, path)
        except LroError as exc:
            return exc

    def exchange(self, request: HttpRequest, found: Found | None = None) -> Exchange:
        """Answer a request; every failure becomes an error reply.

        ``found`` is what :meth:`route` has returned for it, where that was asked before.
        """
        try:
            reply = yield from self._answer(
                request, found or self.route(request.method, request.path)
            )
        except Exception as exc:
            return self.refusal(request, exc)
        return reply.headless if request.method == "HEAD" else reply

    def refusal(self, request: HttpRequest, error: Exception) -> HttpReply:
        """The reply to a request that failed."""
        service, asked = self.service, f"{request.method} {request.path}"
        reply = error_reply(error, service.types, service.domain, asked=asked)
        return reply.headless if request.method == "HEAD" else reply

    def handle(self, request: HttpRequest, found: Found | None = None) -> HttpReply:
        """Answer a request in this thread, which cannot stream: Watch is UNIMPLEMENTED here.

        ``found`` is as for :meth:`exchange`.
        """
        reply = drive(self.exchange(request, found), self.service)
        assert isinstance(reply, HttpReply)  # only what is followed is streamed
        return reply

    def _answer(self, request: HttpRequest, found: Found) -> Exchange:
        if isinstance(found, LroError):
            raise found
        if isinstance(found, Allowed):
            return allow_reply(found.allow)
        if request.method in CHANGING:
            check_site(request.headers, request.scheme, self._trusted_origins)
        start = self._starts.get(found.rpc)
        if start is None:
            self.service.require(found.rpc)
        caller = (yield from identify(self._hook, request.headers)) if self._hook else ""
        if start is not None:
            return (yield from self._start(request, start, caller))
        return (yield from self._verbs[found.rpc](request, found.bindings["name"], caller))

    def _start(self, request: HttpRequest, start: StartHandler[Any], caller: str) -> Exchange:
        self._check_size(request)
        # Reading a big body and writing it down both take too long for an event loop.
        operation = yield Call(start.start(request, caller), blocks=True)
        return self._shown(operation, enum_numbers=False)

    def _get(self, request: HttpRequest, name: str, caller: str) -> Exchange:
        query = _query_of(request, "GetOperation")
        operation = yield from get_operation(self.service, name, caller)
        return self._shown(operation, query.enum_numbers)

    def _list(self, request: HttpRequest, name: str, caller: str) -> Exchange:
        query = _query_of(request, "ListOperations")
        fields: Mapping[str, Any] = query.fields
        wanted = ListOperationsRequest(name=name, **fields)

        # Apart from the reading: a hook that blocks must not hold a thread that makes replies.
        begin = flow_of(self.service.begin_list)(wanted, caller=caller)
        listing: Listing = yield Call(begin, blocks=True)

        def listed(turn: ReplyReservation) -> HttpReply:
            return page_reply(*self.service.read_page(listing, turn.bytes, self._show(query)))

        return (yield from self._many(listed, self.service.limits.least_bytes))

    def _delete(self, request: HttpRequest, name: str, caller: str) -> Exchange:
        _query_of(request, "DeleteOperation")
        yield self._slow(flow_of(self.service.delete)(name, caller=caller))
        return json_reply(200, {})

    def _cancel(self, request: HttpRequest, name: str, caller: str) -> Exchange:
        _query_of(request, "CancelOperation")
        yield self._body(request, "CancelOperation", name)
        yield self._slow(flow_of(self.service.cancel)(name, caller=caller))
        return json_reply(200, {})

    def _wait(self, request: HttpRequest, name: str, caller: str) -> Exchange:
        query = _query_of(request, "WaitOperation")
        wanted: WaitOperationRequest = yield self._body(request, "WaitOperation", name)
        deadline = _deadline(request.headers.get("x-server-timeout"))
        operation = yield Wait(wanted, deadline, caller)
        return self._shown(operation, query.enum_numbers)

    def _batch_get(self, request: HttpRequest, collection: str, caller: str) -> Exchange:
        query = _query_of(request, "BatchGetOperations")
        names: tuple[str, ...] = yield self._names(request, collection)

        begin = flow_of(self.service.begin_batch)(names, caller=caller)
        wanted: Sequence[str] = yield Call(begin, blocks=True)

        def found(_: ReplyReservation) -> HttpReply:
            return batch_reply(*self.service.read_batch(wanted, caller, self._show(query)))

        return (yield from self._many(found, self.service.limits.page_bytes))

    def _many(self, make: Callable[[ReplyReservation], HttpReply], least: int) -> Steps[HttpReply]:
        """A reply of many operations, for which bytes are set aside until it is sent."""
        turn: ReplyReservation = yield Reserve(least, self.service.limits.page_bytes)

        def made() -> Flow[HttpReply]:
            yield from ()  # asks no hook
            try:
                reply = make(turn)
            except BaseException:
                turn.release()
                raise
            turn.resize(len(reply.body))
            return attrs.evolve(reply, turn=turn)

        # To look for matches, and to print many operations, takes long even in memory.
        reply: HttpReply = yield Call(made(), blocks=True, many=True)
        return reply

    def _watch(self, request: HttpRequest, name: str, caller: str) -> Exchange:
        query = _query_of(request, "WatchOperations")
        if request.method == "POST":
            names: tuple[str, ...] = yield self._names(request, name)
        else:
            parse_name(name)
            names = (name,)
        watching = yield Watch(names, caller)
        return event_stream(
            watching,
            self.service.types,
            enum_numbers=query.enum_numbers,
            heartbeat_seconds=self._heartbeat_seconds,
        )

    def _names(self, request: HttpRequest, collection: str) -> Call:
        parent = normalise_parent(collection)
        return self._read(
            request, lambda kind, body: read_names(parent, kind, body, self.service.types)
        )

    def _show(self, query: Query) -> Show[bytes]:
        return functools.partial(
            shown_together, types=self.service.types, enum_numbers=query.enum_numbers
        )

    def _body(self, request: HttpRequest, rpc: str, name: str) -> Call:
        return self._read(
            request, lambda kind, body: read_request(rpc, name, kind, body, self.service.types)
        )

    def _read(self, request: HttpRequest, read: Callable[[str | None, bytes], object]) -> Call:
        self._check_size(request)
        kind, body = request.headers.get("content-type"), request.body

        def reading() -> Flow[object]:
            yield from ()  # to read a body asks no hook
            return read(kind, body)

        return Call(reading(), blocks=len(body) >= MANY_BYTES)

    def _check_size(self, request: HttpRequest) -> None:
        if len(request.body) > self.max_body:
            raise RequestTooLarge("body", f"must have at most {self.max_body} bytes")

    def _slow(self, flow: Flow[object]) -> Call:
        return Call(flow, self.service.access.writes_block)

    def _shown(self, operation: Operation, enum_numbers: bool) -> HttpReply:
        types = self.service.types
        return operation_reply(operation, types, self._poll_seconds, enum_numbers=enum_numbers)


def _query_of(request: HttpRequest, rpc: str) -> Query:
    return parse_query(rpc, request.query) if request.query else NO_QUERY


def _deadline(header: str | None) -> float | None:
    if header is None:
        return None
    text = header.strip()
    if not _SECONDS.fullmatch(text):
        raise InvalidTimeout("X-Server-Timeout", f"must be seconds such as 2.5, got {got(header)}")
    return float(text)
