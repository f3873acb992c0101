"""Helpers that run ``lro`` and record the requests that its server receives."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import attrs
import pytest

import lro
from tests.client.messages import ResizeRequest
from tests.client.real_service import Harness

SOURCE = Path(__file__).resolve().parent.parent.parent


class Asked:
    """An application that records each request and passes it to another application."""

    def __init__(self, app: Any, url: str) -> None:
        self.app, self.url = app, url
        self.requests: list[tuple[str, dict[str, str]]] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        headers = {name.decode(): value.decode() for name, value in scope["headers"]}
        self.requests.append((f"{scope['method']} {scope['path']}", headers))
        await self.app(scope, receive, send)


@attrs.frozen
class Ended:
    """The exit status and the output of a command."""

    status: int
    out: str
    err: str

    @property
    def lines(self) -> list[str]:
        """The lines of standard output."""
        return self.out.splitlines()

    @property
    def json(self) -> list[Any]:
        """The JSON values, one on each line of standard output."""
        return [json.loads(line) for line in self.lines]


@attrs.frozen
class Lro:
    """Runs the command ``lro`` in this process."""

    capsys: pytest.CaptureFixture[str]
    terminal: bool = False
    """Whether the command finds a terminal at its standard output."""

    def __call__(self, *arguments: str, status: int | None = None) -> Ended:
        """Run the command with these arguments; check the exit status unless ``status`` is None."""
        from lro.cli import main

        self.capsys.readouterr()
        with mock.patch.object(sys.stdout, "isatty", return_value=self.terminal):
            found = main(arguments)
        out, err = self.capsys.readouterr()
        assert "Traceback" not in err
        assert status in (None, found), err
        return Ended(found, out, err)

    @staticmethod
    def as_process(*arguments: str, here: Path | None = None) -> subprocess.CompletedProcess[str]:
        """Run the command in its own process, in the folder ``here``."""
        path = [str(SOURCE), os.environ.get("PYTHONPATH", "")]
        return subprocess.run(
            [*COMMAND, *arguments],
            cwd=here,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path)},
            capture_output=True,
            text=True,
            timeout=120,
        )


def started(harness: Harness, *steps: Any) -> str:
    """Start an operation whose work takes these steps, and return the operation's name."""
    harness.say(*steps)
    return harness.resize.start(ResizeRequest(source="a.png")).name


def over(harness: Harness, *steps: Any) -> str:
    """Run an operation with these steps to its end, and return the operation's name."""
    name = started(harness, *steps)
    assert harness.service.wait(name, lro.Duration(10)).done
    return name


COMMAND = [sys.executable, "-m", "lro.cli"]
"""The beginning of a command line that runs ``lro`` in a process of its own."""
