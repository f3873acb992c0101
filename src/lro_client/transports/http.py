"""Calls over HTTP by httpx, or by httpx2, whose interface is the same."""

from __future__ import annotations

import contextlib
import importlib
import time
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any as Anything
from typing import Final

import httpx

from lro import Code, Operation, Status, TypeRegistry
from lro_client._calls import Call, Reply
from lro_client._errors import CallError, too_late
from lro_client._hands import HANDS, Late
from lro_client.transports._coding import Coder, HttpCall, Routes

__all__ = ["MAX_REPLY", "AsyncHttpTransport", "HttpTransport", "Routes"]

MAX_REPLY: Final = 32 * 1024 * 1024
"""The largest reply that is read, in bytes once unpacked: a small one may unpack to gigabytes."""

_READ_RATE: Final = 50e6
"""Bytes a second at which a reply is certainly turned into messages."""


class HttpTransport:
    """Calls by an ``httpx.Client``, which is closed with this if it is its ``own``.

    ``base_url`` goes before all paths, ``routes`` are those of the verbs, ``types`` the message
    classes. Each call is made by a thread of its own, which alone keeps to a time.
    """

    bounds = True
    """No call takes longer than its budget."""
    batches = True
    """BatchGet and Watch can be asked for, which a server may offer (spec §3.11)."""

    def __init__(
        self,
        client: httpx.Client,
        *,
        base_url: str = "",
        routes: Routes | None = None,
        types: TypeRegistry | None = None,
        own: bool = False,
    ) -> None:
        self._client = client
        self._coder = Coder(routes or Routes(), types or TypeRegistry(), base_url=base_url)
        self._own = own
        self.address = base_url or str(getattr(client, "base_url", ""))

    def send(self, call: Call) -> Reply:
        """The server's reply."""
        asked = _arguments(self._coder.encode(call), call)
        until = time.monotonic() + call.budget
        try:
            return HANDS.ask(lambda: self._exchange(call, asked, until), call.budget)
        except Late:
            raise too_late(call.verb, call.budget) from None

    def stream(self, call: Call, sink: Callable[[Operation | str | None], object]) -> None:
        """Give ``sink`` each operation that the server tells of, or the name of one that is gone.

        With None it hears that the server is alive; what it raises ends the stream. Returns when
        the server says that there is nothing more to tell. Silence for longer than the call's
        budget ends it too.
        """
        asked = _arguments(self._coder.encode(call), call)
        with self._coder.failures(call), self._client.stream(**asked) as response:
            if not self._coder.streams(response):
                raise self._coder.no_stream(call, response, _read(response, call, None))
            events = self._coder.events(call)
            for chunk in response.iter_bytes():
                for event in events.feed(chunk):
                    sink(event)
                sink(None)

    def close(self) -> None:
        """Close the HTTP client, if it was made here."""
        if self._own:
            self._client.close()

    def _exchange(self, call: Call, asked: dict[str, Anything], until: float) -> Reply:
        hop = 0
        while True:
            hop += 1
            with self._coder.failures(call), self._client.stream(**asked) as response:
                there = self._coder.redirected(call, asked, response, hop)
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
        client: httpx.AsyncClient,
        *,
        base_url: str = "",
        routes: Routes | None = None,
        types: TypeRegistry | None = None,
        own: bool = False,
    ) -> None:
        self._client = client
        self._coder = Coder(routes or Routes(), types or TypeRegistry(), base_url=base_url)
        self._own = own
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
            with self._coder.failures(call):
                async with self._client.stream(**asked) as response:
                    there = self._coder.redirected(call, asked, response, hop)
                    if there is None:
                        content = await _aread(response, call)
                        _check_time(call, len(content), until)
                        return self._coder.decode(call, response, content)
            asked = there

    async def stream(self, call: Call, sink: Callable[[Operation | str | None], object]) -> None:
        """As :meth:`HttpTransport.stream`."""
        asked = _arguments(self._coder.encode(call), call)
        with self._coder.failures(call):
            async with self._client.stream(**asked) as response:
                if not self._coder.streams(response):
                    raise self._coder.no_stream(call, response, await _aread(response, call))
                events = self._coder.events(call)
                async for chunk in response.aiter_bytes():
                    for event in events.feed(chunk):
                        sink(event)
                    sink(None)

    async def close(self) -> None:
        """Close the HTTP client, if it was made here."""
        if self._own:
            await self._client.aclose()


def _arguments(asked: HttpCall, call: Call) -> dict[str, Anything]:
    found: dict[str, Anything] = {"method": asked.method, "url": asked.url, "timeout": call.budget}
    if asked.params:
        found["params"] = dict(asked.params)
    headers = dict(call.headers)
    if asked.body is not None:
        found["content"] = asked.body
        headers["content-type"] = "application/json"
    if headers:
        found["headers"] = headers
    return found


def _read(response: httpx.Response, call: Call, until: float | None) -> bytes:
    return _joined(_checked(response.iter_bytes(), call, until), call, until)


def _checked(chunks: Iterator[bytes], call: Call, until: float | None) -> Iterator[bytes]:
    for chunk in chunks:
        if until is not None and time.monotonic() > until:  # a server may drip a body for ever
            raise too_late(call.verb, call.budget)
        yield chunk


def _joined(chunks: Iterator[bytes], call: Call, until: float | None) -> bytes:
    content = bytearray()
    for chunk in chunks:
        content += chunk
        _check_size(call, len(content))
    if until is not None:
        _check_time(call, len(content), until)
    return bytes(content)


async def _aread(response: httpx.Response, call: Call) -> bytes:
    chunks: AsyncIterator[bytes] = response.aiter_bytes()
    content = bytearray()
    async for chunk in chunks:
        content += chunk
        _check_size(call, len(content))
    return bytes(content)


def _check_size(call: Call, size: int) -> None:
    if size > MAX_REPLY:
        text = f"the reply is larger than {MAX_REPLY} bytes"
        raise CallError(call.verb, Status(Code.RESOURCE_EXHAUSTED, text))


def _check_time(call: Call, size: int, until: float) -> None:
    # Making messages of a large reply cannot be interrupted, and holds up every thread.
    if time.monotonic() + size / _READ_RATE > until:
        raise too_late(call.verb, call.budget)
