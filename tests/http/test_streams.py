"""Watch over real sockets: changes, ends, callers who leave (spec §3.11)."""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from tests.http.counting_service import build
from tests.http.servers import HOST
from tests.http.test_sockets import Server, served
from tests.waiting import PATIENCE


class Events:
    """A stream over a connection of its own."""

    def __init__(self, server: Server, names: list[str]) -> None:
        self._line = http.client.HTTPConnection(HOST, server.port, timeout=PATIENCE)
        body = json.dumps({"names": names})
        kind = {"content-type": "application/json"}
        self._line.request("POST", "/v1/operations:watch", body, kind)
        self._reply = self._line.getresponse()
        assert self._reply.status == 200
        assert self._reply.headers["x-accel-buffering"] == "no"

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        """Kind and data of each event; comments are skipped."""
        fields: dict[str, str] = {}
        for line in self._reply:
            name, _, value = line.decode().rstrip("\n").partition(": ")
            if name:
                fields[name] = value
            elif "event" in fields:
                yield fields["event"], json.loads(fields["data"])
                fields = {}

    def close(self) -> None:
        """Leave, in the midst or at the end."""
        self._reply.close()
        self._line.close()


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """A counting service behind uvicorn, with quick heartbeats."""
    with served("uvicorn", build(), heartbeat_seconds=0.05) as found:
        yield found


def test_two_hundred_end_at_once(server: Server) -> None:
    """Each is reported as done, once, while others are served."""
    counting = server.counting
    names = [counting.start() for _ in range(200)]
    stream = Events(server, names)
    events = iter(stream)
    assert [next(events)[1]["name"] for _ in names] == names
    ending = threading.Thread(target=lambda: [counting.finish(name) for name in names])
    ending.start()
    assert server.line().send("GET", "/v1/operations/none").reply()[0] == 404
    assert sorted(data["name"] for _, data in events if data["done"]) == sorted(names)
    ending.join()
    stream.close()


def test_a_caller_who_disconnects_frees_everything(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    """No watch is left, the operation goes on, and nothing is logged (spec §4.8)."""
    service, name = server.counting.service, server.counting.start()
    streams = [Events(server, [name]) for _ in range(5)]
    for stream in streams:
        next(iter(stream))
    server.until(lambda: service.watching == 5)
    for stream in streams[1:]:
        stream.close()
    server.until(lambda: service.watching == 1)
    server.counting.finish(name)
    assert [data["done"] for _, data in streams[0]] == [True]
    server.until(lambda: service.watching == 0)
    assert caplog.records == []
    streams[0].close()
