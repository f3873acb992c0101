"""The end of the interpreter while a service is open: no work is lost."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from pathlib import Path

import pytest

from lro import State
from lro.adapters import Record
from tests.full.engine.exiting_process import EXECUTORS, STORES
from tests.services.postgres import shared_server
from tests.waiting import until

ROOT = Path(__file__).resolve().parents[3]
LONG = 300.0
"""Seconds that the naps would never need."""


class Place:
    """A store of some kind that outlives a process."""

    def __init__(self, kind: str, where: str, folder: Path) -> None:
        self.kind, self.where, self.folder = kind, where, folder

    def run(
        self, executor: str, drain: float, ending: str, seconds: float = 0.5
    ) -> tuple[int, str, list[str]]:
        """Run the process with naps of so many seconds.

        Its exit status, what it complains of, and the names of its naps.
        """
        spans = (str(drain), str(seconds))
        place = (self.kind, self.where, executor, str(self.folder), *spans, ending)
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.full.engine.exiting_process", *place],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        names = process.stdout.readline().split()
        until(lambda: process.poll() is not None or self.notes("begun") == len(names))
        assert process.poll() is None
        _, complaint = process.communicate("\n", timeout=360)
        lines = complaint.splitlines(keepends=True)
        # On a machine that stalls, a clock that is read over a connection seems to have been set.
        rest = [line for line in lines if not line.startswith("the store's clock was set")]
        return process.returncode, "".join(rest), names

    def notes(self, line: str) -> int:
        """How often this line is in the log of the naps."""
        log = self.folder / "log"
        return log.read_text().split().count(line) if log.exists() else 0

    def records(self, names: list[str]) -> list[Record]:
        with contextlib.closing(STORES[self.kind](self.where)) as store:
            return [store.get(name) for name in names]


@pytest.fixture(params=["sqlite", "postgres"])
def place(request, tmp_path):
    """A store that is there when the process has gone, unless it is in memory."""
    if request.param == "memory":
        return Place("memory", "", tmp_path)
    if request.param == "sqlite":
        return Place("sqlite", str(tmp_path / "operations.db"), tmp_path)
    pytest.importorskip("psycopg")
    server = shared_server()
    return Place("postgres", f"{server.url}#{server.fresh_schema()}", tmp_path)


@pytest.fixture
def file(tmp_path):
    """A SQLite file."""
    return Place("sqlite", str(tmp_path / "operations.db"), tmp_path)


@pytest.mark.parametrize("place", ["memory", "sqlite", "postgres"], indirect=True)
@pytest.mark.parametrize("executor", EXECUTORS)
def test_work_ends_before_the_interpreter(place, executor):
    """A program that comes to its last line waits for its work, and stores how it has ended.

    What the work does outside is done also where no store outlives the process.
    """
    assert place.run(executor, LONG, "end")[:2] == (0, "")
    assert place.notes("ended") == 2


@pytest.mark.parametrize("executor", EXECUTORS)
def test_work_that_goes_on_is_handed_back_at_exit(place, executor):
    """With no time to drain it is left in progress, held by no process."""
    status, complaint, names = place.run(executor, 0, "end", LONG)
    assert (status, complaint) == (0, "")
    assert [(one.state, one.owner) for one in place.records(names)] == [
        (State.IN_PROGRESS, ""),
        (State.IN_PROGRESS, ""),
    ]


@pytest.mark.parametrize(
    ("ending", "status"), [("exit", 3), ("registered", 0), ("asked", 0), ("forked", 0)]
)
def test_exit_closes_the_service_in_every_way_to_end(file, ending, status):
    """sys.exit, an exit function of the application, callers in daemon threads, a fork."""
    found, complaint, names = file.run("threads", LONG, ending)
    assert (found, complaint) == (status, "")
    assert [one.state for one in file.records(names)] == [State.SUCCEEDED] * 2
    assert not Path(file.where + "-wal").exists()
