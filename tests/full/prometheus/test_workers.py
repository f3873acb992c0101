"""The metrics of several processes on one port, one of which is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

pytest.importorskip("prometheus_client")

from tests.http.servers import HOST
from tests.prometheus.test_metrics import Samples, labelled, samples
from tests.services.ports import free_port


@pytest.fixture(params=["uvicorn", "lro serve"])
def workers(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The URL of four processes on one port; ``lro serve`` makes the metrics directory itself."""
    pytest.importorskip("uvicorn")
    port = free_port()
    environment = {**os.environ, "LRO_TEST_FILE": str(tmp_path / "operations.db")}
    served = "tests.prometheus.served:app", f"--port={port}", "--workers=4"
    command = [sys.executable, "-m", "lro.cli", "serve", *served]
    if request.param == "uvicorn":
        command = [sys.executable, "-m", "uvicorn", *served, "--log-level=error"]
        (tmp_path / "metrics").mkdir()
        # A process that was killed before it wrote its first value leaves an empty file.
        (tmp_path / "metrics" / "counter_1.db").touch()
        environment["PROMETHEUS_MULTIPROC_DIR"] = str(tmp_path / "metrics")
    with ExitStack() as stack:
        server = stack.enter_context(subprocess.Popen(command, env=environment))
        stack.callback(server.wait, 120)
        stack.callback(server.terminate)
        yield f"http://{HOST}:{port}"


def test_counters_of_many_workers_never_fall(workers: str) -> None:
    transport = httpx.HTTPTransport(retries=50)
    highest: Samples = {}
    answered: set[str] = set()

    with httpx.Client(transport=transport, base_url=workers, timeout=30) as client:

        def call(method: str, path: str, **options: Any) -> httpx.Response | None:
            headers = {"connection": "close"}  # the next request may reach any worker
            try:
                return client.request(method, path, headers=headers, **options)
            except httpx.TransportError:  # the worker was killed during the request
                return None

        def scrape() -> float:
            reply = call("GET", "/metrics")
            if reply is None:
                return 0
            assert reply.status_code == 200, reply.text
            for key, number in samples(reply.text).items():
                process = dict(key[1]).get("process")
                if process is not None:
                    answered.add(process)
                    continue
                assert number >= highest.get(key, 0), key
                highest[key] = number
            ended = labelled(lro_outcome="succeeded", error_type="")
            return highest.get(("lro_operation_duration_seconds_count", ended), 0)

        def start(number: int) -> None:
            before = 0
            while before < number:
                reply = call("POST", "/v1/works:work", json={"text": "x"})
                before += reply is not None and reply.status_code == 200

        deadline = 2000
        while len(answered) < 4 and (deadline := deadline - 1):
            start(1)
            scrape()
        assert len(answered) == 4
        before = scrape()
        victim = int(min(answered))
        os.kill(victim, signal.SIGKILL)
        answered.clear()
        deadline = 2000
        while (scrape() < before + 50 or len(answered) < 4) and (deadline := deadline - 1):
            start(1)
        assert deadline
        assert str(victim) not in answered
