"""Calls over gRPC with grpcio (spec §12, §11.10). Needs the extra ``grpc``."""

from __future__ import annotations

import asyncio
import functools
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Final, Generic, TypeVar, cast

from lro import Code, DeclarationError, Status, TypeRegistry
from lro.errors import MissingExtra
from lro_client._errors import CallError
from lro_client._flow.by_loop import ByLoop
from lro_client._flow.steps import Call, Reply

try:
    import grpc
    import grpc.aio

    from lro_client.transports._grpc_coding import GrpcCoder, Metadata, unsent
except ImportError as _exc:
    raise MissingExtra("the gRPC transport", "grpc") from _exc

__all__ = ["AsyncGrpcTransport", "GrpcTransport"]

MAX_REPLY: Final = 8 * 1024 * 1024
"""Default for the maximum size of a reply in bytes. ``options`` can change it."""

_CLOSED: Final = Status(Code.CANCELLED, "the client was closed")

Options = Sequence[tuple[str, Any]]
C = TypeVar("C")

_OPTIONS: Final[Options] = (
    ("grpc.max_receive_message_length", MAX_REPLY),
    ("grpc.max_metadata_size", 64 * 1024),
    # The client's policies decide when to retry. The channel must reconnect about as often.
    ("grpc.initial_reconnect_backoff_ms", 250),
    ("grpc.max_reconnect_backoff_ms", 2_000),
    # Gateways drop idle connections, some after four minutes, and by default servers allow a ping
    # only every five minutes. So a channel is closed after one to two minutes without a call.
    ("grpc.client_idle_timeout_ms", 60_000),
    # A new channel must open its own connections instead of sharing those of earlier channels.
    ("grpc.use_local_subchannel_pool", 1),
)

_URLS: Final = frozenset({"grpc", "grpcs", "http", "https"})
"""Schemes that the command line accepts, but that grpcio would read as host names."""
_FAIR_SECONDS: Final = 1.0
"""A timeout after fewer seconds does not prove that the connection is dead."""
_WHOLE_BUDGET: Final = 0.9
"""A call that took this share of its budget counts as timed out, because timers may fire early."""


class _Channel(Generic[C]):
    """A channel, and for each path the function that makes the calls."""

    def __init__(self, channel: C) -> None:
        self.channel = channel
        self.paths: dict[str, Any] = {}
        self.calls = 0
        """Number of calls in flight."""


class _Line(Generic[C]):
    """A transport's channel, which is either given, or made when it is first needed.

    A connection can die silently, for example if a gateway has dropped it. grpcio notices that
    only after many minutes. So a channel that the transport made is replaced as soon as a call gets
    no reply in time.
    """

    def __init__(self, make: Callable[[], C], given: C | None = None) -> None:
        self._make = make
        self._own = given is None
        self._open = None if given is None else _Channel(given)
        self._closed = False
        self._lock = threading.Lock()

    def begin(self, call: Call, path: str) -> tuple[_Channel[C], Any]:
        """Return the channel of a call that begins, and the channel's callable for the path.

        Raises:
            CallError: The transport was closed.
        """
        with self._lock:
            if self._closed:
                raise CallError(call.verb, _CLOSED)
            if self._open is None:
                self._open = _Channel(self._make())
            found = self._open
            if path not in found.paths:
                found.paths[path] = cast(Any, found.channel).unary_unary(path)
            found.calls += 1
            return found, found.paths[path]

    def end(self, used: _Channel[C], *, silent: bool) -> C | None:
        """Record that a call has ended, and return the channel if it must be closed now."""
        with self._lock:
            used.calls -= 1
            if self._own and self._open is used and silent:
                self._open = None
            # Other calls may still wait for replies on this channel.
            return used.channel if self._own and self._open is not used and not used.calls else None

    def close(self) -> C | None:
        """Forget the channel that the transport made, and return it for the caller to close.

        Return None if there is no such channel.
        """
        with self._lock:
            if not self._own:
                return None
            self._closed, found, self._open = True, self._open, None
            return None if found is None else found.channel


def _channel(
    library: Any, target: object, credentials: grpc.ChannelCredentials | None, options: Options
) -> Any:
    """Make a channel with ``grpc`` or ``grpc.aio``."""
    every = tuple({**dict(_OPTIONS), **dict(options)}.items())
    if credentials is None:
        return library.insecure_channel(target, every)
    return library.secure_channel(target, credentials, every)


def _address(target: object, credentials: object) -> str:
    """Return the server's address as written in tokens, or empty if a channel was given.

    Raises:
        DeclarationError: The target is a URL.
    """
    if isinstance(target, str) and target.partition("://")[0] in _URLS:
        wanted = "must be an address without a scheme, such as localhost:50051 (TLS: credentials)"
        raise DeclarationError("target", f"{wanted}, got {target!r}")
    scheme = "grpc" if credentials is None else "grpcs"
    return f"{scheme}://{target}" if isinstance(target, str) else ""


def _is_silent(call: Call, began: float) -> bool:
    """Return True if a call got no reply although it had enough time."""
    took = time.monotonic() - began
    return call.budget >= _FAIR_SECONDS and took >= call.budget * _WHOLE_BUDGET


class GrpcTransport:
    """Makes calls over a ``grpc.Channel``.

    ``target`` is a server's address such as ``localhost:50051``, or a channel. The transport does
    not close or replace a channel that you pass. ``credentials`` are the channel credentials, where
    None means no TLS. ``metadata`` is sent with every call, ``types`` are the message classes of
    starts, and ``options`` are more channel options. The transport makes its channel at the first
    call, and replaces it after a call that got no reply in time, because the connection may be
    dead.

    Raises:
        DeclarationError: The target is a URL, such as the one that ``lro serve`` prints.
    """

    bounds = True
    """True: grpcio enforces the budget of each call."""

    def __init__(
        self,
        target: str | grpc.Channel,
        *,
        metadata: Metadata = (),
        credentials: grpc.ChannelCredentials | None = None,
        types: TypeRegistry | None = None,
        options: Options = (),
    ) -> None:
        make = functools.partial(_channel, grpc, target, credentials, options)
        self.address: str = _address(target, credentials)
        given = None if isinstance(target, str) else target
        self._line: _Line[grpc.Channel] = _Line(make, given)
        self._coder = GrpcCoder(metadata, types or TypeRegistry())

    def send(self, call: Call) -> Reply:
        """Make a call, and return the server's reply."""
        path, payload, metadata = self._coder.encode(call)
        used, ask = self._line.begin(call, path)
        began, silent = time.monotonic(), False
        try:
            found = ask(payload, timeout=call.budget, metadata=metadata)
        except grpc.RpcError as exc:
            error = self._coder.error(call, exc)
            silent = error.code is Code.DEADLINE_EXCEEDED and _is_silent(call, began)
            raise error from exc
        except Exception as exc:  # the channel is closed, or refuses the metadata
            raise unsent(call, exc) from exc
        finally:
            if (channel := self._line.end(used, silent=silent)) is not None:
                channel.close()
        return self._coder.decode(call, found)

    def close(self) -> None:
        """Close the channel unless you passed it."""
        channel = self._line.close()
        if channel is not None:
            channel.close()


class AsyncGrpcTransport:
    """Makes calls over a ``grpc.aio.Channel``. The arguments are those of :class:`GrpcTransport`.

    The transport makes a channel for each event loop that makes calls.
    """

    def __init__(
        self,
        target: str | grpc.aio.Channel,
        *,
        metadata: Metadata = (),
        credentials: grpc.ChannelCredentials | None = None,
        types: TypeRegistry | None = None,
        options: Options = (),
    ) -> None:
        make = functools.partial(_channel, grpc.aio, target, credentials, options)
        self.address: str = _address(target, credentials)
        self._given: _Line[grpc.aio.Channel] | None = None
        if not isinstance(target, str):
            self._given = _Line(make, target)
        self._lines: ByLoop[_Line[grpc.aio.Channel]] = ByLoop(lambda: _Line(make))
        self._closed = False
        self._closing: set[asyncio.Future[None]] = set()
        self._coder = GrpcCoder(metadata, types or TypeRegistry())

    async def send(self, call: Call) -> Reply:
        """Make a call, and return the server's reply."""
        path, payload, metadata = self._coder.encode(call)
        if self._closed:
            raise CallError(call.verb, _CLOSED)
        line = self._given or self._lines.here()
        used, ask = line.begin(call, path)
        began, silent = time.monotonic(), True
        try:
            try:
                sent = ask(payload, timeout=call.budget, metadata=metadata)
            except Exception as exc:  # the channel is closed, or refuses the metadata
                raise unsent(call, exc) from exc
            # grpcio raises a new CancelledError, which anyio's cancel scopes do not recognize as
            # their own (grpc#43502). So this task does not await the call itself.
            answer = asyncio.ensure_future(sent)
            try:
                await asyncio.wait([answer])
            finally:
                answer.cancel()
            if answer.cancelled():
                closed = Status(Code.CANCELLED, "the channel was closed during the call")
                raise CallError(call.verb, closed)
            try:
                found = answer.result()
            except grpc.aio.AioRpcError as exc:
                error = self._coder.error(call, exc)
                silent = error.code is Code.DEADLINE_EXCEEDED
                raise error from exc
            except Exception as exc:
                raise unsent(call, exc) from exc
            silent = False
            return self._coder.decode(call, found)
        finally:
            channel = line.end(used, silent=silent and _is_silent(call, began))
            if channel is not None:  # closed in a new task, because this one may be cancelled
                closing = asyncio.ensure_future(channel.close())
                self._closing.add(closing)
                closing.add_done_callback(self._closing.discard)

    async def close(self) -> None:
        """Close the channels, except one that you passed."""
        self._closed = self._given is None
        await self._lines.end_all(_close)
        await asyncio.gather(*self._closing, return_exceptions=True)


async def _close(line: _Line[grpc.aio.Channel]) -> None:
    channel = line.close()
    if channel is not None:
        await channel.close()
