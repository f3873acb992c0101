"""Fixed versions of npm packages for tests; ``python -m tests.services.npm`` installs them.

Run the command before the tests; a test whose packages are not installed is skipped.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

import pytest

from tests.waiting import PATIENCE

A2A: Final = ("@a2a-js/sdk@1.3.0",)
AZURE: Final = ("@azure/core-lro@3.4.2",)
FRONT_END: Final = (
    *("openapi-typescript@7.13.0", "typescript@5.9.3"),
    *("react@18.3.1", "react-dom@18.3.1"),
)
"""The tools of the page on front ends, and the last React that has scripts for a browser."""
LANGUAGES: Final = ("@grpc/grpc-js@1.14.7", "@grpc/proto-loader@0.8.1")
"""The packages that the page on clients in other languages uses."""
MCP: Final = ("@modelcontextprotocol/ext-tasks@0.2.2",)
"""The package of the specification's repository, with zod schemas of the messages."""
MCP_SUITE: Final = ("@modelcontextprotocol/conformance@0.2.0-alpha.12", "node@22.23.3")
"""The conformance suite, and Node 22, which the suite needs and some systems lack."""
WEBHOOKS: Final = ("standardwebhooks@1.1.1",)

SETS: Final = (A2A, AZURE, FRONT_END, LANGUAGES, MCP, MCP_SUITE, WEBHOOKS)
"""All sets of packages that tests need; each set is installed in its own folder."""

REACH_SECONDS: Final = 4.5
"""Seconds that the registry may take to reply."""
INSTALL_SECONDS: Final = 600.0
"""Seconds that npm may take to install a set."""


def folder(packages: tuple[str, ...]) -> Path:
    """Return the folder of a set of packages; other versions have another folder."""
    key = hashlib.sha256("\n".join(sorted(packages)).encode()).hexdigest()[:16]
    return Path(tempfile.gettempdir()) / f"lro-npm-{key}"


def node_modules(packages: tuple[str, ...]) -> Path:
    """Return the folder with a set's ``node_modules``; skip the test if the set is missing."""
    home = folder(packages)
    if shutil.which("node") is None or not (home / "installed").exists():
        names = ", ".join(packages)
        pytest.skip(f"{names}: not installed; `python -m tests.services.npm` does so")
    return home


def run_node(home: Path, script: str, *arguments: str) -> str:
    """Run a script with the packages in ``home``; check its exit status and return its output."""
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


def reason_without_registry(npm: str) -> str | None:
    """Return the reason why npm cannot reach its registry, or None if npm can."""
    limits = ["--fetch-timeout=3000", "--fetch-retries=0"]
    try:
        found = subprocess.run(
            [npm, "view", "semver", "version", *limits], capture_output=True, timeout=REACH_SECONDS
        )
    except subprocess.TimeoutExpired:
        return f"the registry of npm did not answer within {REACH_SECONDS:g} seconds"
    return "npm cannot reach its registry" if found.returncode else None


def install(npm: str, packages: tuple[str, ...]) -> str | None:
    """Install a set of packages; return None, or the reason why the installation failed."""
    home = folder(packages)
    home.mkdir(exist_ok=True)
    command = [npm, "install", "--no-audit", "--no-fund", "--prefix", str(home), *packages]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_SECONDS)
    except subprocess.TimeoutExpired:
        return f"{' '.join(packages)}: npm took more than {INSTALL_SECONDS:g} seconds"
    if done.returncode:
        last = [line for line in done.stderr.splitlines() if line.strip()][-1:]
        return f"{' '.join(packages)}: npm could not install them: {''.join(last)}"
    (home / "installed").touch()
    return None


def install_all() -> str | None:
    """Install the missing sets; return None, or the reason why some sets are still missing."""
    missing = [one for one in SETS if not (folder(one) / "installed").exists()]
    npm = shutil.which("npm")
    if npm is None or shutil.which("node") is None:
        return "npm or node is not installed"
    if missing and (reason := reason_without_registry(npm)):
        return reason
    return next((reason for one in missing if (reason := install(npm, one))), None)


def main() -> int:
    """Return the exit status: 0 even if packages are missing, unless all services are required."""
    reason = install_all()
    if reason is None:
        return 0
    required = bool(os.environ.get("LRO_REQUIRE_SERVICES"))
    so = "LRO_REQUIRE_SERVICES asks for them" if required else "tests that need them are skipped"
    print(f"Packages of npm are missing: {reason}; {so}.", file=sys.stderr)
    return int(required)


if __name__ == "__main__":
    raise SystemExit(main())
