"""Run a tier of the tests several times under some conditions, and count what failed.

``python3 -m tools.steady busy --times 5 --logs DIR`` needs the session's environment: run
``python3 run.py tests`` once before. It keeps the output of each run in DIR. Conditions may hold
together: ``core,shuffled``.
"""

from __future__ import annotations

import argparse
import os
import re
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
NOX: Final = [str(ROOT / ".venv/bin/python"), "-m", "nox", "--reuse-venv=yes", "--no-install"]
CONDITIONS: Final = {
    "quiet": "nothing beside it",
    "busy": "eight processes beside it, each in a loop without an end",
    "sync": "8 % of all fsyncs take 0.3 to 2 s more",
    "core": "one core",
    "shuffled": "modules, and tests within them, in an order of chance",
}
BUSY_PROCESSES: Final = 8
SLOW_SYNC_PERCENT: Final = 8


@contextmanager
def conditions(
    names: list[str], folder: Path, number: int
) -> Iterator[tuple[list[str], dict[str, str]]]:
    """The words before a command, and what its environment has more, while the conditions hold."""
    before: list[str] = []
    more: dict[str, str] = {}
    beside: list[subprocess.Popen[bytes]] = []
    if "busy" in names:
        loop = [sys.executable, "-c", "while True: pass"]
        beside = [subprocess.Popen(loop) for _ in range(BUSY_PROCESSES)]
    if "sync" in names:
        library = folder.resolve() / "slow_sync.so"
        source = Path(__file__).with_name("slow_sync.c")
        subprocess.run(["cc", "-shared", "-fPIC", "-O", "-o", library, source, "-ldl"], check=True)
        more |= {"LD_PRELOAD": str(library), "SLOW_SYNC_PERCENT": str(SLOW_SYNC_PERCENT)}
    if "core" in names:
        before = ["taskset", "--cpu-list", "0"]
    if "shuffled" in names:
        more |= {"STEADY_SEED": str(number)}
    try:
        yield before, more
    finally:
        for process in beside:
            process.kill()
            process.wait()


def run(arguments: argparse.Namespace, number: int) -> bool:
    """Run the session once and print a line; whether all passed."""
    names = arguments.conditions
    log = arguments.logs / f"{arguments.session}-{'-'.join(names)}-{number}.log"
    command = [*NOX, "--session", arguments.session, "--"]
    if "shuffled" in names:
        command += ["-p", "tools.steady.shuffle"]
    started, used = time.monotonic(), cpu_seconds()
    with conditions(names, arguments.logs, number) as (before, more), log.open("w") as output:
        status = subprocess.run(
            [*before, *command, *arguments.pytest],
            cwd=ROOT,
            env={**os.environ, **more},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            check=False,
        ).returncode
        wall, used = time.monotonic() - started, cpu_seconds() - used
    said = log.read_text(errors="replace")
    counted = re.findall(r"^=* ?(\d+ .*(?:passed|failed|error).*) in [\d.]+s", said, re.MULTILINE)
    failed = re.findall(r"^(?:FAILED|ERROR) (\S+)", said, re.MULTILINE)
    print(
        f"{arguments.session} {','.join(names)} {number}: {'passed' if not status else 'RED'},"
        f" {counted[-1] if counted else 'no count'}, {wall:.0f} s,"
        f" {used:.0f} s of CPU",
        *failed,
        sep="\n  ",
        flush=True,
    )
    return not status


def cpu_seconds() -> float:
    """What the processes used that have ended, which those that keep it busy have not yet."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main() -> int:
    """Run the tests so often, and print the number of runs that passed."""
    parser = argparse.ArgumentParser(prog="python3 -m tools.steady", description=__doc__)
    shown = "; ".join(f"{name}: {text}" for name, text in CONDITIONS.items()).replace("%", "%%")
    parser.add_argument("conditions", type=lambda text: text.split(","), help=shown)
    parser.add_argument("--times", type=int, default=5)
    parser.add_argument("--first", type=int, default=1, help="the number of the first run")
    parser.add_argument("--session", default="tests")
    parser.add_argument("--logs", type=Path, default=Path("logs"), metavar="DIR")
    parser.epilog = "What follows after -- goes to pytest."
    words = sys.argv[1:]
    end = words.index("--") if "--" in words else len(words)
    arguments = parser.parse_args(words[:end])
    arguments.pytest = words[end + 1 :]
    if unknown := {*arguments.conditions} - {*CONDITIONS}:
        parser.error(f"unknown conditions: {', '.join(sorted(unknown))}")
    arguments.logs.mkdir(parents=True, exist_ok=True)
    numbers = range(arguments.first, arguments.first + arguments.times)
    passed = sum(run(arguments, number) for number in numbers)
    print(f"{passed} of {arguments.times} runs passed", flush=True)
    return passed != arguments.times


if __name__ == "__main__":
    sys.exit(main())
