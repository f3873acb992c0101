"""Code shared by the integrations: an edge, the paths of its routes, and errors of frameworks."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, TypeVar, Unpack

import attrs

from lro import Code, Method, Service
from lro.asgi import GoneAway, Receive, Scope, while_there
from lro.errors import (
    LroError,
    PermissionDenied,
    RequestTooLarge,
    ResourceExhausted,
    StatusError,
    Unauthenticated,
    Unavailable,
    UnsupportedMediaType,
    check_instance,
    check_keywords,
    check_plain_function,
)
from lro.http import (
    Authenticate,
    EndpointStartKeywords,
    Flow,
    HttpRequest,
    IntegrationKeywords,
    OperationsEdge,
    Starts,
    caller_hook,
    mount_path,
    parameter_names,
    raw_form,
    wire_text,
)
from lro.wire import Literal, Route, Wildcard, code_from_http

if TYPE_CHECKING:
    from lro.console import Console

Req = TypeVar("Req")
Meta = TypeVar("Meta")
T = TypeVar("T")
Find = TypeVar("Find")
Reply = TypeVar("Reply")


class FrameworkOperations(Generic[Find, Reply]):
    """The operations of a service in a web application: the base class of each integration.

    ``caller`` is a function of the application that takes a request of the framework and returns
    the caller's name; it may be a coroutine function. ``console`` is a path, or an
    ``lro.console.Console``; without ``caller`` the console answers only callers on the same
    machine. The other options are those of :class:`lro.http.OperationsEdge`.

    Raises:
        DeclarationError: As for ``OperationsEdge``; or the service has ``owner_only`` and there is
            no ``caller``.
    """

    refusal: ClassVar[type[Exception]] = LroError
    """The exception that applications of the framework raise to refuse a call."""
    nobody: ClassVar[str] = "lambda request: None"
    """Source code, suggested in error texts, of a ``caller`` function for callers without names."""
    dependency: ClassVar[bool] = False
    """True if the framework calls ``caller``, and passes the caller's name with each request."""
    blocking: ClassVar[str] = ""
    """The blocking code that calls the edge, such as ``a Django view``; empty for async code."""

    def __init__(
        self,
        service: Service,
        *,
        starts: Starts = False,
        caller: Find | None = None,
        console: str | Console = "",
        **options: Unpack[IntegrationKeywords],
    ) -> None:
        check_keywords(type(self).__name__, options, IntegrationKeywords)
        hook = None if caller is None else self._hook(caller)
        service.edges.access.check_named("the integration", hook, "caller", self.nobody)
        self.edge: OperationsEdge = OperationsEdge(
            service, authenticate=hook or _without_name, starts=starts, **options
        )
        self.edges: list[OperationsEdge] = [self.edge]
        if console:
            self.edges.append(self._console(console, hook, options))
        if self.blocking:
            for edge in self.edges:
                edge.occupy_threads(self.blocking)

    def arguments(self, native: Any) -> tuple[Any, ...]:
        """Return the arguments for ``caller``; ``native`` is the request or ASGI scope."""
        return (native,)

    def ours(self, error: Any) -> LroError:
        """Convert an exception of the class ``refusal`` to an error of this library."""
        raise NotImplementedError

    def response(self, reply: Any) -> Reply:
        """Convert the reply of an edge to a response of the framework."""
        raise NotImplementedError

    def refuse(self, asked: HttpRequest, error: Exception) -> Reply:
        """Return the error response to a request that failed."""
        return self.response(self.edge.refusal(asked, error))

    def started(
        self,
        asked: HttpRequest,
        method: Method[Req, Any, Meta],
        message: Req | None,
        options: EndpointStartKeywords[Meta],
    ) -> Flow[Reply]:
        """Start an operation for an endpoint of the application; see ``OperationsEdge.start``."""
        try:
            reply = (yield from self.edge.start(asked, method, message, **options))[1]
        except LroError as exc:
            reply = self.edge.refusal(asked, exc)
        return self.response(reply)

    def _console(
        self, console: str | Console, hook: Authenticate | None, options: IntegrationKeywords
    ) -> OperationsEdge:
        import lro.console  # most applications have no console

        made = lro.console.Console(console) if isinstance(console, str) else console
        check_instance("console", made, lro.console.Console, "a path, or an lro.console.Console")
        return lro.console.ConsoleEdge(
            self.edge.service,
            path=made.path,
            authenticate=hook,
            parents=options.get("parents", ()),
            trusted_origins=options.get("trusted_origins", ()),
            **made.options,
        )

    def _hook(self, caller: Any) -> Authenticate:
        awaited = caller_hook("caller", caller).awaited
        if self.dependency:
            return _named_by_framework
        if self.blocking:
            check_plain_function("caller", caller)

        async def ask_awaited(_: Mapping[str, str], native: Any) -> Any:
            try:
                return await caller(*self.arguments(native))
            except self.refusal as exc:
                raise self.ours(exc) from exc

        def ask(_: Mapping[str, str], native: Any) -> Any:  # called in a thread under asyncio
            try:
                return caller(*self.arguments(native))
            except self.refusal as exc:
                raise self.ours(exc) from exc

        return ask_awaited if awaited else ask


def _without_name(headers: Mapping[str, str]) -> None:
    """Return None, so that no caller has a name."""


def _named_by_framework(headers: Mapping[str, str]) -> None:  # pragma: no cover - never asked
    """A placeholder for the hook of an edge to which the framework passes the caller's name."""


@attrs.frozen
class PathRule:
    """A route of an edge, split into the parts that a framework needs to declare the route.

    ``rpc`` is the verb, or the full name of the method that the route starts. ``parts`` alternate
    between literal text and names of path parameters: ``("/v1/operations/", "operation",
    ":cancel")``. The OpenAPI document has the same names. ``many`` has the parameters whose values
    can contain slashes: wildcards of many segments, and the id of an operation. In that id, slashes
    may be percent-encoded; only the edge decodes such slashes correctly.
    """

    method: str
    rpc: str
    parts: tuple[str, ...]
    many: frozenset[str]

    @classmethod
    def of(cls, route: Route, rpc: str) -> PathRule:
        """Make the rule of a route."""
        parts, many, collection = [""], set(), ""
        names = iter(parameter_names(route.template))
        for segment in route.template.segments:
            parts[-1] += "/"
            if isinstance(segment, Literal):
                parts[-1] += segment.text
                collection = segment.text
                continue
            name = next(names)
            if segment is Wildcard.MANY or collection == "operations":
                many.add(name)
            parts += [name, ""]
        verb = route.template.verb
        parts[-1] += f":{verb.text}" if verb else ""
        return cls(route.method, rpc, tuple(parts if parts[-1] else parts[:-1]), frozenset(many))

    def path(self, one: str, many: str) -> str:
        """Return the path, with its parameters in a framework's syntax.

        In the syntax, ``*`` stands for the parameter's name: ``<*>`` makes ``<name>``.
        ``one`` is the syntax for parameters without slashes, ``many`` the syntax for the parameters
        in :attr:`many`.
        """
        return "".join(
            (many if part in self.many else one).replace("*", part) if place % 2 else part
            for place, part in enumerate(self.parts)
        )

    def filled(self, values: Mapping[str, Any]) -> str:
        """Return the path with its parameters replaced by these decoded values."""
        return "".join(
            str(values[part]) if place % 2 else part for place, part in enumerate(self.parts)
        )


def path_rules(edge: OperationsEdge) -> Sequence[PathRule]:
    """Return the routes of an edge.

    Routes that end with ``:verb`` come first, because they match fewer paths. The edge does not
    rely on the rule that the framework has matched, but finds the route by the raw path. So one
    handler can serve all rules, and a pattern of the framework may match too many paths.
    """
    routes = [*edge.start_routes, *edge.verb_routes]
    routes.sort(key=lambda route: (route.template.verb is None, route.template.specificity))
    return [PathRule.of(route, edge.starts.get(route.rpc, route.rpc)) for route in routes]


PAGE: Final = "ConsolePage"
"""The ``rpc`` of the rules that serve the page of a console, which every caller may read."""

EVERY_METHOD: Final = frozenset(("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"))


def rules_by_path(
    edge: OperationsEdge, one: str, many: str
) -> Mapping[str, tuple[PathRule, frozenset[str]]]:
    """Return the paths to declare, in order, each with one of its rules and its HTTP methods.

    This is for frameworks in which a path can be declared only once. ``one`` and ``many`` are as
    for :meth:`PathRule.path`. At a path of operations the edge gets all HTTP methods, and refuses
    those that it does not serve. At a path that starts operations, the edge gets only the methods
    that it serves, and the application may use the other methods.
    """
    if edge.mount:
        rules = [PathRule("GET", PAGE, (path,), frozenset()) for path in edge.pages]
        rest = (f"{edge.mount}/", "console_path")
        rules.append(PathRule("GET", "Console", rest, frozenset({"console_path"})))
        return {rule.path(one, many): (rule, EVERY_METHOD) for rule in rules}
    found: dict[str, tuple[PathRule, frozenset[str]]] = {}
    starts = set(edge.starts.values())
    for rule in path_rules(edge):
        path = rule.path(one, many)
        methods = frozenset((rule.method, "OPTIONS")) if rule.rpc in starts else EVERY_METHOD
        first, others = found.get(path, (rule, frozenset()))
        found[path] = first, methods | others
    return found


def below_prefix(raw: str, decoded: str, own: str) -> str:
    """Return the raw path without the prefix at which a framework has included our routes.

    ``decoded`` is the whole path as the framework matched it; ``own`` is the end of that path,
    the part that our route matched. No slash in the prefix is encoded, because frameworks match
    decoded paths.
    """
    segments = decoded.removesuffix(own).count("/")
    return "/" + raw.split("/", segments + 1)[-1] if segments else raw


def path_below(scope: Scope, own: str) -> str:
    """Return the raw path of an ASGI call below the mounts and prefixes of a framework.

    ``own`` is the end of the decoded path: the part that one of our routes has matched.
    """
    raw = wire_text(scope.get("raw_path") or b"").partition("?")[0]
    return below_prefix(raw_form(raw, scope["path"]), scope["path"], own)


def gone_away() -> StatusError:
    """Return the error for a call whose caller has disconnected and will read no reply."""
    return StatusError(Code.CANCELLED, "the caller has gone away")


def heard_by(request: HttpRequest, receive: Receive) -> HttpRequest:
    """Return a copy of an endpoint's request whose waits end when the caller disconnects.

    ``receive`` returns the ASGI messages that follow the body of the request.
    """

    async def while_connected(waiting: Awaitable[T]) -> T:
        try:
            return await while_there(receive, waiting)
        except GoneAway:
            raise gone_away() from None

    return attrs.evolve(request, while_connected=while_connected)


def mounted_at(request: HttpRequest, prefix: str) -> HttpRequest:
    """Return a copy of an endpoint's request, for an edge whose routes have a prefix.

    ``prefix`` is decoded, and is below the mount of the endpoint. If it has variables, such as
    ``<tenant>`` or ``{tenant}``, the path of the operations is unknown.
    """

    def mount(_: HttpRequest) -> str | None:
        own = request.mount(request)
        return None if own is None or {*prefix} & {*"<{"} else own + mount_path(prefix)

    return attrs.evolve(request, mount=mount)


_KINDS: Final[Mapping[Code, Callable[[str], LroError]]] = {
    Code.PERMISSION_DENIED: PermissionDenied,
    Code.RESOURCE_EXHAUSTED: ResourceExhausted,
    Code.UNAVAILABLE: Unavailable,
}


def error_of(status: int, text: str, headers: Mapping[str, str] | None = None) -> LroError:
    """Convert an HTTP exception of a framework to an error of this library.

    The framework's authentication raises such exceptions; callers then get the usual error format.
    ``headers`` are those of the exception; ``WWW-Authenticate`` becomes the challenge.
    """
    if status == HTTPStatus.REQUEST_ENTITY_TOO_LARGE:
        return RequestTooLarge("body", text)
    if status == HTTPStatus.UNSUPPORTED_MEDIA_TYPE:
        return UnsupportedMediaType("Content-Type", text)
    code = code_from_http(status)
    if code is Code.UNAUTHENTICATED:
        for name, value in (headers or {}).items():
            if name.lower() == "www-authenticate":
                with contextlib.suppress(ValueError):
                    return Unauthenticated(text, value)
        return Unauthenticated(text)
    kind = _KINDS.get(code)
    return kind(text) if kind is not None else StatusError(code, text)
