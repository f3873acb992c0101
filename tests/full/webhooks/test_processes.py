"""Several processes: one that is killed while it sends a webhook, and one that forks."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from lro.webhooks import verify
from tests.webhooks.hooked import SECRET
from tests.webhooks.receivers import PATIENCE, Received, Reply, receiver

PROGRAM = """
import os, sys
import lro
from lro.executors.threads import ThreadExecutor
from lro.stores.sqlite import SQLiteStore
from lro.webhooks import Endpoint, Webhooks
from tests.work_messages import WorkRequest, WorkResponse

database, url, secret, do = sys.argv[1:]
sends = Webhooks(
    [Endpoint(url=url, secrets=(secret,))],
    allow_private=True, allow_http=True, ports=None, timeout=1.0,
)
service = lro.Service(SQLiteStore(database), ThreadExecutor(1), webhooks=sends)

@service.method("acme.v1.Works.Work")
def work(request: WorkRequest) -> WorkResponse:
    return WorkResponse(request.text)

def started():
    print(work.start(WorkRequest()).name, flush=True)

if do == "start":
    started()
    sys.stdin.read()
if do == "go on":
    with service:
        sys.stdin.read()
if do == "fork":
    started()
    child = os.fork()
    if child == 0:
        started()
        sys.stdin.read()
        service.close(0)
        os._exit(0)
    os.waitpid(child, 0)
"""


def running(do: str, database: Path, url: str) -> subprocess.Popen[str]:
    """Start a process that runs the program; it ends when its standard input is closed."""
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(database), url, SECRET, do],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def finish(process: subprocess.Popen[str]) -> None:
    """Close the standard input of a process, and wait for its end."""
    process.communicate(timeout=PATIENCE)
    assert process.returncode == 0


def test_delivery_of_a_killed_process_is_sent_by_another_with_the_same_id(tmp_path: Path) -> None:
    killed = threading.Event()

    def script(got: Received) -> Reply:
        if not killed.is_set():
            first.send_signal(signal.SIGKILL)
            first.wait(PATIENCE)
            killed.set()
        return Reply()

    with receiver(script) as good:
        first = running("start", tmp_path / "db", good.url)
        assert first.stdout is not None
        name = first.stdout.readline().strip()
        lost = good.next()
        first.communicate(timeout=PATIENCE)
        assert first.returncode == -signal.SIGKILL
        second = running("go on", tmp_path / "db", good.url)
        found = good.next()
        finish(second)
        assert good.all() == []
    assert lost.headers["webhook-id"] == found.headers["webhook-id"]
    assert json.loads(found.body)["data"]["name"] == name
    verify(found.body, found.headers, [SECRET], now=int(found.headers["webhook-timestamp"]))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
def test_forked_child_sends_webhooks_of_operations_it_ends(tmp_path: Path) -> None:
    with receiver() as good:
        process = running("fork", tmp_path / "db", good.url)
        assert process.stdout is not None
        names = {process.stdout.readline().strip() for _ in range(2)}
        got = [json.loads(good.next().body)["data"]["name"] for _ in names]
        finish(process)
        assert {*got} == names
        assert good.all() == []
