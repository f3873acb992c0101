"""Start to result and a queue's work, compared with Celery, Procrastinate, DBOS and others.

``--rows results`` measures start to result, also with APScheduler and arq; ``--rows queue``
measures what ``bench/peers/queues.py`` describes, with all settings. The default is both.

Each peer is installed in an environment of its own, in a temporary folder or in the folder that
``LRO_BENCH_PEERS`` names, for use in further runs. Each round starts every candidate again, with a
process, a database and a Redis of its own, so that candidates do not disturb each other.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import venv
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import attrs

from bench.across import postgres_server
from bench.peers.queues import QUEUES, Failed, Figures, Round
from bench.peers.queues import rows as queue_rows

HERE: Final = Path(__file__).parent
ROUNDS: Final = 3
LIMIT_SECONDS: Final = 120.0
"""The time limit in seconds for a candidate's share of a round; slower ones are left out."""

PARSER = argparse.ArgumentParser(prog="python -m bench peers")
PARSER.add_argument("--rows", choices=("results", "queue"), help="only these rows")
PARSER.add_argument("--rounds", type=int, default=ROUNDS, help="how often each is measured")

REQUIREMENTS: Final = {
    "celery": ["celery[redis]>=5.4"],
    "procrastinate": ["procrastinate>=3.2", "psycopg[binary,pool]>=3.2"],
    "dbos": ["dbos>=2.0", "psycopg[binary]>=3.2"],
    # The SQL data store imports packages that APScheduler does not require.
    "apscheduler": ["apscheduler>=4.0.0a6", "aiosqlite", "sniffio", "sqlalchemy[asyncio]"],
    "arq": ["arq>=0.26"],
}


@attrs.frozen(kw_only=True)
class Candidate:
    """A library in one setup: its script, the script's arguments, and the amount of work."""

    label: str
    script: str
    where: str
    """Where the work is kept: memory, SQLite, PostgreSQL or Redis."""
    address: str = "{}"
    """The format of the store's address."""
    extra: Sequence[str] = ()
    one: int = 200
    many: int = 1000

    @property
    def ours(self) -> bool:
        return self.script == "lro"


CANDIDATES: Final = (
    Candidate(label="lro, memory", script="lro", where="memory", many=6400),
    Candidate(
        label="lro on a loop, memory", script="lro", where="memory", extra=("loop",), many=6400
    ),
    Candidate(label="APScheduler 4, memory", script="apscheduler", where="memory"),
    Candidate(label="lro, SQLite", script="lro", where="SQLite", many=6400),
    Candidate(
        label="lro on a loop, SQLite", script="lro", where="SQLite", extra=("loop",), many=6400
    ),
    Candidate(
        label="APScheduler 4, SQLite",
        script="apscheduler",
        where="SQLite",
        address="sqlite+aiosqlite:///{}",
        one=50,
        many=200,
    ),
    Candidate(
        label="DBOS, SQLite", script="dbos", where="SQLite", address="sqlite:///{}", many=400
    ),
    Candidate(label="lro, PostgreSQL", script="lro", where="PostgreSQL", many=6400),
    Candidate(
        label="lro on a loop, PostgreSQL",
        script="lro",
        where="PostgreSQL",
        extra=("loop",),
        many=6400,
    ),
    Candidate(label="DBOS, PostgreSQL", script="dbos", where="PostgreSQL"),
    Candidate(label="Procrastinate, PostgreSQL", script="procrastinate", where="PostgreSQL"),
    Candidate(label="Celery, Redis", script="celery", where="Redis"),
    Candidate(label="arq, Redis", script="arq", where="Redis", extra=("0.5",), one=4),
    Candidate(label="arq, Redis, polling each 10 ms", script="arq", where="Redis", extra=("0.01",)),
)


class Places:
    """Servers and files of our own, which give each candidate a new database, file or Redis."""

    def __init__(self, stack: contextlib.ExitStack) -> None:
        self._stack = stack
        self._postgres: Any = postgres_server()
        self._made = 0

    def folder(self) -> Path:
        return Path(self._stack.enter_context(tempfile.TemporaryDirectory()))

    def new(self, where: str) -> str:
        """Create a new database, file or Redis, and return its address."""
        if where == "memory":
            return where
        if where == "SQLite":
            return str(self.folder() / "work.db")
        return self._database() if where == "PostgreSQL" else self._redis()

    def _database(self) -> str:
        if self._postgres is None:
            raise Failed("PostgreSQL is not installed here")
        import psycopg

        self._made += 1
        name = f"candidate{self._made}"
        with psycopg.connect(self._postgres.url, autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}")
        return f"{self._postgres.url.rpartition('/')[0]}/{name}"

    def _redis(self) -> str:
        import pytest

        from tests.services.redis import redis_server

        try:
            url: str = self._stack.enter_context(redis_server(self.folder())).url
        except pytest.skip.Exception as exc:
            raise Failed(str(exc)) from exc
        return url


def interpreter(script: str, home: Path) -> str:
    """Return the Python of a peer's environment, which is created if needed; for lro, our own."""
    if script == "lro":
        return sys.executable
    python = home / script / "bin" / "python"
    if not (home / script / "ready").exists():
        venv.create(home / script, with_pip=True, clear=True)
        pip = [str(python), "-m", "pip", "install", "--quiet", *REQUIREMENTS[script]]
        done = subprocess.run(pip, capture_output=True, text=True)
        if done.returncode:
            raise Failed(f"cannot be installed: {last_line(done.stderr)}")
        (home / script / "ready").touch()
    return str(python)


def last_line(text: str) -> str:
    return (text.strip().splitlines() or ["it says nothing"])[-1]


def measured(candidate: Candidate, python: str, address: str, log: Path) -> tuple[float, float]:
    """Return the median seconds of one piece of work at a time, and of each of many at once."""
    script = str(HERE / f"on_{candidate.script}.py")
    with log.open("w") as errors:
        process = subprocess.Popen(
            [python, script, candidate.address.format(address), *candidate.extra],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            start_new_session=True,  # lets us kill the process's workers too
        )
    try:
        asked = f"one {candidate.one}\nmany {candidate.many}\n"
        answers, _ = process.communicate(asked, timeout=LIMIT_SECONDS)
    except subprocess.TimeoutExpired:
        raise Failed(f"has not ended within {LIMIT_SECONDS:.0f} s") from None
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    if process.returncode:
        raise Failed(f"does not run here: {last_line(log.read_text())}")
    _, one, many = answers.split()
    return float(one), float(many)


def run(options: argparse.Namespace) -> Iterator[str]:
    if options.rows != "queue":
        yield from _results(options.rounds)
    if options.rows != "results":
        yield from _queues(options.rounds)


def _queues(rounds: int) -> Iterator[str]:
    found: dict[str, list[Figures]] = {queue.label: [] for queue in QUEUES}
    failed: dict[str, str] = {}
    with contextlib.ExitStack() as stack:
        places = Places(stack)
        home = Path(os.environ.get("LRO_BENCH_PEERS") or places.folder())
        for _ in range(rounds):
            for queue in QUEUES:
                if queue.label in failed:
                    continue
                try:
                    python = interpreter(queue.script, home)
                    with contextlib.ExitStack() as processes:
                        measured = Round(queue, python, places, processes).measured()
                    found[queue.label].append(measured)
                except Failed as exc:
                    failed[queue.label] = str(exc)
    yield from queue_rows(found, failed)


def _results(rounds: int) -> Iterator[str]:
    figures: dict[str, list[tuple[float, float]]] = {
        candidate.label: [] for candidate in CANDIDATES
    }
    failed: dict[str, str] = {}
    with contextlib.ExitStack() as stack:
        places = Places(stack)
        home = Path(os.environ.get("LRO_BENCH_PEERS") or places.folder())
        for _ in range(rounds):
            for candidate in CANDIDATES:
                if candidate.label in failed:
                    continue
                try:
                    python = interpreter(candidate.script, home)
                    log = places.folder() / "errors.txt"
                    found = measured(candidate, python, places.new(candidate.where), log)
                    figures[candidate.label].append(found)
                except Failed as exc:
                    failed[candidate.label] = str(exc)
    yield f"{'':<33} {'p50, ms':<26} {'a second, in flight':<26} ours / it: p50, rate"
    for candidate in CANDIDATES:
        if candidate.label in failed:
            yield f"{candidate.label:<33} {failed[candidate.label]}"
        else:
            yield _row(candidate, figures)


def _row(candidate: Candidate, figures: dict[str, list[tuple[float, float]]]) -> str:
    mine = figures[candidate.label]
    shown = [
        spread([one * 1e3 for one, _ in mine], ".3f"),
        spread([1 / many for _, many in mine], ",.0f"),
    ]
    where = "PostgreSQL" if candidate.where == "Redis" else candidate.where
    ours = figures.get(f"lro on a loop, {where}", [])
    if ours and not candidate.ours:
        pairs = list(zip(ours, mine, strict=False))
        latency = statistics.median(own[0] / theirs[0] for own, theirs in pairs)
        rate = statistics.median(theirs[1] / own[1] for own, theirs in pairs)
        shown.append(f"{latency:.2f}, {rate:.1f}")
    return f"{candidate.label:<33} " + " ".join(f"{one:<26}" for one in shown).rstrip()


def spread(values: Sequence[float], form: str) -> str:
    """Format the median, the lowest and the highest of these values."""
    low, middle, high = min(values), statistics.median(values), max(values)
    return f"{middle:{form}} ({low:{form}} to {high:{form}})"
