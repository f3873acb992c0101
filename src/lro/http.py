"""The HTTP edge, without a framework: a request in, a reply out (spec §5, §6).

:class:`OperationsEdge` serves the five verbs, :class:`StartEdge` one method that starts operations;
:mod:`lro.asgi` and :mod:`lro.wsgi` serve an edge to the world. :func:`answer` is for an endpoint
that the application writes itself.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final

import attrs

from lro._base.arguments import check_seconds, check_texts
from lro._base.errors import (
    HttpMethodNotAllowed,
    InvalidTimeout,
    MalformedRequest,
    RouteNotFound,
    got,
)
from lro._engine.budget import ReplyReservation
from lro._engine.hooks import Flow, flow_of
from lro._engine.listing import Listing
from lro._engine.service import Service
from lro._http.edge import DEFAULT_MAX_BODY, Authenticate, Edge, HttpRequest
from lro._http.query import Query, parse_query
from lro._http.request_bodies import MANY_BYTES, read_names, read_request
from lro._http.responses import (
    HttpReply,
    allow_reply,
    batch_reply,
    error_reply,
    json_reply,
    operation_reply,
    page_reply,
    shown_together,
)
from lro._http.routes import Allowed, RouteTable, default_routes, extension_routes
from lro._http.sse import HEARTBEAT_SECONDS, EventStream, event_stream
from lro._http.start_edge import StartEdge, answer
from lro._http.steps import Call, Exchange, Reserve, Steps, Wait, Watch, adrive, drive
from lro._model.names import normalise_parent, parse_name
from lro._model.operation import ListOperationsRequest, Operation, Show, WaitOperationRequest

__all__ = [
    "DEFAULT_MAX_BODY",
    "Authenticate",
    "Call",
    "Edge",
    "EventStream",
    "Exchange",
    "HttpReply",
    "HttpRequest",
    "OperationsEdge",
    "Reserve",
    "StartEdge",
    "Wait",
    "Watch",
    "adrive",
    "allow_reply",
    "answer",
    "drive",
    "error_reply",
    "json_reply",
    "operation_reply",
]

_SECONDS: Final = re.compile(r"[0-9]+(\.[0-9]+)?", re.ASCII)


class OperationsEdge(Edge):
    """The five verbs over HTTP (spec §5.5), and the extensions for many operations (spec §3.11).

    ``parents`` are further parent patterns such as ``projects/*/locations/*`` (spec §5.6).
    ``authenticate`` gives the caller of a request. ``trusted_origins`` are the origins, such as
    ``https://app.example.com``, whose pages may make calls that change something, beside this
    server's own (spec §5.9(5)). ``max_body`` bounds bodies in bytes, ``poll_seconds`` is the
    polling interval that callers are recommended, from 1; ``heartbeat_seconds`` is how often a
    quiet stream of Watch has a comment, at most 15.

    Raises:
        DeclarationError: An option is not of its type, or out of its bounds; or a parent is no
            such pattern; or the service has ``owner_only`` and there is no ``authenticate``.
    """

    def __init__(
        self,
        service: Service,
        *,
        parents: Sequence[str] = (),
        authenticate: Authenticate | None = None,
        trusted_origins: Collection[str] = (),
        max_body: int = DEFAULT_MAX_BODY,
        poll_seconds: int = 1,
        heartbeat_seconds: float = HEARTBEAT_SECONDS,
    ) -> None:
        super().__init__(
            service,
            authenticate=authenticate,
            trusted_origins=trusted_origins,
            max_body=max_body,
            poll_seconds=poll_seconds,
        )
        check_texts("parents", parents)
        check_seconds("heartbeat_seconds", heartbeat_seconds, most=15)
        self._heartbeat_seconds = heartbeat_seconds
        self._routes = RouteTable((*default_routes(parents), *extension_routes(parents)))
        self._verbs: Mapping[str, Callable[[HttpRequest, str, str], Exchange]] = {
            "GetOperation": self._get,
            "ListOperations": self._list,
            "DeleteOperation": self._delete,
            "CancelOperation": self._cancel,
            "WaitOperation": self._wait,
            "BatchGetOperations": self._batch_get,
            "WatchOperations": self._watch,
        }

    def knows(self, method: str, path: str) -> bool:
        """Whether a route has this raw path, with whatever method."""
        try:
            self._routes.find(method, path)
        except HttpMethodNotAllowed:
            return True
        except (RouteNotFound, MalformedRequest):
            return False
        return True

    def at_once(self, request: HttpRequest) -> HttpReply | None:
        """The reply to a poll, where no hook is asked and the store does not block."""
        service = self.service
        if request.method != "GET" or self._hook is not None or not service.access.immediate:
            return None
        try:
            found = self._routes.find("GET", request.path)
            if isinstance(found, Allowed) or found.rpc != "GetOperation":
                return None
            query = parse_query("GetOperation", request.query)
            name = found.bindings["name"]
            parse_name(name)
            operation = service.access.visible(name, caller="").operation
            return self._shown(operation, query.enum_numbers)
        except Exception as exc:
            return self.refusal(request, exc)

    def _answer(self, request: HttpRequest) -> Exchange:
        found = self._routes.find(request.method, request.path)
        if isinstance(found, Allowed):
            return allow_reply(found.allow)
        self._check_site(request)
        self.service.require(found.rpc)
        caller = yield from self._caller(request)
        return (yield from self._verbs[found.rpc](request, found.bindings["name"], caller))

    def _get(self, request: HttpRequest, name: str, caller: str) -> Exchange:
        query = parse_query("GetOperation", request.query)
        flow = flow_of(self.service.get)(name, caller=caller)
        operation = yield Call(flow, self.service.access.reads_block)
        return self._shown(operation, query.enum_numbers)

    def _list(self, request: HttpRequest, name: str, caller: str) -> Exchange:
        query = parse_query("ListOperations", request.query)
        fields: Mapping[str, Any] = query.fields
        wanted = ListOperationsRequest(name=name, **fields)

        # Apart from the reading: a hook that blocks must not hold a thread that makes replies.
        begin = flow_of(self.service.begin_list)(wanted, caller=caller)
        listing: Listing = yield Call(begin, blocks=True)

        def listed(turn: ReplyReservation) -> HttpReply:
            return page_reply(*self.service.read_page(listing, turn.bytes, self._show(query)))

        return (yield from self._many(listed, self.service.limits.least_bytes))

    def _delete(self, request: HttpRequest, name: str, caller: str) -> Exchange:
        parse_query("DeleteOperation", request.query)
        yield self._slow(flow_of(self.service.delete)(name, caller=caller))
        return json_reply(200, {})

    def _cancel(self, request: HttpRequest, name: str, caller: str) -> Exchange:
        parse_query("CancelOperation", request.query)
        yield self._body(request, "CancelOperation", name)
        yield self._slow(flow_of(self.service.cancel)(name, caller=caller))
        return json_reply(200, {})

    def _wait(self, request: HttpRequest, name: str, caller: str) -> Exchange:
        query = parse_query("WaitOperation", request.query)
        wanted: WaitOperationRequest = yield self._body(request, "WaitOperation", name)
        deadline = _deadline(request.headers.get("x-server-timeout"))
        operation = yield Wait(wanted, deadline, caller)
        return self._shown(operation, query.enum_numbers)

    def _batch_get(self, request: HttpRequest, collection: str, caller: str) -> Exchange:
        query = parse_query("BatchGetOperations", request.query)
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
        query = parse_query("WatchOperations", request.query)
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

    def _slow(self, flow: Flow[object]) -> Call:
        return Call(flow, self.service.access.writes_block)

    def _shown(self, operation: Operation, enum_numbers: bool) -> HttpReply:
        types = self.service.types
        return operation_reply(operation, types, self._poll_seconds, enum_numbers=enum_numbers)


def _deadline(header: str | None) -> float | None:
    if header is None:
        return None
    text = header.strip()
    if not _SECONDS.fullmatch(text):
        raise InvalidTimeout("X-Server-Timeout", f"must be seconds such as 2.5, got {got(header)}")
    return float(text)
