"""The memory that hostile replies take is bounded (docs/explanation/security.md)."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.client import sockets
from tests.full.client.hostile import BINARY, EVERY, answer
from tests.waiting import PATIENCE

MOST_MEGABYTES = 150


@contextlib.contextmanager
def serving(transport: str) -> Iterator[str]:
    """Start a server of hostile replies, and yield its address."""
    if transport != "grpc":
        with sockets.serving(answer) as url:
            yield url
        return
    pytest.importorskip("grpc")
    from tests.grpc.odd import odd_server, replying, sending

    with odd_server(replying(name="operations/a"), *map(sending, BINARY.values())) as odd:
        yield odd.address


@pytest.mark.platform
@pytest.mark.skipif(sys.platform != "linux", reason="a peak can be set back on Linux only")
@pytest.mark.parametrize("transport", ["sync", "async", "aiohttp", "grpc"])
def test_no_reply_takes_much_memory(transport: str) -> None:
    """The memory limit holds for compression bombs, many values, wide characters and streams."""
    command = [sys.executable, "-m", "tests.full.client.hostile", transport]
    with serving(transport) as address:
        done = subprocess.run(
            [*command, address], stdout=subprocess.PIPE, timeout=8 * PATIENCE, check=True
        )
    found = json.loads(done.stdout)
    assert found.keys() == {*(BINARY if transport == "grpc" else EVERY)}
    assert {one: said for one, said in found.items() if said[0] > MOST_MEGABYTES} == {}
