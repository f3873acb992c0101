"""Connections of blocking clients that keep the deadline of a call."""

from __future__ import annotations

import ssl
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import httpcore

from lro_client._flow.drivers import CALL_DEADLINE, CallTimedOut

_PIECE: Final = 64 * 1024
"""Maximum number of bytes per write.

httpcore restarts the timeout whenever the reader accepts a part of a write. So a slow reader could
prolong a large write beyond the deadline.
"""


@contextmanager
def _bounded(timeout: float | None) -> Iterator[float | None]:
    """Yield ``timeout``, or the time left until the call's deadline if that is shorter.

    Raises:
        CallTimedOut: The deadline has passed.
    """
    until = CALL_DEADLINE.until
    if until is None:
        yield timeout
        return
    left = until - time.monotonic()
    if left <= 0:
        raise CallTimedOut
    try:
        yield left if timeout is None else min(timeout, left)
    except httpcore.TimeoutException:
        if time.monotonic() >= until:
            raise CallTimedOut from None
        raise


class _TimedStream(httpcore.NetworkStream):
    """A connection with the deadline of :func:`ending_at`. httpx limits only single reads."""

    def __init__(self, stream: httpcore.NetworkStream) -> None:
        self._stream = stream

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        with _bounded(timeout) as seconds:
            return self._stream.read(max_bytes, seconds)

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        for begin in range(0, len(buffer), _PIECE):
            with _bounded(timeout) as seconds:
                self._stream.write(buffer[begin : begin + _PIECE], seconds)

    def close(self) -> None:
        self._stream.close()

    def get_extra_info(self, info: str) -> Any:
        return self._stream.get_extra_info(info)

    def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,
    ) -> httpcore.NetworkStream:
        with _bounded(timeout) as seconds:
            return _TimedStream(self._stream.start_tls(ssl_context, server_hostname, seconds))


class TimedBackend(httpcore.SyncBackend):
    """Makes connections with the deadline of :func:`ending_at`."""

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> httpcore.NetworkStream:
        with _bounded(timeout) as seconds:
            made = super().connect_tcp(host, port, seconds, local_address, socket_options)
            return _TimedStream(made)
