"""The walkthrough of docs/how-to/deploy.md, command by command, on real servers."""

from __future__ import annotations

import contextlib
import os
import pwd
import re
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.examples.serving import ROOT

PAGE = ROOT / "docs" / "how-to" / "deploy.md"
LEASE = "ANALYSIS_LEASE=3"
"""Seconds after which the killed worker counts as lost; the test waits for one only."""
PORTS = ("5433", "6380", "8001")
SERVERS = ("initdb", "pg_ctl")


def script() -> str:
    """Every command of the page, with ports that are free."""
    text = "\n".join(re.findall(r"```bash\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL))
    with contextlib.ExitStack() as stack:
        taken = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in PORTS]
        for port, free in zip(PORTS, taken, strict=True):
            assert port in text
            text = re.sub(rf"\b{port}\b", str(free.getsockname()[1]), text)
    assert LEASE in text
    return "set -euo pipefail\n" + text.replace(LEASE, LEASE[:-1] + "1")


def find(program: str) -> Path:
    """Where a program of PostgreSQL is, or skip."""
    places = [*map(str, sorted(Path("/usr/lib/postgresql").glob("*/bin"))), os.defpath]
    found = shutil.which(program, path=os.pathsep.join([os.environ["PATH"], *places]))
    if found is None:
        pytest.skip(f"{program} is not installed")
    return Path(found)


@pytest.fixture
def path(tmp_path: Path) -> str:
    """The PATH of a user who may start databases; as root, they are started by another one."""
    for program in ("redis-server", "redis-cli", "setsid", "celery"):
        if shutil.which(program) is None and not (Path(sys.executable).parent / program).exists():
            pytest.skip(f"{program} is not installed")
    folders = [str(Path(sys.executable).parent), os.environ["PATH"]]
    programs = {name: find(name) for name in SERVERS}
    if os.getuid() == 0:
        user = pwd.getpwnam("postgres")
        for name, program in programs.items():
            shim = tmp_path / name
            shim.write_text(
                f"#!/bin/sh\nchown -R {user.pw_uid} $DATA\n"
                f"exec setpriv --reuid={user.pw_uid} --regid={user.pw_gid} --clear-groups"
                f' {program} "$@"\n'
            )
            shim.chmod(stat.S_IRWXU)
        folders.insert(0, str(tmp_path))
    return os.pathsep.join(folders)


@pytest.fixture
def data() -> Iterator[Path]:
    """A folder that every user can reach; what was started there and still runs is ended."""
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder)
        made.chmod(0o755)
        yield made
        for file in [*made.rglob("*.pid")]:
            pid = int(file.read_text().split()[0])
            for end in (os.killpg, os.kill):
                with contextlib.suppress(ProcessLookupError):
                    end(pid, signal.SIGKILL)


def test_the_walkthrough(path: str, data: Path) -> None:
    """PostgreSQL, Redis, workers and servers; one is killed, and the client notices nothing."""
    with subprocess.Popen(
        ["bash", "-c", script()],
        cwd=ROOT,
        env={**os.environ, "PATH": path, "TMPDIR": str(data), "C_FORCE_ROOT": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as ran:
        try:
            printed, errors = ran.communicate(timeout=170)
        finally:
            ran.kill()
    assert ran.returncode == 0, errors
    assert re.findall(r"\d+ (\w+)", printed) == ["coins", "frames"], errors
    assert list(data.glob("tmp.*")) == []  # what was killed may have left files of its own
