"""Calls over gRPC by grpcio (spec §12, §11.10). Needs the extra ``grpc``."""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import Callable, Sequence
from typing import Any, Final, Generic, TypeVar, cast

from lro import Code, Status, TypeRegistry
from lro.errors import MissingExtra
from lro_client._errors import CallError
from lro_client._flow.steps import Call, Reply

try:
    import grpc
    import grpc.aio

    from lro_client.transports._grpc_coding import GrpcCoder, Metadata, unsent
except ImportError as _exc:
    raise MissingExtra("the gRPC transport", "grpc") from _exc

__all__ = ["AsyncGrpcTransport", "GrpcTransport"]

MAX_REPLY: Final = 32 * 1024 * 1024
"""The largest reply that is read, in bytes."""

Options = Sequence[tuple[str, Any]]
C = TypeVar("C")

_OPTIONS: Final[Options] = (
    ("grpc.max_receive_message_length", MAX_REPLY),
    ("grpc.max_metadata_size", 64 * 1024),
    # When to ask again is for the client's policies: the channel tries to connect about as often.
    ("grpc.initial_reconnect_backoff_ms", 250),
    ("grpc.max_reconnect_backoff_ms", 2_000),
)


class _LazyChannel(Generic[C]):
    """A channel, made when it is first needed, and the callables of its paths."""

    def __init__(self, make: Callable[[], C], given: C | None) -> None:
        self.own = given is None
        self._make = make
        self._channel = given
        self._lock = threading.Lock()
        self._paths: dict[str, Any] = {}

    def path(self, path: str) -> Any:
        found = self._paths.get(path)
        if found is None:
            found = self._paths[path] = cast(Any, self._opened()).unary_unary(path)
        return found

    def _opened(self) -> C:
        with self._lock:
            if self._channel is None:
                self._channel = self._make()
            return self._channel

    def take(self) -> C | None:
        """The channel to close, if there is one of our own; the line has none from now on."""
        if not self.own:
            return None
        with self._lock:
            found, self._channel = self._channel, None
            self._paths.clear()
            return found


def _channel(
    library: Any,
    target: object,
    credentials: grpc.ChannelCredentials | None,
    options: Options,
) -> Any:
    """A channel of ``grpc`` or ``grpc.aio``, which make them alike."""
    every = tuple({**dict(_OPTIONS), **dict(options)}.items())
    if credentials is None:
        return library.insecure_channel(target, every)
    return library.secure_channel(target, credentials, every)


def _address(target: object, credentials: object) -> str:
    """The server as tokens and the command line write it; empty for a channel that was given."""
    scheme = "grpc" if credentials is None else "grpcs"
    return f"{scheme}://{target}" if isinstance(target, str) else ""


class GrpcTransport:
    """Calls over a ``grpc.Channel``.

    ``target`` is a server's address such as ``localhost:50051``, or a channel, which is then not
    closed with this. ``credentials`` are those of the channel (None: no TLS), ``metadata`` is sent
    with every call, ``types`` are the message classes of starts, ``options`` further options of
    the channel. The channel is made with the first call.
    """

    bounds = True
    """No call takes longer than its budget: grpcio sees to it."""

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
        self._line: _LazyChannel[grpc.Channel] = _LazyChannel(
            make, None if isinstance(target, str) else target
        )
        self._coder = GrpcCoder(metadata, types or TypeRegistry())

    def send(self, call: Call) -> Reply:
        """The server's reply."""
        path, payload, metadata = self._coder.encode(call)
        try:
            found = self._line.path(path)(payload, timeout=call.budget, metadata=metadata)
        except grpc.RpcError as exc:
            raise self._coder.error(call, exc) from exc
        except Exception as exc:  # the channel is closed, or takes no such metadata
            raise unsent(call, exc) from exc
        return self._coder.decode(call, found)

    def close(self) -> None:
        """Close the channel, if it was made here."""
        channel = self._line.take()
        if channel is not None:
            channel.close()


class AsyncGrpcTransport:
    """Calls over a ``grpc.aio.Channel``; the arguments are those of :class:`GrpcTransport`."""

    def __init__(
        self,
        target: str | grpc.aio.Channel,
        *,
        metadata: Metadata = (),
        credentials: grpc.ChannelCredentials | None = None,
        types: TypeRegistry | None = None,
        options: Options = (),
    ) -> None:
        # Made on the event loop that it will belong to.
        make = functools.partial(_channel, grpc.aio, target, credentials, options)
        self.address: str = _address(target, credentials)
        own = None if isinstance(target, str) else target
        self._line: _LazyChannel[grpc.aio.Channel] = _LazyChannel(make, own)
        self._coder = GrpcCoder(metadata, types or TypeRegistry())

    async def send(self, call: Call) -> Reply:
        """The server's reply."""
        path, payload, metadata = self._coder.encode(call)
        try:
            sent = self._line.path(path)(payload, timeout=call.budget, metadata=metadata)
        except Exception as exc:  # the channel is closed, or takes no such metadata
            raise unsent(call, exc) from exc
        # grpcio makes a CancelledError of its own, which the scopes of anyio do not take for theirs
        # (grpc#43502). So this task waits beside the call.
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
            raise self._coder.error(call, exc) from exc
        except Exception as exc:
            raise unsent(call, exc) from exc
        return self._coder.decode(call, found)

    async def close(self) -> None:
        """Close the channel, if it was made here."""
        channel = self._line.take()
        if channel is not None:
            await channel.close()
