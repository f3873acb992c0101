"""Put faults into a copy of the source, one at a time, and run the tests of its package on each.

``python -m tools.faults`` tries all packages, ``python -m tools.faults lro/_filters`` one of them.
``--report FILE`` keeps the outcome; ``--missed FILE`` tries again what that run has not found;
``--checkout DIR`` takes the tests of another checkout, to compare two states of them.
``--reached FILE`` is several times as fast, and finds more: it runs all tests that reach the line
of the fault, those of the package first. ``pytest --cov --cov-context=test`` has written FILE.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from queue import SimpleQueue
from typing import Final

from coverage import CoverageData

from tools.faults.seeding import Fault, choose

ROOT: Final = Path(__file__).resolve().parents[2]
PACKAGES: Final = {
    "lro/_base": (4, "base messages model"),
    "lro/_console": (6, "console"),
    "lro/_engine": (44, "engine"),
    "lro/_filters": (18, "filters"),
    "lro/_http": (20, "http"),
    "lro/_messages": (24, "messages protobuf"),
    "lro/_model": (12, "model http"),
    "lro/_webhooks": (8, "webhooks"),
    "lro/a2a": (8, "a2a"),
    "lro/azure": (4, "azure"),
    "lro/asgi": (2, "http"),
    "lro/cli": (6, "cli"),
    "lro/executors": (16, "executors"),
    "lro/grpc": (8, "grpc"),
    "lro/integrations": (10, "integrations"),
    "lro/lint": (4, "lint"),
    "lro/mcp": (6, "mcp"),
    "lro/openapi": (2, "http"),
    "lro/protobuf": (4, "protobuf"),
    "lro/stores": (26, "stores"),
    "lro/_engine/telemetry": (4, "telemetry"),
    "lro/testing": (4, "stores executors"),
    "lro/wsgi": (2, "http"),
    "lro_client": (40, "client cli"),
    "lro_conform": (18, "conform"),
}
"""By package: how many faults it gets, about one for 250 lines, and the folders of its tests."""
LIMIT_SECONDS: Final = 900
"""How long the tests of one fault may take; a fault that makes them hang counts as found."""


class Bench:
    """Copies of the source, one for each job, and the checkout whose tests run on them."""

    def __init__(self, checkout: Path, jobs: int, reached: Path | None) -> None:
        self.checkout = checkout
        self._reached = CoverageData(str(reached)) if reached else None
        if self._reached:
            self._reached.read()
        self._folder = tempfile.TemporaryDirectory()
        self._copies: SimpleQueue[Path] = SimpleQueue()
        for number in range(jobs):
            copy = Path(self._folder.name, f"job{number}")
            shutil.copytree(ROOT / "src", copy, ignore=shutil.ignore_patterns("__pycache__"))
            self._copies.put(copy)

    def close(self) -> None:
        """Remove the copies."""
        self._folder.cleanup()

    def try_out(self, fault: Fault, folders: list[str]) -> str:
        """Return the test that found the fault, or the empty text."""
        copy = self._copies.get()
        whole = (copy / fault.path).read_bytes()
        try:
            (copy / fault.path).write_bytes(fault.applied(whole))
            return self._run(copy, self._tests(fault, folders))
        finally:
            (copy / fault.path).write_bytes(whole)
            self._copies.put(copy)

    def _run(self, copy: Path, tests: list[str]) -> str:
        command = [sys.executable, "-m", "pytest", "-xq", "--tb=no", "-p", "no:cacheprovider"]
        chosen = copy / "tests.txt"  # which may be more than a command line holds
        chosen.write_text("\n".join(tests))
        environment = {**os.environ, "PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"}
        try:
            run = subprocess.run(
                [*command, f"@{chosen}"],
                cwd=self.checkout,
                env=environment,
                capture_output=True,
                text=True,
                timeout=LIMIT_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return f"no end within {LIMIT_SECONDS} s"
        if run.returncode == 0:
            return ""
        lines = run.stdout.splitlines()
        failed = [line for line in lines if line.startswith(("FAILED", "ERROR"))]
        return (failed or lines[-1:] or [f"exit {run.returncode}"])[0][:160]

    def _tests(self, fault: Fault, folders: list[str]) -> list[str]:
        """The tests to run: whole folders, if none reaches the line in the tests' own process."""
        places = [f"tests/{tier}{folder}" for folder in folders for tier in ("", "full/")]
        by_line = self._reached.contexts_by_lineno(self._measured(fault)) if self._reached else {}
        names = {context.rpartition("|")[0] for context in by_line.get(fault.line, ())} - {""}

        def distance(name: str) -> tuple[bool, bool, str]:
            far = not name.startswith(tuple(f"{place}/" for place in places))
            return far, name.startswith("tests/full/"), name

        known = sorted(names, key=distance)
        return known or [place for place in places if (self.checkout / place).is_dir()]

    def _measured(self, fault: Fault) -> str:
        """The name of the fault's file where the coverage was measured."""
        files = self._reached.measured_files() if self._reached else set()
        return next((name for name in files if name.endswith(f"/src/{fault.path}")), "")


def wanted(arguments: argparse.Namespace) -> list[tuple[str, Fault]]:
    """The faults to try, with their packages."""
    if arguments.missed:
        rows = json.loads(Path(arguments.missed).read_text())
        return [(row["package"], Fault(**row["fault"])) for row in rows if not row["found"]]
    packages = arguments.packages or list(PACKAGES)
    return [(p, fault) for p in packages for fault in choose(ROOT / "src", p, PACKAGES[p][0])]


def main() -> int:
    """Try the faults, print a line for each, and the numbers."""
    parser = argparse.ArgumentParser(prog="python -m tools.faults", description=__doc__)
    parser.add_argument("packages", nargs="*", metavar="PACKAGE", help=", ".join(PACKAGES))
    parser.add_argument("--checkout", type=Path, default=ROOT, metavar="DIR")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--missed", metavar="FILE")
    parser.add_argument("--reached", type=Path, metavar="FILE")
    parser.add_argument("--report", type=Path, metavar="FILE")
    arguments = parser.parse_args()
    if unknown := {*arguments.packages} - {*PACKAGES}:
        parser.error(f"unknown packages: {', '.join(sorted(unknown))}")
    bench = Bench(arguments.checkout.resolve(), arguments.jobs, arguments.reached)
    rows = []

    def try_one(one: tuple[str, Fault]) -> None:
        package, fault = one
        by = bench.try_out(fault, PACKAGES[package][1].split())
        rows.append({"package": package, "fault": asdict(fault), "found": by})
        print(f"{'found ' if by else 'MISSED'} {fault} {by}", flush=True)

    with ThreadPoolExecutor(arguments.jobs) as pool:
        list(pool.map(try_one, wanted(arguments)))
    bench.close()
    print(f"{sum(bool(row['found']) for row in rows)} of {len(rows)} faults found")
    if arguments.report:
        arguments.report.write_text(json.dumps(rows, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
