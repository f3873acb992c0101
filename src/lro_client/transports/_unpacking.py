"""Decompress the bodies of replies piece by piece, so that time and size can be checked."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from typing import Final

import httpx

MAX_PIECE_BYTES: Final = 256 * 1024
"""Maximum size of a decompressed piece. Time and size are checked after each piece."""

MAX_CODINGS: Final = 2
"""Maximum number of encodings of a body. Each encoding can multiply its size by a thousand."""

CODINGS: Final = "gzip, deflate"
"""The encodings that the client accepts (RFC 9110 §12.5.3)."""

_BLOCK_BYTES: Final = 16 * 1024
"""Maximum number of bytes passed to zlib at once.

The number is small, because zlib copies all unread bytes at the end of each gzip member.
"""

KNOWN: Final = frozenset({"gzip", "x-gzip", "deflate"})
"""The encodings that can be decoded."""
_GZIP_HEAD: Final = b"\x1f\x8b"
_GZIP: Final = zlib.MAX_WBITS | 16


class UnknownCoding(Exception):
    """Raised for a body whose encoding cannot be decoded."""


class Unpacking:
    """Decompresses a body according to its ``Content-Encoding`` (RFC 9110 §8.4).

    Raises:
        UnknownCoding: The header names an unknown encoding, or more than :data:`MAX_CODINGS`.
    """

    def __init__(self, codings: str) -> None:
        names = [name.strip().lower() for name in codings.split(",")]
        names = [name for name in names if name not in ("", "identity")]
        if len(names) > MAX_CODINGS or not KNOWN.issuperset(names):
            raise UnknownCoding(
                f"the reply is packed as {codings[:100]!r}; the client reads {CODINGS}, "
                f"at most {MAX_CODINGS} of them"
            )
        self._layers = [_Layer() for _ in names]

    def feed(self, chunk: bytes) -> Iterator[bytes]:
        """Decompress the next bytes into pieces of at most :data:`MAX_PIECE_BYTES`.

        It also yields ``b""`` for each block of input, so that the caller can check the time even
        if the block decompresses to nothing.

        Raises:
            httpx.DecodingError: The bytes are damaged.
        """
        try:
            yield from _through(self._layers, chunk)
        except zlib.error as exc:
            raise httpx.DecodingError(str(exc)) from exc


def _through(layers: Sequence[_Layer], chunk: bytes) -> Iterator[bytes]:
    if not layers:
        yield chunk
        return
    for start in range(0, len(chunk), _BLOCK_BYTES):
        yield b""
        for piece in layers[0].feed(chunk[start : start + _BLOCK_BYTES]):
            yield from _through(layers[1:], piece)


class _Layer:
    """Decompresses gzip with any number of members (RFC 1952 §2.2), and raw or zlib deflate.

    The first bytes decide the format, because some servers label gzip as deflate, or the reverse.
    """

    def __init__(self) -> None:
        self._inflate: zlib._Decompress | None = None
        self._held = b""  # the first bytes of an incomplete header
        self._padding = False

    def feed(self, chunk: bytes) -> Iterator[bytes]:
        chunk, self._held = self._held + chunk, b""
        while chunk and not self._padding:
            if self._inflate is None or self._inflate.eof:
                if len(chunk) < len(_GZIP_HEAD):
                    self._held = chunk
                    return
                # Bytes after the last member are padding, and not part of the body.
                self._padding = self._inflate is not None and not chunk.startswith(_GZIP_HEAD)
                self._inflate = zlib.decompressobj(_window(chunk))
                continue
            while piece := self._inflate.decompress(chunk, MAX_PIECE_BYTES):
                yield piece
                if self._inflate.eof:  # another call would append to ``unused_data`` again
                    break
                chunk = self._inflate.unconsumed_tail
            chunk = self._inflate.unused_data


def _window(chunk: bytes) -> int:
    """Return zlib's ``wbits`` for gzip, or for deflate with or without zlib's header."""
    if chunk.startswith(_GZIP_HEAD):
        return _GZIP
    headed = chunk[0] & 0x0F == zlib.DEFLATED and int.from_bytes(chunk[:2]) % 31 == 0
    return zlib.MAX_WBITS if headed else -zlib.MAX_WBITS
