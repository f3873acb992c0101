"""The OpenAPI document of the reference server, and its use by third-party tools."""

from __future__ import annotations

import base64
import importlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from examples.analysis.router import NAMES
from tests.full.examples.serving import ROOT, Server, as_json, slow_request
from tests.full.examples.spoiled import PICTURE, good
from tests.http.servers import uvicorn_serving
from tests.waiting import until

MAX_HEAD = 256 * 1024
"""The most bytes before a body that the server accepts: enough for the longest escaped filter."""


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Run a reference server of its own, because it receives malformed requests."""
    server = Server.on(tmp_path_factory.mktemp("openapi") / "operations.db", workers=1)
    with uvicorn_serving(
        server.app, lifespan="off", h11_max_incomplete_event_size=MAX_HEAD
    ) as port:
        yield f"http://127.0.0.1:{port}"
    server.close()


BODIES = {f"/v1/{verb}": good(verb) for verb in NAMES}
"""A small accepted request for each path."""


def test_document_is_served_with_the_ten_methods(server: Server) -> None:
    """The document has the ten methods and, below both parents, the standard methods."""
    validate = pytest.importorskip("openapi_spec_validator").validate
    document = server.call("GET", "/openapi.json").json()
    validate(document)
    assert {*BODIES} < {*document["paths"]}
    assert "/v1/projects/{project}/locations/{location}/operations" in document["paths"]
    assert len(document["paths"]) == 10 + 3 * 7


def test_schemathesis_finds_no_error(address: str, tmp_path: Path) -> None:
    """schemathesis sends invalid requests to every path and follows links, and finds no error."""
    pytest.importorskip("schemathesis")
    (tmp_path / "bodies.json").write_text(json.dumps(BODIES))
    config = Path(__file__).with_name("schemathesis.toml")
    paths = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    run = subprocess.run(
        [
            *(sys.executable, "-m", "schemathesis.cli", "--config-file", str(config)),
            *("run", f"{address}/openapi.json", "--max-examples", "3", "--seed", "1"),
            *("--continue-on-failure", "--no-color", "--warnings", "off"),
        ],
        cwd=tmp_path,  # schemathesis keeps failures here, to retry them
        env={
            **os.environ,
            "ANALYSIS_BODIES": str(tmp_path / "bodies.json"),
            "PYTHONPATH": paths,
            "SCHEMATHESIS_HOOKS": "tests.full.examples.openapi_hooks",
        },
        capture_output=True,
        text=True,
        timeout=600,
    )
    said = "\n".join(line[:300] for line in run.stdout.splitlines())
    assert run.returncode == 0, said + run.stderr
    assert re.search(r"API Links: +[1-9]\d covered / 80 selected / 80 total", said), said


@pytest.fixture
def generated(address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Return a function that imports modules of the client that openapi-python-client generates."""
    pytest.importorskip("openapi_python_client")
    command = [sys.executable, "-m", "openapi_python_client", "generate", "--meta", "none"]
    (tmp_path / "config.yml").write_text("post_hooks: []\n")
    command += ["--url", f"{address}/openapi.json", "--config", "config.yml"]
    command += ["--output-path", "analysis_client", "--fail-on-warning"]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=240)
    assert run.returncode == 0, run.stdout + run.stderr
    monkeypatch.syspath_prepend(tmp_path)
    yield lambda name: importlib.import_module(f"analysis_client.{name}")
    for name in [name for name in [*sys.modules] if name.partition(".")[0] == "analysis_client"]:
        del sys.modules[name]


def test_generated_client_starts_polls_and_cancels(address: str, generated: Any) -> None:
    """The generated client is typed, and it takes ids from the header that the links name."""
    with generated("client").Client(base_url=address) as client:
        use_client(client, generated)


def use_client(client: Any, generated: Any) -> None:
    models = generated("models")
    api = "api.operations.operations_"
    get, wait = generated(f"{api}get").sync, generated(f"{api}wait").sync
    cancel, delete = generated(f"{api}cancel").sync, generated(f"{api}delete").sync_detailed

    def done(operation: str) -> Any:
        wait(operation, client=client)
        return get(operation, client=client)

    def start(verb: str, body: Any) -> str:
        module = generated(f"api.image_analysis.image_analysis_{verb}")
        reply = module.sync_detailed(client=client, body=body)
        assert reply.status_code == 200
        assert reply.parsed.name == f"operations/{reply.headers['operation-id']}"
        return str(reply.headers["operation-id"])

    package = "LroExamplesAnalysisV1"
    image = getattr(models, f"{package}ImageInput")(content=base64.b64encode(PICTURE).decode())
    extract = getattr(models, f"{package}ExtractRequestStart")(image=image, palette_size=3)
    operation = start("extract", extract)
    found = until(lambda: done(operation), lambda one: one.done)
    response = found.response.to_dict()
    assert len(response["palette"]) == 3
    assert (response["imageWidth"], response["imageHeight"]) == (64, 64)

    track = getattr(models, f"{package}TrackRequestStart").from_dict(as_json(slow_request(32)))
    operation = start("track", track)
    cancel(operation, client=client)
    found = until(lambda: done(operation), lambda one: one.done)
    assert found.error.code == 1
    assert delete(operation, client=client).status_code == 200
    gone = get(operation, client=client)
    assert (gone.error.code, gone.error.status.value) == (404, "NOT_FOUND")
