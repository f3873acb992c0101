"""One process that serves a service over HTTP and gRPC: start, health, and stop."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import functools
import importlib.util
import os
import signal
import socket
import sys
from collections.abc import Awaitable, Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final, TypeVar

import attrs

from lro import Service
from lro._console.loopback import is_loopback_host, name_of_host
from lro.asgi import App, OperationsApp, Receive, Scope, Send
from lro.cli._output import Unusable
from lro.errors import MissingExtra, PermissionDenied, Unavailable
from lro.http import HttpReply, error_reply, in_thread, json_reply

if TYPE_CHECKING:
    import grpc.aio

GRACE_SECONDS: Final = 5
"""Seconds for calls in flight after the signal to stop, so that slow callers can read replies."""

LINK_BYTE: Final = b"."
"""A process sends this byte once it serves; its supervisor sends it to ask for a stop."""
_ASKED_AT_ONCE: Final = 16
"""Maximum number of requests to stop that are read at once."""

_CLOSE_SECONDS: Final = 5
"""Seconds that a service may take to close after its drain."""

_REUSE_SECONDS: Final = 1.0
"""Seconds that the result of a readiness check is reused: any caller can ask for a check."""

_BACKLOG: Final = 2048
_SMALL_BACKLOG: Final = 1
"""The backlog passed to uvicorn and hypercorn. It is small, because asyncio tries that many accepts
in a row, even if they fail.

Both servers set this backlog on the socket, so the socket gets :data:`_BACKLOG` again afterwards.
"""
_EXHAUSTED: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
"""The errors if the system cannot open more connections; asyncio then retries every second."""
_WARNING_SECONDS: Final = 60.0
"""Minimum seconds between warnings that no more connections can be opened."""
_DESCRIPTORS: Final = 65_536
"""The highest limit of open files that is set: programs that iterate over all descriptors would be
slow with a higher limit."""
IDLE_SECONDS: Final = 65
"""Seconds that idle connections are kept: longer than clients and most load balancers keep them."""

_NO_WORKER: Final = "readyz"
"""The name of a worker that does not exist."""

R = TypeVar("R")

ServeHttp = Callable[[App, socket.socket, asyncio.Event, float], Awaitable[None]]
"""A function that serves until the event is set, and then has a time limit in seconds to end."""


def http_server() -> ServeHttp:
    """Return the HTTP server: uvicorn, or hypercorn if only that is installed.

    Raises:
        MissingExtra: Neither is installed.
    """
    for package, serve in (("uvicorn", _serve_by_uvicorn), ("hypercorn", _serve_by_hypercorn)):
        if importlib.util.find_spec(package) is not None:
            return serve
    raise MissingExtra("the command lro serve", "serve")


async def _serve_by_uvicorn(
    app: App, listener: socket.socket, stop: asyncio.Event, _: float
) -> None:
    import uvicorn

    config = uvicorn.Config(
        app,
        lifespan="on",
        log_config=None,
        workers=1,  # otherwise uvicorn reads WEB_CONCURRENCY
        backlog=_SMALL_BACKLOG,
        timeout_graceful_shutdown=GRACE_SECONDS,
        timeout_keep_alive=IDLE_SECONDS,
    )

    class Server(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            listener.listen(_BACKLOG)

    server = Server(config)

    async def end() -> None:
        await stop.wait()
        server.should_exit = True

    ending = asyncio.create_task(end())
    try:
        await server.serve(sockets=[listener])
    finally:
        ending.cancel()


async def _serve_by_hypercorn(
    app: App, listener: socket.socket, stop: asyncio.Event, closing_seconds: float
) -> None:
    from hypercorn.asyncio import serve
    from hypercorn.config import Config

    config = Config()
    config.bind = [f"fd://{os.dup(listener.fileno())}"]
    config.graceful_timeout = GRACE_SECONDS
    config.keep_alive_timeout = IDLE_SECONDS
    config.shutdown_timeout = closing_seconds
    config.loglevel = "WARNING"
    config.backlog = _SMALL_BACKLOG

    async def end() -> None:
        listener.listen(_BACKLOG)
        await stop.wait()

    await serve(app, config, shutdown_trigger=end, mode="asgi")  # type: ignore[arg-type]


def raise_descriptors() -> None:
    """Raise the limit of open files to :data:`_DESCRIPTORS`, or as far as the system allows."""
    try:
        import resource
    except ImportError:  # on Windows
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, _DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(OSError, ValueError):  # macOS allows less than it reports
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def listen(host: str, port: int) -> socket.socket:
    """Return a listening socket; port 0 selects a free port.

    Raises:
        Unusable: The address does not exist, or another program listens at it.
    """
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family, backlog=_BACKLOG)
    except (OSError, UnicodeError) as exc:
        why = exc.strerror if isinstance(exc, OSError) else "is not a valid host name"
        raise Unusable(f"cannot listen on {host_port(host, port)}: {why}") from exc


def host_port(host: str, port: int) -> str:
    """Return host and port as in a URL."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


@attrs.frozen(kw_only=True)
class GrpcEdge:
    """The gRPC server beside the HTTP server; if ``shared``, several processes share its port."""

    host: str
    port: int
    starts: bool
    shared: bool

    async def serve(self, service: Service) -> tuple[grpc.aio.Server, str]:
        """Start the server; return the server and its address.

        Raises:
            MissingExtra: The extra ``grpc`` is not installed.
            Unusable: Another program listens at the address.
        """
        import grpc.aio

        from lro.grpc import add_to  # raises MissingExtra

        server = grpc.aio.server(options=[("grpc.so_reuseport", int(self.shared))])
        add_to(server, service, methods=self.starts)
        wanted = host_port(self.host, self.port)
        try:
            port = server.add_insecure_port(wanted)
        except RuntimeError as exc:
            raise Unusable(f"cannot listen on {wanted}: {exc}") from exc
        await server.start()
        return server, host_port(self.host, port)


class Serving:
    """Serves an application, and gRPC beside it, until a signal asks this process to stop.

    At the first SIGTERM or SIGINT, waiting calls are answered, calls in flight may take
    :data:`GRACE_SECONDS` more, and running work may take the service's drain time. A second signal
    ends the drain: work that still runs is released at once. ``announce`` is called with the
    address of gRPC, or "", when this process serves. With ``names``, only calls for this machine
    and for these hosts are answered, so that a web page under another name cannot call the service
    (DNS rebinding).

    A supervisor uses ``link``: each byte counts as a signal, and the end of the link begins the
    stop. With ``link``, a real signal only begins the stop, as terminals and systemd signal all
    processes.
    """

    interrupted = False
    """True if the signal was SIGINT, as sent by Ctrl-C."""

    def __init__(
        self,
        app: OperationsApp,
        edge: GrpcEdge | None,
        announce: Callable[[str], None],
        names: Collection[str] | None = None,
        link: socket.socket | None = None,
    ) -> None:
        self._app = app
        self._service = app.edge.service
        self._edge = edge
        self._announce = announce
        self._names = names
        self._stop = asyncio.Event()
        self._link = link
        self._asked = 0
        self._grpc: grpc.aio.Server | None = None
        self._grpc_address = ""
        self._ending: list[asyncio.Task[None]] = []
        self._health = Health(self._service)
        self._next_warning_at = 0.0

    async def run(self, serve_http: ServeHttp, listener: socket.socket) -> None:
        """Serve on this socket until the process has stopped."""
        asyncio.get_running_loop().set_exception_handler(self._log_error)
        if self._edge is not None:
            self._grpc, self._grpc_address = await self._edge.serve(self._service)
        try:
            closing = self._service.drain.total_seconds() + GRACE_SECONDS + _CLOSE_SECONDS
            await serve_http(self, listener, self._stop, closing)
        finally:
            await self._end_grpc(0)

    def _log_error(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Log an error of the loop; warn of exhausted descriptors at most once a minute."""
        error = context.get("exception")
        if not ("socket" in context and isinstance(error, OSError) and error.errno in _EXHAUSTED):
            loop.default_exception_handler(context)
        elif loop.time() >= self._next_warning_at:
            self._next_warning_at = loop.time() + _WARNING_SECONDS
            warn(f"new connections wait: {error.strerror}; ulimit -n bounds how many are open")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a call of ASGI, by the application or, on the health paths, by :class:`Health`."""
        if scope["type"] == "lifespan":
            await self._lifespan(scope, receive, send)
        elif scope["type"] == "http" and scope["path"] in self._health.paths:
            ready = scope["path"] == Health.READY
            await _answer(await self._health.reply(ready=ready), send)
        elif scope["type"] == "http" and not self._is_allowed_host(host := _host_header(scope)):
            await _answer(self._health.refusal(PermissionDenied(_OTHER_HOST % host[:80])), send)
        else:
            await self._app(scope, receive, send)

    def _is_allowed_host(self, host: str) -> bool:
        return self._names is None or name_of_host(host) in self._names or is_loopback_host(host)

    async def _lifespan(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def receiving() -> dict[str, object]:
            message = await receive()
            if message["type"] == "lifespan.shutdown":
                self._health.stopping = True
                self._service.edges.end_waits()
                await self._end_grpc(GRACE_SECONDS)
            return dict(message)

        async def sending(message: dict[str, object]) -> None:
            await send(message)
            if message["type"] == "lifespan.startup.complete":
                self._started()

        await self._app(scope, receiving, sending)  # type: ignore[arg-type]

    def _started(self) -> None:
        # Install the handlers only now: they must replace the handlers of the HTTP server.
        loop = asyncio.get_running_loop()
        with contextlib.suppress(NotImplementedError):  # on Windows the server's handlers stay
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.add_signal_handler(number, self._signalled, number)
        if self._link is not None:
            with contextlib.suppress(OSError):  # the supervisor has ended, which _read_link detects
                self._link.sendall(LINK_BYTE)
            loop.add_reader(self._link, self._read_link, self._link)
        self._announce(self._grpc_address)

    def _signalled(self, number: int) -> None:
        if not self._stop.is_set():
            self.interrupted = number == signal.SIGINT
            self._begin_stop()
        elif self._link is None:
            self._end_drain()

    def _read_link(self, link: socket.socket) -> None:
        asked = b""
        with contextlib.suppress(OSError):  # the supervisor has ended and left bytes unread
            asked = link.recv(_ASKED_AT_ONCE)
        if not asked:
            asyncio.get_running_loop().remove_reader(link)
        self._asked += len(asked)
        if not self._stop.is_set():
            self._begin_stop()
        if self._asked > 1:
            self._end_drain()

    def _end_drain(self) -> None:
        self._ending.append(_end_drain(self._service))

    def _begin_stop(self) -> None:
        self._health.stopping = True
        self._service.edges.end_waits()
        self._ending.append(asyncio.ensure_future(self._end_grpc(GRACE_SECONDS)))
        self._stop.set()

    async def _end_grpc(self, seconds: float) -> None:
        if self._grpc is not None:
            await self._grpc.stop(seconds)


async def run_worker(service: Service) -> int:
    """Run the waiting work of a service until a signal stops this process; return the signal.

    An ``AsyncioExecutor(loop="running")`` runs the work on this event loop, which goes on during
    the drain. A second signal ends the drain: work that still runs is released at once.
    """
    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    signals: list[int] = []
    ending: list[asyncio.Task[None]] = []

    def signalled(number: int) -> None:
        if signals:
            ending.append(_end_drain(service))
        signals.append(number)
        stop.set()

    with contextlib.suppress(NotImplementedError):  # on Windows Ctrl-C raises KeyboardInterrupt
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, signalled, number)
    async with service.lifespan():
        await stop.wait()
    return signals[0]


class Health:
    """Answers health probes: is the process alive, and is it ready for work?"""

    LIVE: Final = "/healthz"
    READY: Final = "/readyz"
    paths: Final = frozenset({LIVE, READY})

    def __init__(self, service: Service) -> None:
        self._service = service
        self._check: asyncio.Future[HttpReply] | None = None
        self._next_check_at = 0.0
        self.stopping = False

    async def reply(self, *, ready: bool) -> HttpReply:
        """Reply 200, or 503 with the reason; concurrent probes share one check of the store."""
        if not ready:
            return _OK
        if self.stopping:
            return self.refusal(Unavailable("the service is stopping"))
        now = asyncio.get_running_loop().time()
        if self._check is None or (self._check.done() and now >= self._next_check_at):
            self._check = asyncio.ensure_future(_in_own_thread(self._check_store))
            self._next_check_at = now + _REUSE_SECONDS
        return await asyncio.shield(self._check)

    def _check_store(self) -> HttpReply:
        store = self._service.store
        try:
            # This write changes nothing, but fails if the store is read-only and so cannot accept
            # starts.
            store.leave(_NO_WORKER)
        except Exception as exc:
            return self.refusal(exc)
        return _OK

    def refusal(self, error: Exception) -> HttpReply:
        """Return the HTTP reply for an error."""
        return error_reply(error, self._service.types, self._service.domain, asked="lro serve")


_OTHER_HOST: Final = (
    "without an authenticate hook a server on a loopback address answers calls for this machine"
    " only, and this one is for the host %r: name it by --allow-host"
)


def _host_header(scope: Scope) -> str:
    found: bytes = dict(scope["headers"]).get(b"host", b"")
    return found.decode("latin-1")


def _end_drain(service: Service) -> asyncio.Task[None]:
    """Release the work that still runs, without waiting for the end of the drain."""
    return asyncio.ensure_future(_in_own_thread(functools.partial(service.close, 0)))


async def _in_own_thread(action: Callable[[], R]) -> R:
    """Call ``action`` in a thread of its own, because hooks may block the shared threads."""
    return await in_thread(action, ThreadPoolExecutor(1, "lro-serve"))


_OK: Final = json_reply(200, {"status": "ok"})


async def _answer(reply: HttpReply, send: Send) -> None:
    headers = [(name.encode(), value.encode()) for name, value in reply.headers]
    headers.append((b"content-length", b"%d" % len(reply.body)))
    await send({"type": "http.response.start", "status": reply.status, "headers": headers})
    await send({"type": "http.response.body", "body": reply.body})


def print_line(text: str) -> None:
    """Print a line and flush it."""
    # Use one write, so that no log line of another thread comes before the newline.
    print(f"{text}\n", end="", flush=True)


def warn(text: str) -> None:
    """Print a warning to standard error."""
    print(f"lro: {text}\n", end="", file=sys.stderr, flush=True)
