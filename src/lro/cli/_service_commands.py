"""The commands that run a service and maintain its database: serve, worker, schema, purge."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import logging
import os
import re
import signal
import socket
import sys
import tempfile
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any, Final

import attrs
import click

from lro import Service
from lro._console.loopback import is_loopback
from lro.cli._commands import read_object, read_service
from lro.cli._output import INTERRUPTED
from lro.errors import InvalidArgument

if TYPE_CHECKING:
    from lro.asgi import OperationsApp

_PORT: Final = click.IntRange(0, 65_535)
_HOST_NAME: Final = re.compile(r"[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]")
"""Matches a name or address as in the header ``Host``, without a port."""


@click.command()
@click.argument("target", metavar="MODULE:NAME")
@click.option("--host", default="127.0.0.1", show_default=True, help="Listen at this address.")
@click.option(
    "--port",
    type=_PORT,
    default=8000,
    show_default="8000",
    metavar="PORT",
    help="Listen at this port; 0 takes a free one.",
)
@click.option(
    "--grpc", "grpc_port", type=_PORT, metavar="PORT", help="Serve gRPC too, at this port."
)
@click.option(
    "--workers",
    type=click.IntRange(1, 1000),
    default=1,
    show_default=True,
    metavar="N",
    help="Run this many processes on the port and the store.",
)
@click.option(
    "--starts/--no-starts",
    default=None,
    help="Start operations at the paths of methods, or not. By default yes.",
)
@click.option(
    "--parent",
    "parents",
    multiple=True,
    metavar="PATTERN",
    help="Serve operations below this parent too, such as projects/*. May be repeated.",
)
@click.option(
    "--allow-host",
    "names",
    multiple=True,
    metavar="NAME",
    help="Answer calls for this host, as of a proxy. May be repeated.",
)
@click.option("--inherited", hidden=True)
@click.pass_context
def serve(context: click.Context, /, **given: Any) -> None:
    """Serve a service over HTTP, and over gRPC.

    MODULE:NAME is an lro.Service, or an lro.asgi.OperationsApp. A service alone does not
    authenticate callers: all who reach it can start, read and cancel operations. So at a loopback
    address it answers only calls for this machine, or for hosts named by --host or --allow-host. An
    application has its own authenticate hook, starts and parents.

    GET /healthz answers while the process lives. GET /readyz asks the store too.

    At SIGTERM calls in flight have 5 seconds, and running work has the drain of the service. Work
    that still runs is released for the next process. A second signal releases it at once.

    Exit status: 0 after SIGTERM, 2 if it cannot be served, 130 after Ctrl-C.
    """
    inherited = given["inherited"]
    options = ServeOptions(**(given if inherited is None else json.loads(inherited)))
    for name in options.names:
        if _HOST_NAME.fullmatch(name) is None:
            text = f"must be a name such as api.example.com, without scheme and port, got {name!r}"
            raise InvalidArgument("--allow-host", text)
    context.exit(_serve(options))


@attrs.frozen(kw_only=True)
class ServeOptions:
    """The arguments of ``lro serve``."""

    target: str
    host: str
    port: int
    grpc_port: int | None
    workers: int
    starts: bool | None
    parents: Sequence[str]
    names: Sequence[str]
    inherited: Sequence[int] | None
    """Descriptors from the supervisor: the socket to serve on, and the link to the supervisor."""

    def child_command(self, inherited: Sequence[int]) -> Sequence[str]:
        """Return the command of a process that serves with these options and descriptors."""
        text = json.dumps(attrs.asdict(self) | {"inherited": inherited})
        return sys.executable, "-m", "lro.cli", "serve", self.target, "--inherited", text


def _serve(options: ServeOptions) -> int:
    """Serve in this process, or in several processes that it supervises; return the exit status."""
    from lro.cli import _serving
    from lro.cli._processes import Processes

    serve_http = _serving.http_server()
    app = read_app(options.target, starts=options.starts, parents=options.parents)
    edge, supervised = None, options.inherited is not None
    if (port := options.grpc_port) is not None:
        _check_open(app, options.target)
        starts = options.starts is not False
        edge = _serving.GrpcEdge(host=options.host, port=port, starts=starts, shared=supervised)
    _log_to_stderr()
    _serving.raise_descriptors()
    several = options.workers > 1 and not supervised
    if several:
        _check_many(app.edge.service, port)
    with contextlib.ExitStack() as sockets:
        if options.inherited is None:
            listener, link = _serving.listen(options.host, options.port), None
        else:
            listener, link = (socket.socket(fileno=number) for number in options.inherited)
        sockets.enter_context(listener)
        known = _known_hosts(app, listener, (options.host, *options.names))
        url = f"http://{_serving.host_port(options.host, listener.getsockname()[1])}"

        def announce(grpc_address: str) -> None:
            more = f" and grpc://{grpc_address}" if grpc_address else ""
            if not supervised:
                _serving.print_line(f"{options.target} is served at {url}{more}")

        if not supervised:
            _warn(app, options.target, options.host, known)
        if not several:
            signal.signal(signal.SIGTERM, lambda *_: sys.exit())  # until the server handles SIGTERM
            if supervised:  # a terminal sends SIGINT to all processes
                signal.signal(signal.SIGINT, lambda *_: sys.exit())
            serving = _serving.Serving(app, edge, announce, known, link)
            asyncio.run(serving.run(serve_http, listener))
            return INTERRUPTED if serving.interrupted else 0
        app.edge.service.close(0)  # this process only supervises server processes
        address = "" if port is None else _serving.host_port(options.host, port)
        processes = Processes(options.child_command, options.workers, listener)
        with tempfile.TemporaryDirectory(prefix="lro-metrics-") as folder:
            os.environ.setdefault("PROMETHEUS_MULTIPROC_DIR", folder)  # shared by the processes
            asyncio.run(processes.run(functools.partial(announce, address)))
        return INTERRUPTED if processes.interrupted else processes.status


def read_app(target: str, *, starts: bool | None, parents: Sequence[str]) -> OperationsApp:
    """Import the application of ``module:name``, or make one for the service of that name.

    Raises:
        InvalidArgument: The object is neither an application nor a service, or it is an application
            although options were given.
    """
    from lro.asgi import OperationsApp

    found = read_object(target)
    if isinstance(found, Service):
        return OperationsApp(found, starts=starts is not False, parents=parents)
    if not isinstance(found, OperationsApp):
        kind = type(found).__name__
        text = f"is {kind}, not an lro.Service or an lro.asgi.OperationsApp"
        raise InvalidArgument(target, f"{text}; serve other applications by their own server")
    if starts is not None or parents:
        raise InvalidArgument(target, "is an application, which has its own starts and parents")
    return found


def _check_open(app: OperationsApp, target: str) -> None:
    if app.edge.options.authenticate is not None:
        what = "has an authenticate hook for HTTP, which gRPC would not ask"
        raise InvalidArgument(target, f"{what}: serve gRPC by a program of your own")


def _known_hosts(
    app: OperationsApp, listener: socket.socket, names: Collection[str]
) -> frozenset[str] | None:
    """Return the hosts, besides this machine, for which calls are answered; None for any host.

    The listening address decides, because ``--host`` may be a name for a loopback address.
    """
    if app.edge.options.authenticate is not None or not is_loopback(listener.getsockname()[0]):
        return None
    return frozenset(name.strip("[]").lower() for name in names)


def _warn(app: OperationsApp, target: str, host: str, known: Collection[str] | None) -> None:
    """Warn if the service is open to all, and if the store cannot be used now."""
    from lro.cli._serving import warn
    from lro.cli._stores import check_store

    if known is None and app.edge.options.authenticate is None:
        text = "all who reach it can start, read and cancel operations"
        warn(f"{target} has no authenticate hook, and {host} is not a loopback address: {text}")
    why = check_store(app.edge.service.store)
    if why:
        warn(f"for now calls are answered UNAVAILABLE: {why}")


def _check_many(service: Service, grpc_port: int | None) -> None:
    if not service.store.shared:
        kind = type(service.store).__name__
        raise InvalidArgument("--workers", f"several processes cannot share a {kind}")
    if grpc_port == 0:
        raise InvalidArgument("--grpc", "several processes share a port, which must be given")
    if not hasattr(os, "fork"):
        raise InvalidArgument("--workers", "must be 1 on this system")


def _log_to_stderr() -> None:
    """Log the library's lines and all warnings to standard error, unless logging is set up."""
    if not logging.getLogger().handlers:
        logging.basicConfig(format="%(levelname)s: %(message)s", level=logging.WARNING)
        logging.getLogger("lro").setLevel(logging.INFO)


@click.command()
@click.argument("target", metavar="MODULE:SERVICE")
@click.pass_context
def worker(context: click.Context, target: str) -> None:
    """Run the waiting work of a service, without serving callers.

    At SIGTERM running work has the drain of the service. Work that still runs is released for the
    next process. A second signal releases it at once.

    Exit status: 0 after SIGTERM, 2 if there is no such service, 130 after Ctrl-C.
    """
    from lro.cli._serving import print_line, run_worker, warn
    from lro.cli._stores import check_store

    service = read_service(target)
    if not service.store.shared:
        kind = type(service.store).__name__
        raise InvalidArgument(target, f"has a {kind}, in which only its own process finds work")
    if not service.edges.maintained:
        raise InvalidArgument(target, "was made with maintenance=False, so it claims no work")
    if service.edges.background.claims is None:
        raise InvalidArgument(target, "was made without an executor, so it runs no work")
    _log_to_stderr()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())  # until the event loop handles SIGTERM
    why = check_store(service.store)
    if why:
        warn(f"for now no work is found: {why}")
    print_line(f"{target} takes work")  # before the work logs lines
    if asyncio.run(run_worker(service)) == signal.SIGINT:
        context.exit(INTERRUPTED)


@click.command()
@click.argument("store", metavar="STORE")
@click.option(
    "--name", default="lro", show_default=True, help="Use this schema in the database of a URL."
)
@click.option("--create", is_flag=True, help="Create missing tables.")
@click.option(
    "--sql", "as_sql", is_flag=True, help="Print the SQL that creates them in PostgreSQL."
)
@click.pass_context
def schema(context: click.Context, store: str, name: str, create: bool, as_sql: bool) -> None:
    """Show the version of a store's tables, create them, or print their SQL.

    STORE is module:service, postgresql://USER@HOST/DATABASE, or sqlite:///FILE. For a service this
    includes the indexes that its methods declare. A store creates its tables when it is first used;
    the command is for databases in which the application must not do that.

    Exit status: 0 if they exist in the version of this release, 1 if not, 2 if the store cannot be
    used.
    """
    from lro.cli._stores import read_schema

    found = read_schema(store, name)
    if as_sql:
        click.echo(found.sql(), nl=False)
        return
    if create:
        found.create()
    version = found.version()
    if version == found.wanted:
        click.echo(f"{found.where}: version {version}, as this release uses it")
        return
    here = f"has version {version}" if version else "does not exist"
    click.echo(f"{found.where}: {here}; this release uses version {found.wanted}")
    context.exit(1)


_BATCH: Final = 1000


@click.command()
@click.argument("target", metavar="MODULE:SERVICE")
def purge(target: str) -> None:
    """Remove the finished operations that have expired, and print their number.

    They expire after the keep_for of the method or the service. Servers and workers remove them
    every minute: the command is for services that were made with maintenance=False, or that do not
    run. Operations in progress are never removed.
    """
    store = read_service(target).store
    removed, more = 0, True
    while more:
        found = store.expire(_BATCH)
        removed, more = removed + len(found.names), found.more
    click.echo(f"removed: {removed}")
