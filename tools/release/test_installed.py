"""The files in use: in empty environments, by pip and uv, and by type checkers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import pytest

from tools.release.conftest import (
    PACKAGES,
    PROJECT,
    STUBS,
    Files,
    environment,
    install,
    plain,
    run,
    tool,
)

SERVICE: Final = """
import lro, lro_client, lro_conform
from lro.executors.threads import ThreadExecutor
from lro.stores.sqlite import SQLiteStore

service = lro.Service(SQLiteStore("operations.db"), ThreadExecutor())

@service.method("acme.release.v1.Release.Count")
def count(request: lro.Struct, job: lro.Job) -> lro.Struct:
    job.progress(0.5, "counting")
    return lro.Struct({"fields": len(request.fields)})

with service:
    print(dict(count.start(lro.Struct({"a": 1, "b": 2})).result(timeout=60).fields))
"""
SELECTED: Final = ["tests/model", *(f"tests/test_{name}.py" for name in ("faces_agree", "project"))]


def by_pip(folder: Path) -> tuple[object, ...]:
    """Make an environment with Python's own tools; the command that installs into it."""
    run(sys.executable, "-m", "venv", folder, cwd=folder.parent)
    return (folder / "bin" / "python", "-m", "pip", "install", "--disable-pip-version-check")


def by_uv(folder: Path) -> tuple[object, ...]:
    """The same with uv."""
    return (tool("uv"), "pip", "install", "--python", environment(folder))


@pytest.mark.parametrize("made", [by_pip, by_uv], ids=["pip", "uv"])
def test_wheel_works_in_empty_environment(made: Any, built: Files, tmp_path: Path) -> None:
    """All packages are imported and an operation is done; with its extra the command works."""
    install = made(tmp_path / "env")
    commands = tmp_path / "env" / "bin"
    run(*install, built.wheel, cwd=tmp_path)
    said = run(commands / "python", "-I", "-W", "error", "-c", SERVICE, cwd=tmp_path)
    assert said == "{'fields': 2}\n"
    refused = subprocess.run(
        [commands / "lro", "--help"], env=plain(), capture_output=True, text=True
    )
    assert refused.returncode == 2
    assert "pip install 'lro[cli]'" in refused.stderr
    run(*install, f"lro[cli] @ {built.wheel.as_uri()}", cwd=tmp_path)
    assert "Usage: lro" in run(commands / "lro", "--help", cwd=tmp_path)


def test_command_runs_without_being_installed(built: Files, tmp_path: Path) -> None:
    """As ``uvx --from 'lro[cli]' lro`` does it."""
    wanted = f"lro[cli] @ {built.wheel.as_uri()}"
    said = run(tool("uv"), "tool", "run", "--from", wanted, "lro", "list", "--help", cwd=tmp_path)
    assert "--filter" in said


def test_uv_adds_and_locks_it(built: Files, tmp_path: Path) -> None:
    """``uv add`` resolves every extra at once, for all Pythons that are promised."""
    python = f">={PROJECT['requires-python'].removeprefix('>=')}"
    (tmp_path / "pyproject.toml").write_text(
        f'[project]\nname = "user"\nversion = "1"\nrequires-python = "{python}"\n'
    )
    extras = [extra for extra in PROJECT["optional-dependencies"] if extra != "examples"]
    wanted = f"lro[{','.join(extras)}] @ {built.wheel.as_uri()}"
    run(tool("uv"), "add", "--no-sync", "--python", sys.executable, wanted, cwd=tmp_path)
    run(tool("uv"), "lock", "--check", "--python", sys.executable, cwd=tmp_path)


@pytest.fixture(scope="module")
def full(built: Files, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The commands of an environment with every extra and with types for it."""
    python = environment(tmp_path_factory.mktemp("full") / "env")
    extras = [extra for extra in PROJECT["optional-dependencies"] if extra != "examples"]
    install(python, f"lro[{','.join(extras)}] @ {built.wheel.as_uri()}", *STUBS, "pytest")
    return python.parent


@pytest.mark.parametrize("package", PACKAGES)
def test_each_public_type_is_known(package: str, full: Path, tmp_path: Path) -> None:
    """By ``pyright --verifytypes``: none is unknown or could be read in two ways.

    Django ships no types: what derives from its classes cannot be known.
    """
    path = os.pathsep.join([str(full), os.environ["PATH"]])
    ran = subprocess.run(
        [tool("pyright"), "--outputjson", "--verifytypes", package, "--ignoreexternal"],
        cwd=tmp_path,
        env=plain(PATH=path, VIRTUAL_ENV=str(full.parent)),
        capture_output=True,
        text=True,
    )
    report = json.loads(ran.stdout)["typeCompleteness"]
    assert str(full.parent) in report["packageRootDirectory"]
    assert report["symbols"]
    unknown = {
        symbol["name"]: [one["message"] for one in symbol["diagnostics"]]
        for symbol in report["symbols"]
        if not symbol["isTypeKnown"] and not symbol["name"].startswith("lro.integrations.django.")
    }
    assert unknown == {}
    assert report["otherSymbolCounts"]["withUnknownType"] == 0


def test_tests_run_from_source_archive(sources: Path, empty: Path) -> None:
    """It has what the tests need: a selection of them passes there, on what it installs."""
    command = (tool("uv"), "pip", "install", "--quiet", "--python", empty)
    run(*command, "--group", "test", ".", cwd=sources)
    said = run(empty, "-m", "pytest", "-q", "-p", "no:cacheprovider", *SELECTED, cwd=sources)
    assert " passed" in said
