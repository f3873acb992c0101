"""The whole reference server: ten endpoints, the health report, the router and operations."""

from __future__ import annotations

import hashlib
import importlib
import re
import subprocess
import sys
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from examples.analysis import methods
from examples.analysis.router import ENDPOINTS, NAMES
from tests.full.examples.conftest import Analysis
from tests.full.examples.serving import ROOT, Server, slow_request

PACKAGE = "type.googleapis.com/lro.examples.analysis.v1."


@pytest.mark.parametrize("verb", NAMES)
def test_every_endpoint_starts_an_operation(verb: str, analyses: dict[str, Analysis]) -> None:
    """POST returns a queued operation at once; the operation's target is the picture."""
    first, request = analyses[verb].first, analyses[verb].request
    picture = request.frames[0] if verb == "track" else request.image
    assert first["name"].startswith("operations/")
    created = first["metadata"].pop("createTime")
    assert datetime.fromisoformat(created).utcoffset() == timedelta()
    # a free worker may have begun the work
    assert first["metadata"].pop("startTime", created) == created
    assert first == {
        "name": first["name"],
        "metadata": {
            "@type": PACKAGE + "AnalysisMetadata",
            "target": "images/" + hashlib.sha256(picture.content).hexdigest(),
            "verb": verb,
            "stage": "QUEUED",
            "apiVersion": "v1",
        },
    }


@pytest.mark.parametrize("verb", NAMES)
def test_every_analysis_succeeds(verb: str, analyses: dict[str, Analysis]) -> None:
    """An analysis ends with a response of its type, with all units done and 100 percent."""
    response, metadata = analyses[verb].response, analyses[verb].seen[-1]
    assert response["@type"] == f"{PACKAGE}{verb.capitalize()}Response"
    assert 0 < response["scale"] <= 1
    assert (metadata["stage"], metadata["progressPercent"]) == ("DONE", 100)
    assert metadata.get("workDone") == metadata.get("workTotal")
    times = [datetime.fromisoformat(metadata[f"{one}Time"]) for one in ("create", "start", "end")]
    assert times == sorted(times)


@pytest.mark.parametrize("verb", NAMES)
def test_progress_never_falls(verb: str, analyses: dict[str, Analysis]) -> None:
    """Polls show stages in order and rising percentages, and 100 percent only with the response."""
    seen = analyses[verb].seen
    own = importlib.import_module(f"examples.analysis.verbs.{verb}").STAGES
    order = ["QUEUED", "DECODING", *own, "DONE"]
    places = [order.index(metadata["stage"]) for metadata in seen]
    percents = [metadata.get("progressPercent", 0) for metadata in seen]
    assert places == sorted(places)
    assert percents == sorted(percents)
    assert [percent == 100 for percent in percents] == [stage == len(order) - 1 for stage in places]
    assert len({metadata["createTime"] for metadata in seen}) == 1
    assert len({metadata["startTime"] for metadata in seen if "startTime" in metadata}) == 1


def test_work_over_the_time_limit_ends_with_deadline_exceeded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Work over the time limit is stopped, and its operation ends with DEADLINE_EXCEEDED."""
    monkeypatch.setattr(methods, "TIME_LIMIT", timedelta(milliseconds=400))
    server = Server.on(tmp_path / "operations.db")
    last = server.finish(server.start("track", slow_request(32))["name"])
    server.close()
    assert last["error"]["code"] == 4
    assert last["metadata"]["stage"] == "FAILED"
    assert last["metadata"].get("progressPercent", 0) < 100


def test_health_report_has_ordered_keys_and_answers_head(server: Server) -> None:
    """The health report has its keys in order; HEAD returns only headers."""
    reply = server.call("GET", "/v1/health?verbose=1")
    report = reply.json()
    assert list(report) == ["ok", "version", "endpoints", "status", "timestamp"]
    assert (report["ok"], report["version"], report["status"]) == (True, "1.0.0", "operational")
    assert report["endpoints"] == list(ENDPOINTS)
    assert datetime.fromisoformat(report["timestamp"]).utcoffset() == timedelta()
    assert reply.headers["content-type"] == "application/json; charset=utf-8"
    head = server.call("HEAD", "/v1/health")
    assert (head.status_code, head.content) == (200, b"")
    assert int(head.headers["content-length"]) > 100


def test_health_report_is_returned_before_libraries_are_imported(tmp_path: Path) -> None:
    """The health report is returned before NumPy and scikit-image are imported."""
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
    ("method", "path", "status", "allow"),
    [
        ("OPTIONS", "/v1/health", 204, "GET, HEAD, OPTIONS"),
        ("POST", "/v1/health", 405, "GET, HEAD, OPTIONS"),
        ("GET", "/v1/%68ealth", 200, None),
        ("GET", "/v1/health/", 404, None),
        ("GET", "/v1/detect", 405, "POST"),
        ("HEAD", "/v1/detect/", 405, "POST"),
        ("POST", "/v1/%64etect/", 400, None),
        ("POST", "/v1/detect//", 404, None),
        ("HEAD", "/v1/detect/x", 404, None),
        ("POST", "/v1/detect%2F", 404, None),
        ("GET", "/v1/detect/%zz", 400, None),
        ("GET", "/v1/%ff", 400, None),
        ("GET", "/v1/operations/a%0Ab", 400, None),
        ("GET", "/", 200, None),
        ("POST", "/", 404, None),
        ("OPTIONS", "/page.js", 404, None),
        ("GET", "/v1/projects/p/operations", 200, None),
        ("GET", "/v1/folders/f/operations", 404, None),
        ("HEAD", "/v1/nothing", 404, None),
    ],
)
def test_requests_are_routed_by_the_router(
    method: str, path: str, status: int, allow: str | None, server: Server
) -> None:
    """Requests are routed by the router's rules; an empty POST to an endpoint has no picture."""
    reply = server.call(method, path)
    assert reply.status_code == status, reply.text
    assert reply.headers["cache-control"] == "no-store"
    assert "location" not in reply.headers
    assert reply.headers.get("allow") == allow
    if method == "HEAD":
        assert reply.content == b""
    elif status >= 400:
        assert reply.json()["error"]["code"] == status


def test_example_imports_no_private_module() -> None:
    """The example imports none of the library's private modules."""
    sources = [path.read_text("utf-8") for path in (ROOT / "examples").rglob("*.py")]
    imported = re.findall(r"^\s*(?:from|import) (lro\S*)", "\n".join(sources), re.MULTILINE)
    assert len(set(imported)) > 10
    assert [name for name in imported if "._" in name] == []
