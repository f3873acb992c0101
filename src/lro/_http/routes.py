"""HTTP requests, and the routes from a path to an RPC (spec §3.11, §5.5-§5.7)."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, Final, TypeAlias

import attrs

from lro._base.by_fields import ByFields
from lro._base.errors import (
    DeclarationError,
    HttpMethodNotAllowed,
    InvalidParent,
    RouteNotFound,
    got,
)
from lro._model.http_rules import (
    MAX_PATH,
    Literal,
    RawPath,
    Segment,
    Template,
    Variable,
    Wildcard,
    check_path,
    keep_slashes,
)
from lro._model.operation import normalise_parent

_TOKEN: Final = re.compile(r"[A-Za-z0-9!#$%&'*+\-.^_`|~]+")  # RFC 9110 §5.6.2
_ONE: Final = r"[^/\ud800-\udfff]++"
_MORE: Final = rf"(?:/{_ONE})*+"


def _as_method(text: str) -> str:
    return text.encode("ascii", "replace").decode("ascii")


def _at_root(_: HttpRequest) -> str:
    return ""


WhileConnected: TypeAlias = Callable[[Awaitable[Any]], Awaitable[Any]]
"""Awaits its argument, and cancels it when the caller disconnects."""


# With slots, an instance takes longer to make.
@attrs.frozen(kw_only=True, slots=False, eq=False, repr=False)
class HttpRequest(ByFields):
    """A request as it was sent: raw path and query, header names in lower case.

    ``method`` is ASCII; any other character becomes a question mark, which no method contains. A
    repeated header is one value, joined by commas. ``scheme`` is ``http`` or ``https``, as the
    server knows it: behind a proxy that terminates TLS, the scheme that a trusted proxy reports.
    ``native`` is the request object of the server or framework, for hooks: the scope under ASGI,
    the environ under WSGI. ``caller`` is the caller's name if a framework has already found it;
    the hook ``authenticate`` is not called then. ``peer`` is the IP address of the other end of the
    connection, or empty. ``mount`` takes the request and returns the part of the caller's path
    before ``path``, percent-encoded and without a slash at its end, or None if that part is
    unknown. ``while_connected`` awaits its argument, and cancels it when the caller disconnects.
    ``while_connected`` is None if the server reports no disconnects, or cancels the task of the
    call itself. ``one_thread`` is True if the server's process answers one call at a time.
    """

    method: str = attrs.field(converter=_as_method)
    path: str
    query: str = ""
    headers: Mapping[str, str] = attrs.field(factory=dict)
    body: bytes = b""
    scheme: str = "http"
    native: Any = attrs.field(default=None, eq=False, repr=False)
    caller: str | None = attrs.field(default=None, repr=False)
    peer: str = ""
    mount: Callable[[HttpRequest], str | None] = attrs.field(default=_at_root, eq=False, repr=False)
    while_connected: WhileConnected | None = attrs.field(default=None, eq=False, repr=False)
    one_thread: bool = False


def http_request(fields: dict[str, Any]) -> HttpRequest:
    """Make a request that keeps ``fields``, a dictionary of all fields, as its ``__dict__``.

    This takes half as long as the constructor.
    """
    if not fields["method"].isascii():
        fields["method"] = _as_method(fields["method"])
    request = object.__new__(HttpRequest)
    object.__setattr__(request, "__dict__", fields)
    return request


def _as_template(template: Template | str) -> Template:
    return template if isinstance(template, Template) else Template.parse(template)


@attrs.frozen(kw_only=True, eq=False, repr=False)
class Route(ByFields):
    """One HTTP rule: the method and path template that call an RPC.

    The template may be text. HEAD and OPTIONS cannot be routes: the table answers them for every
    route (spec §5.7(4)).

    Raises:
        DeclarationError: The template is not valid, or the method cannot be routed.
    """

    method: str = attrs.field()
    template: Template = attrs.field(converter=_as_template)
    rpc: str

    def __attrs_post_init__(self) -> None:
        if self.method in ("HEAD", "OPTIONS") or not _TOKEN.fullmatch(self.method):
            raise DeclarationError(self.template.text, f"{self.method!r} cannot be routed")


@attrs.frozen(kw_only=True, eq=False, repr=False, slots=False)
class Match(ByFields):
    """The route of a request: an RPC, and the fields bound by the path.

    ``head`` is true for HEAD, which is answered like GET, without a body (spec §5.7(4)).
    """

    rpc: str
    bindings: Mapping[str, str]
    head: bool


@attrs.frozen(eq=False, repr=False)
class Allowed(ByFields):
    """The reply to OPTIONS: status 204, and in ``Allow`` these sorted methods (spec §5.7(4))."""

    allow: tuple[str, ...]


@attrs.frozen(kw_only=True, eq=False, repr=False)
class _Row(ByFields):
    """The route of one alternative in a :class:`_Dispatch`; ``groups`` has its fields."""

    rpc: str
    groups: tuple[tuple[str, int], ...]


class _Dispatch:
    """One regular expression for all routes of a method and a verb, the most specific first.

    For paths without escapes, the expression finds the same fields as :meth:`Template.bind`. An
    empty group ends each alternative, so that ``lastindex`` tells which alternative matched.
    """

    def __init__(self, routes: Iterable[Route], *, head: bool) -> None:
        self._head = head
        self._rows: dict[int | None, _Row] = {}
        patterns: list[str] = []
        group = 0
        for route in routes:
            fields = [variable.field for variable in route.template.variables]
            groups = tuple((field, group + n) for n, field in enumerate(fields, start=1))
            group += len(fields) + 1
            self._rows[group] = _Row(rpc=route.rpc, groups=groups)
            patterns.append(rf"{_pattern(route.template)}\Z()")
        self._match: Callable[[str], re.Match[str] | None] = re.compile("|".join(patterns)).match

    def find(self, path: str) -> Match | None:
        found = self._match(path)
        if found is None:
            return None
        row = self._rows[found.lastindex]
        bindings: dict[str, str] = {}
        for field, group in row.groups:
            bindings[field] = found[group] or ""
        return Match(rpc=row.rpc, bindings=bindings, head=self._head)


class RouteTable:
    """Finds the route of a request by the rules of spec §5.7. Threads can share a table."""

    def __init__(self, routes: Iterable[Route]) -> None:
        routes = list(routes)
        self._by_verb: dict[str | None, list[Route]] = {}
        for route in sorted(routes, key=lambda route: route.template.specificity):
            verb = route.template.verb
            self._by_verb.setdefault(verb.text if verb else None, []).append(route)
        self._dispatch: dict[tuple[str, str | None], _Dispatch] = {}
        for name, candidates in self._by_verb.items():
            for method in {route.method for route in candidates}:
                chosen = [route for route in candidates if route.method == method]
                self._dispatch[method, name] = _Dispatch(chosen, head=False)
                if method == "GET":
                    self._dispatch["HEAD", name] = _Dispatch(chosen, head=True)
        self._fixed: dict[str, dict[str, Match | Allowed]] = {}
        """The results for the paths of templates without wildcards, by path and HTTP method."""
        for route in routes:
            path, segments = route.template.example, route.template.segments
            if len(path) <= MAX_PATH and all(isinstance(one, Literal) for one in segments):
                self._fixed.setdefault(path, {})[route.method] = self.find(route.method, path)

    def find(self, method: str, path: str) -> Match | Allowed:
        """Return the route of a method and a raw path without query; :class:`Allowed` for OPTIONS.

        Raises:
            RouteNotFound: No template matches the path.
            HttpMethodNotAllowed: Templates match, but none with this method.
            MalformedRequest: The path has a malformed escape or bytes that are not UTF-8, or is
                too long to be read.
        """
        fixed = self._fixed.get(path)
        if fixed is not None and method in fixed:
            return fixed[method]
        if "%" not in path and len(path) <= MAX_PATH:  # most paths have no escapes to decode
            stem, verb = self._cut(path) if ":" in path else (path, None)
            dispatch = self._dispatch.get((method, verb))
            match = dispatch.find(stem) if dispatch is not None else None
            if match is not None:
                return match
        return self._look(method, path)

    def _cut(self, path: str) -> tuple[str, str | None]:
        """Split a path without escapes at its last colon, if a verb follows."""
        stem, _, verb = path.rpartition(":")
        return (stem, verb) if verb in self._by_verb and "/" not in verb else (path, None)

    def _look(self, method: str, path: str) -> Match | Allowed:
        """Apply the rules of spec §5.7 literally: compare the path with one template at a time."""
        check_path(path)
        parsed = RawPath.parse(path)
        if parsed is None:
            raise RouteNotFound(path)
        head = method == "HEAD"
        wanted = "GET" if head else method
        methods: set[str] = set()
        for route in self._by_verb.get(parsed.verb if parsed.verb in self._by_verb else None, ()):
            bindings = route.template.bind(parsed)
            if bindings is not None and route.method == wanted:
                return Match(rpc=route.rpc, bindings=bindings, head=head)
            if bindings is not None:
                methods.add(route.method)
        if not methods:
            raise RouteNotFound(path)
        if method == "OPTIONS":
            return Allowed(_allow(methods))
        raise HttpMethodNotAllowed(method, path, _allow(methods))


def default_routes(parents: Sequence[str] = ()) -> tuple[Route, ...]:
    """Return the five default routes (spec §5.5), and five more under each parent (spec §5.6).

    A parent is a pattern such as ``projects/*/locations/*``: collections are literal, ids are
    ``*`` or literal.

    Raises:
        DeclarationError: A parent is not a valid pattern.
    """
    return _under_each(parents, _five)


def extension_routes(parents: Sequence[str] = ()) -> tuple[Route, ...]:
    """Return the routes of the extensions, at the root and under each parent (spec §3.11, §3.12).

    ``parents`` are patterns as for :func:`default_routes`.

    Raises:
        DeclarationError: A parent is not a valid pattern.
    """
    return _under_each(parents, _extensions)


def _under_each(
    parents: Sequence[str], make: Callable[[str, str], tuple[Route, ...]]
) -> tuple[Route, ...]:
    routes = make("/v1/{name=operations}", "/v1/{name=operations/**}")
    for parent in parents:
        _check_parent(parent)
        routes += make(f"/v1/{{name={parent}}}/operations", f"/v1/{{name={parent}/operations/*}}")
    return routes


def parameter_names(template: Template) -> Sequence[str]:
    """Return unique identifiers for the varying segments of a path, in order.

    A variable has its own name. Each other segment is named after the collection before it.
    """
    names: list[str] = []
    fields = {one.start: one.field for one in template.variables if one.single}
    before = ""
    for place, segment in enumerate(template.segments):
        if isinstance(segment, Literal):
            before = segment.text
            continue
        name = fields.get(place, before.removesuffix("s"))
        name = _NO_NAME.sub("_", name if name[:1].isalpha() else f"id{name}")
        while name in names:
            name += "_"
        names.append(name)
    return names


_NO_NAME: Final = re.compile(r"[^A-Za-z0-9_]+")


def _extensions(many: str, one: str) -> tuple[Route, ...]:
    return (
        Route(method="POST", template=f"{many}:batchGet", rpc="BatchGetOperations"),
        Route(method="POST", template=f"{many}:watch", rpc="WatchOperations"),
        Route(method="GET", template=f"{one}:watch", rpc="WatchOperations"),
        Route(method="POST", template=f"{one}:rerun", rpc="RerunOperation"),
    )


def _five(many: str, one: str) -> tuple[Route, ...]:
    return (
        Route(method="GET", template=many, rpc="ListOperations"),
        Route(method="GET", template=one, rpc="GetOperation"),
        Route(method="DELETE", template=one, rpc="DeleteOperation"),
        Route(method="POST", template=f"{one}:cancel", rpc="CancelOperation"),
        Route(method="POST", template=f"{one}:wait", rpc="WaitOperation"),
    )


def _check_parent(parent: str) -> None:
    if parent.startswith("/"):
        raise _no_parent(parent, "it must not begin with a slash")
    try:
        pattern = Template.parse(f"/{parent}")
    except DeclarationError as exc:
        raise _no_parent(parent, exc.description) from None
    if pattern.verb or pattern.variables or Wildcard.MANY in pattern.segments:
        raise _no_parent(parent, "it is made of literals and '*' only")
    if Wildcard.ONE in pattern.segments[::2]:
        raise _no_parent(parent, "'*' stands for an id, where a collection is wanted")
    # A path that matches the pattern must be a valid parent (spec §3.3(2)), because only below a
    # valid parent there can be operations.
    written = (s.written if isinstance(s, Literal) else "x" for s in pattern.segments)
    sample = "/".join(map(keep_slashes, written))
    try:
        normal = normalise_parent(sample)
    except InvalidParent as error:
        raise _no_parent(parent, error.description) from None
    if normal != sample:
        raise _no_parent(parent, f"leave out the collection, the parent is {normal!r}")


def _no_parent(parent: str, why: str) -> DeclarationError:
    wanted = f"must be patterns such as projects/*/locations/*, got {got(parent)}"
    return DeclarationError("parents", f"{wanted} ({why})")


def _allow(methods: Iterable[str]) -> tuple[str, ...]:
    asked = {*methods, "OPTIONS"}
    return tuple(sorted(asked | {"HEAD"} if "GET" in asked else asked))


def _pattern(template: Template) -> str:
    """Return a regular expression for the paths of a template, with a group for each variable."""
    text = ""
    for part in template.parts:
        segments = part.segments if isinstance(part, Variable) else (part,)
        body = "/".join(_piece(segment) for segment in segments if segment is not Wildcard.MANY)
        many = segments[-1] is Wildcard.MANY
        optional = many and not body and text != ""  # '**' may be empty, but a path may not be
        body += (_MORE if body else _ONE + _MORE) if many else ""
        body = f"({body})" if isinstance(part, Variable) else body
        text += f"(?:/{body})?+" if optional else f"/{body}"
    return text


def _piece(segment: Segment) -> str:
    if isinstance(segment, Wildcard):
        return _ONE
    # A path without escapes never matches a literal with an escaped slash.
    return re.escape(segment.text) if "/" not in segment.text else r"(?!)"
