"""The HTTP edge as WSGI applications, to mount in Flask, Django, or to serve alone.

A Wait holds a thread of the WSGI server, as every WSGI call does; how many callers may wait is the
server's number of threads. Where thousands wait, serve :mod:`lro.asgi`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any as Anything
from typing import TypeAlias
from urllib.parse import quote

from lro._errors import InvalidArgument, MalformedRequest
from lro._service import Service
from lro.http import Edge, HttpRequest, OperationsEdge, StartEdge

Environ: TypeAlias = dict[str, Anything]
StartResponse: TypeAlias = Callable[..., Anything]

_SAFE = "/:@!$&'()*+,;=-._~"


class EdgeApp:
    """Serves an :class:`lro.http.Edge`.

    WSGI hands over the path already decoded. Where the server also gives it raw (RAW_URI or
    REQUEST_URI, as gunicorn, uWSGI and werkzeug do), that is taken, and an encoded slash in an
    operation's name survives; elsewhere it is read as a separator.
    """

    def __init__(self, edge: Edge) -> None:
        self.edge = edge

    def __call__(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        """The WSGI interface."""
        try:
            request = _request(environ, self.edge.max_body)
        except InvalidArgument as exc:
            reply = self.edge.error(exc)
        else:
            reply = self.edge.handle(request)
        headers = [(name.title(), value) for name, value in reply.headers]
        if reply.body:
            headers.append(("Content-Length", str(len(reply.body))))
        start_response(reply.status_line, headers)
        return [reply.body] if reply.body else []


class OperationsApp(EdgeApp):
    """The five verbs as a WSGI application; the arguments are those of ``OperationsEdge``."""

    def __init__(self, service: Service, **options: Anything) -> None:
        super().__init__(OperationsEdge(service, **options))


class StartApp(EdgeApp):
    """A starting method as a WSGI application; the arguments are those of ``StartEdge``."""

    def __init__(self, service: Service, method: Anything, **options: Anything) -> None:
        super().__init__(StartEdge(service, method, **options))


def _request(environ: Environ, max_body: int) -> HttpRequest:
    headers = {
        name[5:].replace("_", "-").lower(): value
        for name, value in environ.items()
        if name.startswith("HTTP_")
    }
    if environ.get("CONTENT_TYPE"):
        headers["content-type"] = environ["CONTENT_TYPE"]
    return HttpRequest(
        method=environ["REQUEST_METHOD"],
        path=_raw_path(environ),
        query=environ.get("QUERY_STRING", ""),
        headers=headers,
        body=_body(environ, max_body),
    )


def _raw_path(environ: Environ) -> str:
    decoded = (environ.get("PATH_INFO", "") or "/").encode("latin-1", "replace")
    raw = environ.get("RAW_URI") or environ.get("REQUEST_URI")
    if not raw or not raw.startswith("/"):
        return quote(decoded, safe=_SAFE)
    path = raw.partition("?")[0]
    prefix = quote(environ.get("SCRIPT_NAME", "").encode("latin-1", "replace"), safe=_SAFE)
    return path[len(prefix) :] or "/" if path.startswith(prefix) else path


def _body(environ: Environ, max_body: int) -> bytes:
    stream = environ["wsgi.input"]
    if environ.get("wsgi.input_terminated"):
        return bytes(stream.read(max_body + 1))
    text = environ.get("CONTENT_LENGTH") or "0"
    if not text.isascii() or not text.isdigit():
        raise MalformedRequest("Content-Length", f"must be a number, got {text[:40]!r}")
    return bytes(stream.read(min(int(text), max_body + 1)))
