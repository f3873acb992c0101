"""The programs of docs/how-to/clients-in-other-languages.md, run with each language's tools."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import attrs
import pytest

pytest.importorskip("markdown_it")
pytest.importorskip("click")
pytest.importorskip("uvicorn")
pytest.importorskip("grpc_tools")
pytest.importorskip("google.longrunning.operations_proto_pb2")

from tests.cli.serving import Server, lro_serve
from tests.page_texts import DOCS, blocks, files
from tests.services.npm import LANGUAGES, REACH_SECONDS, node_modules

PAGE: Final = DOCS / "how-to" / "clients-in-other-languages.md"
COMMANDS: Final = re.compile(r"<!--\s*commands: (?P<name>\w+)\s*-->")
PATIENCE: Final = 600.0
"""The time limit of a program in seconds, including the download of its packages."""
MAVEN: Final = (
    *("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"),
    "-Dmaven.wagon.rto=3000",  # Maven before 3.9 needs this
    *(f"-Daether.connector.{one}Timeout=3000" for one in ("connect", "request")),
)
"""Options that start Maven quickly, and end a request after 3 seconds without data."""
NO_REGISTRY: Final = re.compile(r"Could not transfer artifact .*")
"""The beginning of Maven's error if it cannot reach a registry."""


@attrs.frozen
class World:
    """A folder with the page's files, and the server that the page's programs call."""

    folder: Path
    server: Server

    def run(self, name: str, within: str = ".", **variables: str) -> str:
        """Run commands of the page, check that they succeed, and return what they print."""
        ran = self.ran(commands()[name], within, **variables)
        assert ran.returncode == 0, f"{ran.stdout}\n{ran.stderr}"
        return ran.stdout

    def ran(self, script: str, within: str, **variables: str) -> subprocess.CompletedProcess[str]:
        """Run a script as the page tells its readers to run it."""
        path = os.pathsep.join(
            [str(self.folder / "bin"), str(Path(sys.executable).parent), os.environ["PATH"]]
        )
        return subprocess.run(
            ["bash", "-euo", "pipefail", "-c", self.here(script)],
            cwd=self.folder / within,
            env={**os.environ, "PATH": path, "GOBIN": str(self.folder / "bin"), **variables},
            capture_output=True,
            text=True,
            timeout=PATIENCE,
        )

    def here(self, text: str) -> str:
        """Replace the addresses in a text of the page with the addresses of the test's server."""
        http, grpc = self.server.url, str(self.server.grpc)
        text = text.replace("localhost:8000", http.removeprefix("http://"))
        return text.replace("localhost:50051", grpc.removeprefix("grpc://"))


def commands() -> dict[str, str]:
    """Return the page's blocks of commands, by the name in the comment before each block."""
    named = [(COMMANDS.search(block.comment), block.text) for block in blocks(PAGE)]
    return {match["name"]: text for match, text in named if match}


def report_of(title: str) -> str:
    """Return the output expected of each program for a report of three pages."""
    return "2 " + "\n".join(f"{title}, page {page}" for page in (1, 2, 3)) + "\n"


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """Serve the page's service with the command on the page."""
    folder = tmp_path_factory.mktemp("languages")
    texts = files(PAGE)
    (folder / "reports.py").write_text(texts.pop("reports.py"), "utf-8")
    with lro_serve(folder, "reports:service", "--grpc", "0") as server:
        made = World(folder, server)
        for path, text in texts.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(made.here(text), "utf-8")
        made.run("proto", PYTHONPATH=os.pathsep.join([str(folder), *sys.path]))
        yield made


def skip_without(*programs: str) -> None:
    """Skip the test unless all these programs are installed."""
    for program in programs:
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed")


def test_operation_of_curl_is_done_and_has_the_report(world: World) -> None:
    skip_without("curl")
    operation = json.loads(world.run("shell"))
    assert operation["done"] is True
    assert operation["metadata"]["pagesDone"] == 2
    assert operation["response"]["text"].startswith("By curl, page 1")


def test_node_reads_a_report_over_grpc(world: World) -> None:
    assert commands()["npm"].split() == ["npm", "install", *LANGUAGES]
    installed = node_modules(LANGUAGES) / "node_modules"
    (world.folder / "node" / "node_modules").symlink_to(installed)
    assert world.run("node", "node") == report_of("From Node")


@pytest.mark.platform
def test_go_reads_a_report_over_grpc(world: World) -> None:
    skip_without("go")
    versions = ["go", "list", "-m", "-versions", "google.golang.org/grpc@latest"]
    try:
        asked = subprocess.run(versions, cwd="/", capture_output=True, timeout=REACH_SECONDS)
    except subprocess.TimeoutExpired:
        pytest.skip(f"the registry of Go did not answer within {REACH_SECONDS:g} seconds")
    if asked.returncode:
        pytest.skip(f"go cannot reach its registry: {asked.stderr.decode()}")
    assert world.run("go", "go") == report_of("From Go")


@pytest.mark.platform
def test_java_reads_a_report_over_grpc(world: World) -> None:
    skip_without("java", "mvn")
    options = " ".join([os.environ.get("MAVEN_OPTS", ""), *MAVEN])
    fetched = world.ran(f"{commands()['java'].strip()} -Dexec.skip", "java", MAVEN_OPTS=options)
    if missed := NO_REGISTRY.search(fetched.stdout + fetched.stderr):
        pytest.skip(missed[0])
    printed = world.run("java", "java", MAVEN_OPTS=options)
    assert re.sub(r"\x1b\[\d*m", "", printed) == report_of("From Java")
