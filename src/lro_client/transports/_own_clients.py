"""HTTP clients for transports that are made without a client.

An ``httpx.Client`` spends half of the time of each call on options that these clients do not have.
So each request is built once, and is passed directly to the httpx transport if possible.
"""

from __future__ import annotations

import ipaddress
import os
import ssl
import threading
import types
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import Any, Final, Protocol, TypeVar

import httpx

from lro import DeclarationError
from lro_client.transports._credentials import Credentials
from lro_client.transports._unpacking import CODINGS

T = TypeVar("T")

_HEADERS: Final = {"accept-encoding": CODINGS}

IDLE_SECONDS: Final = 1.0
"""Seconds for which an idle connection is kept. Servers keep it for at least two seconds.

If a server closes a connection while a request is sent, that request is lost (RFC 9112 §9.3).
"""

LIMITS: Final = httpx.Limits(
    max_connections=100, max_keepalive_connections=20, keepalive_expiry=IDLE_SECONDS
)

MAX_KNOWN_REQUESTS: Final = 64
"""Maximum number of cached requests. The least recently used requests are dropped."""

_MAX_KNOWN_BODY_BYTES: Final = 1024
"""Maximum size of a cached body. Larger bodies list many operations, and are not sent again."""


def _blocking(context: ssl.SSLContext, proxy: httpx.Proxy | None = None) -> httpx.HTTPTransport:
    """Return an httpx transport whose connections have the deadline of :func:`ending_at`."""
    # Imported late, because httpx too loads httpcore when it makes its first transport.
    from lro_client.transports._timed_backend import TimedBackend

    made = httpx.HTTPTransport(verify=context, proxy=proxy, limits=LIMITS)
    made._pool._network_backend = TimedBackend()  # httpx has no option for this
    return made


class Connections(httpx.BaseTransport):
    """An httpx transport. With ``plain`` it loads the trusted certificates at the first https call.

    Loading them takes 20 ms and 1 MB of memory. A client that uses no TLS saves both.
    """

    def __init__(self, *, plain: bool) -> None:
        self._plain = _blocking(_without_certificates()) if plain else None
        self._secure = None if plain else _blocking(_certificates())
        self._lock = threading.Lock()

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request, as httpx's transport does."""
        if self._plain is not None and request.url.scheme == "http":
            return self._plain.handle_request(request)
        with self._lock:
            self._secure = self._secure or _blocking(_certificates())
        return self._secure.handle_request(request)

    def close(self) -> None:
        """Close all connections."""
        for one in (self._plain, self._secure):
            if one is not None:
                one.close()


class MakeConnections(Protocol):
    """Makes an httpx transport for event loops, which trusts the certificates of an SSL context."""

    def __call__(
        self, context: ssl.SSLContext, proxy: httpx.Proxy | None = None
    ) -> httpx.AsyncBaseTransport: ...


class AsyncConnections(httpx.AsyncBaseTransport):
    """An httpx transport for event loops. ``make`` makes the transport of the HTTP library in use.

    ``plain`` has the same meaning as in :class:`Connections`.
    """

    def __init__(self, make: MakeConnections, *, plain: bool) -> None:
        self._make = make
        self._plain = make(_without_certificates()) if plain else None
        self._secure = None if plain else make(_certificates())

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request, as httpx's transport does."""
        if self._plain is not None and request.url.scheme == "http":
            return await self._plain.handle_async_request(request)
        self._secure = self._secure or self._make(_certificates())
        return await self._secure.handle_async_request(request)

    async def aclose(self) -> None:
        """Close all connections."""
        for one in (self._plain, self._secure):
            if one is not None:
                await one.aclose()


def _without_certificates() -> ssl.SSLContext:
    """Return a context that trusts no certificate, for connections without TLS."""
    return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


def _certificates() -> ssl.SSLContext:
    """Return a context that trusts the environment's certificates, by default certifi's."""
    try:
        if file := os.environ.get("SSL_CERT_FILE"):
            open(file, "rb").close()  # older versions of httpx ignore a missing file
        return httpx.create_ssl_context()
    except OSError as exc:
        raise DeclarationError("SSL_CERT_FILE", f"is not a file of certificates: {exc}") from exc


def _no_cookies() -> CookieJar:
    """Return a jar that keeps no cookies: a cookie with a bad character would break all calls."""
    return CookieJar(DefaultCookiePolicy(allowed_domains=[]))


class OwnClient:
    """An ``httpx.Client`` that sends ``credentials``. For ``plain`` see :class:`Connections`."""

    def __init__(self, credentials: Credentials, *, plain: bool = False) -> None:
        self._transport = Connections(plain=plain)
        mounts = proxy_mounts(_through_proxy)
        self._by_client = bool(mounts) or credentials.auth is not None
        self.client = httpx.Client(
            transport=self._transport,
            mounts=mounts,
            headers={**credentials.headers, **_HEADERS},
            auth=credentials.auth,
            cookies=_no_cookies(),
        )
        self._requests = RequestCache()

    def send(self, asked: Mapping[str, Any]) -> httpx.Response:
        """Send a request, and return the response before its body is read."""
        request = self._requests.request(self.client, asked)
        if self._by_client or _is_for_client(self.client, request):
            return self.client.send(request, stream=True)
        response = self._transport.handle_request(request)
        response.request = request
        return response


class OwnAsyncClient:
    """An ``httpx.AsyncClient`` that sends ``credentials``, over any transport.

    ``make_transport(proxy)`` makes the transport of a proxy. None means direct connections.
    """

    def __init__(
        self,
        credentials: Credentials,
        make_transport: Callable[[httpx.Proxy | None], httpx.AsyncBaseTransport],
    ) -> None:
        self._transport = make_transport(None)
        mounts = proxy_mounts(make_transport)
        self._by_client = bool(mounts) or credentials.auth is not None
        self.client = httpx.AsyncClient(
            transport=self._transport,
            mounts=mounts,
            headers={**credentials.headers, **_HEADERS},
            auth=credentials.auth,
            cookies=_no_cookies(),
        )
        self._requests = RequestCache()

    async def send(self, asked: Mapping[str, Any]) -> httpx.Response:
        """Send a request, and return the response before its body is read."""
        request = self._requests.request(self.client, asked)
        if self._by_client or _is_for_client(self.client, request):
            return await self.client.send(request, stream=True)
        response = await self._transport.handle_async_request(request)
        response.request = request
        return response


def client_of(**options: Any) -> httpx.Client:
    """Return an ``httpx.Client`` with the same connections and proxies as :class:`OwnClient`.

    Raises:
        DeclarationError: The environment names a proxy or certificates that cannot be used.
    """
    mounts = proxy_mounts(_through_proxy)
    transport = Connections(plain=False)
    return httpx.Client(transport=transport, mounts=mounts, cookies=_no_cookies(), **options)


def proxy_mounts(make: Callable[[httpx.Proxy], T]) -> dict[str, T | None]:
    """Return the proxies of the environment as ``mounts`` of a client.

    Entries of NO_PROXY that httpx cannot express, such as networks, are ignored. httpx itself
    fails to make a client if there is such an entry (encode/httpx#3221).

    Raises:
        DeclarationError: A proxy or the certificates cannot be used.
    """
    found = urllib.request.getproxies()
    hosts = [host.strip() for host in found.get("no", "").split(",") if host.strip()]
    if "*" in hosts:
        return {}
    mounts: dict[str, T | None] = {}
    for scheme in ("http", "https", "all"):
        if url := found.get(scheme):
            try:
                mounts[f"{scheme}://"] = make(httpx.Proxy(url if "://" in url else f"http://{url}"))
            except DeclarationError:  # the error is about SSL_CERT_FILE, not the proxy
                raise
            except (ValueError, ImportError, httpx.InvalidURL) as exc:
                name = f"{scheme}_proxy".upper()
                raise DeclarationError(name, f"names a proxy that cannot be used: {exc}") from exc
    return {**mounts, **dict.fromkeys(_patterns(hosts))} if mounts else {}


def _patterns(hosts: list[str]) -> Iterator[str]:
    """Return httpx's patterns for hosts that are called without a proxy."""
    for host in hosts:
        try:
            address = ipaddress.ip_address(host.strip("[]"))
            pattern = f"all://[{address}]" if address.version == 6 else f"all://{address}"
        except ValueError:
            every = "" if host.lower() == "localhost" else "*"
            pattern = host if "://" in host else f"all://{every}{host.lstrip('*')}"
        try:
            httpx.URL(pattern)
        except httpx.InvalidURL:
            continue
        yield pattern


def _through_proxy(proxy: httpx.Proxy) -> httpx.BaseTransport:
    return _blocking(_certificates(), proxy)


def httpx_connections(
    context: ssl.SSLContext, proxy: httpx.Proxy | None = None
) -> httpx.AsyncBaseTransport:
    """Make httpx's own transport for event loops."""
    return httpx.AsyncHTTPTransport(verify=context, proxy=proxy, limits=LIMITS)


def connections_of(
    proxy: httpx.Proxy | None, *, plain: bool, make: MakeConnections = httpx_connections
) -> httpx.AsyncBaseTransport:
    """Make an httpx transport for event loops, which connects directly or through a proxy."""
    if proxy is None:
        return AsyncConnections(make, plain=plain)
    return make(_certificates(), proxy)


def _is_for_client(client: httpx.Client | httpx.AsyncClient, request: httpx.Request) -> bool:
    """Return True if only ``client.send`` can handle a request.

    It refuses calls of a closed client, adds the credentials in a URL, and may call a tracer.
    """
    return client.is_closed or bool(request.url.userinfo) or _is_patched(type(client))


def _is_patched(cls: type[httpx.Client | httpx.AsyncClient]) -> bool:
    """Return True if another library, such as a tracer, has replaced ``send``."""
    send, own = cls.send, cls.build_request
    plain = isinstance(send, types.FunctionType)
    return not (plain and send.__code__.co_filename == own.__code__.co_filename)


class RequestCache:
    """Caches requests of :class:`OwnClient` and :class:`OwnAsyncClient`, which have fixed headers.

    Building a request takes a third of the time of a poll.
    """

    def __init__(self) -> None:
        # Threads share the cache, and an OrderedDict is not safe for that without the GIL.
        self._known: dict[tuple[str, str, bytes], httpx.Request] = {}

    def request(
        self, client: httpx.Client | httpx.AsyncClient, asked: Mapping[str, Any]
    ) -> httpx.Request:
        """Build a request, as ``client.build_request`` does."""
        unusual = asked.keys() - {"method", "url", "timeout", "content", "headers"}
        # Not cached: tracing adds other headers, which differ from call to call.
        if unusual or asked.get("headers", {}).keys() - {"content-type"}:
            return client.build_request(**asked)
        key = asked["method"], asked["url"], asked.get("content", b"")
        if len(key[2]) > _MAX_KNOWN_BODY_BYTES:
            return client.build_request(**asked)
        known = self._known.pop(key, None) or client.build_request(**asked)
        self._known[key] = known
        while len(self._known) > MAX_KNOWN_REQUESTS:
            oldest, *_ = [*self._known]  # a copy: other threads may change the dict
            self._known.pop(oldest, None)
        # A new object, because another thread may send the cached request with another timeout.
        request = httpx.Request(
            known.method,
            known.url,
            headers=known.headers,
            stream=known.stream,
            extensions={"timeout": httpx.Timeout(asked["timeout"]).as_dict()},
        )
        request.read()  # otherwise a transport may send the body in chunks
        return request
