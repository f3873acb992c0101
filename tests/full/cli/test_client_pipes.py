"""The command in its own process: closed pipes, full devices, locales, imports."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
from typing import Any

import pytest

pytest.importorskip("click")
pytest.importorskip("rich")
pytest.importorskip("uvicorn")

from lro_client.cli._terminal import Exit
from tests.cli.asking import COMMAND, SOURCE
from tests.client import sockets


def run(*command: str, **more: Any) -> subprocess.CompletedProcess[str]:
    """Run a command to its end, with these environment variables in addition."""
    texts: Any = {"capture_output": True, "text": True, "encoding": "utf-8", "timeout": 240}
    return subprocess.run(command, env=environment(**more), **texts)


def environment(**more: str) -> dict[str, str]:
    """Return this process's environment with these variables in addition."""
    return {**os.environ, "PYTHONPATH": str(SOURCE / "src"), **more}


def test_closed_pipe_ends_the_command_without_an_error() -> None:
    """If the reader closes the pipe, the command exits with CUT_OFF and prints no error."""
    page = {"operations": [{"name": f"operations/{number}"} for number in range(20_000)]}
    with sockets.serving(sockets.answering("200 OK", json.dumps(page))) as url:
        lister = subprocess.Popen(
            [*COMMAND, "list", "--server", url],
            env=environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert lister.stdout is not None
        assert lister.stderr is not None
        assert lister.stdout.readline().startswith("operations/0\t")
        lister.stdout.close()
        assert lister.stderr.read() == ""
        assert lister.wait(240) == Exit.CUT_OFF
        lister.stderr.close()


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs a device that is full")
def test_full_device_is_reported() -> None:
    """If standard output is a full device, the command fails, at the latest at the last flush."""
    for arguments in (["--help"], ["list", "--json"], ["completion", "bash"]):
        page = {"operations": [{"name": "operations/a"}]}
        with (
            sockets.serving(sockets.answering("200 OK", json.dumps(page))) as url,
            open("/dev/full", "wb") as full,
        ):
            found = subprocess.run(
                [*COMMAND, *arguments],
                env=environment(LRO_SERVER=url),
                stdout=full,
                stderr=subprocess.PIPE,
                text=True,
                timeout=240,
            )
        assert found.returncode == Exit.MISUSED
        assert found.stderr == "Error: input or output failed: No space left on device\n"


def test_characters_that_the_locale_lacks_are_escaped() -> None:
    """Characters that standard output cannot encode are escaped; JSON stays valid."""
    body: Any = {"name": "operations/a", "metadata": {"@type": "x/a.B", "message": "5 ≥ 3"}}
    with sockets.serving(sockets.answering("200 OK", json.dumps(body))) as url:
        get = functools.partial(run, *COMMAND, "get", "operations/a", "--server", url)
        found = get(PYTHONIOENCODING="latin-1")
        assert found.returncode == 0
        assert found.stdout == "operations/a\tIN_PROGRESS\t\t5 \\u2265 3\n"
        assert json.loads(get("--json", PYTHONIOENCODING="latin-1").stdout) == body
        plain = get("--json", FORCE_COLOR="1")
        assert "5 ≥ 3" in plain.stdout
        assert "\x1b" not in plain.stdout  # no colours or cursor movements


def test_lint_and_help_do_not_load_client() -> None:
    program = "import sys; from lro.cli import main; main(sys.argv[1:]); print(*sys.modules)"
    for arguments in (["--help"], ["lint", "--help"]):
        loaded = run(sys.executable, "-c", program, *arguments).stdout.splitlines()[-1].split()
        assert "lro" in loaded
        assert "lro_client" not in loaded
