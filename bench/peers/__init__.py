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
import subprocess
import sys
import tempfile
import venv
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

import attrs

from bench.across import postgres_server
from bench.measure import MISSING, Figure, against, alone
from bench.peers.queues import QUEUES, Failed, Figures, Queue, Round
from bench.peers.queues import rows as queue_rows

HERE: Final = Path(__file__).parent
ROUNDS: Final = 3
LIMIT_SECONDS: Final = 120.0
"""The time limit in seconds for a candidate's share of a round; slower ones are left out."""

PARSER = argparse.ArgumentParser(prog="python -m bench peers")
PARSER.add_argument("--rows", choices=("results", "queue"), help="only these rows")
PARSER.add_argument("--rounds", type=int, default=ROUNDS, help="how often each is measured")

TARGETS: Final = {"memory": 5, "SQLite": 20, "PostgreSQL": 10}
"""How many times the rate of the best peer on each store is wanted."""

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


Tried = TypeVar("Tried", Candidate, Queue)
Found = TypeVar("Found")


class Places:
    """Servers and files of our own, which give each candidate a new database, file or Redis."""

    def __init__(self, stack: contextlib.ExitStack) -> None:
        self._stack = stack
        self._postgres: Any = postgres_server()

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

        name = self._postgres.fresh_schema()
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


def run(options: argparse.Namespace) -> Iterator[Figure]:
    if options.rows != "queue":
        yield from _results(options.rounds)
    if options.rows != "results":
        yield from _queues(options.rounds)


def _queues(rounds: int) -> Iterator[Figure]:
    found: dict[str, list[Figures]] = {queue.label: [] for queue in QUEUES}
    with contextlib.ExitStack() as stack:
        places = Places(stack)

        def once(queue: Queue, python: str) -> Figures:
            with contextlib.ExitStack() as processes:
                return Round(queue, python, places, processes).measured()

        each_round(QUEUES, rounds, places, once, found)
    yield from queue_rows(found)


def each_round(
    candidates: Sequence[Tried],
    rounds: int,
    places: Places,
    once: Callable[[Tried, str], Found],
    found: dict[str, list[Found]],
) -> None:
    """Measure all candidates in each round; one that fails is not measured again."""
    home = Path(os.environ.get("LRO_BENCH_PEERS") or places.folder())
    failed = set()
    for _ in range(rounds):
        for candidate in candidates:
            if candidate.label in failed:
                continue
            try:
                python = interpreter(candidate.script, home)
                found[candidate.label].append(once(candidate, python))
            except Failed as exc:
                failed.add(candidate.label)
                MISSING.append(f"{candidate.label}: {exc}")


Pair = tuple[float, float]
"""Seconds for one piece of work at a time, and for each of many at once."""


def measured_all(
    stack: contextlib.ExitStack, candidates: Sequence[Candidate], rounds: int
) -> dict[str, list[Pair]]:
    """Return the figures of each round of each candidate."""
    places = Places(stack)
    found: dict[str, list[Pair]] = {candidate.label: [] for candidate in candidates}

    def once(candidate: Candidate, python: str) -> Pair:
        log = places.folder() / "errors.txt"
        return measured(candidate, python, places.new(candidate.where), log)

    each_round(candidates, rounds, places, once, found)
    return found


def rows(
    candidates: Sequence[Candidate],
    found: dict[str, list[Pair]],
    mine: Callable[[Candidate], list[Pair]],
    measures: tuple[str, str] = ("p50", "rate"),
) -> Iterator[Figure]:
    """Yield the rows of candidates; ``mine`` returns our figures to compare a peer with."""
    for candidate in candidates:
        theirs = found[candidate.label]
        if not theirs:
            continue
        for place, (measure, unit) in enumerate(zip(measures, ("ms", "/s"), strict=True)):
            values = [_shown(one[place], unit) for one in theirs]
            pairs = [
                (_shown(own[place], unit), value)
                for own, value in zip(mine(candidate), values, strict=False)
            ]
            if candidate.ours or not pairs:
                yield alone(candidate.label, values, unit=unit, measure=measure)
            else:
                yield against(f"ours / {candidate.label}", pairs, unit=unit, measure=measure)


def _shown(seconds: float, unit: str) -> float:
    return 1 / seconds if unit == "/s" else seconds * 1e3


def _results(rounds: int) -> Iterator[Figure]:
    with contextlib.ExitStack() as stack:
        found = measured_all(stack, CANDIDATES, rounds)

    def mine(candidate: Candidate) -> list[Pair]:
        where = "PostgreSQL" if candidate.where == "Redis" else candidate.where
        return found[f"lro on a loop, {where}"]

    yield from rows(CANDIDATES, found, mine)
    for where, target in TARGETS.items():
        own = found[f"lro on a loop, {where}"]
        peers = [found[one.label] for one in CANDIDATES if one.where == where and not one.ours]
        best = [min(many for _, many in each) for each in zip(*filter(None, peers), strict=False)]
        pairs = [(1 / many, 1 / low) for (_, many), low in zip(own, best, strict=False)]
        if pairs:
            what = f"ours / the best peer, {where}"
            yield against(what, pairs, unit="/s", measure="rate", target=target)
