"""The floor of a client: read one stream, or batch-get all unfinished operations every 250 ms."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

import httpx

import lro
import lro.wire
from bench.clients.ways import Results, Way, together

MOST = 1000
"""The maximum number of names in a call (spec §3.11)."""

EVERY_SECONDS = 0.25


def ways(url: str) -> Mapping[str, Way]:
    """Return two ways: ``stream`` with asyncio only, and ``batch`` with httpx and JSON only."""
    return {
        "stream": together(lambda names: streams(url, names)),
        "batch": together(lambda names: batches(url, names)),
    }


def parts(names: Sequence[str]) -> list[Sequence[str]]:
    return [names[first : first + MOST] for first in range(0, len(names), MOST)]


async def streams(url: str, names: Sequence[str]) -> Results:
    """Read one bare stream for each group of at most ``MOST`` names."""
    at: Results = {}
    host, port = urlsplit(url).hostname, urlsplit(url).port

    async def read(some: Sequence[str]) -> None:
        reader, writer = await asyncio.open_connection(host, port)
        body = lro.wire.dumps({"names": list(some)})
        head = f"POST /v1/operations:watch HTTP/1.1\r\nhost: {host}:{port}\r\n"
        head += f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body)
        left = len(some)
        while left:
            line = await reader.readline()
            if line.startswith(b"data:"):
                value: Any = lro.wire.loads(line[5:])
                if value.get("done"):
                    at[value["name"]] = time.monotonic()
                    left -= 1
        writer.close()

    await asyncio.gather(*map(read, parts(names)))
    return at


async def batches(url: str, names: Sequence[str]) -> Results:
    """Call BatchGet for all unfinished operations, again and again."""
    at: Results = {}
    left = dict.fromkeys(names)
    async with httpx.AsyncClient(base_url=url, timeout=30) as client:
        while left:
            began = time.monotonic()
            for some in parts(list(left)):
                asked = lro.wire.dumps({"names": list(some)})
                kind = {"content-type": "application/json"}
                reply = await client.post("/v1/operations:batchGet", content=asked, headers=kind)
                value: Any = lro.wire.loads(reply.content)
                for one in value["operations"]:
                    if one.get("done"):
                        at[one["name"]] = time.monotonic()
                        del left[one["name"]]
            await asyncio.sleep(max(0.0, began + EVERY_SECONDS - time.monotonic()))
    return at
