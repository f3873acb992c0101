"""The server as a process: its options, and no work lost by SIGKILL or SIGTERM."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import attrs
import httpx
import pytest

from examples.analysis.messages import ScoreRequest
from examples.analysis.verbs import score as score_module
from lro import Service
from lro.executors.threads import ThreadExecutor
from lro.stores.sqlite import SQLiteStore
from lro.testing import ManualClock
from tests.full.examples.conftest import encoded
from tests.full.examples.serving import ROOT, SHORT_LEASE, Json, Process, Server, slow_request

CAMERA = ScoreRequest(image=encoded("camera.png"))


def percent(operation: Json) -> int:
    found: int = operation["metadata"].get("progressPercent", 0)
    return found


@attrs.define
class Story:
    """What was seen of three operations on three servers, one after the other, on one file."""

    scored: list[Json] = attrs.field(factory=list)
    killed: list[Json] = attrs.field(factory=list)
    drained: list[Json] = attrs.field(factory=list)
    released: list[Json] = attrs.field(factory=list)
    waited: httpx.Response | None = None
    status: int = 0
    errors: str = ""


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Story:
    """Three servers: the first gets SIGKILL during its work, the second gets SIGTERM."""
    story = Story()
    file = tmp_path_factory.mktemp("lives") / "operations.db"
    command = ("-c", SHORT_LEASE, f"sqlite:///{file}")
    with Process(*command) as first:
        scored = first.start("score", CAMERA)["name"]
        story.scored.append(first.until(scored))
        killed = first.start("track", slow_request(8))["name"]
        story.killed.append(first.until(killed, lambda o: percent(o) > 60))
        first.signal(signal.SIGKILL)
    with Process(*command) as second:
        story.scored.append(second.get(scored))
        story.killed.append(second.get(killed))
        story.killed += second.watch(killed)
        drained = second.start("track", slow_request(16))["name"]
        released = second.start("score", CAMERA)["name"]
        story.drained.append(second.until(drained, lambda o: percent(o) > 10))
        story.released.append(second.get(released))
        reply = second.wait_in_thread(released)
        story.status, story.errors = second.signal(signal.SIGTERM)
        story.waited = reply()
    with Process(*command) as third:
        story.drained.append(third.until(drained))
        story.released.append(third.until(released))
    return story


def test_a_finished_operation_survives(story: Story) -> None:
    """The next server on the file gives the same answer, to the letter."""
    before, after = story.scored
    assert before["response"]["overall"] == pytest.approx(98.06, rel=0.01)
    assert after == before


def test_work_of_a_killed_server_is_done_again(story: Story) -> None:
    """It stays in progress until the lease is over, then is done, and its progress never falls."""
    seen = story.killed
    assert not seen[0].get("done")
    assert not seen[1].get("done")
    percents = [percent(operation) for operation in seen]
    assert percents == sorted(percents)
    assert (seen[-1]["done"], seen[-1]["response"]["frameCount"]) == (True, 8)
    times = {(o["metadata"]["createTime"], o["metadata"].get("startTime")) for o in seen}
    assert len(times) == 1


def test_work_that_stopping_server_cannot_end_is_done_by_next(story: Story) -> None:
    """The server releases what it cannot end in time, and the next server does it."""
    assert story.status == 0
    assert "Traceback" not in story.errors
    assert [operation.get("done", False) for operation in story.drained] == [False, True]
    assert story.drained[-1]["response"]["foundCount"] == 16
    assert [operation.get("done", False) for operation in story.released] == [False, True]
    assert story.released[-1]["response"] == story.scored[0]["response"]


def test_wait_does_not_delay_server_that_stops(story: Story) -> None:
    """A Wait does not delay the stop: it is answered, or refused with the advice to retry."""
    waited = story.waited
    if waited is not None and waited.status_code == 200:
        assert waited.json()["done"]
    elif waited is not None:  # else it came so late that its connection was closed
        assert (waited.status_code, waited.headers["retry-after"]) == (503, "1")


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """An event that holds up the work of ``score``."""
    opened = threading.Event()
    monkeypatch.setattr(score_module, "score", lambda *_: opened.wait(60))
    yield opened
    opened.set()


def test_operation_whose_workers_are_lost_three_times_is_aborted(
    tmp_path: Path, gate: threading.Event
) -> None:
    """After three lost workers the operation ends with ABORTED, and says so in its metadata."""
    name = ""
    servers = []
    clock = ManualClock()

    def seconds() -> float:
        return clock().timestamp()

    for _ in range(5):
        store = SQLiteStore(tmp_path / "operations.db", clock=clock)
        server = Server(Service(store, ThreadExecutor(1), maintenance=False, clock=seconds))
        servers.append(server)
        name = name or server.start("score", CAMERA)["name"]
        clock.advance(minutes=1)
        for _ in range(2):  # work counts as lost if its lease is over at two scans
            server.service.run_maintenance()
            clock.advance(1)
    last = servers[-1].get(name)
    gate.set()
    for server in servers:
        server.close()
    assert last["error"]["code"] == 10
    assert last["error"]["details"][0]["reason"] == "WORKER_LOST"
    assert (last["metadata"]["stage"], last["metadata"]["verb"]) == ("FAILED", "score")


@pytest.mark.parametrize(
    ("options", "status", "said"),
    [
        ("serve --help", 0, "--store"),
        ("demo --help", 0, "demo"),
        ("--help", 0, "serve|demo"),
        ("", 1, "serve|demo"),
        ("sing", 1, "serve|demo"),
        ("demo --fast", 2, "unrecognized arguments: --fast"),
        ("serve --port many", 2, "invalid int value: 'many'"),
        ("serve --port 70000", 2, "cannot listen: bind(): port must be 0-65535"),
        ("serve --port {port}", 2, "Address already in use"),
        ("serve --port 0 --concurrency 0", 2, "workers: must be a whole number from 1"),
        ("serve --port 0 --executor gpu", 2, "'gpu': is none of threads, processes, celery"),
        ("serve --port 0 --store mongodb://x", 2, "is not sqlite:///PATH or postgresql://"),
        ("serve --port 0 --store sqlite:///.", 2, "cannot serve sqlite:///.: "),
    ],
)
def test_options(options: str, status: int, said: str, tmp_path: Path) -> None:
    """A wrong option is answered with a sentence and an exit status, never with a traceback."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        words = options.format(port=taken.getsockname()[1]).split()
        command = [sys.executable, "-m", "examples.analysis", *words]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        ran = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=240
        )
    shown = ran.stdout if status == 0 else ran.stderr
    assert ran.returncode == status
    assert said in shown
    assert "Traceback" not in ran.stderr
