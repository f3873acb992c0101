"""Several server processes on one socket and one store; one of them is killed."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.full.examples.serving import Json, Process, slow_request
from tests.waiting import PATIENCE, until

SERVE = ("-m", "examples.analysis", "serve", "--port", "0", "--workers", "2", "--lease", "5")

pytestmark = [
    pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="there is no /proc here"),
    pytest.mark.platform,
]


def children(pid: int) -> set[int]:
    """Return the pids of the two server processes, once both have started."""

    def servers() -> set[int]:
        found = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        return {int(one) for one in found if _serves(one)}

    return until(servers, lambda found: len(found) == 2)


def _serves(pid: str) -> bool:
    """Return whether a child is a server process, not one that is starting or ending."""
    try:
        return b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return False


def percent(operation: Json) -> int:
    found: int = operation["metadata"].get("progressPercent", 0)
    return found


@pytest.fixture(params=["threads", "processes"])
def servers(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Process]:
    """Run two server processes with an executor of each kind."""
    store = f"sqlite:///{tmp_path / 'operations.db'}"
    with Process(*SERVE, "--store", store, "--executor", request.param) as process:
        yield process


def test_operations_end_though_one_of_two_servers_is_killed(servers: Process) -> None:
    """After a kill, all operations end, their progress never falls, and a new process starts."""
    first = children(servers.popen.pid)
    names = [servers.start("track", slow_request(4))["name"] for _ in range(4)]
    seen = [servers.finish(name, percent) for name in names]  # all operations are in progress now
    os.kill(min(first), signal.SIGKILL)
    with httpx.Client(base_url=servers.http.base_url, timeout=PATIENCE) as http:
        servers.call = http.request  # new connections reach the remaining server
        for name, before in zip(names, seen, strict=True):
            polled = [before]
            polled.append(servers.finish(name, polled.append))
            assert polled[-1]["response"]["frameCount"] == 4
            percents = list(map(percent, polled))
            assert percents == sorted(percents)
            starts = [
                (one["metadata"]["createTime"], one["metadata"]["startTime"]) for one in polled
            ]
            assert len(set(starts)) == 1
    assert children(servers.popen.pid) - first, "no process replaced the one that was killed"


def test_sigterm_to_the_parent_ends_all_processes(servers: Process) -> None:
    """SIGTERM to the parent ends both server processes, and the parent exits with status 0."""
    assert servers.http.get("/v1/health").status_code == 200
    mine = children(servers.popen.pid)
    servers.popen.terminate()
    assert servers.popen.wait(PATIENCE) == 0
    assert not [pid for pid in mine if Path(f"/proc/{pid}").exists()]
