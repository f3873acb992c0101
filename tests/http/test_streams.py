"""Watch over real sockets: changes, ends, callers who leave, two processes (spec §3.11)."""

from __future__ import annotations

import http.client
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lro.stores.sqlite import SQLiteStore
from tests.http.counting_service import CountMetadata, build
from tests.http.servers import HOST
from tests.http.test_sockets import Server, served

WRITER = """
import sys
from lro.stores.sqlite import SQLiteStore
from tests.http.counting_service import CountMetadata, CountResponse, build

with build(SQLiteStore(sys.argv[1])).service as service:
    for line in sys.stdin:
        act, name, value = line.split()
        reporter = service.reporter(name)
        if act == "report":
            reporter.report(CountMetadata(percent=int(value)))
        else:
            reporter.complete(CountResponse(total=int(value)))
"""


class Events:
    """A stream over a connection of its own."""

    def __init__(self, server: Server, names: list[str]) -> None:
        self._line = http.client.HTTPConnection(HOST, server.port, timeout=120)
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


def test_from_snapshot_to_end(server: Server) -> None:
    """Progress, end, deletion; then the stream is over and nothing is held."""
    counting = server.counting
    first, second = counting.start(), counting.start()
    stream = Events(server, [first, second, "operations/none"])
    events = iter(stream)
    assert [next(events)[0] for _ in range(3)] == ["operation", "operation", "missing"]
    counting.service.reporter(first).report(CountMetadata(percent=9))
    assert next(events)[1]["metadata"]["percent"] == 9
    counting.finish(first)
    assert next(events)[1]["response"]["total"] == 3
    counting.service.delete(second)
    assert next(events) == ("missing", {"name": second})
    assert list(events) == []
    assert counting.service.watching == 0
    stream.close()


def test_a_thousand_end_at_once(server: Server) -> None:
    """Each is reported as done, once, while others are served."""
    counting = server.counting
    names = [counting.start() for _ in range(1000)]
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
    assert len(service._runtime.updater.notifier) == 0
    assert caplog.records == []
    streams[0].close()


def test_closing_the_service_ends_streams() -> None:
    """Soon, and as a stream ends: with its last piece."""
    counting = build()
    with served("uvicorn", counting) as server:
        stream = Events(server, [counting.start()])
        events = iter(stream)
        next(events)
        counting.service.close()
        assert list(events) == []
        stream.close()


def test_two_processes_on_one_file(tmp_path: Path) -> None:
    """Writes of another process are reported here: progress, and the end."""
    path = tmp_path / "operations.db"
    counting = build(SQLiteStore(path))
    command = [sys.executable, "-c", WRITER, str(path)]
    root = Path(__file__).parent.parent.parent
    with (
        served("uvicorn", counting) as server,
        subprocess.Popen(command, stdin=subprocess.PIPE, text=True, cwd=root) as writer,
    ):
        assert writer.stdin is not None
        name = counting.start()
        stream = Events(server, [name])
        seen = []
        for _, data in stream:
            seen.append(data.get("metadata", {}).get("percent"))
            act = "report" if len(seen) < 3 else "complete"
            if data.get("done"):
                assert data["response"]["total"] == 3
            else:
                writer.stdin.write(f"{act} {name} {len(seen)}\n")
                writer.stdin.flush()
        writer.stdin.close()
        stream.close()
    assert seen == [None, 1, 2, 2]
    assert writer.returncode == 0
