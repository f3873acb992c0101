"""The walkthrough of docs/how-to/celery-walkthrough.md, command by command, on real servers."""

from __future__ import annotations

import contextlib
import os
import pwd
import re
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.full.examples.serving import ROOT
from tests.services.ports import free_port

PAGE = ROOT / "docs" / "how-to" / "celery-walkthrough.md"
PORTS = ("5433", "6380", "8001")
SERVERS = ("initdb", "pg_ctl")
NO_SYNC = "fsync=off"
"""With fsync on, a busy disk could delay a commit longer than a statement may take."""
PATIENCE = 600.0
"""Seconds after which the script counts as hung; each of its commands has a shorter limit."""


def script() -> str:
    """Return all commands of the page as a script with free ports."""
    text = "\n".join(re.findall(r"```bash\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL))
    free: set[int] = set()
    while len(free) < len(PORTS):
        free.add(free_port())
    for port, ours in zip(PORTS, free, strict=True):
        assert port in text
        text = re.sub(rf"\b{port}\b", str(ours), text)
    return "set -euo pipefail\n" + text


def find(program: str) -> Path:
    """Return the path of a PostgreSQL program, or skip the test if it is not installed."""
    places = [*map(str, sorted(Path("/usr/lib/postgresql").glob("*/bin"))), os.defpath]
    found = shutil.which(program, path=os.pathsep.join([os.environ["PATH"], *places]))
    if found is None:
        pytest.skip(f"{program} is not installed")
    return Path(found)


@pytest.fixture
def path(tmp_path: Path) -> str:
    """Return a PATH whose PostgreSQL programs run as another user if the tests run as root."""
    for program in ("redis-server", "redis-cli", "setsid", "celery"):
        if shutil.which(program) is None and not (Path(sys.executable).parent / program).exists():
            pytest.skip(f"{program} is not installed")
    as_user, chown = "", ""
    if os.getuid() == 0:
        user = pwd.getpwnam("postgres")
        as_user = f"setpriv --reuid={user.pw_uid} --regid={user.pw_gid} --clear-groups "
        chown = f"chown -R {user.pw_uid} $DATA\n"
    for name in SERVERS:
        then = f"echo {NO_SYNC} >> $DATA/pg/postgresql.conf\n" if name == "initdb" else ""
        shim = tmp_path / name
        shim.write_text(f'#!/bin/sh -e\n{chown}{as_user}{find(name)} "$@"\n{then}')
        shim.chmod(stat.S_IRWXU)
    return os.pathsep.join([str(tmp_path), str(Path(sys.executable).parent), os.environ["PATH"]])


@pytest.fixture
def data() -> Iterator[Path]:
    """Make a folder that every user can reach; at the end, kill servers that still run there."""
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder)
        made.chmod(0o755)
        yield made
        for file in [*made.rglob("*.pid")]:
            pid = int(file.read_text().split()[0])
            for end in (os.killpg, os.kill):
                with contextlib.suppress(ProcessLookupError):
                    end(pid, signal.SIGKILL)


def test_walkthrough_survives_the_kill_of_a_server(path: str, data: Path, tmp_path: Path) -> None:
    """A server of the walkthrough is killed, and the client gets all results without an error."""
    places = {"PATH": path, "TMPDIR": str(data)}
    limits = {"C_FORCE_ROOT": "1", "PGCTLTIMEOUT": f"{PATIENCE:.0f}"}
    output, errors = tmp_path / "output", tmp_path / "errors"
    # Output goes to files: servers that a failed script leaves running would keep pipes open.
    with output.open("wb") as out, errors.open("wb") as err:
        ran = subprocess.Popen(
            ["bash", "-c", script()],
            cwd=ROOT,
            env={**os.environ, **places, **limits},
            stdout=out,
            stderr=err,
            start_new_session=True,
        )
    try:
        status = ran.wait(PATIENCE)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(ran.pid, signal.SIGKILL)
        ran.wait()
    assert status == 0, report(errors, data)
    assert re.findall(r"\d+ (\w+)", output.read_text("utf-8")) == ["coins", "frames"]
    assert list(data.glob("tmp.*")) == []  # killed processes may have left files of their own


def report(errors: Path, data: Path) -> str:
    """Return the standard error of the script, and the servers' logs."""
    files = [errors, *data.glob("tmp.*/*.log")]
    return "\n".join(f"{file.name}: {file.read_text('utf-8', 'replace')}" for file in files)
