"""The HTTP edge of the console: its page, session and tally, and the verbs over operations.

The page is a client of the public HTTP interface, which is served a second time below the console's
path. So this edge, not the page's buttons, decides which operations the callers of the console see,
and which actions they may take.
"""

from __future__ import annotations

import functools
import importlib.metadata
import logging
import re
import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from datetime import datetime
from string import punctuation
from typing import Final, TypeAlias, TypedDict, TypeVar, Unpack
from urllib.parse import quote

import attrs

from lro import Service
from lro._console.files import page_files, secure_headers
from lro._console.loopback import check_loopback
from lro._console.session import methods_json
from lro._console.tally import Tally, window_minutes
from lro.errors import (
    DeclarationError,
    HookFailed,
    HttpMethodNotAllowed,
    MalformedRequest,
    PermissionDenied,
    RouteNotFound,
    Unavailable,
    check,
    check_count,
    check_function,
    check_keywords,
    check_plain_function,
    check_text,
    check_texts,
)
from lro.http import (
    CHANGING,
    VERBS,
    Allowed,
    Authenticate,
    EventStream,
    Exchange,
    Flow,
    Hook,
    HttpReply,
    HttpRequest,
    InThreads,
    Match,
    OperationsEdge,
    Redact,
    RouteResult,
    ask_permission,
    check_site,
    checked_prefix,
    flow_of,
    in_few_threads,
    json_reply,
    read_object,
    strip_mount,
    take_field,
)
from lro.logging import about
from lro.types import Json

log = logging.getLogger("lro")

Allow: TypeAlias = Callable[[str, str, str], "bool | Awaitable[bool | None] | None"]
"""The hook ``(caller, action, name)``: may the caller do this to the operation or method?"""

ACTIONS: Final = ("cancel", "delete", "rerun", "pause")
"""The actions of the console: three on operations, and ``"pause"`` (with resume) on methods."""

_LINKS: Final = ("trace", "logs")
_PLACEHOLDERS: Final = ("trace_id", "name")
_PLACEHOLDER: Final = re.compile(r"\{([^{}]*)\}")
_LINK: Final = re.compile(r"https?://[!-~]+")
_VERBS: Final = {
    "cancel": "CancelOperation",
    "delete": "DeleteOperation",
    "rerun": "RerunOperation",
    "pause": "PauseMethod",
}
_CHANGES: Final = ("/pause", "/resume")
_READS: Final = ("GET", "HEAD", "OPTIONS")

_API: Final = "v1"
"""The version in the paths of operations below the console; clients use it by default."""

_ALL_PARENTS: Final = "-"
"""The parent that ``authorize`` gets for the counts, which cover all parents."""

R = TypeVar("R", bound=HttpReply | EventStream)


class ConsoleOptions(TypedDict, total=False):
    """The options of :class:`ConsoleEdge` for the content and actions of the console."""

    actions: Collection[str]
    allow: Allow | None
    redact: Redact | None
    links: Mapping[str, str] | None
    title: str
    refresh_seconds: int
    frame: Collection[str]


class ConsoleEdgeOptions(ConsoleOptions, total=False):
    """All options of :class:`ConsoleEdge`, except ``path``."""

    authenticate: Authenticate | None
    parents: Sequence[str]
    trusted_origins: Collection[str]
    clock: Callable[[], float]


@attrs.frozen(kw_only=True, eq=False)
class _CheckedOptions:
    """The checked options of a console: see :class:`ConsoleEdge`.

    Raises:
        DeclarationError: An option has the wrong type, or is out of bounds.
    """

    actions: Collection[str] = ACTIONS
    allow: Allow | None = None
    redact: Redact | None = None
    links: Mapping[str, str] | None = None
    title: str = "Operations"
    refresh_seconds: int = 5
    frame: Collection[str] = ()

    def __attrs_post_init__(self) -> None:
        check_texts("actions", self.actions)
        wanted = f"some of {', '.join(ACTIONS)}, or () for none"
        check("actions", self.actions, wanted, fine=set(self.actions) <= set(ACTIONS))
        check_text("title", self.title, empty=False)
        check_count("refresh_seconds", self.refresh_seconds, most=3600)
        if self.redact is not None:
            check_plain_function("redact", self.redact)
        if self.allow is not None:
            check_function("allow", self.allow)
        _check_links(self.links or {})
        secure_headers(self.frame)


class Console:
    """A console that an integration into a framework serves at a path, such as ``/console``.

    ``options`` are those of :class:`ConsoleOptions`, which :class:`ConsoleEdge` explains. The
    integration's ``caller`` also finds the callers of the console.

    Raises:
        DeclarationError: ``path`` is not a path, or an option is unknown, has the wrong type, or is
            out of bounds.
    """

    def __init__(self, path: str = "/console", **options: Unpack[ConsoleOptions]) -> None:
        self.path: str = checked_prefix(path)
        check("path", path, "a path such as '/console'", fine=bool(self.path))
        known = ConsoleOptions.__optional_keys__
        if unknown := sorted(options.keys() - known):
            text = f"Console has no such option; it has {', '.join(sorted(known))}"
            raise DeclarationError(unknown[0], text)
        try:
            _CheckedOptions(**options)
        except DeclarationError as exc:
            raise DeclarationError(f"Console, {exc.subject}", exc.description) from None
        self.options = options


class ConsoleEdge(OperationsEdge):
    """The console of a service: a page that shows its operations, and the calls of that page.

    The page, its scripts and styles contain no data, and every caller may read them. All other
    calls are checked by ``authenticate``, as in :class:`lro.http.OperationsEdge`, and by the
    service's ``authorize``. Without ``authenticate`` the console answers only callers on the same
    machine: the connection must come from a loopback address, the header Host must be ``localhost``
    or a loopback address, and no header may show that a proxy has forwarded the call. To admit
    everyone who can reach the server, pass ``authenticate=lambda headers: None``.

    ``actions`` are the actions that the console offers: ``"cancel"``, ``"delete"``, ``"rerun"`` (if
    the service offers RerunOperation) and ``"pause"`` (if it offers PauseMethod); ``()`` makes the
    console read-only. ``allow(caller, action, name)`` may refuse an action: True or None allows it,
    False refuses it. ``name`` is the name of the operation or method, or empty when the page asks
    which buttons to show. ``redact`` gets a copy of an operation's JSON object, and returns the
    object that callers see, which may be the changed copy. ``redact`` must be fast, because it also
    runs on an event loop. Filters still compare the stored values. The server enforces ``actions``,
    ``allow`` and ``redact`` for every call of the page.

    ``parents`` are the parents, such as ``projects/p`` (spec §5.6), whose operations are shown in
    addition to operations without a parent; for a pattern such as ``projects/*`` the page asks for
    the parent. ``links`` has link templates for an operation: ``{"trace": "https://.../{trace_id}",
    "logs": "https://...{name}"}``; each template may use only these two placeholders. ``title`` is
    the page's heading; ``refresh_seconds`` is the interval between reads of new operations.
    ``frame`` has the origins whose pages may show the console in a frame; ``"self"`` stands for
    this server. ``path`` is the path of the console, such as ``/console``, which owns all paths
    below it; by default it is the path of the mount. ``clock`` returns the time in seconds, by
    which a tally is cached for 5 s.

    Raises:
        DeclarationError: An option has the wrong type, or is out of bounds; or as for
            :class:`lro.http.OperationsEdge`.
    """

    def __init__(
        self,
        service: Service,
        *,
        path: str = "",
        authenticate: Authenticate | None = None,
        parents: Sequence[str] = (),
        trusted_origins: Collection[str] = (),
        clock: Callable[[], float] = time.monotonic,
        **options: Unpack[ConsoleOptions],
    ) -> None:
        super().__init__(
            service, parents=parents, authenticate=authenticate, trusted_origins=trusted_origins
        )
        check_keywords(type(self).__name__, options, ConsoleOptions)
        shown = _CheckedOptions(**options)
        self.mount: str = checked_prefix(path)
        self.pages: Sequence[str] = [self.mount, *(self.mount + one for one in page_files())]
        self._actions = tuple(one for one in ACTIONS if one in shown.actions)
        self._allow = None if shown.allow is None else Hook("allow", shown.allow)
        self._redact = shown.redact
        self._headers = secure_headers(shown.frame)
        self._title = shown.title
        self._refresh_seconds = shown.refresh_seconds
        self._links = dict(shown.links or {})
        self._shown_parents = ("", *(one for one in parents if "*" not in one))
        self._tally_reader = Tally(service, self._shown_parents, clock)
        self._own: Mapping[str, Callable[[HttpRequest], Flow[HttpReply]]] = {
            **dict.fromkeys(page_files(), self._file),
            "/session": self._session,
            "/tally": self._tally,
            **dict.fromkeys(_CHANGES, self._pause),
        }

    def check_plain(self, where: str) -> None:
        """See :meth:`lro.http.OperationsEdge.check_plain`; this checks ``allow`` too."""
        super().check_plain(where)
        if self._allow is not None:
            self._allow.check_plain(where)

    def route(self, method: str, path: str, *, shared: bool = False) -> RouteResult:
        """See :meth:`lro.http.OperationsEdge.route`, and :meth:`path_at`."""
        below = self._below(path)
        if below is None:
            return RouteNotFound(path)
        if below.startswith("/") and below not in self._own:
            return super().route(method, below, shared=shared)
        allowed = ("OPTIONS", "POST") if below in _CHANGES else _READS
        if method not in allowed:
            return HttpMethodNotAllowed(method, path, allowed)
        return (
            Allowed(allowed) if method == "OPTIONS" else Match(rpc=below, bindings={}, head=False)
        )

    def exchange(self, request: HttpRequest, found: RouteResult | None = None) -> Exchange:
        """See :meth:`lro.http.OperationsEdge.exchange`; this adds the console's headers."""
        try:
            if self.options.authenticate is None:
                check_loopback(request)
            found = found or self.route(request.method, request.path)
            request = attrs.evolve(request, path=self._below(request.path) or request.path)
            own = self._own.get(request.path, _moved) if _is_own(request, found) else None
            if own is None:
                reply = yield from super().exchange(request, found)
            else:
                if request.method in CHANGING:
                    check_site(request.headers, request.scheme, self._trusted_origins)
                answer = yield from own(request)
                reply = answer.headless if request.method == "HEAD" else answer
        except Exception as exc:
            return self.refusal(request, exc)
        return self._secured(reply)

    def path_at(self, path: str, whole: str) -> str:
        """See :meth:`lro.http.OperationsEdge.path_at`.

        For a path of the console without a slash at its end, this returns only the console's name:
        as the page has relative addresses, the caller is redirected to the path with the slash.
        """
        if path != "/" or self.mount or whole.endswith("/"):
            return path
        return quote(whole.rpartition("/")[2], safe="", errors="surrogateescape") or path

    def _below(self, path: str) -> str | None:
        """Return the path below the console, or its name if the path has no slash at the end."""
        if self.mount and path == self.mount:
            return path.rpartition("/")[2]
        return strip_mount(path, self.mount)

    def refusal(self, request: HttpRequest, error: Exception) -> HttpReply:
        """See :meth:`lro.http.OperationsEdge.refusal`."""
        return self._secured(super().refusal(request, error))

    def _secured(self, reply: R) -> R:
        headers = dict(reply.headers) | dict(self._headers)
        return attrs.evolve(reply, headers=tuple(headers.items()))

    def _file(self, request: HttpRequest) -> Flow[HttpReply]:
        yield from ()
        return page_files()[request.path].reply(request.headers)

    def _session(self, request: HttpRequest) -> Flow[HttpReply]:
        caller = yield from self._caller(request)
        return json_reply(200, (yield from self._known_to(caller)))

    def _known_to(self, caller: str) -> Flow[dict[str, Json]]:
        access = self.service.edges.access
        actions: list[Json] = []
        for action in self._actions:
            if access.offers(_VERBS[action]) and (yield from self._may(caller, action)):
                actions.append(action)
        parents: list[Json] = list((yield from self._listed_parents(caller)))
        watches = self.streams and access.offers("WatchOperations")
        left_out = {verb for action, verb in _VERBS.items() if action not in actions}
        if not watches:
            left_out.add("WatchOperations")
        offered = [verb for verb in VERBS if access.offers(verb) and verb not in left_out]
        return {
            "version": importlib.metadata.version("lro"),
            "title": self._title,
            "caller": caller,
            "api": _API,
            "parents": parents,
            "actions": actions,
            "verbs": list(offered),
            "watches": watches,
            "statistics": (yield from self._offers_tally(caller)),
            "cancelSupport": self.service.edges.runtime.executor.cancel_support.name,
            "refreshSeconds": self._refresh_seconds,
            "links": dict(self._links),
            "methods": methods_json(self.service, (yield from self._paused())),
        }

    def _paused(self) -> Flow[Mapping[str, datetime]]:
        try:
            return (yield from flow_of(self.service.paused)())
        except Unavailable:  # the page shows this error later, when it reads operations
            return {}

    def _may(self, caller: str, action: str) -> Flow[bool]:
        try:
            yield from self._permit(caller, action, "")
        except PermissionDenied:
            return False
        return True

    def _permit(self, caller: str, action: str, name: str) -> Flow[None]:
        if action not in self._actions:
            what = "methods" if action == "pause" else "operations"
            raise PermissionDenied(f"this console does not {action} {what}")
        if self._allow is not None:
            yield from ask_permission(self._allow, caller, action, name)

    def _listed_parents(self, caller: str) -> Flow[list[str]]:
        """Return the parents whose operations this caller may list.

        Raises:
            PermissionDenied: The caller may not list the operations of any of these parents.
        """
        found, refusal = [], None
        for parent in self._shown_parents:
            try:
                yield from self.service.edges.access.permit(caller, "ListOperations", parent)
            except PermissionDenied as exc:
                refusal = exc
            else:
                found.append(parent)
        if refusal is not None and not found:
            raise refusal
        return found

    def _offers_tally(self, caller: str) -> Flow[bool]:
        if self.service.statistics is None or not self.service.edges.access.offers(
            "ListOperations"
        ):
            return False
        try:
            yield from self._permit_tally(caller)
        except (PermissionDenied, HookFailed):
            return False
        return True

    def _tally(self, request: HttpRequest) -> Flow[HttpReply]:
        caller = yield from self._caller(request)
        minutes = window_minutes(request.query)
        yield InThreads(self._permit_tally(caller))
        # Read in one of the few threads that make large replies, so that pages do not use all
        # threads.
        read = functools.partial(self._tally_reader.read, minutes)
        return json_reply(200, (yield from in_few_threads(self.service, read)))

    def _permit_tally(self, caller: str) -> Flow[None]:
        self.service.edges.start_maintenance()
        self.service.edges.access.require("ListOperations")
        # The counts include the operations of all callers.
        if (yield from self.service.edges.access.viewer(caller)) is not None:
            raise PermissionDenied("the service shows each caller only its own operations")
        for parent in (*self._shown_parents, _ALL_PARENTS):  # the counts include all parents
            yield from self.service.edges.access.permit(caller, "ListOperations", parent)

    def _pause(self, request: HttpRequest) -> Flow[HttpReply]:
        """Pause a method, or resume it."""
        caller = yield from self._caller(request)
        method: str = yield self._read(request, _method_in)
        pauses = request.path == "/pause"
        yield from self._permit(caller, "pause", method)
        yield from self.service.edges.access.permit_verb(caller, "PauseMethod", method)
        yield from flow_of(self.service.pause if pauses else self.service.resume)(method)
        said = "paused" if pauses else "resumed"
        log.info("%s: %s %s it in the console", method, _named(caller), said)
        return json_reply(200, {})

    def _cancel(self, request: HttpRequest, name: str, caller: str) -> Exchange:
        yield from self._permit(caller, "cancel", name)
        reply = yield from super()._cancel(request, name, caller)
        line = "%s: %s asked in the console to cancel it"
        log.info(line, name, _named(caller), extra=about(name))
        return reply

    def _delete(self, request: HttpRequest, name: str, caller: str) -> Exchange:
        yield from self._permit(caller, "delete", name)
        reply = yield from super()._delete(request, name, caller)
        log.info("%s: %s deleted it in the console", name, _named(caller), extra=about(name))
        return reply

    def _rerun(self, request: HttpRequest, name: str, caller: str) -> Exchange:
        yield from self._permit(caller, "rerun", name)
        reply = yield from super()._rerun(request, name, caller)
        log.info("%s: %s started it again in the console", name, _named(caller), extra=about(name))
        return reply


def _method_in(content_type: str | None, body: bytes) -> str:
    fields = read_object(content_type, body)
    method = take_field(fields, "method", str, "", None)
    if fields:
        raise MalformedRequest(min(fields), "is not a field of this call, which has method")
    return method


def _named(caller: str) -> str:
    return repr(caller[:200]) if caller else "a caller without a name"


def _check_links(links: object) -> None:
    wanted = f"a dict with {' or '.join(_LINKS)}, each an address such as 'https://.../{{name}}'"
    fine = isinstance(links, Mapping) and all(
        name in _LINKS and isinstance(text, str) and _LINK.fullmatch(text)
        for name, text in links.items()
    )
    check("links", links, wanted, fine=fine)
    assert isinstance(links, Mapping)
    for text in links.values():
        unknown = set(_PLACEHOLDER.findall(text)) - {*_PLACEHOLDERS}
        known = " and ".join(f"{{{one}}}" for one in _PLACEHOLDERS)
        check("links", text, f"an address with no placeholders but {known}", fine=not unknown)


def _is_own(request: HttpRequest, found: RouteResult) -> bool:
    return isinstance(found, Match) and found.rpc == request.path


def _moved(request: HttpRequest) -> Flow[HttpReply]:
    """Redirect to the console's path with a slash, to which the page's addresses are relative."""
    yield from ()
    # The target is relative, since a proxy may have cut off the beginning of the path.
    location = f"./{request.path}/" + (f"?{request.query}" if request.query else "")
    location = quote(location, safe=punctuation, errors="surrogateescape")
    return HttpReply(307, (("location", location), ("cache-control", "no-cache")))
