"""Calls as HTTP requests and back, the same for both faces (spec §5, §11.8, §11.10)."""

from __future__ import annotations

import email.utils
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC
from typing import Any, Final

import attrs

from lro import (
    BatchGetOperationsResponse,
    CancelOperationRequest,
    Code,
    DeleteOperationRequest,
    InvalidArgument,
    ListOperationsRequest,
    ListOperationsResponse,
    LroError,
    Operation,
    Status,
    TypeRegistry,
)
from lro.errors import RouteNotFound
from lro.types import ErrorInfo, Json, RetryInfo
from lro.wire import loads, operation_from_json, page_from_json, status_from_error_body
from lro_client._errors import CallError, NothingServed, decoded, empty_reply, unreadable
from lro_client._flow.steps import (
    BatchGetOperationsRequest,
    Call,
    Reply,
    WatchOperationsRequest,
)
from lro_client._tokens import public_address
from lro_client.transports._encoding import Encoder, Routes
from lro_client.transports._events import Events, EventTooLarge
from lro_client.transports._replies import check_operation
from lro_client.transports._truncation import is_truncated

_PASSING_STATUS: Final = frozenset({408, 429, 500, 502, 503, 504})
_SECONDS: Final = re.compile(r"[0-9]+", re.ASCII)
_LONGEST_SECONDS: Final = 1e9
"""More than any pause: what a clock's sleep still takes."""

_FAILURES: Final = (
    ("InvalidURL", Code.INVALID_ARGUMENT, False),
    ("UnsupportedProtocol", Code.INVALID_ARGUMENT, False),
    ("LocalProtocolError", Code.INVALID_ARGUMENT, False),
    ("TooManyRedirects", Code.UNKNOWN, False),
    ("DecodingError", Code.UNKNOWN, True),  # the body was spoilt on its way
    ("ConnectTimeout", Code.UNAVAILABLE, True),
    ("TimeoutException", Code.DEADLINE_EXCEEDED, True),
    ("RequestError", Code.UNAVAILABLE, True),  # all others: no connection, or it was lost
)
"""What an exception of this name means, and whether that passes; the first that fits counts.

By name, since the client may be one of httpx2, whose classes are others of the same names.
"""


_ELSEWHERE: Final = (
    "look at the name, the client's base URL and routes, and where the server is mounted"
)


class Coder:
    """Calls to HTTP and back, the same for both faces.

    ``base_url`` goes before the paths, and before targets of starts that are paths; ``now`` is the
    local clock, for dates in Retry-After.
    """

    def __init__(
        self,
        routes: Routes,
        types: TypeRegistry,
        *,
        base_url: str = "",
        now: Callable[[], float] = time.time,
    ) -> None:
        self.encode = Encoder(routes, types, base_url).encode
        self._types = types
        self._now = now

    def decode(self, call: Call, response: Any, content: bytes) -> Reply:
        """The reply of an HTTP response with this body.

        Raises:
            CallError: The response tells of an error, or is not what was asked for.
        """
        status: int = response.status_code
        headers: Mapping[str, str] = response.headers
        retry_after = self._retry_after(headers)
        if not 200 <= status < 300:
            raise self._error(call, response, content, retry_after)
        if isinstance(call.request, (DeleteOperationRequest, CancelOperationRequest)):
            return Reply(None, retry_after)
        return Reply(self._message(call, status, content), retry_after)

    @contextmanager
    def failures(self, call: Call, address: str = "") -> Iterator[None]:
        """Turn what httpx raises within, or what reads events, into the error of a call.

        The error tells the ``address`` that was asked.
        """
        try:
            yield
        except EventTooLarge as exc:
            raise unreadable(call.verb, str(exc)) from exc
        except Exception as exc:
            names = [cls.__name__ for cls in type(exc).__mro__]
            for name, code, passing in _FAILURES:
                if name in names:
                    text = f"{names[0]}: {exc}" if str(exc) else names[0]
                    text += f" ({address})" if address else ""
                    raise CallError(call.verb, Status(code, text), passing=passing) from exc
            raise

    def _message(
        self, call: Call, status: int, content: bytes
    ) -> Operation | ListOperationsResponse | BatchGetOperationsResponse:
        if not content.strip():
            raise empty_reply(call.verb, "an empty body", status)
        try:
            value = loads(content)
        except ValueError as exc:
            text, cut = f"the reply is not JSON: {exc}", is_truncated(content)
            raise unreadable(call.verb, text, status, passing=cut) from None
        try:
            if isinstance(call.request, ListOperationsRequest):
                return page_from_json(value, self._types)
            if isinstance(call.request, BatchGetOperationsRequest):
                return self._batch(call.request, value)
            operation = operation_from_json(value, self._types)
        except LroError as exc:
            text = f"the reply is not what was asked for: {exc}"
            raise unreadable(call.verb, text, status) from exc
        check_operation(call, operation, status)
        return operation

    def _batch(self, request: BatchGetOperationsRequest, value: Json) -> BatchGetOperationsResponse:
        fields = value if isinstance(value, dict) else {}
        listed, missing = fields.get("operations", []), fields.get("missing", [])
        if fields is not value or not isinstance(listed, list) or not isinstance(missing, list):
            raise InvalidArgument("operations", "must be a list, beside a list of missing names")
        told = {str(one.get("name")) for one in listed if isinstance(one, dict)}
        untold = set(request.names).difference(told, map(str, missing))
        if untold:  # it would be waited for for ever
            raise InvalidArgument("operations", f"must tell of {min(untold)!r:.200} too")
        if request.ended:  # most of many are not, and to make messages of them is most of the work
            listed = [one for one in listed if isinstance(one, dict) and one.get("done")]
        found = tuple(operation_from_json(one, self._types) for one in listed)
        gone = tuple(name for name in missing if isinstance(name, str))
        return BatchGetOperationsResponse(found, gone)

    def streams(self, response: Any) -> bool:
        """Whether a response is a stream of events."""
        kind: str = response.headers.get("content-type", "")
        return response.status_code == 200 and kind.lower().startswith("text/event-stream")

    def events(self, call: Call) -> Events[Operation | str]:
        """What makes operations, and the names of those gone, of the chunks of a stream.

        It raises a CallError for what was not asked for.
        """
        return Events(lambda kind, data: self._event(call, kind, data))

    def _event(self, call: Call, kind: str, data: bytes) -> Operation | str | None:
        if kind not in ("operation", "missing"):
            return None
        try:
            value = loads(data)
            fields = value if isinstance(value, dict) else {}
            if kind == "missing":
                return str(fields["name"])
            wanted = call.request
            ended = isinstance(wanted, WatchOperationsRequest) and wanted.ended
            name = fields.get("name")
            if ended and isinstance(name, str) and not fields.get("done"):
                return Operation(name=name)  # metadata that nobody wants are not kept
            return operation_from_json(value, self._types)
        except (ValueError, KeyError, LroError) as exc:
            text = f"an event is not what was asked for: {exc}"
            raise unreadable(call.verb, text) from exc

    def no_stream(self, call: Call, response: Any, content: bytes) -> CallError:
        """The error of a call that was to be answered with a stream."""
        status = response.status_code
        if not 200 <= status < 300:
            return self._error(call, response, content, self._retry_after(response.headers))
        text = "the reply is no stream of events"
        return CallError(call.verb, Status(Code.UNIMPLEMENTED, text), status)

    def _error(
        self, call: Call, response: Any, content: bytes, retry_after: float | None
    ) -> CallError:
        http: int = response.status_code
        try:
            body = loads(content)
        except ValueError:
            body = None
        status = status_from_error_body(http, body, self._types)
        where = f"{response.request.method} {public_address(str(response.url))}"
        if status.message == status_from_error_body(http, None, self._types).message:
            # Nothing was said, perhaps by another server than was meant.
            status = attrs.evolve(status, message=f"{status.message} to {where}")
        for detail in decoded(status.details, None):
            if isinstance(detail, RetryInfo) and detail.retry_delay is not None:
                asked = min(detail.retry_delay.total_seconds(), _LONGEST_SECONDS)
                retry_after = max(retry_after or 0.0, asked)
        if status.code == Code.NOT_FOUND and not _says_what_is_missing(body, status):
            status = attrs.evolve(status, message=f"nothing is served at {where}: {_ELSEWHERE}")
            return NothingServed(call.verb, status, http, retry_after)
        # A body without a status of its own came from a proxy, whose troubles pass.
        passing = http in _PASSING_STATUS and not _names_its_code(body)
        return CallError(call.verb, status, http, retry_after, passing=passing)

    def _retry_after(self, headers: Mapping[str, str]) -> float | None:
        text = headers.get("retry-after", "").strip()
        if _SECONDS.fullmatch(text):
            return min(float(text), _LONGEST_SECONDS)
        moment = _moment(text) if text else None
        if moment is None:
            return None
        now = _moment(headers.get("date", ""))
        return min(moment - (self._now() if now is None else now), _LONGEST_SECONDS)


def _moment(text: str) -> float | None:
    try:
        found = email.utils.parsedate_to_datetime(text)
        return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        return None


def _told(body: Json) -> Json:
    """What the body of an error says in its ``error`` (spec §11.8)."""
    body = body[0] if isinstance(body, list) and len(body) == 1 else body
    return body.get("error") if isinstance(body, dict) else None


def _names_its_code(body: Json) -> bool:
    error = _told(body)
    return isinstance(error, dict) and error.get("status") in Code.__members__


def _says_what_is_missing(body: Json, status: Status) -> bool:
    """Whether a NOT_FOUND is of something that was asked for, rather than of the path."""
    # A page of a proxy, or of a framework without such a route, has no error body.
    return _told(body) is not None and not any(
        isinstance(detail, ErrorInfo) and detail.reason == RouteNotFound.reason
        for detail in decoded(status.details, None)
    )
