"""The server that a command calls: the options for it, and the client made from them."""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final
from urllib.parse import SplitResult, quote, urlsplit

import attrs
import click
import httpx
from click.core import ParameterSource

from lro import DeclarationError, InvalidArgument, TypeRegistry
from lro_client._addresses import public_address
from lro_client._client.client import Client
from lro_client._flow.policy import NO_RETRY, Polling, Retry
from lro_client.cli._terminal import set_address
from lro_client.transports._own_clients import client_of
from lro_client.transports.http import Routes
from lro_client.waits import wait_exponential

_HTTP: Final = ("http", "https")
_GRPC: Final = ("grpc", "grpcs")
_BEARER: Final = re.compile(r"[!-~]+", re.ASCII)
_SCHEME: Final = re.compile(r"\ABearer(\s+|\Z)", re.IGNORECASE)
_HEADER_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+", re.ASCII)
_GRPC_KEY: Final = re.compile(r"[0-9a-z_.-]+", re.ASCII)
_HEADER_VALUE: Final = re.compile(r"[ -~]*", re.ASCII)

_SPAN: Final = re.compile(r"(?P<number>[0-9]+(?:\.[0-9]+)?)(?P<unit>ms|s|m|h|d|)", re.ASCII)
_UNITS: Final = {"ms": 0.001, "": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
_MAX_SPAN_SECONDS: Final = 1e9

RETRY: Final = Retry(wait=wait_exponential(0.2, 2.0, 1.0), attempts=3)
"""The retry policy of commands: few attempts and short pauses, because a person is waiting."""


@attrs.frozen(kw_only=True)
class Link:
    """A client, its message types, and the descriptors for a start over gRPC."""

    client: Client
    types: TypeRegistry
    grpc: bool
    descriptors: bytes


@attrs.frozen(kw_only=True)
class ServerOptions:
    """The options of all commands that call a server.

    ``chosen`` is true if ``url`` was given on the command line. Then ``url`` takes precedence over
    the server in an operation's URL or in the token of a handle.
    """

    url: str
    chosen: bool
    prefix: str
    headers: tuple[tuple[str, str], ...]
    token_file: str | None
    descriptors: tuple[str, ...]
    call_seconds: float

    @contextmanager
    def connect(
        self, said: str = "", *, within: float | None = None, poll: bool = False
    ) -> Iterator[Link]:
        """Make a client for the server. ``said`` is the server that the command's arguments name.

        With ``within`` no call takes longer than that many seconds, and none is retried. With
        ``poll`` the client uses neither WaitOperation nor streams.

        Raises:
            click.UsageError: No server is known, or its URL is not valid.
            InvalidArgument: A file cannot be read.
            MissingExtra: The extra for gRPC or for descriptors is not installed.
        """
        url = self.url if self.chosen or not said else said
        if not url:
            raise _no_server()
        grpc = _scheme(url) in _GRPC
        types, descriptors = TypeRegistry(), b"".join(map(read_file, self.descriptors))
        if self.descriptors:
            _register(types, descriptors, " + ".join(self.descriptors))
        headers = self._headers(url)
        seconds = self.call_seconds if within is None else min(self.call_seconds, within)
        make = functools.partial(
            Client,
            types=types,
            retry=RETRY if within is None else NO_RETRY,
            polling=Polling(wait_first=not poll),
            call_seconds=seconds,
        )
        set_address(public_address(url))
        with self._client(make, url, headers, types) as client:
            yield Link(client=client, types=types, grpc=grpc, descriptors=descriptors)

    @contextmanager
    def http_client(self, auth: httpx.Auth | None = None) -> Iterator[tuple[str, httpx.Client]]:
        """Yield the URL of the server, without a slash at the end, and an HTTP client for it.

        The client sends the credentials and headers of the options.

        Raises:
            click.UsageError: No server is known, or its URL is not an HTTP URL.
            InvalidArgument: A file cannot be read.
        """
        if not self.url:
            raise _no_server()
        if _scheme(self.url) in _GRPC:
            raise click.UsageError("this command needs a server with HTTP: give http(s)://HOST")
        set_address(public_address(self.url))
        with client_of(headers=self._headers(self.url), auth=auth) as http:
            yield self.url.rstrip("/"), http

    @contextmanager
    def _client(
        self,
        make: Callable[..., Client],
        url: str,
        headers: list[tuple[str, str]],
        types: TypeRegistry,
    ) -> Iterator[Client]:
        if _scheme(url) in _GRPC:
            transport = _grpc_transport(url, headers, types)
            with make(url, transport=transport) as client:
                yield client
            return
        routes = _routes(self.prefix)
        with client_of(headers=headers) as http, make(url, http=http, routes=routes) as client:
            yield client

    def _headers(self, url: str) -> list[tuple[str, str]]:
        headers, bearer = list(self.headers), ""
        named = any(name.lower() == "authorization" for name, _ in headers)
        if self.token_file is not None:
            if named:
                raise click.UsageError("give either --token-file or --header 'Authorization: ...'")
            bearer = read_file(self.token_file).decode("utf-8", "replace").strip()
        elif named:  # an option takes precedence over the environment
            return headers
        elif self.url and _origin(url) == _origin(self.url):
            # LRO_TOKEN belongs to the server in LRO_SERVER or --server. An operation's URL, or the
            # token of a handle, may come from anyone, so neither may cause LRO_TOKEN to be sent
            # elsewhere.
            bearer = os.environ.get("LRO_TOKEN", "").strip()
        bearer = _SCHEME.sub("", bearer)
        if bearer:
            if not _BEARER.fullmatch(bearer):  # the error does not show the token
                raise InvalidArgument("token", "has characters that no bearer token has")
            headers.append(("Authorization", f"Bearer {bearer}"))
        return headers


def same_server(one: str, other: str) -> bool:
    """Return True if the schemes, hosts, ports and paths of two servers are equal.

    Raises:
        click.UsageError: A URL is not valid, or has credentials.
    """
    paths = [urlsplit(url).path.rstrip("/") for url in (one, other)]
    return _origin(one) == _origin(other) and paths[0] == paths[1]


def _no_server() -> click.UsageError:
    return click.UsageError("no server is known: give --server URL, or set LRO_SERVER")


def span(text: str) -> float:
    """Read an option that is a duration, such as ``90``, ``1.5s``, ``10m`` or ``2h``.

    Returns:
        The duration in seconds.

    Raises:
        click.BadParameter: The text is not a duration, or the duration is 0.
    """
    found = _SPAN.fullmatch(text)
    seconds = float(found["number"]) * _UNITS[found["unit"]] if found else 0.0
    if not seconds:
        raise click.BadParameter(f"{text!r} is not a span such as 90, 1.5s, 10m or 2h")
    return min(seconds, _MAX_SPAN_SECONDS)


def _register(types: TypeRegistry, descriptors: bytes, named: str) -> None:
    from lro.protobuf import register_file_set  # needs an extra

    try:
        register_file_set(types, descriptors)
        _ = types.binary  # bad descriptors fail here, not at each message
    except (InvalidArgument, DeclarationError) as exc:
        raise InvalidArgument(named, str(exc)) from exc


_AUTHORITY_END: Final = re.compile("[/?#]")


def split_url(url: str) -> SplitResult:
    """Split a URL into its parts.

    Raises:
        click.UsageError: The URL is not valid, or has credentials.
    """
    if "@" in _AUTHORITY_END.split(url.partition("://")[2], maxsplit=1)[0]:
        # Checked first, because libraries and Python versions disagree about the host of such URLs.
        raise click.UsageError("give credentials by --header or --token-file, not in the URL")
    try:
        found = urlsplit(url)
        _ = found.port  # urlsplit checks the port only when it is read
        if found.scheme in _HTTP:
            read = httpx.URL(url)
            _ = read.host  # httpx checks an internationalised host name here
            if read.scheme != found.scheme:
                raise ValueError("its scheme is not at the beginning")
    except (ValueError, httpx.InvalidURL) as exc:
        raise click.UsageError(f"{public_address(url)!r} is not a URL: {exc}") from None
    return found


def _scheme(url: str) -> str:
    found = split_url(url)
    if found.scheme not in (*_HTTP, *_GRPC) or not found.hostname:
        wanted = "http://HOST, https://HOST, grpc://HOST:PORT or grpcs://HOST:PORT"
        raise click.UsageError(f"a server is {wanted}, not {public_address(url)!r}")
    if found.scheme in _GRPC and found.port is None:
        raise click.UsageError(f"{public_address(url)!r} needs a port")
    return found.scheme


def _origin(url: str) -> tuple[str, str | None, int | None]:
    """Return the scheme, host and port of a URL, as the HTTP library reads them."""
    found = split_url(url)
    if found.scheme in _HTTP:
        read = httpx.URL(url)
        return read.scheme, read.host, read.port
    return found.scheme, found.hostname, found.port


def _routes(prefix: str) -> Routes:
    return Routes.below("/" + prefix.strip("/"))


def _grpc_transport(url: str, headers: list[tuple[str, str]], types: TypeRegistry) -> Any:
    from lro_client.transports.grpc import GrpcTransport  # needs an extra

    metadata: list[tuple[str, str | bytes]] = []
    for name, value in headers:
        key = name.lower()
        if not _GRPC_KEY.fullmatch(key):
            raise click.UsageError(f"--header {name!r} is not a name of metadata in gRPC")
        metadata.append((key, value.encode() if key.endswith("-bin") else value))
    credentials = None
    if _scheme(url) == "grpcs":
        import grpc

        credentials = grpc.ssl_channel_credentials()
    _, host, port = _origin(url)
    address = f"[{host}]:{port}" if ":" in str(host) else f"{host}:{port}"
    # The target has a scheme. Without one, grpcio would read a host such as "unix" as the scheme.
    target = f"dns:///{quote(address, safe=':')}"
    return GrpcTransport(target, metadata=metadata, credentials=credentials, types=types)


def read_file(path: str) -> bytes:
    """Read a file.

    Raises:
        InvalidArgument: The file cannot be read.
    """
    try:
        return Path(path).read_bytes()
    except (OSError, ValueError) as exc:  # ValueError: a path with a null character
        why = exc.strerror if isinstance(exc, OSError) and exc.strerror else str(exc)
        raise InvalidArgument(path, f"cannot be read: {why}") from exc


def _header(_: click.Context, __: click.Parameter, given: tuple[str, ...]) -> Any:
    found = []
    for one in given:
        name, colon, value = one.partition(":")
        value = value.strip()
        if not (colon and _HEADER_NAME.fullmatch(name) and _HEADER_VALUE.fullmatch(value)):
            # The message leaves out the value, which may be a secret.
            raise click.BadParameter(f"must be 'Name: value' in ASCII, got {name.strip()!r}")
        found.append((name, value))
    return tuple(found)


_OPTIONS: Final = (
    click.option(
        "--server",
        metavar="URL",
        envvar="LRO_SERVER",
        show_envvar=True,
        default="",
        help="http(s)://HOST, or grpc(s)://HOST:PORT.",
    ),
    click.option(
        "--prefix",
        metavar="PATH",
        default="/v1",
        show_default=True,
        help="The prefix of names in paths, such as /v1beta1. HTTP only.",
    ),
    click.option(
        "--header",
        "headers",
        multiple=True,
        metavar="'NAME: VALUE'",
        callback=_header,
        help="Send this header with every call. May be repeated.",
    ),
    click.option(
        "--token-file",
        metavar="FILE",
        help="A file with a bearer token to send; by default the token in LRO_TOKEN.",
    ),
    click.option(
        "--descriptors",
        metavar="FILE",
        multiple=True,
        help="A FileDescriptorSet with the messages of the service, for gRPC. May be repeated.",
    ),
    click.option(
        "--call-timeout",
        "call_seconds",
        type=span,
        default="30s",
        show_default=True,
        help="Maximum duration of each call.",
    ),
)


def server_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options to a command, and pass them to its function as the argument ``server``."""

    @functools.wraps(command)
    def with_server(**given: Any) -> Any:
        return command(server=take_server(click.get_current_context(), given), **given)

    made: Callable[..., Any] = with_server
    for option in reversed(_OPTIONS):
        made = option(made)
    return made


def take_server(context: click.Context, given: dict[str, Any]) -> ServerOptions:
    """Remove the options of the server from a command's parameters, and return them."""
    source = context.get_parameter_source("server")
    return ServerOptions(
        url=(given.pop("server") or "").strip(),
        chosen=source is ParameterSource.COMMANDLINE,
        prefix=given.pop("prefix"),
        headers=given.pop("headers"),
        token_file=given.pop("token_file"),
        descriptors=given.pop("descriptors"),
        call_seconds=given.pop("call_seconds"),
    )
