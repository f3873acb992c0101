"""Calls over gRPC by grpcio (spec §12, §11.10). Needs the extra ``grpc``."""

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
"""Maximum size of a reply in bytes; ``options`` can set another one."""

_CLOSED: Final = Status(Code.CANCELLED, "the client was closed")

Options = Sequence[tuple[str, Any]]
C = TypeVar("C")

_OPTIONS: Final[Options] = (
    ("grpc.max_receive_message_length", MAX_REPLY),
    ("grpc.max_metadata_size", 64 * 1024),
    # When to ask again is for the client's policies: the channel tries to connect about as often.
    ("grpc.initial_reconnect_backoff_ms", 250),
    ("grpc.max_reconnect_backoff_ms", 2_000),
    # Gateways forget idle connections, some after four minutes, and by default servers refuse pings
    # more often than every five. So what has had no call for one to two minutes is given up.
    ("grpc.client_idle_timeout_ms", 60_000),
    # Another channel makes connections of its own, instead of those of this process.
    ("grpc.use_local_subchannel_pool", 1),
)

_URLS: Final = frozenset({"grpc", "grpcs", "http", "https"})
"""Schemes that the command line knows, and grpcio does not: it would look for such a host."""
_FAIR_SECONDS: Final = 1.0
"""A call with less time than this proves nothing about its connection."""
_WHOLE_BUDGET: Final = 0.9
"""A call that took this share of its budget was ended by it; timers can be early."""


class _Channel(Generic[C]):
    """A channel, and the callables of its paths."""

    def __init__(self, channel: C) -> None:
        self.channel = channel
        self.paths: dict[str, Any] = {}
        self.calls = 0
        """Number of calls in flight."""


class _Line(Generic[C]):
    """The channel of a transport; one that was not given is made when it is first needed.

    A connection may have died without a word, as where a gateway on the way has forgotten it.
    grpcio finds out after many minutes. So a channel of our own is replaced with the first call
    that has no reply in time.
    """

    def __init__(self, make: Callable[[], C], given: C | None = None) -> None:
        self._make = make
        self._own = given is None
        self._open = None if given is None else _Channel(given)
        self._closed = False
        self._lock = threading.Lock()

    def begin(self, call: Call, path: str) -> tuple[_Channel[C], Any]:
        """Return the channel of a call that begins, and the callable of its path.

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
        """Take in how a call has ended; returns the channel, if it is to be closed now."""
        with self._lock:
            used.calls -= 1
            if self._own and self._open is used and silent:
                self._open = None
            # Others may still wait for replies on it.
            return used.channel if self._own and self._open is not used and not used.calls else None

    def close(self) -> C | None:
        """Return the channel to close, if this object has made one, and forget it."""
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
    """Return the server as tokens write it; empty if the channel was given.

    Raises:
        DeclarationError: The target is a URL.
    """
    if isinstance(target, str) and target.partition("://")[0] in _URLS:
        wanted = "must be an address without a scheme, such as localhost:50051 (TLS: credentials)"
        raise DeclarationError("target", f"{wanted}, got {target!r}")
    scheme = "grpc" if credentials is None else "grpcs"
    return f"{scheme}://{target}" if isinstance(target, str) else ""


def _is_silent(call: Call, began: float) -> bool:
    """Return True if a call without a reply had enough time for one."""
    took = time.monotonic() - began
    return call.budget >= _FAIR_SECONDS and took >= call.budget * _WHOLE_BUDGET


class GrpcTransport:
    """Calls over a ``grpc.Channel``.

    ``target`` is a server's address such as ``localhost:50051``, or a channel, which is then not
    closed with this. ``credentials`` are those of the channel (None: no TLS), ``metadata`` is sent
    with every call, ``types`` are the message classes of starts, ``options`` further options of
    the channel. The channel is made with the first call. After a call without a reply in time
    it is replaced, since its connection may be dead. A channel that was given is kept.

    Raises:
        DeclarationError: The target is a URL, such as that which ``lro serve`` prints.
    """

    bounds = True
    """True: grpcio keeps to the budget of each call."""

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
        except Exception as exc:  # the channel is closed, or takes no such metadata
            raise unsent(call, exc) from exc
        finally:
            if (channel := self._line.end(used, silent=silent)) is not None:
                channel.close()
        return self._coder.decode(call, found)

    def close(self) -> None:
        """Close the channel, if it was made here."""
        channel = self._line.close()
        if channel is not None:
            channel.close()


class AsyncGrpcTransport:
    """Calls over a ``grpc.aio.Channel``; the arguments are those of :class:`GrpcTransport`.

    It makes a channel for each event loop that calls.
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
            except Exception as exc:  # the channel is closed, or takes no such metadata
                raise unsent(call, exc) from exc
            # grpcio makes a CancelledError of its own, which the scopes of anyio do not take for
            # theirs (grpc#43502). So this task waits beside the call.
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
            if channel is not None:  # in a task of its own, as this one may be cancelled
                closing = asyncio.ensure_future(channel.close())
                self._closing.add(closing)
                closing.add_done_callback(self._closing.discard)

    async def close(self) -> None:
        """Close the channels, if they were made here."""
        self._closed = self._given is None
        await self._lines.end_all(_close)
        await asyncio.gather(*self._closing, return_exceptions=True)


async def _close(line: _Line[grpc.aio.Channel]) -> None:
    channel = line.close()
    if channel is not None:
        await channel.close()
