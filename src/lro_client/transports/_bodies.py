"""Bodies of replies, unpacked in pieces: a few kilobytes may unpack to gigabytes."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import AsyncGenerator, Iterator
from typing import Final

import httpx

PIECE: Final = 256 * 1024
"""The most bytes that are unpacked at once: time and size are looked at after each piece."""

_BY_ITS_HEAD: Final = zlib.MAX_WBITS | 32
_HEADLESS: Final = -zlib.MAX_WBITS


class Unpacking:
    """Unpacks what was sent as gzip or deflate (RFC 9110 §8.4.1)."""

    def __init__(self) -> None:
        self._inflate = zlib.decompressobj(_BY_ITS_HEAD)
        self._begun = False

    def feed(self, chunk: bytes) -> Iterator[bytes]:
        """What the next bytes unpack to, none of it larger than :data:`PIECE`.

        Raises:
            httpx.DecodingError: They were spoilt.
        """
        try:
            piece = self._first(chunk)
            while piece:
                yield piece
                piece = self._inflate.decompress(self._inflate.unconsumed_tail, PIECE)
        except zlib.error as exc:
            raise httpx.DecodingError(str(exc)) from exc

    def _first(self, chunk: bytes) -> bytes:
        begun, self._begun = self._begun, True
        try:
            return self._inflate.decompress(chunk, PIECE)
        except zlib.error:
            if begun:
                raise
        # What some servers send as deflate has no head.
        self._inflate = zlib.decompressobj(_HEADLESS)
        return self._inflate.decompress(chunk, PIECE)


def _unpacking(response: httpx.Response) -> Unpacking | None:
    coding = response.headers.get("content-encoding", "").strip().lower()
    # A hook of the client may have read it, and so unpacked it.
    known = coding in ("gzip", "x-gzip", "deflate") and not response.is_stream_consumed
    return Unpacking() if known else None


def pieces(response: httpx.Response) -> Iterator[bytes]:
    """The body as it comes; codings that are not known here are left to the HTTP library."""
    unpacking = _unpacking(response)
    if unpacking is None:
        yield from response.iter_bytes()
        return
    for chunk in response.iter_raw():
        yield from unpacking.feed(chunk)


async def apieces(response: httpx.Response) -> AsyncGenerator[bytes, None]:
    """The same on an event loop, which hears of deadlines between the pieces."""
    unpacking = _unpacking(response)
    if unpacking is None:
        async for chunk in response.aiter_bytes():
            yield chunk
        return
    async for chunk in response.aiter_raw():
        for piece in unpacking.feed(chunk):
            yield piece
            await asyncio.sleep(0)
