"""The HTTP edge as WSGI applications, to serve together with Flask or Django, or alone.

Like every WSGI call, a Wait occupies a thread of the server, and the server does not notice that a
caller disconnects until the wait has ended. So at most ``max_waiting`` calls (3 by default) wait in
a process; a further caller gets the operation as it is, at once. A Wait ends after 20 seconds, and
in a process with a single thread after 1 second, if the option ``max_wait`` does not say otherwise.
The caller then gets the operation as it is, and may wait again. For thousands of callers, serve
:mod:`lro.asgi`. Watch is UNIMPLEMENTED here: a stream would occupy its thread while the operations
run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final, TypeAlias, Unpack
from urllib.parse import unquote

import attrs

from lro._base.arguments import check_plain_function, check_takes
from lro._base.errors import LroError, MalformedRequest, RouteNotFound
from lro._engine.service import Service
from lro._http.edge import EdgeKeywords, OperationsEdge, RouteResult
from lro._http.requests import mount_path, raw_form, strip_mount, wire_text
from lro._http.responses import HttpReply
from lro._http.routes import HttpRequest

__all__ = ["App", "EdgeApp", "Environ", "OperationsApp", "StartResponse"]

Environ: TypeAlias = dict[str, Any]
StartResponse: TypeAlias = Callable[..., Any]
App: TypeAlias = Callable[[Environ, StartResponse], Iterable[bytes]]

_DIGITS: Final = 18
"""Number of digits that are read of a length: a longer number exceeds every limit anyway."""


class EdgeApp:
    """An edge, such as a console or metrics, as a WSGI application, to mount or to serve alone.

    ``fallback`` is the application that gets all paths that the edge does not serve. With a Flask
    application: ``app.wsgi_app = EdgeApp(edge, app.wsgi_app)``. WSGI has no streams, so a page of
    the console asks for changes every 2 s instead.

    Raises:
        DeclarationError: ``fallback`` is not a WSGI application, or a hook is a coroutine function.
    """

    edge: OperationsEdge

    def __init__(self, edge: OperationsEdge, fallback: App | None = None) -> None:
        if fallback is not None:
            wanted = "a WSGI application, which takes environ and start_response"
            check_takes("fallback", fallback, 2, wanted)
            check_plain_function("fallback", fallback)
        edge.occupy_threads("a WSGI application")
        self.edge = edge
        self._fallback = fallback
        # Called here, because only the main thread can set signal handlers, and perhaps no request
        # runs in the main thread.
        edge.service.edges.end_waits_at_signals()

    def _find(self, environ: Environ) -> tuple[HttpRequest, RouteResult]:
        request = request_of(environ)
        if request.path == "/":
            whole = _text(environ.get("SCRIPT_NAME", "") + environ.get("PATH_INFO", ""))
            request = attrs.evolve(request, path=self.edge.path_at("/", whole))
        shared = self._fallback is not None
        return request, self.edge.route(request.method, request.path, shared=shared)

    def __call__(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        """The WSGI interface."""
        self.edge.service.edges.start_maintenance()
        request, found = self._find(environ)
        if self._fallback is not None and isinstance(found, RouteNotFound | MalformedRequest):
            return self._fallback(environ, start_response)
        reply = self._reply(request, found, environ)
        headers = [(name.title(), value) for name, value in reply.headers]
        if reply.body:
            headers.append(("Content-Length", str(len(reply.body))))
        start_response(reply.status_line, headers)
        if reply.reserved is not None:
            reply.reserved.release()  # the server has the bytes from now on
        return [reply.body] if reply.body else []

    def _reply(self, request: HttpRequest, found: RouteResult, environ: Environ) -> HttpReply:
        try:
            body = read_body(environ, self.edge.options.max_body)
        except LroError as exc:
            return self.edge.refusal(request, exc)
        return self.edge.handle(attrs.evolve(request, body=body), found)


class OperationsApp(EdgeApp):
    """Serve the verbs, and the methods that callers can start, as a WSGI application.

    ``fallback`` is the application that gets all other paths. With a Flask application:
    ``app.wsgi_app = OperationsApp(service, fallback=app.wsgi_app)``. The other options are those of
    :class:`lro.http.OperationsEdge`.

    WSGI passes a decoded path. If the server also passes the raw path (RAW_URI or REQUEST_URI, as
    gunicorn, uWSGI, waitress and werkzeug do), the raw path is used, and an encoded slash in the
    name of an operation is kept. Otherwise such a slash is read as a separator. WSGI does not
    report that the server stops, so the service closes itself when the interpreter ends.

    Raises:
        DeclarationError: A hook is a coroutine function, which a WSGI application cannot await; or
            ``fallback`` is not a WSGI application; or as for ``OperationsEdge``.
    """

    def __init__(
        self, service: Service, *, fallback: App | None = None, **options: Unpack[EdgeKeywords]
    ) -> None:
        super().__init__(OperationsEdge(service, **options), fallback)


def request_of(environ: Environ) -> HttpRequest:
    """Return the request of an environ, without body, with the raw path below the mount point."""
    headers = {
        name[5:].replace("_", "-").lower(): value
        for name, value in environ.items()
        if name.startswith("HTTP_")
    }
    for name in ("CONTENT_TYPE", "CONTENT_LENGTH"):
        if environ.get(name):
            headers[name.replace("_", "-").lower()] = environ[name]
    return HttpRequest(
        method=environ["REQUEST_METHOD"],
        path=_path(environ),
        query=_text(environ.get("QUERY_STRING", "")),
        headers=headers,
        scheme=environ.get("wsgi.url_scheme", "http"),
        native=environ,
        peer=environ.get("REMOTE_ADDR") or "",
        mount=_mount,
        one_thread=not environ.get("wsgi.multithread", True),
    )


def _mount(request: HttpRequest) -> str | None:
    """Return the part of the path before ``request.path``, as the caller knows it."""
    below = _path(request.native)
    if not below.endswith(request.path):
        return None
    script = _text(request.native.get("SCRIPT_NAME", ""))
    return mount_path(script + unquote(below.removesuffix(request.path), errors="surrogateescape"))


def _path(environ: Environ) -> str:
    """Return the raw path below the mount point of the application."""
    decoded = _text(environ.get("PATH_INFO", "")) or "/"
    whole = _text(environ.get("RAW_URI") or environ.get("REQUEST_URI") or "").partition("?")[0]
    below = strip_mount(whole, _text(environ.get("SCRIPT_NAME", "")))
    return raw_form(whole if below is None else below, decoded)


def _text(value: str) -> str:
    """Decode as UTF-8 the bytes that WSGI passes as a text in Latin-1."""
    try:
        return wire_text(value.encode("latin-1"))
    except UnicodeEncodeError:  # the server passed decoded text
        return value


def read_body(environ: Environ, limit: int) -> bytes:
    """Read the body until it ends or exceeds the limit.

    Raises:
        MalformedRequest: The body ends too early, cannot be read, or has an unknown length.
    """
    length, most = declared_length(environ) or 0, limit + 1
    try:
        end = most if environ.get("wsgi.input_terminated") else min(length, most)
        body = bytes(environ["wsgi.input"].read(end))
    except OSError as exc:
        raise MalformedRequest("body", "could not be read to its end") from exc
    check_whole(body, min(length, most))
    return body


def declared_length(environ: Environ) -> int | None:
    """Return the number of bytes that a body must have; None without ``Content-Length``.

    Raises:
        MalformedRequest: The header is not a number; or there is a body, and the server neither
            decodes the body nor says where it ends.
    """
    text = environ.get("CONTENT_LENGTH") or ""
    if text:
        if not text.isascii() or not text.isdigit():
            raise MalformedRequest("Content-Length", f"must be a number, got {text[:40]!r}")
        return int(text.lstrip("0")[:_DIGITS] or "0")
    if environ.get("HTTP_TRANSFER_ENCODING") and not environ.get("wsgi.input_terminated"):
        why = "is needed: this server does not decode what Transfer-Encoding says"
        raise MalformedRequest("Content-Length", why)
    return None


def check_whole(body: bytes, length: int) -> None:
    """Refuse a body that was cut off: its beginning may be a valid, but different, request.

    Raises:
        MalformedRequest: The body has fewer bytes than ``length``.
    """
    if len(body) < length:
        raise MalformedRequest("body", f"has {len(body)} of the {length} bytes of Content-Length")
