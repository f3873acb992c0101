"""Replies of the HTTP edge: operations, errors, event streams (spec §5.10-§5.14, §6.3)."""

from __future__ import annotations

import contextlib
import copy
import functools
import logging
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from datetime import timedelta
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

import attrs

from lro._base.arguments import contained
from lro._base.errors import (
    EncodingError,
    HookFailed,
    HttpMethodNotAllowed,
    LroError,
    MessageUnreadable,
    RequestTooLarge,
    ResourceExhausted,
    Retryable,
    StatusError,
    Unauthenticated,
    Unavailable,
    UnknownType,
    UnsupportedMediaType,
    checked_challenge,
    got,
    loggable,
)
from lro._base.status import PACKAGE, AnyMessage, Code, ErrorInfo, Json, RetryInfo, Status
from lro._engine.flow import in_thread
from lro._engine.limits import ReplyReservation, size_of
from lro._messages.json_text import dumps
from lro._messages.registry import TypeRegistry
from lro._model.json import error_body, operation_to_json, with_each, with_enum_numbers
from lro._model.operation import Operation, is_small

if TYPE_CHECKING:
    from lro._engine.watching import WatchStream
    from lro._model.operation import WatchItem


log = logging.getLogger("lro")

M = TypeVar("M")

MAX_TEXT: Final = 4000
"""Maximum length, in characters, of an error's message and of each text in its details."""

MAX_DETAILS: Final = 128 * 1024
"""Maximum size of all details of an error in a reply, in bytes; an ErrorInfo always fits."""

_DEFECTS: Final = frozenset({Code.OK, Code.UNKNOWN, Code.INTERNAL, Code.DATA_LOSS})
"""Codes that mean a fault of the server. OK is included, because no correct error has code OK."""


@attrs.frozen
class PublicError:
    """An error that is safe to send to a caller, and its status."""

    error: LroError
    status: Status


def public_error(error: Exception, types: TypeRegistry, domain: str, *, asked: str) -> PublicError:
    """Return the error that a caller gets, with its details.

    A fault of the server is logged: any exception but an :class:`LroError`, or an LroError with
    code OK, UNKNOWN, INTERNAL or DATA_LOSS. ``asked`` names the request in the log. Callers get
    only the code and the reason of such a fault, because its message could disclose internals
    (spec §6.2). An error that cannot be read, for instance because its ``details`` raise, is
    INTERNAL. Long texts are cut, and details that exceed :data:`MAX_DETAILS` are left out.
    """
    code, reason = Code.INTERNAL, ""
    if isinstance(error, LroError):
        try:
            status = _bounded(types.status_of(error, domain), types)
        except Exception as exc:  # the class of the error may be defined by the application
            return internal_error(exc, types, domain, asked=asked)
        code = Code(status.code)
        if code not in _DEFECTS:
            return PublicError(error, status)
        info = detail_of(status, types, ErrorInfo)
        if code is Code.OK:
            code = Code.UNKNOWN
        elif info is not None:
            reason = info.reason
    log.error("%s ended with %s", asked, code.name, exc_info=loggable(error))
    return _fault(code, types, domain, reason)


def _bounded(status: Status, types: TypeRegistry) -> Status:
    details, room = [], MAX_DETAILS
    for detail in status.details:
        packed = detail
        # Cutting texts could make messages of other packages invalid.
        if packed.type_name.startswith(PACKAGE):
            packed = attrs.evolve(packed, payload=_cut(packed.payload))
        if packed.type_name == types.name_of(ErrorInfo) and size_of(packed) > room:
            # Every error must have an ErrorInfo (spec §6.3(1)).
            info = types.unpack(packed, ErrorInfo)
            packed = types.pack(attrs.evolve(info, metadata={}))
        size = size_of(packed)
        if size <= room:
            details.append(packed)
            room -= size
    return attrs.evolve(status, message=_cut(status.message), details=tuple(details))


def _cut(value: Any) -> Any:
    if isinstance(value, str):
        return value if len(value) <= MAX_TEXT else value[: MAX_TEXT - 3] + "..."
    if isinstance(value, list):
        return [_cut(each) for each in value]
    if isinstance(value, dict):
        return {_cut(key): _cut(each) for key, each in value.items()}
    return value


def internal_error(
    error: Exception, types: TypeRegistry, domain: str, *, asked: str
) -> PublicError:
    """Return the replacement for an error that cannot be read; ``error`` says why."""
    log.error("the error of %s cannot be described", asked, exc_info=loggable(error))
    return _fault(Code.INTERNAL, types, domain)


def detail_of(status: Status, types: TypeRegistry, cls: type[M]) -> M | None:
    """Return the first readable detail of this class, or None."""
    for packed in status.details:
        if packed.type_name == types.name_of(cls):
            with contextlib.suppress(LroError):  # an application may pack invalid details
                return types.unpack(packed, cls)
    return None


def _fault(code: Code, types: TypeRegistry, domain: str, why: str = "") -> PublicError:
    fault = StatusError(code, "the server failed internally", why=why)
    return PublicError(fault, types.status_of(fault, domain))


GUARDS: Final = (("cache-control", "no-store"), ("x-content-type-options", "nosniff"))
"""Headers of every reply: browsers must not cache it or guess its type (spec §5.14)."""

JSON_HEADERS: Final = (("content-type", "application/json; charset=utf-8"), *GUARDS)
"""Headers of every reply with a JSON body."""

_OWN_STATUS: Final[Mapping[type[Exception], int]] = {
    HttpMethodNotAllowed: 405,
    RequestTooLarge: 413,
    UnsupportedMediaType: 415,
}


@attrs.frozen(slots=False)  # with slots, an instance takes longer to make
class HttpReply:
    """A reply: HTTP status, headers (names in lower case), body."""

    status: int
    headers: tuple[tuple[str, str], ...]
    body: bytes = b""
    reserved: ReplyReservation | None = attrs.field(default=None, eq=False, repr=False)
    """The bytes reserved for a large body, until it is sent or this object is deleted."""

    @property
    def status_line(self) -> str:
        """Status and phrase, as WSGI expects them."""
        try:
            return f"{self.status} {HTTPStatus(self.status).phrase}"
        except ValueError:
            return f"{self.status} Client Closed Request"

    @property
    def parts(self) -> tuple[bytes, int, dict[str, str]]:
        """Body, status and headers: the arguments of Response in Starlette, FastAPI and Flask.

        ``Response(*reply.parts)`` makes the response of the framework.
        """
        return self.body, self.status, dict(self.headers)

    @property
    def headless(self) -> HttpReply:
        """The reply to HEAD: this reply without its body."""
        length = ("content-length", str(len(self.body)))
        return attrs.evolve(self, headers=(*self.headers, length), body=b"")


def json_reply(status: int, value: Json, *more: tuple[str, str]) -> HttpReply:
    """Make a reply with a JSON body and further headers; never cached (spec §5.10, §5.14)."""
    return HttpReply(status, (*JSON_HEADERS, *more), dumps(value))


Redact: TypeAlias = Callable[[dict[str, Json]], dict[str, Json]]
"""Hook that takes the JSON object of an operation, and returns the JSON object to send."""


def operation_reply_json(
    operation: Operation,
    types: TypeRegistry,
    domain: str,
    redact: Redact | None = None,
    *,
    alone: bool,
) -> dict[str, Json]:
    """Return an operation as JSON; :func:`with_stand_ins` replaces unprintable messages.

    Raises:
        MessageUnreadable: As for :func:`with_stand_ins`.
        HookFailed: ``redact`` failed, or did not return an object.
    """
    try:
        value = operation_to_json(operation, types)
    except EncodingError:  # this is rare, so messages are not checked in advance
        shown = with_stand_ins(operation, types, types.to_json, domain, alone=alone)
        value = operation_to_json(shown, types)
    return value if redact is None else _redacted(value, redact)


def _redacted(value: dict[str, Json], redact: Redact) -> dict[str, Json]:
    description = value.pop("description", None)  # a description has no messages to redact
    # A copy, because the messages belong to the record.
    found: object = contained("redact", redact, copy.deepcopy(value))
    if not isinstance(found, dict):
        raise HookFailed("redact", f"must return the JSON object to show, got {got(found)}")
    return found if description is None else {**found, "description": description}


def with_stand_ins(
    operation: Operation,
    types: TypeRegistry,
    convert: Callable[[AnyMessage], object],
    domain: str,
    *,
    alone: bool,
) -> Operation:
    """Return the operation with an ErrorInfo for each message that ``convert`` refuses.

    The class of a message may exist only in another release. Such a message must not hide its
    operation, or the other operations in the reply (spec §1.14(3)). An error detail that
    ``convert`` refuses is left out.

    With ``alone``, the operation is the only one in the reply. The call then fails if an ErrorInfo
    would replace the response, because an ErrorInfo is not a result. ``domain`` is the service's
    domain.

    Raises:
        MessageUnreadable: ``alone`` is true, and ``convert`` refuses the operation's response.
    """

    def readable(packed: AnyMessage) -> AnyMessage:
        try:
            convert(packed)
        except (EncodingError, UnknownType) as exc:
            _report(packed.type_name, str(exc))
            return types.pack(MessageUnreadable(packed.type_name).details(domain)[0])
        return packed

    shown = with_each(operation, readable)
    if operation.error is not None and shown.error is not None:
        # Callers would read a second ErrorInfo as the cause of the error.
        details = tuple(one for one in shown.error.details if one in operation.error.details)
        shown = attrs.evolve(shown, result=attrs.evolve(shown.error, details=details))
    if alone and operation.response is not None and shown.response is not operation.response:
        raise MessageUnreadable(operation.response.type_name)
    return shown


@functools.lru_cache(maxsize=256)
# Logged once for each type, because lists may show messages of the type again and again.
def _report(type_name: str, why: str) -> None:
    log.warning("messages of the type %s cannot be shown by this process: %s", type_name, why)


def shown_together(
    operations: Sequence[Operation],
    types: TypeRegistry,
    domain: str,
    *,
    enum_numbers: bool = False,
    redact: Redact | None = None,
) -> list[bytes]:
    """Return a list of one text, the JSON of operations joined by commas; empty without operations.

    An ErrorInfo is shown for a message that cannot be printed (spec §1.14(3)).

    Raises:
        HookFailed: As for :func:`operation_reply`.
    """
    if enum_numbers:
        operations = [with_enum_numbers(one, types) for one in operations]
    shown: Json = [
        operation_reply_json(one, types, domain, redact, alone=False) for one in operations
    ]
    text = dumps(shown)
    return [text[1:-1]] if operations else []


def page_reply(shown: Sequence[bytes], token: str) -> HttpReply:
    """Make a page from the texts of :func:`shown_together` and the next token."""
    beside: dict[str, Json] = {"nextPageToken": token} if token else {}
    return _operations_reply(shown, beside) if shown else json_reply(200, beside)


def batch_reply(shown: Sequence[bytes], missing: Sequence[str]) -> HttpReply:
    """Make the reply to BatchGet, in which both lists are always present (spec §3.11)."""
    return _operations_reply(shown, {"missing": list(missing)})


def _operations_reply(shown: Sequence[bytes], beside: dict[str, Json]) -> HttpReply:
    begin, _, end = dumps({"operations": [], **beside}).partition(b"]")
    return HttpReply(200, JSON_HEADERS, b"".join((begin, b",".join(shown), b"]", end)))


def allow_reply(methods: tuple[str, ...]) -> HttpReply:
    """Make the reply to OPTIONS (spec §5.7(4))."""
    return HttpReply(204, (("allow", ", ".join(methods)), *GUARDS))


def operation_reply(
    operation: Operation,
    types: TypeRegistry,
    poll_seconds: int = 1,
    *,
    enum_numbers: bool = False,
    started: bool = False,
    accepted: bool = False,
    redact: Redact | None = None,
    domain: str = "",
) -> HttpReply:
    """Make the reply with an operation and the recommended polling interval (spec §5.13).

    ``enum_numbers`` prints enum values as numbers (spec §5.8(5)). ``started`` means that the call
    started the operation: a header then has its id (spec §9.8). With ``accepted``, the status is
    202 until the operation is done. ``redact`` changes the JSON that is sent. ``domain`` names the
    service in the ErrorInfo that replaces unprintable metadata (spec §1.14(3)).

    Raises:
        MessageUnreadable: The response of the operation cannot be printed.
        HookFailed: ``redact`` failed, or did not return an object.
    """
    if enum_numbers:
        operation = with_enum_numbers(operation, types)
    value = operation_reply_json(operation, types, domain, redact, alone=True)
    status: int
    headers: tuple[tuple[str, str], ...]
    status, headers = 200, JSON_HEADERS
    if started and operation.name:
        headers += (("operation-id", operation.name.rpartition("/")[2]),)
    if not operation.done:
        status = 202 if accepted else 200
        headers += (("retry-after", str(poll_seconds)),)
    return HttpReply(status, headers, dumps(value))


def error_reply(
    error: Exception, types: TypeRegistry, domain: str, *, asked: str = "a call"
) -> HttpReply:
    """Make the reply for an error, as :func:`public_error` returns it (spec §5.12, §6.3)."""
    if isinstance(error, Retryable) and type(error) in _REPEATED:
        text, after = error.description, error.retry_after
        # The application may have set these attributes to values of any type.
        if type(text) is str and type(after) is timedelta:
            kind: Any = type(error)
            return _refusal(kind, text, after, types, domain)
    return _described(error, types, domain, asked)


_REPEATED: Final = frozenset({ResourceExhausted, Unavailable})


@functools.lru_cache(maxsize=32)
def _refusal(
    kind: type[Retryable], text: str, after: timedelta, types: TypeRegistry, domain: str
) -> HttpReply:
    # Cached, because under a flood of calls the same error is sent again and again, and its reply
    # takes longer to make than all other steps of such a call.
    return _described(kind(text, after), types, domain, "a call")


def _described(error: Exception, types: TypeRegistry, domain: str, asked: str) -> HttpReply:
    public = public_error(error, types, domain, asked=asked)
    try:
        return _error_reply(public, types, asked)
    except Exception as exc:  # details from the application may be unprintable
        return _error_reply(internal_error(exc, types, domain, asked=asked), types, asked)


def _challenge(error: LroError, asked: str) -> str:
    if isinstance(error, Unauthenticated):
        try:  # a class of the application may have any challenge
            return checked_challenge(contained("challenge", getattr, error, "challenge"))
        except Exception as exc:
            log.error("the challenge of the error of %s cannot be described", asked, exc_info=exc)
    return Unauthenticated().challenge


def _error_reply(public: PublicError, types: TypeRegistry, asked: str) -> HttpReply:
    error, status = public.error, public.status
    http = _OWN_STATUS.get(type(error), Code(status.code).http)
    more = []
    if isinstance(error, HttpMethodNotAllowed):
        more.append(("allow", ", ".join(error.allow)))
    if http == HTTPStatus.UNAUTHORIZED:  # RFC 9110 §11.6.1
        more.append(("www-authenticate", _challenge(error, asked)))
    retry = detail_of(status, types, RetryInfo)
    if retry is not None and retry.retry_delay is not None:
        # Whole seconds, rounded up (spec §5.13(2)).
        seconds = -(-retry.retry_delay.total_seconds() // 1)
        more.append(("retry-after", str(max(1, int(seconds)))))
    return json_reply(http, error_body(status, types, http), *more)


HEADERS: Final = (
    ("content-type", "text/event-stream; charset=utf-8"),
    *GUARDS,
    ("x-accel-buffering", "no"),  # without this header, nginx buffers the events
)
HEARTBEAT: Final = b":\n\n"
"""A comment that keeps proxies from closing a quiet connection."""

HEARTBEAT_SECONDS: Final = 10.0
_CHUNK: Final = 64 * 1024
"""Size of a piece of events, in bytes, from which it is sent even if more events are ready."""


@attrs.frozen(eq=False)
class EventStream:
    """A streaming reply: its headers, and an iterator over the pieces of its body.

    The sender closes ``events``, which frees the resources of the stream.
    """

    headers: tuple[tuple[str, str], ...]
    events: AsyncGenerator[bytes, None]
    status: int = 200
    held: Callable[[], ReplyReservation | None] = lambda: None
    """Returns the bytes that stay reserved until a reader has taken the current piece, or None."""

    @property
    def headless(self) -> HttpReply:
        """The reply to HEAD: these headers, without the stream."""
        return HttpReply(self.status, self.headers)


def event_stream(
    watching: WatchStream,
    types: TypeRegistry,
    domain: str,
    *,
    enum_numbers: bool = False,
    heartbeat_seconds: float = HEARTBEAT_SECONDS,
    redact: Redact | None = None,
) -> EventStream:
    """Make the reply that sends operations while they are watched."""

    def shown(operation: Operation) -> Operation:
        return with_enum_numbers(operation, types) if enum_numbers else operation

    pieces = _pieces(watching, _Writer(types, domain, shown, redact), heartbeat_seconds)
    return EventStream(HEADERS, pieces, held=lambda: watching.reservation)


async def _pieces(
    watching: WatchStream, writer: _Writer, heartbeat_seconds: float
) -> AsyncGenerator[bytes, None]:
    async with contextlib.aclosing(watching.batches(heartbeat_seconds)) as batches:
        with contextlib.suppress(Unavailable):  # the service is stopping, so the stream ends
            async for batch in batches:
                piece = b"" if batch else HEARTBEAT
                for one in batch:
                    if isinstance(one, Operation) and not is_small(one):
                        piece += await in_thread(functools.partial(writer.event, one))
                    else:
                        piece += writer.event(one)
                    if len(piece) >= _CHUNK:
                        yield piece
                        piece = b""
                if piece:
                    yield piece


class _Writer:
    """Writes events, each with its position in the stream as its id."""

    def __init__(
        self,
        types: TypeRegistry,
        domain: str,
        shown: Callable[[Operation], Operation],
        redact: Redact | None,
    ) -> None:
        self._types = types
        self._domain = domain
        self._shown = shown
        self._redact = redact
        self._position = 0

    def event(self, one: WatchItem) -> bytes:
        """Return the event for one item of a Watch; empty if its operation cannot be printed."""
        if isinstance(one, Operation):
            try:
                operation, types = self._shown(one), self._types
                data = dumps(
                    operation_reply_json(operation, types, self._domain, self._redact, alone=False)
                )
            except Exception as exc:  # the stream continues, because a poll reports the error
                line = "%s cannot be printed, and is left out of a stream: %s"
                log.error(line, one.name, loggable(exc))
                return b""
            kind = b"operation"
        else:
            data, kind = dumps({"name": one.name}), b"missing"
        self._position += 1
        return b"id: %d\nevent: %s\ndata: %s\n\n" % (self._position, kind, data)
