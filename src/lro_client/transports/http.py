"""Calls over HTTP by httpx, or by httpx2, whose interface is the same."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import importlib
import os
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any, Final

import httpx

from lro import Code, Operation, Status, TypeRegistry
from lro_client._arguments import check_awaits, check_base_url, check_blocks, check_optional
from lro_client._errors import CallError, too_late, unreadable
from lro_client._flow.steps import Call, Reply
from lro_client._flow.threads import CALL_THREADS, Answer, Late
from lro_client._tokens import public_address
from lro_client.transports._bodies import apieces, pieces
from lro_client.transports._coding import Coder
from lro_client.transports._encoding import HttpCall, Routes
from lro_client.transports._prebuilt import Prebuilt
from lro_client.transports._redirects import redirected

__all__ = ["MAX_REPLY", "AsyncHttpTransport", "HttpTransport", "Routes"]

MAX_REPLY: Final = 32 * 1024 * 1024
"""The largest reply that is read, in bytes once unpacked: a small one may unpack to gigabytes."""

_READ_RATE: Final = 8e6
"""Bytes a second at which a reply is turned into messages, if it is made of tiny values."""

_REFUSAL_BYTES: Final = 64 * 1024
_REFUSAL_SECONDS: Final = 5.0


_CLOSED: Final = Status(Code.CANCELLED, "the client was closed")


class _Closed(Exception):
    """The client was closed during a call."""


class HttpTransport:
    """Calls by an ``httpx.Client``, which is closed with this if it is its ``own``.

    Without one it makes its own, and another one in a forked process, which must not share
    connections with its parent. ``base_url`` goes before all paths, ``routes`` are those of the
    verbs, ``types`` the message classes. Each call is made by a thread of its own, which alone
    keeps to a time.
    """

    bounds = True
    """No call takes longer than its budget."""
    batches = True
    """BatchGet and Watch can be asked for, which a server may offer (spec §3.11)."""

    def __init__(
        self,
        client: httpx.Client | None = None,
        *,
        base_url: str = "",
        routes: Routes | None = None,
        types: TypeRegistry | None = None,
        own: bool = False,
    ) -> None:
        if client is not None:
            check_blocks("http", client, "httpx.Client()")
        check_base_url(base_url, client)
        check_optional("routes", routes, Routes)
        check_optional("types", types, TypeRegistry)
        self._made = {} if client is not None else {os.getpid(): httpx.Client()}
        self._given = client
        self._prebuilt = Prebuilt()
        self._coder = Coder(routes or Routes(), types or TypeRegistry(), base_url=base_url)
        self._own = own
        self._asking: set[Answer] = set()
        self.address = base_url or str(getattr(client, "base_url", ""))

    def send(self, call: Call) -> Reply:
        """The server's reply."""
        asked = _arguments(self._coder.encode(call), call)
        until = time.monotonic() + call.budget
        try:
            exchange = functools.partial(self._exchange, call, asked, until)
            return CALL_THREADS.ask(exchange, call.budget, self._asking)
        except Late:
            raise too_late(call.verb, call.budget) from None
        except _Closed:
            raise CallError(call.verb, _CLOSED) from None

    def stream(self, call: Call, sink: Callable[[Operation | str | None], object]) -> None:
        """Give ``sink`` each operation that the server tells of, or the name of one that is gone.

        With None it hears that the server is alive; what it raises ends the stream. Returns when
        the server says that there is nothing more to tell. Silence for longer than the call's
        budget ends it too.
        """
        asked = _arguments(self._coder.encode(call), call)
        with self._failures(call, asked), self._client.stream(**asked) as response:
            if not self._coder.streams(response):
                raise self._coder.no_stream(call, response, _refusal(response))
            events = self._coder.events(call)
            for chunk in pieces(response):
                for event in events.feed(chunk):
                    sink(event)
                sink(None)

    def close(self) -> None:
        """End the calls in flight, and close the HTTP client if it was made here."""
        if self._own or self._given is None:
            self._client.close()
        for answer in list(self._asking):  # which may hear nothing of it by themselves
            answer.put((None, _Closed()))

    @property
    def _client(self) -> httpx.Client:
        if self._given is not None:
            return self._given
        process = os.getpid()
        # That of a parent is kept: to clean it away would close connections that are not ours.
        return self._made.get(process) or self._made.setdefault(process, httpx.Client())

    def _failures(self, call: Call, asked: dict[str, Any]) -> AbstractContextManager[None]:
        return _failures(self._coder, self._client, call, asked)

    def _answer(self, asked: dict[str, Any]) -> AbstractContextManager[httpx.Response]:
        if self._given is not None:
            return self._given.stream(**asked)
        client = self._client
        return contextlib.closing(client.send(self._prebuilt.request(client, asked), stream=True))

    def _exchange(self, call: Call, asked: dict[str, Any], until: float) -> Reply:
        hop = 0
        while True:
            hop += 1
            with self._failures(call, asked), self._answer(asked) as response:
                there = redirected(call, asked, response, hop)
                if there is None:
                    content = _read(response, call, until)
                    return self._coder.decode(call, response, content)
            asked = there


class AsyncHttpTransport:
    """Calls by an ``httpx.AsyncClient``; the arguments are those of :class:`HttpTransport`."""

    bounds = False
    batches = True

    def __init__(
        self,
        client: httpx.AsyncClient | None = None,
        *,
        base_url: str = "",
        routes: Routes | None = None,
        types: TypeRegistry | None = None,
        own: bool = False,
    ) -> None:
        if client is not None:
            check_awaits("http", client, "httpx.AsyncClient()")
        check_base_url(base_url, client)
        check_optional("routes", routes, Routes)
        check_optional("types", types, TypeRegistry)
        self._client = client or httpx.AsyncClient()
        self._prebuilt = None if client is not None else Prebuilt()
        self._coder = Coder(routes or Routes(), types or TypeRegistry(), base_url=base_url)
        self._own = own or client is None
        self.address = base_url or str(getattr(client, "base_url", ""))
        # The HTTP library loads this with its first call, whose deadline may be over before that.
        with contextlib.suppress(ImportError):
            importlib.import_module("anyio._backends._asyncio")

    async def send(self, call: Call) -> Reply:
        """The server's reply."""
        asked = _arguments(self._coder.encode(call), call)
        until = time.monotonic() + call.budget
        hop = 0
        while True:
            hop += 1
            with _failures(self._coder, self._client, call, asked):
                async with self._answer(asked) as response:
                    there = redirected(call, asked, response, hop)
                    if there is None:
                        content = await _aread(response, call)
                        _check_time(call, len(content), until)
                        return self._coder.decode(call, response, content)
            asked = there

    @contextlib.asynccontextmanager
    async def _answer(self, asked: dict[str, Any]) -> AsyncIterator[httpx.Response]:
        if self._prebuilt is None:
            async with self._client.stream(**asked) as response:
                yield response
            return
        request = self._prebuilt.request(self._client, asked)
        async with contextlib.aclosing(await self._client.send(request, stream=True)) as response:
            yield response

    async def stream(self, call: Call, sink: Callable[[Operation | str | None], object]) -> None:
        """As :meth:`HttpTransport.stream`."""
        asked = _arguments(self._coder.encode(call), call)
        with _failures(self._coder, self._client, call, asked):
            async with self._client.stream(**asked) as response:
                if not self._coder.streams(response):
                    raise self._coder.no_stream(call, response, await _arefusal(response))
                events = self._coder.events(call)
                async with contextlib.aclosing(apieces(response)) as chunks:
                    async for chunk in chunks:
                        for event in events.feed(chunk):
                            sink(event)
                        sink(None)

    async def close(self) -> None:
        """Close the HTTP client, if it was made here."""
        if self._own:
            await self._client.aclose()


@contextlib.contextmanager
def _failures(
    coder: Coder,
    client: httpx.Client | httpx.AsyncClient,
    call: Call,
    asked: dict[str, Any],
) -> Iterator[None]:
    """As ``coder.failures``; a client that is closed is told too."""
    url: str = asked["url"]
    whole = url if "://" in url else str(client.base_url).rstrip("/") + url
    try:
        with coder.failures(call, f"{asked['method']} {public_address(whole)}"):
            yield
    except RuntimeError as exc:
        if not client.is_closed:
            raise
        raise CallError(call.verb, _CLOSED) from exc


def _arguments(asked: HttpCall, call: Call) -> dict[str, Any]:
    found: dict[str, Any] = {"method": asked.method, "url": asked.url, "timeout": call.budget}
    if asked.params:
        found["params"] = dict(asked.params)
    headers = dict(call.headers)
    if asked.body is not None:
        found["content"] = asked.body
        headers["content-type"] = "application/json"
    if headers:
        found["headers"] = headers
    return found


def _read(response: httpx.Response, call: Call, until: float) -> bytes:
    content = bytearray()
    for piece in pieces(response):
        if time.monotonic() > until:  # a server may drip a body for ever
            raise too_late(call.verb, call.budget)
        content += piece
        _check_size(call, len(content))
    _check_time(call, len(content), until)
    return bytes(content)


async def _aread(response: httpx.Response, call: Call) -> bytes:
    content = bytearray()
    async with contextlib.aclosing(apieces(response)) as chunks:
        async for piece in chunks:
            content += piece
            _check_size(call, len(content))
    return bytes(content)


def _refusal(response: httpx.Response) -> bytes:
    """What a server says that gives no stream; the beginning of it, if it says much."""
    content, until = bytearray(), time.monotonic() + _REFUSAL_SECONDS
    for piece in () if response.is_success else pieces(response):
        content += piece
        if len(content) > _REFUSAL_BYTES or time.monotonic() > until:
            break
    return bytes(content)


async def _arefusal(response: httpx.Response) -> bytes:
    content = bytearray()
    if response.is_success:
        return b""
    with contextlib.suppress(TimeoutError):
        async with (
            asyncio.timeout(_REFUSAL_SECONDS),
            contextlib.aclosing(apieces(response)) as chunks,
        ):
            async for piece in chunks:
                content += piece
                if len(content) > _REFUSAL_BYTES:
                    break
    return bytes(content)


def _check_size(call: Call, size: int) -> None:
    if size > MAX_REPLY:
        raise unreadable(call.verb, f"the reply is larger than {MAX_REPLY} bytes")


def _check_time(call: Call, size: int, until: float) -> None:
    # Making messages of a large reply cannot be interrupted, and holds up every thread.
    if time.monotonic() + size / _READ_RATE > until:
        raise too_late(call.verb, call.budget)
