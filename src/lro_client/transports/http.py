"""Calls over HTTP by httpx (spec §5, §11.8, §11.10)."""

from __future__ import annotations

import email.utils
import re
import time
from collections.abc import Callable, Mapping
from datetime import UTC
from typing import Any as Anything
from typing import Final

import attrs
import httpx

from lro import (
    CancelOperationRequest,
    Code,
    DeleteOperationRequest,
    ListOperationsRequest,
    ListOperationsResponse,
    LroError,
    Operation,
    RetryInfo,
    Status,
    Template,
    TypeRegistry,
    WaitOperationRequest,
    code_from_http,
    dumps,
    loads,
    operation_from_json,
    page_from_json,
    status_from_error_body,
)
from lro_client._calls import Call, Reply, Request, StartRequest
from lro_client._errors import CallError, decoded

_PASSING_STATUS: Final = frozenset({408, 429, 500, 502, 503, 504})
_SECONDS: Final = re.compile(r"[0-9]{1,9}", re.ASCII)


@attrs.frozen(kw_only=True)
class Routes:
    """The paths of the verbs, as http rules; ``name`` is the operation's, or the parent's.

    The defaults fit this library's servers and Google's: any name below ``/v1``.
    """

    get: str = "/v1/{name=**}"
    list: str = "/v1/{name=**}"
    delete: str = "/v1/{name=**}"
    cancel: str = "/v1/{name=**}:cancel"
    wait: str = "/v1/{name=**}:wait"


@attrs.frozen(kw_only=True)
class HttpCall:
    """A call as HTTP: what any client library needs to send it."""

    method: str
    path: str
    params: Mapping[str, str | int]
    body: bytes | None


class Coder:
    """Calls to HTTP and back, the same for both faces."""

    def __init__(
        self, routes: Routes, types: TypeRegistry, now: Callable[[], float] = time.time
    ) -> None:
        self._templates = {
            name: Template.parse(text) for name, text in attrs.asdict(routes).items()
        }
        self._types = types
        self._now = now

    def encode(self, request: Request) -> HttpCall:
        """The HTTP request of a call.

        Raises:
            LroError: A name does not fit its path, or the message cannot be encoded.
        """
        routes = self._templates
        if isinstance(request, StartRequest):
            return self._start(request)
        if isinstance(request, ListOperationsRequest):
            shown: dict[str, str | int] = {
                "filter": request.filter,
                "pageSize": request.page_size,
                "pageToken": request.page_token,
            }
            path = routes["list"].expand({"name": _collection(request.name)})
            params = {key: value for key, value in shown.items() if value}
            return HttpCall(method="GET", path=path, params=params, body=None)
        name = {"name": request.name}
        if isinstance(request, WaitOperationRequest):
            body = self._types.dump(attrs.evolve(request, name=""))
            path = routes["wait"].expand(name)
            return HttpCall(method="POST", path=path, params={}, body=dumps(body))
        if isinstance(request, CancelOperationRequest):
            path = routes["cancel"].expand(name)
            return HttpCall(method="POST", path=path, params={}, body=b"{}")
        if isinstance(request, DeleteOperationRequest):
            path = routes["delete"].expand(name)
            return HttpCall(method="DELETE", path=path, params={}, body=None)
        return HttpCall(method="GET", path=routes["get"].expand(name), params={}, body=None)

    def decode(self, call: Call, response: Anything) -> Reply:
        """The reply of an HTTP response.

        Raises:
            CallError: The response tells of an error, or is not what was asked for.
        """
        status: int = response.status_code
        headers: Mapping[str, str] = response.headers
        retry_after = self._retry_after(headers)
        if not 200 <= status < 300:
            raise self._error(call, status, response.content, retry_after)
        if isinstance(call.request, (DeleteOperationRequest, CancelOperationRequest)):
            return Reply(None, retry_after)
        return Reply(self._message(call, status, headers, response.content), retry_after)

    def failed(self, call: Call, error: Exception) -> CallError:
        """The error of a call that got no whole response."""
        text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        return CallError(call.verb, Status(Code.UNAVAILABLE, text), passing=True)

    def _start(self, request: StartRequest) -> HttpCall:
        body = self._types.dump(request.message)
        assert isinstance(body, dict)
        if request.request_id:
            body = {**body, "requestId": request.request_id}
        if request.validate_only:
            body = {**body, "validateOnly": True}
        return HttpCall(method="POST", path=request.target, params={}, body=dumps(body))

    def _message(
        self, call: Call, status: int, headers: Mapping[str, str], content: bytes
    ) -> Operation | ListOperationsResponse:
        try:
            value = loads(content)
        except ValueError as exc:
            # A body announced as JSON that ends too early was cut on its way.
            cut = "json" in headers.get("content-type", "").lower()
            text = f"the reply is not JSON: {exc}"
            raise CallError(call.verb, Status(Code.UNKNOWN, text), status, passing=cut) from None
        try:
            if isinstance(call.request, ListOperationsRequest):
                return page_from_json(value, self._types)
            return operation_from_json(value, self._types)
        except LroError as exc:
            text = f"the reply is not what was asked for: {exc}"
            raise CallError(call.verb, Status(Code.UNKNOWN, text), status) from exc

    def _error(self, call: Call, http: int, content: bytes, retry_after: float | None) -> CallError:
        try:
            body = loads(content)
        except ValueError:
            body = None
        status = status_from_error_body(http, body, self._types)
        for detail in decoded(status.details, None):
            if isinstance(detail, RetryInfo) and detail.retry_delay is not None:
                retry_after = max(retry_after or 0.0, detail.retry_delay.total_seconds())
        # A body without a status of its own came from a proxy, whose troubles pass.
        foreign = status.code == code_from_http(http) and not status.details
        passing = http in _PASSING_STATUS and foreign
        return CallError(call.verb, status, http, retry_after, passing=passing)

    def _retry_after(self, headers: Mapping[str, str]) -> float | None:
        text = headers.get("retry-after")
        if text is None:
            return None
        if _SECONDS.fullmatch(text.strip()):
            return float(text)
        moment = _moment(text)
        if moment is None:
            return None
        now = _moment(headers.get("date", ""))
        return moment - (self._now() if now is None else now)


def _moment(text: str) -> float | None:
    try:
        found = email.utils.parsedate_to_datetime(text)
    except ValueError:
        return None
    return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()


def _collection(name: str) -> str:
    segments = name.split("/") if name else []
    whole = len(segments) % 2 == 1 and segments[-1] == "operations"
    return name if whole else "/".join((*segments, "operations"))


class HttpTransport:
    """Calls by an ``httpx.Client`` of the caller's own making, or one made here."""

    def __init__(self, client: httpx.Client, coder: Coder, *, own: bool) -> None:
        self._client = client
        self._coder = coder
        self._own = own

    def send(self, call: Call) -> Reply:
        """The server's reply."""
        asked = self._coder.encode(call.request)
        try:
            response = self._client.request(**_arguments(asked, call.budget))
        except (httpx.TransportError, httpx.DecodingError) as exc:
            raise self._coder.failed(call, exc) from exc
        return self._coder.decode(call, response)

    def close(self) -> None:
        """Close the HTTP client, if it was made here."""
        if self._own:
            self._client.close()


class AsyncHttpTransport:
    """Calls by an ``httpx.AsyncClient`` of the caller's own making, or one made here."""

    def __init__(self, client: httpx.AsyncClient, coder: Coder, *, own: bool) -> None:
        self._client = client
        self._coder = coder
        self._own = own

    async def send(self, call: Call) -> Reply:
        """The server's reply."""
        asked = self._coder.encode(call.request)
        try:
            response = await self._client.request(**_arguments(asked, call.budget))
        except (httpx.TransportError, httpx.DecodingError) as exc:
            raise self._coder.failed(call, exc) from exc
        return self._coder.decode(call, response)

    async def close(self) -> None:
        """Close the HTTP client, if it was made here."""
        if self._own:
            await self._client.aclose()


def _arguments(asked: HttpCall, budget: float | None) -> dict[str, Anything]:
    found: dict[str, Anything] = {"method": asked.method, "url": asked.path, "timeout": budget}
    if asked.params:
        found["params"] = dict(asked.params)
    if asked.body is not None:
        found["content"] = asked.body
        found["headers"] = {"content-type": "application/json"}
    return found
