"""Transport of webhooks: checked addresses only, a time limit, no redirects, no default proxies.

Each address is checked when the connection is made, and the connection uses this very address. An
earlier check would not help if the name server returned another address at the second query. TLS
and the header Host use the name in the URL.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextvars import ContextVar
from typing import Any, Final, TypeAlias

import attrs
import httpcore
import httpx

from lro._webhooks.addresses import is_global

Resolve: TypeAlias = Callable[[str, int], Sequence[str]]
"""A function that returns the IP addresses of a host and port. It may block, and raise OSError."""

MAX_BODY: Final = 4096
"""Most bytes of a response body that are read and discarded."""

_BODY_SECONDS: Final = 1.0
"""Seconds to read a response's body, which is not used, before the connection is closed."""
_ADDRESSES: Final = 3
_KEPT_SECONDS: Final = 1.0
"""Idle seconds after which a connection is closed; servers keep idle connections longer."""
_PIECE: Final = 4096


@attrs.frozen
class WebhookReply:
    """The result of a request: an HTTP status, or 0 and the reason why there is none."""

    status: int
    why: str = ""
    retry_after: str = ""

    @property
    def success(self) -> bool:
        """True for 2xx (Standard Webhooks 1.0.0)."""
        return 200 <= self.status < 300

    def __str__(self) -> str:
        return self.why or f"HTTP {self.status}"


class AddressRefused(httpcore.ConnectError):
    """The host has no allowed address."""


class _Deadline:
    """The time limit that all steps of a request share."""

    def __init__(self, seconds: float) -> None:
        self._at = time.monotonic() + seconds

    def shorten(self, seconds: float) -> None:
        self._at = min(self._at, time.monotonic() + seconds)

    def left(self) -> float:
        left = self._at - time.monotonic()
        if left <= 0:
            raise httpcore.TimeoutException
        return left


_deadline: ContextVar[_Deadline] = ContextVar("lro_webhook_deadline")


_Opened: TypeAlias = "weakref.WeakKeyDictionary[_TimedStream, None]"


class _TimedStream(httpcore.NetworkStream):
    def __init__(self, stream: httpcore.NetworkStream, opened: _Opened) -> None:
        self._stream = stream
        self._opened = opened
        opened[self] = None

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:  # noqa: ARG002
        return self._stream.read(max_bytes, _deadline.get().left())

    def write(self, buffer: bytes, timeout: float | None = None) -> None:  # noqa: ARG002
        # Write in pieces, because each partial success of a large write would restart its timeout.
        for begin in range(0, len(buffer), _PIECE):
            self._stream.write(buffer[begin : begin + _PIECE], _deadline.get().left())

    def close(self) -> None:
        self._stream.close()

    def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,  # noqa: ARG002
    ) -> httpcore.NetworkStream:
        stream = self._stream.start_tls(ssl_context, server_hostname, _deadline.get().left())
        return _TimedStream(stream, self._opened)

    def get_extra_info(self, info: str) -> Any:
        return self._stream.get_extra_info(info)


class _CheckedBackend(httpcore.NetworkBackend):
    """Connect to the checked addresses of a host, whose name is resolved once."""

    def __init__(self, resolve: Resolve, allowed: Callable[[str], bool]) -> None:
        self._resolve = resolve
        self._allowed = allowed
        self._backend = httpcore.SyncBackend()
        self._opened: _Opened = weakref.WeakKeyDictionary()

    def opened(self) -> list[_TimedStream]:
        """Return the connections that exist, while threads may open and drop some."""
        return [one for known in self._opened.keyrefs() if (one := known()) is not None]

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ARG002
        local_address: str | None = None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> httpcore.NetworkStream:
        try:
            found = list(dict.fromkeys(self._resolve(host, port)))
        except (OSError, UnicodeError):  # UnicodeError: a label of the host name is too long
            raise httpcore.ConnectError("its host has no address") from None
        addresses = [address for address in found if self._allowed(address)][:_ADDRESSES]
        if not addresses:
            raise AddressRefused("its host has no address that is global")

        def connect(address: str, share: int) -> httpcore.NetworkStream:
            left = _deadline.get().left() / share
            stream = self._backend.connect_tcp(address, port, left, local_address, socket_options)
            return _TimedStream(stream, self._opened)

        *others, last = addresses
        for place, address in enumerate(others):
            with contextlib.suppress(httpcore.ConnectError, httpcore.ConnectTimeout):
                return connect(address, len(addresses) - place)
        return connect(last, 1)


def system_addresses(host: str, port: int) -> Sequence[str]:
    """Return the addresses of a host from the resolver of the system.

    Raises:
        OSError: The host has no address.
    """
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(address[0]) for *_, address in found]


class WebhookTransport:
    """Send webhooks over a few connections.

    ``timeout`` bounds a request in seconds, from resolving the name to the status of the response.
    A ``proxy`` must check addresses itself. ``ssl_context`` has the trusted certificates.
    """

    def __init__(
        self,
        *,
        timeout: float,
        allow_private: bool = False,
        proxy: str | None = None,
        ssl_context: ssl.SSLContext | None = None,
        resolve: Resolve = system_addresses,
    ) -> None:
        self._timeout = timeout
        self._proxy = proxy
        self._context = ssl_context
        anywhere = allow_private or proxy is not None
        self._backend = _CheckedBackend(resolve, (lambda _: True) if anywhere else is_global)
        self.reset_after_fork()

    def reset_after_fork(self) -> None:
        """Start over without connections, and close only this process's file descriptors."""
        for stream in self._backend.opened():  # the pool's lock may be held
            with contextlib.suppress(OSError):
                stream.close()
        self._pool: httpcore.ConnectionPool | None = None
        self._making = threading.Lock()

    def send(self, url: str, headers: Mapping[str, str], body: bytes) -> WebhookReply:
        """Send a POST, and return its result. Raises nothing."""
        deadline = _Deadline(self._timeout)
        token = _deadline.set(deadline)
        try:
            at = httpx.URL(url)
            sent = [(b"Host", at.netloc), *((k.encode(), v.encode()) for k, v in headers.items())]
            to = httpcore.URL(
                scheme=at.raw_scheme, host=at.raw_host, port=at.port, target=at.raw_path
            )
            with self._connections().stream("POST", to, headers=sent, content=body) as response:
                deadline.shorten(_BODY_SECONDS)
                _drop(response)
                return _reply(response)
        except httpcore.TimeoutException:
            return WebhookReply(0, f"no answer within {self._timeout:g} s")
        except AddressRefused as exc:
            return WebhookReply(0, str(exc))
        except httpcore.ConnectError as exc:
            return WebhookReply(0, f"no connection: {exc}")
        except Exception as exc:  # a protocol error, a bad URL, or close() has ended the connection
            return WebhookReply(0, f"the connection failed: {type(exc).__name__}")
        finally:
            _deadline.reset(token)

    def close(self) -> None:
        """End all requests and connections."""
        for stream in self._backend.opened():
            with contextlib.suppress(OSError, ValueError, AttributeError):
                # Not SSLSocket.shutdown: another thread may be reading.
                socket.socket.shutdown(stream.get_extra_info("socket"), socket.SHUT_RDWR)
        pool, self._pool = self._pool, None
        if pool is not None:
            with contextlib.suppress(Exception):  # the pool warns if requests are in progress
                pool.close()

    def _connections(self) -> httpcore.ConnectionPool:
        with self._making:
            if self._pool is None:
                self._pool = self._made()
            return self._pool

    def _made(self) -> httpcore.ConnectionPool:
        context = self._context or httpx.create_ssl_context()
        if self._proxy is None:
            return httpcore.ConnectionPool(
                ssl_context=context,
                max_connections=None,
                keepalive_expiry=_KEPT_SECONDS,
                network_backend=self._backend,
            )
        user = httpx.URL(self._proxy)
        return httpcore.HTTPProxy(
            self._proxy,
            proxy_auth=(user.username, user.password) if user.userinfo else None,
            ssl_context=context,
            max_connections=None,
            keepalive_expiry=_KEPT_SECONDS,
            network_backend=self._backend,
        )


def _drop(response: httpcore.Response) -> None:
    """Read a little of the body, so that the connection can be reused."""
    size = 0
    with contextlib.suppress(Exception):  # the body is not used
        for part in response.iter_stream():
            size += len(part)
            if size > MAX_BODY:
                return


def _reply(response: httpcore.Response) -> WebhookReply:
    later = next((value for name, value in response.headers if name.lower() == b"retry-after"), b"")
    why = ""
    if 300 <= response.status < 400:
        why = f"HTTP {response.status}: redirects are not followed"
    return WebhookReply(response.status, why, later.decode("latin-1"))
