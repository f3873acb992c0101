"""Run the reference server's image without Docker: read its Dockerfile and run the commands."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import attrs

ROOT: Final = Path(__file__).resolve().parents[3]


@attrs.frozen
class Stage:
    """A stage of a Dockerfile: its base image, its name, and its other instructions in order."""

    base: str
    name: str
    instructions: Sequence[tuple[str, str]]

    def all(self, instruction: str) -> list[str]:
        """Return the arguments of each instruction of this kind."""
        return [rest for name, rest in self.instructions if name == instruction]

    def one(self, instruction: str) -> str:
        (found,) = self.all(instruction)
        return found

    @property
    def health(self) -> list[str]:
        """Return the command of the health check."""
        return exec_form(self.one("HEALTHCHECK").partition("CMD ")[2])

    @property
    def command(self) -> list[str]:
        """Return the command that the image runs without further arguments."""
        return exec_form(self.one("ENTRYPOINT")) + exec_form(self.one("CMD"))

    def copies(self) -> Iterator[tuple[list[str], str, str]]:
        """Yield the sources, the target and the source stage of each COPY."""
        for rest in self.all("COPY"):
            start, words = re.fullmatch(r"(?:--from=(\S+) )?(.*)", rest).groups()
            *sources, target = words.split()
            yield sources, target, start or ""


def exec_form(text: str) -> list[str]:
    """Parse the list form of a command, which needs no shell."""
    words = json.loads(text)
    assert isinstance(words, list)
    return words


def stages(text: str) -> Iterator[Stage]:
    """Yield the stages of a Dockerfile in which each instruction takes one line."""
    for part in re.split(r"^FROM ", text, flags=re.MULTILINE)[1:]:
        first, *lines = (line for line in part.splitlines() if line and line[0] != "#")
        base, _, name = first.partition(" AS ")
        yield Stage(base, name, [tuple(line.split(" ", 1)) for line in lines])


BUILD, IMAGE = stages((ROOT / "Dockerfile").read_text("utf-8"))
WITHOUT_RIGHTS: Final = ("setpriv", "--bounding-set=-dac_override,-dac_read_search")
"""Runs a command as a root user to whom file permissions apply."""


@contextmanager
def running(
    image: Stage, root: Path, *, python: str = sys.executable
) -> Iterator[tuple[subprocess.Popen[str], str, list[str]]]:
    """Run the image's command in its read-only folder, with the data in another folder.

    Yield the process, its address, and the command of its health check. Only the port, the data
    folder and the interpreter differ from the image.
    """
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    (root / "data").mkdir()

    def here(words: list[str]) -> list[str]:
        placed = [one.replace("8000", port).replace("/data", f"{root}/data") for one in words]
        return [python if one == "python" else one for one in placed]

    app = root / IMAGE.one("WORKDIR").strip("/")
    variables = dict(word.split("=", 1) for word in image.one("ENV").split())
    as_user = WITHOUT_RIGHTS if os.getuid() == 0 and shutil.which("setpriv") else ()
    process = subprocess.Popen(
        [*as_user, *here(image.command)],
        cwd=app,
        env={**os.environ, **variables, "PATH": os.environ["PATH"], "HOME": "/nowhere"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        line = process.stdout.readline().strip()
        assert line == f"http://0.0.0.0:{port}", process.communicate()[1]
        yield process, f"http://127.0.0.1:{port}", here(image.health)
    finally:
        process.kill()
        process.communicate()


def copy_in(source: Path, target: Path) -> None:
    """Copy a folder's contents, or a file, into the target, as COPY does."""
    if source.is_dir():
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(source, target, ignore=ignored, dirs_exist_ok=True)
    else:
        shutil.copy2(source, target)


def read_only_app(root: Path) -> Path:
    """Copy the image's files from the project into a folder below ``root``, as read-only files."""
    for sources, target, start in IMAGE.copies():
        if not start:
            for source in sources:
                copy_in(ROOT / source, root / target.strip("/"))
    app = root / IMAGE.one("WORKDIR").strip("/")
    for path in (app, *app.rglob("*")):
        path.chmod(path.stat().st_mode & ~0o222)
    return app
