"""Operations for Azure's clients: 202 with ``Operation-Location``, and a status monitor.

The wire format follows Microsoft's Azure REST API guidelines, "Long-running operations": a POST
starts a method, a GET of the monitor returns 200 in every state of the operation, and a POST to
``:cancel``, which the guidelines leave to services, cancels the operation. ``LROPoller`` of
``azure-core`` and ``createHttpPoller`` of ``@azure/core-lro`` can poll the monitor.

``lro.asgi.EdgeApp`` and ``lro.wsgi.EdgeApp`` serve an :class:`AzureEdge`, alone or in front of an
``OperationsApp`` of the same service, which shows the same operations.
"""

from __future__ import annotations

import contextlib
import json
import logging
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Any, ClassVar, Final, Unpack
from urllib.parse import unquote_plus

import attrs

from lro import Code, Operation, Service, Status
from lro._bridge import has_value, hidden, request_id_of, rfc3339
from lro.adapters import full_operation
from lro.errors import (
    MalformedRequest,
    StatusError,
    check,
    check_keywords,
    check_text,
    check_texts,
    one_line,
)
from lro.http import (
    Authenticate,
    CommonEdgeKeywords,
    Exchange,
    Flow,
    HttpReply,
    HttpRequest,
    OperationsEdge,
    StartHandler,
    Starts,
    detail_of,
    error_reply,
    flow_of,
    json_reply,
    operation_reply_json,
    parse_query,
    read_origin,
    read_parameters,
    run,
)
from lro.types import WRAPPED_TYPES, BadRequest, ErrorInfo, Json, TypeRegistry
from lro.wire import dumps, is_small, status_from_error_body

__all__ = ["AzureEdge"]

log: logging.Logger = logging.getLogger("lro")

_STATES: Final = {"SUCCEEDED": "Succeeded", "FAILED": "Failed", "CANCELLED": "Canceled"}
_SKEW: Final = timedelta(minutes=5)
"""Maximum time by which the clock of a caller may be ahead."""
_WINDOW: Final = timedelta(hours=24) - _SKEW
"""Maximum age of a first attempt, for which its request id is still known (spec §9.2)."""
_DATE: Final = re.compile(
    r"(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun), [0-9]{2} [A-Z][a-z]{2} [0-9]{4} [0-9:]{8} GMT"
)
"""Matches an HTTP date in the preferred format (RFC 9110 §5.6.7)."""
_CODE: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}")
"""Matches an error code that fits in a header."""
_VERSION: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_BASE: Final = re.compile(r"(?P<origin>https?://[^/?#]+)(?:/[A-Za-z0-9._~%-]+)*")


class _OutsideWindow(StatusError):
    """The first attempt is too old or in the future, so its request id is not known."""

    def __init__(self) -> None:
        wanted = "must be less than 24 hours ago and not in the future, so that a repeat is known"
        text = f"Repeatability-First-Sent: {wanted}"
        super().__init__(Code.FAILED_PRECONDITION, text)


class AzureEdge(OperationsEdge):
    """Starts and status monitors for Azure's clients.

    - A POST to a path of ``starts`` returns 202 with the absolute URL of the monitor in
      ``Operation-Location``, the operation's id in ``Operation-Id``, and ``Retry-After``. The body
      is the monitor.
    - A GET of ``/v1/operations/ID``, also below each of ``parents``, returns the monitor: ``id``,
      ``status`` (NotStarted, Running, Succeeded, Failed or Canceled), ``createdAt``,
      ``lastUpdatedAt``, ``expiresAt``, ``metadata``, and after the end ``result`` or ``error``;
      ``kind`` is the full name of the method if the service has several.
    - A POST to that path with ``:cancel`` returns 202, or 200 if the operation has ended.

    ``Operation-Id``, or ``Repeatability-Request-ID`` with ``Repeatability-First-Sent`` (OASIS
    Repeatable Requests 1.0), makes a start idempotent for 24 hours; the operation still has an id
    of its own. Errors have the body and the header ``x-ms-error-code`` of the guidelines. Calls for
    a hidden operation fail with NOT_FOUND.

    ``base_url`` is the URL at which callers reach this edge, such as
    ``https://api.example.com/media``. By default it is made from the request's ``Host`` and scheme,
    which behind a proxy may be internal. ``api_versions`` are the supported values of the query
    parameter ``api-version``: each request must have one of these values. Without ``api_versions``,
    the parameter is optional, and any value passes. The URL of the monitor repeats the version. The
    other options are those of :class:`lro.http.OperationsEdge`.

    Raises:
        DeclarationError: ``base_url`` is not a URL, or ``api_versions`` are not texts of
            letters, digits and ``_.-``; or as for :class:`lro.http.OperationsEdge`.
    """

    offered: ClassVar[Collection[str]] = ("GetOperation", "CancelOperation")

    def __init__(
        self,
        service: Service,
        *,
        starts: Starts = False,
        authenticate: Authenticate | None = None,
        base_url: str = "",
        api_versions: Sequence[str] = (),
        **options: Unpack[CommonEdgeKeywords],
    ) -> None:
        check_keywords(type(self).__name__, options, CommonEdgeKeywords)
        super().__init__(service, starts=starts, authenticate=authenticate, **options)
        _check_base(base_url)
        check_texts("api_versions", api_versions)
        fine = all(map(_VERSION.fullmatch, api_versions))
        check("api_versions", api_versions, "texts of letters, digits and _.-", fine=fine)
        self._base_url = base_url.rstrip("/")
        self._api_versions = tuple(api_versions)
        if authenticate is None:
            text = "%s has no authenticate: a caller who knows an id can read and cancel it"
            log.warning(text, type(self).__name__)

    def refusal(self, request: HttpRequest, error: Exception) -> HttpReply:
        """Return the reply to a failed request, with the error body of the guidelines."""
        service, asked = self.service, one_line(f"{request.method} {request.path}")
        plain = error_reply(error, service.types, service.domain, asked=asked)
        status = status_from_error_body(plain.status, json.loads(plain.body), service.types)
        shown = _error_of(status, service.types)
        headers = dict(plain.headers) | {"x-ms-error-code": str(shown["code"])}
        http = plain.status
        if isinstance(error, _OutsideWindow):
            http = 412
        # A gateway may also answer 504, so 504 would be ambiguous.
        elif http == Code.DEADLINE_EXCEEDED.http:
            http = Code.UNAVAILABLE.http
            headers["retry-after"] = str(self.options.poll_seconds)
        with contextlib.suppress(MalformedRequest):  # raised if there are too many headers
            headers |= _repeatability(request, "rejected")
        reply = HttpReply(http, tuple(headers.items()), dumps({"error": shown}))
        return reply.headless if request.method == "HEAD" else reply

    def _start(
        self, request: HttpRequest, start: StartHandler[Any], caller: str, bound: Mapping[str, str]
    ) -> Exchange:
        version, query = self._split(request.query)
        base = self._base_of(request)
        parameters, _ = start.read_query(query)
        request_id = _request_id(request.headers, self.service.store.now())
        given = {"request_id": request_id} if request_id else {}
        flow = start.start(request, caller, bound, parameters, given=given)
        operation = yield from self._starting(request, flow)
        if not operation.name:  # the request was only validated
            return json_reply(200, self._monitor(operation))
        if not is_small(operation):  # free its memory, because it is read again
            operation = Operation(name=operation.name)
        reply = yield from self._monitored(request, operation, caller, base, version)
        more = {"operation-id": operation.name.rpartition("/")[2], "retry-after": self._retry}
        more |= _repeatability(request, "accepted")
        return attrs.evolve(reply, status=202, headers=(*reply.headers, *more.items()))

    def _get(self, request: HttpRequest, name: str, caller: str) -> Exchange:
        _, query = self._split(request.query)
        parse_query("GetStatusMonitor", query)

        def show(operation: Operation) -> HttpReply:
            more = () if operation.done else (("retry-after", self._retry),)
            return json_reply(200, self._monitor(operation), *more)

        with hidden(name):
            return (yield from self._looked_at(name, caller, show))

    def _cancel(self, request: HttpRequest, name: str, caller: str) -> Exchange:
        version, query = self._split(request.query)
        base = self._base_of(request)
        parse_query("CancelOperation", query)
        yield self._body(request, "CancelOperation", name)
        with hidden(name):
            yield from flow_of(self.service.cancel)(name, caller=caller)
        reply = yield from self._monitored(request, Operation(name=name), caller, base, version)
        if reply.status == 200:
            return reply
        return attrs.evolve(reply, headers=(*reply.headers, ("retry-after", self._retry)))

    @property
    def _retry(self) -> str:
        # The value is at least 1: clients wait 30 seconds if the header is 0 or missing.
        return str(self.options.poll_seconds)

    def _monitored(
        self,
        request: HttpRequest,
        operation: Operation,
        caller: str,
        base: Callable[[str], str],
        version: str,
    ) -> Flow[HttpReply]:
        """Return the reply to a call that changed the operation: the monitor and its URL.

        The change is stored, so the call succeeds even if the operation cannot be read.
        """
        more = []
        path = self.path_of(attrs.evolve(request, mount=lambda _: ""), operation)
        if path is not None:
            query = f"?api-version={version}" if version else ""
            more.append(("operation-location", base(path) + query))

        def show(operation: Operation) -> HttpReply:
            status = 200 if operation.done else 202
            return json_reply(status, self._monitor(operation), *more)

        try:
            return (yield from self._looked_at(operation.name, caller, show))
        except Exception as exc:
            self.refusal(request, exc)  # logs the error if it is a defect
            return show(operation)

    def _looked_at(
        self, name: str, caller: str, show: Callable[[Operation], HttpReply]
    ) -> Flow[HttpReply]:
        """Return the reply of ``show`` for an operation in the FULL view.

        A large operation is read again when bytes are reserved for its reply.
        """
        found = yield from flow_of(self.service.get)(name, view="FULL", caller=caller)
        if is_small(found):
            return show(found)
        del found

        def read_again(_: object) -> HttpReply:
            # None: the caller has been shown the operation before.
            record = run(self.service.edges.access.visible_record(name, None))
            return show(full_operation(record, self.service.edges.renamed))

        return (yield from self._large(read_again, self.service.edges.limits.page_bytes))

    def _monitor(self, operation: Operation) -> dict[str, Json]:
        types = self.service.types
        state = _STATES.get(operation.state, "Running")
        known = operation.description
        if known.state and not operation.done and known.start_time is None:
            state = "NotStarted"
        printed = operation_reply_json(operation, types, self.service.domain, alone=True)
        shown: dict[str, Json] = {"id": operation.name.rpartition("/")[2], "status": state}
        if known.state:
            if len(self.service.edges.specs) > 1:
                shown["kind"] = known.method
            times = known.create_time, known.update_time, known.expire_time
            names = "createdAt", "lastUpdatedAt", "expiresAt"
            pairs = zip(names, times, strict=True)
            shown |= {name: rfc3339(time) for name, time in pairs if time is not None}
        if "metadata" in printed:
            shown["metadata"] = _bare(printed["metadata"])
        if has_value(operation.response):
            shown["result"] = _bare(printed["response"])
        if operation.error is not None:
            shown["error"] = _error_of(operation.error, types)
        return shown

    def _split(self, query: str) -> tuple[str, str]:
        """Split a query into its ``api-version`` (empty if missing) and the remaining query.

        Raises:
            MalformedRequest: The query cannot be read, or the version is given twice.
            StatusError: The version is missing or not supported.
        """
        read_parameters(query)  # raises an error for a long query or a malformed escape
        pieces = [piece.partition("=") for piece in query.split("&") if piece]
        versions = [unquote_plus(text) for name, _, text in pieces if _is_version(name)]
        rest = "&".join("".join(piece) for piece in pieces if not _is_version(piece[0]))
        if len(versions) > 1:
            raise MalformedRequest("api-version", "is given twice")
        version = versions[0] if versions else ""
        known = self._api_versions
        if known and not version:
            text = "The api-version query parameter (?api-version=) is required for all requests."
            raise StatusError(Code.INVALID_ARGUMENT, text, why="MissingApiVersionParameter")
        if version and (version not in known if known else not _VERSION.fullmatch(version)):
            text = f"Unsupported api-version {version[:64]!r}."
            text += f" The supported api-versions are {', '.join(known)}." if known else ""
            raise StatusError(Code.INVALID_ARGUMENT, text, why="UnsupportedApiVersionValue")
        return version, rest

    def _base_of(self, request: HttpRequest) -> Callable[[str], str]:
        """Return a function that makes a URL for the caller of a request from a path of this edge.

        Raises:
            MalformedRequest: ``Host`` is not valid.
        """
        base = self._base_url
        if not base:
            origin = read_origin(f"{request.scheme}://{request.headers.get('host', '')}")
            if origin is None:
                raise MalformedRequest("Host", "must be the name of this server")
            base = "://".join(origin) + (request.mount(request) or "")
        return base.__add__


def _check_base(base_url: object) -> None:
    check_text("base_url", base_url)
    found = _BASE.fullmatch(str(base_url).rstrip("/"))
    fine = not base_url or (found is not None and read_origin(found["origin"]) is not None)
    wanted = "a URL of http or https without query, such as 'https://api.example.com/media'"
    check("base_url", base_url, wanted, fine=fine)


def _is_version(name: str) -> bool:
    return unquote_plus(name) == "api-version"


def _request_id(headers: Mapping[str, str], now: datetime) -> str:
    """Return the request id of a start: ``Operation-Id`` or ``Repeatability-Request-ID``.

    Raises:
        MalformedRequest: ``Repeatability-First-Sent`` is missing, or is not a date of HTTP.
        StatusError: The date is too old or in the future.
    """
    repeated = headers.get("repeatability-request-id", "")
    if repeated:
        text = headers.get("repeatability-first-sent", "")
        try:
            sent = parsedate_to_datetime(text if _DATE.fullmatch(text) else "")
        except ValueError:
            why = "must be a date such as Sun, 06 Nov 1994 08:49:37 GMT"
            raise MalformedRequest("Repeatability-First-Sent", why) from None
        if not -_SKEW <= now - sent < _WINDOW:
            raise _OutsideWindow
    return request_id_of("azure", headers.get("operation-id", "").strip() or repeated)


def _repeatability(request: HttpRequest, result: str) -> dict[str, str]:
    asked = "repeatability-request-id" in request.headers
    return {"repeatability-result": result} if asked else {}


def _bare(packed: Json) -> Json:
    assert isinstance(packed, dict)
    if str(packed["@type"]).rpartition("/")[2] in WRAPPED_TYPES:
        return packed.get("value")
    return {name: value for name, value in packed.items() if name != "@type"}


def _error_of(status: Status, types: TypeRegistry) -> dict[str, Json]:
    """Return the error object for a status; of its details, only field violations are included."""
    code = Code.of(status.code)
    info = detail_of(status, types, ErrorInfo)
    named = code.name.title().replace("_", "")
    reason = info.reason if info is not None and _CODE.fullmatch(info.reason) else named
    shown: dict[str, Json] = {"code": reason, "message": status.message or code.name}
    wrong = detail_of(status, types, BadRequest)
    found = wrong.field_violations if wrong is not None else ()
    if len(found) == 1:
        shown["target"] = found[0].field
    if found:
        shown["details"] = [
            {"code": "BadArgument", "target": one.field, "message": one.description}
            for one in found
        ]
    return {**shown, "innererror": {"code": code.name}}
