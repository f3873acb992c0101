"""The files of a release, built for these tests, and environments to install them into."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import attrs
import pytest

ROOT: Final = Path(__file__).resolve().parents[2]
PYPROJECT: Final[dict[str, Any]] = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
PROJECT: Final = PYPROJECT["project"]
PACKAGES: Final = [
    path.removeprefix("src/")
    for path in PYPROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
]
STUBS: Final = ("types-grpcio", "types-protobuf", "types-tqdm")
"""Types that others have written for packages which ship none."""
NEW_YEAR: Final = "1767225600"
"""The time in the files where no commit gives one."""


@attrs.frozen
class Files:
    """A source archive and a wheel."""

    sdist: Path
    wheel: Path


def pytest_addoption(parser: pytest.Parser) -> None:
    """``--keep FOLDER``: where the files are copied to, so that what was tested is published."""
    parser.addoption("--keep", type=Path, help="copy the sdist and the wheel to this folder")


def plain(**more: str) -> dict[str, str]:
    """The variables of a user's shell: no folder of this project is in reach."""
    ours = ("PYTHONPATH", "VIRTUAL_ENV")
    return {name: value for name, value in os.environ.items() if name not in ours} | more


def run(*command: object, cwd: Path, env: Mapping[str, str] | None = None) -> str:
    """What a command prints.

    Raises:
        AssertionError: It failed; has all that it said.
    """
    words = list(map(str, command))
    ran = subprocess.run(words, cwd=cwd, env=plain(**(env or {})), capture_output=True, text=True)
    assert ran.returncode == 0, f"{command}\n{ran.stdout}\n{ran.stderr}"
    return ran.stdout


def tool(name: str) -> Path:
    """A command of this environment."""
    return Path(sys.executable).with_name(name)


def build(sources: Path, folder: Path, **options: str) -> Files:
    """Build both files from a folder, each by itself."""
    command = (sys.executable, "-m", "build", "--installer", "uv", "--sdist", "--wheel")
    env = {"SOURCE_DATE_EPOCH": epoch(), **options}
    run(*command, "--outdir", folder, sources, cwd=folder.parent, env=env)
    (sdist,), (wheel,) = folder.glob("*.tar.gz"), folder.glob("*.whl")
    return Files(sdist, wheel)


def epoch() -> str:
    """The time of the last commit."""
    if not (ROOT / ".git").exists():
        return NEW_YEAR
    return run("git", "log", "-1", "--format=%ct", cwd=ROOT).strip()


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config) -> Iterator[Files]:
    """Both files, as they would be published."""
    files = build(ROOT, tmp_path_factory.mktemp("release") / "dist")
    yield files
    keep: Path | None = pytestconfig.getoption("--keep")
    if keep is not None:
        shutil.rmtree(keep, ignore_errors=True)
        keep.mkdir(parents=True)
        for path in (files.sdist, files.wheel):
            shutil.copy2(path, keep)


@pytest.fixture(scope="session")
def sources(built: Files, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that the source archive unpacks to."""
    folder = tmp_path_factory.mktemp("elsewhere")
    with tarfile.open(built.sdist) as archive:
        archive.extractall(folder, filter="data")
    (unpacked,) = folder.iterdir()
    return unpacked


@pytest.fixture
def empty(tmp_path: Path) -> Path:
    """The Python of an environment with nothing in it, not even pip."""
    return environment(tmp_path / "empty")


def environment(folder: Path) -> Path:
    """Make an empty environment; its Python."""
    run(tool("uv"), "venv", "--quiet", "--python", sys.executable, folder, cwd=folder.parent)
    return folder / "bin" / "python"


def install(python: Path, *packages: object) -> None:
    """Install into an environment, by uv."""
    command = (tool("uv"), "pip", "install", "--quiet", "--python", python)
    run(*command, *packages, cwd=python.parent)
