"""Starts over HTTP: the methods of a service that an edge serves, each at a path (spec §9)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, Generic, TypeAlias, TypeVar, cast

import attrs

from lro._base.arguments import check, check_instance, check_plain_function, check_text, contained
from lro._base.errors import (
    DeclarationError,
    HttpMethodNotAllowed,
    LroError,
    RouteNotFound,
)
from lro._engine.access import Flow, flow_of
from lro._engine.methods import Method
from lro._engine.service import Service
from lro._http.requests import media_type, read_object, take_field
from lro._http.responses import HttpReply, error_reply, operation_reply
from lro._http.routes import HttpRequest, Match, Route, RouteTable
from lro._model.http_rules import Literal, path_template
from lro._model.operation import Operation

Req = TypeVar("Req")

_METHOD: Final = "a method: decorate the function with service.method(...)"
_STARTS: Final = "True, False, or a dict of paths, each with a method or an lro.http.Start"


@attrs.frozen
class Start(Generic[Req]):
    """A method that an edge starts, with what is made of the HTTP request.

    ``parent`` gives the parent of the new operation for a request, ``metadata`` its first metadata
    for the request message. ``raw`` reads bodies of other media types than JSON: it takes the media
    type, in lower case and without parameters, and the bytes, and returns the request message, or
    None for a type that it does not read.

    Raises:
        DeclarationError: ``method`` is not a declared method, or another argument is not a plain
            function.
    """

    method: Method[Req, Any, Any]
    parent: Callable[[HttpRequest], str] | None = attrs.field(default=None, kw_only=True)
    metadata: Callable[[Req], object] | None = attrs.field(default=None, kw_only=True)
    raw: Callable[[str, bytes], Req | None] | None = attrs.field(default=None, kw_only=True)

    def __attrs_post_init__(self) -> None:
        check_instance("method", self.method, Method, _METHOD)
        for name in ("parent", "metadata", "raw"):
            function = getattr(self, name)
            if function is not None:
                check_plain_function(name, function)


Starts: TypeAlias = Mapping[str, Method[Any, Any, Any] | Start[Any]] | bool
"""The starts that an edge serves: those of a dict, by path; or all methods that have a path."""


class StartHandler(Generic[Req]):
    """Reads the requests of one method, and starts its operations."""

    def __init__(self, service: Service, full_name: str, start: Start[Req] | None = None) -> None:
        self.full_name = full_name
        self._service = service
        self._request: type[Req] = service.specs[full_name].request
        self._parent = start.parent if start else None
        self._metadata = start.metadata if start else None
        self._raw = start.raw if start else None

    def start(self, request: HttpRequest, caller: str) -> Flow[Operation]:
        """Start the operation that a request asks for."""
        message, request_id, validate_only = self._read(request)
        return (
            yield from flow_of(self._service.start)(
                self.full_name,
                message,
                request_id=request_id,
                validate_only=validate_only,
                parent=contained("parent", self._parent, request) if self._parent else "",
                metadata=contained("metadata", self._metadata, message) if self._metadata else None,
                caller=caller,
            )
        )

    def _read(self, request: HttpRequest) -> tuple[Req, str, bool]:
        """The message of a request, its request id, and whether it is only to be validated."""
        content_type = request.headers.get("content-type")
        if self._raw is not None and content_type:
            kind = media_type(content_type)[0]
            message = contained("raw", self._raw, kind, request.body)
            if message is not None:
                return message, "", False
        types = self._service.types
        fields = read_object(content_type, request.body)
        shape = types.codec(types.name_of(self._request)).shape
        request_id = take_field(fields, "request_id", str, "", shape)
        validate_only = take_field(fields, "validate_only", bool, False, shape)
        return types.load(fields, self._request), request_id, validate_only


def start_handlers(service: Service, starts: Starts) -> dict[str, StartHandler[Any]]:
    """The starts that an edge serves, by path: True stands for the methods declared by now.

    Raises:
        DeclarationError: ``starts`` is not of its type, a method is not one of this service, or two
            methods are declared with one path.
    """
    if isinstance(starts, Mapping):
        return {path: _handler(service, path, given) for path, given in starts.items()}
    check("starts", starts, _STARTS, fine=isinstance(starts, bool))
    found: dict[str, StartHandler[Any]] = {}
    for name, spec in service.specs.items() if starts else ():
        path = spec.options.path
        if path in found:
            raise _served_twice(path, found[path].full_name)
        if path:
            found[path] = StartHandler(service, name)
    return found


def _handler(service: Service, path: str, given: object) -> StartHandler[Any]:
    check_text("starts", path)
    start = given if isinstance(given, Start) else Start(cast("Method[Any, Any, Any]", given))
    service.check_own(start.method)
    return StartHandler(service, start.method.full_name, start)


def with_starts(routes: Iterable[Route], starts: Mapping[str, StartHandler[Any]]) -> RouteTable:
    """The table of these routes, and of a POST to the path of each start.

    The ``rpc`` of such a route is its path.

    Raises:
        DeclarationError: A path has variables, or is served already.
    """
    served = list(routes)
    verbs = RouteTable(served)
    taken: dict[tuple[object, ...], str] = {}
    for path, start in starts.items():
        template = path_template("starts", path)
        texts = [one.text for one in template.segments if isinstance(one, Literal)]
        if len(texts) < len(template.segments):
            raise DeclarationError("starts", f"must be paths without variables, got {path!r}")
        key = (*texts, template.verb and template.verb.text)
        other = taken.get(key) or _rpc_at(verbs, path)
        if other is not None:
            raise _served_twice(path, other)
        taken[key] = start.full_name
        served.append(Route(method="POST", template=template, rpc=path))
    return RouteTable(served)


def _rpc_at(table: RouteTable, path: str) -> str | None:
    """The RPC that a table already has for a POST to a path."""
    try:
        found = table.find("POST", path)
    except (RouteNotFound, HttpMethodNotAllowed):
        return None
    assert isinstance(found, Match)  # only OPTIONS gives anything else
    return found.rpc


def _served_twice(path: str, other: str) -> DeclarationError:
    return DeclarationError("starts", f"{path!r} is served already, as {other}")


def answer(service: Service, start: Callable[[], Operation], poll_seconds: int = 1) -> HttpReply:
    """The reply to a call that starts an operation: the operation, or the error of ``start``.

    For endpoints written in a framework; ``Response(*answer(...).parts)`` is what they return in
    Starlette, FastAPI and Flask. An exception that is not an :class:`lro.LroError` passes, for the
    framework to report.
    """
    try:
        return operation_reply(start(), service.types, poll_seconds)
    except LroError as exc:
        return error_reply(exc, service.types, service.domain, asked="a call that starts work")
