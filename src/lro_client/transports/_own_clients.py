"""The HTTP clients of transports that were given none, and the requests that they send again.

Half of what an HTTP client does at each call is for options that these do not have. So a request
is built once, and goes to the transport of httpx at once where nothing lies between.
"""

from __future__ import annotations

import collections
import ssl
import threading
import urllib.request
from collections.abc import Callable, Mapping
from typing import Any, Final

import httpx

from lro_client.transports._unpacking import CODINGS

_HEADERS: Final = {"accept-encoding": CODINGS}

MAX_KNOWN_REQUESTS: Final = 64
"""Requests whose parts are kept, the ones that were used last."""

_MAX_KNOWN_BODY_BYTES: Final = 1024
"""Larger bodies hold many names, and no two of them are the same."""


class Connections(httpx.BaseTransport):
    """httpx's connections. With ``plain`` the first https call reads the trusted certificates.

    These take 20 ms and 1 MB, and many servers are called without TLS.
    """

    def __init__(self, *, plain: bool) -> None:
        self._plain = httpx.HTTPTransport(verify=_without_certificates()) if plain else None
        self._secure = None if plain else httpx.HTTPTransport()
        self._lock = threading.Lock()

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """As of httpx's transport."""
        if self._plain is not None and request.url.scheme == "http":
            return self._plain.handle_request(request)
        with self._lock:
            self._secure = self._secure or httpx.HTTPTransport()
        return self._secure.handle_request(request)

    def close(self) -> None:
        """Close all connections."""
        for one in (self._plain, self._secure):
            if one is not None:
                one.close()


class AsyncConnections(httpx.AsyncBaseTransport):
    """The same on an event loop."""

    def __init__(self, *, plain: bool) -> None:
        self._plain = httpx.AsyncHTTPTransport(verify=_without_certificates()) if plain else None
        self._secure = None if plain else httpx.AsyncHTTPTransport()

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """As of httpx's transport."""
        if self._plain is not None and request.url.scheme == "http":
            return await self._plain.handle_async_request(request)
        self._secure = self._secure or httpx.AsyncHTTPTransport()
        return await self._secure.handle_async_request(request)

    async def aclose(self) -> None:
        """Close all connections."""
        for one in (self._plain, self._secure):
            if one is not None:
                await one.aclose()


def _without_certificates() -> ssl.SSLContext:
    """A context that trusts no certificate, for connections without TLS."""
    return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


class OwnClient:
    """An ``httpx.Client`` without options; ``plain`` as for :class:`Connections`."""

    def __init__(self, *, plain: bool = False) -> None:
        self._transport = None if _proxies() else Connections(plain=plain)
        self.client = httpx.Client(transport=self._transport, headers=_HEADERS)
        self._requests = RequestCache()

    def send(self, asked: Mapping[str, Any]) -> httpx.Response:
        """The response to a request of these arguments, whose body is still to be read."""
        request = self._requests.request(self.client, asked)
        if self._transport is None or _is_for_client(self.client, request):
            return self.client.send(request, stream=True)
        return _received(self.client, request, self._transport.handle_request(request))


class OwnAsyncClient:
    """An ``httpx.AsyncClient`` without options, upon any transport."""

    def __init__(
        self,
        make_client: Callable[..., httpx.AsyncClient],
        make_transport: Callable[[], httpx.AsyncBaseTransport],
    ) -> None:
        self._transport = None if _proxies() else make_transport()
        self.client = make_client(transport=self._transport, headers=_HEADERS)
        self._requests = RequestCache()

    async def send(self, asked: Mapping[str, Any]) -> httpx.Response:
        """As :meth:`OwnClient.send`."""
        request = self._requests.request(self.client, asked)
        if self._transport is None or _is_for_client(self.client, request):
            return await self.client.send(request, stream=True)
        return _received(self.client, request, await self._transport.handle_async_request(request))


def _proxies() -> bool:
    """Whether the environment names a proxy: only a client finds out which requests go there."""
    return not {"http", "https", "all"}.isdisjoint(urllib.request.getproxies())


def _is_for_client(client: httpx.Client | httpx.AsyncClient, request: httpx.Request) -> bool:
    """Whether the client has to add something, or to refuse it."""
    return client.is_closed or bool(request.url.userinfo)


def _received(
    client: httpx.Client | httpx.AsyncClient, request: httpx.Request, response: httpx.Response
) -> httpx.Response:
    response.request = request
    if "set-cookie" in response.headers:
        client.cookies.extract_cookies(response)
    return response


class RequestCache:
    """Parts of the requests of a client that was made here, whose headers do not change.

    Building a request takes a third of a poll.
    """

    def __init__(self) -> None:
        self._known: collections.OrderedDict[tuple[str, str, bytes], httpx.Request]
        self._known = collections.OrderedDict()

    def request(
        self, client: httpx.Client | httpx.AsyncClient, asked: Mapping[str, Any]
    ) -> httpx.Request:
        """The request of these arguments of ``client.build_request``."""
        unusual = asked.keys() - {"method", "url", "timeout", "content", "headers"}
        # Cookies come from the server with replies, and headers of their own from tracing.
        if unusual or client.cookies or asked.get("headers", {}).keys() - {"content-type"}:
            return client.build_request(**asked)
        key = asked["method"], asked["url"], asked.get("content", b"")
        if len(key[2]) > _MAX_KNOWN_BODY_BYTES:
            return client.build_request(**asked)
        known = self._known.pop(key, None) or client.build_request(**asked)
        self._known[key] = known
        while len(self._known) > MAX_KNOWN_REQUESTS:
            self._known.popitem(last=False)
        # Another thread may send the same one with another timeout.
        request = httpx.Request(
            known.method,
            known.url,
            headers=known.headers,
            stream=known.stream,
            extensions={"timeout": httpx.Timeout(asked["timeout"]).as_dict()},
        )
        request.read()  # a transport that finds it unread may send the body in chunks
        return request
