"""Run the console blocks of a page in real terminals, and compare what the page shows.

The comment ``<!-- run -->`` marks a console block, ``<!-- run in terminal 2 -->`` one of a second
terminal. The blocks are run in their order. A line that begins with ``$`` is a command, and ``^C``
is a key; other lines are output, which must appear in this order before the next block is run. A
line ``...`` stands for any output.
"""

from __future__ import annotations

import contextlib
import os
import pty
import re
import shlex
import signal
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

RUN: Final = re.compile(r"<!--\s*run(?: in terminal (?P<terminal>\d))?\s*-->")
PORT: Final = "8000"
PROMPT: Final = "<ready>"
SHELL: Final = """
import os
os.login_tty(0)
os.execvp("bash", ["bash", "--norc", "--noprofile", "--noediting", "-i"])
"""
ESCAPE: Final = re.compile(r"\x1b\[[\d;?]*[A-Za-z]|\x1b[=>]|\r")
VARIABLE: Final = re.compile(
    r"(?P<name>operations/[\w-]{20,})|(?P<time>\d{4}-\d\d-\d\dT[\d:.]+Z)|(?P<bar>[━╸╺]+)"
    r"|(?P<number>(?<!\d)\d+(?:\.\d+)?(?=%|s\b| s\b)|\b\d{4,}\b)"
    r"|(?P<any>^\.\.\.$)|(?P<line>\s*\n\s*)|(?P<space>\s+)",
    re.MULTILINE,
)
"""Matches text that differs from run to run: names, times, bars, seconds, percentages, ids."""
PATTERNS: Final = {
    "time": r"\d{4}-\d\d-\d\dT[\d:.]+Z",
    "bar": "[━╸╺]+",
    "number": r"\d+(?:\.\d+)?",
    "any": "(?s:.*?)",
    "line": r"\s*",
    "space": r"\s+",
}


def marked(page: Path) -> list[Block]:
    """Return the console blocks of a page that are to be run."""
    return [one for one in blocks(page) if one.language == "console" and RUN.search(one.comment)]


def pattern(shown: str) -> str:
    """Return a regular expression for output, of which each operation's name is a group."""
    found, at = "", 0
    for part in VARIABLE.finditer(shown):
        kind = part.lastgroup or ""
        found += re.escape(shown[at : part.start()])
        found += PATTERNS.get(kind, r"(operations/[\w-]+)")
        at = part.end()
    return found + re.escape(shown[at:])


class Terminal:
    """A shell in a pseudoterminal; ``text`` is what it has printed, without escapes."""

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
        return ESCAPE.sub("", self._printed.decode("utf-8", "replace"))

    def type(self, line: str) -> None:
        """Type a command, when the command before has ended; or press Ctrl-C."""
        if line == "^C":
            os.write(self._ours, b"\x03")
            return
        until(lambda: self.text.count(PROMPT), lambda count: count > self._commands)
        self._commands = self.text.count(PROMPT)
        self._at = len(self.text)
        os.write(self._ours, f"{line}\n".encode())

    def see(self, shown: str) -> dict[str, str]:
        """Wait for output; map the names of operations that the page shows to the real ones."""
        wanted = re.compile(pattern(shown))
        seen = until(lambda: self.text[self._at :], lambda text: wanted.search(text))
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
        "pytest": '-m pytest -p no:cacheprovider "$@"',
        "uvicorn": f'-m uvicorn "$@" --port {port}',
        "lro": f'-m lro.cli "$@" $([ "$1" = serve ] && echo --port {port})',
    }
    for name, arguments in scripts.items():
        script = f"#!/bin/sh\nexec {shlex.quote(sys.executable)} {arguments}\n"
        (folder / name).write_text(script)
        (folder / name).chmod(0o755)
    return {**os.environ, "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"}


def steps(page: Path) -> Iterator[tuple[Block, str, str]]:
    """Yield each line to type and the output that is shown below it; and files, as they come."""
    for block in blocks(page):
        if FILE.search(block.comment):
            yield block, "", block.text
        elif block in marked(page):
            text = block.text.replace("\\\n", "")
            for part in re.split(r"^(?=\$ |\^C$)", text, flags=re.MULTILINE):
                if part:
                    line, _, shown = part.partition("\n")
                    yield block, line.removeprefix("$ "), shown.strip()


def run_terminals(page: Path, folder: Path) -> dict[str, str]:
    """Do what a page says, in an empty folder; return what each terminal has printed.

    Raises:
        AssertionError: A command did not print what the page shows.
    """
    port, names, shells = str(free_port()), dict[str, str](), dict[str, Terminal]()
    env = wrappers(folder.with_name(f"{folder.name}-bin"), port)
    try:
        for block, line, text in steps(page):
            if file := FILE.search(block.comment):
                (folder / file["path"]).write_text(text.replace(PORT, port), encoding="utf-8")
                number, line, text = "server", file["command"], f"http://127.0.0.1:{PORT}"
                if not line:
                    continue
            else:
                mark = RUN.search(block.comment)
                number = (mark["terminal"] if mark else None) or "1"
            if number not in shells:
                shells[number] = Terminal(folder, env)
            for shown, real in names.items():
                line = line.replace(shown, real)
            shells[number].type(line.replace(PORT, port))
            names |= shells[number].see(text.replace(PORT, port))
    finally:
        for shell in shells.values():
            shell.close()
    return {number: shell.text for number, shell in shells.items()}
