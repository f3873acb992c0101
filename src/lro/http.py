"""The HTTP edge, without a framework: a request in, a reply out (spec §5, §6).

:class:`OperationsEdge` serves the five verbs, :class:`StartEdge` one method that starts operations.
Both describe an exchange as a generator of steps; :func:`drive` obeys it in a thread and
:func:`adrive` on an event loop, so that the sequence is written once.
"""

from __future__ import annotations

import abc
import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from http import HTTPStatus
from typing import Any as Anything
from typing import Final, Generic, TypeVar

import attrs

from lro._any import Json
from lro._bodies import read_object, read_request
from lro._errors import (
    HttpMethodNotAllowed,
    InvalidArgument,
    InvalidTimeout,
    LroError,
    RequestTooLarge,
    Retryable,
    StatusError,
    UnsupportedMediaType,
)
from lro._jsontext import dumps
from lro._method import Method
from lro._operation import ListOperationsRequest, Operation, WaitOperationRequest
from lro._query import parse_query
from lro._routes import Allowed, Match, RouteTable, default_routes
from lro._scalars import got
from lro._service import Service
from lro._status import Code
from lro._types import TypeRegistry
from lro._wire import error_body, operation_to_json, page_to_json

log = logging.getLogger("lro")

Req = TypeVar("Req")

JSON_TYPE: Final = "application/json; charset=utf-8"
DEFAULT_MAX_BODY: Final = 1024 * 1024
_SECONDS: Final = re.compile(r"[0-9]{1,9}(\.[0-9]{1,9})?", re.ASCII)
_OWN_STATUS: Final[Mapping[type[LroError], int]] = {
    HttpMethodNotAllowed: 405,
    RequestTooLarge: 413,
    UnsupportedMediaType: 415,
}
_BASE_HEADERS: Final = (("content-type", JSON_TYPE), ("cache-control", "no-store"))

Authenticate = Callable[[Mapping[str, str]], str]
"""The application's say on who is calling: request headers, names in lower case -> caller.

Raise :class:`Unauthenticated` to refuse.
"""


@attrs.frozen(kw_only=True)
class HttpRequest:
    """A request as it stands on the wire: raw path and query, header names in lower case."""

    method: str
    path: str
    query: str = ""
    headers: Mapping[str, str] = attrs.field(factory=dict)
    body: bytes = b""


@attrs.frozen
class HttpReply:
    """A reply: HTTP status, headers, body."""

    status: int
    headers: tuple[tuple[str, str], ...]
    body: bytes = b""

    @property
    def status_line(self) -> str:
        """Status and phrase, as WSGI wants it."""
        try:
            return f"{self.status} {HTTPStatus(self.status).phrase}"
        except ValueError:
            return f"{self.status} Client Closed Request"


@attrs.frozen
class Call:
    """A step: call this; ``blocks`` says that an event loop must not do it itself."""

    function: Callable[[], object]
    blocks: bool


@attrs.frozen
class Hold:
    """A step: wait for an operation, as ``Service.wait`` and ``Service.await_`` take it."""

    request: WaitOperationRequest
    deadline_seconds: float | None
    caller: str


Exchange = Generator[Call | Hold, Anything, HttpReply]


def json_reply(status: int, value: Json, *more: tuple[str, str]) -> HttpReply:
    """A reply with a JSON body; never cached (spec §5.10, §5.14)."""
    return HttpReply(status, (*_BASE_HEADERS, *more), dumps(value))


def error_reply(error: LroError, types: TypeRegistry, domain: str) -> HttpReply:
    """The reply that tells of an error, details and all (spec §5.12, §6.3)."""
    code = error.status_code
    if code in (Code.INTERNAL, Code.DATA_LOSS, Code.UNKNOWN):
        log.error("answered %s: %s", code.name, error, exc_info=error)
        # What went wrong inside is for the log; callers get nothing of it (spec §6.2).
        error = StatusError(code, "the server failed internally", why=error.reason)
    http = _OWN_STATUS.get(type(error), code.http)
    more: list[tuple[str, str]] = []
    if isinstance(error, HttpMethodNotAllowed):
        more.append(("allow", ", ".join(error.allow)))
    if isinstance(error, Retryable):
        seconds = -(-error.retry_after.total_seconds() // 1)
        more.append(("retry-after", str(max(1, int(seconds)))))
    return json_reply(http, error_body(types.status_of(error, domain), types, http), *more)


def operation_reply(operation: Operation, types: TypeRegistry, poll_seconds: int = 1) -> HttpReply:
    """The reply that carries an operation, with the recommended polling interval (spec §5.13).

    Raises:
        EncodingError: The operation cannot be printed.
    """
    value = operation_to_json(operation, types)
    if operation.done:
        return json_reply(200, value)
    return json_reply(200, value, ("retry-after", str(poll_seconds)))


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
        self.service = service
        self.max_body = max_body
        self._authenticate = authenticate
        self._poll_seconds = poll_seconds

    def exchange(self, request: HttpRequest) -> Exchange:
        """Answer a request; every failure becomes an error reply."""
        try:
            reply = yield from self._answer(request)
        except LroError as exc:
            reply = self.error(exc)
        except Exception as exc:
            log.error("%s %s failed", request.method, request.path, exc_info=exc)
            failed = StatusError(Code.INTERNAL, "the server failed internally")
            reply = self.error(failed)
        if request.method == "HEAD":
            length = ("content-length", str(len(reply.body)))
            return HttpReply(reply.status, (*reply.headers, length))
        return reply

    def error(self, error: LroError) -> HttpReply:
        """The reply that tells of an error."""
        return error_reply(error, self.service.types, self.service.domain)

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
    ``poll_seconds`` is the polling interval that callers are recommended.
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

    def _answer(self, request: HttpRequest) -> Exchange:
        found = self._routes.find(request.method, request.path)
        if isinstance(found, Allowed):
            headers = (("allow", ", ".join(found.allow)), ("cache-control", "no-store"))
            return HttpReply(204, headers)
        self.service.require(found.rpc)
        caller = self._caller(request)
        return (yield from self._verbs[found.rpc](request, self._name(found), caller))

    def _name(self, found: Match) -> str:
        return found.bindings["name"]

    def _get(self, request: HttpRequest, name: str, caller: str) -> Exchange:
        parse_query("GetOperation", request.query)
        operation = yield Call(
            lambda: self.service.get(name, caller=caller), self.service.store.reads_block
        )
        return operation_reply(operation, self.service.types, self._poll_seconds)

    def _list(self, request: HttpRequest, name: str, caller: str) -> Exchange:
        fields: Mapping[str, Anything] = parse_query("ListOperations", request.query).fields
        wanted = ListOperationsRequest(name=name, **fields)
        page = yield self._slow(lambda: self.service.list(wanted, caller=caller))
        return json_reply(200, page_to_json(page, self.service.types))

    def _delete(self, request: HttpRequest, name: str, caller: str) -> Exchange:
        parse_query("DeleteOperation", request.query)
        yield self._slow(lambda: self.service.delete(name, caller=caller))
        return json_reply(200, {})

    def _cancel(self, request: HttpRequest, name: str, caller: str) -> Exchange:
        self._body(request, "CancelOperation", name)
        yield self._slow(lambda: self.service.cancel(name, caller=caller))
        return json_reply(200, {})

    def _wait(self, request: HttpRequest, name: str, caller: str) -> Exchange:
        wanted = self._body(request, "WaitOperation", name)
        assert isinstance(wanted, WaitOperationRequest)
        deadline = _deadline(request.headers.get("x-server-timeout"))
        operation = yield Hold(wanted, deadline, caller)
        return operation_reply(operation, self.service.types, self._poll_seconds)

    def _body(self, request: HttpRequest, rpc: str, name: str) -> object:
        parse_query(rpc, request.query)
        self._check_size(request)
        content_type = request.headers.get("content-type")
        return read_request(rpc, name, content_type, request.body, self.service.types)

    def _slow(self, function: Callable[[], object]) -> Call:
        return Call(function, self.service.store.writes_block)


class StartEdge(Edge, Generic[Req]):
    """One method that starts operations, as POST with its request in a JSON body.

    Beside the request's own fields the body may hold ``requestId`` and ``validateOnly``
    (spec §9.1, §9.7). ``parent`` gives the parent of the new operation for a request, ``metadata``
    its first metadata; ``raw`` reads bodies of other media types (type and bytes -> request, or
    None for a type that it does not read).
    """

    def __init__(
        self,
        service: Service,
        method: Method[Req, Anything, Anything],
        *,
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
        self._parent = parent
        self._metadata = metadata
        self._raw = raw

    def _answer(self, request: HttpRequest) -> Exchange:
        if request.method != "POST":
            raise HttpMethodNotAllowed(request.method, request.path, ("POST",))
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
        if self._raw is not None and content_type is not None:
            message = self._raw(content_type, request.body)
            if message is not None:
                return message, "", False
        fields = read_object(content_type, request.body)
        request_id = _extra(fields, "requestId", "request_id", str, "")
        validate_only = _extra(fields, "validateOnly", "validate_only", bool, False)
        load: Req = self.service.types.load(fields, self._method.spec.request)
        return load, request_id, validate_only


def drive(exchange: Exchange, service: Service) -> HttpReply:
    """Obey an exchange in this thread."""

    def act(step: Call | Hold) -> object:
        if isinstance(step, Call):
            return step.function()
        return service.wait(
            step.request.name,
            step.request.timeout,
            deadline_seconds=step.deadline_seconds,
            caller=step.caller,
        )

    try:
        step = next(exchange)
        while True:
            try:
                result = act(step)
            except Exception as exc:
                step = exchange.throw(exc)
            else:
                step = exchange.send(result)
    except StopIteration as end:
        reply: HttpReply = end.value
        return reply


async def adrive(
    exchange: Exchange, service: Service, hold: Callable[[Awaitable[Operation]], Awaitable[object]]
) -> HttpReply:
    """Obey an exchange on the running event loop; ``hold`` awaits a wait, or gives it up."""

    async def act(step: Call | Hold) -> object:
        if isinstance(step, Call):
            return await asyncio.to_thread(step.function) if step.blocks else step.function()
        return await hold(
            service.await_(
                step.request.name,
                step.request.timeout,
                deadline_seconds=step.deadline_seconds,
                caller=step.caller,
            )
        )

    try:
        step = next(exchange)
        while True:
            try:
                result = await act(step)
            except Exception as exc:
                step = exchange.throw(exc)
            else:
                step = exchange.send(result)
    except StopIteration as end:
        reply: HttpReply = end.value
        return reply


def _deadline(header: str | None) -> float | None:
    if header is None:
        return None
    if not _SECONDS.fullmatch(header.strip()):
        raise InvalidTimeout("X-Server-Timeout", f"must be seconds such as 2.5, got {got(header)}")
    return float(header)


T = TypeVar("T", str, bool)


def _extra(fields: dict[str, Json], name: str, other: str, kind: type[T], default: T) -> T:
    value = fields.pop(name, None)
    if value is None:
        value = fields.pop(other, None)
    if value is None:
        return default
    if not isinstance(value, kind):
        raise InvalidArgument(other, f"must be a {kind.__name__}, got {got(value)}")
    return value
