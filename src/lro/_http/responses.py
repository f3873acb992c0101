"""Replies of the HTTP edge: an operation, JSON of any kind, an error (spec §5.10-§5.14, §6.3)."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Final

import attrs

from lro._base.any import Json
from lro._base.arguments import contained
from lro._base.details import RetryInfo
from lro._base.errors import (
    HttpMethodNotAllowed,
    LroError,
    RequestTooLarge,
    Unauthenticated,
    UnsupportedMediaType,
    checked_challenge,
)
from lro._base.status import Code
from lro._engine.budget import ReplyReservation
from lro._http.public_errors import PublicError, detail_of, internal_error, public_error
from lro._messages.json_text import dumps
from lro._messages.registry import TypeRegistry
from lro._model.enum_numbers import with_enum_numbers
from lro._model.json import error_body, operation_to_json
from lro._model.operation import Operation

log = logging.getLogger("lro")

GUARDS: Final = (("cache-control", "no-store"), ("x-content-type-options", "nosniff"))
"""The headers of every reply: not to be stored, and only what its type says (spec §5.14)."""

_JSON: Final = ("content-type", "application/json; charset=utf-8")
_OWN_STATUS: Final[Mapping[type[Exception], int]] = {
    HttpMethodNotAllowed: 405,
    RequestTooLarge: 413,
    UnsupportedMediaType: 415,
}


@attrs.frozen
class HttpReply:
    """A reply: HTTP status, headers (names in lower case), body."""

    status: int
    headers: tuple[tuple[str, str], ...]
    body: bytes = b""
    turn: ReplyReservation | None = attrs.field(default=None, eq=False, repr=False)
    """The bytes reserved for a large body: released after it is sent, or with this object."""

    @property
    def status_line(self) -> str:
        """Status and phrase, as WSGI wants it."""
        try:
            return f"{self.status} {HTTPStatus(self.status).phrase}"
        except ValueError:
            return f"{self.status} Client Closed Request"

    @property
    def parts(self) -> tuple[bytes, int, dict[str, str]]:
        """Body, status, headers: what the Response classes of Starlette, FastAPI and Flask take.

        ``Response(*reply.parts)`` is the reply in their terms.
        """
        return self.body, self.status, dict(self.headers)

    @property
    def headless(self) -> HttpReply:
        """The reply to HEAD: the same without its body."""
        length = ("content-length", str(len(self.body)))
        return attrs.evolve(self, headers=(*self.headers, length), body=b"")


def json_reply(status: int, value: Json, *more: tuple[str, str]) -> HttpReply:
    """A reply with a JSON body and further headers; never cached (spec §5.10, §5.14)."""
    return _json_reply(status, dumps(value), *more)


def _json_reply(status: int, text: bytes, *more: tuple[str, str]) -> HttpReply:
    return HttpReply(status, (_JSON, *GUARDS, *more), text)


def shown_together(
    operations: Sequence[Operation], types: TypeRegistry, *, enum_numbers: bool = False
) -> list[bytes]:
    """One text of these operations for a reply to many; none if there are none.

    Raises:
        EncodingError: As for :func:`operation_reply`.
    """
    if enum_numbers:
        operations = [with_enum_numbers(one, types) for one in operations]
    text = dumps([operation_to_json(one, types) for one in operations])
    return [text[1:-1]] if operations else []


def page_reply(shown: Sequence[bytes], token: str) -> HttpReply:
    """A page of operations, as :func:`shown_together` gives them, and the next token."""
    beside: dict[str, Json] = {"nextPageToken": token} if token else {}
    return _operations_reply(shown, beside) if shown else json_reply(200, beside)


def batch_reply(shown: Sequence[bytes], missing: Sequence[str]) -> HttpReply:
    """The answer to BatchGet; both lists are always there (spec §3.11)."""
    return _operations_reply(shown, {"missing": list(missing)})


def _operations_reply(shown: Sequence[bytes], beside: dict[str, Json]) -> HttpReply:
    begin, _, end = dumps({"operations": [], **beside}).partition(b"]")
    return _json_reply(200, b"".join((begin, b",".join(shown), b"]", end)))


def allow_reply(methods: tuple[str, ...]) -> HttpReply:
    """The reply to OPTIONS (spec §5.7(4))."""
    return HttpReply(204, (("allow", ", ".join(methods)), *GUARDS))


def operation_reply(
    operation: Operation,
    types: TypeRegistry,
    poll_seconds: int = 1,
    *,
    enum_numbers: bool = False,
) -> HttpReply:
    """The reply that carries an operation, with the recommended polling interval (spec §5.13).

    ``enum_numbers``: enum values in its messages as numbers (spec §5.8(5)).

    Raises:
        EncodingError: The operation cannot be printed.
    """
    if enum_numbers:
        operation = with_enum_numbers(operation, types)
    value = operation_to_json(operation, types)
    if operation.done:
        return json_reply(200, value)
    return json_reply(200, value, ("retry-after", str(poll_seconds)))


def error_reply(
    error: Exception, types: TypeRegistry, domain: str, *, asked: str = "a call"
) -> HttpReply:
    """The reply that reports an error, as :func:`public_error` gives it (spec §5.12, §6.3)."""
    public = public_error(error, types, domain, asked=asked)
    try:
        return _error_reply(public, types, asked)
    except Exception as exc:  # details that the application gave, which may be anything
        return _error_reply(internal_error(exc, types, domain, asked=asked), types, asked)


def _challenge(error: LroError, asked: str) -> str:
    if isinstance(error, Unauthenticated):
        try:  # a class of the application may have set anything
            return checked_challenge(contained("challenge", getattr, error, "challenge"))
        except Exception as exc:
            log.error("the challenge of the error of %s cannot be told", asked, exc_info=exc)
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
        seconds = -(-retry.retry_delay.total_seconds() // 1)  # rounded up (spec §5.13(2))
        more.append(("retry-after", str(max(1, int(seconds)))))
    return json_reply(http, error_body(status, types, http), *more)
