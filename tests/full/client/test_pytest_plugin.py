"""The pytest plugin: its fixtures in a separate run of pytest, and the helpers behind them."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import lro
from lro_client.testing import VirtualClock
from lro_client.testing._fixtures import service_in_memory
from tests.service_steps import Step
from tests.waiting import PATIENCE, joined, until
from tests.work_messages import WorkMetadata, WorkRequest, WorkResponse

ROOT = Path(__file__).resolve().parents[3]
NAME = "acme.v1.Works.Work"

METHODS = """
import asyncio, sys
import attrs, pytest
import lro

@attrs.frozen
class ResizeRequest:
    steps: lro.Int32 = 0

@attrs.frozen
class ResizeResponse:
    width: lro.Int32 = 0

def resize_images(request: ResizeRequest, job: lro.Job) -> ResizeResponse:
    for done in range(request.steps):
        job.progress(done / request.steps)
    return ResizeResponse(width=640)

TYPES = {"response": ResizeResponse, "metadata": lro.OperationMetadata}
"""

USES = (
    METHODS
    + """
@pytest.mark.parametrize("steps", [0, 1, 2, 3])
def test_resize(lro_service, lro_client, steps):
    method = lro_service.method("acme.images.v1.Images.Resize")(resize_images)
    started = method.start(ResizeRequest(steps=steps))
    assert started.done
    assert lro_client.operation(started.name, **TYPES).result().width == 640

def test_hour(lro_service, lro_client, lro_clock):
    began = lro_clock()
    method = lro_service.declare("acme.v1.Images.Paint", request=ResizeRequest, **TYPES)
    painting = lro_client.operation(method.start(ResizeRequest()).name, **TYPES)
    with pytest.raises(Exception, match="was not done within 3600 s"):
        painting.result(timeout=3600)
    assert lro_clock() == pytest.approx(began + 3600)
    lro_service.reporter(painting.name).complete(ResizeResponse(width=7))
    lro_clock.advance(86_400 * 31)
    with pytest.raises(Exception, match="there is no operation"):
        painting.result()

def test_retried_work_is_done_while_the_client_waits(lro_service, lro_client, lro_clock):
    attempts, retry = [], lro.Retry(on=(OSError,), attempts=3)

    @lro_service.method("acme.v1.Images.Fetch", retry=retry, concurrency=1)
    def fetch(request: ResizeRequest, job: lro.Job) -> ResizeResponse:
        attempts.append(lro_clock())
        if job.attempt < 3:
            raise OSError
        return ResizeResponse(width=job.attempt)

    started = fetch.start(ResizeRequest())
    assert lro_client.operation(started.name, **TYPES).result(timeout=3600).width == 3
    assert len(attempts) == 3

def test_another_test_has_another_service(lro_service):
    assert lro_service.edges.specs == {}
"""
)


UNUSED = """
import sys

def test_nothing_is_loaded():
    assert "pytest_lro" in sys.modules
    names = {name.partition(".")[0] for name in [*sys.modules]}
    assert names.isdisjoint({"lro", "lro_client", "attr", "httpx", "cattrs", "sqlite3"})
"""


def run_pytest(folder: Path, text: str, *options: str) -> subprocess.CompletedProcess[str]:
    """Run pytest with the plugin on one test file, in a new process."""
    (folder / "test_example.py").write_text(text)
    command = [sys.executable, "-m", "pytest", "-p", "pytest_lro", "-p", "no:cacheprovider"]
    alone = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONPATH": str(ROOT / "src")}
    return subprocess.run(
        [*command, "-W", "error", "-q", *options],
        cwd=folder,
        env={**os.environ, **alone},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )


@pytest.mark.parametrize("options", [(), ("-p", "xdist", "-n", "2")], ids=["one process", "xdist"])
def test_fixtures_serve_each_test(tmp_path: Path, options: tuple[str, ...]) -> None:
    """Work is done when the start returns, and polling for an hour takes no real time."""
    done = run_pytest(tmp_path, USES, *options)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "7 passed" in done.stdout


def test_plugin_without_fixtures_loads_nothing(tmp_path: Path) -> None:
    """The plugin does not slow down tests that do not use it."""
    done = run_pytest(tmp_path, UNUSED)
    assert done.returncode == 0, done.stdout + done.stderr


def test_service_in_memory_reports_leftover_work() -> None:
    """Work in a thread that still runs at the end of the test is reported by its name."""
    step, names = Step(), []

    def forget() -> None:
        with service_in_memory(VirtualClock()) as service:

            @service.method(NAME)
            def work(request: WorkRequest, job: lro.Job[WorkMetadata]) -> WorkResponse:
                names.append(job.name)
                step()
                return WorkResponse()

            forgotten.append(threading.Thread(target=lambda: work.start(WorkRequest())))
            forgotten[0].start()
            step.reached()
            forgotten.append(threading.Thread(target=go_on, args=(service,)))
            forgotten[1].start()  # the close waits for the work

    def go_on(service: lro.Service) -> None:
        until(lambda: service.edges.work.stopping)
        step.go.set()

    forgotten: list[threading.Thread] = []
    with pytest.raises(AssertionError, match="is still running") as caught:
        forget()
    for thread in forgotten:
        joined(thread)
    assert str(caught.value) == f"lro_service: the work of {names[0]} is still running"


def test_service_in_memory_reports_open_wait() -> None:
    """A task that still awaits a result when the test ends is reported, and gets Unavailable."""

    async def main() -> None:
        fixture = service_in_memory(VirtualClock())
        service = fixture.__enter__()
        outside = service.declare(NAME, request=WorkRequest, response=WorkResponse)
        waiting = asyncio.create_task(outside.start(WorkRequest()).result_async())
        await asyncio.sleep(0)
        sentence = "lro_service: waits or watches of operations are still open: 1"
        with pytest.raises(AssertionError, match=sentence):
            fixture.__exit__(None, None, None)
        with pytest.raises(lro.errors.Unavailable):
            await waiting

    asyncio.run(main())
