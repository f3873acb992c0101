"""Measure how much memory a client needs for replies of a hostile server.

``python -m tests.full.client.hostile TRANSPORT ADDRESS`` requests each reply from a server in
another process. It prints one line of JSON with two values for each reply: the peak of memory in
megabytes above the idle process, and the error that the client raised. Only Linux can reset the
peak of a process.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import gzip
import importlib
import json
import sys
import threading
import zlib
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any, Final

from lro_client import NO_RETRY, AsyncClient, Client
from lro_client.transports import AsyncHttpTransport, Call, HttpTransport, WatchOperationsRequest

MAX_REPLY: Final = 16 * 1024 * 1024
COLLECTION: Final = "operations"


def _zeros(times: int, wbits: int = 31) -> bytes:
    """Return 600 MB of zeros, compressed ``times`` times."""
    packer = zlib.compressobj(9, zlib.DEFLATED, wbits)
    found = b"".join(packer.compress(bytes(1 << 20)) for _ in range(600)) + packer.flush()
    for _ in range(times - 1):
        found = gzip.compress(found)
    return found


def _list(piece: str, values: int = 0) -> bytes:
    """Return a JSON list of the largest reply size or, with ``values``, of the most values."""
    encoded = piece.encode()
    times = (values and 1_999_000 // values) or (MAX_REPLY - 9) // len(encoded)
    return b"[" + encoded * times + b"0]"


PACKED: Final[dict[str, tuple[str, Callable[[], bytes]]]] = {
    "gzip": ("gzip", partial(_zeros, 1)),
    "gzip twice": ("gzip, gzip", partial(_zeros, 2)),
    "gzip three times": ("gzip, gzip, gzip", partial(_zeros, 3)),
    "deflate": ("deflate", partial(_zeros, 1, 15)),
    "deflate without a head": ("deflate", partial(_zeros, 1, -15)),
    "members": ("gzip", lambda: gzip.compress(bytes(1 << 20)) * 800),
    "empty members": ("gzip", lambda: gzip.compress(b"") * 100_000),
    "brotli": ("br", lambda: b"\xcf\xff\xff\x7f\xf8'\x00" + bytes(900)),
    "zstd": ("zstd", lambda: b"(\xb5/\xfd" + bytes(900)),
}
TEXTS: Final[dict[str, Callable[[], bytes]]] = {
    "too large": lambda: b'{"name":"' + b"a" * (2 * MAX_REPLY) + b'"}',
    "empty objects": partial(_list, "{},"),
    "empty lists": partial(_list, "[],"),
    "numbers": partial(_list, "1,"),
    "floats": partial(_list, "1.5,", 1),
    "texts": partial(_list, '"abcdefgh",', 3),
    "wide texts": partial(_list, '"a𐍈b",', 3),
    "objects": partial(_list, '{"a":1.5},', 5),
    "keys": lambda: b"{%s}" % b",".join(b'"%d":0' % one for one in range(666_000)),
    "one wide text": lambda: ('{"name":"%s"}' % ("a" * 15_000_000 + "𐍈")).encode(),
    "floats beside a wide text": lambda: b'["\xf0\x90\x8d\x88",' + _list("1.5,", 1)[1:],
    "brackets": lambda: b"[" * MAX_REPLY,
    "escapes without an end": lambda: b'{"name":"' + rb"\n" * (MAX_REPLY // 2 - 9),
    "digits": lambda: b'{"name":' + b"9" * (MAX_REPLY - 9) + b"}",
}
STREAMS: Final[dict[str, Callable[[], bytes]]] = {
    "no events": lambda: b":\n" * MAX_REPLY,
    "an event without an end": lambda: b"data: " + b"x" * (2 * MAX_REPLY),
    "an event of empty lines": lambda: b"data:\n" * (MAX_REPLY // 3),
    "an event of values": lambda: b"event: operation\ndata: %s\n\n" % _list("{},"),
}
EVERY: Final = (*PACKED, *TEXTS, *STREAMS)


def field(number: int, content: bytes) -> bytes:
    """Encode a length-delimited field of a protobuf message."""
    size, length = len(content), b""
    while size > 0x7F:
        length, size = length + bytes([size & 0x7F | 0x80]), size >> 7
    return bytes([number << 3 | 2]) + length + bytes([size]) + content


_MANY: Final = b"\x0a\x00" * 4_000_000
_VALUES: Final = b"type.googleapis.com/google.protobuf.ListValue"
BINARY: Final = {
    "operations": _MANY,
    "details": field(1, b"operations/a") + b"\x18\x01" + field(4, b"\x1a\x00" * 4_000_000),
    "unknown fields": field(1, b"operations/a") + b"\x98\x06\x01" * 2_500_000,
    "as many as are read": b"\x0a\x02\x18\x01" * 490_000,
    "result": field(1, b"operations/a")
    + b"\x18\x01"
    + field(5, field(1, _VALUES) + field(2, _MANY)),
    "large": field(1, b"a" * 20_000_000),
}
"""Replies over gRPC; each is sent to one call."""


def answer(connection: Any, over: threading.Event) -> None:
    """Send the reply whose number is the first segment of the path."""
    asked = EVERY[int(connection.recv(65536).split(b"/", 2)[1])]
    coding, make = PACKED.get(asked, ("identity", TEXTS.get(asked) or STREAMS.get(asked)))
    assert make is not None
    body, kind = make(), "text/event-stream" if asked in STREAMS else "application/json"
    head = f"HTTP/1.1 200 OK\r\nContent-Encoding: {coding}\r\nContent-Type: {kind}\r\n"
    connection.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)


def megabytes(field: str) -> float:
    """Read a value of the kernel: ``VmRSS`` is the memory now, ``VmHWM`` the peak since a reset."""
    lines = Path("/proc/self/status").read_text().splitlines()
    [line] = [one for one in lines if one.startswith(f"{field}:")]
    return int(line.split()[1]) / 1024


def over_idle(ask: Callable[[], object]) -> tuple[float, str]:
    """Return the peak of memory during a call, and the text of the error that the call raised."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")
    idle, said = megabytes("VmRSS"), ""
    try:
        ask()
    except Exception as exc:
        said = f"{type(exc).__name__}: {exc!s:.200}"
    return round(megabytes("VmHWM") - idle), said


def ask(transport: str, url: str, name: str) -> None:
    """Request one reply, with a new client."""
    base_url = f"{url}/{EVERY.index(name)}"
    wanted = WatchOperationsRequest(COLLECTION, ("operations/a",))
    watch = Call(request=wanted, budget=60.0)
    if transport == "sync":
        blocking = HttpTransport(base_url=base_url)
        with Client(transport=blocking, retry=NO_RETRY) as client:
            if name in STREAMS:
                blocking.stream(watch, lambda _: None)
            else:
                client.get("operations/a")
        return
    kind: Any = AsyncHttpTransport
    if transport == "aiohttp":
        kind = importlib.import_module("lro_client.transports.aiohttp").AiohttpTransport

    async def main() -> None:
        made = kind(base_url=base_url)
        async with AsyncClient(transport=made, retry=NO_RETRY) as client:
            if name in STREAMS:
                await made.stream(watch, lambda _: None)
            else:
                await client.get("operations/a")

    asyncio.run(main())


def ask_binary(address: str, name: str) -> None:
    """Request one reply over gRPC; the server sends a different reply to each call."""
    from lro_client.transports.grpc import GrpcTransport

    with Client(transport=GrpcTransport(address), retry=NO_RETRY) as client:
        if name in ("operations", "as many as are read"):
            list(client.list())
        elif name == "result":
            client.operation("operations/a").result(60)
        else:
            client.get("operations/a")


def main() -> None:
    transport, address = sys.argv[1:]
    names: Iterable[str] = EVERY
    ask_for, small = partial(ask, transport, address), "zstd"
    if transport == "grpc":
        names, ask_for, small = BINARY, partial(ask_binary, address), ""
    over_idle(partial(ask_for, small))  # load modules before the measurements
    print(json.dumps({name: over_idle(partial(ask_for, name)) for name in names}))


if __name__ == "__main__":
    main()
