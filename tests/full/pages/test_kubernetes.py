"""The page on Kubernetes: its commands and probes, run as processes with a real database."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import httpx
import pytest

pytest.importorskip("yaml")
pytest.importorskip("click")
pytest.importorskip("uvicorn")
pytest.importorskip("psycopg")

import psycopg
import yaml

from lro.cli import _serving
from lro_client import Client
from tests.cli.asking import Lro
from tests.cli.serving import Server, begun, write_service
from tests.full.cli.test_serve import POSTGRES, process_of
from tests.page_texts import fences, rows, text_of
from tests.services.hosts import PATIENCE, running, until
from tests.services.postgres import shared_server

pytestmark = pytest.mark.skipif(not hasattr(os, "killpg"), reason="there are no process groups")

PAGE: Final = "how-to/run-containers.md"


def manifests() -> Iterator[dict[str, Any]]:
    for text in fences(PAGE, "yaml"):
        yield from yaml.safe_load_all(text)


OBJECTS: Final = {(one["kind"], one["metadata"]["name"]): one for one in manifests()}


def pod(kind: str, name: str) -> dict[str, Any]:
    """Return the pod specification of an object in the manifest."""
    found: dict[str, Any] = OBJECTS[kind, name]["spec"]["template"]["spec"]
    return found


def command(kind: str, name: str) -> list[str]:
    """Return the arguments after ``lro`` in the command of the object's only container."""
    (container,) = pod(kind, name)["containers"]
    assert container["command"][0] == "lro"
    return [str(word) for word in container["command"][1:]]


SERVER: Final = pod("Deployment", "work")
(CONTAINER,) = SERVER["containers"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Create a folder with the module ``work``, whose store has its own PostgreSQL schema."""
    database = shared_server()
    store = POSTGRES.format(url=database.url, schema=database.fresh_schema())
    write_service(tmp_path, store, drain_seconds=0)
    return tmp_path


def serving(folder: Path, log: str) -> Any:
    """Run the page's server command on a free local port."""
    words = command("Deployment", "work")
    words[words.index("--port") + 1] = "0"
    words[words.index("--host") + 1] = "127.0.0.1"
    return running(("-m", "lro.cli", *words), folder, log)


def probe(server: Server, kind: str) -> int:
    """Send a probe of the manifest; return the reply's status code, or 0 if there is no reply."""
    asked = CONTAINER[kind]["httpGet"]
    assert asked["port"] == CONTAINER["ports"][0]["name"]
    try:
        return httpx.get(f"{server.url}{asked['path']}", timeout=PATIENCE).status_code
    except httpx.TransportError:
        return 0


def test_selectors_ports_and_images_of_the_objects_match() -> None:
    """Selectors match the pods, ports match by name, and all containers use one image."""
    labels = OBJECTS["Deployment", "work"]["spec"]["template"]["metadata"]["labels"]
    for kind in ("Deployment", "PodDisruptionBudget"):
        assert OBJECTS[kind, "work"]["spec"]["selector"]["matchLabels"] == labels
    assert OBJECTS["Service", "work"]["spec"]["selector"] == labels
    assert OBJECTS["Service", "work"]["spec"]["ports"][0]["targetPort"] == "http"
    pods = [pod(*key) for key in OBJECTS if key[0] in ("Deployment", "Job")]
    assert len({one["containers"][0]["image"] for one in pods}) == 1
    assert len(pods) == 3
    port = CONTAINER["ports"][0]["containerPort"]
    assert command("Deployment", "work")[-2:] == ["--port", str(port)]
    assert command("Deployment", "work-worker") == ["worker", "work:service"]


def test_shutdown_times_fit_into_the_grace_period() -> None:
    """The page's table adds up correctly, and its numbers match the manifest and the code."""
    *parts, (_, whole, bound) = rows(PAGE, "step")
    seconds = [int(cells[1]) for cells in parts]
    drain = re.search(r"drain=timedelta\(seconds=(\d+)\)", text_of(PAGE))
    assert drain is not None
    sleep = CONTAINER["lifecycle"]["preStop"]["sleep"]["seconds"]
    assert seconds == [sleep, _serving.GRACE_SECONDS, int(drain[1]), 2]
    assert sum(seconds) == int(whole)
    grace = SERVER["terminationGracePeriodSeconds"]
    assert grace == pod("Deployment", "work-worker")["terminationGracePeriodSeconds"]
    assert f"must be below `terminationGracePeriodSeconds`, here {grace}" in bound
    assert sum(seconds) < grace


def test_probes_are_answered_and_sigterm_hands_work_to_the_next_version(folder: Path) -> None:
    """A new pod is ready before the old pod stops, and then continues the old pod's work."""
    kinds = ("startupProbe", "livenessProbe", "readinessProbe")
    with serving(folder, "old.log") as old_host:
        old = Server.of(old_host)
        assert [probe(old, kind) for kind in kinds] == [200, 200, 200]
        with Client(old.url) as client:
            name = old.start(client).name
        until(lambda: begun(folder) == [old_host.process.pid])
        module = folder / "work.py"  # a new release, with one more method
        module.write_text(module.read_text() + NEW_METHOD)
        with serving(folder, "new.log") as new_host:
            new = Server.of(new_host)
            until(lambda: probe(new, "readinessProbe") == 200)
            assert old_host.stop() == 0  # sends SIGTERM
            assert "operations released: 1 of 1" in old_host.output
            assert probe(old, "readinessProbe") == 0
            (folder / "go").touch()
            with Client(new.url) as client:
                assert process_of(client, name) == new_host.process.pid
            assert new_host.stop() == 0


NEW_METHOD: Final = """

@service.method("cli.v1.Works.More")
def more(request: StepsRequest) -> None:
    pass
"""


def test_pod_does_not_start_with_another_database_version(folder: Path) -> None:
    """On a database of another version, the server exits with an error and never listens."""
    job = command("Job", "work-schema-1-4-0")
    assert Lro.as_process(*job, here=folder).returncode == 0
    (schema,) = re.findall(r"schema='(\w+)'", (folder / "work.py").read_text())
    with psycopg.connect(shared_server().url, autocommit=True) as plain:
        plain.execute(f"UPDATE {schema}.lro_versions SET version = 99")
    with serving(folder, "server.log") as host:
        assert host.end() == 2
        assert "has version 99" in host.output
        assert "is served at" not in host.output
