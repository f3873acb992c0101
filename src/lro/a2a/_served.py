"""The routes of both HTTP bindings, and the services of gRPC (A2A 9-11)."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, MutableMapping, Sequence
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final

import attrs
from a2a.server.context import ServerCallContext
from a2a.server.routes import (
    DefaultServerCallContextBuilder,
    create_agent_card_routes,
    create_jsonrpc_routes,
    create_rest_routes,
)
from a2a.utils.error_handlers import build_rest_error_payload
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.routing import BaseRoute, Route

from lro.a2a._card import JSONRPC_PATH, REST_PATH
from lro.a2a._handler import Handler
from lro.a2a._refusals import CALL, A2ACall
from lro.asgi import App, Receive, Scope, Send, raw_path, read_body, request_of
from lro.errors import (
    MalformedRequest,
    MissingExtra,
    RequestTooLarge,
    UnsupportedMediaType,
    check_count,
    check_instance,
)
from lro.http import (
    CHANGING,
    HttpReply,
    HttpRequest,
    check_site,
    error_reply,
    json_reply,
    media_type,
    read_json,
    trusted,
)
from lro.types import Json
from lro.wire import check_values

if TYPE_CHECKING:
    import grpc.aio

DEFAULT_MAX_REQUEST: Final = 1024 * 1024
"""Maximum bytes of the body of an HTTP call, or of a gRPC request."""

MAX_VALUES: Final = 25_000
"""Maximum number of values in a call, as the SDK blocks the event loop to convert them."""

_CODES: Final[Mapping[type[Exception], int]] = {
    MalformedRequest: -32700,
    UnsupportedMediaType: -32005,
}
_INVALID_REQUEST: Final = -32600
_INTERNAL_ERROR: Final = -32603
_MEDIA_TYPES: Final = frozenset({"", "application/json", "application/a2a+json"})
_OWN_STATUS: Final = frozenset(
    {HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN, HTTPStatus.REQUEST_ENTITY_TOO_LARGE}
)
"""The HTTP statuses that our refusals keep over JSON-RPC; all other replies have status 200."""


def routes(
    handler: Handler,
    *,
    jsonrpc: str = JSONRPC_PATH,
    rest: str = REST_PATH,
    trusted_origins: Collection[str] = (),
    max_request: int = DEFAULT_MAX_REQUEST,
) -> list[BaseRoute]:
    """Return the routes of the card, JSON-RPC and HTTP+JSON for Starlette or FastAPI.

    ``jsonrpc`` is the path of JSON-RPC, and ``rest`` is the prefix of HTTP+JSON; if you change
    them, change the card too. Both bindings serve A2A 1.0, and A2A 0.3 to callers that send no
    version. The SDK's routes for tenants are left out, because they would match the paths of other
    routes.

    A body must be strict JSON in UTF-8, of at most ``max_request`` bytes and 25,000 values. Calls
    from pages of other sites are refused, except from ``trusted_origins``, as for
    :class:`lro.http.OperationsEdge`.

    Raises:
        DeclarationError: An argument is wrong.
    """
    check_instance("handler", handler, Handler, "a Handler")
    check_count("max_request", max_request)
    builder = _ContextBuilder()
    origins = trusted(trusted_origins)

    def guarded(made: Sequence[BaseRoute], *, rpc: bool) -> list[BaseRoute]:
        guard = Middleware(
            _Guard, handler=handler, origins=origins, max_request=max_request, rpc=rpc
        )
        return [
            Route(one.path, one.endpoint, methods=[*(one.methods or ())], middleware=[guard])
            for one in made
            if isinstance(one, Route)
        ]

    return [
        *create_agent_card_routes(handler.card, cache_control="public, max-age=60"),
        *guarded(
            create_jsonrpc_routes(
                handler, jsonrpc, context_builder=builder, enable_v0_3_compat=True
            ),
            rpc=True,
        ),
        *guarded(
            create_rest_routes(
                handler, context_builder=builder, enable_v0_3_compat=True, path_prefix=rest
            ),
            rpc=False,
        ),
    ]


def add_to(
    server: grpc.aio.Server, handler: Handler, *, max_request: int = DEFAULT_MAX_REQUEST
) -> None:
    """Serve A2A on a gRPC server of asyncio, in versions 1.0 and 0.3. Needs the extra ``grpc``.

    ``max_request`` bounds requests, in bytes.

    Raises:
        DeclarationError: An argument is wrong.
        MissingExtra: gRPC is not installed.
    """
    check_instance("handler", handler, Handler, "a Handler")
    check_count("max_request", max_request)
    try:
        from lro.a2a._rpcs import add_guarded
    except ImportError as exc:
        raise MissingExtra("A2A over gRPC", "grpc") from exc
    add_guarded(server, handler, max_request=max_request, max_values=MAX_VALUES)


class _ContextBuilder(DefaultServerCallContextBuilder):
    """Put the :class:`A2ACall` of a request into the SDK's context of the call."""

    def build(self, request: Request) -> ServerCallContext:
        context = super().build(request)
        context.state[CALL] = request.scope[CALL]
        return context


class _Guard:
    """Check a request before the SDK reads it, and replace error replies of the SDK."""

    def __init__(
        self,
        app: App,
        handler: Handler,
        origins: frozenset[tuple[str, str]],
        max_request: int,
        rpc: bool,
    ) -> None:
        self._app = app
        self._handler = handler
        self._service = handler.service
        self._origins = origins
        self._max_request = max_request
        self._rpc = rpc

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a call of ASGI."""
        request_id: Json = None
        code = _INVALID_REQUEST
        try:
            request = request_of(scope, raw_path(scope))
            if request.method in CHANGING:
                check_site(request.headers, request.scheme, self._origins)
            code = _INTERNAL_ERROR
            context = DefaultServerCallContextBuilder().build(Request(scope))
            call = scope[CALL] = A2ACall(await self._handler.identify(context), receive)
            code = _INVALID_REQUEST
            body = await read_body(receive, self._max_request)
            if body is None:
                return  # the caller has disconnected
            request_id = self._checked(attrs.evolve(request, body=body))
        except Exception as exc:
            code = _CODES.get(type(exc), code)
            await _send(self._written(self._refusal(exc), request_id, code), send)
            return
        start: Any = None
        begun = replaced = False

        async def replace(refusal: HttpReply) -> None:
            nonlocal begun, replaced
            begun = replaced = True
            await _send(self._written(refusal, request_id, _INTERNAL_ERROR), send)

        async def sent(message: Any) -> None:
            nonlocal start, begun
            if message["type"] == "http.response.start":
                start = (
                    message  # held back until the first piece, since a stream may fail before that
                )
            elif not begun and (refusal := self._instead(call, start["status"])) is not None:
                await replace(refusal)
            elif not replaced:
                if not begun:
                    begun = True
                    await send(start)
                await send(message)

        try:
            await self._app(scope, _replayed(body, receive), sent)
        except Exception:  # raised by the SDK in a 0.3 stream over HTTP+JSON
            found = self._instead(call, HTTPStatus.INTERNAL_SERVER_ERROR)
            if found is None:
                raise
            if not begun:
                await replace(found)
            elif not replaced:
                event = b"event: error\r\ndata: %b\r\n\r\n" % found.body
                await send({"type": "http.response.body", "body": event})

    def _instead(self, call: A2ACall, status: int) -> HttpReply | None:
        """Return the reply that replaces the SDK's reply; None to keep the SDK's reply."""
        if call.refusal is not None or status != HTTPStatus.INTERNAL_SERVER_ERROR:
            return call.refusal
        if not call.reached:
            return self._refusal(MalformedRequest("", "the request cannot be read"))
        if call.error is None:
            return None
        payload = build_rest_error_payload(call.error)
        return json_reply(payload["error"]["code"], payload)

    def _refusal(self, error: Exception) -> HttpReply:
        service = self._service
        return error_reply(error, service.types, service.domain, asked="a call of A2A")

    def _checked(self, request: HttpRequest) -> Json:
        """Check the body of a request, and return its JSON-RPC id; None without a valid id."""
        if request.method not in CHANGING:
            return None
        if len(request.body) > self._max_request:
            raise RequestTooLarge("body", f"must have at most {self._max_request} bytes")
        if not self._rpc and not request.body.strip():
            return None  # a call to cancel needs no body
        kind, charset = media_type(request.headers.get("content-type", ""))
        if kind not in _MEDIA_TYPES or charset not in ("", "utf-8", "utf8"):
            wanted = "must be application/json or application/a2a+json, in UTF-8"
            raise UnsupportedMediaType("Content-Type", f"{wanted}, got {kind!r:.100}")
        try:
            check_values(request.body, MAX_VALUES)
        except ValueError as exc:
            raise RequestTooLarge("body", str(exc)) from None
        value = read_json(request.body)
        found = value.get("id") if isinstance(value, dict) else None
        return found if isinstance(found, str) or type(found) is int else None

    def _written(self, reply: HttpReply, request_id: Json, code: int) -> HttpReply:
        """Convert an error for JSON-RPC (A2A 9.5); for HTTP+JSON, return it unchanged."""
        if not self._rpc:
            return reply
        said = json.loads(reply.body)["error"]
        error = {"code": code, "message": said["message"], "data": said.get("details", [])}
        status = reply.status if reply.status in _OWN_STATUS else HTTPStatus.OK
        headers = [one for one in reply.headers if one[0] in ("retry-after", "www-authenticate")]
        return json_reply(status, {"jsonrpc": "2.0", "id": request_id, "error": error}, *headers)


def _replayed(body: bytes, receive: Receive) -> Receive:
    pending = [{"type": "http.request", "body": body, "more_body": False}]

    async def received() -> MutableMapping[str, Any]:
        return pending.pop() if pending else await receive()

    return received


async def _send(reply: HttpReply, send: Send) -> None:
    headers = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in reply.headers]
    headers.append((b"content-length", b"%d" % len(reply.body)))
    await send({"type": "http.response.start", "status": reply.status, "headers": headers})
    await send({"type": "http.response.body", "body": reply.body})
