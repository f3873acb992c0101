"""Packages of npm that judge us: installed once for all tests of a machine, in fixed versions."""

from __future__ import annotations

import fcntl
import hashlib
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Final

import pytest

from tests.waiting import PATIENCE

INSTALL_SECONDS: Final = 600.0
"""How long npm may take; a package that has not come by then does not come."""


def node_modules(*packages: str) -> Path:
    """The folder, with ``node_modules`` in it, where these packages are installed.

    Each is a name and an exact version, such as ``svix@1.2.3``. Skips where there is no npm.
    """
    npm = shutil.which("npm")
    if npm is None or shutil.which("node") is None:
        pytest.skip("npm or node is not installed")
    key = hashlib.sha256("\n".join(sorted(packages)).encode()).hexdigest()[:16]
    home = Path(tempfile.gettempdir()) / f"lro-npm-{key}"
    home.mkdir(exist_ok=True)
    with (home / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # several processes run tests
        if not (home / "installed").exists():
            command = [npm, "install", "--no-audit", "--no-fund", "--prefix", str(home), *packages]
            subprocess.run(command, check=True, capture_output=True, timeout=INSTALL_SECONDS)
            (home / "installed").touch()
    return home


def run_node(home: Path, script: str, *arguments: str) -> str:
    """What a script prints that is run with the packages of ``home``; it must end with 0."""
    done = subprocess.run(
        ["node", "--input-type=module", "-", *arguments],
        input=script,
        cwd=home,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout
