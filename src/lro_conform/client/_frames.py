"""Insert frames of HTTP/2 between the frames of a real server (RFC 9113)."""

from __future__ import annotations

import asyncio
import enum
import struct
from collections.abc import Mapping
from typing import Final

import attrs

from lro_conform.client._listener import HOST

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_HEAD: Final = 9


class FrameKind(enum.IntEnum):
    """The kinds of frames that this module reads or sends."""

    DATA = 0
    HEADERS = 1
    RST_STREAM = 3
    GOAWAY = 7


class StreamError(enum.IntEnum):
    """The error codes of RFC 9113 §7 that this module sends."""

    NO_ERROR = 0
    INTERNAL_ERROR = 2
    REFUSED_STREAM = 7
    CANCEL = 8


_END_STREAM: Final = 1
_END_HEADERS: Final = 4


def frame(kind: FrameKind, stream: int, payload: bytes, flags: int = 0) -> bytes:
    """Return a frame in binary form."""
    head = struct.pack(">I", len(payload))[1:] + bytes([kind, flags])
    return head + struct.pack(">I", stream) + payload


def header_frame(stream: int, headers: Mapping[str, str], *, end: bool = False) -> bytes:
    """Return headers or trailers, as literals that HPACK does not index (RFC 7541)."""
    block = b"".join(
        b"\x00" + _text(name.encode()) + _text(value.encode()) for name, value in headers.items()
    )
    flags = _END_HEADERS | (_END_STREAM if end else 0)
    return frame(FrameKind.HEADERS, stream, block, flags)


def _text(text: bytes) -> bytes:
    return bytes([len(text)]) + text  # shorter than 127 bytes, not Huffman-coded


def data_frame(stream: int, data: bytes, *, end: bool = False) -> bytes:
    """Return a frame with a piece of a body."""
    return frame(FrameKind.DATA, stream, data, _END_STREAM if end else 0)


def reset_frame(stream: int, error: StreamError) -> bytes:
    """Return a frame that ends a stream with an error."""
    return frame(FrameKind.RST_STREAM, stream, struct.pack(">I", error))


def goaway_frame(last_stream: int) -> bytes:
    """Return a frame that announces that the connection accepts no more streams."""
    return frame(FrameKind.GOAWAY, 0, struct.pack(">II", last_stream, StreamError.NO_ERROR))


@attrs.define(eq=False)
class FramedConnection:
    """A client's connection, and the last stream that the client opened on it."""

    client: asyncio.StreamWriter
    stream: int = 0

    async def send(self, *frames: bytes) -> None:
        """Send frames to the client."""
        self.client.write(b"".join(frames))
        await self.client.drain()


@attrs.define(eq=False)
class FrameProxy:
    """A proxy between clients and a server; the proxy can insert frames.

    With ``mute`` it forwards nothing.
    """

    backend: int
    """The port of the server."""
    mute: bool = False
    latest: FramedConnection | None = None
    """The connection with the most recently opened stream."""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection of a client, until one of the two sides closes it.

        Raises:
            OSError: One side has cut the connection.
            asyncio.IncompleteReadError: One side has closed the connection.
        """
        if self.mute:
            await reader.read()
            return
        from_server, to_server = await asyncio.open_connection(HOST, self.backend)
        try:
            to_server.write(await reader.readexactly(len(PREFACE)))
            ways = [
                asyncio.ensure_future(self._pass(reader, to_server, FramedConnection(writer))),
                asyncio.ensure_future(self._pass(from_server, writer, None)),
            ]
            try:
                await asyncio.gather(*ways)
            finally:
                for way in ways:
                    way.cancel()
        finally:
            to_server.close()

    async def _pass(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        opened: FramedConnection | None,
    ) -> None:
        while True:
            head = await reader.readexactly(_HEAD)
            payload = await reader.readexactly(int.from_bytes(head[:3], "big"))
            if opened is not None and head[3] == FrameKind.HEADERS:
                opened.stream = int.from_bytes(head[5:], "big")
                self.latest = opened
            writer.write(head + payload)
            await writer.drain()
