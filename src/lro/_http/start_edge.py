"""The edge of one method that starts operations (spec §9)."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, Final, Generic, TypeVar

from lro._base.arguments import check_instance, check_plain_function, check_text, contained
from lro._base.errors import DeclarationError, HttpMethodNotAllowed, LroError, RouteNotFound
from lro._engine.hooks import Flow, flow_of
from lro._engine.method import Method
from lro._engine.service import Service
from lro._http.edge import DEFAULT_MAX_BODY, Authenticate, Edge, HttpRequest
from lro._http.request_bodies import media_type, read_object, take_field
from lro._http.responses import HttpReply, allow_reply, error_reply, operation_reply
from lro._http.steps import Call, Exchange
from lro._model.http_rules import Literal, check_path, path_template, percent_decode
from lro._model.operation import Operation

Req = TypeVar("Req")

_START_METHODS: Final = ("OPTIONS", "POST")
_METHOD: Final = "a method: decorate the function with service.method(...)"


def answer(service: Service, start: Callable[[], Operation], poll_seconds: int = 1) -> HttpReply:
    """The reply to a call that starts an operation: the operation, or the error of ``start``.

    For endpoints written in a framework; ``Response(*answer(...).parts)`` is what they return in
    Starlette, FastAPI and Flask. What else ``start`` raises is the framework's to tell.
    """
    try:
        return operation_reply(start(), service.types, poll_seconds)
    except LroError as exc:
        return error_reply(exc, service.types, service.domain, asked="a call that starts work")


class StartEdge(Edge, Generic[Req]):
    """One method that starts operations, as POST with its request in a JSON body.

    Beside the request's own fields the body may hold ``requestId`` and ``validateOnly``
    (spec §9.1, §9.7). ``path`` is the one raw path that is answered: by default the method's own,
    which is its option ``path`` or made of its name (``/v1/images:resize``); None for an edge that
    stands behind a route of a framework, which answers whatever path that route sends it.
    ``parent`` gives the parent of the new operation for a request, ``metadata``
    its first metadata; ``raw`` reads bodies of other media types (type and bytes -> request, or
    None for a type that it does not read); the type is in lower case, without parameters. The
    other options are those of :class:`OperationsEdge`.

    Raises:
        DeclarationError: An option is not of its type, or out of its bounds; or ``method`` is a
            function that is not declared as a method, or a method of another service; or the
            service has ``owner_only`` and there is no ``authenticate``.
    """

    def __init__(
        self,
        service: Service,
        method: Method[Req, Any, Any],
        *,
        path: str | None = "",
        parent: Callable[[HttpRequest], str] | None = None,
        metadata: Callable[[Req], object] | None = None,
        raw: Callable[[str, bytes], Req | None] | None = None,
        authenticate: Authenticate | None = None,
        trusted_origins: Collection[str] = (),
        max_body: int = DEFAULT_MAX_BODY,
        poll_seconds: int = 1,
    ) -> None:
        super().__init__(
            service,
            authenticate=authenticate,
            trusted_origins=trusted_origins,
            max_body=max_body,
            poll_seconds=poll_seconds,
        )
        check_instance("method", method, Method, _METHOD)
        service.check_own(method)
        for name, function in (("parent", parent), ("metadata", metadata), ("raw", raw)):
            if function is not None:
                check_plain_function(name, function)
        self._method = method
        self._path = None if path is None else _one_path(path, method.spec.path)
        self._parent = parent
        self._metadata = metadata
        self._raw = raw

    def knows(self, method: str, path: str) -> bool:  # noqa: ARG002
        """Whether this is the path that starts operations."""
        return self._path is None or path == self._path

    def _answer(self, request: HttpRequest) -> Exchange:
        check_path(request.path)
        percent_decode(request.path, "path")  # refused as by any route (spec §5.3(3))
        if not self.knows(request.method, request.path):
            raise RouteNotFound(request.path, self._path or "")
        if request.method == "OPTIONS":
            return allow_reply(_START_METHODS)
        if request.method != "POST":
            raise HttpMethodNotAllowed(request.method, request.path, _START_METHODS)
        self._check_site(request)
        caller = yield from self._caller(request)
        self._check_size(request)
        # Reading a big body and writing it down both take too long for an event loop.
        operation = yield Call(self._start(request, caller), blocks=True)
        return operation_reply(operation, self.service.types, self._poll_seconds)

    def _start(self, request: HttpRequest, caller: str) -> Flow[Operation]:
        message, request_id, validate_only = self._read(request)
        return (
            yield from flow_of(self._method.start)(
                message,
                request_id=request_id,
                validate_only=validate_only,
                parent=contained("parent", self._parent, request) if self._parent else "",
                metadata=contained("metadata", self._metadata, message) if self._metadata else None,
                caller=caller,
            )
        )

    def _read(self, request: HttpRequest) -> tuple[Req, str, bool]:
        content_type = request.headers.get("content-type")
        if self._raw is not None and content_type:
            kind = media_type(content_type)[0]
            message = contained("raw", self._raw, kind, request.body)
            if message is not None:
                return message, "", False
        types, cls = self.service.types, self._method.spec.request
        fields = read_object(content_type, request.body)
        shape = types.codec(types.name_of(cls)).shape
        request_id = take_field(fields, "request_id", str, "", shape)
        validate_only = take_field(fields, "validate_only", bool, False, shape)
        load: Req = types.load(fields, cls)
        return load, request_id, validate_only


def _one_path(given: str, default: str) -> str:
    check_text("path", given)
    path = given or default
    template = path_template("path", path)
    if not all(isinstance(segment, Literal) for segment in template.segments):
        raise DeclarationError("path", f"must be one path without variables, got {path!r}")
    return path
