"""The command ``lro console``, which shows the operations of a server in the browser.

A local server serves the page, and forwards the page's calls to the remote server with the
credentials of the command. So the console works with any server of the interface. The local server
has its own handler, because this library's WSGI edge has no streams, and because ``wsgiref``
decodes paths, which changes names.
"""

from __future__ import annotations

import contextlib
import hmac
import importlib.metadata
import re
import secrets
import sys
import tempfile
import webbrowser
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote

import attrs
import click
import httpx

from lro import Code, TypeRegistry
from lro.console import is_loopback_host, page_files, secure_headers
from lro.errors import LroError, PermissionDenied, StatusError, Unavailable
from lro.http import HttpReply, error_reply, json_reply
from lro.types import Json
from lro.wire import code_from_http
from lro_client._addresses import dotted, public_address
from lro_client.cli._arguments import check_path
from lro_client.cli._connection import ServerOptions, server_options
from lro_client.cli._terminal import ClientCommand, Exit

HOST: Final = "127.0.0.1"
MAX_BODY: Final = 1024 * 1024
_IDLE_SECONDS: Final = 75.0

_CALLS: Final = re.compile(
    r"(?=[^?#\\]+\Z)/v1/(?:.+/)?operations(?P<one>/.+?)?"
    r"(?P<verb>:(?:cancel|wait|batchGet|watch))?",
    re.DOTALL,
)
"""Matches the paths that are forwarded, which are only paths of operations.

``#`` is refused because it would cut off the path. ``\\`` is refused because some servers read it
as ``/``.
"""

_LENGTH: Final = re.compile(r"[0-9]{1,7}")

_ALWAYS_OFFERED: Final = ("GetOperation", "ListOperations", "DeleteOperation", "CancelOperation")
_EXTENSIONS: Final = {"BatchGetOperations": "batchGet", "WatchOperations": "watch"}
_UNAUTHENTICATED: Final = 401
_CHECK_SECONDS: Final = 5.0
_NOT_OFFERED: Final = frozenset({404, 405, 501})
_TO_SERVER: Final = ("content-type", "accept", "accept-encoding")
_TO_PAGE: Final = ("content-encoding", "content-length", "date", "retry-after")
_EVENTS: Final = "text/event-stream"
_DATA: Final = (_EVENTS, "application/json", "text/plain")
"""The types of content that are forwarded. Servers may send JSON as plain text, which is forwarded
as JSON."""
_OK: Final = 200
_NO_CONTENT: Final = 204
_SHOWN: Final = 80
_FETCHED_HERE: Final = (None, "same-origin", "none")

_TYPES: Final = TypeRegistry()


@attrs.frozen(kw_only=True)
class ConsoleProxy:
    """Answers requests to the local server: the page, its session, and calls to forward.

    All paths begin with a random segment that only the user of this command knows, because other
    users of this machine can reach the server too.
    """

    http: httpx.Client
    server: str
    prefix: str
    seconds: float
    parents: Sequence[str]
    actions: Sequence[str]
    secret: str

    def reply(
        self, method: str, target: str, headers: Mapping[str, str], body: bytes
    ) -> HttpReply | httpx.Response:
        """Return the reply to a request of the page, or the response to a forwarded request.

        The caller must read and close the server's response.
        """
        try:
            return self._reply(method, target, headers, body)
        except LroError as exc:
            return error_reply(exc, _TYPES, "lro.local", asked=f"{method} {target}")

    def _reply(
        self, method: str, target: str, headers: Mapping[str, str], body: bytes
    ) -> HttpReply | httpx.Response:
        if not is_loopback_host(headers.get("host", "")):
            raise PermissionDenied("this server is for this machine only")
        path, _, query = target.partition("?")
        _, secret, below = [*path.split("/", 2), "", ""][:3]
        if not hmac.compare_digest(secret.encode(), self.secret.encode()):
            raise StatusError(Code.NOT_FOUND, "there is nothing here: open the printed address")
        file = page_files().get(f"/{below}")
        if file is not None and method in ("GET", "HEAD"):
            return file.reply(headers)
        self._check_page(headers)
        if below == "session" and method == "GET":
            return json_reply(200, self._session(headers))
        called = self._checked(method, f"/{below}")
        url = f"{self.server}{self.prefix}{called}" + (f"?{query}" if query else "")
        return _data_only(self._forward(method, url, headers, body, self.seconds))

    def _check_page(self, headers: Mapping[str, str]) -> None:
        origin = headers.get("origin")
        here = origin in (None, f"http://{headers.get('host', '')}")
        if headers.get("sec-fetch-site") not in _FETCHED_HERE or not here:
            raise PermissionDenied("pages of other sites must not call this server")

    def _checked(self, method: str, path: str) -> str:
        """Return the path of a call below the prefix of the server.

        Raises:
            StatusError: The path is not one that the page calls.
            PermissionDenied: The action is switched off.
        """
        found = _CALLS.fullmatch(path)
        verb = (found["verb"] or "")[1:] if found else ""
        one = bool(found and found["one"])
        fine = {"GET": verb in ("", "watch"), "POST": bool(verb), "DELETE": one and not verb}
        if found is None or not fine.get(method) or dotted(unquote(path)):
            raise StatusError(Code.NOT_FOUND, f"{method} {path[:200]} is not forwarded")
        action = "delete" if method == "DELETE" else verb
        if action in ("cancel", "delete") and action not in self.actions:
            raise PermissionDenied(f"this console does not {action} operations")
        return path.removeprefix("/v1")

    def _forward(
        self, method: str, url: str, headers: Mapping[str, str], body: bytes, seconds: float
    ) -> httpx.Response:
        passed = _TO_SERVER if self._authorized else (*_TO_SERVER, "authorization")
        sent = {
            name.encode(): headers[name].encode("latin-1") for name in passed if name in headers
        }
        try:
            request = self.http.build_request(
                method, url, headers=sent, content=body or None, timeout=seconds
            )
            response = self.http.send(request, stream=True)
        except Exception as exc:  # raised by httpx, or by the source of the credentials
            why = f"{type(exc).__name__}: {exc}"
            raise Unavailable(f"{public_address(self.server)} cannot be called: {why}") from exc
        if response.has_redirect_location:
            response.close()
            there = public_address(response.headers.get("location", ""))
            text = f"the server redirects to {there}, which is not followed: use that as --server"
            raise StatusError(Code.FAILED_PRECONDITION, text)
        return response

    @property
    def _authorized(self) -> bool:
        """True if the command has credentials, which replace the page's credentials."""
        return self.http.auth is not None or "authorization" in self.http.headers

    def trouble(self) -> str:
        """Call the server once, and return the reason for a failure, or an empty string."""
        url = f"{self.server}{self.prefix}{self._collection}?pageSize=1"
        try:
            response = self._forward("GET", url, {}, b"", min(self.seconds, _CHECK_SECONDS))
        except LroError as exc:
            return str(exc)
        response.close()
        if response.status_code != _UNAUTHENTICATED:
            return ""
        way = "other credentials are needed" if self._authorized else "give a token in the page"
        return f"{public_address(self.server)} answers UNAUTHENTICATED: {way}, or by --token-file"

    @property
    def _collection(self) -> str:
        return f"/{self.parents[0]}/operations" if self.parents[0] else "/operations"

    def _session(self, headers: Mapping[str, str]) -> dict[str, Json]:
        offered = [one for one in _EXTENSIONS if self._offers(one, headers)]
        return {
            "version": importlib.metadata.version("lro"),
            "title": public_address(self.server),
            "caller": "",
            "api": "v1",
            "server": f"{public_address(self.server).rstrip('/')}{self.prefix}",
            "token": self._authorized,
            "parents": [*self.parents],
            "actions": [*self.actions],
            "verbs": [*_ALWAYS_OFFERED, *offered],
            "watches": "WatchOperations" in offered,
            "statistics": False,
            "cancelSupport": "",
            "refreshSeconds": 5,
            "links": {},
            "methods": [],
        }

    def _offers(self, verb: str, headers: Mapping[str, str]) -> bool:
        """Return True if the server has this extension.

        The server may refuse the call that is made here, because the call has no names.
        """
        url = f"{self.server}{self.prefix}{self._collection}:{_EXTENSIONS[verb]}"
        sent = {**headers, "content-type": "application/json"}
        try:
            response = self._forward("POST", url, sent, b'{"names":[]}', self.seconds)
        except LroError:
            return False
        response.close()
        return response.status_code not in _NOT_OFFERED


def _kind(response: httpx.Response) -> str:
    sent: str = response.headers.get("content-type", "")
    return sent.partition(";")[0].strip().lower()


def _data_only(response: httpx.Response) -> HttpReply | httpx.Response:
    """Return the response, or an error instead if its content is not JSON or an event stream.

    A hostile server must not be able to send a page or a script for this address.
    """
    kind, status = _kind(response), response.status_code
    if kind in _DATA or kind.endswith("+json"):
        return response
    response.close()
    if status == _NO_CONTENT or (status == _OK and response.headers.get("content-length") == "0"):
        return HttpReply(_OK, (("content-type", "application/json"),), b"{}")
    shown = ascii(kind)[:_SHOWN] if kind else "no Content-Type"
    text = f"the server answers {status} with {shown}: only JSON and event streams are forwarded"
    if not response.is_error:
        return error_reply(StatusError(Code.UNAVAILABLE, text), _TYPES, "lro.local")
    reply = error_reply(StatusError(code_from_http(status), text), _TYPES, "lro.local")
    return attrs.evolve(reply, status=status)


class LocalServer(ThreadingHTTPServer):
    """The local server. Each call gets a thread, because streams stay open."""

    daemon_threads = True
    proxy: ConsoleProxy

    def handle_error(self, request: object, client_address: object) -> None:
        """Write nothing if the page was closed, to keep the user's terminal clean."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)  # type: ignore[arg-type]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = _IDLE_SECONDS
    server: Any  # a LocalServer

    def _answer(self) -> None:
        headers = {name.lower(): value for name, value in self.headers.items()}
        length = headers.get("content-length", "0")
        known = "transfer-encoding" not in headers and _LENGTH.fullmatch(length)
        if not known or int(length) > MAX_BODY:
            self.close_connection = True
            self._send(error_reply(_TOO_LARGE, _TYPES, "lro.local"))
            return
        body = self.rfile.read(int(length))
        proxy: ConsoleProxy = self.server.proxy
        reply = proxy.reply(self.command, self.path, headers, body)
        with contextlib.suppress(OSError):  # the page was closed
            if isinstance(reply, HttpReply):
                self._send(reply)
            else:
                with contextlib.closing(reply):
                    self._relay(reply)

    do_GET = do_HEAD = do_POST = do_DELETE = _answer

    def _send(self, reply: HttpReply) -> None:
        self._begin(reply.status, dict(reply.headers) | {"content-length": str(len(reply.body))})
        self.wfile.write(reply.body if self.command != "HEAD" else b"")

    def _relay(self, response: httpx.Response) -> None:
        """Forward the server's response piece by piece."""
        response.headers.encoding = "latin-1"  # so that bytes of headers are forwarded unchanged
        headers = {one: response.headers[one] for one in _TO_PAGE if one in response.headers}
        headers["content-type"] = _EVENTS if _kind(response) == _EVENTS else "application/json"
        if "transfer-encoding" in response.headers:  # then Content-Length is void (RFC 9112 §6.3)
            headers.pop("content-length", None)
        if "content-length" not in headers:
            headers["connection"] = "close"
            self.close_connection = True
        self._begin(response.status_code, {**headers, "cache-control": "no-store"})
        with contextlib.suppress(httpx.HTTPError):  # a broken response also ends here
            for piece in response.iter_raw():
                self.wfile.write(piece)
            return
        self.close_connection = True

    def _begin(self, status: int, headers: Mapping[str, str]) -> None:
        self.send_response_only(status)
        for name, value in (dict(secure_headers()) | dict(headers)).items():
            self.send_header(name, value)
        self.end_headers()

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:  # noqa: ARG002
        """Refuse a malformed request with JSON, not with the HTML page of the standard library."""
        self.close_connection = True
        self._send(attrs.evolve(error_reply(_NO_REQUEST, _TYPES, "lro.local"), status=code))

    def log_message(self, format: str, *args: Any) -> None:
        """Write nothing, to keep the user's terminal clean."""


_NO_REQUEST: Final = StatusError(Code.INVALID_ARGUMENT, "this is not a request that the page makes")
_TOO_LARGE: Final = StatusError(Code.INVALID_ARGUMENT, f"a body must have at most {MAX_BODY} bytes")


@contextlib.contextmanager
def local_server(proxy: ConsoleProxy, port: int) -> Iterator[LocalServer]:
    """Run a server on this machine, at the given port or, with 0, at a free one.

    Raises:
        click.UsageError: The port cannot be used.
    """
    try:
        server = LocalServer((HOST, port), _Handler)
    except OSError as exc:
        raise click.UsageError(f"port {port} cannot be used: {exc.strerror}") from exc
    server.proxy = proxy
    with server:
        yield server


@contextlib.contextmanager
def opened(url: str) -> Iterator[None]:
    """Open a page in the user's browser.

    Other users of the machine can read the arguments of processes, so the browser's arguments must
    not have the random path. So the browser opens a file that only the user can read, and that
    redirects to the page.
    """
    with tempfile.TemporaryDirectory(prefix="lro-console-") as folder:
        file = Path(folder) / "console.html"
        file.write_text(f'<meta http-equiv="refresh" content="0;url={escape(url)}">')
        webbrowser.open(file.as_uri())
        yield


def _parents(_: click.Context, __: click.Parameter, given: tuple[str, ...]) -> tuple[str, ...]:
    for parent in given:
        check_path(parent, "a parent")
    return given or ("",)


@click.command("console", cls=ClientCommand)
@click.option(
    "--parent",
    "parents",
    multiple=True,
    metavar="PARENT",
    callback=_parents,
    help="Show operations of this parent, such as projects/p. May be repeated.",
)
@click.option("--read-only", is_flag=True, help="Forward no call that cancels or deletes.")
@click.option(
    "--adc", is_flag=True, help="Send Google's default credentials; needs the extra google."
)
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    metavar="PORT",
    default=0,
    help="Listen at this local port; by default at a free one.",
)
@click.option("--open", "opens", is_flag=True, help="Open the page in the browser.")
@server_options
def console(
    server: ServerOptions,
    parents: tuple[str, ...],
    read_only: bool,
    adc: bool,
    port: int,
    opens: bool,
) -> Exit:
    """Show the operations of a server in the browser, until Ctrl-C.

    A local server serves the page, only to the user of this command: the printed address has a
    secret. Calls of the page are forwarded to the remote server over HTTP, with the credentials of
    this command or, if it has none, with the token entered in the page. The remote server can be
    any server of google.longrunning over HTTP.
    """
    with server.http_client(_google_auth() if adc else None) as (url, http):
        proxy = ConsoleProxy(
            http=http,
            server=url,
            prefix="/" + server.prefix.strip("/") if server.prefix.strip("/") else "",
            seconds=server.call_seconds,
            parents=parents,
            actions=() if read_only else ("cancel", "delete"),
            secret=secrets.token_urlsafe(24),
        )
        with local_server(proxy, port) as local:
            page = f"http://{HOST}:{local.server_port}/{proxy.secret}/"
            if trouble := proxy.trouble():
                click.echo(trouble, err=True)
            click.echo(page)
            shown = opened(page) if opens else contextlib.nullcontext()
            with shown, contextlib.suppress(KeyboardInterrupt):
                local.serve_forever()
    return Exit.DONE


def _google_auth() -> httpx.Auth:
    from lro_client.google import default_auth  # needs an extra

    from google.auth.exceptions import DefaultCredentialsError  # isort: skip

    try:
        return default_auth()
    except DefaultCredentialsError as exc:
        raise click.UsageError(f"this machine has no Google credentials: {exc}") from exc
