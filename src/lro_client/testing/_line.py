"""Carries calls to a scripted server without a network, for both kinds of HTTP client."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Generator, Iterator
from typing import TypeAlias

import httpx

from lro_client.testing._clock import VirtualClock

Answering: TypeAlias = Generator[float, None, httpx.Response]
"""Makes the answer to a request; yields the seconds that pass until then."""

Telling: TypeAlias = Callable[[], Iterator[bytes | float]]
"""Makes the pieces of a body that comes bit by bit, and the seconds between them."""


class Stream(httpx.SyncByteStream, httpx.AsyncByteStream):
    """A body that comes bit by bit."""

    def __init__(self, clock: VirtualClock, tell: Telling) -> None:
        self._clock = clock
        self._tell = tell

    def __iter__(self) -> Iterator[bytes]:
        for piece in self._tell():
            if isinstance(piece, bytes):
                yield piece
            else:
                self._clock.advance(piece)

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for piece in self._tell():
            if isinstance(piece, bytes):
                yield piece
            else:
                await self._clock.aadvance(piece)


class ScriptedTransport(httpx.BaseTransport, httpx.AsyncBaseTransport):
    """Asks a function for each answer, and lets the time pass that it takes."""

    def __init__(self, clock: VirtualClock, answer: Callable[[httpx.Request], Answering]) -> None:
        self._clock = clock
        self._answer = answer

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """The answer to a blocking client."""
        request.read()
        answering = self._answer(request)
        try:
            while True:
                self._clock.advance(next(answering))
        except StopIteration as end:
            return _response(end)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """The answer to one on an event loop."""
        await request.aread()
        answering = self._answer(request)
        while True:
            try:
                seconds = next(answering)
            except StopIteration as end:
                return _response(end)
            await self._clock.aadvance(seconds)


def _response(end: StopIteration) -> httpx.Response:
    found: httpx.Response = end.value
    return found
