"""Calls over HTTP with aiohttp instead of httpx's own connections. Needs the extra ``aiohttp``."""

from __future__ import annotations

import functools
import ssl
from typing import Final, Unpack

import httpx

from lro import TypeRegistry
from lro.errors import MissingExtra
from lro_client.transports._credentials import AsyncSendOptions
from lro_client.transports._own_clients import IDLE_SECONDS, OwnAsyncClient, connections_of
from lro_client.transports.http import AsyncHttpTransport, Routes

try:
    import aiohttp
    import httpx_aiohttp
except ImportError as _exc:
    raise MissingExtra("the aiohttp transport", "aiohttp") from _exc

__all__ = ["AiohttpTransport"]

_MAX_HEADER_BYTES: Final = 100 * 1024  # the same limit as in httpx
_MAX_CONNECTIONS: Final = 100


class AiohttpTransport(AsyncHttpTransport):
    """Makes calls with aiohttp, whose C parser needs about half the CPU time of httpx.

    Proxies and certificates come from the environment, as with httpx. The arguments are the same
    as for :class:`AsyncHttpTransport`, without an HTTP client.
    """

    def __init__(
        self,
        *,
        base_url: str = "",
        routes: Routes | None = None,
        types: TypeRegistry | None = None,
        **options: Unpack[AsyncSendOptions],
    ) -> None:
        super().__init__(base_url=base_url, routes=routes, types=types, **options)

    def _make_own(self) -> OwnAsyncClient:
        make = functools.partial(connections_of, plain=self._plain, make=_connections)
        return OwnAsyncClient(self._credentials, make)


class _Connections(httpx_aiohttp.AiohttpTransport):
    """httpx-aiohttp's transport, which also accepts passwords in URLs and raises httpx's errors."""

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        url = request.url
        if url.userinfo:  # httpx has put it into a header too, and aiohttp refuses both together
            request.url = url.copy_with(userinfo=b"")
        try:
            return await super().handle_async_request(request)
        except aiohttp.ClientError as exc:
            raise httpx.RemoteProtocolError(str(exc), request=request) from exc
        finally:
            request.url = url


def _connections(
    context: ssl.SSLContext, proxy: httpx.Proxy | None = None
) -> httpx.AsyncBaseTransport:
    if proxy is not None and proxy.url.scheme not in ("http", "https"):
        raise ValueError(f"aiohttp has no proxies of the scheme {proxy.url.scheme!r}")
    session = functools.partial(_session, context)
    return _Connections(verify=context, proxy=proxy, client=session)


def _session(context: ssl.SSLContext) -> aiohttp.ClientSession:
    """Make a session on the running event loop, with the limits of ``httpx.AsyncClient``."""
    connector = aiohttp.TCPConnector(
        ssl=context,
        limit=_MAX_CONNECTIONS,
        keepalive_timeout=IDLE_SECONDS,
        resolver=aiohttp.ThreadedResolver(),
        use_dns_cache=False,
    )
    return aiohttp.ClientSession(
        connector=connector,
        cookie_jar=aiohttp.DummyCookieJar(),
        max_line_size=_MAX_HEADER_BYTES,
        max_field_size=_MAX_HEADER_BYTES,
        middlewares=(_send_once,),
    )


async def _send_once(
    request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType
) -> aiohttp.ClientResponse:
    """Keep aiohttp from retrying a GET or DELETE by itself: the client could not count the retry.

    If the reply to a Delete is lost, a retry by aiohttp would report NOT_FOUND.
    """
    try:
        return await handler(request)
    except aiohttp.ClientConnectorError:  # nothing was sent
        raise
    except (aiohttp.ClientOSError, aiohttp.ServerDisconnectedError) as exc:
        raise httpx.RemoteProtocolError(str(exc) or type(exc).__name__) from exc
