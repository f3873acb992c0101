"""Spans of several processes: a killed worker and its successor, and Celery workers."""

from __future__ import annotations

import subprocess
import sys
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from tests.service_steps import ended
from tests.services.processes import killed_at_end
from tests.services.redis import redis_server
from tests.telemetry import worker
from tests.telemetry.collected import SPANS_FILE, ids, read_spans
from tests.waiting import PATIENCE, until


def begun(*arguments: str) -> AbstractContextManager[subprocess.Popen[str]]:
    """Start a worker process, which is killed at the end of the block."""
    command = [sys.executable, "-m", worker.__name__, *arguments]
    return killed_at_end(command, stdout=subprocess.PIPE)


def test_second_attempt_after_a_kill_links_to_the_start(tmp_path):
    """A worker is killed in attempt 1; attempt 2, in another process, links to the start's span."""
    store, first, second = (str(tmp_path / name) for name in ("operations.db", "a", "b"))
    with begun(store, first, "text") as dead:
        assert dead.stdout is not None
        said = {dead.stdout.readline() for _ in range(2)}
        assert said == {"started\n", "began 1\n"}
        dead.kill()
        dead.wait(PATIENCE)
    with begun(store, second) as other:
        others = other.communicate(timeout=PATIENCE)[0]
    assert others == "began 2\ndone\n"
    (start,) = read_spans(Path(first))  # the first attempt's span was lost with its process
    assert (start["name"], start["kind"]) == (f"start {worker.METHOD}", "PRODUCER")
    by_kind = {span["kind"]: span for span in read_spans(Path(second))}
    assert set(by_kind) == {"INTERNAL", "CONSUMER"}
    for span in by_kind.values():
        assert (span["parent"], span["links"]) == (None, [start["ids"]])
        assert span["pid"] != start["pid"]
        name = span["attributes"]["lro.operation.name"]
        assert name == start["attributes"]["lro.operation.name"]
    assert by_kind["INTERNAL"]["attributes"]["lro.lost_attempts"] == 1
    process = by_kind["CONSUMER"]["attributes"]
    assert (process["lro.attempt"], process["lro.outcome"]) == (2, "succeeded")


@pytest.fixture
def broker(tmp_path):
    """A Redis server for this test."""
    pytest.importorskip("celery")
    with redis_server(tmp_path) as server:
        yield server


def test_worker_of_celery_links_to_the_start(broker, tmp_path, monkeypatch, spans, traced):
    """A Celery worker reads the trace context from the store; its message has only a name."""
    from tests.executors.celery_workers import Harness
    from tests.telemetry import celery_app

    written = tmp_path / "spans"
    monkeypatch.setenv(SPANS_FILE, str(written))
    harness = Harness(broker.url, tmp_path, telemetry=traced())
    try:
        with harness.worker("prefork", celery_app.__name__):
            name = harness.start("Echo", "abc")
            ended(harness.service, name)
            (process,) = until(lambda: read_spans(written))  # spans are written soon after the end
    finally:
        harness.close()
    start = spans.only("PRODUCER")
    assert (process["kind"], process["parent"]) == ("CONSUMER", None)
    assert [tuple(one) for one in process["links"]] == [ids(start)]
    assert process["attributes"]["lro.executor"] == "CeleryExecutor"
    assert process["attributes"]["lro.operation.name"] == name
