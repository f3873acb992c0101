"""The command in a real terminal, typed as a person would type it."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import attrs
import pytest

pytest.importorskip("click")
pytest.importorskip("rich")
pytest.importorskip("uvicorn")
if shutil.which("tmux") is None or shutil.which("bash") is None:
    pytest.skip("tmux and bash are needed for a terminal", allow_module_level=True)

from tests.cli.asking import SOURCE, Asked, over, started
from tests.client.messages import ResizeMetadata, ResizeResponse
from tests.client.real_service import Harness
from tests.waiting import PATIENCE, until


@attrs.frozen
class Terminal:
    """A tmux terminal that runs a shell."""

    socket: str

    def tmux(self, *arguments: str) -> str:
        """Run a tmux command and return its output."""
        command = ["tmux", "-L", self.socket, *arguments]
        return subprocess.run(
            command, check=True, capture_output=True, text=True, timeout=PATIENCE
        ).stdout

    def type(self, text: str, *keys: str) -> None:
        """Type a text, then press keys."""
        self.tmux("send-keys", "-l", "--", text)
        for key in keys:
            self.tmux("send-keys", key)

    def screen(self, *options: str) -> str:
        return self.tmux("capture-pane", "-p", "-J", *options)

    def shows(self, *texts: str) -> str:
        """Wait until the screen shows all of these texts; return the screen."""
        return until(self.screen, lambda shown: all(text in shown for text in texts)).rstrip()

    def run(self, command: str) -> None:
        """Type a command and press Enter; the shell then prints its status as ``(0)``."""
        self.tmux("send-keys", "-R")  # clear the output of the last command
        self.type(f'clear; {command}; echo "($?)"', "Enter")


@pytest.fixture
def terminal(asked: Asked, here: Path) -> Iterator[Terminal]:
    """A terminal with the command ``lro`` and the service of ``asked`` as its server."""
    script = here / "bin" / "lro"
    script.parent.mkdir()
    script.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m lro.cli "$@"\n')
    script.chmod(0o755)
    variables = {
        "LRO_SERVER": asked.url,
        "PATH": f"{script.parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(SOURCE / "src"),
        "PS1": "> ",
        "LC_ALL": "C.UTF-8",
    }
    settings = [f"{name}={value}" for name, value in variables.items()]
    made = Terminal(f"lro-{uuid.uuid4().hex}")
    shell = ["env", *settings, "bash", "--norc", "--noprofile"]
    made.tmux("-f", os.devnull, "new-session", "-d", "-x", "140", "-y", "30", *shell)
    try:
        made.shows(">")
        yield made
    finally:
        made.tmux("kill-server")


def test_interrupt_ends_the_watch_and_not_the_operation(
    terminal: Terminal, harness: Harness
) -> None:
    """Ctrl-C ends ``watch``, not the operation; a second ``watch`` shows its progress and end."""
    name = started(harness)
    terminal.run(f"lro watch {name}")
    terminal.shows("name", "state", "age", name, "IN_PROGRESS")
    terminal.type("", "C-c")
    terminal.shows("(130)", f"interrupted; the operation goes on; look again with: lro wait {name}")
    terminal.run(f"lro watch {name}")
    terminal.shows("IN_PROGRESS")
    harness.say(ResizeMetadata(40))
    assert "━" in terminal.shows("40%")
    harness.say(ResizeResponse(7))
    screen = terminal.shows("(0)", "SUCCEEDED", "100%")
    assert screen.count(name) == 1
    assert "IN_PROGRESS" not in screen


def test_list_has_colours_and_tab_completes_names(terminal: Terminal, harness: Harness) -> None:
    """A list has colours unless NO_COLOR is set; the Tab key completes options and names."""
    name = over(harness, ResizeResponse(7))
    for before in ("", "NO_COLOR=1 "):
        terminal.run(f"{before}lro list")
        terminal.shows("(0)", "SUCCEEDED")
        assert ("\x1b[32mSUCCEEDED" in terminal.screen("-e")) is not bool(before)
    terminal.run('eval "$(lro completion bash)"')
    terminal.shows("(0)")
    terminal.type("clear; lro wat", "Tab")
    terminal.shows("lro watch")
    terminal.type("--fil", "Tab")
    terminal.shows("lro watch --filter")
    terminal.type("'done = true'", "Enter")
    terminal.shows("SUCCEEDED")
    terminal.type("clear; lro get operations/", "Tab")
    terminal.shows(f"lro get {name}")
