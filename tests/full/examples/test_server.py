"""The reference server as a whole: ten endpoints, health, the router, and the operations."""

from __future__ import annotations

import asyncio
import hashlib
import importlib
import itertools
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import attrs
import httpx
import pytest

from examples.analysis import messages, methods
from examples.analysis.demo import requests
from examples.analysis.messages import AnalysisMetadata, Image, ScoreRequest, ScoreResponse
from examples.analysis.router import ENDPOINTS, NAMES
from examples.analysis.verbs import score as score_module
from lro import Any as Packed
from lro import Operation
from lro_client import AsyncClient
from tests.full.examples.conftest import encoded, flat
from tests.full.examples.serving import ROOT, Json, Server, as_json, json_object, slow_request

TYPES = "type.googleapis.com/lro.examples.analysis.v1."
SMALL = ScoreRequest(image=flat(16, 16))


@attrs.frozen
class Analysis:
    """One analysis as a polling client saw it."""

    request: Any
    first: Json
    seen: list[AnalysisMetadata]
    last: Operation
    result: Any


async def _watched(server: Server, verb: str, request: Any) -> Analysis:
    response = getattr(messages, f"{verb.capitalize()}Response")
    async with httpx.AsyncClient(transport=server.transport, base_url="http://analysis") as http:
        reply = await http.post(f"/v1/{verb}", json=as_json(request))
        assert reply.status_code == 200, reply.text
        assert reply.headers["retry-after"] == "1"
        first = json_object(reply)
        handle = AsyncClient("http://analysis", http=http).operation(
            first["name"], response=response, metadata=AnalysisMetadata
        )
        seen = [update.metadata async for update in handle.updates(every=0.02)]
        result = await handle.result()
        assert None not in seen
        return Analysis(request, first, [m for m in seen if m], handle.operation, result)


@pytest.fixture(scope="session")
def analyses(server: Server) -> dict[str, Analysis]:
    """All ten on real pictures, two at a time."""

    async def all_ten() -> list[Analysis]:
        calls = zip(NAMES, requests(), strict=True)
        return await asyncio.gather(
            *(_watched(server, verb, request) for verb, (request, _) in calls)
        )

    return dict(zip(NAMES, server.run(all_ten()), strict=True))


@pytest.fixture
def one_worker(tmp_path: Path) -> Iterator[Server]:
    """A server of its own, with one thread for the work."""
    server = Server.on(tmp_path / "operations.db", workers=1)
    yield server
    server.close()


class Gate:
    """The work of ``score``, replaced by something that waits to be let through."""

    def __init__(self) -> None:
        self.entered = threading.Event()
        self.open = threading.Event()

    def __call__(self, _: ScoreRequest, progress: Any) -> ScoreResponse:
        self.entered.set()
        self.open.wait(240)
        progress.stage("DECODING")
        return ScoreResponse(overall=50.0)


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    """A gate that is closed until a test opens it."""
    gate = Gate()
    monkeypatch.setattr(score_module, "score", gate)
    yield gate
    gate.open.set()


@pytest.mark.parametrize("verb", NAMES)
def test_every_endpoint_starts_an_operation(verb: str, analyses: dict[str, Analysis]) -> None:
    """POST gives an operation at once, queued, with its picture as the target."""
    first, request = analyses[verb].first, analyses[verb].request
    picture = request.frames[0] if verb == "track" else request.image
    assert first["name"].startswith("operations/")
    created = first["metadata"].pop("createTime")
    assert datetime.fromisoformat(created).utcoffset() == timedelta()
    # Where a worker is free, it has begun already.
    assert first["metadata"].pop("startTime", created) == created
    assert first == {
        "name": first["name"],
        "metadata": {
            "@type": TYPES + "AnalysisMetadata",
            "target": "images/" + hashlib.sha256(picture.content).hexdigest(),
            "verb": verb,
            "stage": "QUEUED",
            "apiVersion": "v1",
        },
    }


@pytest.mark.parametrize("verb", NAMES)
def test_every_analysis_succeeds(verb: str, analyses: dict[str, Analysis]) -> None:
    """It ends with a response of the declared type, all units done, 100 percent."""
    last, metadata = analyses[verb].last, analyses[verb].seen[-1]
    assert isinstance(last.result, Packed)
    assert last.result.type_url == f"{TYPES}{verb.capitalize()}Response"
    assert 0 < analyses[verb].result.scale <= 1
    assert (metadata.stage, metadata.progress_percent, metadata.verb) == ("DONE", 100, verb)
    assert metadata.work_done == metadata.work_total
    assert not metadata.cancel_requested
    assert metadata.create_time is not None
    assert metadata.start_time is not None
    assert metadata.end_time is not None
    assert metadata.create_time <= metadata.start_time <= metadata.end_time


@pytest.mark.parametrize("verb", NAMES)
def test_progress_never_falls(verb: str, analyses: dict[str, Analysis]) -> None:
    """Polls show stages in order, rising percentages, and no 100 before the response."""
    seen = analyses[verb].seen
    own = importlib.import_module(f"examples.analysis.verbs.{verb}").STAGES
    order = ["QUEUED", "DECODING", *own, "DONE"]
    places = [order.index(metadata.stage) for metadata in seen]
    percents = [metadata.progress_percent for metadata in seen]
    assert places == sorted(places)
    assert percents == sorted(percents)
    assert [percent == 100 for percent in percents] == [stage == len(order) - 1 for stage in places]
    for before, after in itertools.pairwise(seen):
        assert before.create_time == after.create_time
        assert before.start_time in (None, after.start_time)


def test_a_failed_analysis_keeps_its_progress(server: Server) -> None:
    """An operation that ends with an error keeps its last percentage, below 100."""
    content = encoded("camera.png").content
    half = Image(content=content[: len(content) // 2])
    last = server.finish(server.start("score", ScoreRequest(image=half))["name"])
    metadata = last["metadata"]
    assert (last["error"]["code"], metadata["stage"]) == (3, "FAILED")
    assert metadata.get("progressPercent", 0) < 100
    assert metadata["createTime"] <= metadata["startTime"] <= metadata["endTime"]


def test_a_running_track_is_cancelled(server: Server) -> None:
    """Cancel stops the work between two frames; the operation says how far it came."""
    name = server.start("track", slow_request(32))["name"]
    before = server.until(name, lambda o: o["metadata"].get("progressPercent", 0) > 50)
    reply = server.call("POST", f"/v1/{name}:cancel")
    assert (reply.status_code, reply.json()) == (200, {})
    last = server.finish(name)
    metadata = last["metadata"]
    assert last["error"]["code"] == 1
    assert (metadata["stage"], metadata["cancelRequested"]) == ("CANCELLED", True)
    assert before["metadata"]["progressPercent"] <= metadata["progressPercent"] < 100
    assert metadata["workDone"] < metadata["workTotal"] == 31


def test_a_queued_operation_is_cancelled(one_worker: Server, gate: Gate) -> None:
    """What waits in the queue ends at once, and never begins."""
    one_worker.start("score", SMALL)
    assert gate.entered.wait(240)
    name = one_worker.start("score", SMALL)["name"]
    one_worker.call("POST", f"/v1/{name}:cancel")
    last = one_worker.get(name)
    assert (last["done"], last["error"]["code"]) == (True, 1)
    assert last["metadata"]["stage"] == "CANCELLED"
    assert "progressPercent" not in last["metadata"]


def test_a_full_queue_refuses(one_worker: Server, gate: Gate) -> None:
    """The 33rd that would wait is refused with the advice to retry, and nothing of it is stored."""
    running = one_worker.start("score", SMALL)["name"]
    assert gate.entered.wait(240)
    waiting = [one_worker.start("score", SMALL)["name"] for _ in range(32)]
    reply = one_worker.call("POST", "/v1/score", json=as_json(SMALL))
    error = reply.json()["error"]
    assert (reply.status_code, error["status"]) == (429, "RESOURCE_EXHAUSTED")
    assert int(reply.headers["retry-after"]) >= 1
    assert "type.googleapis.com/google.rpc.RetryInfo" in [d["@type"] for d in error["details"]]
    listed = {operation["name"] for operation in one_worker.listed(pageSize=100)}
    assert listed == {running, *waiting}
    gate.open.set()
    assert one_worker.finish(waiting[-1])["response"]["overall"] == 50.0


def test_the_time_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work that takes too long is stopped, and its operation ends with DEADLINE_EXCEEDED."""
    monkeypatch.setattr(methods, "TIME_LIMIT", timedelta(milliseconds=400))
    server = Server.on(tmp_path / "operations.db")
    last = server.finish(server.start("track", slow_request(32))["name"])
    server.close()
    assert last["error"]["code"] == 4
    assert last["metadata"]["stage"] == "FAILED"
    assert last["metadata"].get("progressPercent", 0) < 100


def test_health(server: Server) -> None:
    """The report has its keys in order, and is never cached."""
    reply = server.call("GET", "/v1/health?verbose=1")
    report = reply.json()
    assert list(report) == ["ok", "version", "endpoints", "status", "timestamp"]
    assert (report["ok"], report["version"], report["status"]) == (True, "1.0.0", "operational")
    assert report["endpoints"] == list(ENDPOINTS)
    assert datetime.fromisoformat(report["timestamp"]).utcoffset() == timedelta()
    assert reply.headers["cache-control"] == "no-store"
    assert reply.headers["content-type"] == "application/json; charset=utf-8"


def test_newline_in_a_path_is_refused_in_our_words(server: Server) -> None:
    """The router gets such a path too, not the framework's plain 404."""
    reply = server.call("GET", "/v1/operations/a%0Ab")
    assert reply.status_code == 400
    assert reply.json()["error"]["details"][0]["reason"] == "INVALID_OPERATION_NAME"


def test_health_by_other_methods(server: Server) -> None:
    """HEAD is GET without its body, OPTIONS says what is allowed, nothing else is."""
    head = server.call("HEAD", "/v1/health")
    assert (head.status_code, head.content) == (200, b"")
    assert int(head.headers["content-length"]) > 100
    options = server.call("OPTIONS", "/v1/health")
    assert options.headers["x-content-type-options"] == "nosniff"
    assert (options.status_code, options.headers["allow"]) == (204, "GET, HEAD, OPTIONS")
    post = server.call("POST", "/v1/health", json={})
    assert (post.status_code, post.headers["allow"]) == (405, "GET, HEAD, OPTIONS")
    assert post.json()["error"]["status"] == "UNIMPLEMENTED"


def test_health_waits_for_no_library(tmp_path: Path) -> None:
    """The report is there before NumPy and scikit-image are imported."""
    program = """
import asyncio, httpx, sys
from examples.analysis.deployment import Deployment
from examples.analysis.server import make_app

async def health(app):
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://analysis") as http:
        return await http.get("/v1/health")

service = Deployment(store=sys.argv[1]).make_service()
print(asyncio.run(health(make_app(service))).status_code)
print(sorted({"numpy", "scipy", "skimage", "sklearn", "PIL"} & set(sys.modules)))
service.close()
"""
    command = [sys.executable, "-c", program, f"sqlite:///{tmp_path / 'operations.db'}"]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert ran.stdout.split() == ["200", "[]"]


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/v1/detect", 405),
        ("DELETE", "/v1/detect/", 405),
        ("OPTIONS", "/v1/detect", 405),
        ("POST", "/v1/detect", 400),
        ("POST", "/v1/detect/", 400),
        ("POST", "/v1/%64etect", 400),
        ("POST", "/v1/detect/x", 404),
        ("GET", "/v1/detect/x", 404),
        ("POST", "/v1/detect//", 404),
        ("POST", "/v1/detectx", 404),
        ("POST", "/v1/detect:run", 404),
        ("POST", "/v1/Detect", 404),
        ("POST", "/v1/detect%2F", 404),
        ("GET", "/v1/health/", 404),
        ("GET", "/v1/%68ealth", 200),
        ("GET", "/v1/detect/%zz", 400),
        ("GET", "/v1/%ff", 400),
        ("GET", "/", 200),
        ("POST", "/", 404),
        ("GET", "/page.html", 404),
        ("GET", "/v1/operations", 200),
        ("GET", "/v1/operations/", 404),
        ("GET", "/v1/projects/p/operations", 200),
        ("GET", "/v1/folders/f/operations", 404),
    ],
)
def test_requests_reach_their_router(method: str, path: str, status: int, server: Server) -> None:
    """The rules of the router; an empty request to an endpoint lacks its picture."""
    reply = server.call(method, path)
    assert reply.status_code == status, reply.text
    assert reply.headers["cache-control"] == "no-store"
    assert "location" not in reply.headers
    if status == 405:
        assert reply.headers["allow"] == "POST"
    if status >= 400:
        assert reply.json()["error"]["code"] == status


def test_errors_of_head_have_no_body(server: Server) -> None:
    """HEAD gets the status alone."""
    for path, status in [("/v1/detect", 405), ("/v1/detect/x", 404), ("/v1/nothing", 404)]:
        reply = server.call("HEAD", path)
        assert (reply.status_code, reply.content) == (status, b"")


def test_the_example_shows_what_users_write() -> None:
    """Nothing in the example is imported from the inside of the library."""
    sources = [path.read_text("utf-8") for path in (ROOT / "examples").rglob("*.py")]
    imported = re.findall(r"^\s*(?:from|import) (lro\S*)", "\n".join(sources), re.MULTILINE)
    assert set(imported) == {
        "lro",
        "lro.adapters",
        "lro.asgi",
        "lro.errors",
        "lro.executors.celery",
        "lro.executors.processes",
        "lro.executors.threads",
        "lro.grpc",
        "lro.http",
        "lro.openapi",
        "lro.stores.postgres",
        "lro.stores.sqlite",
        "lro.types",
        "lro_client",
        "lro_client.progress",
    }
