"""What a release has beside the package: workflows, the citation, the image."""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.full.examples.image import BUILD, IMAGE, copy_in, exec_form, read_only_app, running
from tools.release.conftest import ROOT, run, tool

WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
ACTIONLINT = "github.com/rhysd/actionlint/cmd/actionlint@v1.7.12"


def test_workflows_are_safe() -> None:
    """zizmor finds nothing, however pedantic: actions by their commits, few rights, no tokens."""
    assert [path.name for path in WORKFLOWS] == ["ci.yml", "publish.yml"]
    run(tool("zizmor"), "--offline", "--quiet", "--persona=pedantic", *WORKFLOWS, cwd=ROOT)


def test_workflows_are_valid() -> None:
    """actionlint finds nothing."""
    found = shutil.which("actionlint")
    if found is None and shutil.which("go") is None:
        pytest.skip("neither actionlint nor Go, by which it can be run, is installed")
    run(*([found] if found else ["go", "run", ACTIONLINT]), *WORKFLOWS, cwd=ROOT)


def test_published_file_is_the_tested_one() -> None:
    """Only one job builds; the one that publishes has no sources, and one right."""
    text = WORKFLOWS[1].read_text("utf-8").partition("\njobs:\n")[2]
    _, *jobs = re.split(r"^  (\w+):\n", text, flags=re.MULTILINE)
    bodies = dict(zip(jobs[::2], jobs[1::2], strict=True))
    assert list(bodies) == ["build", "test", "publish"]
    assert [name for name, body in bodies.items() if "checkout@" in body] == ["build"]
    assert re.findall(r"^ +([\w-]+): write", bodies["publish"], re.MULTILINE) == ["id-token"]
    assert "write" not in bodies["build"] + bodies["test"]
    assert "environment:" in bodies["publish"]


def test_citation_is_valid(tmp_path: Path) -> None:
    """By the schema of the Citation File Format."""
    command = (tool("uv"), "tool", "run", "--python", sys.executable, "--from", "cffconvert==2.0.0")
    run(*command, "cffconvert", "--validate", "--infile", ROOT / "CITATION.cff", cwd=tmp_path)


def test_image_is_built_and_serves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The steps of the Dockerfile, one after the other, and its commands in what they have made."""
    monkeypatch.delenv("PYTHONPATH", raising=False)
    here = {"/venv": f"{tmp_path}/venv", "/build": f"{tmp_path}/build"}

    def placed(word: str) -> str:
        for there, path in here.items():
            word = word.replace(there, path) if word.startswith(there) else word
        return sys.executable if word == "python" else word

    Path(here["/build"]).mkdir()
    for sources, target, _ in BUILD.copies():
        for source in sources:
            copy_in(ROOT / source, Path(placed(target)))
    for command in map(exec_form, BUILD.all("RUN")):
        words = [placed(word) for word in command if word != "--no-cache-dir"]
        run(*words, cwd=Path(here["/build"]))
    python = f"{tmp_path}/venv/bin/python"
    app = read_only_app(tmp_path)
    try:
        with running(IMAGE, tmp_path, python=python) as (process, _, health):
            assert subprocess.run(health, capture_output=True).returncode == 0
            process.send_signal(signal.SIGTERM)
            assert (process.wait(), process.communicate()[1]) == (0, "")
    finally:
        for path in (app, *app.rglob("*")):
            path.chmod(path.stat().st_mode | 0o200)
