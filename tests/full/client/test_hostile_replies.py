"""The memory that hostile replies take (security.md: a reply has a bound)."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.client import sockets
from tests.full.client.hostile import EVERY, answer
from tests.waiting import PATIENCE

MOST_MEGABYTES = 150


@pytest.mark.platform
@pytest.mark.skipif(sys.platform != "linux", reason="a peak can be set back on Linux only")
@pytest.mark.parametrize("transport", ["sync", "async", "aiohttp"])
def test_no_reply_takes_much_memory(transport: str) -> None:
    """Whatever is in it, and however it is packed: bombs, many values, wide characters, streams."""
    command = [sys.executable, "-m", "tests.full.client.hostile", transport]
    with sockets.serving(answer) as url:
        done = subprocess.run([*command, url], stdout=subprocess.PIPE, timeout=PATIENCE, check=True)
    found = json.loads(done.stdout)
    assert found.keys() == {*EVERY}
    assert {one: said for one, said in found.items() if said[0] > MOST_MEGABYTES} == {}
