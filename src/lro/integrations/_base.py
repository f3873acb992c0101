"""What the integrations share: an edge, the paths of its routes, and errors of frameworks."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, TypeVar, Unpack

import attrs

from lro import Code, Method, Service
from lro.asgi import GoneAway, Receive, Scope, while_there
from lro.errors import (
    HookFailed,
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
    got,
)
from lro.http import (
    Authenticate,
    EndpointStartKeywords,
    Flow,
    Hook,
    HttpRequest,
    IntegrationKeywords,
    OperationsEdge,
    Starts,
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
    """A service in an application of a framework.

    ``caller`` is the application's function that finds the caller of a native request, be it a
    coroutine function or not. ``console`` is a path, or an ``lro.console.Console``; without
    ``caller`` the console answers only callers on the same machine. The other options are those
    of :class:`lro.http.OperationsEdge`.

    Raises:
        DeclarationError: As for ``OperationsEdge``; or the service has ``owner_only`` and there is
            no ``caller``.
    """

    refusal: ClassVar[type[Exception]] = LroError
    """The exception by which applications of the framework refuse a call."""
    nobody: ClassVar[str] = "lambda request: None"
    """The function that users of the framework write if no caller has a name."""
    dependency: ClassVar[bool] = False
    """True if the framework calls ``caller`` itself, and each request comes with the name."""
    blocking: ClassVar[str] = ""
    """The name of the place that calls the edge, if that place has no event loop."""

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
                edge.check_plain(self.blocking)
                edge.streams = False

    def arguments(self, native: Any) -> tuple[Any, ...]:
        """Return the arguments of ``caller`` for a request as the server has it."""
        return (native,)

    def ours(self, error: Any) -> LroError:
        """Return the error of ours that says what a ``refusal`` says."""
        raise NotImplementedError

    def response(self, reply: Any) -> Reply:
        """Return the reply of an edge as a response of the framework."""
        raise NotImplementedError

    def refuse(self, asked: HttpRequest, error: Exception) -> Reply:
        """Return the response to a request that failed."""
        return self.response(self.edge.refusal(asked, error))

    def started(
        self,
        asked: HttpRequest,
        method: Method[Req, Any, Meta],
        message: Req | None,
        options: EndpointStartKeywords[Meta],
    ) -> Flow[Reply]:
        """Start an operation for an endpoint of the application: see ``OperationsEdge.start``."""
        try:
            reply = (yield from self.edge.start(asked, method, message, **options))[1]
        except LroError as exc:
            reply = self.edge.refusal(asked, exc)
        return self.response(reply)

    def _console(
        self, console: str | Console, hook: Authenticate | None, options: IntegrationKeywords
    ) -> OperationsEdge:
        import lro.console  # loaded only where it is used

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
        if self.dependency:
            return _named_by_framework
        awaited = Hook("caller", caller).awaited
        if self.blocking:
            check_plain_function("caller", caller)

        async def ask_awaited(_: Mapping[str, str], native: Any) -> Any:
            try:
                return await caller(*self.arguments(native))
            except self.refusal as exc:
                raise self.ours(exc) from exc

        def ask(_: Mapping[str, str], native: Any) -> Any:  # an event loop asks it in a thread
            try:
                return caller(*self.arguments(native))
            except self.refusal as exc:
                raise self.ours(exc) from exc

        return ask_awaited if awaited else ask


def _without_name(headers: Mapping[str, str]) -> None:
    """Every caller is one without a name."""


def _named_by_framework(headers: Mapping[str, str]) -> None:  # pragma: no cover - never asked
    """The hook of an edge whose requests all come with the name of their caller."""


def caller_name(found: object) -> str:
    """Return the name of the caller that a dependency of a framework has found.

    Raises:
        HookFailed: It is not a text or None.
    """
    if found is None or isinstance(found, str):
        return found or ""
    wanted = "must give a text, or None for a caller without a name"
    raise HookFailed("caller", f"{wanted}, got {got(found)}")


@attrs.frozen
class PathRule:
    """A route of an edge as frameworks declare routes.

    ``rpc`` is the verb, or the full name of the method that is started here. ``parts`` are literal
    text and names of path parameters in turn: ``("/v1/operations/", "operation", ":cancel")``.
    The OpenAPI document has the same names. ``many`` are the parameters whose values can have
    slashes: wildcards of many segments, and the id of an operation, whose slashes can be encoded,
    so that only the edge reads it right.
    """

    method: str
    rpc: str
    parts: tuple[str, ...]
    many: frozenset[str]

    @classmethod
    def of(cls, route: Route, rpc: str) -> PathRule:
        """Return the rule of a route."""
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
        """Return the path in the framework's syntax for parameters, where ``*`` stands for a name.

        ``one`` is for parameters without a slash, ``many`` for the others.
        """
        return "".join(
            (many if part in self.many else one).replace("*", part) if place % 2 else part
            for place, part in enumerate(self.parts)
        )

    def filled(self, values: Mapping[str, Any]) -> str:
        """Return the path with the values of its parameters, decoded."""
        return "".join(
            str(values[part]) if place % 2 else part for place, part in enumerate(self.parts)
        )


def path_rules(edge: OperationsEdge) -> Sequence[PathRule]:
    """Return the routes of an edge, first those with a verb after a colon: they match less.

    The edge itself finds the route by the raw path, whichever rule the framework matches. So one
    handler can serve all rules, and a pattern of the framework can match too much.
    """
    routes = [*edge.start_routes, *edge.verb_routes]
    routes.sort(key=lambda route: (route.template.verb is None, route.template.specificity))
    return [PathRule.of(route, edge.starts.get(route.rpc, route.rpc)) for route in routes]


PAGE: Final = "ConsolePage"
"""Stands for an RPC where the page of a console is served, which is for every caller."""

EVERY_METHOD: Final = frozenset(("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"))


def rules_by_path(
    edge: OperationsEdge, one: str, many: str
) -> Mapping[str, tuple[PathRule, frozenset[str]]]:
    """Return the paths to declare, in their order, each with one of its rules and its HTTP methods.

    For frameworks that declare a path once. ``one`` and ``many`` are as for :meth:`PathRule.path`.
    The edge gets all methods of a path of operations, and refuses those that it does not serve. At
    a path of starts, the application can have other methods.
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

    ``decoded`` is the whole path as the framework matched it, ``own`` its end, which our route
    matched. In the prefix no slash is encoded, because frameworks match decoded paths.
    """
    segments = decoded.removesuffix(own).count("/")
    return "/" + raw.split("/", segments + 1)[-1] if segments else raw


def path_below(scope: Scope, own: str) -> str:
    """Return the raw path of an ASGI call below the mounts and prefixes of a framework.

    ``own`` is the decoded end of the path, which one of our routes has matched.
    """
    raw = wire_text(scope.get("raw_path") or b"").partition("?")[0]
    return below_prefix(raw_form(raw, scope["path"]), scope["path"], own)


def gone_away() -> StatusError:
    """Return the error of a call whose caller has disconnected, and reads no reply."""
    return StatusError(Code.CANCELLED, "the caller has gone away")


def heard_by(request: HttpRequest, receive: Receive) -> HttpRequest:
    """Return a request to an endpoint of the application, whose waits end when the caller leaves.

    ``receive`` gives, as under ASGI, what comes after the body of the request.
    """

    async def while_connected(waiting: Awaitable[T]) -> T:
        try:
            return await while_there(receive, waiting)
        except GoneAway:
            raise gone_away() from None

    return attrs.evolve(request, while_connected=while_connected)


def mounted_at(request: HttpRequest, prefix: str) -> HttpRequest:
    """Return a request to an endpoint of the application, for an edge whose routes have a prefix.

    ``prefix`` is below the mount of the endpoint, decoded. Where it has variables, as ``<tenant>``
    or ``{tenant}``, the operations' place is not known.
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
    """Return the error of ours that says what an HTTP exception of a framework says.

    Authentication of the framework raises such exceptions; callers get one format all the same.
    ``headers`` are those of the exception: ``WWW-Authenticate`` becomes the challenge.
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
