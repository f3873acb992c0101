"""The HTTP edge as WSGI applications, to serve beside Flask or Django, or alone.

A Wait holds a thread of the WSGI server, as every WSGI call does; how many callers may wait is the
server's number of threads, and a caller who goes away is not noticed before the wait is over. Where
thousands wait, serve :mod:`lro.asgi`. Watch is UNIMPLEMENTED here: a stream would hold its thread
for as long as the operations run.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, TypeAlias, TypeVar

import attrs

from lro._base.arguments import check_instance, check_plain_function, check_takes
from lro._base.errors import LroError, MalformedRequest
from lro._engine.methods import Method
from lro._engine.service import Service
from lro._http.raw_path import raw_form, strip_mount, wire_text
from lro.http import (
    DEFAULT_MAX_BODY,
    Authenticate,
    Edge,
    HttpReply,
    HttpRequest,
    OperationsEdge,
    StartEdge,
)

Environ: TypeAlias = dict[str, Any]
StartResponse: TypeAlias = Callable[..., Any]
App: TypeAlias = Callable[[Environ, StartResponse], Iterable[bytes]]

Req = TypeVar("Req")


class EdgeApp:
    """Serves an :class:`lro.http.Edge`.

    WSGI hands over the path already decoded. Where the server also gives it raw (RAW_URI or
    REQUEST_URI, as gunicorn, uWSGI, waitress and werkzeug do), that is taken, and an encoded slash
    in an operation's name survives; elsewhere it is read as a separator. ``otherwise`` is the
    application that gets what the edge does not know. WSGI tells of no end: the service closes
    itself when the interpreter ends.

    Raises:
        DeclarationError: A hook is a coroutine function, which nothing here could await; or
            ``otherwise`` is no WSGI application.
    """

    def __init__(self, edge: Edge, otherwise: App | None = None) -> None:
        check_instance("edge", edge, Edge, "an Edge of lro.http")
        if otherwise is not None:
            wanted = "a WSGI application, which takes environ and start_response"
            check_takes("otherwise", otherwise, 2, wanted)
            check_plain_function("otherwise", otherwise)
        edge.check_plain("a WSGI application")
        self.edge = edge
        self._otherwise = otherwise
        edge.service.end_waits_at_signals()  # its calls may all come in other threads

    def __call__(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        """The WSGI interface."""
        self.edge.service.start_maintenance()
        request = _request(environ)
        if self._otherwise is not None and not self.edge.knows(request.method, request.path):
            return self._otherwise(environ, start_response)
        reply = self._reply(request, environ)
        headers = [(name.title(), value) for name, value in reply.headers]
        if reply.body:
            headers.append(("Content-Length", str(len(reply.body))))
        start_response(reply.status_line, headers)
        if reply.turn is not None:
            reply.turn.release()  # the bytes are the server's now
        return [reply.body] if reply.body else []

    def _reply(self, request: HttpRequest, environ: Environ) -> HttpReply:
        try:
            body = _body(environ, self.edge.max_body)
        except LroError as exc:
            return self.edge.refusal(request, exc)
        return self.edge.handle(attrs.evolve(request, body=body))


class OperationsApp(EdgeApp):
    """The five verbs as a WSGI application; the options are those of ``OperationsEdge``.

    Beside a Flask application: ``app.wsgi_app = OperationsApp(service, otherwise=app.wsgi_app)``.
    """

    def __init__(
        self,
        service: Service,
        *,
        otherwise: App | None = None,
        parents: Sequence[str] = (),
        authenticate: Authenticate | None = None,
        trusted_origins: Collection[str] = (),
        max_body: int = DEFAULT_MAX_BODY,
        poll_seconds: int = 1,
    ) -> None:
        edge = OperationsEdge(
            service,
            parents=parents,
            authenticate=authenticate,
            trusted_origins=trusted_origins,
            max_body=max_body,
            poll_seconds=poll_seconds,
        )
        super().__init__(edge, otherwise)


class StartApp(EdgeApp):
    """A starting method as a WSGI application; the options are those of ``StartEdge``.

    It answers the method's own path, or ``path``. A view of Flask may return it, with
    ``path=None``: Flask calls it with the request that the view was called for.
    """

    def __init__(
        self,
        service: Service,
        method: Method[Req, Any, Any],
        *,
        otherwise: App | None = None,
        path: str | None = "",
        parent: Callable[[HttpRequest], str] | None = None,
        metadata: Callable[[Req], object] | None = None,
        raw: Callable[[str, bytes], Req | None] | None = None,
        authenticate: Authenticate | None = None,
        trusted_origins: Collection[str] = (),
        max_body: int = DEFAULT_MAX_BODY,
        poll_seconds: int = 1,
    ) -> None:
        edge = StartEdge(
            service,
            method,
            path=path,
            parent=parent,
            metadata=metadata,
            raw=raw,
            authenticate=authenticate,
            trusted_origins=trusted_origins,
            max_body=max_body,
            poll_seconds=poll_seconds,
        )
        super().__init__(edge, otherwise)


def _request(environ: Environ) -> HttpRequest:
    headers = {
        name[5:].replace("_", "-").lower(): value
        for name, value in environ.items()
        if name.startswith("HTTP_")
    }
    if environ.get("CONTENT_TYPE"):
        headers["content-type"] = environ["CONTENT_TYPE"]
    return HttpRequest(
        method=environ["REQUEST_METHOD"],
        path=_path(environ),
        query=_text(environ.get("QUERY_STRING", "")),
        headers=headers,
        scheme=environ.get("wsgi.url_scheme", "http"),
    )


def _path(environ: Environ) -> str:
    """The raw path below the point where the application is mounted."""
    decoded = _text(environ.get("PATH_INFO", "")) or "/"
    whole = _text(environ.get("RAW_URI") or environ.get("REQUEST_URI") or "").partition("?")[0]
    below = strip_mount(whole, _text(environ.get("SCRIPT_NAME", "")))
    return raw_form(whole if below is None else below, decoded)


def _text(value: str) -> str:
    """Bytes in the guise of Latin-1, as WSGI has it, as the text that they are."""
    try:
        return wire_text(value.encode("latin-1"))
    except UnicodeEncodeError:  # from a server that hands over text as it is
        return value


def _body(environ: Environ, max_body: int) -> bytes:
    """The body, or as much of it as tells that it is over the limit."""
    length = max_body + 1
    if not environ.get("wsgi.input_terminated"):
        text = environ.get("CONTENT_LENGTH") or "0"
        if not text.isascii() or not text.isdigit():
            raise MalformedRequest("Content-Length", f"must be a number, got {text[:40]!r}")
        # More digits than a bound has are over it; int() refuses very many.
        digits = text.lstrip("0")
        length = min(int(digits or "0"), length) if len(digits) <= 18 else length
    try:
        return bytes(environ["wsgi.input"].read(length))
    except OSError as exc:
        raise MalformedRequest("body", "could not be read to its end") from exc
