"""The HTTP edge, without a framework: a request in, a reply out (spec §5, §6).

:class:`OperationsEdge` serves the five verbs, :class:`StartEdge` one method that starts operations;
:mod:`lro.asgi` and :mod:`lro.wsgi` serve an edge to the world. :func:`answer` is for an endpoint
that the application writes itself.
"""

from __future__ import annotations

import abc
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any as Anything
from typing import Final, Generic, TypeVar

import attrs

from lro._bodies import media_type, read_object, read_request, take_field
from lro._enums import page_with_enum_numbers
from lro._errors import InvalidTimeout, LroError, MalformedRequest, RequestTooLarge
from lro._faults import HttpMethodNotAllowed, RouteNotFound
from lro._method import Method
from lro._operation import ListOperationsRequest, Operation, WaitOperationRequest
from lro._query import parse_query
from lro._replies import HttpReply, allow_reply, error_reply, json_reply, operation_reply
from lro._routes import Allowed, RouteTable, default_routes
from lro._scalars import got
from lro._service import Service
from lro._steps import Call, Exchange, Hold, adrive, drive
from lro._templates import percent_decode
from lro._wire import page_to_json

__all__ = [
    "DEFAULT_MAX_BODY",
    "Authenticate",
    "Call",
    "Edge",
    "Exchange",
    "Hold",
    "HttpReply",
    "HttpRequest",
    "OperationsEdge",
    "StartEdge",
    "adrive",
    "answer",
    "drive",
    "error_reply",
    "json_reply",
    "operation_reply",
]

Req = TypeVar("Req")

DEFAULT_MAX_BODY: Final = 1024 * 1024
_SECONDS: Final = re.compile(r"[0-9]+(\.[0-9]+)?", re.ASCII)
_START_METHODS: Final = ("OPTIONS", "POST")

Authenticate = Callable[[Mapping[str, str]], str]
"""The application's say on who is calling: request headers, names in lower case -> caller.

Raise :class:`lro.Unauthenticated` to refuse. It is called where the server calls the application,
on the event loop under ASGI, so it must be quick.
"""


def _as_method(text: str) -> str:
    return text if text.isascii() else text.encode("ascii", "replace").decode("ascii")


@attrs.frozen(kw_only=True)
class HttpRequest:
    """A request as it stands on the wire: raw path and query, header names in lower case.

    A method is ASCII; what is not becomes a question mark, which no method has.
    """

    method: str = attrs.field(converter=_as_method)
    path: str
    query: str = ""
    headers: Mapping[str, str] = attrs.field(factory=dict)
    body: bytes = b""


def answer(service: Service, start: Callable[[], Operation], poll_seconds: int = 1) -> HttpReply:
    """The reply to a call that starts an operation: the operation, or the error of ``start``.

    For endpoints written in a framework; ``Response(*answer(...).parts)`` is what they return in
    Starlette, FastAPI and Flask. What else ``start`` raises is the framework's to tell.
    """
    try:
        return operation_reply(start(), service.types, poll_seconds)
    except LroError as exc:
        return error_reply(exc, service.types, service.domain, asked="a call that starts work")


class Edge(abc.ABC):
    """What edges share: who calls, how much is read, how errors are told."""

    def __init__(
        self,
        service: Service,
        *,
        authenticate: Authenticate | None = None,
        max_body: int = DEFAULT_MAX_BODY,
        poll_seconds: int = 1,
    ) -> None:
        if poll_seconds < 1:
            raise ValueError(f"poll_seconds must be a whole number from 1, got {poll_seconds!r}")
        self.service = service
        self.max_body = max_body
        self._authenticate = authenticate
        self._poll_seconds = poll_seconds

    @abc.abstractmethod
    def knows(self, method: str, path: str) -> bool:
        """Whether this edge is what answers a raw path; it then answers with errors too."""
        ...

    def exchange(self, request: HttpRequest) -> Exchange:
        """Answer a request; every failure becomes an error reply."""
        try:
            reply = yield from self._answer(request)
        except Exception as exc:
            return self.refusal(request, exc)
        return reply.headless if request.method == "HEAD" else reply

    def refusal(self, request: HttpRequest, error: Exception) -> HttpReply:
        """The reply to a request that failed."""
        service, asked = self.service, f"{request.method} {request.path}"
        reply = error_reply(error, service.types, service.domain, asked=asked)
        return reply.headless if request.method == "HEAD" else reply

    def at_once(self, request: HttpRequest) -> HttpReply | None:  # noqa: ARG002
        """The reply to a request for which nothing can block; None: take :meth:`exchange`."""
        return None

    def handle(self, request: HttpRequest) -> HttpReply:
        """Answer a request in this thread."""
        return drive(self.exchange(request), self.service)

    @abc.abstractmethod
    def _answer(self, request: HttpRequest) -> Exchange: ...

    def _caller(self, request: HttpRequest) -> str:
        return "" if self._authenticate is None else self._authenticate(request.headers)

    def _check_size(self, request: HttpRequest) -> None:
        if len(request.body) > self.max_body:
            raise RequestTooLarge("body", f"must have at most {self.max_body} bytes")


class OperationsEdge(Edge):
    """The five verbs over HTTP (spec §5.5).

    ``parents`` are further parent patterns such as ``projects/*/locations/*`` (spec §5.6).
    ``authenticate`` gives the caller of a request, ``max_body`` bounds bodies in bytes,
    ``poll_seconds`` is the polling interval that callers are recommended, from 1.
    """

    def __init__(
        self,
        service: Service,
        *,
        parents: Sequence[str] = (),
        authenticate: Authenticate | None = None,
        max_body: int = DEFAULT_MAX_BODY,
        poll_seconds: int = 1,
    ) -> None:
        super().__init__(
            service, authenticate=authenticate, max_body=max_body, poll_seconds=poll_seconds
        )
        self._routes = RouteTable(default_routes(parents))
        self._verbs: Mapping[str, Callable[[HttpRequest, str, str], Exchange]] = {
            "GetOperation": self._get,
            "ListOperations": self._list,
            "DeleteOperation": self._delete,
            "CancelOperation": self._cancel,
            "WaitOperation": self._wait,
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
        """The reply to a poll, where the store keeps that from blocking: the most frequent call."""
        service = self.service
        if request.method != "GET" or service.store.reads_block:
            return None
        try:
            found = self._routes.find("GET", request.path)
            if isinstance(found, Allowed) or found.rpc != "GetOperation":
                return None
            caller = self._caller(request)
            query = parse_query("GetOperation", request.query)
            operation = service.get(found.bindings["name"], caller=caller)
            return self._shown(operation, query.enum_numbers)
        except Exception as exc:
            return self.refusal(request, exc)

    def _answer(self, request: HttpRequest) -> Exchange:
        found = self._routes.find(request.method, request.path)
        if isinstance(found, Allowed):
            return allow_reply(found.allow)
        self.service.require(found.rpc)
        caller = self._caller(request)
        return (yield from self._verbs[found.rpc](request, found.bindings["name"], caller))

    def _get(self, request: HttpRequest, name: str, caller: str) -> Exchange:
        query = parse_query("GetOperation", request.query)
        operation = yield Call(
            lambda: self.service.get(name, caller=caller), self.service.store.reads_block
        )
        return self._shown(operation, query.enum_numbers)

    def _list(self, request: HttpRequest, name: str, caller: str) -> Exchange:
        query = parse_query("ListOperations", request.query)
        fields: Mapping[str, Anything] = query.fields
        wanted = ListOperationsRequest(name=name, **fields)
        page = yield self._slow(lambda: self.service.list(wanted, caller=caller))
        if query.enum_numbers:
            page = page_with_enum_numbers(page, self.service.types)
        return json_reply(200, page_to_json(page, self.service.types))

    def _delete(self, request: HttpRequest, name: str, caller: str) -> Exchange:
        parse_query("DeleteOperation", request.query)
        yield self._slow(lambda: self.service.delete(name, caller=caller))
        return json_reply(200, {})

    def _cancel(self, request: HttpRequest, name: str, caller: str) -> Exchange:
        parse_query("CancelOperation", request.query)
        self._body(request, "CancelOperation", name)
        yield self._slow(lambda: self.service.cancel(name, caller=caller))
        return json_reply(200, {})

    def _wait(self, request: HttpRequest, name: str, caller: str) -> Exchange:
        query = parse_query("WaitOperation", request.query)
        wanted = self._body(request, "WaitOperation", name)
        assert isinstance(wanted, WaitOperationRequest)
        deadline = _deadline(request.headers.get("x-server-timeout"))
        operation = yield Hold(wanted, deadline, caller)
        return self._shown(operation, query.enum_numbers)

    def _body(self, request: HttpRequest, rpc: str, name: str) -> object:
        self._check_size(request)
        content_type = request.headers.get("content-type")
        return read_request(rpc, name, content_type, request.body, self.service.types)

    def _slow(self, function: Callable[[], object]) -> Call:
        return Call(function, self.service.store.writes_block)

    def _shown(self, operation: Operation, enum_numbers: bool) -> HttpReply:
        types = self.service.types
        return operation_reply(operation, types, self._poll_seconds, enum_numbers=enum_numbers)


class StartEdge(Edge, Generic[Req]):
    """One method that starts operations, as POST with its request in a JSON body.

    Beside the request's own fields the body may hold ``requestId`` and ``validateOnly``
    (spec §9.1, §9.7). ``path`` is the one raw path that is answered (None: what the server sends
    here is). ``parent`` gives the parent of the new operation for a request, ``metadata``
    its first metadata; ``raw`` reads bodies of other media types (type and bytes -> request, or
    None for a type that it does not read); the type is in lower case, without parameters.
    """

    def __init__(
        self,
        service: Service,
        method: Method[Req, Anything, Anything],
        *,
        path: str | None = None,
        parent: Callable[[HttpRequest], str] | None = None,
        metadata: Callable[[Req], object] | None = None,
        raw: Callable[[str, bytes], Req | None] | None = None,
        authenticate: Authenticate | None = None,
        max_body: int = DEFAULT_MAX_BODY,
        poll_seconds: int = 1,
    ) -> None:
        super().__init__(
            service, authenticate=authenticate, max_body=max_body, poll_seconds=poll_seconds
        )
        self._method = method
        self._path = path
        self._parent = parent
        self._metadata = metadata
        self._raw = raw

    def knows(self, method: str, path: str) -> bool:  # noqa: ARG002
        """Whether this is the path that starts operations."""
        return self._path is None or path == self._path

    def _answer(self, request: HttpRequest) -> Exchange:
        percent_decode(request.path, "path")  # refused as by any route (spec §5.3(3))
        if not self.knows(request.method, request.path):
            raise RouteNotFound(request.path)
        if request.method == "OPTIONS":
            return allow_reply(_START_METHODS)
        if request.method != "POST":
            raise HttpMethodNotAllowed(request.method, request.path, _START_METHODS)
        caller = self._caller(request)
        self._check_size(request)
        # Reading a big body and writing it down both take too long for an event loop.
        operation = yield Call(lambda: self._start(request, caller), blocks=True)
        return operation_reply(operation, self.service.types, self._poll_seconds)

    def _start(self, request: HttpRequest, caller: str) -> Operation:
        message, request_id, validate_only = self._read(request)
        return self._method.start(
            message,
            request_id=request_id,
            validate_only=validate_only,
            parent=self._parent(request) if self._parent else "",
            metadata=self._metadata(message) if self._metadata else None,
            caller=caller,
        )

    def _read(self, request: HttpRequest) -> tuple[Req, str, bool]:
        content_type = request.headers.get("content-type")
        if self._raw is not None and content_type:
            message = self._raw(media_type(content_type)[0], request.body)
            if message is not None:
                return message, "", False
        types, cls = self.service.types, self._method.spec.request
        fields = read_object(content_type, request.body)
        shape = types.codec(types.name_of(cls)).shape
        request_id = take_field(fields, "request_id", str, "", shape)
        validate_only = take_field(fields, "validate_only", bool, False, shape)
        load: Req = types.load(fields, cls)
        return load, request_id, validate_only


def _deadline(header: str | None) -> float | None:
    if header is None:
        return None
    text = header.strip()
    if not _SECONDS.fullmatch(text):
        raise InvalidTimeout("X-Server-Timeout", f"must be seconds such as 2.5, got {got(header)}")
    return float(text)
