"""Run the console blocks of a page in real terminals, and compare what the page shows.

The comment ``<!-- run -->`` marks a console block, ``<!-- run in terminal 2 -->`` one of a second
terminal. A line that begins with ``$`` is a command. The other lines are output, which must appear
in this order before the next command is typed. A line ``...`` stands for any output. Names of
operations and times may differ from those on the page; after ``; numbers differ``, so may numbers.
"""

from __future__ import annotations

import contextlib
import os
import pty
import re
import shlex
import signal
import socket
import struct
import sys
import termios
import threading
from collections.abc import Iterator, Mapping
from fcntl import ioctl
from pathlib import Path
from subprocess import Popen
from typing import Final

from tests.page_texts import FILE, Block, blocks
from tests.services.ports import free_port
from tests.waiting import until

RUN: Final = re.compile(
    r"<!--\s*run(?: in terminal (?P<terminal>\d))?(?P<differ>; numbers differ)?\s*-->"
)
PORT: Final = "8000"
HOST: Final = "my-machine"
PROMPT: Final = "<ready>"
SHELL: Final = """
import os, signal
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # nohup lets all that it starts ignore the signal
os.login_tty(0)
os.execvp("bash", ["bash", "--norc", "--noprofile", "--noediting", "-i"])
"""
ESCAPE: Final = re.compile(r"\x1b\[[\d;?]*[A-Za-z]|\x1b[=>]|\r")
VARIABLE: Final = re.compile(
    r"(?P<name>operations/[\w-]{20,})|(?P<time>\d{4}-\d\d-\d\dT[\d:.]+Z)|(?P<bar>[━╸╺]+)"
    r"|(?P<duration>(?<!\d)(?:\d+m )?\d+(?:\.\d+)?s\b)"
    r"|(?P<any>^\.\.\.$)|(?P<line>\s*\n\s*)|(?P<space>\s+)",
    re.MULTILINE,
)
"""Matches the parts of shown output that may differ."""
PATTERNS: Final = {
    "name": r"(operations/[\w-]+)",
    "time": r"\d{4}-\d\d-\d\dT[\d:.]+Z",
    "bar": "[━╸╺]+",
    "duration": r"(?:\d+m )?\d+(?:\.\d+)?s",
    "any": "(?s:.*?)",
    "line": r"\s*",
    "space": r"\s+",
}
"""Matches the real output in the place of such a part."""


def marked(page: Path) -> list[Block]:
    """Return the console blocks of a page that are to be run."""
    return [one for one in blocks(page) if one.language == "console" and RUN.search(one.comment)]


def pattern(shown: str, *, numbers_differ: bool = False) -> str:
    """Return a regular expression for output, of which each operation's name is a group."""

    def literal(text: str) -> str:
        escaped = re.escape(text)
        return re.sub(r"\d+", r"\\d+", escaped) if numbers_differ else escaped

    found, at = "", 0
    for part in VARIABLE.finditer(shown):
        found += literal(shown[at : part.start()]) + PATTERNS[part.lastgroup or ""]
        at = part.end()
    return found + literal(shown[at:])


class Terminal:
    """A shell in a pseudoterminal; ``text`` is what it has printed, but for escapes and prompts."""

    def __init__(self, folder: Path, env: Mapping[str, str]) -> None:
        self._ours, theirs = pty.openpty()
        ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, 110, 0, 0))
        settings = termios.tcgetattr(theirs)
        settings[3] &= ~termios.ECHO
        termios.tcsetattr(theirs, termios.TCSANOW, settings)
        self._shell = Popen(
            [sys.executable, "-Ic", SHELL],
            cwd=folder,
            env={**env, "PS1": PROMPT, "TERM": "xterm"},
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
        )
        os.close(theirs)
        self._printed = b""
        self._at = 0
        self._commands = 0
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        with contextlib.suppress(OSError):  # on Linux, the end of a terminal is an error
            while part := os.read(self._ours, 65_536):
                self._printed += part

    @property
    def text(self) -> str:
        return ESCAPE.sub("", self._printed.decode("utf-8", "replace")).replace(PROMPT, "")

    def type(self, command: str) -> None:
        """Type a command, when the command before has ended."""
        until(lambda: self._printed.count(PROMPT.encode()), lambda count: count > self._commands)
        self._commands += 1
        self._at = len(self.text)
        os.write(self._ours, f"{command}\n".encode())

    def see(self, shown: str, *, numbers_differ: bool = False) -> dict[str, str]:
        """Wait for output; map the names of operations that the page shows to the real ones."""
        wanted = re.compile(pattern(shown, numbers_differ=numbers_differ), re.MULTILINE)
        seen = until(lambda: self.text[self._at :], wanted.search)
        found = wanted.search(seen)
        assert found is not None
        self._at += found.end()
        named = [part["name"] for part in VARIABLE.finditer(shown) if part["name"]]
        return dict(zip(named, found.groups(), strict=True))

    def close(self) -> None:
        """End the shell, which ends what it runs in the foreground and in the background."""
        os.write(self._ours, b"\x03")
        self._shell.send_signal(signal.SIGHUP)  # bash passes it on to its jobs
        self._shell.wait()
        self._reader.join()
        os.close(self._ours)


def wrappers(folder: Path, port: str) -> Mapping[str, str]:
    """Write the commands of this environment, which serve on this port; return the environment."""
    folder.mkdir()
    scripts = {
        "python": '"$@"',
        "pytest": '-m pytest -p no:cacheprovider -p pytest_lro "$@"',
        "uvicorn": f'-m uvicorn "$@" --port {port}',
        "lro": f'-m lro.cli "$@" $([ "$1" = serve ] && echo --port {port})',
    }
    for name, arguments in scripts.items():
        script = f"#!/bin/sh\nexec {shlex.quote(sys.executable)} {arguments}\n"
        (folder / name).write_text(script)
        (folder / name).chmod(0o755)
    path = f"{folder}{os.pathsep}{os.environ['PATH']}"
    return {**os.environ, "PATH": path, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}


def steps(block: Block) -> Iterator[tuple[str, str]]:
    """Yield each command of a block, or an empty text, and the output that is shown below it."""
    for part in re.split(r"^(?=\$ )", block.text, flags=re.MULTILINE):
        command, _, shown = part.partition("\n") if part.startswith("$ ") else ("", "", part)
        if part:
            yield command.removeprefix("$ "), shown.strip()


def run_terminals(page: Path, folder: Path, changes: Mapping[str, str]) -> dict[str, str]:
    """Do what a page says, in an empty folder; return what each terminal has printed.

    The texts in ``changes`` are replaced everywhere on the page.

    Raises:
        AssertionError: A command did not print what the page shows.
    """
    port = str(free_port())
    changes = {PORT: port, HOST: socket.gethostname(), **changes}
    shells: dict[str, Terminal] = {}
    env = wrappers(folder.with_name(f"{folder.name}-bin"), port)

    def do(terminal: str, command: str, shown: str, *, numbers_differ: bool = False) -> None:
        if terminal not in shells:
            shells[terminal] = Terminal(folder, env)
        if command:
            shells[terminal].type(replaced(command, changes))
        seen = replaced(shown, {PORT: port, HOST: changes[HOST]})
        changes.update(shells[terminal].see(seen, numbers_differ=numbers_differ))

    try:
        for block in blocks(page):
            if file := FILE.search(block.comment):
                text = replaced(block.text, changes)
                (folder / file["path"]).write_text(text, encoding="utf-8")
                if file["command"]:
                    do("server", file["command"], f"http://127.0.0.1:{PORT}")
            elif mark := RUN.search(block.comment):
                for command, shown in steps(block):
                    differ = bool(mark["differ"])
                    do(mark["terminal"] or "1", command, shown, numbers_differ=differ)
    finally:
        for shell in shells.values():
            shell.close()
    return {terminal: shell.text for terminal, shell in shells.items()}


def replaced(text: str, changes: Mapping[str, str]) -> str:
    """Return a text with each key of the mapping replaced by its value."""
    for old, new in changes.items():
        text = text.replace(old, new)
    return text
